"""Interfaces of task formats, and of writing them."""

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
    """A format that can be read: one entry of a file, a dictionary, is one task.

    A format may have

    - `nested`, the names of fields that hold lists or objects: where a parquet file has them as text, in
      JSON's or Python's notation, they are parsed before the format sees the entry;
    - `csv`, the `CsvOptions` by which its CSV files are read;
    - `beside(path)`, which gives the format for the entries of the file or folder at this path, where entries
      name other files.
    """

    name: str

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the entry, by the names of its fields, is in this format."""
        ...

    def read(self, entry: Mapping[str, Any], default_id: str) -> Task:
        """The task of an entry, with `default_id`, which names file and place, if it has no id.

        What it raises is shown with file and place; after Unsupported, the others of the file are read.
        """
        ...


class WritableFormat(TaskFormat, Protocol):
    """A format that can be written too.

    It may have `losses`, which gives for a field of a task the reason why it can come back different, and for
    `.parquet` files `arrow_schema()`, the types of the columns where entries do not always show them.
    """

    suffix: str
    """Suffix of its files: `.jsonl`, `.json` or `.parquet`."""

    def write(self, task: Task, context: WriteContext) -> dict[str, Any]:
        """The entry of a task; Unrepresentable if it would be another task in this format."""
        ...


@dataclass
class WriteContext:
    """Services for writing a task. `rows` and `state` raise Unrepresentable if its gold SQL fails.

    Args:
        rows: gives what the gold SQL of a question gives.
        state: gives the tables that the gold SQL of a change leaves.
        messages: gives the prompt that the protocol of this name makes of the task.
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
    """Something of a task that the target does not hold, or holds in another way."""

    task: str
    field: str
    text: str


class Unrepresentable(TaskError):
    """A format cannot hold a task, because of this field of it."""

    def __init__(self, field: str, text: str):
        super().__init__(text)
        self.field = field


class Unsupported(TaskError):
    """An entry of a published file that is right but can be no task here.

    Others of the file may be: reading goes on without it, and says so. The text gives the reason, in the same
    words for all entries that it holds for.
    """

    def __init__(self, id: str, text: str):
        super().__init__(text)
        self.id = id


class BesideFiles:
    """A format whose entries name files that lie beside theirs."""

    def __init__(self, path: Path | None = None):
        self.path = path

    def beside(self, path: Path) -> Self:
        return type(self)(path)


def folder_of(path: Path | None) -> Path:
    """Where what an entry names is looked for first: beside the file, or in the folder, that is read."""
    if path is None:
        return Path.cwd()
    return (path if path.is_dir() else path.parent).absolute()


def places_beside(path: Path | None, names: Iterable[str]) -> list[Path]:
    """Where files of these names can lie: beside the task file, then beside its folder."""
    here = folder_of(path)
    return [home / name for home in (here, here.parent) for name in names]


def find_beside(path: Path | None, *names: str, lies_in: str) -> Path:
    """The first of these files and folders of a benchmark; TaskError, naming where it `lies_in`, for none."""
    if (found := next(filter(Path.exists, places_beside(path, names)), None)) is not None:
        return found
    here = folder_of(path)
    raise TaskError(
        f"there is no '{names[0]}' in {here} nor in {here.parent}. Bring it there: it is in {lies_in}."
    )


def check_plain(task: Task, title: str) -> None:
    """Raise Unrepresentable for what a format, called `title`, has no place for: it is older than answers in
    SQL and databases in files."""
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
    """The published hash of what the gold SQL makes of the first table; `""` for an empty one."""
    table = context.state(task).get(task.tables[0].name)
    if table is None:
        raise Unrepresentable("state_md5", "cannot be computed, the gold SQL drops the table")
    return state_hash(table.rows) or ""
