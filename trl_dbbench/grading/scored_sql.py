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

MAX_PASSES = 20
"""Most passes that remove calls of ROUND: removing one can form another."""


def for_spider(sql: str, keep_distinct: bool = False) -> str:
    """Rewrite as the evaluator of Spider's test suites does.

    `> =` becomes `>=`, in texts too, and the current year 2020.

    Args:
        keep_distinct: otherwise every DISTINCT is removed, even in `COUNT(DISTINCT x)`, and every statement
            after the first.
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
    sql = " ".join(word for word in sql.split(" ") if word.lower() != "distinct")
    for _ in range(MAX_PASSES):
        shorter = _without_round(sql)
        if shorter == sql:
            break
        sql = shorter
    return sql


def without_distinct(sql: str) -> str:
    """Remove every word DISTINCT, in texts too, as tests of BIRD-CRITIC on MySQL do."""
    return _DISTINCT.sub("", sql)


def _without_round(sql: str) -> str:
    """Replace each call of ROUND by its first argument, up to a call that does not end.

    The evaluator replaces the first call until there is none; here one pass replaces all.
    """
    ends = _ends_of_parentheses(sql)
    heads: list[tuple[int, int]] = []
    tails: list[tuple[int, int]] = []
    pending: list[tuple[int, int]] = []  # tails that are still ahead, the nearest one last
    for call in _ROUND.finditer(sql):
        while pending and pending[-1][1] <= call.start():
            pending.pop()
        if pending and pending[-1][0] <= call.start():
            continue  # it goes with another call's second argument
        if call.end() - 1 not in ends:
            break
        stop, close = ends[call.end() - 1]
        argument = sql[call.end() : stop]
        begin = stop - len(argument.lstrip())
        heads.append((call.start(), begin))
        tails.append((begin + len(argument.strip()), close + 1))
        pending.append(tails[-1])
    parts, place = [], 0
    for begin, end in sorted(heads + tails):
        parts.append(sql[place:begin])
        place = end
    return "".join(parts) + sql[place:]


def _ends_of_parentheses(sql: str) -> dict[int, tuple[int, int]]:
    """Map each closed parenthesis to the end of its first argument and to its own end."""
    found, opened = {}, list[int]()
    commas: dict[int, int] = {}
    for each in _PUNCTUATION.finditer(sql):
        if each[0] == "(":
            opened.append(each.start())
        elif opened and each[0] == ",":
            commas.setdefault(opened[-1], each.start())
        elif opened:
            start = opened.pop()
            found[start] = commas.get(start, each.start()), each.start()
    return found
