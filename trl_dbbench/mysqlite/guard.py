"""Limits on what a statement may do to this process: no file access, bounded time, bounded memory.

SQLite cannot be killed, but it calls us back: the authorizer, the progress handler, and our functions. Limits
on the sizes of texts, rows, tables, sorts and statements bound the time between two callbacks.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trl_dbbench.mysqlite import values
from trl_dbbench.mysqlite.errors import StatementError, refuse_if, unsupported
from trl_dbbench.mysqlite.functions import AGGREGATES, functions, takes
from trl_dbbench.mysqlite.kinds import Table

PAGE_BYTES = 1024  # the amount that SQLite sorts without calling us is proportional to it
MAX_GROWTH_PAGES = 8_192
"""Most pages by which the tables may grow, and most pages of temporary tables: 8 MiB each."""

MAX_COLUMNS = 200
"""Most columns of a result. All texts of a row can be in memory at once."""

MAX_PARTS = 5_000
"""Most names, functions and subqueries of a statement with its views. Chained views grow exponentially."""

MAX_RECURSED = 1_000
"""Rows at which WITH RECURSIVE is refused. MySQL stops after as many iterations."""

STEPS_BETWEEN_CHECKS = 1_000
"""SQLite's virtual machine steps between two checks of the limits: at most a few hundred rows."""

MAX_SPILLED_BYTES = 32 * 1024 * 1024
"""Most bytes that a statement may write to temporary files, in addition to four times the size of the tables.
Sorts, DISTINCT and CTEs go there if they exceed SQLite's caches; merging that much takes about 0.5 s."""

SECONDS_BETWEEN_LOOKS = 0.005
"""Seconds between two checks of the bytes that a statement has written."""

SORT_GRACE_SECONDS = 0.25
"""Seconds that a statement may keep sorting after its time limit. Then all texts compare as equal."""


class Watch:
    """A watch over a connection's statements: `with watch.statement(5.0): connection.execute(...)`.

    `timed_out` and `failure` say why a statement failed if SQLite's error does not. An exception in our
    functions that is not meant for the agent is raised at the end of the block.
    """

    steps = STEPS_BETWEEN_CHECKS
    longest_result = values.MAX_TEXT_CHARACTERS
    too_many_parts = StatementError(1436, "Thread stack overrun: the statement has too many parts")
    spilled_too_much = StatementError(1114, "The table '/tmp/#sql' is full")

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.timed_out = False
        self.failure: StatementError | None = None
        self._mistake: Exception | None = None
        self._connection = connection
        self._watching = False
        self._parts = self._recursed = 0
        self._may_spill = MAX_SPILLED_BYTES
        self._written_before: int | None = None
        self._next_look = 0.0
        connection.set_progress_handler(lambda: int(self._late() or self._spilled()), self.steps)
        connection.set_authorizer(self._authorize)

    @contextmanager
    def statement(self, seconds: float) -> Iterator[None]:
        """Watch over a block that runs a statement, and limit it to `seconds`."""
        self._parts = self._recursed = 0
        self._written_before, self._next_look = None, 0.0
        self._watching = True
        try:
            with self.reading(seconds):
                yield
        finally:
            self._watching = False
            if self._mistake is not None:
                raise self._mistake

    @contextmanager
    def reading(self, seconds: float = math.inf) -> Iterator[None]:
        """Limit the time of a block, such as one in which we read tables ourselves."""
        self.timed_out, self.failure, self._mistake = False, None, None
        with values.time_limit(seconds):
            yield

    @contextmanager
    def own(self) -> Iterator[None]:
        """Lift the restrictions, such as on PRAGMA, for our own statements in a block inside `statement`."""
        watching, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = watching

    def _late(self, grace: float = 0.0) -> bool:
        late = values.is_late(grace)  # by the current limit, not an earlier statement's
        self.timed_out |= late
        return late

    def _spilled(self) -> bool:
        if not self._watching or time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        written = _written()
        if self._written_before is None:
            self._written_before = written
        if written - self._written_before <= self._may_spill:
            return False
        self.failure = self.spilled_too_much
        return True

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if not self._watching:
            return sqlite3.SQLITE_OK
        self._parts += 1
        if self._parts > MAX_PARTS:
            self.failure = self.too_many_parts
        elif not self._late() and self._allows(action, first or "", second or ""):
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    def _allows(self, action: int, first: str, second: str) -> bool:
        """Return whether a statement may do this; `first` and `second` are SQLite's details of the action."""
        if action == sqlite3.SQLITE_FUNCTION:
            return second.lower() not in FORBIDDEN_FUNCTIONS
        return action not in FORBIDDEN

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, stopped when time is up. Keep why it failed, which SQLite does not report."""

        def watched(*arguments: Any) -> Any:
            try:
                values.check_time()
                result = function(*arguments)
            except values.OutOfTime:
                self.timed_out = True
                raise
            except StatementError as error:
                self.failure = error
                raise
            except (ValueError, ArithmeticError):
                self.failure = unsupported("an argument that the function is not made for")
                raise
            except Exception as error:
                if isinstance(error, TypeError) and not takes(function, arguments):
                    text = "Incorrect parameter count in the call to native function"
                    self.failure = StatementError(1582, text)
                else:
                    self._mistake = error
                raise
            if isinstance(result, int) and not -(2**63) <= result < 2**63:
                return float(result)
            if isinstance(result, str) and len(result) > self.longest_result:
                return None
            return result

        return watched


class Guard(Watch):
    """A watch over the agent's statements that also gives the connection MySQL's functions and collation."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA cache_size = 250")
        connection.create_collation(values.COLLATION, self._collate)
        for name, function in _FUNCTIONS.items():
            connection.create_function(
                f"my_{name}", -1, self._watched(function), deterministic=name not in _NOT_DETERMINISTIC
            )
        connection.create_function("my_RECURSED", 0, self._watched(self._recurse))
        for name, aggregate in AGGREGATES.items():
            connection.create_aggregate(f"my_{name}", -1, self._watched_aggregate(aggregate))

    def confine(self, tables: Sequence[Table]) -> None:
        """Limit how far the database may grow from now on; `tables` are those that it holds."""
        connection = self._connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        tables_bytes = pages * PAGE_BYTES
        self._may_spill = MAX_SPILLED_BYTES + 4 * tables_bytes
        connection.execute(f"PRAGMA max_page_count = {pages + MAX_GROWTH_PAGES}")
        connection.execute(f"PRAGMA temp.max_page_count = {MAX_GROWTH_PAGES}")
        longest = values.MAX_TEXT_CHARACTERS
        if tables_bytes > values.MAX_TEXT_CHARACTERS:
            longest = max(longest, 2 * max((_size(row) for table in tables for row in table.rows), default=0))
        widest = max((len(table.columns) for table in tables), default=0)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, max(MAX_COLUMNS, 2 * widest))
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)

    def _recurse(self) -> int:
        """Count a row of WITH RECURSIVE; refuse too many, as MySQL stops after 1,000 iterations."""
        self._recursed += 1
        refuse_if(self._recursed >= MAX_RECURSED, f"{MAX_RECURSED} rows of WITH RECURSIVE")
        return 1

    def _collate(self, left: str, right: str) -> int:
        # a sort calls nothing else until it is done; the result of a late one is discarded
        return 0 if self._late(SORT_GRACE_SECONDS) else values.collate(left, right)

    def _watched_aggregate(self, aggregate: Callable[[], Any]) -> Callable[[], Any]:
        def made() -> Any:
            instance = aggregate()
            for method in _AGGREGATE_METHODS & set(dir(instance)):
                setattr(instance, method, self._watched(getattr(instance, method)))
            return instance

        return made


_IO = Path("/proc/thread-self/io")


def _written() -> int:
    """Return the bytes that this thread has written, all of them to temporary files; 0 if unknown."""
    try:
        return int(_IO.read_text().partition("wchar:")[2].split()[0])
    except OSError:
        return 0


def _size(row: Sequence[Any]) -> int:
    return sum(len(str(cell).encode()) + 9 for cell in row)


_FUNCTIONS = functions()
_NOT_DETERMINISTIC = frozenset({"RAND", "UUID", "NOW", "SYSDATE", "CURDATE", "CURTIME", "UNIX_TIMESTAMP"})
_AGGREGATE_METHODS = frozenset({"step", "inverse", "value", "finalize"})


def _codes(names: str) -> frozenset[int]:
    return frozenset(getattr(sqlite3, f"SQLITE_{name}") for name in names.split())


FORBIDDEN = _codes("ATTACH DETACH PRAGMA CREATE_VTABLE DROP_VTABLE CREATE_TRIGGER CREATE_TEMP_TRIGGER")
FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})

SHORTAGES = _codes("NOMEM IOERR FULL CANTOPEN")
"""SQLite's primary error codes for a lack of memory or disk space, and for hitting our own limits."""
BROKEN = _codes("INTERNAL PERM CORRUPT PROTOCOL NOLFS NOTADB")
"""SQLite's primary error codes for a broken database, which no statement can cause."""


def primary_code(error: BaseException | None) -> int:
    """Return the primary code of an SQLite error, 0 for any other error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
