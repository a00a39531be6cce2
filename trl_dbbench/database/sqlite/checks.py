"""What MySQL refuses although SQLite would do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from sqlglot import exp

from trl_dbbench.database.sqlite.values import StatementError

_INNER = (exp.AggFunc, exp.Window, exp.Query, exp.Subquery)
MAX_TABLES_READ = 1_000
"""Tables that a statement may read when its views and CTEs are expanded."""

_MODE = "this is incompatible with sql_mode=only_full_group_by"


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


def check_groups(tree: exp.Expr) -> None:
    """Raises StatementError for a selected column that does not have a single value in each group.

    This holds for tables without keys only: a key in GROUP BY would determine the other columns.
    """
    for select in tree.find_all(exp.Select):
        group = select.args.get("group")
        if group is None and not any(True for each in select.expressions for _ in _aggregates(each)):
            continue
        aliases = {
            each.alias.lower(): each.this for each in select.expressions if isinstance(each, exp.Alias)
        }
        grouped: set[str | None] = set()
        for key in group.expressions if group is not None else []:
            if isinstance(key, exp.Literal) and not key.is_string and key.name.isdigit():
                key = select.expressions[min(int(key.name), len(select.expressions)) - 1]
            key = key.this if isinstance(key, exp.Alias) else key
            grouped.add(_normal(key))
            if isinstance(key, exp.Column) and key.name.lower() in aliases:
                grouped.add(_normal(aliases[key.name.lower()]))
        grouped = (grouped | _fixed(select)) - {None}
        for place, each in enumerate(select.expressions, 1):
            loose = next(_loose(each, grouped), None)
            if loose is not None and group is not None:
                raise StatementError(
                    1055,
                    f"Expression #{place} of SELECT list is not in GROUP BY clause and contains "
                    f"nonaggregated column '{loose}' which is not functionally dependent on columns in GROUP "
                    f"BY clause; {_MODE}",
                )
            if loose is not None:
                raise StatementError(
                    1140,
                    f"In aggregated query without GROUP BY, expression #{place} of SELECT list contains "
                    f"nonaggregated column '{loose}'; {_MODE}",
                )


MAX_COMPARED_NODES = 100
"""Nodes of an expression that is compared with those in GROUP BY. Each of its parts is compared, which takes
time."""


def _normal(node: exp.Expr) -> str | None:
    """An expression in one fixed spelling; `None` for a very long one."""
    if next(islice(node.walk(), MAX_COMPARED_NODES, None), None) is not None:
        return None
    copy = node.copy()
    for column in copy.find_all(exp.Column):
        column.set("table", None)
        column.this.set("quoted", True)
    return copy.sql(dialect="mysql").lower()


def _aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(node, exp.AggFunc):
        yield node
    elif not isinstance(node, _INNER):
        for child in node.iter_expressions():
            yield from _aggregates(child)


def _loose(node: exp.Expr, grouped: set[str | None]) -> Iterator[str]:
    """The columns outside of aggregates that GROUP BY does not name."""
    if (
        isinstance(node, _INNER)
        or _normal(node) in grouped
        or (isinstance(node, exp.Anonymous) and node.name == "ANY_VALUE")
    ):
        return
    if isinstance(node, exp.Column | exp.Star):
        yield node.sql(dialect="mysql").replace("`", "")
        return
    for child in node.iter_expressions():
        yield from _loose(child, grouped)


def _fixed(select: exp.Select) -> set[str | None]:
    """The columns that WHERE or ON compares with something by `=`: they may have a single value."""
    places = [select.args.get("where"), *(join.args.get("on") for join in select.args.get("joins") or [])]
    sides = [
        side
        for place in places
        if place is not None
        for each in place.find_all(exp.EQ)
        for side in (each.this, each.expression)
    ]
    return {_normal(side) for side in sides if isinstance(side, exp.Column)}
