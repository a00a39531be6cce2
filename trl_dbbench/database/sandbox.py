"""What a rollout sees of a database: one private view, where it runs one statement at a time.

```
Database  one server (or none: SQLite), opened once per process
  └── Sandbox  one rollout's tables: execute(sql) -> QueryResult, state() -> State
```

Whatever the agent writes comes back as a `QueryResult`, refused statements included. Only what is not the
agent's doing is raised, as `EnvironmentFault`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Column, Table

State = dict[str, list[tuple]]
"""The tables as they are: name -> rows, in no particular order."""

STATE_ROWS = 100_000
STATE_CHARACTERS = 16_000_000
"""`Sandbox.state` reads so much of a table and no more: an agent can double a table at every turn, and no gold
state comes near."""

TABLE_BYTES = 256 * 1024 * 1024
"""A sandbox's tables may grow to this."""

STATEMENT_CHARACTERS = 65_536
"""Longer statements are refused before they are sent: servers and parsers take seconds to read what a model repeats."""


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
    `error` is the server's message as the agent may see it. `limit` names the limit that was hit:

    - `"rows"` or `"text"`: `rows` holds what fits;
    - `"time"` or `"server"` (it takes more of some resource than the server has), each with an `error`: what the
      statement did was undone;
    - `"size"`, with an `error`: a row was too large to be received, or the tables are; then nothing but reading is
      allowed any more.
    """

    rows: list[tuple] | None
    error: str | None = None
    limit: str | None = None
    affected: int | None = None
    seconds: float = 0.0


class Closing(ABC):
    """A context manager whose end is `close`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sandbox(Closing):
    """One rollout's private tables. A context manager; used by one thread at a time."""

    lost: bool = False
    """A limit took the tables with it: the sandbox must be made again (`RetryingSandbox` does)."""
    retries: int = 0
    """How often the database failed under it and it went on."""

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
