"""Guard that keeps an agent's native SQLite statement inside its database and limits; see `mysqlite.guard`.

A statement first runs with SQLite's own functions and a low limit on the length of texts: the time of LIKE,
GLOB, INSTR and REPLACE grows with the product of two lengths, and a call cannot be interrupted. A statement
that meets a longer text, from the file or of its own making, runs again with a higher limit on lengths, fewer
calls, and functions whose time is bounded.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.mysqlite.guard import FORBIDDEN, FORBIDDEN_FUNCTIONS, MAX_COLUMNS, MAX_SPILLED_BYTES, Watch
from trl_dbbench.mysqlite.values import MAX_PATTERN_CHARACTERS, Value

MAX_LARGE_BYTES = 1024 * 1024
"""Largest text, blob or row, in bytes, in a run of a statement that meets large ones."""

_STRIPS: dict[str, Callable[[str, str], str]] = {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}
"""Python's methods that give the same results for texts in less time."""

TRIMS = dict.fromkeys(_STRIPS, (2,))
SEARCHES = {"like": (2, 3), "glob": (2,), "instr": (2,), "replace": (3,)}
FORMATS = {"printf": (-1,), "format": (-1,)}
"""Functions that `OwnFunctions` replaces, with the numbers of arguments to replace them for (-1: any)."""

_MAX_PRODUCT = 2**28
_MAX_COMPARED = {"instr": 2**33, "replace": 2**33}
"""Largest products of the lengths, in bytes, of a call's first two texts; a call at the bound takes
about half a second."""

# `%.<number>c` repeats a character: SQLite counts up to the number, which may be 2 billion
_REPEATED = re.compile(r"%[^%.a-zA-Z]*+\.([^%a-zA-Z]*+)l*+c")

MAX_SMALL_BYTES = 32 * 1024
"""Largest text, blob or row, in bytes, in the first run. A search in one takes up to 20 ms."""

MAX_PATTERN_BYTES = 256
"""Longest pattern of LIKE or GLOB, in bytes, for SQLite's own functions."""

MAX_SEARCHES = 40
"""Most calls of `SEARCHES` in one statement."""

MAX_ARGUMENTS = 100
MAX_LARGE_CALLS = 30
MAX_LARGE_ARGUMENTS = 16
"""Most function calls, and most arguments of each, in a statement that meets large texts: reading 1 MB of
JSON takes 20 ms."""

MAX_GROWTH_BYTES = 8 * 1024 * 1024
"""Most bytes by which the database may grow, and most bytes that temporary tables may hold."""

MAX_SORTED_BYTES = 256 * 1024 * 1024
"""Most bytes that a statement may write to temporary files in proportion to the size of its database."""

CACHE_KILOBYTES = 2_000

READING_PRAGMAS = frozenset(
    {
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
        "foreign_key_list",
    }
)

_ASKED_BY_INDEXES = frozenset({"data_version", "page_size"})
"""PRAGMAs that a full-text index reads on opening, during the agent's first statement that names it."""

_TOO_SLOW = frozenset({"json_patch"})
"""Functions that no task needs and whose time grows with the square of a text's length."""

_RAW_TABLES = frozenset({"sqlite_dbpage"})
"""Tables through which the file's pages could be overwritten."""


class OwnFunctions:
    """SQLite's text functions with bounded time, as a call of the original cannot be interrupted.

    They call the original on a separate connection, and refuse a text if the call would take seconds. They
    cannot take text that is not UTF-8.
    """

    def named(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LARGE_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN_CHARACTERS)
        return connection

    def _call(self, name: str, *values: Value) -> Value:
        if name in FORMATS:
            slow = values and any(map(_counts_far, _REPEATED.findall(str(values[0]))))
        else:
            slow = _bytes(values[0]) * _bytes(values[1]) > _MAX_COMPARED.get(name, _MAX_PRODUCT)
        if slow:
            raise StatementError(sqlite3.SQLITE_TOOBIG, "string or blob too big")
        if name in TRIMS and all(isinstance(value, str) and "\0" not in value for value in values):
            return _STRIPS[name](*values)
        places = ", ".join("?" * len(values))
        try:
            return self._connection.execute(f"SELECT {name}({places})", values).fetchone()[0]
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            raise StatementError(code, str(error)) from None


def _bytes(value: Value) -> int:
    if not isinstance(value, str | bytes):
        return 1
    return len(value) if value.isascii() or isinstance(value, bytes) else 4 * len(value)


def _counts_far(digits: str) -> bool:
    return "*" in digits or len(digits) > len(str(MAX_LARGE_BYTES))


class NativeGuard(Watch):
    """Guard of a native SQLite database that holds its tables already."""

    steps = 200
    longest_result = MAX_LARGE_BYTES
    too_many_parts = StatementError(sqlite3.SQLITE_ERROR, "the statement has too many parts")
    spilled_too_much = StatementError(
        sqlite3.SQLITE_FULL, "the statement was stopped: it needs too much temporary space"
    )

    def __init__(self, connection: sqlite3.Connection, widest: int) -> None:
        """
        Args:
            widest: number of columns of the widest table.
        """
        super().__init__(connection)
        self.search_denied = False
        """True if the statement searches large texts before `replace_searches` allows that."""
        self._replaced = False
        self._large = False
        self.alters = False
        """True for an ALTER TABLE statement."""
        self._calls = 0
        self._searches = 0
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        growth = MAX_GROWTH_BYTES // page_bytes
        self._may_spill = MAX_SPILLED_BYTES + min(4 * pages * page_bytes, MAX_SORTED_BYTES)
        connection.execute(f"PRAGMA cache_size = -{CACHE_KILOBYTES}")
        connection.execute(f"PRAGMA max_page_count = {pages + growth}")
        connection.execute(f"PRAGMA temp.max_page_count = {growth}")
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, max(MAX_COLUMNS, 2 * widest))
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._functions = OwnFunctions()
        self._offer(TRIMS | FORMATS)
        self.expect(large=False)

    def expect(self, *, large: bool) -> None:
        """Set the limits for the next run of a statement, which may meet large texts if `large`."""
        self.failure, self.search_denied = None, False
        self._large, self._parts, self._calls, self._searches, self.alters = large, 0, 0, 0, False
        limits = {
            sqlite3.SQLITE_LIMIT_LENGTH: MAX_LARGE_BYTES if large else MAX_SMALL_BYTES,
            sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: MAX_PATTERN_BYTES,
            sqlite3.SQLITE_LIMIT_FUNCTION_ARG: MAX_LARGE_ARGUMENTS if large else MAX_ARGUMENTS,
        }
        for limit, value in limits.items():
            self._connection.setlimit(limit, value)

    def replace_searches(self) -> None:
        """Replace SQLite's `SEARCHES` with ours. This cannot be reversed on the same connection."""
        self._replaced = True
        self._offer(SEARCHES)

    def _offer(self, functions: Mapping[str, tuple[int, ...]]) -> None:
        for name, counts in functions.items():
            function = self._watched(self._functions.named(name))
            for count in counts:
                self._connection.create_function(name, count, function, deterministic=True)

    def _allows(self, action: int, first: str, second: str) -> bool:
        if action == sqlite3.SQLITE_PRAGMA:
            # SQLite itself runs quick_check on a table to which a column with a CHECK is added
            reads = first.lower() in READING_PRAGMAS or (first in _ASKED_BY_INDEXES and not second)
            return reads or (self.alters and first == "quick_check")
        if action == sqlite3.SQLITE_FUNCTION:
            return self._allows_function(second.lower())
        self.alters = self.alters or action == sqlite3.SQLITE_ALTER_TABLE
        return action not in FORBIDDEN and first.lower() not in _RAW_TABLES

    def _allows_function(self, name: str) -> bool:
        self._calls += 1
        searches = name in SEARCHES
        self._searches += searches
        self.search_denied = self.search_denied or (searches and self._large and not self._replaced)
        if self._large and self._calls > MAX_LARGE_CALLS:
            self.failure = StatementError(
                sqlite3.SQLITE_TOOBIG,
                f"string or blob too big for a statement with more than {MAX_LARGE_CALLS} calls of functions",
            )
        elif self._searches > MAX_SEARCHES:
            self.failure = StatementError(
                sqlite3.SQLITE_ERROR,
                f"too many calls of LIKE, GLOB, instr and replace: at most {MAX_SEARCHES} in a statement",
            )
        return not (self.failure or self.search_denied) and name not in FORBIDDEN_FUNCTIONS | _TOO_SLOW
