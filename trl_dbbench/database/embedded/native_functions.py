"""SQLite's own functions of texts, in a time that is bounded: nothing interrupts a call of one.

They are called in a database apart, unless the lengths of their texts say that it would take seconds. A text
that is not UTF-8 cannot be handed to them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.mysqlite.values import MAX_PATTERN_CHARACTERS, Value

MAX_LARGE_BYTES = 1024 * 1024
"""Bytes of a text, a blob or a row, where a statement meets large ones."""

_STRIPS: dict[str, Callable[[str, str], str]] = {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}
"""Python's methods that give the same for texts, in less time."""

TRIMS = dict.fromkeys(_STRIPS, (2,))
SEARCHES = {"like": (2, 3), "glob": (2,), "instr": (2,), "replace": (3,)}
FORMATS = {"printf": (-1,), "format": (-1,)}
"""Functions, with the numbers of arguments that they are offered for."""

_MAX_PRODUCT = 2**28
_MAX_COMPARED = {"instr": 2**33, "replace": 2**33}
"""Bounds on the product of the lengths of a call's first two texts, in bytes; such a call takes about half a
second."""

# to repeat a character, SQLite counts to the end of a number that may be 2 billion
_REPEATED = re.compile(r"%[^%.a-zA-Z]*+\.([^%a-zA-Z]*+)l*+c")


class OwnFunctions:
    """SQLite's functions in a database apart."""

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
