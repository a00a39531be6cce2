"""A rollout's private view of its task's tables, for one statement at a time.

```
Database  one server (or none: SQLite), opened once per process
  └── Sandbox  one rollout's tables: execute(sql) -> QueryResult, state() -> State
```

Whatever the agent writes is answered with a `QueryResult`, even a statement that is refused. Only what the
agent did not cause is raised, as `EnvironmentFault`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, Self

from trl_dbbench.database.error_numbers import TABLE_FULL, TIME_LIMIT, message
from trl_dbbench.errors import TaskError
from trl_dbbench.grading.rows import State as State
from trl_dbbench.grading.rows import TableState as TableState
from trl_dbbench.tasks import Table
from trl_dbbench.tasks.column_types import check_type
from trl_dbbench.tasks.table import check_differ
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS, quote

Loss = Literal["agent", "environment"]
"""The agent loses its tables where a statement of its own was stopped at a limit and cannot be undone."""

SHOWN_DATABASE = "dbbench"
"""The name of its database that the agent reads, in place of the real one, which differs in every run."""

MAX_STATE_ROWS = 100_000
MAX_STATE_CHARACTERS = 16_000_000
"""Rows and characters of a table that `Sandbox.state` holds; the rows beyond count by a checksum."""

MAX_TABLE_BYTES = 256 * 1024 * 1024
"""Size to which all tables of a sandbox together may grow."""


@dataclass(frozen=True)
class Limits:
    """Limits of one statement.

    `seconds` bounds its execution, `rows` its result, `characters` all texts of the result together, and
    `cells` all cells.
    """

    seconds: float = 5.0
    rows: int = 1000
    characters: int = 65_536
    cells: int | None = None


@dataclass(frozen=True)
class QueryResult:
    """The result of one statement.

    `rows` is `None` for statements without a result set; `affected` is then the number of rows they matched.
    `error` is the server's message as the agent may see it, and `error_code` its number; both are `None`
    unless the statement failed. `limit` names the limit that was hit:

    - `"rows"`, `"cells"` or `"text"`: `rows` holds what fits;
    - `"time"` or `"server"` (the statement needs more of some resource than the server has), each with an
      `error`: what the statement did was undone;
    - `"emulation"`, with an `error`: the embedded database met a mistake of its own; what the statement did
      was undone;
    - `"size"`, with an `error`: a row was too large to be received, or the tables have become too large; in
      the latter case only reading is allowed from then on.

    `undone`: the statement was taken back, as far as it had come. `columns` are the names of the columns of
    `rows`. `doubtful`: the error may be a failure of the server, or an agent's SIGNAL that looks like one.
    `moment`: the clock and the random numbers that it was executed with, for `Sandbox.repeat`.
    """

    rows: list[tuple] | None
    error: str | None = None
    error_code: int | None = None
    limit: str | None = None
    affected: int | None = None
    seconds: float = 0.0
    columns: tuple[str, ...] | None = field(default=None, compare=False)
    doubtful: bool = field(default=False, compare=False)
    moment: Any = field(default=None, compare=False)

    @property
    def undone(self) -> bool:
        grown = self.limit == "size" and self.error_code == TABLE_FULL
        return self.limit is not None and self.rows is None and not grown


class Closing(ABC):
    """A context manager whose end is `close`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Sandbox(Closing):
    """One rollout's private tables. A context manager; used by one thread at a time."""

    lost: Loss | None = None
    """Whose doing it is that the tables are gone; `RetryingSandbox` then makes the sandbox again."""
    changed: bool = True
    """Whether the last statement may have changed anything: tables, or the session that it ran in."""
    reached: bool = True
    """The database itself has been asked. Tables that were there already do not end an outage."""
    brought_down: bool = False
    """A statement of this sandbox has ended the server."""
    retries: int = 0
    """Times the database failed and the sandbox recovered."""

    def failing(self, since: float) -> str | None:
        """Return what is wrong with the server itself, as statements of our own have found since a moment.

        Args:
            since: by `time.monotonic`.
        """
        return None

    @abstractmethod
    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        """Run one statement, whatever its text is.

        Args:
            limits: how many rows and characters the result may have, in place of the database's limits.

        Raises:
            EnvironmentFault: the database failed; the sandbox cannot be used again.
        """

    def repeat(self, sql: str, seen: QueryResult) -> QueryResult:
        """Execute a statement as another sandbox has done, at the same moment where that can be set.

        Raises:
            EnvironmentFault: see `execute`.
        """
        return self.execute(sql)

    @abstractmethod
    def state(self) -> State:
        """All tables in full (up to `MAX_STATE_ROWS`); a dropped table is absent, a new one present.

        Changes in a transaction that the agent left open count, too. TEMPORARY tables do not: they exist for
        the agent's session alone, even where they hide a table of the same name.

        Raises:
            EnvironmentFault: the database failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Remove the tables. May be called repeatedly; raises nothing."""


def clip(rows: Iterable[Any], limits: Limits) -> tuple[list[tuple], str | None]:
    """Take rows until a limit is hit. Returns them and the name of the limit, or `None`.

    The row that exceeds the text limit is the last one, with its texts cut to what is left.
    """
    taken: list[tuple] = []
    left, cells_left = limits.characters, limits.cells
    for row in rows:
        if len(taken) == limits.rows:
            return taken, "rows"
        if cells_left is not None:
            cells_left -= len(row)
            if cells_left < 0:
                return taken, "cells"
        size = _characters(row)
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


def table_state(columns: Sequence[str], rows: Iterable[Any]) -> TableState:
    """Return a table's state. For the rows beyond `MAX_STATE_ROWS` and `MAX_STATE_CHARACTERS` stand their
    number and the sum of their hashes, which no order changes."""
    held: list[tuple] = []
    left, remaining = MAX_STATE_CHARACTERS, iter(rows)
    for row in remaining:
        left -= _characters(row)
        if left < 0 or len(held) == MAX_STATE_ROWS:
            return TableState(columns, held, _checksum(chain([row], remaining)))
        held.append(tuple(row))
    return TableState(columns, held)


def _checksum(rows: Iterable[Any]) -> tuple[int, int]:
    count = total = 0
    for row in rows:
        text = repr(tuple(row)).encode("utf-8", "surrogatepass")
        total += int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())
        count += 1
    return count, total % 2**64


def _characters(row: Iterable[Any]) -> int:
    return sum(len(cell) if isinstance(cell, str | bytes) else len(str(cell)) for cell in row)


def failure(code: int, text: str, *, limit: str | None = None, seconds: float = 0.0) -> QueryResult:
    """The result of a statement that failed with this error number and message."""
    return QueryResult(None, message(code, text), code, limit=limit, seconds=seconds)


def timed_out(limits: Limits, seconds: float = 0.0) -> QueryResult:
    """The result of a statement that ran too long, the same on every server."""
    text = f"Query execution was interrupted, the time limit of {limits.seconds:g} s was exceeded"
    return failure(TIME_LIMIT, text, limit="time", seconds=seconds)


def refusal(sql: str) -> QueryResult | None:
    """The result of a text that is not sent to any server, or `None` if it can be sent."""
    if len(sql) > MAX_STATEMENT_CHARACTERS:
        return failure(1153, f"Got a packet bigger than 'max_allowed_packet' bytes ({len(sql)} characters)")
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        return failure(1300, f"Invalid utf8mb4 character string: {sql[error.start : error.end]!a}")
    return None


def columns_of(table: Table) -> str:
    """The columns as CREATE TABLE takes them.

    Raises:
        TaskError: a type is none.
    """
    columns = []
    for column in table.columns:
        check_type(column.type, table.name, column.name)
        # without explicit_defaults_for_timestamp a server would put its clock where NULL is meant
        null = " NULL" if column.nullable and column.type.upper().startswith("TIMESTAMP") else ""
        columns.append(f"{quote(column.name)} {column.type}{null}")
    return ", ".join(columns)


def check_rows(table: Table) -> None:
    """Raise TaskError for a table without columns, with two of one name, or with a row that is longer or
    shorter than they are."""
    if not table.columns:
        raise TaskError(f"Table {table.name!r} has no columns. Give it at least one.")
    check_differ([column.name for column in table.columns], f"Table {table.name!r}")
    for number, row in enumerate(table.rows, 1):
        if len(row) != len(table.columns):
            raise TaskError(
                f"Table {table.name!r}, row {number} has {len(row)} cells, the table {len(table.columns)} "
                "columns. Give every row one cell a column (null for a missing one)."
            )
