"""What MySQL refuses although SQLite would do it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from trl_dbbench.mysqlite.aggregates import AGGREGATES
from trl_dbbench.mysqlite.collation import unknown_letters
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.names import sources

MAX_TABLES_READ = 1_000
"""Tables that a statement may read when its views and CTEs are expanded."""


def check_target(tree: exp.Expr) -> None:
    """Raises StatementError for a statement that changes a table and reads it, but for a derived table."""
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
    """Raises StatementError for a text with letters whose weight is not known, if it is compared."""
    for literal in tree.find_all(exp.Literal):
        if literal.is_string and (odd := unknown_letters([literal.name])):
            above = literal.find_ancestor(exp.Predicate, exp.Anonymous, exp.Case, exp.Ordered)
            assigned = isinstance(above, exp.EQ) and isinstance(above.parent, exp.Update)
            if above is not None and not assigned:
                raise unsupported(f"the letter '{min(odd)}' in a comparison")


def check_missing(tree: exp.Expr) -> None:
    """Raises StatementError for clauses that the embedded database does not have."""
    if isinstance(tree, exp.Delete) and tree.args.get("using"):
        raise unsupported("DELETE ... USING")
    for node in tree.find_all(exp.Select, exp.Join, exp.WindowSpec):
        if isinstance(node, exp.Select) and node.args.get("qualify") is not None:
            raise unsupported("QUALIFY")
        if isinstance(node, exp.Join) and node.side.upper() == "FULL":
            raise unsupported("FULL JOIN")
        frame = isinstance(node, exp.WindowSpec)
        if isinstance(node, exp.Select):
            _check_aggregates(node)
            _check_field(node)
        if frame and (str(node.args.get("kind")).upper() == "GROUPS" or node.args.get("exclude") is not None):
            raise unsupported("GROUPS and EXCLUDE in a frame")


def _check_field(select: exp.Select) -> None:
    """Refuses FIELD and ELT in WHERE beside an outer join, which MySQL takes for an inner one then."""
    where = select.args.get("where")
    if where is None or not any(join.side for join in select.args.get("joins") or []):
        return
    for name in {each.name.upper() for each in where.find_all(exp.Anonymous)} & {"FIELD", "ELT"}:
        raise unsupported(f"{name} in WHERE beside an outer join")


def _check_aggregates(select: exp.Select) -> None:
    """Refuses an aggregate of a column of a query around this one, to which it belongs in MySQL."""
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
    """The tables and views that a statement names, in lower case, each as often as it is named."""
    return [table.name.lower() for table in tree.find_all(exp.Table)]


def check_size(tree: exp.Expr, views: Mapping[str, list[str]]) -> None:
    """Raises StatementError for a statement that would become huge when its views and CTEs are expanded.

    SQLite expands them, and a chain of views each of which reads the previous one twice grows exponentially.

    Args:
        views: the name of a view in lower case -> what it reads (`names_read`).
    """
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
"""Nodes below which a subquery stands for all of its rows."""


def single_row(subquery: exp.Expr) -> exp.Expr:
    """A subquery that stands for a value, made to fail if it has several rows: SQLite takes the first.

    Any other comes back as it is.
    """
    if isinstance(subquery.parent, exp.SetOperation):  # where SQLite takes no brackets
        return exp.select("*").from_(exp.Subquery(this=subquery.this))
    stands = isinstance(subquery.parent, _OF_ROWS) and subquery.arg_key != "on"
    of_rows = subquery.parent is None or stands or listing(subquery)
    if of_rows or _has_one_row(subquery.unnest()):
        return subquery
    among = _is_among(subquery)
    if among and _is_dependent(subquery):
        raise unsupported("several rows of a subquery that depends on the query around it")
    rows = exp.select("*").from_(exp.Subquery(this=subquery.this)).limit(2)
    number = exp.Subquery(this=exp.select("COUNT(*)").from_("my_rows"))
    # MySQL does not read it beside NULL, which what is computed on the other side may be
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


def _is_among(subquery: exp.Expr) -> bool:
    """Whether it stands beside other conditions, so that MySQL may read it where SQLite does not, or not."""
    above = subquery.find_ancestor(exp.Where, exp.Join, exp.Query)
    return isinstance(above, exp.Where | exp.Join) and above.find(exp.Connector) is not None


def _is_condition(subquery: exp.Expr) -> bool:
    """Whether the statement's condition names only columns of its subqueries. MySQL reads these first."""
    where = subquery.find_ancestor(exp.Where, exp.Query)
    if not isinstance(where, exp.Where) or where.parent is not subquery.root() or _is_dependent(subquery):
        return False
    limit = subquery.root().args.get("limit")
    nodes = where.walk(prune=lambda node: isinstance(node, exp.Query))
    return limit is None and not any(isinstance(node, exp.Column) for node in nodes)


def _is_dependent(subquery: exp.Expr) -> bool:
    """Whether a subquery names the rows around it."""
    own = {each.alias_or_name for each in subquery.find_all(exp.Table, exp.Subquery)}
    return any(column.table and column.table not in own for column in subquery.find_all(exp.Column))


def _has_one_row(query: exp.Expr) -> bool:
    """Whether it can be seen that a query has at most one row."""
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
    """Raises StatementError for LIMIT in a subquery of IN, ANY or ALL, and names for numbers of LAG."""
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
    """Raises StatementError for an aggregate or a window function where there are no groups for it."""
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
        if isinstance(above, exp.Group):
            raise StatementError(1056, f"Can't group on '{node.sql(dialect='mysql')}'")
        raise StatementError(1111, "Invalid use of group function")
    for select in tree.find_all(exp.Select):
        order = select.args.get("order")
        grouped = select.args.get("group") is not None or any(map(_has_aggregate, select.expressions))
        if order is not None and not grouped and _has_aggregate(order):
            raise StatementError(
                3029,
                "Expression #1 of ORDER BY contains aggregate function and applies to the result of a "
                "non-aggregated query",
            )


def check_windows(tree: exp.Expr) -> None:
    """Raises StatementError for a window that is sorted by the place of a column."""
    for window in tree.find_all(exp.Window):
        order = window.args.get("order")
        keys = [term.this for term in order.expressions] if order is not None else []
        keys += window.args.get("partition_by") or []
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
    """The IN, ANY, ALL or EXISTS whose rows a query is."""
    above = query.parent
    while isinstance(above, exp.Subquery):
        query, above = above, above.parent
    wanted = isinstance(above, exp.Any | exp.All | exp.Exists)
    return above if wanted or (isinstance(above, exp.In) and query.arg_key == "query") else None
