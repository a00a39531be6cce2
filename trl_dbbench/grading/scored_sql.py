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
_ROUND = re.compile(r"round\s*\(", re.IGNORECASE)
_BLOCK_COMMENTS = re.compile(r"/\*.*?\*/", re.DOTALL)
_LINE_COMMENTS = re.compile(r"--[^\r\n]*(?=[\r\n])")
_BLANK_LINES = re.compile(r"\n\s*\n")
_PUNCTUATION = re.compile(r"[(),]")

MAX_PASSES = 20
"""Number of searches for calls of ROUND: removing some can make others out of what is left."""


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
    """As BIRD-CRITIC and LiveSQLBench have it on SQLite, in texts and quoted names, too.

    Comments go, but for one on the last line, and blank lines; so does DISTINCT between two spaces; of
    `Round (x, n)` the `x` stays, without parentheses.
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
    """As tests of BIRD-CRITIC on MySQL have it: every word DISTINCT goes, in texts too."""
    return _DISTINCT.sub("", sql)


def _without_round(sql: str) -> str:
    """The text with the first argument in place of each call of ROUND, up to a call that does not end.

    The evaluator replaces the first call until there is none. Here all are replaced in one pass.
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
    """Of each parenthesis that is closed: where its first argument ends, and where it is closed itself."""
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
