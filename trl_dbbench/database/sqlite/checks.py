"""What MySQL refuses although SQLite would do it."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from trl_dbbench.database.sqlite.values import StatementError

MAX_TABLES_READ = 1_000
"""Tables that a statement may read when its views and CTEs are expanded."""


def check_target(tree: exp.Update | exp.Delete) -> None:
    """Raises StatementError for a statement that changes a table and reads it, but for a derived table."""
    name = tree.this.name
    for select in tree.find_all(exp.Select):
        source = select.args.get("from_")
        if source is not None and isinstance(source.this, exp.Table) and source.this.name == name:
            above = select.find_ancestor(exp.Subquery, exp.CTE)
            derived = above is not None and isinstance(above.parent, exp.From | exp.Join)
            if not (derived or isinstance(above, exp.CTE)):
                raise StatementError(
                    1093, f"You can't specify target table '{name}' for update in FROM clause"
                )


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
    of_rows = subquery.parent is None or isinstance(subquery.parent, _OF_ROWS) or listing(subquery)
    if of_rows or _has_one_row(subquery.unnest()):
        return subquery
    rows = exp.select("*").from_(exp.Subquery(this=subquery.this)).limit(2)
    number = exp.Subquery(this=exp.select("COUNT(*)").from_("my_rows"))
    query = exp.select("*").from_("my_rows").where(exp.Anonymous(this="my_ONE_ROW", expressions=[number]))
    part = exp.CTE(this=rows, alias=exp.TableAlias(this=exp.to_identifier("my_rows")), materialized=True)
    query.set("with_", exp.With(expressions=[part]))
    return exp.Subquery(this=query)


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
    """Raises StatementError for LIMIT in a subquery of IN, ANY or ALL."""
    for select in tree.find_all(exp.Select):
        if select.args.get("limit") and isinstance(listing(select), exp.In | exp.Any | exp.All):
            raise StatementError(
                1235, "This version of MySQL doesn't yet support 'LIMIT & IN/ALL/ANY/SOME subquery'"
            )


def listing(query: exp.Expr) -> exp.Expr | None:
    """The IN, ANY, ALL or EXISTS whose rows a query is."""
    above = query.parent
    while isinstance(above, exp.Subquery):
        query, above = above, above.parent
    wanted = isinstance(above, exp.Any | exp.All | exp.Exists)
    return above if wanted or (isinstance(above, exp.In) and query.arg_key == "query") else None
