"""The held-out evaluations that a run compares at its end, in its last line and in the model card."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from trl_dbbench.runs.records import EPISODES_FILE, Accuracy, EpisodeRecord

HELD_OUT = b'{"phase": "eval"'
"""Beginning of a held-out episode's line. Other lines need not be parsed."""


def before_and_after(folder: Path, kept: int | None = None) -> dict[int, Accuracy]:
    """Return the accuracy of the first held-out evaluation and of the last, by the updates before each.

    Only evaluations on the last one's tasks count: a run may have gone on with others.

    Args:
        folder: the run's.
        kept: updates of the weights that the run keeps, whose evaluation then takes the place of the last.
    """
    played: defaultdict[int, list[EpisodeRecord]] = defaultdict(list)
    path = folder / EPISODES_FILE
    if path.exists():
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(HELD_OUT) and line.endswith(b"\n"):
                    episode = json.loads(line)
                    played[episode["step"]].append(episode)
    if not played:
        return {}
    tasks = {step: {each.get("task_digest") for each in episodes} for step, episodes in played.items()}
    last = kept if kept is not None and kept in played else max(played)
    first = min(step for step, of in tasks.items() if of == tasks[last])
    return {step: Accuracy().add(played[step]) for step in sorted({first, last})}
