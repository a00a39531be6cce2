"""Whether the embedded database answers a statement as MySQL does."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from decimal import Decimal
from typing import Any, Literal

from sqlglot import exp
from sqlglot.errors import SqlglotError

from trl_dbbench.database import Database, QueryResult, Sandbox
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.mysqlite.collation import sort_key
from trl_dbbench.tasks import Gold, Table, Task
from trl_dbbench.utils.sql import parse_statements

Verdict = Literal[
    "same", "open", "not supported", "other rows", "other error", "only MySQL", "only SQLite", "undecided"
]
"""`open`: the rows differ, but the statement leaves them open, and each is an answer to it. `not supported`: the
embedded database says that it does not have what the statement needs. `only SQLite`: it answers what MySQL
refuses. `undecided`: one of the two ran into a limit."""

WRONG: tuple[Verdict, ...] = ("other rows", "other error", "only MySQL", "only SQLite")

NO_FEATURE = "(embedded database)"


def play(
    reference: Database, embedded: Database, tables: tuple[Table, ...], statements: Sequence[str]
) -> Iterator[tuple[str, Verdict, str]]:
    """Runs the statements on both and gives (statement, verdict, what each of them said). After one that may have
    changed something the tables are compared as well, and made anew."""
    task = Task("parity", "?", tables, "SELECT", Gold())
    left = list(reversed(statements))
    while left:
        with ExitStack() as stack:
            ours, theirs = (stack.enter_context(each.sandbox(task)) for each in (embedded, reference))
            while left:
                sql = left.pop()
                verdict, said, changed = one(ours, theirs, sql)
                yield sql, verdict, said
                if changed or ours.lost or theirs.lost:
                    break


def one(ours: Sandbox, theirs: Sandbox, sql: str) -> tuple[Verdict, str, bool]:
    wanted = theirs.execute(sql)
    try:
        mine = ours.execute(sql)
    except EnvironmentFault as fault:  # a mistake of the emulation, which may be made of any statement
        return "other error", f"{fault}\n  MySQL: {told(wanted)}", True
    said = f"{told(mine)}\n  MySQL: {told(wanted)}"
    changed = theirs.changed
    verdict = compare(mine, wanted, sql)
    if verdict == "other rows" and is_open(theirs, mine, wanted, sql):
        verdict = "open"
    if changed and verdict == "same" and not same_state(ours.state(), theirs.state()):
        return "other rows", f"{said}\n  other tables", changed
    return verdict, said, changed


def told(result: QueryResult) -> str:
    return result.error or repr(result.rows if result.rows is not None else f"affected {result.affected}")


def compare(mine: QueryResult, wanted: QueryResult, sql: str) -> Verdict:
    if mine.limit or wanted.limit:
        return "undecided"
    if mine.error is not None and mine.error.endswith(NO_FEATURE):
        return "not supported"
    if mine.error is None and wanted.error is None:
        return "same" if same_rows(mine, wanted, sql) else "other rows"
    if mine.error is None or wanted.error is None:
        return "only SQLite" if mine.error is None else "only MySQL"
    return "same" if error_class(mine.error_code) == error_class(wanted.error_code) else "other error"


_CLASSES = (
    ("syntax", {1064, 1065, 1149, 3706, 1630, 1584, 1248, 1582, 1583}),
    ("a name", {1054, 1146, 1109, 1052, 1066, 1051, 1049, 1247, 1305, 3579, 1370, 1142}),
    ("groups", {1055, 1056, 1111, 1140, 1463, 3029, 3593, 3594, 1235, 3580}),
    ("columns", {1241, 1222, 1136, 1353, 1110, 1210}),
    ("a value", {1366, 1265, 1292, 1264, 1365, 1406, 1690, 1411, 1525, 3020, 1048, 1364, 1441}),
)
CLASS_OF = {number: name for name, numbers in _CLASSES for number in numbers}


def error_class(number: int | None) -> str:
    """What kind of mistake an error number stands for; the number itself for any that is not listed."""
    return CLASS_OF.get(number or 0, str(number))


def is_open(theirs: Sandbox, mine: QueryResult, wanted: QueryResult, sql: str) -> bool:
    """Whether both are answers: of rows with equal keys in ORDER BY any order is right, and without it any rows.

    MySQL is asked for all rows and their keys: at each place there must be one that has that place's keys.
    """
    if mine.rows is None or wanted.rows is None or len(mine.rows) != len(wanted.rows):
        return False
    tree = parsed(sql)
    if not isinstance(tree, exp.Select) or not (tree.args.get("order") or tree.args.get("limit")):
        return False
    written = tree.args["offset"].expression.name if tree.args.get("offset") else "0"
    if not written.isdecimal():
        return False
    offset, keys = int(written), []
    if tree.args.get("order"):
        named = {each.alias.lower(): each.this for each in tree.expressions if isinstance(each, exp.Alias)}
        for term in tree.args["order"].expressions:
            key = term.this
            if isinstance(key, exp.Literal) and not key.is_string:
                if not key.name.isdecimal() or not 1 <= int(key.name) <= len(tree.expressions):
                    return False
                key = tree.expressions[int(key.name) - 1].unalias()
            elif isinstance(key, exp.Column) and not key.table:
                key = named.get(key.name.lower(), key)
            keys.append(key.copy())
    tree.set("limit", None)
    tree.set("offset", None)
    tree.set("expressions", [*tree.expressions, *keys])
    every = theirs.execute(tree.sql(dialect="mysql"))
    if every.rows is None or every.limit:
        return False
    width = len(every.rows[0]) - len(keys) if every.rows else 0
    by_key: dict[tuple, Counter] = defaultdict(Counter)
    for row in every.rows:
        by_key[tuple(map(folded, row[width:]))][tuple(map(folded, row[:width]))] += 1
    for row, at in zip(mine.rows, every.rows[offset:], strict=False):
        left = by_key[tuple(map(folded, at[width:]))]
        fitting = next((each for each in left if near(tuple(map(folded, row)), each)), None)
        if fitting is None or not left[fitting]:
            return False
        left[fitting] -= 1
    return True


def same_rows(mine: QueryResult, wanted: QueryResult, sql: str) -> bool:
    """As bags, and in order where the statement sorts by all that it shows or the rows come in the same."""
    if mine.rows is None or wanted.rows is None:
        return mine.rows is None and wanted.rows is None
    # of texts that are equal to MySQL any one may stand for all
    read = folded if re.search(r"\b(DISTINCT|UNION|INTERSECT|EXCEPT|GROUP BY|MIN|MAX)\b", sql, re.I) else cell
    left, right = ([tuple(map(read, row)) for row in rows] for rows in (mine.rows, wanted.rows))
    if left == right or (len(left) == len(right) and all(map(near, left, right))):
        return True
    if len(left) != len(right) or is_sorted(sql):
        return False
    return Counter(left) == Counter(right) or all(map(near, sorted(left, key=repr), sorted(right, key=repr)))


def is_sorted(sql: str) -> bool:
    tree = parsed(sql)
    return isinstance(tree, exp.Query) and tree.args.get("order") is not None


def parsed(sql: str) -> exp.Expr | None:
    """The statement, if it is one that can be parsed."""
    try:
        trees = [tree for tree in parse_statements(sql) if tree is not None]
    except (SqlglotError, RecursionError):
        return None
    return trees[0] if len(trees) == 1 else None


def cell(value: Any) -> Any:
    """A cell as one value for equal numbers, but not for a number and a text."""
    if isinstance(value, bool | int | float | Decimal):
        return ("n", f"{float(value) + 0.0:.10g}" if math.isfinite(float(value)) else str(value))  # no -0
    return value


def folded(value: Any) -> Any:
    return sort_key(value) if isinstance(value, str) else cell(value)


def near(left: tuple, right: tuple) -> bool:
    return len(left) == len(right) and all(
        a == b
        or (
            isinstance(a, tuple)
            and isinstance(b, tuple)
            and math.isclose(float(a[1]), float(b[1]), rel_tol=1e-9, abs_tol=1e-12)
        )
        for a, b in zip(left, right, strict=True)
    )


def same_state(mine: Any, wanted: Any) -> bool:
    if mine.keys() != wanted.keys():
        return False
    return all(
        Counter(tuple(map(cell, row)) for row in mine[name].rows)
        == Counter(tuple(map(cell, row)) for row in wanted[name].rows)
        for name in mine
    )
