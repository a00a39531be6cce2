"""A rollout's private view of its task's tables, which executes one statement at a time.

```
Database  one server (or none: SQLite), opened once per process
  └── Sandbox  one rollout's tables: execute(sql) -> QueryResult, state() -> State
```

Everything that the agent writes is answered with a `QueryResult`, even a statement that is refused. Only
failures that the agent did not cause are raised, as `EnvironmentFault`.
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
"""Cause of the loss of a sandbox's tables. It is the agent if one of its statements was stopped, such as at a
limit, and cannot be undone."""

SHOWN_DATABASE = "dbbench"
"""Database name that the agent reads in place of the real one, which differs in every run."""

MAX_STATE_ROWS = 100_000
MAX_STATE_CHARACTERS = 16_000_000
"""Most rows and characters of a table that `Sandbox.state` holds; a checksum represents further rows."""

MAX_TABLE_BYTES = 256 * 1024 * 1024
"""Size, in bytes, to which all tables of a sandbox together may grow."""


@dataclass(frozen=True)
class Limits:
    """Limits of one statement.

    `seconds` bounds its execution time, `rows` and `cells` bound their numbers in the result, and
    `characters` bounds the length of all texts in the result together.
    """

    seconds: float = 5.0
    rows: int = 1000
    characters: int = 65_536
    cells: int | None = None


@dataclass(frozen=True)
class QueryResult:
    """Result of one statement.

    `rows` is `None` for statements without a result set; `affected` is then the number of rows they matched.
    `error` is the server's message as the agent may see it, and `error_code` its number; both are `None`
    unless the statement failed. `limit` names the limit that was hit:

    - `"rows"`, `"cells"` or `"text"`: `rows` holds what fits;
    - `"time"` or `"server"` (the statement needs more of some resource than the server has), each with an
      `error`: the statement's changes were undone;
    - `"emulation"`, with an `error`: the statement met a bug of the embedded database; its changes were
      undone;
    - `"size"`, with an `error`: a row was too large to be received, or the tables have become too large; in
      the latter case only reading is allowed from then on.

    `undone` says whether the statement's changes so far were undone. `columns` are the column names of
    `rows`. `doubtful` says that the error may be a failure of the server, or an agent's SIGNAL that looks
    like one. `moment` fixes the clock and the random numbers that the statement saw, for `Sandbox.repeat`.
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
    """Context manager that calls `close` when it exits."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Sandbox(Closing):
    """One rollout's private tables: a context manager that one thread at a time may use."""

    lost: Loss | None = None
    """Cause of the loss if the tables are gone, else `None`. `RetryingSandbox` makes a lost sandbox again."""
    changed: bool = True
    """True if the last statement may have changed the tables or the session."""
    reached: bool = True
    """True if the database was contacted. Reusing existing tables does not show that an outage is over."""
    brought_down: bool = False
    """True if a statement of this sandbox ended the server."""
    retries: int = 0
    """Number of times that the sandbox recovered from a failure of the database."""

    def failing(self, since: float) -> str | None:
        """Return the reason for which our own statements failed on the server since `since`, or `None`.

        Args:
            since: a time by `time.monotonic`.
        """
        return None

    @abstractmethod
    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        """Run one statement with any text.

        Args:
            limits: limits on the result's rows and characters, in place of the database's.

        Raises:
            EnvironmentFault: the database failed; the sandbox cannot be used again.
        """

    def repeat(self, sql: str, seen: QueryResult) -> QueryResult:
        """Execute a statement as another sandbox did, with the same clock and random numbers if possible.

        Raises:
            EnvironmentFault: see `execute`.
        """
        return self.execute(sql)

    @abstractmethod
    def state(self) -> State:
        """Return all tables in full (up to `MAX_STATE_ROWS`), without dropped tables and with new ones.

        Changes in a transaction that the agent left open are included. TEMPORARY tables are not: they exist
        only in the agent's session, even if they hide a table of the same name.

        Raises:
            EnvironmentFault: the database failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Remove the tables. May be called repeatedly; raises nothing."""


def clip(rows: Iterable[Any], limits: Limits) -> tuple[list[tuple], str | None]:
    """Take rows until a limit is hit; return them and the name of the limit, or `None`.

    A row that exceeds the text limit is included as the last one, with its texts cut to fit.
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
    """Return a table's state.

    Rows beyond `MAX_STATE_ROWS` and `MAX_STATE_CHARACTERS` are replaced by their number and the sum of their
    hashes, which does not depend on their order.
    """
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
    """Return the result of a statement that failed with this error number and message."""
    return QueryResult(None, message(code, text), code, limit=limit, seconds=seconds)


def timed_out(limits: Limits, seconds: float = 0.0) -> QueryResult:
    """Return the result of a statement that ran too long, which is the same on every server."""
    text = f"Query execution was interrupted, the time limit of {limits.seconds:g} s was exceeded"
    return failure(TIME_LIMIT, text, limit="time", seconds=seconds)


def refusal(sql: str) -> QueryResult | None:
    """Return the result of a text that must not be sent to a server, or `None` if it can be sent."""
    if len(sql) > MAX_STATEMENT_CHARACTERS:
        return failure(1153, f"Got a packet bigger than 'max_allowed_packet' bytes ({len(sql)} characters)")
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        return failure(1300, f"Invalid utf8mb4 character string: {sql[error.start : error.end]!a}")
    return None


def columns_of(table: Table) -> str:
    """Return a table's column definitions for CREATE TABLE.

    Raises:
        TaskError: a column's type is not valid.
    """
    columns = []
    for column in table.columns:
        check_type(column.type, table.name, column.name)
        # without explicit_defaults_for_timestamp, a server would store the current time instead of NULL
        null = " NULL" if column.nullable and column.type.upper().startswith("TIMESTAMP") else ""
        columns.append(f"{quote(column.name)} {column.type}{null}")
    return ", ".join(columns)


def check_rows(table: Table) -> None:
    """Raise TaskError for a table without columns, with two columns of one name, or with a row whose length
    is not the number of columns."""
    if not table.columns:
        raise TaskError(f"Table {table.name!r} has no columns. Give it at least one.")
    check_differ([column.name for column in table.columns], f"Table {table.name!r}")
    for number, row in enumerate(table.rows, 1):
        if len(row) != len(table.columns):
            raise TaskError(
                f"Table {table.name!r}, row {number} has {len(row)} cells, the table {len(table.columns)} "
                "columns. Give every row one cell a column (null for a missing one)."
            )
