"""Tasks out of files, folders and the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.entries import CSV_SUFFIXES, Entries, read_entries, read_folder
from trl_dbbench.tasks.formats import FORMATS, format_of, get_format, read_entry
from trl_dbbench.tasks.formats.base import TaskFormat
from trl_dbbench.tasks.formats.lifelong import HUB_FOLDER, HUB_ID
from trl_dbbench.tasks.model import Task


def load_tasks(
    path_or_id: str | Path, split: str | None = None, format: str | TaskFormat | None = None
) -> list[Task]:
    """Reads tasks from a file, a folder of parquet files, or the LifelongAgentBench hub repository.

    Args:
        path_or_id: a `.jsonl`, `.json` or `.parquet` file, a folder of parquet files, or
            `csyq/LifelongAgentBench` (needs the network).
        split: the split to take of a hub repository or of parquet files named after their split;
            `None` takes all.
        format: one of `tasks.formats.FORMATS`, or the dotted path of your own, or a format object; left out,
            the format of each entry is told by the names of its fields.

    Raises:
        TaskError: if there is nothing to read or a task in it is wrong; the text names the file and,
            where there is one, the line.
        ConfigError: if there is no such format.
    """
    if isinstance(format, str):
        format = get_format(format)
    tasks = list(_read(_entries(path_or_id, split, format), str(path_or_id), format))
    if not tasks:
        raise TaskError(
            f"{path_or_id} holds no tasks. Expected one JSON object a line, or a {{key: entry}} object."
        )
    return tasks


def _entries(path_or_id: str | Path, split: str | None, format: TaskFormat | None) -> Entries:
    formats = FORMATS.values() if format is None else [format]
    nested = {field for each in formats for field in getattr(each, "nested", ())}
    path = Path(path_or_id)
    if path.is_dir():
        return read_folder(path, split, nested)
    if path.exists() and split is not None:
        raise TaskError(f"{path} is a single file, which has no split {split!r}; leave the split out.")
    if path.suffix in CSV_SUFFIXES and format is None:
        raise TaskError(
            f"{path} says nothing of the tables that its questions are asked of. Make tasks of it: "
            f"trl-dbbench convert {path} tasks.jsonl --tables TABLE.csv"
        )
    if path.exists():
        return read_entries(path, nested)
    if str(path_or_id) == HUB_ID:
        return read_folder(_download() / HUB_FOLDER, split, nested)
    raise TaskError(
        f"no task file at '{path_or_id}'. Give a .jsonl, .json or .parquet file, a folder of parquet files, "
        f"or the hub id '{HUB_ID}'."
    )


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


def _read(entries: Entries, source: str, format: TaskFormat | None) -> Iterator[Task]:
    seen: dict[str, str] = {}
    for where, entry in entries:
        try:
            if format is not None and not format.matches(entry):
                raise TaskError(f"is not in the format {format.name}; found: {', '.join(map(str, entry))}")
            # AgentBench has no ids: dev.jsonl's third task is dev-3, and stays apart from standard-3
            default_id = f"{Path(source).stem}-{where.rpartition(' ')[2]}"
            task = read_entry(format or format_of(entry), entry, default_id)
        except TaskError as error:
            raise TaskError(f"{source}, {where}: {error}") from None
        if task.id in seen:
            raise TaskError(
                f"{source}, {where}: the id '{task.id}' stands at {seen[task.id]} already; ids must differ."
            )
        seen[task.id] = where
        yield task
