"""Gold by execution: a draft becomes a task only if no plausible wrong statement ends where its SQL does.

The gold SQL is run in the sandbox that agents get. Then every statement one slip away from it is run too: a
WHERE forgotten, one of its conditions left out, AND taken for OR, the order turned round, no LIMIT, MIN for
MAX. Where one of them gives the same answer or leaves the same table, the task would reward that slip, so it
is dropped. So are empty answers, orders with ties, and whatever the engines or the grader do not agree on.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any

import sqlglot
from sqlglot import exp

from trl_dbbench.database import Sandbox
from trl_dbbench.grading.states import state_hash
from trl_dbbench.tasks import Gold, Table

MOST_ROWS = 12
"""An answer of more rows is work for a typist."""

_EDITS = {exp.Max: exp.Min, exp.Min: exp.Max, exp.Sum: exp.Max, exp.Avg: exp.Sum}
# The grader cuts at commas and parentheses, quoted or not; a date is an object on MySQL and a text elsewhere.
_UNSAFE_TEXT = re.compile(r"[,()\[\]\\]|'.*\"|\".*'|^\s|\s$|^$|^\d{4}-\d\d-\d\d$|^None$")
# Collations agree on the order of these.
_SORTABLE = re.compile(r"[A-Za-z0-9 ]+")


def gold_answer(sandbox: Sandbox, sql: str) -> Gold | None:
    """The answer of a question's SQL, or `None` if it does not make a fair task."""
    rows = sandbox.execute(sql).rows
    if not rows or len(rows) > MOST_ROWS or all(cell is None for row in rows for cell in row):
        return None
    tree = sqlglot.parse_one(sql, dialect="mysql")
    if len(rows) > 1 and not tree.args.get("order"):
        return None  # engines may differ in the order of the rows, and the grader minds it
    if not all(_safe(cell) for row in rows for cell in row):
        return None
    if _has_ties(sandbox, tree) or _rounds_a_tie(sandbox, tree):
        return None
    if any(sandbox.execute(wrong).rows == rows for wrong in wrong_statements(tree)):
        return None
    return Gold(answer=tuple(tuple(map(_plain, row)) for row in rows), sql=sql)


def gold_state(sandbox: Sandbox, sql: str, table: Table) -> Gold | None:
    """The hash of the table that a change leaves, or `None` if it does not make a fair task."""
    tree = sqlglot.parse_one(sql, dialect="mysql")
    after = _state_after(sandbox, sql, table)
    if not after or after == Counter(sandbox.state()[table.name].rows) or _has_ties(sandbox, tree):
        return None
    if any(_state_after(sandbox, wrong, table) == after for wrong in wrong_statements(tree)):
        return None
    return Gold(sql=sql, state_md5=state_hash(after.elements()))


def _state_after(sandbox: Sandbox, sql: str, table: Table) -> Counter[tuple] | None:
    """The rows that `sql` leaves, taken back at once; `None` if it fails."""
    sandbox.execute("BEGIN")
    failed = sandbox.execute(sql).error is not None
    rows = None if failed else Counter(sandbox.state()[table.name].rows)
    sandbox.execute("ROLLBACK")
    return rows


# --- statements one slip away --------------------------------------------------------------------


def wrong_statements(tree: exp.Expr) -> Iterator[str]:
    """Each statement that one slip makes of `tree`; every clause of it is once left out or turned round."""
    for place, node in enumerate(tree.walk()):
        for slip in _slips(node):
            copy = tree.copy()
            slip(next(islice(copy.walk(), place, None)))
            yield copy.sql(dialect="mysql", copy=False)


def _slips(node: exp.Expr) -> Iterator[Callable[[Any], Any]]:
    if isinstance(node, exp.Where | exp.Having | exp.Offset | exp.Distinct):
        yield lambda node: node.pop()
    elif isinstance(node, exp.Limit):
        yield _without_limit
    elif isinstance(node, exp.And | exp.Or):
        other = exp.Or if isinstance(node, exp.And) else exp.And
        yield lambda node: node.replace(node.left.copy())
        yield lambda node: node.replace(node.right.copy())
        yield lambda node: node.replace(other(this=node.left.copy(), expression=node.right.copy()))
    elif isinstance(node, exp.Ordered):
        yield _turn_round
    elif type(node) in _EDITS:
        yield lambda node: node.replace(_EDITS[type(node)](this=node.this.copy()))
    elif isinstance(node, exp.Update) and len(node.expressions) > 1:
        for index in range(len(node.expressions)):
            yield partial(_without_assignment, index)


def _without_assignment(index: int, update: exp.Update) -> None:
    update.expressions[index].pop()


def _without_limit(limit: exp.Limit) -> None:
    query = limit.parent
    limit.pop()
    if offset := query and query.args.get("offset"):  # MySQL has no OFFSET without LIMIT
        offset.pop()


def _turn_round(term: exp.Ordered) -> None:
    descending = not term.args.get("desc")
    # said as MySQL does it by itself, so that nothing is written of where NULLs go
    term.replace(exp.Ordered(this=term.this.copy(), desc=descending, nulls_first=not descending))


# --- what engines or graders do not agree on -----------------------------------------------------


def _has_ties(sandbox: Sandbox, tree: exp.Expr) -> bool:
    """Whether an ORDER BY leaves open which row comes first, or orders texts that collations differ on."""
    for order in tree.find_all(exp.Order):
        query = order.parent
        assert query is not None
        keys = _keys(query, order)
        clauses = {
            name: query.args[name] for name in ("where", "group", "having", "order") if query.args.get(name)
        }
        source = query.args.get("from_") or exp.From(this=query.this)
        rows = sandbox.execute(
            exp.Select(expressions=keys, from_=source, distinct=query.args.get("distinct"), **clauses)
            .copy()
            .sql(dialect="mysql")
        ).rows
        if rows is None or any(None in row for row in rows):
            return True  # no question says where NULLs go
        if limit := query.args.get("limit"):
            offset = query.args.get("offset")
            # the row after the last one counts: a tie there leaves open which of the two is cut
            rows = rows[: int(limit.expression.name) + (int(offset.expression.name) if offset else 0) + 1]
        folded = [tuple(cell.lower() if isinstance(cell, str) else cell for cell in row) for row in rows]
        if len(set(folded)) < len(folded):
            return True
        if any(isinstance(cell, str) and not _SORTABLE.fullmatch(cell) for row in rows for cell in row):
            return True
    return False


def _keys(query: exp.Expr, order: exp.Order) -> list[exp.Expr]:
    """What the rows are ordered by, with column aliases written out."""
    named = {each.alias: each.this for each in query.expressions if isinstance(each, exp.Alias)}
    return [named.get(term.this.name, term.this).copy() for term in order.expressions]


def _rounds_a_tie(sandbox: Sandbox, tree: exp.Expr) -> bool:
    """Whether a rounded value lies so close to a tie that exact and binary arithmetic may part ways."""
    places = {int(node.args["decimals"].name) for node in tree.find_all(exp.Round)}
    if not places:
        return False
    exact = tree.transform(lambda node: node.this if isinstance(node, exp.Round) else node)
    rows = sandbox.execute(exact.sql(dialect="mysql")).rows or []
    scale = 10 ** max(places)
    return any(
        abs(abs(float(cell)) * scale % 1 - 0.5) < 0.006  # MySQL's AVG of integers has four places
        for row in rows
        for cell in row
        if isinstance(cell, float | Decimal)
    )


def _safe(cell: Any) -> bool:
    if isinstance(cell, str):
        return not _UNSAFE_TEXT.search(cell)
    return not isinstance(cell, datetime.date | datetime.timedelta | bytes)


def _plain(cell: Any) -> Any:
    """As JSON holds it: whole numbers as such, whatever type the engine computed them in."""
    if isinstance(cell, float | Decimal):
        number = round(float(cell), 6)
        return int(number) if number.is_integer() else number
    return cell
