"""SQLite's own functions of texts, in Python: those whose time grows with the product of two lengths.

SQLite's are faster where texts are short, and nothing can interrupt them where texts are long. These give the
same results in a time that is bounded. A text that is not UTF-8 cannot be handed to them.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import regex

from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.mysqlite.patterns import MAX_REGEX_SECONDS, in_regex_time, joined
from trl_dbbench.mysqlite.values import MAX_PATTERN_CHARACTERS, Value, check_time

Functions = Mapping[tuple[str, int], Callable[..., Any]]
"""Name and number of arguments -> function."""

MAX_LARGE_BYTES = 1024 * 1024
"""Bytes of a text, a blob or a row, where a statement meets large ones."""

TOO_BIG = StatementError(sqlite3.SQLITE_TOOBIG, "string or blob too big")
TOO_COMPLEX = StatementError(sqlite3.SQLITE_ERROR, "LIKE or GLOB pattern too complex")

CHARACTERS_BETWEEN_CHECKS = 10_000


def as_text(value: Value) -> str:
    """Return a value as SQLite's functions read it."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        if value in (math.inf, -math.inf):
            return "Inf" if value > 0 else "-Inf"
        digits, exponent, power = format(value, ".15g").partition("e")
        return f"{digits if '.' in digits else f'{digits}.0'}{exponent}{power}"
    return str(value)


def _until_nul(value: Value) -> str:
    return as_text(value).partition("\0")[0]


def like(pattern: Value, value: Value) -> int | None:
    """`value LIKE pattern`: only the case of ASCII letters is ignored."""
    return _match(_like_pattern, pattern, value, "")


def like_escaped(pattern: Value, value: Value, escape: Value) -> int | None:
    """`value LIKE pattern ESCAPE escape`"""
    if escape is None:
        return None
    if len(_until_nul(escape)) != 1:
        raise StatementError(sqlite3.SQLITE_ERROR, "ESCAPE expression must be a single character")
    return _match(_like_pattern, pattern, value, as_text(escape))


def glob(pattern: Value, value: Value) -> int | None:
    """`value GLOB pattern`"""
    return _match(_glob_pattern, pattern, value)


def _match(compiled: Callable[..., Any], pattern: Value, value: Value, *more: str) -> int | None:
    if pattern is None or value is None:
        return None
    wanted, subject = _until_nul(pattern), _until_nul(value)
    if len(wanted) > MAX_PATTERN_CHARACTERS:
        raise TOO_COMPLEX
    expression = compiled(wanted, *more)
    if expression is None:
        return 0
    if compiled is _like_pattern:
        subject = _lower(subject)
    try:
        found = in_regex_time(lambda: expression.fullmatch(subject, timeout=MAX_REGEX_SECONDS))
    except StatementError:
        raise TOO_COMPLEX from None
    return int(found is not None)


def _lower(text: str) -> str:
    return text.lower() if text.isascii() else text.encode(errors="replace").lower().decode()


@lru_cache(maxsize=256)
def _like_pattern(pattern: str, escape: str) -> Any:
    """Return the pattern as a regular expression, or `None` for one that matches nothing."""
    segments, chars = [""], iter(pattern)
    for char in chars:
        if char == escape:
            escaped = next(chars, None)
            if escaped is None:
                return None
            segments[-1] += regex.escape(_lower(escaped))
        elif char == "%":
            segments.append("")
        else:
            segments[-1] += "." if char == "_" else regex.escape(_lower(char))
    return joined(segments)


@lru_cache(maxsize=256)
def _glob_pattern(pattern: str) -> Any:
    segments, position = [""], 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            segments.append("")
        elif char == "[":
            found, position = _set(pattern, position)
            if found is None:
                return None
            segments[-1] += found
        else:
            segments[-1] += "." if char == "?" else regex.escape(char)
    return joined(segments)


def _set(pattern: str, position: int) -> tuple[str | None, int]:
    """Return the set that begins here as one of a regular expression, and its end; `None` without an end."""
    inverted = pattern.startswith("^", position)
    position += inverted
    parts, before = [], ""
    if pattern.startswith("]", position):
        parts.append(_code("]"))
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        char, after = pattern[position], pattern[position + 1 : position + 2]
        position += 1
        if char == "-" and after not in ("]", "") and before:
            position += 1
            if before <= after:
                parts.append(f"{_code(before)}-{_code(after)}")
            before = ""
        else:
            parts.append(_code(char))
            before = char
    if position == len(pattern):
        return None, position
    return f"[{'^' * inverted}{''.join(parts)}]", position + 1


def _code(char: str) -> str:
    return f"\\U{ord(char):08x}"


def instr(value: Value, part: Value) -> int | None:
    if value is None or part is None:
        return None
    if isinstance(value, bytes) and isinstance(part, bytes):
        return value.find(part) + 1
    return as_text(value).find(as_text(part)) + 1


def replace(value: Value, old: Value, new: Value) -> Value:
    if value is None or old is None:
        return None
    text, wanted = as_text(value), as_text(old)
    if not wanted or wanted.startswith("\0"):
        return value
    if new is None:
        return None
    other = as_text(new)
    if len(text) + text.count(wanted) * (len(other) - len(wanted)) > MAX_LARGE_BYTES:
        raise TOO_BIG
    return text.replace(wanted, other)


def trim(value: Value, characters: Value, *, left: bool = True, right: bool = True) -> str | None:
    if value is None or characters is None:
        return None
    text, removed = as_text(value), frozenset(as_text(characters))
    begin, end = 0, len(text)
    while left and begin < end and text[begin] in removed:
        begin += 1
        if begin % CHARACTERS_BETWEEN_CHECKS == 0:
            check_time()
    while right and begin < end and text[end - 1] in removed:
        end -= 1
        if end % CHARACTERS_BETWEEN_CHECKS == 0:
            check_time()
    return text[begin:end]


def ltrim(value: Value, characters: Value) -> str | None:
    return trim(value, characters, right=False)


def rtrim(value: Value, characters: Value) -> str | None:
    return trim(value, characters, left=False)


class Formatter:
    """`printf`: SQLite's own, in a database apart, without what takes it seconds.

    Where a character is repeated, it counts to the end of a number that may be 2 billion.
    """

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None

    def __call__(self, *values: Value) -> Value:
        if values and values[0] is not None:
            for repeats in _REPEATED.findall(as_text(values[0])):
                if "*" in repeats or len(repeats) > len(str(MAX_LARGE_BYTES)):
                    raise TOO_BIG
        if self._connection is None:
            self._connection = sqlite3.connect(":memory:", check_same_thread=False)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LARGE_BYTES)
        try:
            return self._connection.execute(
                f"SELECT printf({', '.join('?' * len(values))})", values
            ).fetchone()[0]
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            raise StatementError(code, str(error)) from None


_REPEATED = regex.compile(r"%[^%.a-zA-Z]*+\.([^%a-zA-Z]*+)l*+c")

TRIMS: Functions = {
    ("trim", 2): trim,
    ("ltrim", 2): ltrim,
    ("rtrim", 2): rtrim,
}

SEARCHES: Functions = {
    ("like", 2): like,
    ("like", 3): like_escaped,
    ("glob", 2): glob,
    ("instr", 2): instr,
    ("replace", 3): replace,
}
