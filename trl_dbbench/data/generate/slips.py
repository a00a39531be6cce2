"""Statements one slip away from the gold SQL, which must give other results for a task to be fair.

Each clause is left out or changed in turn: no WHERE, one of its conditions missing, AND for OR, the order
reversed, no LIMIT, MIN for MAX. Over several tables there are more slips:

- an inner join for an outer one and vice versa, where that can make a difference;
- another column of the same type, or the same column of the other copy in a self join;
- `<` for `<=`; UNION for UNION ALL; one set operation for another, or one half of it alone; EXCEPT with its
  halves swapped;
- no PARTITION BY; COUNT(*) for COUNT(column).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from sqlglot import exp

from trl_dbbench.tasks import Table

Slip = Callable[[Any], Any]

_EDITS = {exp.Max: exp.Min, exp.Min: exp.Max, exp.Sum: exp.Max, exp.Avg: exp.Sum}
BOUNDS: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.GTE,
    exp.GTE: exp.GT,
    exp.LT: exp.LTE,
    exp.LTE: exp.LT,
}
"""Comparison -> the one that differs from it only at the boundary."""
_SETS = (exp.Union, exp.Intersect, exp.Except)


def wrong_statements(tree: exp.Expr, tables: Sequence[Table] = (), dialect: str = "mysql") -> Iterator[str]:
    """Yield each statement that differs from `tree` by one slip.

    Args:
        tables: adds the slips over several tables; for statements of `forms.txt` only.
        dialect: dialect of the statements.
    """

    def slips(node: exp.Expr) -> Iterator[Slip]:
        yield from _slips(node)
        if tables:
            yield from _slips_of_joins(node, tables)

    return each_changed(tree, slips, dialect)


def each_changed(tree: exp.Expr, slips: Callable[[exp.Expr], Iterator[Slip]], dialect: str) -> Iterator[str]:
    """Yield the statements that differ from `tree` by one slip at one of its nodes."""
    for place, node in enumerate(tree.walk()):
        for slip in slips(node):
            copy = tree.copy()
            changed = next(islice(copy.walk(), place, None))
            made = slip(changed)
            # a slip that replaces the whole statement has no parent to change
            whole = made if changed is copy and isinstance(made, exp.Expr) else copy
            yield whole.sql(dialect=dialect, copy=False)


def _slips(node: exp.Expr) -> Iterator[Slip]:
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
    # `nulls_first` as MySQL sorts by default, so that sqlglot writes nothing about NULLs
    desc = descending or None  # `False` would be written as ASC
    term.replace(exp.Ordered(this=term.this.copy(), desc=desc, nulls_first=not descending))


# --- over several tables --------------------------------------------------------------------------


def _slips_of_joins(node: exp.Expr, tables: Sequence[Table]) -> Iterator[Slip]:
    if isinstance(node, exp.Join):
        if node.side:
            yield lambda join: join.set("side", None)
        elif _can_be_outer(node, tables):
            yield lambda join: join.set("side", "LEFT")
    elif isinstance(node, exp.Column):
        for table, column in _mistaken_for(node, tables):
            yield partial(exp.Expression.replace, expression=exp.column(column, table or None))
    elif type(node) in BOUNDS and _bound_counts(node, tables):
        yield move_bound
    elif isinstance(node, exp.SetOperation):
        yield from _slips_of_sets(node)
    elif isinstance(node, exp.Window) and node.args.get("partition_by"):
        yield lambda window: window.set("partition_by", None)
    elif isinstance(node, exp.Count) and isinstance(node.this, exp.Column):
        yield lambda count: count.set("this", exp.Star())


def move_bound(comparison: exp.Expr) -> exp.Expr:
    """Replace a comparison by the one that includes the boundary instead of excluding it, or vice versa."""
    other = BOUNDS[type(comparison)]
    return comparison.replace(other(this=comparison.this.copy(), expression=comparison.expression.copy()))


def _slips_of_sets(node: exp.SetOperation) -> Iterator[Slip]:
    if _in_recursion(node):
        return  # where all rows differ, as in a hierarchy, UNION and UNION ALL give the same
    for other in _SETS:
        if not isinstance(node, other):
            yield partial(_as_other, other)
    if isinstance(node, exp.Union):
        yield lambda union: union.set("distinct", not union.args.get("distinct"))
    if isinstance(node, exp.Except):
        yield _swap
    for side in ("this", "expression"):
        yield partial(_only, side)


def _in_recursion(node: exp.Expr) -> bool:
    with_ = node.find_ancestor(exp.With)
    return with_ is not None and with_.recursive


def _as_other(other: type[exp.SetOperation], node: exp.SetOperation) -> exp.Expr:
    parts = {name: value for name, value in node.copy().args.items() if value is not None}
    return node.replace(other(**parts | {"distinct": True}))


def _only(side: str, node: exp.SetOperation) -> exp.Expr:
    """Replace a set operation by one of its two queries, with DISTINCT."""
    query = node.args[side].copy()
    query.set("distinct", exp.Distinct())
    query.set("order", node.args.get("order") and node.args["order"].copy())
    return node.replace(query)


def _swap(node: exp.Except) -> None:
    left, right = node.this.copy(), node.expression.copy()
    node.set("this", right)
    node.set("expression", left)


def _bound_counts(node: exp.Expr, tables: Sequence[Table]) -> bool:
    """Return whether `<` and `<=` may give other rows: in comparisons with a literal, or of two keys.

    Other columns and averages are seldom equal, so a few rows cannot show a difference.
    """
    sides = (node.args["this"], node.args["expression"])
    keys = {table.columns[0].name for table in tables}
    return any(isinstance(side, exp.Literal) for side in sides) or all(side.name in keys for side in sides)


def _can_be_outer(join: exp.Join, tables: Sequence[Table]) -> bool:
    """Return whether a LEFT JOIN instead of this join could give other rows.

    It could not if a condition needs the joined table, or if each row before it has a partner, because its
    foreign key is among the keys there. It is not tried either if HAVING or an enclosing query filters the
    rows, as that may drop those without a partner.
    """
    select = join.parent
    assert isinstance(select, exp.Select)
    if select.args.get("having") or select.find_ancestor(exp.CTE, exp.Subquery) is not None:
        return False
    alias, joins = join.alias_or_name, select.args["joins"]
    later = joins[joins.index(join) + 1 :]
    needs = [select.args.get("where"), *(each.args.get("on") for each in later)]
    for condition in filter(None, needs):
        columns = condition.find_all(exp.Column)
        if any(alias in (column.table, _home(column, tables)[0]) for column in columns):
            return False
    return not _has_partners(join, select, tables)


def _has_partners(join: exp.Join, select: exp.Select, tables: Sequence[Table]) -> bool:
    by_name = {table.name: table for table in tables}
    table = by_name.get(join.this.name)
    if table is None:
        return False
    key = foreign_key = table.columns[0].name
    if using := join.args.get("using"):
        if using[0].name != key:
            return False
        before = [by_name.get(each.name) for each in _sources(select) if each is not join.this]
        other = next((each for each in before if each is not None and key in _names(each)), None)
    else:
        on = join.args["on"].find(exp.EQ)
        pair = [(*_home(side, tables), side.name) for side in (on.this, on.expression)]
        if (join.alias_or_name, key) not in [(alias, name) for alias, _, name in pair]:
            return False
        _, other, foreign_key = next(each for each in pair if each[0] != join.alias_or_name)
    return other is not None and _cells(other, foreign_key) <= _cells(table, key)


def _cells(table: Table, column: str) -> set[Any]:
    place = _names(table).index(column)
    return {row[place] for row in table.rows}


def _names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _sources(select: exp.Select) -> list[exp.Expr]:
    first = select.args.get("from_")
    return [each.this for each in (first, *select.args.get("joins", ())) if each is not None]


def _home(column: exp.Expr, tables: Sequence[Table]) -> tuple[str, Table | None]:
    """Return the alias or name of a column's table, and the table; `""` and `None` if unknown."""
    by_name = {table.name: table for table in tables}
    select = column.find_ancestor(exp.Select)
    while select is not None:
        for source in _sources(select):
            table = by_name.get(source.name) if isinstance(source, exp.Table) else None
            if table is None or column.name not in _names(table):
                continue
            if column.text("table") in ("", source.alias_or_name):
                return source.alias_or_name, table
        select = select.find_ancestor(exp.Select)
    return "", None


def _mistaken_for(column: exp.Column, tables: Sequence[Table]) -> Iterator[tuple[str, str]]:
    """Yield (table, column) for columns of the same type that it would be a mistake to use instead."""
    if isinstance(column.parent, exp.Count | exp.Is | exp.Group):
        return  # another column that is never NULL, or that forms the same groups, is as good
    if _in_recursion(column):
        return  # the recursion might never end
    alias, table = _home(column, tables)
    if table is None:
        return
    types = {each.name: each.type.split("(")[0] for each in table.columns}
    qualifier = column.text("table")
    yield from (
        (qualifier, name) for name in types if name != column.name and types[name] == types[column.name]
    )
    select = column.find_ancestor(exp.Select)
    assert select is not None
    if isinstance(column.parent, exp.Select):  # in a comparison both sides would be the same
        copies = [each.alias_or_name for each in _sources(select) if each.name == table.name]
        yield from ((each, column.name) for each in copies if each != alias)
