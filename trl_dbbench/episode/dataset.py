"""Dataset rows for the trainer: `to_dataset` writes tasks as JSON text, and `task_in` reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets

from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol, get_protocol
from trl_dbbench.episode.token_tree import paths
from trl_dbbench.episode.types import Episode
from trl_dbbench.tasks import Task

DRAW = "draw"
"""Name of the only column of a dataset of fresh tasks."""

FRESH_ROWS = 1_000_000
"""Rows in an epoch of fresh tasks; more than any run has steps."""

CHECKED_TASKS = 32
"""Approximate number of tasks checked before a run: the first fresh ones, or some spread over the dataset,
since reading 100,000 would take a minute."""

_CHUNK = 1_000
"""Tasks held as Python objects at once, to bound memory."""


def to_dataset(
    tasks: Sequence[Task], protocol: str | AgentProtocol = "text", system_prompt: Opening | None = None
) -> Dataset:
    """Return the rows that the trainer reads: `prompt`, a list of messages, and `task`, a JSON string.

    `task` is text because cell types differ from task to task, and an Arrow column has one type.

    Args:
        tasks: what `load_tasks` returned.
        protocol: `"text"`, `"tools"`, the dotted path of your own, or a protocol object, such as
            `get_protocol("text", grader=...)` where the run names a grader.
        system_prompt: replaces the protocol's own.
    """
    source = get_protocol(protocol) if isinstance(protocol, str) else protocol

    def chunk(start: int) -> Dataset:
        part = tasks[start : start + _CHUNK]
        return Dataset.from_list(
            [{"prompt": source.messages(task, system_prompt), "task": task.to_json()} for task in part]
        )

    return concatenate_datasets([chunk(start) for start in range(0, max(len(tasks), 1), _CHUNK)])


@lru_cache(maxsize=64)
def task_in(line: str) -> Task:
    """Return the task in a row's `task` column. Cached, so that the copies of a prompt share one object."""
    return Task.from_json(line)


def note_source(dataset: Dataset, source: str, schema: str | None = None) -> None:
    """Record in the dataset's info where its tasks come from, for a run's `run.json`.

    Args:
        source: a file, a folder, or a hub id. Files are recorded with size and sha256.
        schema: the schema that replaces each task's own, if the recipe sets one.
    """
    path = Path(source)
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    digests: dict[str, dict[str, object]] = {}
    for each in filter(Path.is_file, files):
        with each.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        digests[str(each)] = {"num_bytes": each.stat().st_size, "checksum": checksum}
    known: dict[str, object] = {} if schema is None else {"schema": schema}
    dataset.info.download_checksums = {name: of | known for name, of in (digests or {source: {}}).items()}


@dataclass(frozen=True)
class _Drawn:
    """A transform for `datasets` that turns draw numbers into rows."""

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
    """Return rows like those of `to_dataset`, each made when it is read.

    Args:
        task: returns the task of a draw number, counted from 0; always the same one for the same number.
    """
    source = get_protocol(protocol) if isinstance(protocol, str) else protocol
    draws = Dataset.from_dict({DRAW: range(FRESH_ROWS)})
    return draws.with_transform(_Drawn(task, source, system_prompt))


def is_fresh(dataset: Dataset) -> bool:
    """Return whether rows are made when they are read, so that they cannot all be checked."""
    return dataset.column_names == [DRAW]


def tasks_to_check(*datasets: Dataset | None) -> Iterator[Task]:
    """Yield the tasks that are checked before a run."""
    for dataset in filter(None, datasets):
        rows = rows_to_check(dataset)
        for number in range(0, len(rows), max(1, len(rows) // CHECKED_TASKS)):
            yield task_in(rows[number]["task"])


def rows_to_check(dataset: Dataset) -> Dataset:
    """Return the rows that are checked before a run: all, or a sample of fresh ones."""
    return Dataset.from_dict(dataset[:CHECKED_TASKS]) if is_fresh(dataset) else dataset


def sft_rows(episode: Episode) -> list[dict[str, Any]]:
    """Return a row like that of `sft_row` for each of the episode's sequences; most episodes have one.

    A sampled token is learned in the first sequence that contains it.
    """
    whole = sft_row(episode)
    if (follows := episode.follows) is None:
        return [whole]
    rows, labels = [], whole["labels"]
    for path in paths([*range(-1, len(episode.prompt_ids) - 1), *follows]):
        rows.append({name: [ids[place] for place in path] for name, ids in whole.items()})
        for place in path:
            labels[place] = -100
    return rows


def sft_row(episode: Episode, imitate_errors: bool = True) -> dict[str, Any]:
    """Return a row for TRL's SFTTrainer: `input_ids`, and `labels`, -100 except on the agent's own tokens.

    Without `imitate_errors`, labels are -100 on turns whose statement failed, too, so that the model learns
    the turn after an error but not the error.
    """
    labels = [-100] * len(episode.prompt_ids)
    for turn in episode.turns:
        failed = turn.result is not None and turn.result.error is not None
        ids = turn.completion.ids
        labels += ids if imitate_errors or not failed else [-100] * len(ids)
        labels += [-100] * len(turn.observation_ids)
    return {"input_ids": [*episode.prompt_ids, *episode.completion_ids], "labels": labels}
