"""Reading of a run's episodes and tasks. Unreadable lines, as after a kill, are skipped with a note."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.runs.records import EpisodeRecord, checked_record, key_of
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.model import digest_of, portable_digest
from trl_dbbench.utils.lookup import some_of


def read_episodes(
    path: Path, notes: list[str], check: Callable[[EpisodeRecord], None] | None = None
) -> Iterator[tuple[int, EpisodeRecord]]:
    """Yield (line number, episode) of a log, without episodes for which `check` raises ValueError; `notes`
    are complete when the iterator ends."""
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
                record = checked_record(loads(line))
                if check is not None:
                    check(record)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n") and isinstance(error, json.JSONDecodeError):
                    notes.append(
                        f"{path.name} ends in the middle of line {number}: the run was stopped there, or "
                        "still runs."
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
        notes.append(f"{path.name} has lines that were left out: {some_of(bad)}.")
    if unreadable:
        notes.append(f"{path.name} has no readable episode: no transcripts.")


def read_tasks(path: Path, notes: list[str]) -> Iterator[Task]:
    """Yield the tasks of a run; `notes` are complete when the iterator ends."""
    bad: list[str] = []
    if not path.is_file():
        notes.append(f"{path.name} is not there.")
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield Task.from_json(line.decode("utf-8-sig", errors="replace"))
                except TaskError as error:
                    bad.append(f"line {number} ({error})")
    if bad:
        notes.append(f"{path.name} has lines that were left out: {some_of(bad, 1)}.")


def tasks_by_digest(path: Path, notes: list[str]) -> dict[str, Task]:
    """Return the tasks of a run by their digests, which its episodes name in `task_digest`."""
    return {task.digest: task for task in read_tasks(path, notes)}


def portable_digests_in(path: Path) -> dict[str, str]:
    """Return the `portable_digest` of a run's tasks over shared databases, which need not exist here, by the
    tasks' digests."""
    found = {}
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError, TypeError, AttributeError, RecursionError):  # as after a kill
            if (entry := json.loads(line)).get("database"):
                found[digest_of(line.strip().decode("utf-8", "surrogatepass"))] = portable_digest(entry)
    return found


def same_task_names(first: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Return the digest in `first` of each task of `other` that differs from it only by the paths of shared
    databases. Both map digests to `portable_digest`."""
    names = {portable: digest for digest, portable in first.items()}
    return {digest: names[key] for digest, key in other.items() if digest not in first and key in names}


def renamed(episodes: Iterable[EpisodeRecord], names: Mapping[str, str]) -> list[EpisodeRecord]:
    """Return episodes with the digests of their tasks replaced as `names` says."""
    return [
        {**each, "task_digest": names[key_of(each)]} if key_of(each) in names else each for each in episodes
    ]


def loads(text: bytes | str) -> Any:
    """Read JSON with `None` for NaN and infinities, which browsers cannot read."""
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig", errors="replace")
    return json.loads(text, parse_constant=lambda _: None)
