"""MySQL's comparisons and what chooses by them, rewritten for SQLite: `=` and `<`, IN, LIKE, CASE, IF."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from trl_dbbench.mysqlite.coercions import (
    as_text,
    call,
    check_numbers,
    chooses,
    comparable,
    doubt,
    in_change,
    is_check,
    is_early,
    is_in_change,
    is_of_null,
    may_fail,
    unified,
    unless_null,
)
from trl_dbbench.mysqlite.conversions import is_number
from trl_dbbench.mysqlite.errors import unsupported
from trl_dbbench.mysqlite.kinds import DATE, UNKNOWN, Kind, keep_kind, kind_of
from trl_dbbench.mysqlite.values import COLLATION

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
        _unwrap(node)
        left, right = node.this, node.expression
        if isinstance(node.parent, exp.Update | exp.OnConflict) and node.arg_key == "expressions":
            return node  # an assignment
        if isinstance(left, exp.Tuple):
            return _of_rows(name, left, right, node) or node
        if is_binary(left) or is_binary(right):
            return _binary(node)
        if isinstance(right, exp.Any | exp.All):
            return _quantified(name, left, right)
        check_numbers([left, right])
        if any(map(_is_year, (left, right))) and (kind_of(left).is_moment or kind_of(right).is_moment):
            raise unsupported("a year beside a date")
        sides = comparable([left, right], strict=True)
        if is_in_change(node):
            if sides[0] == sides[1] and may_fail(sides[0]):
                raise unsupported("what may fail beside itself")  # MySQL need not read it
            sides = _read_early(node, sides)
            _doubt(sides)
        return _lazy(name, sides, is_in_change(node))

    return rule


def _unwrap(node: exp.Expr) -> None:
    """Takes the brackets off the columns and constants that a node compares."""
    for each in list(node.iter_expressions()):
        inner = each.unnest()
        if isinstance(each, exp.Paren) and isinstance(inner, exp.Column | exp.Literal):
            each.replace(inner)


def _is_year(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.this == "my_YEAR"


def _read_early(node: exp.Expr, sides: list[exp.Expr]) -> list[exp.Expr]:
    """The sides of a comparison in a statement that changes rows. In a condition, MySQL reads a constant text
    beside a column of numbers before it looks at any row, wherever the comparison stands."""
    for n, (own, column) in enumerate(((node.this, node.expression), (node.expression, node.this))):
        kind, literal = kind_of(column), own.unnest()
        if not isinstance(column.unnest(), exp.Column) or not kind.is_number:
            continue
        if own.find(exp.Query) and kind_of(own).name == "text" and not own.find(exp.From):
            raise unsupported("a subquery without FROM beside a number in a statement that changes rows")
        if isinstance(literal, exp.Literal) and literal.is_string and not is_number(literal.name):
            sides[n] = call("FULL_DECIMAL" if kind.name == "decimal" else "FULL_NUMBER", literal)
            sides[n].meta["early"] = _is_condition(node)
        elif own.find(exp.Column, exp.Query) is None and (isinstance(literal, exp.Neg) or kind.size == 64):
            for each in filter(is_check, sides[n].find_all(exp.Anonymous)):
                each.meta["early"] = _is_condition(node)
    return sides


def _doubt(sides: list[exp.Expr]) -> None:
    """Refuses what fails in a query or a constant beside a column: if that is a key, MySQL passes over it."""
    for value, column in (sides, reversed(sides)):
        computed = value.find(exp.Query) is not None or value.find(exp.Column) is None
        if isinstance(column, exp.Column) and computed:
            for each in value.find_all(exp.Anonymous):
                if is_check(each) and not (is_early(each) and each.find_ancestor(exp.Query) is None):
                    doubt(each)
                    each.meta["early"] = False


def _is_condition(node: exp.Expr) -> bool:
    """Whether it stands in WHERE or HAVING of a query whose columns are those of tables.

    Raises:
        StatementError: they may be computed ones, of which MySQL reads some early and some not.
    """
    above = node.find_ancestor(exp.Where, exp.Having, exp.AggFunc, exp.Query, exp.DML)
    if not isinstance(above, exp.Where | exp.Having):
        return False
    query = above.parent or above
    if query.args.get("limit") is not None and query.args["limit"].expression.name == "0":
        return False
    sources = [query.args.get("from_"), *(query.args.get("joins") or [])]
    if query.root().find(exp.CTE) or any(each and isinstance(each.this, exp.Subquery) for each in sources):
        raise unsupported("a text beside a number of a derived table in a statement that changes rows")
    return True


def _of_rows(name: str, left: exp.Tuple, right: exp.Expr, node: exp.Expr) -> exp.Expr | None:
    """A comparison of two rows cell by cell; `None` where SQLite's own does: all cells are of like types."""
    if not isinstance(right, exp.Tuple) or len(left.expressions) != len(right.expressions):
        return None
    pairs = list(zip(left.expressions, right.expressions, strict=True))
    if all(kind_of(one).name == kind_of(other).name for one, other in pairs) and not is_in_change(node):
        return None
    if name not in ("EQ", "NE"):
        raise unsupported("an order of rows with values of different types")
    made = [_comparison("EQ")(_standing(exp.EQ(this=one, expression=other), node)) for one, other in pairs]
    equal = exp.paren(exp.and_(*made, copy=False))
    return exp.Not(this=equal) if name == "NE" else equal


def _standing(node: exp.Expr, where: exp.Expr) -> exp.Expr:
    """A new node that knows where it is to stand."""
    node.parent = where.parent
    return node


def _binary(node: exp.Expr) -> exp.Expr:
    """A comparison by the bytes of texts; MySQL compares a number with them as numbers all the same."""
    if any(kind_of(each).is_number or kind_of(each).is_moment for each in (node.this, node.expression)):
        raise unsupported("a number or a date beside BINARY or a collation")
    return node


def _lazy(name: str, sides: list[exp.Expr], in_change: bool) -> exp.Expr:
    """A comparison; MySQL does not look at what stands behind NULL, and it may be a mistake in a change."""
    compared = call(name, *sides)
    if not in_change or not any(may_fail(side) and not is_early(side) for side in sides[1:]):
        return compared
    if name == "NULL_SAFE_EQ":
        raise unsupported("<=> with what may be no number in a statement that changes rows")
    return unless_null(sides[:1], compared)


def _quantified(name: str, left: exp.Expr, right: exp.Any | exp.All) -> exp.Expr:
    """`a < ALL (SELECT ...)`: it is false for no row; with ANY: it is true for a row."""
    own, theirs = kind_of(left), [kind for _, kind in right.this.unnest().meta.get("row", ())]
    if not all(_alike(own, each) for each in theirs):
        raise unsupported("ANY and ALL of rows of another type")
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
    _unwrap(node)
    if isinstance(node.this, exp.Tuple):
        return _in_rows(node)
    if is_binary(node.this):
        return node
    if node.args.get("query"):
        rows = node.args["query"].unnest()
        if node.args["query"].this is not rows:  # in two brackets, which to SQLite is one value
            node.set("query", exp.Subquery(this=rows))
        node.set("this", collated(_beside_rows(node)))
        return node
    sides = [node.this, *node.expressions]
    chosen = any(kind_of(each).name == "text" and chooses(each) for each in node.expressions)
    if kind_of(node.this).is_moment and chosen:
        raise unsupported("a date IN texts of CASE or IF")
    long = any(len(each.name) > len("2020-01-01") for each in node.this.find_all(exp.Literal))
    if kind_of(node.this) == DATE and long and len(sides) > 2:
        raise unsupported("the date of a constant date and time IN several")
    of_texts = kind_of(node.this).name == "text" and len(sides) > 2
    if of_texts and any(kind_of(each).is_moment for each in sides):
        raise unsupported("a text IN dates")
    if not is_in_change(node):
        return call("IN", *comparable(sides, strict=len(sides) == 2))
    texts = [each for each in node.expressions if isinstance(each, exp.Literal) and each.is_string]
    own, numbers = kind_of(node.this), any(kind_of(each).is_number for each in node.expressions)
    if own.silent and own.name == "text" and not any(map(may_fail, node.expressions)):
        return call("IN", *sides)
    wrong = (own.is_number or numbers) and not all(is_number(each.name) for each in texts)
    if wrong or any(map(may_fail, node.expressions)):
        raise unsupported("IN with what may be no number in a statement that changes rows")
    return call("IN", *comparable(sides, strict=len(sides) == 2))


def _in_rows(node: exp.Expr) -> exp.Expr:
    """A row IN rows, as a comparison with each of them where their cells are of different types."""
    left, query = node.this, node.args.get("query")
    if query is not None:
        kinds = [kind for _, kind in query.unnest().meta.get("row", ())]
        if not all(_alike(kind_of(one), other) for one, other in zip(left.expressions, kinds, strict=False)):
            raise unsupported("IN with rows of other types")
        return node
    made = [_of_rows("EQ", left.copy(), each, node) for each in node.expressions]
    if is_in_change(node) and any(each is not None and may_fail(each) for each in made):
        raise unsupported("a row IN rows with what may be no number in a statement that changes rows")
    return exp.paren(exp.or_(*made, copy=False)) if all(each is not None for each in made) else node


def _alike(one: Kind, other: Kind) -> bool:
    """Whether SQLite compares values of these kinds as MySQL does."""
    return one.name == other.name or (one.is_number and other.is_number)


def _beside_rows(node: exp.Expr) -> exp.Expr:
    """The value that is looked for in a query's rows. It gets their kind, or they get its own: to SQLite, no
    text is a number."""
    value, kinds = node.this, [kind for _, kind in node.args["query"].unnest().meta.get("row", ())]
    own, theirs = kind_of(value), kinds[0] if len(kinds) == 1 else UNKNOWN
    if _alike(own, theirs) or {own.name, theirs.name} & {"null", "unknown"}:
        return value
    if own.name == "text" and theirs.is_number:
        read = call("CAST_DOUBLE", in_change(value))
        for check in filter(is_check, list(read.find_all(exp.Anonymous))):
            doubt(check)  # for no rows, MySQL reads nothing
        return read
    rows = node.args["query"].unnest()
    plain = isinstance(rows, exp.Select) and not rows.args.get("having") and not rows.is_star
    if own.is_number and theirs.name == "text" and plain and not is_in_change(node):
        (shown,) = rows.expressions
        as_numbers = call("CAST_DOUBLE", shown.unalias())
        rows.set("expressions", [exp.alias_(as_numbers, shown.alias) if shown.alias else as_numbers])
        return value
    raise unsupported("IN with rows of another type")


def _between(node: exp.Expr) -> exp.Expr:
    _unwrap(node)
    sides = [node.this, node.args["low"], node.args["high"]]
    check_numbers(sides)
    kinds = [kind_of(each) for each in sides]
    text, number = any(kind.name == "text" for kind in kinds), any(kind.is_number for kind in kinds)
    if any(kind.is_moment for kind in kinds) and text and number:
        raise unsupported("a date BETWEEN a number and a text")
    if kinds[0].name == "text" and any(kind.is_moment for kind in kinds):
        raise unsupported("a text BETWEEN dates")
    texts = [each for each in sides if isinstance(each, exp.Literal) and each.is_string]
    if number and is_in_change(node) and not all(is_number(each.name) for each in texts):
        raise unsupported("a number BETWEEN texts that are none in a statement that changes rows")
    if (
        any(kind.is_moment for kind in kinds)
        and is_in_change(node)
        and len(texts) < sum(kind.name == "text" for kind in kinds)
    ):
        raise unsupported("a text BETWEEN dates in a statement that changes rows")
    compared = comparable(sides)
    if number and text:  # all of them are numbers then
        compared = [
            call("CAST_DOUBLE", each) if kind.name == "text" else each
            for kind, each in zip(kinds, compared, strict=True)
        ]
    return _lazy("BETWEEN", compared, is_in_change(node))


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


def _regexp(node: exp.Expr) -> exp.Expr:
    if is_of_null(node.this):
        raise unsupported("REGEXP of a function of NULL")
    flags = exp.Literal.string("c" if is_binary(node.this) or is_binary(node.expression) else "")
    return call("REGEXP_LIKE", as_text(_bare(node.this)), as_text(_bare(node.expression)), flags)


def _case(node: exp.Expr) -> exp.Expr:
    """`CASE a WHEN b THEN x ...`: first the number of the value that equals a, then the result by number."""
    subject = node.this
    if subject is not None:
        of_dates = any(kind_of(branch.this).is_moment for branch in node.args["ifs"])
        if kind_of(subject).name == "text" and of_dates:
            raise unsupported("CASE of a text with dates")
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


def _chain(node: exp.Expr, kind: type[exp.Expr]) -> Iterator[exp.Expr]:
    """The sides of AND, or OR, of which some may be such again."""
    for side in (node.this.unnest(), node.expression.unnest()):
        if isinstance(side, kind):
            yield from _chain(side, kind)
        else:
            yield side


def _may_be_known(side: exp.Expr) -> bool:
    """Whether MySQL may know what a condition gives from a column's type, as of `id IS NULL` or `i = 1.5`."""
    numbers = [each for each in side.find_all(exp.Literal) if not each.is_string]
    odd = any(not each.name.isdecimal() or int(each.name) >= 2**31 for each in numbers)
    return odd or isinstance(side.this if isinstance(side, exp.Not) else side, exp.Is)


def _connector(node: exp.Expr) -> exp.Expr:
    """AND and OR. MySQL knows what a constant makes of them, and may not look at the other side at all."""
    above = node.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    if type(above) is type(node) or not is_in_change(node):
        return node  # one of a chain is looked at with all of it
    sides = list(_chain(node, type(node)))
    constant = any(side.find(exp.Column, exp.Query) is None for side in sides) and any(map(may_fail, sides))
    early = any(is_early(each) for side in sides for each in side.find_all(exp.Anonymous))
    if constant or (early and any(map(_may_be_known, sides))):
        raise unsupported("a constant beside what may be no number in a statement that changes rows")
    if isinstance(node, exp.And):
        last = max((place for place, side in enumerate(sides) if _is_equality(side)), default=0)
        for each in (check for side in sides[:last] for check in side.find_all(exp.Anonymous)):
            if is_check(each) and not is_early(each):
                doubt(each)
    return node


def _is_equality(side: exp.Expr) -> bool:
    """Whether a column equals a constant, which MySQL looks at before other conditions of AND."""
    sides = side.expressions if isinstance(side, exp.Anonymous) and side.this in ("my_EQ", "my_IN") else []
    constant = any(each.find(exp.Column, exp.Query) is None for each in sides)
    return len(sides) == 2 and constant and any(isinstance(each, exp.Column) for each in sides)


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
