"""Bound on the size of a native SQLite statement after its views and CTEs are expanded.

SQLite expands a view or CTE wherever it is read, before it calls the authorizer and without checking the time
limit. A chain of views in which each reads the previous one twice grows exponentially.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass, field
from functools import lru_cache

from trl_dbbench.mysqlite.kinds import words

MAX_WORDS = 50_000
"""Most words of an expanded statement; SQLite takes about 20 ms to expand that many."""

_VIEWS = (
    "SELECT name, sql FROM main.sqlite_master WHERE type = 'view' "
    "UNION ALL SELECT name, sql FROM temp.sqlite_master WHERE type = 'view'"
)
_TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?(?:\*/|\Z) | \s+
    | '(?P<single>(?:[^']|'')*+)(?:'|\Z) | "(?P<double>(?:[^"]|"")*+)(?:"|\Z)
    | `(?P<back>(?:[^`]|``)*+)(?:`|\Z)
    | \[(?P<square>[^\]]*+)(?:\]|\Z)
    | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*) | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_OF_ALL_VIEWS = frozenset(
    {"alter", "table_list", "pragma_table_list", "pragma_table_info", "pragma_table_xinfo"}
)
"""Words at which SQLite expands all views."""

_ENDS_TABLES = words(
    "select where group order having limit union except intersect set values window returning"
)
_SIGNS = frozenset("(),.")
_BEFORE_TABLE = frozenset({"from", "join", ",", "("})
_BEFORE_ANY_TABLE = frozenset({"into", "update", "in"})

Views = tuple[tuple[str, str], ...]


@dataclass
class _Part:
    """View, CTE or statement: its number of words, and the names that it reads."""

    words: int = 0
    reads: list[str] = field(default_factory=list)


def views_of(connection: sqlite3.Connection) -> Views:
    """Return the name and SQL of each view."""
    return tuple(connection.execute(_VIEWS).fetchall())


def words_written_out(sql: str, views: Views) -> int:
    """Return the number of words in a statement after its views and CTEs are expanded; in doubt, more."""
    tokens = _tokens(sql)
    statement, parts = _read(tokens)
    for name, text in views:
        view, ctes = _read(_tokens(text))
        for each, part in [(name.lower(), view), *ctes.items()]:
            same_name = parts.setdefault(each, _Part())
            same_name.words += part.words
            same_name.reads += part.reads
    sizes = _sizes(parts)
    reads = statement.reads
    if not _OF_ALL_VIEWS.isdisjoint(tokens):
        reads += [name.lower() for name, _ in views]
    return statement.words + sum(sizes.get(name, 0) for name in reads)


def _sizes(parts: dict[str, _Part]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    above: set[str] = set()
    for name in parts:
        waiting = [name]
        while waiting:  # no recursion: a chain may be longer than Python's stack allows
            last = waiting[-1]
            if last in sizes:
                waiting.pop()
                continue
            others = [each for each in parts[last].reads if each in parts and each != last]
            missing = [each for each in others if each not in sizes]
            if missing and last in above:  # a cycle, which SQLite refuses, or an apparent one
                sizes.update(dict.fromkeys(missing, MAX_WORDS + 1))
            elif missing:
                above.add(last)
                waiting += missing
            else:
                sizes[last] = min(parts[last].words + sum(map(sizes.__getitem__, others)), MAX_WORDS + 1)
    return sizes


@lru_cache(maxsize=1024)
def _tokens(sql: str) -> tuple[str, ...]:
    """Return the words and signs of a statement in lower case, with names unquoted."""
    tokens = []
    for found in _TOKEN.finditer(sql):
        if (kind := found.lastgroup) is not None:
            text = found[kind].lower()
            if kind in ("single", "double", "back"):
                mark = found[0][0]
                text = text.replace(2 * mark, mark)
            quoted = kind not in ("word", "sign")
            # a quoted sign, such as a bracket, is a name
            tokens.append(f"'{text}" if quoted and text in _SIGNS else text)
    return tuple(tokens)


def _read(tokens: tuple[str, ...]) -> tuple[_Part, dict[str, _Part]]:
    """Return the statement without its CTEs, and the CTEs by name."""
    statement, ctes = _Part(), dict[str, _Part]()
    part, tables, on = statement, False, False
    outer: list[tuple[int, _Part, bool, bool]] = []
    begins: dict[int, int] = {}
    """Index of a closing bracket -> index of its opening one."""
    for place, token in enumerate(tokens):
        part.words += 1
        before = tokens[place - 1] if place else ""
        if before == "." and place > 2 and tokens[place - 2] in ("main", "temp"):
            before = tokens[place - 3]
        if token == "(":
            outer.append((place, part, tables, on))
            if (name := _defined(tokens, place, begins)) is not None:
                part.reads.append(name)
                part, tables, on = ctes.setdefault(name, _Part()), False, False
        elif token == ")" and outer:
            begins[place], part, tables, on = outer.pop()
        elif token in ("from", "join") or (on and token == ","):
            tables, on = True, False
        elif token in ("on", "using"):
            tables, on = False, True
        elif token in _ENDS_TABLES:
            tables = on = False
        elif (tables and before in _BEFORE_TABLE) or before in _BEFORE_ANY_TABLE:
            part.reads.append(token)
    return statement, ctes


def _defined(tokens: tuple[str, ...], begin: int, begins: dict[int, int]) -> str | None:
    """Return the name of the CTE that the bracket at `begin` opens, or `None`.

    The name stands before `AS (`, or before `(columns) AS NOT MATERIALIZED (`.
    """
    place = begin - 1
    while place > 0 and tokens[place] in ("not", "materialized"):
        place -= 1
    if place < 1 or tokens[place] != "as":
        return None
    place = begins.get(place - 1, place) - 1
    return tokens[max(place, 0)]
