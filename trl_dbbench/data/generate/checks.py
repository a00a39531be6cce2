"""Gold by execution: a draft becomes a task only if no plausible wrong statement has the same result.

The gold SQL is run in the sandbox that agents get, and so is every statement one slip away from it
(`slips.py`). If one of these gives the same answer or leaves the same table, the task would reward that slip,
so it is dropped. So are empty answers, orders with ties, and results on which engines or graders disagree.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import sqlglot
from sqlglot import exp

from trl_dbbench.data.generate.slips import wrong_statements
from trl_dbbench.database import Limits, Sandbox
from trl_dbbench.grading.states import state_hash
from trl_dbbench.tasks import Gold, Table

PATIENT = Limits(seconds=60.0)
"""Limits for drafts, looser than an agent's, so that a machine that is busy for seconds changes no task."""

MOST_ROWS = 12
"""Largest number of rows in an answer; a longer one only tests patience."""

# The grader splits at commas and parentheses, quoted or not; a date is an object on MySQL, a text elsewhere.
_UNSAFE_TEXT = re.compile(r"[,()\[\]\\]|'.*\"|\".*'|^\s|\s$|^$|^\d{4}-\d\d-\d\d$|^None$")
# Texts on whose order all collations agree.
_SORTABLE = re.compile(r"[A-Za-z0-9 ]+")


def gold_answer(sandbox: Sandbox, sql: str, tables: Sequence[Table] = ()) -> Gold | None:
    """Return a question's gold, or `None` if it is unfair; `tables` adds the slips over several tables."""
    rows = sandbox.execute(sql).rows
    if not rows or len(rows) > MOST_ROWS or all(cell is None for row in rows for cell in row):
        return None
    tree = sqlglot.parse_one(sql, dialect="mysql")
    if len(rows) > 1 and not tree.args.get("order"):
        return None  # engines may differ in the order of the rows, which the grader compares
    if not all(_safe(cell) for row in rows for cell in row):
        return None
    if _has_ties(sandbox, tree) or _rounds_a_tie(sandbox, tree):
        return None
    if any(sandbox.execute(wrong).rows == rows for wrong in wrong_statements(tree, tables)):
        return None
    return Gold(answer=tuple(tuple(map(plain, row)) for row in rows), sql=sql)


def gold_state(sandbox: Sandbox, sql: str, table: Table) -> Gold | None:
    """Return a change's gold, with the hash of the table that it leaves, or `None` if it is unfair."""
    tree = sqlglot.parse_one(sql, dialect="mysql")
    after = _state_after(sandbox, sql, table)
    if not after or after == Counter(sandbox.state()[table.name].rows) or _has_ties(sandbox, tree):
        return None
    if any(_state_after(sandbox, wrong, table) == after for wrong in wrong_statements(tree)):
        return None
    return Gold(sql=sql, state_md5=state_hash(after.elements()))


def _state_after(sandbox: Sandbox, sql: str, table: Table) -> Counter[tuple] | None:
    """Return the rows that `sql` leaves, `None` if it fails; it is rolled back at once."""
    sandbox.execute("BEGIN")
    failed = sandbox.execute(sql).error is not None
    rows = None if failed else Counter(sandbox.state()[table.name].rows)
    sandbox.execute("ROLLBACK")
    return rows


# --- results on which engines or graders disagree ------------------------------------------------


def _has_ties(sandbox: Sandbox, tree: exp.Expr) -> bool:
    """Return whether an ORDER BY leaves rows tied, or sorts texts that collations sort differently."""
    for order in tree.find_all(exp.Order):
        query = order.parent
        assert query is not None
        rows = sandbox.execute(_ordered_by(tree, order).sql(dialect="mysql")).rows
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


def _ordered_by(tree: exp.Expr, order: exp.Order) -> exp.Expr:
    """Return a query for the sort keys of all rows that an ORDER BY, in a query or a window, orders."""
    owner = order.parent
    assert owner is not None
    if isinstance(owner, exp.SetOperation):
        rows = owner.copy()
        rows.args["order"].pop()
        keys = [term.this.copy() for term in order.expressions]
        return exp.select(*keys).from_(rows.subquery("t"))
    query = owner.find_ancestor(exp.Select) if isinstance(owner, exp.Window) else owner
    assert query is not None
    kept = {name: query.args[name] for name in _ROWS_OF if query.args.get(name)}
    kept["from_"] = query.args.get("from_") or exp.From(this=query.this)
    if owner is query:
        kept["order"] = order
    keys = [each.copy() for each in owner.args.get("partition_by") or ()] + _keys(query, order)
    if with_ := tree.args.get("with_"):
        kept["with_"] = with_
    # copies, as a node that joins a new query loses its old parent
    copies = {
        name: [each.copy() for each in part] if isinstance(part, list) else part.copy()
        for name, part in kept.items()
    }
    return exp.Select(expressions=keys, **copies)


_ROWS_OF = ("joins", "where", "group", "having", "distinct")
"""The clauses that decide which rows a query orders."""


def _keys(query: exp.Expr, order: exp.Order) -> list[exp.Expr]:
    """Return the expressions that the rows are ordered by, with column aliases resolved."""
    named = {each.alias: each.this for each in query.expressions if isinstance(each, exp.Alias)}
    return [named.get(term.this.name, term.this).copy() for term in order.expressions]


def _rounds_a_tie(sandbox: Sandbox, tree: exp.Expr) -> bool:
    """Return whether a rounded value is so near a tie that exact and binary arithmetic may differ."""
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


def plain(cell: Any) -> Any:
    """Return a cell as JSON holds it: whole numbers as integers, whatever type the engine computed."""
    if isinstance(cell, float | Decimal):
        number = round(float(cell), 6)
        return int(number) if number.is_integer() else number
    return cell
