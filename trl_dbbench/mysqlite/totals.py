"""MySQL's aggregate functions and windows, rewritten for SQLite."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from trl_dbbench.mysqlite.coercions import as_number, call, exact, is_in_change, numeric
from trl_dbbench.mysqlite.comparisons import collated
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.kinds import Kind, kind_of


def _total(node: exp.Expr) -> exp.Expr:
    """SUM and AVG, which give decimals of a number of places."""
    if any(each.find(exp.Avg) for each in node.find_all(exp.Subquery)):
        raise unsupported("a sum of a subquery's mean")
    if not isinstance(node.this, exp.Distinct):
        node.set("this", numeric(node.this))
    elif kind_of(node.this.expressions[0]).name == "text":
        if is_in_change(node):
            raise unsupported("a sum of different texts in a statement that changes rows")
        node.this.set("expressions", [call("CAST_DOUBLE", each) for each in node.this.expressions])
    else:
        node.this.set("expressions", [as_number(each) for each in node.this.expressions])
    return node if isinstance(node.parent, exp.Window) else _of_mean(node, kind_of(node))


def _of_mean(node: exp.Expr, kind: Kind) -> exp.Expr:
    """A total, rounded; MySQL keeps a mean with nine places, or a multiple of them, until it is shown."""
    mean = isinstance(node.this if isinstance(node, exp.Window) else node, exp.Avg) and not _is_kept(node)
    return exact(type(node)(**node.args), kind, -(-kind.places // 9) * 9 if mean else kind.places)


def _is_kept(node: exp.Expr) -> bool:
    """Whether it is a column of a table that is made for the statement, and rounded there."""
    above = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    while isinstance(above, exp.Query | exp.Subquery):
        above = above.parent
    return isinstance(above, exp.CTE | exp.From | exp.Join)


def _window(node: exp.Expr) -> exp.Expr:
    node.set("partition_by", [collated(each) for each in node.args.get("partition_by") or []] or None)
    if not isinstance(node.this, exp.Sum | exp.Avg):
        return node
    return _of_mean(node, kind_of(node))


def _extreme(node: exp.Expr) -> exp.Expr:
    """MIN and MAX, of texts by MySQL's order."""
    if kind_of(node).name in ("text", "unknown") and not isinstance(node.this, exp.Column | exp.Distinct):
        node.set("this", collated(node.this))
    return node


def _group_concat(node: exp.Expr) -> exp.Expr:
    value, keys, directions = node.this, [], ""
    if isinstance(value, exp.Order):
        keys = [_group_key(ordered.this, value.this) for ordered in value.expressions]
        directions = "".join("-" if ordered.args.get("desc") else "+" for ordered in value.expressions)
        value = value.this
    distinct = isinstance(value, exp.Distinct)
    values = [_group_text(each) for each in (value.expressions if distinct else [value])]
    separator = node.args.get("separator") or exp.Literal.string(",")
    flags = [exp.Literal.number(int(distinct)), exp.Literal.string(directions)]
    return call("GROUP_CONCAT", separator, *flags, *keys, *values)


def _group_text(value: exp.Expr) -> exp.Expr:
    """A value as GROUP_CONCAT writes it, which stores it first."""
    kind = kind_of(value)
    if kind.name == "decimal":
        return call("WRITTEN", value, exp.Literal.number(kind.places))
    return call("WRITTEN_SINGLE", value) if kind.is_single else value


def _group_key(key: exp.Expr, value: exp.Expr) -> exp.Expr:
    """What GROUP_CONCAT sorts by: a whole number is the place of one of its arguments."""
    if isinstance(key, exp.Collate) and isinstance(key.this, exp.Literal) and key.this.is_int:
        key = key.this
    if not isinstance(key, exp.Literal) or not key.is_int:
        if key.find(exp.Column) is None:
            raise unsupported("GROUP_CONCAT sorted by a constant")
        return key
    values = value.expressions if isinstance(value, exp.Distinct) else [value]
    if not key.name.isdecimal() or not 1 <= int(key.name) <= len(values):
        raise StatementError(1054, f"Unknown column '{key.name}' in 'order clause'")
    return values[int(key.name) - 1].copy()


def _count(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Distinct):
        parts = node.this.expressions
        one = parts[0] if len(parts) == 1 else call("CONCAT", *_between(parts, exp.Literal.string("\x1f")))
        node.set("this", exp.Distinct(expressions=[collated(one)]))
    return node


def _between(parts: list[exp.Expr], separator: exp.Expr) -> list[exp.Expr]:
    return [each for part in parts for each in (part, separator.copy())][:-1]


TOTALS: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    exp.Sum: _total,
    exp.Avg: _total,
    exp.Min: _extreme,
    exp.Max: _extreme,
    exp.GroupConcat: _group_concat,
    exp.Count: _count,
    exp.Window: _window,
}
"""The rules of `rules` for them."""
