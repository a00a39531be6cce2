"""Interfaces of task formats, and helpers for reading and writing them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from trl_dbbench.errors import TaskError
from trl_dbbench.grading import SQL_GRADERS
from trl_dbbench.grading.rows import State
from trl_dbbench.grading.states import state_hash
from trl_dbbench.tasks.model import Task


class TaskFormat(Protocol):
    """A format that can be read: each entry of a file, a dictionary, is one task.

    A format can also have

    - `nested`, the names of fields with lists or objects: if a parquet file has them as texts in JSON's or
      Python's notation, they are parsed before the format gets the entry;
    - `csv`, the `CsvOptions` for reading its CSV files;
    - `beside(path)`, if entries name other files: it returns the format for the entries of the file or folder
      at this path.
    """

    name: str

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the entry, by the names of its fields, is in this format."""
        ...

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        """Return the task of an entry. If it has no id, `default_id` (file and position) is its id.

        Errors are shown with file and place. After Unsupported, the other entries of the file are still read.
        """
        ...


class WritableFormat(TaskFormat, Protocol):
    """A format that can also be written.

    It can have `losses`, which maps fields of a task to the reason why they may be read back different. For
    `.parquet` files it can have `arrow_schema()`, the columns' types, if entries do not always show them.
    """

    suffix: str
    """Suffix of its files: `.jsonl`, `.json` or `.parquet`."""

    def write(self, task: Task, context: WriteContext) -> dict[str, Any]:
        """Return the entry of a task; raise Unrepresentable if its meaning would change in this format."""
        ...


@dataclass
class WriteContext:
    """Services for writing a task. `rows` and `state` raise Unrepresentable if its gold SQL fails.

    Args:
        rows: returns the rows that a question's gold SQL returns.
        state: returns the tables as the gold SQL of a change leaves them.
        messages: returns the prompt of the task in the protocol.
        protocol: name of the protocol.
        split: name of the split in verl's files.
        index: number of tasks before this one in the file.
    """

    rows: Callable[[Task], list[tuple]]
    state: Callable[[Task], State]
    messages: Callable[[Task], list[dict[str, str]]]
    protocol: str
    split: str
    index: int = 0


@dataclass(frozen=True)
class Loss:
    """A field of a task that the target format loses or changes, and why."""

    task: str
    field: str
    text: str


class Unrepresentable(TaskError):
    """Error for a task that a format cannot hold because of this field."""

    def __init__(self, field: str, text: str):
        super().__init__(text)
        self.field = field


class Unsupported(TaskError):
    """Error for a correct entry of a published file that is not supported here.

    Reading continues with the other entries and warns about this one. The text is the reason, in the same
    words for all entries with that reason.
    """

    def __init__(self, id: str, text: str):
        super().__init__(text)
        self.id = id


class BesideFiles:
    """A format whose entries name other files, which are searched for beside the task file."""

    def __init__(self, path: Path | None = None):
        self.path = path

    def beside(self, path: Path) -> Self:
        return type(self)(path)


def folder_of(path: Path | None) -> Path:
    """Return the first folder to search for files that an entry names: that of the task file, or the folder
    that is read."""
    if path is None:
        return Path.cwd()
    return (path if path.is_dir() else path.parent).absolute()


def places_beside(path: Path | None, names: Iterable[str]) -> list[Path]:
    """Return the paths at which files of these names are searched for: beside the task file, then one folder
    above."""
    here = folder_of(path)
    return [home / name for home in (here, here.parent) for name in names]


def find_beside(path: Path | None, *names: str, lies_in: str) -> Path:
    """Return the first of these files or folders that exists.

    Raises TaskError if none does. Its message says that the benchmark has it in `lies_in`.
    """
    if (found := next(filter(Path.exists, places_beside(path, names)), None)) is not None:
        return found
    here = folder_of(path)
    raise TaskError(
        f"there is no '{names[0]}' in {here} nor in {here.parent}. Bring it there: it is in {lies_in}."
    )


def check_plain(task: Task, title: str) -> None:
    """Raise Unrepresentable if a task has features that an older benchmark's format cannot hold.

    Such features are shared databases and answers in SQL. `title` names the format in the message.
    """
    if task.source is not None:
        raise Unrepresentable(
            "database", f"its rows lie in a database file; {title}'s tasks hold their tables themselves"
        )
    if task.dialect != "mysql":
        raise Unrepresentable("dialect", f"its SQL is of {task.dialect}; {title}'s is MySQL's")
    if task.grader in SQL_GRADERS:
        raise Unrepresentable(
            "grader", f"its answers are SQL, judged by {task.grader}; {title}'s answers are values"
        )
    if task.knowledge is not None:
        raise Unrepresentable("knowledge", f"{title} has no place for what is told beside the question")
    if task.max_turns is not None:
        raise Unrepresentable("max_turns", f"{title} has no place for the turns of a task")


def published_hash(task: Task, context: WriteContext) -> str:
    """Return the hash of the first table after the gold SQL, as it is published; `""` for an empty table."""
    table = context.state(task).get(task.tables[0].name)
    if table is None:
        raise Unrepresentable("state_md5", "cannot be computed, the gold SQL drops the table")
    return state_hash(table.rows) or ""
