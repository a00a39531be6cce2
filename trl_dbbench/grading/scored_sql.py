"""Rewriting that published evaluators apply to a statement before they execute it, flaws included.

Needed only for figures that are compared with published ones; otherwise statements run unchanged.
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
_ROUND = re.compile(r"round\s*\(", re.IGNORECASE)
_BLOCK_COMMENTS = re.compile(r"/\*.*?\*/", re.DOTALL)
_LINE_COMMENTS = re.compile(r"--[^\r\n]*(?=[\r\n])")
_BLANK_LINES = re.compile(r"\n\s*\n")
_PUNCTUATION = re.compile(r"[(),]")

MAX_CALLS = 100
"""Most calls of ROUND that are removed, to bound the time."""


def for_spider(sql: str, keep_distinct: bool = False) -> str:
    """Rewrite as the evaluator of Spider's test suites does.

    `> =` becomes `>=`, in texts too, and the current year becomes 2020.

    Args:
        keep_distinct: if false, remove every DISTINCT, even in `COUNT(DISTINCT x)`, and every statement after
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
    """Rewrite as BIRD-CRITIC and LiveSQLBench do on SQLite, in texts and quoted names too.

    Removes comments except one on the last line, blank lines, and DISTINCT between two spaces; replaces
    `Round (x, n)` by `x`.
    """
    sql = _LINE_COMMENTS.sub("", _BLOCK_COMMENTS.sub("", sql))
    sql = _BLANK_LINES.sub("\n", sql).strip()
    return _without_round(" ".join(word for word in sql.split(" ") if word.lower() != "distinct"))


def without_distinct(sql: str) -> str:
    """Remove every word DISTINCT, in texts too, as tests of BIRD-CRITIC on MySQL do."""
    return _DISTINCT.sub("", sql)


def _without_round(sql: str) -> str:
    """Replace each call of ROUND by its first argument, in order, up to a call that is not closed."""
    for _ in range(MAX_CALLS):
        call = _ROUND.search(sql)
        if call is None:
            break
        depth, stop = 0, 0
        for sign in _PUNCTUATION.finditer(sql, call.end() - 1):
            depth += (sign[0] == "(") - (sign[0] == ")")
            if not stop and (depth == 0 or (depth == 1 and sign[0] == ",")):
                stop = sign.start()
            if depth == 0:
                sql = sql[: call.start()] + sql[call.end() : stop].strip() + sql[sign.end() :]
                break
        else:
            break
    return sql
