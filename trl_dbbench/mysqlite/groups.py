"""MySQL's ONLY_FULL_GROUP_BY: what is selected or sorted by must have a single value in each group.

A column has one if GROUP BY names it, if it equals a constant, if it equals a column that has one, or if the
primary key of its table has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from sqlglot import exp

from trl_dbbench.mysqlite.aggregates import AGGREGATES
from trl_dbbench.mysqlite.checks import listing
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.kinds import TableColumns
from trl_dbbench.mysqlite.names import named, parts, sources
from trl_dbbench.mysqlite.parse import text_of

E = TypeVar("E", bound=exp.Expr)

_INNER = (exp.AggFunc, exp.Window, exp.Query, exp.Subquery)
_MODE = "this is incompatible with sql_mode=only_full_group_by"

MAX_COMPARED_NODES = 100
"""Nodes of an expression that is compared with those in GROUP BY. Each of its parts is compared, which takes
time."""


def check_groups(tree: exp.Expr, tables: Sequence[TableColumns] = ()) -> None:
    """Raises StatementError for a column outside of aggregates that has several values in a group.

    Args:
        tables: those that the statement names, with their keys.
    """
    selects = list(tree.find_all(exp.Select))
    for select in selects:
        _check_having(select, tables)
    for select in selects:
        group, having = select.args.get("group"), select.args.get("having")
        shown = [*select.expressions, *([having] if having is not None else [])]
        aggregated = any(map(_is_aggregated, shown))
        if (group is None and not aggregated) or (not aggregated and _is_listed(select)):
            continue
        single = _Single(select, tables)
        certain = _Single(select, tables, follow=False) if _has_constant_condition(select) else single
        for query in _outermost(having, exp.Query) if having is not None else ():
            if next(single.inside(query), None) is not None:
                raise unsupported("a column of no single value in a subquery of HAVING")
        clauses = [("SELECT list", each.unalias()) for each in select.expressions]
        if group is not None:
            clauses += [("ORDER BY clause", key) for key in _sort_keys(select)]
        places = {"SELECT list": 0, "ORDER BY clause": 0}
        for part, each in clauses:
            places[part] += 1
            loose = next(single.loose(each), None)
            if loose is None and certain is not single and next(certain.loose(each), None) is not None:
                raise unsupported("columns that depend on others, beside a constant condition")
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


def _check_having(select: exp.Select, tables: Sequence[TableColumns]) -> None:
    """Raises StatementError for a column in HAVING that neither SELECT nor GROUP BY has."""
    having = select.args.get("having")
    if having is None:
        return
    group, own, known = select.args.get("group"), sources(select), _column_names(select, tables)
    had = [each.unalias() for each in select.expressions] + (group.expressions if group is not None else [])
    aliases = {each.alias.lower() for each in select.expressions if each.alias}
    for column in _outermost(having, exp.Column):
        outer = column.table not in own if column.table else column.name.lower() not in known
        listed = not column.table and column.name.lower() in aliases
        if not outer and not listed and not any(_same(column, each) for each in had):
            raise StatementError(1054, f"Unknown column '{_shown(column)}' in 'having clause'")


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


_AGGREGATES = frozenset({*AGGREGATES, "ANY_VALUE"})


def _folds(node: exp.Expr) -> bool:
    """Whether it is a call, as no class of sqlglot's, of what makes one value of a group's rows."""
    return isinstance(node, exp.Anonymous) and node.name.upper() in _AGGREGATES


def _is_aggregated(node: exp.Expr) -> bool:
    """Whether an aggregate stands in an expression, outside of subqueries; that of a window is none."""
    if isinstance(node, exp.Window):
        return any(map(_is_aggregated, [*node.this.iter_expressions(), *list(node.iter_expressions())[1:]]))
    if isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and node.name.upper() in AGGREGATES):
        return True
    return not isinstance(node, _INNER) and any(map(_is_aggregated, node.iter_expressions()))


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

    def __init__(self, select: exp.Select, tables: Sequence[TableColumns], follow: bool = True) -> None:
        self._sources = sources(select)
        self._keyed = list(_keyed(select, tables))
        self._columns: list[exp.Column] = []
        self._expressions: list[_Written] = []
        aliases = named(select)
        group, known = select.args.get("group"), _column_names(select, tables)
        for key in group.expressions if group is not None else []:
            if isinstance(key, exp.Literal) and not key.is_string and key.name.isdigit():
                key = select.expressions[min(int(key.name), len(select.expressions)) - 1]
            key = _bare(key.unalias())
            self._add(key)
            alias = isinstance(key, exp.Column) and not key.table and key.name.lower() in aliases
            if alias and key.name.lower() not in known:  # a column goes before an alias
                self._add(_bare(aliases[key.name.lower()]))
        self._follow(list(_equalities(select)) if follow else [])

    def loose(self, node: exp.Expr) -> Iterator[str]:
        """The columns in an expression, outside of aggregates, that may have several values.

        MySQL knows an expression of GROUP BY as a whole only, and not within another.
        """
        if not self._is_key(_bare(node)):
            yield from self._loose(node)

    def _loose(self, node: exp.Expr) -> Iterator[str]:
        if _folds(node):
            return
        if isinstance(node, exp.Anonymous) and node.name.upper() in ("TIMESTAMPDIFF", "TIMESTAMPADD"):
            for child in node.expressions[1:]:  # the first is a unit, and no column
                yield from self._loose(child)
        elif isinstance(node, exp.Column | exp.Star):
            of_rows = isinstance(node, exp.Star) and isinstance(node.parent, exp.Count)
            if not of_rows and not self._has(node):
                yield _shown(node)
        elif isinstance(node, exp.Window):
            for argument in node.this.iter_expressions():
                yield from self._loose(argument)
            for key in list(node.iter_expressions())[1:]:
                yield from self.loose(key)
        elif isinstance(node, exp.Ordered):
            yield from self.loose(node.this)
        elif isinstance(node, exp.Query | exp.Subquery):
            yield from self.inside(node)
        elif not isinstance(node, _INNER):
            for child in node.iter_expressions():
                yield from self._loose(child)

    def inside(self, query: exp.Expr) -> Iterator[str]:
        """The columns of this query that a subquery names."""
        inner = {each.alias_or_name for each in query.find_all(exp.Table, exp.Subquery)}
        for column in query.find_all(exp.Column):
            own = column.find_ancestor(exp.Select)
            outer = not column.table and own is query.unnest() and own.args.get("from_") is None
            outer = outer or (bool(column.table) and column.table in self._sources - inner)
            if outer and not self._has(column):
                yield _shown(column)

    def _add(self, node: exp.Expr) -> None:
        if isinstance(node, exp.Column):
            self._columns.append(node)
        elif (written := _normal(node)) is not None:
            self._expressions.append(written)

    def _is_key(self, node: exp.Expr) -> bool:
        """Whether the query is grouped by this expression."""
        written = _normal(node) if self._expressions else None
        return written is not None and any(map(written.may_be, self._expressions))

    def _has(self, node: exp.Expr) -> bool:
        """Whether it is a column with a single value, such as one of a query around this one."""
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return False
        outer = bool(node.table) and node.table not in self._sources
        return (
            outer
            or self._is_named(node)
            or any(
                each.is_of(node) and all(self._is_named(exp.column(part, each.alias)) for part in each.key)
                for each in self._keyed
            )
        )

    def _is_named(self, column: exp.Column) -> bool:
        return any(_same(column, each) for each in self._columns)

    def _follow(self, equalities: list[tuple[exp.Column, exp.Expr]]) -> None:
        """Adds the columns that equal a constant or another column with a single value."""
        found = True
        while found:
            found = False
            for column, other in equalities:
                if not self._has(column) and (_is_constant(other) or self._has(other)):
                    self._columns.append(column)
                    found = True


def _bare(node: exp.Expr) -> exp.Expr:
    """An expression without brackets; one in a subquery without a table is the same to MySQL."""
    inner = node.unnest()
    while isinstance(inner, exp.Select) and len(inner.expressions) == 1 and _has_no_table(inner):
        inner = inner.expressions[0].unalias().unnest()
    return node if isinstance(inner, exp.Query) else inner


def _has_no_table(select: exp.Select) -> bool:
    return all(isinstance(each, exp.Table) and each.name.upper() == "DUAL" for each in parts(select))


@dataclass(frozen=True)
class _Keyed:
    """A table with a primary key, as a query names it."""

    alias: str
    columns: frozenset[str]
    key: tuple[str, ...]

    def is_of(self, column: exp.Column) -> bool:
        return column.table == self.alias if column.table else column.name.lower() in self.columns


def _column_names(select: exp.Select, tables: Sequence[TableColumns]) -> set[str]:
    """The columns that a query can name, in lower case."""
    known = {table.name: [name for name, _ in table.columns] for table in tables}
    found: set[str] = set()
    for source in parts(select):
        names = known.get(source.name, []) if isinstance(source, exp.Table) else []
        if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Query):
            names = source.this.named_selects
        found.update(name.lower() for name in names)
    return found


def _keyed(select: exp.Select, tables: Sequence[TableColumns]) -> Iterator[_Keyed]:
    known = {table.name: table for table in tables if table.key}
    for source in parts(select):
        if isinstance(source, exp.Table) and (table := known.get(source.name)) is not None:
            names = frozenset(name.lower() for name, _ in table.columns)
            yield _Keyed(source.alias_or_name, names, table.key)


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


def _has_constant_condition(select: exp.Select) -> bool:
    """Whether WHERE or ON holds a constant, which may be false: then MySQL forgets what else they say."""
    where = select.args.get("where")
    conditions = [where.this] if where is not None else []
    conditions += [join.args["on"] for join in select.args.get("joins") or [] if join.args.get("on")]
    for condition in conditions:
        terms = condition.flatten() if isinstance(condition, exp.And) else [condition]
        if any(_is_constant(term) and text_of(term) not in ("1", "TRUE", "1 = 1") for term in terms):
            return True
    return False


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
    elif not (isinstance(node, _INNER) or _folds(node)):
        for child in node.iter_expressions():
            yield from _outermost(child, kind)


@dataclass(frozen=True)
class _Written:
    """An expression in one fixed spelling without the tables of its columns, and these, perhaps empty."""

    text: str
    tables: tuple[str, ...]

    def may_be(self, other: _Written) -> bool:
        """Whether both are the same where a column without a table is of the one that the other names."""
        pairs = zip(self.tables, other.tables, strict=True) if self.text == other.text else [("a", "b")]
        return all(one == another or not one or not another for one, another in pairs)


def _normal(node: exp.Expr) -> _Written | None:
    """`None` for a very long one."""
    if next(islice(node.walk(), MAX_COMPARED_NODES, None), None) is not None:
        return None
    copy, of_tables = node.copy(), []
    for column in copy.find_all(exp.Column):
        of_tables.append(column.table)
        column.set("table", None)
        column.this.set("quoted", True)
    return _Written(text_of(copy).lower(), tuple(of_tables))


def _shown(column: exp.Expr) -> str:
    return text_of(column).replace("`", "")
