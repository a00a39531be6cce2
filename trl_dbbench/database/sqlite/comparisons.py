"""MySQL's comparisons and what chooses by them, rewritten for SQLite: `=` and `<`, IN, LIKE, CASE, IF."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from trl_dbbench.database.sqlite.coercions import (
    as_text,
    call,
    check_numbers,
    comparable,
    in_change,
    is_in_change,
    may_fail,
    unified,
    unless_null,
)
from trl_dbbench.database.sqlite.kinds import UNKNOWN, keep_kind, kind_of
from trl_dbbench.database.sqlite.parse import unsupported
from trl_dbbench.database.sqlite.values import COLLATION

BINARY = "BINARY"


def is_binary(node: exp.Expr) -> bool:
    return isinstance(node, exp.Collate) and node.expression.name == BINARY


def collated(node: exp.Expr) -> exp.Expr:
    if (isinstance(node, exp.Literal) and not node.is_string) or isinstance(
        node, exp.Collate | exp.Star | exp.Tuple
    ):
        return node
    return keep_kind(exp.Collate(this=node, expression=exp.var(COLLATION)), node)


def _comparison(name: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(node: exp.Expr) -> exp.Expr:
        left, right = node.this, node.expression
        if isinstance(node.parent, exp.Update | exp.OnConflict) and node.arg_key == "expressions":
            return node  # an assignment
        if isinstance(left, exp.Tuple) or is_binary(left) or is_binary(right):
            return node
        if isinstance(right, exp.Any | exp.All):
            return _quantified(name, left, right)
        check_numbers([left, right])
        return _lazy(name, comparable([left, right], strict=True), is_in_change(node))

    return rule


def _lazy(name: str, sides: list[exp.Expr], in_change: bool) -> exp.Expr:
    """A comparison; MySQL does not look at what stands behind NULL, and it may be a mistake in a change."""
    compared = call(name, *sides)
    if not in_change or not any(map(may_fail, sides[1:])):
        return compared
    if name == "NULL_SAFE_EQ":
        raise unsupported("<=> with what may be no number in a statement that changes rows")
    return unless_null(sides[:1], compared)


def _quantified(name: str, left: exp.Expr, right: exp.Any | exp.All) -> exp.Expr:
    """`a < ALL (SELECT ...)`: it is false for no row; with ANY: it is true for a row."""
    rows = exp.CTE(
        this=right.this.unnest(),
        alias=exp.TableAlias(this=exp.to_identifier("my_q"), columns=[exp.to_identifier("c")]),
    )
    holds: exp.Expr = call(name, left, exp.column("c", "my_q"))
    if isinstance(right, exp.All):
        holds = exp.Not(this=exp.Coalesce(this=holds, expressions=[exp.Literal.number(0)]))
    query = exp.select("1").from_("my_q").where(holds)
    query.set("with_", exp.With(expressions=[rows]))
    found: exp.Expr = exp.Exists(this=query)
    return exp.Not(this=found) if isinstance(right, exp.All) else found


def _in(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Tuple) or is_binary(node.this):
        return node
    if node.args.get("query"):
        node.set("this", collated(_beside_rows(node)))
        return node
    sides = [node.this, *node.expressions]
    of_texts = kind_of(node.this).name == "text" and len(sides) > 2
    if of_texts and any(kind_of(each).is_moment for each in sides):
        raise unsupported("a text IN dates")
    if is_in_change(node) and any(map(may_fail, node.expressions)):
        raise unsupported("IN with what may be no number in a statement that changes rows")
    return call("IN", *comparable(sides, strict=len(sides) == 2))


def _beside_rows(node: exp.Expr) -> exp.Expr:
    """The value that is looked for in a query's rows. It gets their kind, or they get its own: to SQLite, no
    text is a number."""
    value, kinds = node.this, [kind for _, kind in node.args["query"].unnest().meta.get("row", ())]
    own, theirs = kind_of(value), kinds[0] if len(kinds) == 1 else UNKNOWN
    if own.name == theirs.name or {own.name, theirs.name} & {"null", "unknown"}:
        return value
    if own.is_number and theirs.is_number:
        return value
    if own.name == "text" and theirs.is_number:
        return call("CAST_DOUBLE", in_change(value))
    rows = node.args["query"].unnest()
    plain = isinstance(rows, exp.Select) and not rows.args.get("having") and not rows.is_star
    if own.is_number and theirs.name == "text" and plain and not is_in_change(node):
        (shown,) = rows.expressions
        as_numbers = call("CAST_DOUBLE", shown.unalias())
        rows.set("expressions", [exp.alias_(as_numbers, shown.alias) if shown.alias else as_numbers])
        return value
    raise unsupported("IN with rows of another type")


def _between(node: exp.Expr) -> exp.Expr:
    sides = [node.this, node.args["low"], node.args["high"]]
    check_numbers(sides)
    return _lazy("BETWEEN", comparable(sides), is_in_change(node))


def _like(node: exp.Expr) -> exp.Expr:
    exact = is_binary(node.this) or is_binary(node.expression)
    escape = exp.Literal.string("\\")
    sides = (as_text(_bare(node.this)), as_text(_bare(node.expression)))
    like = _lazy("LIKE", [*sides, escape, exp.Literal.number(int(exact))], is_in_change(node))
    return exp.Not(this=like) if node.args.get("negate") else like


def _escape(node: exp.Expr) -> exp.Expr:
    like = next(each for each in node.find_all(exp.Anonymous) if each.this == "my_LIKE")
    like.expressions[2].replace(node.expression)
    return node.this


def _bare(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.Collate) else node


def _is_of_null(node: exp.Expr) -> bool:
    """Whether it is a function of texts whose text is NULL itself, which has no character set in MySQL."""
    if kind_of(node).name != "text" or not isinstance(node, exp.Func):
        return False
    first = node.expressions[0] if not isinstance(node.this, exp.Expr) and node.expressions else node.this
    return isinstance(first, exp.Null) or (isinstance(first, exp.Func) and _is_of_null(first))


def _regexp(node: exp.Expr) -> exp.Expr:
    if _is_of_null(node.this):
        raise unsupported("REGEXP of a function of NULL")
    flags = exp.Literal.string("c" if is_binary(node.this) or is_binary(node.expression) else "")
    return call("REGEXP_LIKE", as_text(_bare(node.this)), as_text(_bare(node.expression)), flags)


def _case(node: exp.Expr) -> exp.Expr:
    """`CASE a WHEN b THEN x ...`: first the number of the value that equals a, then the result by number."""
    subject = node.this
    if subject is not None:
        if is_in_change(node) and any(may_fail(branch.this) for branch in node.args["ifs"]):
            raise unsupported("CASE with what may be no number in a statement that changes rows")
        node.set("this", call("FIELD", *comparable([subject, *(branch.this for branch in node.args["ifs"])])))
        for place, branch in enumerate(node.args["ifs"], 1):
            branch.set("this", exp.Literal.number(place))
    for branch in node.args["ifs"]:
        branch.set("true", unified(branch.args["true"], kind_of(node)))
    if node.args.get("default") is not None:
        node.set("default", unified(node.args["default"], kind_of(node)))
    return node


def _if(node: exp.Expr) -> exp.Expr:
    for name in ("true", "false"):
        if not isinstance(node.parent, exp.Case) and node.args.get(name) is not None:
            node.set(name, unified(node.args[name], kind_of(node)))
    return node


def _connector(node: exp.Expr) -> exp.Expr:
    """AND and OR. MySQL knows what a constant makes of them, and may not look at the other side at all."""
    sides = (node.this, node.expression)
    constant = is_in_change(node) and any(side.find(exp.Column, exp.Query) is None for side in sides)
    if constant and any(map(may_fail, sides)):
        raise unsupported("a constant beside what may be no number in a statement that changes rows")
    return node


COMPARISONS: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    exp.EQ: _comparison("EQ"),
    exp.NEQ: _comparison("NE"),
    exp.LT: _comparison("LT"),
    exp.LTE: _comparison("LE"),
    exp.GT: _comparison("GT"),
    exp.GTE: _comparison("GE"),
    exp.NullSafeEQ: _comparison("NULL_SAFE_EQ"),
    exp.In: _in,
    exp.Between: _between,
    exp.And: _connector,
    exp.Or: _connector,
    exp.Like: _like,
    exp.Escape: _escape,
    exp.RegexpLike: _regexp,
    exp.Case: _case,
    exp.If: _if,
}
"""The rules of `rules` for them."""
