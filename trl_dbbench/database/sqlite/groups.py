"""MySQL's ONLY_FULL_GROUP_BY: what is selected or sorted by must have a single value in each group.

A column has one if GROUP BY names it, if it equals a constant, or if it equals a column that has one. This
holds for tables without keys: a key in GROUP BY would determine the other columns of its table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from sqlglot import exp

from trl_dbbench.database.sqlite.checks import listing
from trl_dbbench.database.sqlite.names import sources
from trl_dbbench.database.sqlite.values import StatementError

E = TypeVar("E", bound=exp.Expr)

_INNER = (exp.AggFunc, exp.Window, exp.Query, exp.Subquery)
_MODE = "this is incompatible with sql_mode=only_full_group_by"

MAX_COMPARED_NODES = 100
"""Nodes of an expression that is compared with those in GROUP BY. Each of its parts is compared, which takes
time."""


def check_groups(tree: exp.Expr) -> None:
    """Raises StatementError for a column outside of aggregates that has several values in a group."""
    for select in tree.find_all(exp.Select):
        group = select.args.get("group")
        aggregated = any(True for each in select.expressions for _ in _outermost(each, exp.AggFunc))
        if (group is None and not aggregated) or (not aggregated and _is_listed(select)):
            continue
        single = _Single(select)
        parts = [("SELECT list", each.unalias()) for each in select.expressions]
        if group is not None:
            parts += [("ORDER BY clause", key) for key in _sort_keys(select)]
        places = {"SELECT list": 0, "ORDER BY clause": 0}
        for part, each in parts:
            places[part] += 1
            loose = next(single.loose(each), None)
            if loose is not None and group is not None:
                raise StatementError(
                    1055,
                    f"Expression #{places[part]} of {part} is not in GROUP BY clause and contains "
                    f"nonaggregated column '{loose}' which is not functionally dependent on columns in GROUP "
                    f"BY clause; {_MODE}",
                )
            if loose is not None:
                raise StatementError(
                    1140,
                    f"In aggregated query without GROUP BY, expression #{places[part]} of SELECT list "
                    f"contains nonaggregated column '{loose}'; {_MODE}",
                )


def check_distinct(tree: exp.Expr) -> None:
    """Raises StatementError for SELECT DISTINCT that sorts by a column that it does not select."""
    for select in tree.find_all(exp.Select):
        if not select.args.get("distinct") or _is_listed(select):
            continue
        selected = [each.unalias() for each in select.expressions]
        known = {_normal(each) for each in selected} - {None}
        for place, key in enumerate(_sort_keys(select), 1):
            if not isinstance(key, exp.Column) and _normal(key) in known:
                continue
            for column in _outermost(key, exp.Column):
                if not any(_same(column, each) for each in selected):
                    raise StatementError(
                        3065,
                        f"Expression #{place} of ORDER BY clause is not in SELECT list, references column "
                        f"'{_shown(column)}' which is not in SELECT list; this is incompatible with DISTINCT",
                    )


def _is_listed(select: exp.Select) -> bool:
    """Whether a query lists rows for IN or EXISTS: MySQL passes over its GROUP BY and ORDER BY."""
    return listing(select) is not None and not select.args.get("having")


def _sort_keys(select: exp.Select) -> Iterator[exp.Expr]:
    """What ORDER BY names, with NULL for places in the SELECT list and for aliases."""
    order = select.args.get("order")
    aliases = {each.alias.lower() for each in select.expressions if each.alias}
    for term in order.expressions if order is not None else []:
        key = term.this
        alias = isinstance(key, exp.Column) and not key.table and key.name.lower() in aliases
        yield exp.null() if alias or isinstance(key, exp.Literal) else key


class _Single:
    """What has a single value in each group of a query."""

    def __init__(self, select: exp.Select) -> None:
        self._sources = sources(select)
        self._columns: list[exp.Column] = []
        self._expressions: set[str | None] = set()
        aliases = {
            each.alias.lower(): each.this for each in select.expressions if isinstance(each, exp.Alias)
        }
        group = select.args.get("group")
        for key in group.expressions if group is not None else []:
            if isinstance(key, exp.Literal) and not key.is_string and key.name.isdigit():
                key = select.expressions[min(int(key.name), len(select.expressions)) - 1]
            key = key.unalias()
            self._add(key)
            if isinstance(key, exp.Column) and not key.table and key.name.lower() in aliases:
                self._add(aliases[key.name.lower()])
        self._follow(list(_equalities(select)))

    def loose(self, node: exp.Expr) -> Iterator[str]:
        """The columns in an expression, outside of aggregates, that may have several values."""
        if isinstance(node, exp.Anonymous) and node.name == "ANY_VALUE":
            return
        if isinstance(node, exp.Column | exp.Star):
            if not self._has(node):
                yield _shown(node)
        elif not isinstance(node, _INNER) and _normal(node) not in self._expressions:
            for child in node.iter_expressions():
                yield from self.loose(child)

    def _add(self, node: exp.Expr) -> None:
        if isinstance(node, exp.Column):
            self._columns.append(node)
        elif (written := _normal(node)) is not None:
            self._expressions.add(written)

    def _has(self, node: exp.Expr) -> bool:
        """Whether it is a column with a single value, such as one of a query around this one."""
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return False
        outer = bool(node.table) and node.table not in self._sources
        return outer or any(_same(node, each) for each in self._columns)

    def _follow(self, equalities: list[tuple[exp.Column, exp.Expr]]) -> None:
        """Adds the columns that equal a constant or another column with a single value."""
        found = True
        while found:
            found = False
            for column, other in equalities:
                if not self._has(column) and (_is_constant(other) or self._has(other)):
                    self._columns.append(column)
                    found = True


def _equalities(select: exp.Select) -> Iterator[tuple[exp.Column, exp.Expr]]:
    """The columns of which WHERE or ON says that they equal something."""
    where = select.args.get("where")
    conditions = [(where.this, None)] if where is not None else []
    for join in select.args.get("joins") or []:
        # of an outer join, the rows of one side remain whatever the condition says
        bound = {"LEFT": join.alias_or_name, "RIGHT": ""}.get(str(join.side).upper())
        conditions += [(join.args["on"], bound)] if join.args.get("on") else []
        for name in join.args.get("using") or []:
            yield exp.column(name.name), exp.column(name.name)
    for condition, bound in conditions:
        for each in (
            condition.unnest().flatten() if isinstance(condition.unnest(), exp.And) else [condition.unnest()]
        ):
            one = isinstance(each, exp.In) and len(each.expressions) == 1
            left, right = each.this, each.expressions[0] if one else each.args.get("expression")
            for column, other in ((left, right), (right, left)) if one or isinstance(each, exp.EQ) else ():
                if isinstance(column, exp.Column) and bound in (None, column.table):
                    yield column, other


def _is_constant(node: exp.Expr) -> bool:
    return node.find(exp.Column, exp.Query) is None


def _same(column: exp.Column, other: exp.Expr) -> bool:
    """Whether two columns may be the same, or the other is a star that stands for it as well."""
    if isinstance(other, exp.Star):
        return True
    return (
        isinstance(other, exp.Column)
        and (isinstance(other.this, exp.Star) or column.name.lower() == other.name.lower())
        and (not column.table or not other.table or column.table == other.table)
    )


def _outermost(node: exp.Expr, kind: type[E]) -> Iterator[E]:
    """The nodes of a kind in an expression, outside of aggregates and subqueries."""
    if isinstance(node, kind):
        yield node
    elif not isinstance(node, _INNER):
        for child in node.iter_expressions():
            yield from _outermost(child, kind)


def _normal(node: exp.Expr) -> str | None:
    """An expression in one fixed spelling; `None` for a very long one."""
    if next(islice(node.walk(), MAX_COMPARED_NODES, None), None) is not None:
        return None
    copy = node.copy()
    for column in copy.find_all(exp.Column):
        column.set("table", None)
        column.this.set("quoted", True)
    return copy.sql(dialect="mysql").lower()


def _shown(column: exp.Expr) -> str:
    return column.sql(dialect="mysql").replace("`", "")
