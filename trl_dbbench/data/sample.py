"""Rejection sampling: play every task several times, and keep the right episodes as training data.

```
out/
  run.json        settings of the episodes                            ┐
  tasks.jsonl     the tasks                                           │ as in a training run's folder, so that
  shots.jsonl     earlier episodes shown in the prompts, if any       │ replay, report and export can read it
  episodes.jsonl  kept episodes, with token ids and log-probabilities ┘
  sample.json     the request, its progress, and counts of all played episodes
```

Each episode has its own random stream, seeded by the seed, its task and its number. So the batch size changes
nothing, and a killed sampling resumes where it stopped: `sample.json` is written after each batch and records
the length of `episodes.jsonl` at that time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trl_dbbench.engines.base import Backend
from trl_dbbench.episode.plan import Plan
from trl_dbbench.episode.player import Player
from trl_dbbench.errors import ConfigError
from trl_dbbench.evaluation.evaluate import play_in_batches, settings_apart, shots_of, within_context
from trl_dbbench.runs.journal import other_settings
from trl_dbbench.runs.records import (
    EPISODES_FILE,
    TASKS_FILE,
    Accuracy,
    EpisodeRecord,
    checked_record,
    is_void,
    record_with_ids,
    said_in,
    worth_learning,
)
from trl_dbbench.runs.settings import RunSettings, versions
from trl_dbbench.runs.trained import TAKEN, Trained, evaluated_tasks
from trl_dbbench.tasks import Task
from trl_dbbench.utils.console import columns
from trl_dbbench.utils.files import (
    LOCK_FILE,
    found_from_everywhere,
    locked,
    telling_of_no_space,
    visible,
    write_atomically,
    write_json,
    write_through,
)
from trl_dbbench.utils.lookup import some_of

PROGRESS_FILE = "sample.json"


@dataclass
class Sampled:
    """State of a sampling, as in `sample.json`.

    `asked` holds the settings that decide which episodes are drawn and kept. `counts` counts right and judged
    episodes, `void` those whose environment failed (see `Accuracy`), and `statuses` how they ended. `bytes`
    is the size of `episodes.jsonl`.
    """

    asked: dict[str, Any]
    episodes: int
    played: int = 0
    bytes: int = 0
    generated_tokens: int = 0
    kept: int = 0
    kept_tokens: int = 0
    kept_tasks: int = 0
    repeated: int = 0
    counts: dict[str, list[int]] = field(default_factory=dict)
    void: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)

    def add(self, batch: Sequence[EpisodeRecord]) -> None:
        """Count a batch of played episodes."""
        self.played += len(batch)
        self.generated_tokens += sum(map(_sampled_tokens, batch))
        accuracy = self.accuracy.add(batch)
        self.counts, self.void = dict(accuracy.counts), dict(accuracy.void)
        self.statuses = dict(Counter(self.statuses) + Counter(record["status"] for record in batch))

    @property
    def accuracy(self) -> Accuracy:
        """Accuracy of the played episodes; a new object each time."""
        return Accuracy(self.counts, self.void)

    def __str__(self) -> str:
        kept = f"{self.kept:,} episodes of {self.kept_tasks:,} tasks, {self.kept_tokens:,} sampled tokens"
        rows = {
            "right": self.accuracy.describe(),
            **{f"status/{s}": f"{100 * n / self.played:.1f} %" for s, n in sorted(self.statuses.items())},
            "generated": f"{self.generated_tokens:,} tokens in {self.played:,} episodes",
            "kept": kept,
            "repeated": f"{self.repeated:,} more did what one of their task had done, and were left out",
        }
        return "\n".join(columns((name, [value]) for name, value in rows.items()))


def check_not_held_out(tasks: Sequence[Task], run: Path | None, eval_tasks: Sequence[Task]) -> None:
    """Raise ConfigError if a task is both sampled and held out, whatever its id.

    Held out are `eval_tasks`, and the tasks that the run which trained the model was evaluated on.
    """
    held_out = [(eval_tasks, "--eval-tasks")]
    if run is not None:
        held_out.append((evaluated_tasks(run, []), f"the held-out tasks of '{run}'"))
    for others, name in held_out:
        contents = {(task.question, task.tables_key) for task in others}
        shared = [task.id for task in tasks if (task.question, task.tables_key) in contents]
        if shared:
            raise ConfigError(
                f"{len(shared)} of {len(tasks)} tasks are also in {name}: {some_of(shared)}. What is sampled "
                "is trained on, and their evaluation would tell nothing: take them out of --tasks."
            )


def sample_into(
    out: Path,
    tasks: Sequence[Task],
    plan: Plan,
    trained: Trained,
    player: Player,
    backend: Backend,
    *,
    batch_size: int = 64,
    progress: bool = True,
) -> Sampled:
    """Play the remaining episodes of a plan, and write those that are kept to a folder.

    Args:
        out: a new folder, or one in which this plan was begun.
        tasks: duplicates are played once.
        trained: the model, for the record; its settings may ask for earlier episodes in the prompts.

    Raises:
        ConfigError: if the folder holds something else.
        StorageError: if the disk is full.
        ConfigError, DatabaseError, EngineError: as in `evaluate`.
    """
    tasks = list({task.digest: task for task in tasks}.values())
    player = within_context(player, backend)
    starts = plan.starts(tasks, player, trained.settings.system_prompt)
    shots = shots_of(trained, player, tasks, folder=out)
    asked = asked_of(tasks, plan, trained) | {"database": player.database.describe()}
    if out.exists() and not (out / PROGRESS_FILE).exists() and any(map(_is_foreign, out.iterdir())):
        raise ConfigError(f"'{out}' holds something else. Name a new folder by --out.")
    with locked(out):
        sampled = _begun(out, asked, len(starts))
        batches = play_in_batches(
            *(starts[sampled.played :], player, backend, batch_size, "sample"),
            shots=shots,
            system_prompt=trained.settings.system_prompt,
            progress=progress,
            begun=sampled.played > 0,
        )
        _write_head(out, sampled, tasks, trained, player)
        kept = _Kept(out, sampled, plan)
        for batch in batches:
            records = [record_with_ids(episode, "train", 0) for episode in batch]
            sampled.add(records)
            if shots is not None:
                shots.write(records)
            kept.add(records)
            write_json(out / PROGRESS_FILE, asdict(sampled))
    return sampled


def _is_foreign(path: Path) -> bool:
    return path.name != LOCK_FILE and not path.name.startswith(f".{PROGRESS_FILE}.")


def _stamp(name: str | None) -> str | None:
    """Return a text that changes when the weights in a folder are rewritten; `None` for a hub id."""
    folder = Path(name or "")
    if name is None or not folder.is_dir():
        return None
    weights = visible(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    told = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in weights]
    return hashlib.blake2b(repr(told).encode(), digest_size=8).hexdigest()


def asked_of(tasks: Sequence[Task], plan: Plan | None, trained: Trained) -> dict[str, Any]:
    """Return the settings that decide which episodes are played, as JSON values."""
    digests = "\n".join(task.digest for task in tasks)
    asked = {name: getattr(trained.settings, name) for name in TAKEN}
    asked |= {"model": trained.model, "adapter": trained.adapter}
    for name in ("model", "adapter", "few_shot_memory"):  # whatever the working directory
        asked[name] = asked[name] and found_from_everywhere(asked[name])
    asked |= asdict(plan) if plan else {}
    asked["weights"] = [_stamp(trained.model), _stamp(trained.adapter)]
    asked["tasks"] = hashlib.blake2b(digests.encode(), digest_size=8).hexdigest()
    return json.loads(json.dumps(asked))


def _begun(out: Path, asked: dict[str, Any], episodes: int) -> Sampled:
    """Return the state of an earlier start with the same settings, or a new one."""
    path = out / PROGRESS_FILE
    if not path.exists():
        return Sampled(asked, episodes)
    try:
        sampled = Sampled(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"'{path}' cannot be read: {error}. Name a new folder by --out.") from None
    if not sampled.played:  # so nothing is lost
        return Sampled(asked, episodes)
    if others := other_settings(sampled.asked, asked):
        raise ConfigError(
            f"'{out}' was begun with other settings: {others}. Give these to go on there, or name a new "
            "folder by --out."
        )
    return sampled


def _write_head(out: Path, sampled: Sampled, tasks: Iterable[Task], trained: Trained, player: Player) -> None:
    write_json(out / PROGRESS_FILE, asdict(sampled))
    settings = settings_apart(trained, out, found_at=out)
    database, model, memory = player.database, trained.model, settings.few_shot_memory
    replace(
        settings,
        **asdict(player.rules),
        database=database.describe(),
        dialect=database.dialect.name,
        limits=database.limits,
        model=found_from_everywhere(model),
        few_shot_memory=None if memory is None else str(Path(memory).resolve()),
        rewards={},  # these episodes were not rewarded
        advantage=RunSettings.advantage,
        advantage_args=None,
        training={},
        sampling={name: sampled.asked[name] for name in ("temperature", "top_p", "top_k")},
        task_files={},
        versions=versions(),
        id=None,  # this run trains nothing
        best_step=None,
    ).write(out)
    with write_atomically(out / TASKS_FILE) as file:
        file.writelines(f"{task.to_json()}\n" for task in tasks)


def _sampled_tokens(record: EpisodeRecord) -> int:
    return sum(turn["tokens"] for turn in record["turns"])


class _Kept:
    """Writer of `episodes.jsonl`, which knows the episodes already in it."""

    def __init__(self, out: Path, sampled: Sampled, plan: Plan):
        self._path, self._sampled, self._plan = out / EPISODES_FILE, sampled, plan
        self._said: dict[str, set[tuple[str, ...]]] = {}  # task's digest -> actions of its kept episodes
        self._path.touch()
        if self._path.stat().st_size < sampled.bytes:
            raise ConfigError(f"'{self._path}' is shorter than it was. Name a new folder by --out.")
        os.truncate(self._path, sampled.bytes)
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = checked_record(json.loads(line))
                    self._said.setdefault(record["task_digest"], set()).add(said_in(record))
                except (ValueError, KeyError) as error:
                    raise ConfigError(
                        f"'{self._path}', line {number} is damaged ({error}). Name a new folder by --out."
                    ) from None

    def add(self, batch: Sequence[EpisodeRecord]) -> None:
        lines = []
        for record in batch:
            wanted = not is_void(record) if self._plan.keep == "all" else worth_learning(record)
            if not wanted:
                continue
            said, before = said_in(record), self._said.setdefault(record["task_digest"], set())
            if said in before:
                self._sampled.repeated += 1
            elif self._plan.max_per_task is None or len(before) < self._plan.max_per_task:
                before.add(said)
                self._sampled.kept += 1
                self._sampled.kept_tokens += _sampled_tokens(record)
                lines.append(json.dumps(record, ensure_ascii=False) + "\n")
        self._sampled.kept_tasks = sum(map(bool, self._said.values()))
        remedy = "Free some, and start again: it goes on where it stopped."
        with telling_of_no_space(self._path, remedy):
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(lines)
            write_through(self._path)
        self._sampled.bytes = self._path.stat().st_size
