"""Checks for statements that MySQL refuses but SQLite would answer, including ONLY_FULL_GROUP_BY."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from sqlglot import exp

from trl_dbbench.mysqlite.collation import unknown_letters
from trl_dbbench.mysqlite.errors import StatementError, fail_if, refuse_if, unknown_column, unsupported
from trl_dbbench.mysqlite.functions import AGGREGATES
from trl_dbbench.mysqlite.kinds import TableColumns
from trl_dbbench.mysqlite.names import clause, conditions, named, parts, sources, terms
from trl_dbbench.mysqlite.parse import text_of

MAX_TABLES_READ = 1_000
"""Most tables that a statement may read, with its views and CTEs expanded."""


def check_target(tree: exp.Expr) -> None:
    """Raise StatementError for a statement that reads the table it changes, except in a derived table."""
    if not isinstance(tree, exp.Update | exp.Delete | exp.Insert):
        return
    name = (tree.this.this if isinstance(tree.this, exp.Schema) else tree.this).name
    filling = isinstance(tree, exp.Insert) and isinstance(tree.expression, exp.Query)
    for select in tree.find_all(exp.Select):
        if filling and select.find_ancestor(exp.OnConflict) is None:
            continue  # INSERT ... SELECT may read what it fills
        source = select.args.get("from_")
        if source is not None and isinstance(source.this, exp.Table) and source.this.name == name:
            above = select.find_ancestor(exp.Subquery, exp.CTE)
            derived = above is not None and isinstance(above.parent, exp.From | exp.Join)
            if not (derived or isinstance(above, exp.CTE)):
                raise StatementError(
                    1093, f"You can't specify target table '{name}' for update in FROM clause"
                )


def check_letters(tree: exp.Expr) -> None:
    """Raise StatementError for a compared text that contains letters of unknown weight."""
    for literal in tree.find_all(exp.Literal):
        if literal.is_string and (odd := unknown_letters([literal.name])):
            above = literal.find_ancestor(exp.Predicate, exp.Anonymous, exp.Case, exp.Ordered)
            assigned = isinstance(above, exp.EQ) and isinstance(above.parent, exp.Update)
            refuse_if(above is not None and not assigned, f"the letter '{min(odd)}' in a comparison")


def check_missing(tree: exp.Expr) -> None:
    """Raise StatementError for clauses that the embedded database does not support."""
    refuse_if(isinstance(tree, exp.Delete) and tree.args.get("using"), "DELETE ... USING")
    for node in tree.find_all(exp.Select, exp.Join, exp.WindowSpec):
        refuse_if(isinstance(node, exp.Join) and node.side.upper() == "FULL", "FULL JOIN")
        frame = isinstance(node, exp.WindowSpec)
        if isinstance(node, exp.Select):
            _check_aggregates(node)
            _check_field(node)
        if frame and (str(node.args.get("kind")).upper() == "GROUPS" or node.args.get("exclude") is not None):
            raise unsupported("GROUPS and EXCLUDE in a frame")


def _check_field(select: exp.Select) -> None:
    """Refuse FIELD and ELT in WHERE with an outer join, which MySQL then treats as an inner join."""
    where = select.args.get("where")
    if where is None or not any(join.side for join in select.args.get("joins") or []):
        return
    for name in {each.name.upper() for each in where.find_all(exp.Anonymous)} & {"FIELD", "ELT"}:
        raise unsupported(f"{name} in WHERE beside an outer join")


def _check_aggregates(select: exp.Select) -> None:
    """Refuse an aggregate of an outer query's columns: in MySQL, it belongs to the outer query."""
    above = select.find_ancestor(exp.Select)
    own = sources(select) if above is not None else set()
    while above is not None:
        outer = sources(above) - own
        for node in select.find_all(exp.AggFunc):
            names = {column.table for column in node.find_all(exp.Column)} - {""}
            if names and names <= outer and node.find_ancestor(exp.Select) is select:
                raise unsupported("an aggregate of a query around this one")
        above = above.find_ancestor(exp.Select)


def names_read(tree: exp.Expr) -> list[str]:
    """Return the tables and views that a statement names, in lower case, with repetitions."""
    return [table.name.lower() for table in tree.find_all(exp.Table)]


def check_size(tree: exp.Expr, views: Mapping[str, list[str]]) -> None:
    """Raise StatementError for a statement that is too large with its views and CTEs expanded: chains of them
    grow exponentially. `views` maps the lower-case name of each view to what it reads (`names_read`)."""
    reads = {name: list(names) for name, names in views.items()}
    for part in tree.find_all(exp.CTE):
        reads.setdefault(part.alias.lower(), []).extend(names_read(part.this))
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            sizes[name] = 1  # in case it reads itself
            sizes[name] += sum(map(size, reads.get(name, ())))
        return sizes[name]

    if sum(map(size, names_read(tree))) > MAX_TABLES_READ:
        raise StatementError(1436, "Thread stack overrun: too many tables, views written out")


_OF_ROWS = (exp.From, exp.Join, exp.CTE, exp.SetOperation, exp.Subquery, exp.DDL)
"""Parent nodes of subqueries that provide all of their rows, not a single value."""


def single_row(subquery: exp.Expr) -> exp.Expr:
    """Return a subquery that fails for several rows if it is used as a value: SQLite takes the first."""
    if isinstance(subquery.parent, exp.SetOperation):  # SQLite allows no brackets here
        return exp.select("*").from_(exp.Subquery(this=subquery.this))
    stands = isinstance(subquery.parent, _OF_ROWS) and subquery.arg_key != "on"
    of_rows = subquery.parent is None or stands or listing(subquery)
    if of_rows or _has_one_row(subquery.unnest()):
        return subquery
    above = subquery.find_ancestor(exp.Where, exp.Join, exp.Query)
    # among other conditions, MySQL may read it where SQLite does not, or the reverse
    among = isinstance(above, exp.Where | exp.Join) and above.find(exp.Connector) is not None
    if among and _is_dependent(subquery):
        raise unsupported("several rows of a subquery that depends on the query around it")
    rows = exp.select("*").from_(exp.Subquery(this=subquery.this)).limit(2)
    number = exp.Subquery(this=exp.select("COUNT(*)").from_("my_rows"))
    # MySQL does not read it if the other operand is NULL, as a computed one may be
    parent = subquery.parent
    beside = parent.args.get("this") if parent is not None and subquery.arg_key == "expression" else None
    perhaps = isinstance(beside, exp.Expr) and not isinstance(
        beside.unnest(), exp.Literal | exp.Column | exp.Tuple
    )
    checked = [number, exp.Literal.number(int(perhaps or among))]
    query = exp.select("*").from_("my_rows").where(exp.Anonymous(this="my_ONE_ROW", expressions=checked))
    part = exp.CTE(this=rows, alias=exp.TableAlias(this=exp.to_identifier("my_rows")), materialized=True)
    query.set("with_", exp.With(expressions=[part]))
    made = exp.Subquery(this=query)
    parts = [each.alias for each in subquery.root().find_all(exp.CTE)]
    made.meta["read_first"] = (among or _is_condition(subquery)) and all(
        name.startswith("my_") for name in parts
    )
    return made


def _is_condition(subquery: exp.Expr) -> bool:
    """Return whether the condition around a subquery has no columns of its own: MySQL reads it first."""
    where = subquery.find_ancestor(exp.Where, exp.Query)
    if not isinstance(where, exp.Where) or where.parent is not subquery.root() or _is_dependent(subquery):
        return False
    limit = subquery.root().args.get("limit")
    nodes = where.walk(prune=lambda node: isinstance(node, exp.Query))
    return limit is None and not any(isinstance(node, exp.Column) for node in nodes)


def _is_dependent(subquery: exp.Expr) -> bool:
    """Return whether a subquery names columns of an outer query."""
    own = {each.alias_or_name for each in subquery.find_all(exp.Table, exp.Subquery)}
    return any(column.table and column.table not in own for column in subquery.find_all(exp.Column))


def _has_one_row(query: exp.Expr) -> bool:
    """Return whether a query evidently has at most one row."""
    if not isinstance(query, exp.Select):
        return False
    limit = query.args.get("limit")
    aggregated = any(isinstance(each.unalias(), exp.AggFunc) for each in query.expressions)
    return (
        query.args.get("from_") is None
        or (limit is not None and limit.expression.name in ("0", "1"))
        or (aggregated and not query.args.get("group"))
    )


def check_limits(tree: exp.Expr) -> None:
    """Raise StatementError for LIMIT in a subquery of IN, ANY or ALL, and for a name as LAG's offset."""
    for shifted in tree.find_all(exp.Lag, exp.Lead):
        offset = shifted.args.get("offset")
        if isinstance(offset, exp.Column) and not offset.table:
            raise StatementError(1327, f"Undeclared variable: {offset.name}")
    for select in tree.find_all(exp.Select):
        if select.args.get("limit") and isinstance(listing(select), exp.In | exp.Any | exp.All):
            raise StatementError(
                1235, "This version of MySQL doesn't yet support 'LIMIT & IN/ALL/ANY/SOME subquery'"
            )


def check_contexts(tree: exp.Expr) -> None:
    """Raise StatementError for an aggregate or a window function where MySQL does not allow it."""
    for node in tree.find_all(exp.AggFunc, exp.Anonymous, exp.Window):
        window = isinstance(node, exp.Window)
        of_window = isinstance(node.parent, exp.Window) and node.arg_key == "this"
        if of_window or (isinstance(node, exp.Anonymous) and node.name.upper() not in AGGREGATES):
            continue
        above = node.parent
        inner = (exp.Where, exp.Join, exp.Group, exp.Update, exp.Insert, exp.Delete, exp.Query)
        while above is not None and not isinstance(above, inner) and (window or not _is_aggregate(above)):
            above = above.parent
        if above is None or isinstance(above, exp.Query) or (window and isinstance(above, exp.Insert)):
            continue
        if window:
            name = node.this.sql_name().lower() if isinstance(node.this, exp.Func) else ""
            raise StatementError(3593, f"You cannot use the window function '{name}' in this context.'")
        fail_if(isinstance(above, exp.Group), 1056, f"Can't group on '{node.sql(dialect='mysql')}'")
        raise StatementError(1111, "Invalid use of group function")
    for select in tree.find_all(exp.Select):
        for key in clause(select, "group"):
            place = int(key.name) if isinstance(key, exp.Literal) and key.is_int else 0
            shown = select.expressions[place - 1 : place] if place > 0 else []
            if any(map(_has_aggregate, shown)):
                raise StatementError(1056, f"Can't group on '{text_of(shown[0])}'")
        order = select.args.get("order")
        grouped = select.args.get("group") is not None or any(map(_has_aggregate, select.expressions))
        if order is not None and not grouped and _has_aggregate(order):
            raise StatementError(
                3029,
                "Expression #1 of ORDER BY contains aggregate function and applies to the result of a "
                "non-aggregated query",
            )


def check_windows(tree: exp.Expr) -> None:
    """Raise StatementError for a window that is sorted or partitioned by the position of a column."""
    for window in tree.find_all(exp.Window):
        keys = [term.this for term in clause(window, "order")] + (window.args.get("partition_by") or [])
        if any(isinstance(key, exp.Literal) and key.is_int for key in keys):
            raise StatementError(
                3592,
                "Window '<unnamed window>': ORDER BY or PARTITION BY uses legacy position indication which "
                "is not supported, use expression.",
            )


def _has_aggregate(node: exp.Expr) -> bool:
    return any(map(_is_aggregate, node.walk(prune=lambda each: isinstance(each, exp.Query | exp.Window))))


def _is_aggregate(node: exp.Expr) -> bool:
    of_window = isinstance(node.parent, exp.Window) and node.arg_key == "this"
    return isinstance(node, exp.AggFunc) and not of_window


def listing(query: exp.Expr) -> exp.Expr | None:
    """Return the IN, ANY, ALL or EXISTS that a query provides the rows for, or `None`."""
    above = query.parent
    while isinstance(above, exp.Subquery):
        query, above = above, above.parent
    wanted = isinstance(above, exp.Any | exp.All | exp.Exists)
    return above if wanted or (isinstance(above, exp.In) and query.arg_key == "query") else None


E = TypeVar("E", bound=exp.Expr)

_INNER = (exp.AggFunc, exp.Window, exp.Query, exp.Subquery)
_MODE = "this is incompatible with sql_mode=only_full_group_by"

MAX_COMPARED_NODES = 100
"""Most nodes of an expression that is compared with those in GROUP BY, as this takes time."""


def check_groups(tree: exp.Expr, tables: Sequence[TableColumns] = ()) -> None:
    """Raise StatementError for a nonaggregated column that may have several values in a group."""
    selects = list(tree.find_all(exp.Select))
    for select in selects:
        _check_having(select, tables)
    for select in selects:
        group, having = select.args.get("group"), select.args.get("having")
        shown = [*select.expressions, *([having] if having is not None else [])]
        aggregated = any(map(_is_aggregated, shown))
        if (group is None and not aggregated) or (not aggregated and _is_listed(select)):
            continue
        doubtful = _has_constant_condition(select) and next(_equalities(select), None) is not None
        single = _Single(select, tables, follow=not doubtful)
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
            if loose is None:
                continue
            refuse_if(doubtful, "columns that depend on others, beside a constant condition")
            found = f"contains nonaggregated column '{loose}'"
            if group is None:
                told = f"In aggregated query without GROUP BY, expression #{places[part]} of {part} {found}"
                raise StatementError(1140, f"{told}; {_MODE}")
            told = f"Expression #{places[part]} of {part} is not in GROUP BY clause and {found} which is not "
            told += "functionally dependent on columns in GROUP BY clause"
            raise StatementError(1055, f"{told}; {_MODE}")


def _check_having(select: exp.Select, tables: Sequence[TableColumns]) -> None:
    """Raise StatementError for a column in HAVING that neither SELECT nor GROUP BY has."""
    having = select.args.get("having")
    if having is None:
        return
    own, known = sources(select), _column_names(select, tables)
    had = [each.unalias() for each in select.expressions] + clause(select, "group")
    aliases = {each.alias.lower() for each in select.expressions if each.alias}
    for column in _outermost(having, exp.Column):
        outer = column.table not in own if column.table else column.name.lower() not in known
        listed = not column.table and column.name.lower() in aliases
        if not outer and not listed and not any(_same(column, each) for each in had):
            raise unknown_column(_shown(column), "having clause")


def check_distinct(tree: exp.Expr) -> None:
    """Raise StatementError for SELECT DISTINCT that sorts by a column that it does not select."""
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
    """Return whether a node is an aggregate that the parser knows by name only."""
    return isinstance(node, exp.Anonymous) and node.name.upper() in _AGGREGATES


def _is_aggregated(node: exp.Expr) -> bool:
    """Return whether an expression contains an aggregate. Subqueries and window functions do not count."""
    if isinstance(node, exp.Window):
        return any(map(_is_aggregated, [*node.this.iter_expressions(), *list(node.iter_expressions())[1:]]))
    if isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and node.name.upper() in AGGREGATES):
        return True
    return not isinstance(node, _INNER) and any(map(_is_aggregated, node.iter_expressions()))


def _is_listed(select: exp.Select) -> bool:
    """Return whether a query provides rows for IN or EXISTS: MySQL ignores its GROUP BY and ORDER BY."""
    return listing(select) is not None and not select.args.get("having")


def _sort_keys(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the keys of ORDER BY, with NULL for positions in the SELECT list and for aliases."""
    aliases = {each.alias.lower() for each in select.expressions if each.alias}
    for key in (term.this for term in clause(select, "order")):
        alias = isinstance(key, exp.Column) and not key.table and key.name.lower() in aliases
        yield exp.null() if alias or isinstance(key, exp.Literal) else key


class _Single:
    """Columns and expressions that have a single value in each group of a query."""

    def __init__(self, select: exp.Select, tables: Sequence[TableColumns], follow: bool = True) -> None:
        self._sources = sources(select)
        self._keyed = list(_keyed(select, tables))
        self._columns: list[exp.Column] = []
        self._expressions: list[_Written] = []
        aliases = named(select)
        known = _column_names(select, tables)
        for key in clause(select, "group"):
            if isinstance(key, exp.Literal) and not key.is_string and key.name.isdigit():
                key = select.expressions[min(int(key.name), len(select.expressions)) - 1]
            key = _bare(key.unalias())
            self._add(key)
            alias = isinstance(key, exp.Column) and not key.table and key.name.lower() in aliases
            if alias and key.name.lower() not in known:  # a column takes precedence over an alias
                self._add(_bare(aliases[key.name.lower()]))
        self._follow(list(_equalities(select)) if follow else [])

    def loose(self, node: exp.Expr) -> Iterator[str]:
        """Yield the columns in an expression that may have several values. A whole GROUP BY key has one."""
        written = _normal(_bare(node)) if self._expressions else None
        if written is None or not any(map(written.may_be, self._expressions)):
            yield from self._loose(node)

    def _loose(self, node: exp.Expr) -> Iterator[str]:
        if _folds(node):
            return
        if isinstance(node, exp.Anonymous) and node.name.upper() in ("TIMESTAMPDIFF", "TIMESTAMPADD"):
            for child in node.expressions[1:]:  # the first is a unit, not a column
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
        """Yield the columns of this query that a subquery names and that may have several values."""
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

    def _has(self, node: exp.Expr) -> bool:
        """Return whether a node is a column with a single value, such as one of an outer query."""
        if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
            return False
        outer = bool(node.table) and node.table not in self._sources
        keys = (
            [exp.column(part, each.alias) for part in each.key] for each in self._keyed if each.is_of(node)
        )
        return outer or self._is_named(node) or any(all(map(self._is_named, key)) for key in keys)

    def _is_named(self, column: exp.Column) -> bool:
        return any(_same(column, each) for each in self._columns)

    def _follow(self, equalities: list[tuple[exp.Column, exp.Expr]]) -> None:
        """Add the columns that equal a constant or another column with a single value."""
        found = True
        while found:
            found = False
            for column, other in equalities:
                if not self._has(column) and (_is_constant(other) or self._has(other)):
                    self._columns.append(column)
                    found = True


def _bare(node: exp.Expr) -> exp.Expr:
    """Return an expression without brackets. To MySQL, one in a subquery without a table is the same."""
    inner = node.unnest()
    while isinstance(inner, exp.Select) and len(inner.expressions) == 1:
        if not all(isinstance(each, exp.Table) and each.name.upper() == "DUAL" for each in parts(inner)):
            break
        inner = inner.expressions[0].unalias().unnest()
    return node if isinstance(inner, exp.Query) else inner


@dataclass(frozen=True)
class _Keyed:
    """A table with a primary key, as a query names it."""

    alias: str
    columns: frozenset[str]
    key: tuple[str, ...]

    def is_of(self, column: exp.Column) -> bool:
        return column.table == self.alias if column.table else column.name.lower() in self.columns


def _column_names(select: exp.Select, tables: Sequence[TableColumns]) -> set[str]:
    """Return the columns that a query can name, in lower case."""
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


def _equalities(select: exp.Select) -> Iterator[tuple[exp.Column, Any]]:
    """Yield the columns that WHERE or ON equates with an expression, and that expression."""
    for name in (name for join in select.args.get("joins") or [] for name in join.args.get("using") or []):
        yield exp.column(name.name), exp.column(name.name)
    for condition, join in conditions(select):
        # an outer join keeps the rows of one side whatever the condition says
        bound = {"LEFT": join.alias_or_name, "RIGHT": ""}.get(join.side.upper()) if join else None
        for each in terms(condition.unnest()):
            one = isinstance(each, exp.In) and len(each.expressions) == 1
            left, right = each.this, each.expressions[0] if one else each.args.get("expression")
            for column, other in ((left, right), (right, left)) if one or isinstance(each, exp.EQ) else ():
                if isinstance(column, exp.Column) and bound in (None, column.table):
                    yield column, other


def _has_constant_condition(select: exp.Select) -> bool:
    """Return whether WHERE or ON has a constant condition. If it is false, MySQL ignores the others."""
    every = (term for condition, _ in conditions(select) for term in terms(condition))
    return any(_is_constant(term) and text_of(term) not in ("1", "TRUE", "1 = 1") for term in every)


def _is_constant(node: exp.Expr) -> bool:
    return node.find(exp.Column, exp.Query) is None


def _same(column: exp.Column, other: exp.Expr) -> bool:
    """Return whether two columns may be the same; a `*` includes any column."""
    if isinstance(other, exp.Star):
        return True
    return (
        isinstance(other, exp.Column)
        and (isinstance(other.this, exp.Star) or column.name.lower() == other.name.lower())
        and (not column.table or not other.table or column.table == other.table)
    )


def _outermost(node: exp.Expr, kind: type[E]) -> Iterator[E]:
    """Yield the nodes of a type in an expression, outside of aggregates and subqueries."""
    if isinstance(node, kind):
        yield node
    elif not (isinstance(node, _INNER) or _folds(node)):
        for child in node.iter_expressions():
            yield from _outermost(child, kind)


@dataclass(frozen=True)
class _Written:
    """An expression's normalized text without the tables of its columns, and these tables, some empty."""

    text: str
    tables: tuple[str, ...]

    def may_be(self, other: _Written) -> bool:
        """Return whether both may be the same; a column without a table may be of any table."""
        pairs = zip(self.tables, other.tables, strict=True) if self.text == other.text else [("a", "b")]
        return all(one == another or not one or not another for one, another in pairs)


def _normal(node: exp.Expr) -> _Written | None:
    """Return the normalized text of an expression, `None` for a very large one."""
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
