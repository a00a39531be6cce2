"""Tasks as the rows that the trainer reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset, concatenate_datasets

from trl_dbbench.protocol import AgentProtocol, get_protocol
from trl_dbbench.tasks import Task

_CHUNK = 1_000
"""Tasks that are Python objects at once: all of them would take several times their size."""


def to_dataset(
    tasks: Sequence[Task], protocol: str | AgentProtocol = "text", system_prompt: str | None = None
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
