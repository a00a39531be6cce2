"""What a rollout sees of a database: one private view, where it runs one statement at a time.

```
Database  one server (or none: SQLite), opened once per process
  └── Sandbox  one rollout's tables: execute(sql) -> QueryResult, state() -> State
```

Whatever the agent writes comes back as a `QueryResult`, refused statements included. Only what is not the
agent's doing is raised, as `EnvironmentFault`.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar

from ..errors import TaskError
from ..tasks import Column, Table, Task

State = dict[str, list[tuple]]
"""The tables as they are: name -> rows, in no particular order."""

T = TypeVar("T")

STATE_ROWS = 100_000
"""`Sandbox.state` reads so many rows of a table and no more: an agent can double a table at every turn, and
no gold state comes near."""

STATEMENT_CHARACTERS = 1_000_000
"""Longer statements are refused before they are sent: a server hangs up on what exceeds its packet size."""


@dataclass(frozen=True)
class Limits:
    """What one statement may take.

    `seconds` of execution, `rows` of its result, and `characters` of text over the whole result.
    """

    seconds: float = 5.0
    rows: int = 1000
    characters: int = 65_536


@dataclass(frozen=True)
class QueryResult:
    """What came of one statement.

    `rows` is `None` for statements without a result set; `affected` then counts the rows they matched.
    `error` is the server's message as the agent may see it. `limit` names the limit that was hit: `"time"`
    (with an `error`; nothing was returned), `"rows"` or `"text"` (`rows` holds what fits).
    """

    rows: list[tuple] | None
    error: str | None = None
    limit: str | None = None
    affected: int | None = None
    seconds: float = 0.0


class _Closing(ABC):
    """A context manager whose end is `close`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sandbox(_Closing):
    """One rollout's private tables. A context manager; used by one thread at a time."""

    @abstractmethod
    def execute(self, sql: str) -> QueryResult:
        """Run one statement, however it is written.

        Raises:
            EnvironmentFault: the database failed; the sandbox cannot be used any more.
        """

    @abstractmethod
    def state(self) -> State:
        """All tables in full (see `STATE_ROWS`); a dropped one is absent, a new one present.

        Changes in a transaction that the agent left open count.

        Raises:
            EnvironmentFault: the database failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Remove the tables. May be called again; raises nothing."""


class Database(_Closing):
    """An opened database. A context manager that removes at its end whatever it made.

    `url` is what another process passes to `open_database` to share this server (`"sqlite"` shares nothing:
    each process has its own). `dialect` is `"mysql"`, `"mariadb"` or `"sqlite"`; `limits` hold for every statement.
    """

    url: str
    dialect: str
    limits: Limits = Limits()
    statements_at_once: int = 32
    """Threads that wait for the server in `in_thread`."""

    def in_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """What the function returns, from a thread of the database's own, for the running event loop.

        The threads stay: to start one takes longer than a short statement.
        """
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.statements_at_once, thread_name_prefix="dbbench-statement")

    @abstractmethod
    def sandbox(self, task: Task) -> Sandbox:
        """A fresh private view of the task's tables. May be called from several threads at once.

        Raises:
            EnvironmentFault: the database failed.
            TaskError: the tables cannot be made as the task describes them.
        """

    @abstractmethod
    def describe(self) -> str:
        """Product, version and where it runs, for a log line."""

    @abstractmethod
    def close(self) -> None:
        """Remove what is left of the sandboxes and give up the server. May be called again."""


def clip(rows: Iterable[Any], limits: Limits) -> tuple[list[tuple], str | None]:
    """Take rows until a limit is hit; returns them and that limit's name, or `None`.

    The row that crosses the text limit is the last, its texts cut to what is left.
    """
    taken: list[tuple] = []
    left = limits.characters
    for row in rows:
        if len(taken) == limits.rows:
            return taken, "rows"
        size = sum(len(cell) if isinstance(cell, str | bytes) else len(str(cell)) for cell in row)
        if size > left:
            cells = []
            for cell in row:
                kept = cell[: max(left, 0)] if isinstance(cell, str | bytes) else cell
                left -= len(kept) if isinstance(kept, str | bytes) else len(str(kept))
                cells.append(kept)
            return [*taken, tuple(cells)], "text"
        left -= size
        taken.append(tuple(row))
    return taken, None


def time_limit_message(limits: Limits) -> str:
    """What the agent reads after a statement that ran too long, on every server alike."""
    return (
        f"3024 (HY000): Query execution was interrupted, the time limit of {limits.seconds:g} s was exceeded"
    )


def refuse(sql: str) -> str | None:
    """The message for a text that no server is asked about, or `None` if it can be sent."""
    if len(sql) > STATEMENT_CHARACTERS:
        return f"1153 (08S01): Got a packet bigger than 'max_allowed_packet' bytes ({len(sql)} characters)"
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        return f"1300 (HY000): Invalid utf8mb4 character string: {sql[error.start : error.end]!a}"
    return None


_TYPE = re.compile(
    r"""\s*[A-Za-z]+(?:\s+PRECISION|\s+VARYING)?
        (?:\s*\(\s*(?:\d+|'[^'\\]*')(?:\s*,\s*(?:\d+|'[^'\\]*'))*\s*\))?
        (?:\s+(?:[A-Za-z_]+|DEFAULT\s+(?:\d+|'[^'\\]*')))*\s*""",
    re.VERBOSE | re.IGNORECASE,
)


def column_type(table: Table, column: Column) -> str:
    """The column's type, checked: it goes into CREATE TABLE as it is written.

    Raises:
        TaskError: it is not a name, an optional list in parentheses, and words such as NOT NULL.
    """
    if not _TYPE.fullmatch(column.type):
        raise TaskError(
            f"Table {table.name!r}, column {column.name!r}: {column.type!r} is not a column type. Allowed is what "
            "MySQL writes, such as TEXT, INT NOT NULL, VARCHAR(50), DECIMAL(10,2), ENUM('a','b'). Correct the task."
        )
    return column.type


def check_rows(table: Table) -> None:
    """Raises TaskError for a table without columns, or with rows of another length than its header."""
    if not table.columns:
        raise TaskError(f"Table {table.name!r} has no columns. Give it at least one.")
    for number, row in enumerate(table.rows, 1):
        if len(row) != len(table.columns):
            raise TaskError(
                f"Table {table.name!r}, row {number} has {len(row)} cells, the table {len(table.columns)} columns. "
                "Give every row one cell a column (null for a missing one)."
            )
