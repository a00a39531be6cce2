"""Tasks as the rows that the trainer reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets

from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol, get_protocol
from trl_dbbench.episode.types import Episode
from trl_dbbench.tasks import Task

DRAW = "draw"
"""The one column that a dataset of fresh tasks holds."""

FRESH_ROWS = 1_000_000
"""Draws of an epoch over fresh tasks: more than a run has steps."""

_SOME = 32
"""Of fresh tasks, so many stand for all where prompts are looked at before a run."""

_CHUNK = 1_000
"""Tasks that are Python objects at once: all of them would take several times their size."""


def to_dataset(
    tasks: Sequence[Task], protocol: str | AgentProtocol = "text", system_prompt: Opening | None = None
) -> Dataset:
    """The rows that the trainer reads: `prompt`, a list of messages, and `task`, a JSON string.

    `task` is text because Arrow has no column for tables whose cells differ in type from task to task.

    Args:
        tasks: what `load_tasks` returned.
        protocol: `"text"`, `"tools"`, the dotted path of your own, or a protocol object.
        system_prompt: replaces the protocol's own.
    """
    source = get_protocol(protocol) if isinstance(protocol, str) else protocol

    def chunk(start: int) -> Dataset:
        part = tasks[start : start + _CHUNK]
        return Dataset.from_list(
            [{"prompt": source.messages(task, system_prompt), "task": task.to_json()} for task in part]
        )

    return concatenate_datasets([chunk(start) for start in range(0, max(len(tasks), 1), _CHUNK)])


def note_source(dataset: Dataset, source: str) -> None:
    """Notes in the dataset's info where its tasks are from, for a run's `run.json`.

    Args:
        source: a file, a folder, or a hub id. Of files the sha256 is noted too.
    """
    path = Path(source)
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    digests = {str(each): _digest(each) for each in files if each.is_file()}
    dataset.info.download_checksums = digests or {source: {}}


def _digest(path: Path) -> dict[str, object]:
    with path.open("rb") as file:
        return {
            "num_bytes": path.stat().st_size,
            "checksum": hashlib.file_digest(file, "sha256").hexdigest(),
        }


@dataclass(frozen=True)
class _Drawn:
    """What `datasets` calls with the numbers of draws, for their rows."""

    task: Callable[[int], Task]
    source: AgentProtocol
    system_prompt: Opening | None

    def __call__(self, batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        tasks = [self.task(draw) for draw in batch[DRAW]]
        prompts = [self.source.messages(task, self.system_prompt) for task in tasks]
        return {"prompt": prompts, "task": [task.to_json() for task in tasks]}


def to_fresh_dataset(
    task: Callable[[int], Task], protocol: str | AgentProtocol = "text", system_prompt: Opening | None = None
) -> Dataset:
    """Rows as those of `to_dataset`, each made when it is read.

    Args:
        task: the task of a draw, from 0; the same one each time it is asked.
        protocol, system_prompt: as in `to_dataset`.
    """
    source = get_protocol(protocol) if isinstance(protocol, str) else protocol
    draws = Dataset.from_dict({DRAW: range(FRESH_ROWS)})
    return draws.with_transform(_Drawn(task, source, system_prompt))


def is_fresh(dataset: Dataset) -> bool:
    """Whether the rows are made when they are read, so that not all of them can be looked at."""
    return dataset.column_names == [DRAW]


CHECKED_TASKS = 32
"""Tasks that stand for all of a dataset before a run, spread over it: reading 100,000 takes a minute."""


def tasks_to_check(*datasets: Dataset | None) -> Iterator[Task]:
    """The tasks that are looked at before a run."""
    for dataset in filter(None, datasets):
        rows = rows_to_check(dataset)
        for number in range(0, len(rows), max(1, len(rows) // CHECKED_TASKS)):
            yield Task.from_json(rows[number]["task"])


def rows_to_check(dataset: Dataset) -> Dataset:
    """The rows that are looked at before a run: all, or some of those that are only made in it."""
    return Dataset.from_dict(dataset[:_SOME]) if is_fresh(dataset) else dataset


def sft_row(episode: Episode) -> dict[str, Any]:
    """A row for TRL's SFTTrainer: `input_ids`, and `labels` that are -100 where the agent did not write."""
    ids, mask = episode.completion_ids, episode.mask
    labels = [-100] * len(episode.prompt_ids) + [
        id if bit else -100 for id, bit in zip(ids, mask, strict=True)
    ]
    return {"input_ids": [*episode.prompt_ids, *ids], "labels": labels}
