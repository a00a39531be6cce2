"""The statements that one slip makes of a gold statement: what an agent may write that is not asked for.

Beside those that task generation goes by (a WHERE forgotten, AND taken for OR, MIN for MAX, ...) here are
slips whose effect only some databases can show: `<` for `<=`, another column of the same
kind, a LEFT JOIN for a JOIN, a DISTINCT too many or too few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from sqlglot import exp

from trl_dbbench.data.generate.slips import BOUNDS, Slip, each_changed, move_bound, wrong_statements
from trl_dbbench.tasks import Table, Task
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS, only_statement

MAX_SLIPS = 80
"""Slips of one statement; a query that fills a page would have thousands."""

OTHER_COLUMNS = 3
"""Other columns tried in the place of each column."""

_NUMBERS = ("INT", "DEC", "NUM", "REAL", "FLOA", "DOUB", "BOOL", "BIT")
_DATES = ("DATE", "TIME", "YEAR")


def slips_of(task: Task) -> list[str]:
    """Return the statements that differ from the task's gold SQL by one slip; none if it cannot be read."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    if tree is None:
        return []
    own = tree.sql(dialect=task.dialect)
    columns = _columns_of(tree, task.tables)
    found: dict[str, None] = {}
    for sql in chain(
        wrong_statements(tree, dialect=task.dialect),
        each_changed(tree, partial(_slips, columns=columns), task.dialect),
    ):
        if sql != own and len(sql) <= MAX_STATEMENT_CHARACTERS:
            found[sql] = None
        if len(found) == MAX_SLIPS:
            break
    return list(found)


def _slips(node: exp.Expr, columns: Mapping[str, Sequence[str]]) -> Iterator[Slip]:
    if type(node) in BOUNDS and _may_be_equal(node):
        yield move_bound
    elif isinstance(node, exp.Between):
        yield _without_the_ends
    elif isinstance(node, exp.Join) and node.args.get("on") is not None and not node.args.get("kind"):
        side = node.args.get("side") or ""
        if side in ("", "LEFT"):
            yield lambda node: node.set("side", "" if side else "LEFT")
    elif isinstance(node, exp.Count) and isinstance(node.this, exp.Distinct):
        yield lambda node: node.set("this", node.this.expressions[0].copy())
    elif isinstance(node, exp.Count) and isinstance(node.this, exp.Column):
        yield lambda node: node.set("this", exp.Distinct(expressions=[node.this.copy()]))
    elif isinstance(node, exp.Union | exp.Intersect | exp.Except):
        yield lambda node: node.set("distinct", not node.args.get("distinct"))
    elif isinstance(node, exp.In) and len(node.expressions) > 1:
        yield lambda node: node.expressions[-1].pop()
    elif isinstance(node, exp.Not):
        yield lambda node: node.replace(node.this.copy())
    elif isinstance(node, exp.Column) and not isinstance(node.parent, exp.Count):
        others = [name for name in columns.get(node.name.lower(), ()) if not _is_set(node, name)]
        for name in others[:OTHER_COLUMNS]:
            yield partial(_with_name, name)


def _with_name(name: str, column: exp.Column) -> None:
    column.this.replace(exp.to_identifier(name, quoted=True))


def _may_be_equal(comparison: exp.Expr) -> bool:
    """Return whether a value that is there may lie on the boundary. A computed one, such as a mean, hardly
    does."""
    value = comparison.this.unalias()
    if isinstance(value, exp.Min | exp.Max | exp.Sum | exp.Count):
        value = value.this
    return isinstance(value, exp.Column | exp.Star) and isinstance(comparison.expression, exp.Literal)


def _is_set(column: exp.Column, other: str) -> bool:
    """Return whether an UPDATE sets both columns: no server does so twice."""
    update = column.find_ancestor(exp.Update)
    set_ = [each.this.name.lower() for each in update.expressions] if update is not None else []
    return column.name.lower() in set_ and column.arg_key == "this" and other.lower() in set_


def _without_the_ends(between: exp.Between) -> None:
    value = between.this
    above = exp.GT(this=value.copy(), expression=between.args["low"].copy())
    below = exp.LT(this=value.copy(), expression=between.args["high"].copy())
    between.replace(exp.Paren(this=exp.And(this=above, expression=below)))


def _columns_of(tree: exp.Expr, tables: Sequence[Table]) -> dict[str, list[str]]:
    """For each column, in lower case, others of its table and kind that may be taken for it."""
    used = {table.name.lower() for table in tree.find_all(exp.Table)}
    found: dict[str, list[str]] = {}
    for table in tables:
        if table.name.lower() not in used:
            continue
        for column in table.columns:
            others = [
                other.name
                for other in table.columns
                if other.name != column.name and _kind(other.type) == _kind(column.type)
            ]
            found.setdefault(column.name.lower(), []).extend(others)
    return found


def _kind(type: str) -> str:
    start = type.strip().upper()
    if any(word in start for word in _DATES):
        return "date"
    return "number" if any(word in start for word in _NUMBERS) else "text"
