"""What a run leaves in its folder for those who look at it later, and how it is read.

```
run.json        how the episodes were played and rewarded
episodes.jsonl  every episode, one a line, in the form of `Episode.to_dict`
tasks.jsonl     the tasks they played, each once
```

A run may have been killed, or still run: what cannot be read is left out, with a note that says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trl_dbbench.database import Limits
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Task

EPISODES_FILE = "episodes.jsonl"
TASKS_FILE = "tasks.jsonl"
SETTINGS_FILE = "run.json"

PHASES = {"eval": "held-out", "greedy": "greedy", "train": "sampled"}
"""What `episodes.jsonl` calls an episode, and what a reader does."""

Record = dict[str, Any]
"""An episode as its line holds it (see `Episode.to_dict`), checked by `_record`."""


@dataclass(frozen=True)
class RunSettings:
    """How a run's episodes were played and rewarded.

    `observation_characters` is 0 where none were cut; `max_turns`, `max_completion_length` and `context` are those
    of `rollout.Rules`; `database` and `dialect` say
    what it was played on; `rewards` maps each reward's name to what `rewards.describe_reward` says of it.
    """

    protocol: str
    observation_characters: int
    max_turns: int
    max_completion_length: int | None = None
    context: int | None = None
    database: str | None = None
    dialect: str | None = None
    limits: Limits = field(default_factory=Limits)
    rewards: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        unfinished = folder / f".{SETTINGS_FILE}"
        unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        unfinished.replace(folder / SETTINGS_FILE)

    @classmethod
    def read(cls, folder: str | Path, **given: Any) -> RunSettings:
        """Reads a run's folder; what is `given` (and not `None`) comes first.

        Raises:
            ConfigError: if it is no run's folder, or says neither there nor in what is given how it was played.
        """
        for name in (EPISODES_FILE, TASKS_FILE):
            if not (Path(folder) / name).is_file():
                raise ConfigError(
                    f"'{folder}' has no {name}. Give the output_dir of a training run, a folder."
                )
        path = Path(folder) / SETTINGS_FILE
        known = {name: value for name, value in given.items() if value is not None}
        try:
            known = json.loads(path.read_bytes()) | known
            return cls(**known | {"limits": Limits(**known["limits"])})
        except FileNotFoundError:
            needed = ("protocol", "max_turns", "observation_characters")
            if missing := [f"--{name.replace('_', '-')}" for name in needed if name not in known]:
                raise ConfigError(
                    f"'{path}' is not there, which later versions write. Say how the run's episodes were played, as in "
                    f"--protocol text --max-turns 3 --observation-characters 800; missing: {', '.join(missing)}."
                ) from None
            return cls(**known)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"'{path}' cannot be read: {error}. Move it away and say in options how the run was played."
            ) from None


def _accept(record: Record) -> None:
    pass


def read_episodes(
    path: Path, notes: list[str], check: Callable[[Record], None] = _accept
) -> Iterator[tuple[int, Record]]:
    """The episodes of a log with the numbers of their lines; `notes` are complete at its end.

    Args:
        check: raises ValueError for an episode that is to be left out, too.
    """
    if not path.exists():
        notes.append(f"{path.name} is not there: no transcripts.")
        return
    bad: list[str] = []
    empty, unreadable = True, True
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            empty = False
            try:
                record = _record(loads(line))
                check(record)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n") and isinstance(error, json.JSONDecodeError):
                    notes.append(
                        f"{path.name} ends in the middle of line {number}: the run was stopped there, or still runs."
                    )
                else:
                    bad.append(f"line {number} ({error})")
                continue
            unreadable = False
            yield number, record
    if empty:
        notes.append(f"{path.name} is empty: no transcripts.")
        return
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        notes.append(f"{path.name} has lines that were left out: {', '.join(bad[:3])}{more}.")
    if unreadable:
        notes.append(f"{path.name} has no readable episode: no transcripts.")


def read_tasks(path: Path, notes: list[str]) -> Iterator[Task]:
    """The tasks that a run played; `notes` are complete at its end."""
    bad = 0
    with path.open("rb") as lines:
        for line in lines:
            if line.strip():
                try:
                    yield Task.from_json(line.decode("utf-8", errors="replace"))
                except TaskError:
                    bad += 1
    if bad:
        notes.append(f"{path.name}: {bad} line{'s' * (bad > 1)} could not be read and were left out.")


def loads(text: bytes | str) -> Any:
    """JSON with `null` for NaN and infinities, which browsers do not read."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _record(raw: Any) -> Record:
    """The line's episode; raises ValueError where what readers count on is not there."""
    if not isinstance(raw, dict):
        raise ValueError("not an object")
    needed: dict[str, type] = {"phase": str, "step": int, "task_id": str, "status": str, "turns": list}
    for key, kind in needed.items():
        if not isinstance(raw.get(key), kind):
            raise ValueError(f"no usable '{key}'")
    if raw["phase"] not in PHASES:
        raise ValueError(f"unknown phase {raw['phase']!r}")
    if not all(isinstance(turn, dict) for turn in raw["turns"]):
        raise ValueError("a turn is not an object")
    rewards = raw.get("rewards")
    return raw | {
        "right": raw.get("right") is True,
        "question": raw["question"] if isinstance(raw.get("question"), str) else "",
        "operation": str(raw.get("operation", "")),
        "skills": [str(skill) for skill in raw.get("skills") or ()],
        "rewards": rewards if isinstance(rewards, dict) else {},
    }
