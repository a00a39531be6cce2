"""Load tasks from files, folders and the hub."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.csv_tables import CSV_SUFFIXES, FROM_FILE
from trl_dbbench.tasks.entries import Entry, read_entries, read_folder
from trl_dbbench.tasks.formats import format_of, get_format, read_entry
from trl_dbbench.tasks.formats.base import TaskFormat, Unsupported
from trl_dbbench.tasks.formats.csv import CsvFormat
from trl_dbbench.tasks.formats.lifelong import HUB_FOLDER, HUB_ID
from trl_dbbench.tasks.formats.own import OwnFormat
from trl_dbbench.tasks.model import Task
from trl_dbbench.utils.files import nearest_path
from trl_dbbench.utils.lookup import some_of

logger = logging.getLogger("trl_dbbench.tasks")


def load_tasks(
    path_or_id: str | Path, split: str | None = None, format: str | TaskFormat | None = None
) -> list[Task]:
    """Read tasks from a file, a folder of parquet files, or the LifelongAgentBench hub repository.

    Entries of published files that are not supported are left out, with a warning that says which and why.
    If a published file repeats an id, as BIRD's mini-dev does, the later entry gets a suffix (`137-2`), with
    a warning. It is kept so that the positions of all other tasks stay.

    Args:
        path_or_id: a `.jsonl`, `.json` or `.parquet` file, a folder of parquet files, or
            `csyq/LifelongAgentBench` (needs the network).
        split: of a hub repository, or of parquet files named after their split. `None` reads all.
        format: one of `tasks.formats.FORMATS` or `READ_ONLY`, the dotted path of your own, or a format
            object. It reads the entries that it matches. For other entries, and without it, the names of the
            fields show the format.

    Raises:
        TaskError: there is nothing to read, a task is wrong, or all are left out; it names file and line.
        ConfigError: the format is unknown.
    """
    if isinstance(format, str):
        format = get_format(format)
    entries = _entries(path_or_id, split, format)
    left_out: dict[str, list[str]] = {}
    tasks = list(_read(entries, str(path_or_id), format, left_out))
    if left_out:
        count = sum(map(len, left_out.values()))
        reasons = "; ".join(f"{some_of(ids)}: {reason}" for reason, ids in left_out.items())
        told = f"{path_or_id}: {count} of {count + len(tasks)} entries are left out; {reasons}"
        if not tasks:
            raise TaskError(told)
        logger.warning(told)
    if not tasks:
        raise TaskError(
            f"{path_or_id} holds no tasks. Expected one JSON object a line, or a {{key: entry}} object."
        )
    return tasks


def _entries(path_or_id: str | Path, split: str | None, format: TaskFormat | None) -> Iterable[Entry]:
    path = Path(path_or_id)
    if path.is_dir():
        return read_folder(path, split)
    if path.exists() and split is not None:
        raise TaskError(f"{path} is a single file, which has no split {split!r}; leave the split out.")
    if path.suffix.lower() in CSV_SUFFIXES and path.exists() and format is None:
        raise TaskError(
            f"{path} says nothing of the tables that its questions are asked of. Make tasks of it: "
            f"trl-dbbench convert {path} tasks.jsonl --tables TABLE.csv"
        )
    if path.exists():
        return read_entries(path, getattr(format, "csv", FROM_FILE))
    if str(path_or_id) == HUB_ID:
        return read_folder(_download() / HUB_FOLDER, split)
    if near := nearest_path(path):
        raise TaskError(f"no task file at '{path_or_id}'; nearest: {near}.")
    raise TaskError(
        f"no task file at '{path_or_id}'. Give a .jsonl, .json or .parquet file, a folder of parquet files, "
        f"or the hub id '{HUB_ID}'."
    )


def with_schema(tasks: list[Task], schema: str | None) -> list[Task]:
    """Return the tasks with this `schema`, the detail of tables in prompts; `None` keeps each task's own."""
    return tasks if schema is None else [replace(task, schema=schema) for task in tasks]


def _download() -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(HUB_ID, repo_type="dataset", allow_patterns=f"{HUB_FOLDER}/*.parquet"))
    except (OSError, HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise TaskError(
            f"'{HUB_ID}' could not be downloaded ({reason}). Check the network, or give a local file."
        ) from None


def _read(
    entries: Iterable[Entry], source: str, format: TaskFormat | None, left_out: dict[str, list[str]]
) -> Iterator[Task]:
    """Yield the tasks of entries. Ids of entries that are left out are added to `left_out`, by reason."""
    repeated: list[str] = []
    seen: dict[str, str] = {}
    for entry in entries:
        try:
            read_by, task = _task(entry, source, format)
        except Unsupported as error:
            left_out.setdefault(str(error), []).append(error.id)
            continue
        except TaskError as error:
            whole = format is None and {*map(type, entry.fields.values())} == {dict}
            remedy = ". An object {key: entry} must be in a .json file" if whole else ""
            raise TaskError(f"{source}, {entry.place}: {error}{remedy}") from None
        if task.id in seen:
            if read_by in (OwnFormat.name, CsvFormat.name):  # the user's own file, not a published one
                raise TaskError(
                    f"{source}, {entry.place}: the id '{task.id}' stands at {seen[task.id]} already; ids "
                    "must differ."
                )
            numbered = (f"{task.id}-{number}" for number in count(2))
            task = replace(task, id=next(each for each in numbered if each not in seen))
            repeated.append(task.id)
        seen[task.id] = entry.place
        yield task
    if repeated:
        logger.warning(
            "%s has ids twice: their later entries have ids of their own, %s.", source, some_of(repeated)
        )


def _task(entry: Entry, source: str, format: TaskFormat | None) -> tuple[str, Task]:
    """Return the name of the format that read an entry, and its task."""
    found = format if format is not None and format.matches(entry.fields) else format_of(entry.fields)
    # AgentBench has no ids: the third task of dev.jsonl is dev-3, which differs from standard-3
    default_id = f"{Path(entry.file or source).stem}-{entry.place.rpartition(' ')[2]}"
    here: TaskFormat = found.beside(Path(source, entry.file)) if hasattr(found, "beside") else found
    try:
        return found.name, read_entry(here, entry.unpacked(getattr(found, "nested", ())), default_id)
    except Unsupported:
        raise
    except TaskError as error:
        if format is None or found is format:
            raise
        raise TaskError(
            f"{error} (read as {found.name}; the format {format.name} does not match it)"
        ) from None
