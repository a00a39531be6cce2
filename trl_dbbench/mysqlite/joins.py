"""RIGHT JOIN, which SQLite answers wrongly in places, as LEFT JOIN, as MySQL does it."""

from __future__ import annotations

from sqlglot import exp

from trl_dbbench.mysqlite.errors import unsupported


def turn_right_joins(select: exp.Expr) -> None:
    """Makes `a JOIN b RIGHT JOIN c` of a query `c LEFT JOIN (a JOIN b)`.

    That changes the order of the columns of `*`: a query with `*` keeps its RIGHT JOIN.

    Raises:
        StatementError: it keeps one that SQLite answers wrongly.
    """
    joins, first = select.args.get("joins") or [], select.args.get("from_")
    if not any(_is_right(join) for join in joins):
        return
    named = any(join.args.get("using") or join.method for join in joins)
    if named and any(
        isinstance(each, exp.Column) and isinstance(each.this, exp.Star) for each in select.expressions
    ):
        raise unsupported("t.* of tables that RIGHT JOIN joins by USING or NATURAL")
    if named or first is None or any(each.is_star for each in select.expressions):
        _check_right_joins(joins)
        return
    source, done = first.this, list[exp.Join]()
    for join in joins:
        if not _is_right(join):
            done.append(join)
            continue
        if done:
            source.set("joins", done)
            source = exp.Subquery(this=source)
        source, done = join.this, [exp.Join(this=source, side="LEFT", on=join.args.get("on"))]
    first.set("this", source)
    select.set("joins", done)


def _is_right(join: exp.Join) -> bool:
    return join.side.upper() == "RIGHT"


def _check_right_joins(joins: list[exp.Join]) -> None:
    """Refuses what SQLite 3.40 answers wrong: before RIGHT JOIN, a constant condition removes all rows."""
    last = max((n for n, join in enumerate(joins) if join.side.upper() == "RIGHT"), default=0)
    for join in joins[:last]:
        condition = join.args.get("on")
        if condition is None:
            continue
        terms = condition.flatten() if isinstance(condition, exp.And) else [condition]
        if any(term.find(exp.Column, exp.Query) is None for term in terms):
            raise unsupported("a constant in ON before RIGHT JOIN")
