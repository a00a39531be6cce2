"""What published evaluators make of a statement before they execute it, flaws included.

Ours executes statements as they are; these are for figures that are to be compared with published ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
    '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \[[^\]]*\]   # texts and quoted names
    | --[^\r\n]* | /\*.*?\*/                                 # comments
    | \w+ | .                                                # words, and anything else by itself
    """,
    re.VERBOSE | re.DOTALL,
)
_THIS_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)
_DISTINCT = re.compile(r"\bDISTINCT\b", re.IGNORECASE)
_ROUND = re.compile(r"round\(", re.IGNORECASE)
_COMMENTS = re.compile(r"/\*.*?\*/|--[^\r\n]*(?=[\r\n])", re.DOTALL)


MAX_ROUNDS = 200
"""A statement with more calls of ROUND keeps them: taking them out takes the square of their number."""


def for_spider(sql: str, keep_distinct: bool = False) -> str:
    """As the evaluator of Spider's test suites has it.

    `> =` is `>=`, in texts too, and the current year is 2020.

    Args:
        keep_distinct: if not, every DISTINCT goes, also that of `COUNT(DISTINCT x)`, and all statements but
            the first.
    """
    for operator in ("> =", "< =", "! ="):
        sql = sql.replace(operator, operator.replace(" ", ""))
    if not keep_distinct:
        sql = "".join(token for token in _first_statement(sql) if token.lower() != "distinct")
    return _THIS_YEAR.sub("2020", sql)


def _first_statement(sql: str) -> Iterator[str]:
    ended = False
    for token in _TOKEN.findall(sql):
        if ended and not token.isspace():
            return
        yield token
        ended = ended or token == ";"


def for_critic(sql: str) -> str:
    """As BIRD-CRITIC and LiveSQLBench have it on SQLite.

    Comments go, in texts too, but for one on the last line; so does DISTINCT between two spaces; of
    `ROUND(x, n)` the `x` stays, without parentheses.
    """
    sql = _COMMENTS.sub("", sql)
    sql = " ".join(word for word in sql.split(" ") if word.lower() != "distinct")
    calls = [*_ROUND.finditer(sql)]
    for found in reversed(calls if len(calls) <= MAX_ROUNDS else []):  # the inner ones first
        argument, end = _first_argument(sql, found.end())
        sql = sql[: found.start()] + argument + sql[end:]
    return sql.strip()


def without_distinct(sql: str) -> str:
    """As tests of BIRD-CRITIC on MySQL have it: every word DISTINCT goes, in texts too."""
    return _DISTINCT.sub("", sql)


def _first_argument(sql: str, start: int) -> tuple[str, int]:
    """The first argument of a call, and where the call ends.

    Args:
        start: the place after its parenthesis.
    """
    depth, first = 1, None
    for place in range(start, len(sql)):
        depth += {"(": 1, ")": -1}.get(sql[place], 0)
        if first is None and (depth == 0 or (depth == 1 and sql[place] == ",")):
            first = sql[start:place]
        if depth == 0:
            return (first or "").strip(), place + 1
    return sql[start:].strip(), len(sql)
