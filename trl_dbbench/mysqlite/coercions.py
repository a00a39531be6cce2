"""Conversion and comparison of values of different types, as in MySQL. The rules pass nodes whose kinds are
known (`kinds`), and get back nodes that call the functions of `functions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from trl_dbbench.mysqlite.dates import clock_text, is_date, moment
from trl_dbbench.mysqlite.errors import StatementError, refuse_if, unsupported
from trl_dbbench.mysqlite.functions import CHECKS, DOUBTFUL, LOWEST, incorrect, is_number
from trl_dbbench.mysqlite.kinds import (
    DATE,
    DATETIME,
    TIME,
    UNKNOWN,
    YEAR_BITS,
    Kind,
    keep_kind,
    kind_of,
    reads_long_text,
)
from trl_dbbench.mysqlite.parse import text_of
from trl_dbbench.mysqlite.values import COLLATION, number


def call(name: str, *arguments: exp.Expr | int | str | None) -> exp.Anonymous:
    """Return a call of one of our functions. A `None` is left out; an int or str becomes a constant."""
    given = [each for each in arguments if each is not None]
    return exp.Anonymous(
        this=f"my_{name}",
        expressions=[each if isinstance(each, exp.Expr) else exp.convert(each) for each in given],
    )


def as_text(node: exp.Expr) -> exp.Expr:
    """Return a number as a text, with all places of a decimal. Return anything else unchanged."""
    kind = kind_of(node)
    if kind.name not in ("decimal", "float"):
        return node
    for part, name in _chosen(node):
        part.set(name, as_text(part.args[name]))
    if kind.name == "decimal" and kind.silent is None and isinstance(node, exp.Column):
        raise unsupported("a number chosen among others in a derived table as a text")
    if _chosen(node) or (kind.name == "float" and not kind.is_single):
        return node
    if kind.is_single and isinstance(node, exp.Anonymous) and node.this == "my_NULLIF":
        node.expressions[-1].replace(as_text(node.expressions[-1].copy()))
        return node
    if kind.is_single:
        column = isinstance(node.unnest(), exp.Column) and kind.silent is not None
        return call("WRITTEN_SINGLE" if column else "SURE_SINGLE", node)
    return call("WRITTEN", node, kind.places)


def _chosen(node: exp.Expr) -> list[tuple[exp.Expr, str]]:
    """Return the results of CASE or IF, as pairs of node and argument: MySQL writes each by its own type."""
    if isinstance(node, exp.Case):
        default = [(node, "default")] if node.args.get("default") is not None else []
        return [*((branch, "true") for branch in node.args["ifs"]), *default]
    if isinstance(node, exp.If):
        return [(node, name) for name in ("true", "false") if node.args.get(name) is not None]
    return [(node, "this")] if isinstance(node, exp.Paren) and _chosen(node.this) else []


def as_number(node: exp.Expr) -> exp.Expr:
    """Return a date as the number 20200131; refuse a choice among dates and texts, read either way."""
    if (
        kind_of(node).name == "text"
        and chooses(node)
        and any(kind_of(each).is_moment for each in node.walk())
    ):
        raise unsupported("a number of what is chosen among dates and texts")
    return call("DATE_NUMBER", node) if kind_of(node).is_moment or is_moved(node) else node


def numeric(node: exp.Expr, check: str = "FULL_NUMBER") -> exp.Expr:
    """Return a value to use as a number. In a statement that changes rows, a text must be a number."""
    return as_number(node) if is_moved(node) else in_change(as_number(node), check)


_MOVING = frozenset({"my_DATE_ADD", "my_DATE_SUB", "my_FULL_DATE_ADD", "my_FULL_DATE_SUB"})


def is_moved(node: exp.Expr) -> bool:
    if isinstance(node, exp.Case) and node.args.get("default") is not None:  # made by `unless_null`
        return is_moved(node.args["default"])
    return isinstance(node, exp.Anonymous) and node.this in _MOVING


def strict_truths(tree: exp.Expr) -> None:
    """Check texts used as truth values in a statement that changes rows: they must be numbers."""
    for node in list(tree.find_all(exp.Connector, exp.Not, exp.Where, exp.If, exp.Is)):
        of_value = (
            isinstance(node, exp.If) and isinstance(node.parent, exp.Case) and node.parent.this is not None
        )
        if of_value or (isinstance(node, exp.Is) and not isinstance(node.expression, exp.Boolean)):
            continue
        for side in ("this", "expression"):
            value = node.args.get(side)
            if isinstance(value, exp.Expr):
                node.set(side, in_change(value))


def exact(node: exp.Expr, kind: Kind, places: int | None = None) -> exp.Expr:
    """Return a computed decimal, rounded to its places or to `places`: floats differ in the 16th digit."""
    if kind.name != "decimal" or not kind.places:
        return node
    new = call("DECIMAL", node, kind.places if places is None else places)
    new.meta["kind"] = kind
    return new


def unified(node: exp.Expr, kind: Kind) -> exp.Expr:
    """Return a value of CASE, COALESCE or UNION, converted to the common kind of all their values."""
    own = kind_of(node)
    if kind == DATETIME and own == DATE:
        new: exp.Expr = call("MOMENT", node)
    elif kind.name == "text" and (own.is_number or own.is_moment):
        new = as_text(node) if own.name in ("decimal", "float") else call("WRITTEN", node)
        if new is node:
            new = call("WRITTEN", node)
    else:
        return node
    new.meta["kind"] = kind
    return new


def sure_decimal(node: exp.Expr, kind: Kind) -> exp.Expr:
    """Return a value to store; refuse a computed decimal 0 as a text, whose places MySQL may not write."""
    if kind.name != "text" or not _is_computed_decimal(node):
        return node
    chosen = [part.args[name] for part, name in _chosen(node)]
    if chooses(node) and (not chosen or any(map(_is_computed_decimal, chosen))):
        raise unsupported("a decimal chosen among others as a stored text")
    return node if chosen else keep_kind(call("SURE_DECIMAL", node), node)


def _is_computed_decimal(node: exp.Expr) -> bool:
    return kind_of(node).name == "decimal" and not isinstance(node.unnest(), exp.Column | exp.Literal)


def comparable(nodes: Sequence[exp.Expr], strict: bool = False) -> list[exp.Expr]:
    """Return the operands of a comparison, read as dates if one is a date. With `strict`, an unreadable
    constant date is an error, as with `=`. In a change of rows, a text compared with a number must be one."""
    kinds = [kind_of(node) for node in nodes]
    pairs = list(zip(nodes, kinds, strict=True))
    if not any(kind.is_moment for kind in kinds):
        if TIME in kinds:
            refuse_if(any(kind.is_number for kind in kinds), "a time compared with a number")
            nodes = [*map(_constant_time, nodes)]
        return [*map(numeric, nodes)] if any(kind.is_number for kind in kinds) else list(nodes)
    if any(kind.is_number for kind in kinds):
        if len(nodes) == 2 and not any(
            kind.is_moment and isinstance(node, exp.Column) for node, kind in pairs
        ):
            return [as_number(node) for node in nodes]
        numbers = [each.name for each in nodes if isinstance(each, exp.Literal) and not each.is_string]
        long = DATETIME in kinds or any(len(each) > len("20200101") for each in numbers)
        refuse_if(len(nodes) > 2 and long, "a date and time among numbers")
    constants = {n: _constant(node, strict) for n, node in enumerate(nodes) if isinstance(node, exp.Literal)}
    for n in constants:
        if nodes[n].is_string and not is_date(nodes[n].name) and is_in_change(nodes[n]):
            raise unsupported("a text that is no date beside dates in a statement that changes rows")
    if any(kind.name in ("int", "decimal", "float") and not constants.get(n) for n, kind in enumerate(kinds)):
        return [as_number(node) for node in nodes]
    days = all(
        kind in (DATE, Kind("null")) or (n in constants and (constants[n] or "00:00:00").endswith("00:00:00"))
        for n, kind in enumerate(kinds)
    )
    read: list[exp.Expr] = []
    for n, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        if n in constants:
            written = constants[n] or LOWEST
            read.append(exp.Literal.string(written[:10] if days else written))
        elif (kind == DATE and days) or kind.name == "null":
            read.append(node)
        else:
            checked = strict and kind.name == "text" and (is_in_change(node) or not _differs(node))
            # MySQL ignores the time in a text compared with a date, if both may differ from row to row
            day = len(nodes) == 2 and DATE in kinds and kind.name == "text" and all(map(_differs, nodes))
            # MySQL reads some texts that are not dates as NULL, not as the lowest date
            sure = kind.name == "text" and chooses(node) and _differs(node)
            name = "FULL_MOMENT" if checked else "SURE_MOMENT" if sure else "MOMENT"
            of_day = "FULL_DAY_OF" if is_in_change(node) else "DAY_OF"
            read.append(call(name, call(of_day, node) if day else node))
    return [keep_kind(new, node) for new, node in zip(read, nodes, strict=True)]


def _constant_time(node: exp.Expr) -> exp.Expr:
    """Return a constant text beside a TIME as MySQL writes this time, and other nodes unchanged."""
    if not (isinstance(node, exp.Literal) and node.is_string):
        return node
    found = clock_text(node.name)
    refuse_if(found is None, "a text that is no time beside times")
    return keep_kind(exp.Literal.string(found), node)


def _differs(node: exp.Expr) -> bool:
    """Return whether a value may differ from row to row."""
    return node.find(exp.Column, exp.Query) is not None


def chooses(node: exp.Expr) -> bool:
    """Return whether an expression returns one of several values unchanged."""
    name = node.name.upper().removeprefix("MY_") if isinstance(node, exp.Anonymous) else ""
    named = name in ("IFNULL", "NULLIF", "IF", "GREATEST", "LEAST", "ELT")
    return named or isinstance(node.unnest(), exp.If | exp.Case | exp.Coalesce)


def is_in_change(node: exp.Expr) -> bool:
    """Return whether a node is in a statement that changes rows, where MySQL is strict."""
    change = node.find_ancestor(exp.Insert, exp.Update, exp.Delete)
    return change is not None and not change.args.get("ignore")


def in_change(node: exp.Expr, check: str = "FULL_NUMBER") -> exp.Expr:
    """Return a text used as a number, or as a date by another `check`, checked in a change of rows."""
    kind = kind_of(node)
    if kind.name != "text" or not is_in_change(node):
        return node
    if chooses(node) and any(kind_of(each).is_moment for each in node.walk()) and check != "FULL_DATE":
        raise unsupported("a date among texts as a number in a statement that changes rows")
    name = str(node.this).upper() if isinstance(node, exp.Anonymous) else ""
    of_null = node.find(exp.Null) is not None and not kind.silent
    constant = chooses(node) and (node.find(exp.Column) is None or of_null)
    if check == "FULL_NUMBER" and (constant or name in ("MY_GREATEST", "MY_LEAST")):
        raise unsupported("a chosen text as a number in a statement that changes rows")
    if check == "FULL_NUMBER" and kind.silent:
        return node
    if check == "FULL_NUMBER" and (kind.silent is None or _may_be_stored(node)):
        raise unsupported("a text made of TEXT as a number in a statement that changes rows")
    if check == "FULL_BEGUN_DECIMAL" and isinstance(node, exp.Column) and kind.silent is False:
        check = "FULL_DECIMAL"
    if check in ("FULL_NUMBER", "FULL_BEGUN_DECIMAL") and isinstance(node, exp.Literal):
        if is_number(node.name):
            return node
        check = check.replace("BEGUN_", "")  # in a constant, MySQL also checks what follows the number
    return keep_kind(call(check, node), node)


def _may_be_stored(node: exp.Expr) -> bool:
    """Return whether MySQL may have stored a text made from TEXT, which it then reads without an error."""
    above = node.find_ancestor(exp.Window, exp.Query)
    stored = isinstance(above, exp.Window) or (isinstance(above, exp.Select) and above.args.get("group"))
    return bool(stored) and reads_long_text(node)


def may_fail(node: exp.Expr) -> bool:
    """Return whether a rewritten expression in a change of rows has a check that may raise."""
    return any(map(is_check, node.find_all(exp.Anonymous)))


def is_check(node: exp.Anonymous) -> bool:
    return str(node.this).removeprefix("my_").startswith((*CHECKS, DOUBTFUL))


def doubt(check: exp.Anonymous) -> None:
    """Make a check refuse instead of failing, where MySQL may ignore the failure."""
    check.set("this", f"my_{DOUBTFUL}{check.this.removeprefix('my_').removeprefix(DOUBTFUL)}")


def is_early(node: exp.Expr) -> bool:
    """Return whether a node is a constant that MySQL reads before any row."""
    return bool(node.meta.get("early"))


def unless_null(earlier: Sequence[exp.Expr], computed: exp.Expr) -> exp.Expr:
    """Return NULL if one of `earlier` is NULL, else `computed`, which MySQL evaluates only then."""
    tests = [exp.Is(this=exp.paren(each.copy()), expression=exp.null()) for each in earlier]
    return exp.Case(ifs=[exp.If(this=test, true=exp.null()) for test in tests], default=computed)


def check_numbers(nodes: Sequence[exp.Expr]) -> None:
    """Raise StatementError, in a change of rows, for a number that is compared with a date and is not one, or
    with a TEXT column that is also compared with a constant text, which MySQL may put in its place."""
    for node in nodes if any(kind_of(each).is_number for each in nodes) else ():
        if isinstance(node, exp.Column) and kind_of(node).silent and is_in_change(node) and _has_text(node):
            raise unsupported("a column beside a number and a text in a statement that changes rows")
    if not any(isinstance(node, exp.Column) and kind_of(node).is_moment for node in nodes):
        return
    for node in nodes:
        literal = node.this if isinstance(node, exp.Neg) else node
        number = isinstance(literal, exp.Literal) and not literal.is_string
        computed = kind_of(node).is_number and not number and not _differs(node)
        if computed and is_in_change(node):
            raise unsupported("a computed number beside a date in a statement that changes rows")
        if number and is_in_change(node) and not literal.name.strip("0."):
            raise unsupported("0 as a date in a statement that changes rows")
        if number and is_in_change(node) and (literal is not node or moment(literal.name) is None):
            raise StatementError(1292, f"Incorrect date value: '{text_of(node)}'")


def _has_text(column: exp.Column) -> bool:
    """Return whether the condition that contains a column also compares it with a constant text."""
    where = column.find_ancestor(exp.Where)
    others = where.find_all(exp.Column) if where is not None else ()
    for other in others:
        beside = other.find_ancestor(exp.Predicate, exp.Anonymous) if other == column else None
        if other is column or beside is None:
            continue
        if any(each.is_string for each in beside.find_all(exp.Literal)):
            return True
    return False


def _constant(node: exp.Literal, strict: bool) -> str | None:
    """Return a constant as a date and time, or `None` if it is not one; an error for a text if `strict`."""
    found = moment(node.name)
    if found is None and strict and node.is_string:
        raise incorrect(node.name)
    return None if found is None else found.isoformat(" ")


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
        year = any(isinstance(each, exp.Anonymous) and each.this == "my_YEAR" for each in (left, right))
        refuse_if(year and (kind_of(left).is_moment or kind_of(right).is_moment), "a year beside a date")
        years = any(kind_of(each).size == YEAR_BITS and kind_of(each).name == "int" for each in (left, right))
        short = any(isinstance(each, exp.Literal) and number(each.name) < 100 for each in (left, right))
        refuse_if(years and short, "a YEAR of two digits")
        sides = comparable([left, right], strict=True)
        if is_in_change(node):
            if sides[0] == sides[1] and may_fail(sides[0]):
                raise unsupported("what may fail beside itself")  # MySQL may not read it
            sides = _read_early(node, sides)
            _doubt(sides)
        return _lazy(name, sides, is_in_change(node))

    return rule


def _unwrap(node: exp.Expr) -> None:
    """Remove the brackets around columns and constants that a node compares."""
    for each in list(node.iter_expressions()):
        inner = each.unnest()
        if isinstance(each, exp.Paren) and isinstance(inner, exp.Column | exp.Literal):
            each.replace(inner)


def _read_early(node: exp.Expr, sides: list[exp.Expr]) -> list[exp.Expr]:
    """Return the operands of a comparison in a statement that changes rows. A constant text compared with a
    column of numbers is read before any row, if the comparison is part of a condition."""
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
    """Refuse what fails in a query or constant compared with a column: for a key, MySQL ignores it."""
    for value, column in (sides, reversed(sides)):
        computed = value.find(exp.Query) is not None or value.find(exp.Column) is None
        if isinstance(column, exp.Column) and computed:
            for each in value.find_all(exp.Anonymous):
                if is_check(each) and not (is_early(each) and each.find_ancestor(exp.Query) is None):
                    doubt(each)
                    each.meta["early"] = False


def _is_condition(node: exp.Expr) -> bool:
    """Return whether a node is in WHERE or HAVING of a query on tables. Raise StatementError for a query on
    derived tables or with CTEs, whose columns MySQL may or may not read early."""
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
    """Return a comparison of rows cell by cell, or `None` if SQLite's will do, as all types are alike."""
    if not isinstance(right, exp.Tuple) or len(left.expressions) != len(right.expressions):
        return None
    pairs = list(zip(left.expressions, right.expressions, strict=True))
    if all(kind_of(one).name == kind_of(other).name for one, other in pairs) and not is_in_change(node):
        return None
    refuse_if(name not in ("EQ", "NE"), "an order of rows with values of different types")
    equalities = [exp.EQ(this=one, expression=other) for one, other in pairs]
    for each in equalities:
        each.parent = node.parent  # it will be inserted there
    equal = exp.paren(exp.and_(*map(_comparison("EQ"), equalities), copy=False))
    return exp.Not(this=equal) if name == "NE" else equal


def _binary(node: exp.Expr) -> exp.Expr:
    """Return a comparison by bytes. Refuse one with a number or date: MySQL does not compare its bytes."""
    if any(kind_of(each).is_number or kind_of(each).is_moment for each in (node.this, node.expression)):
        raise unsupported("a number or a date beside BINARY or a collation")
    return node


def _lazy(name: str, sides: list[exp.Expr], in_change: bool) -> exp.Expr:
    """Return a comparison. After a NULL, MySQL does not evaluate what may fail in a change of rows."""
    compared = call(name, *sides)
    if not in_change or not any(may_fail(side) and not is_early(side) for side in sides[1:]):
        return compared
    refuse_if(name == "NULL_SAFE_EQ", "<=> with what may be no number in a statement that changes rows")
    return unless_null(sides[:1], compared)


def _quantified(name: str, left: exp.Expr, right: exp.Any | exp.All) -> exp.Expr:
    """Return `a < ALL (SELECT ...)`, true if no row breaks it, or `a < ANY (...)`, true if a row meets it."""
    own, theirs = kind_of(left), [kind for _, kind in right.this.unnest().meta.get("row", ())]
    refuse_if(not all(_alike(own, each) for each in theirs), "ANY and ALL of rows of another type")
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
        if node.args["query"].this is not rows:  # SQLite takes double brackets for a single value
            node.set("query", exp.Subquery(this=rows))
        node.set("this", collated(_beside_rows(node)))
        return node
    sides = [node.this, *node.expressions]
    chosen = any(kind_of(each).name == "text" and chooses(each) for each in node.expressions)
    refuse_if(kind_of(node.this).is_moment and chosen, "a date IN texts of CASE or IF")
    long = any(len(each.name) > len("2020-01-01") for each in node.this.find_all(exp.Literal))
    if kind_of(node.this) == DATE and long and len(sides) > 2:
        raise unsupported("the date of a constant date and time IN several")
    of_texts = kind_of(node.this).name == "text" and len(sides) > 2
    refuse_if(of_texts and any(kind_of(each).is_moment for each in sides), "a text IN dates")
    if is_in_change(node):
        texts = [each for each in node.expressions if isinstance(each, exp.Literal) and each.is_string]
        own, numbers = kind_of(node.this), any(kind_of(each).is_number for each in node.expressions)
        fails = any(map(may_fail, node.expressions))
        if own.silent and own.name == "text" and not fails:
            return call("IN", *sides)
        wrong = (own.is_number or numbers) and not all(is_number(each.name) for each in texts)
        refuse_if(wrong or fails, "IN with what may be no number in a statement that changes rows")
    return call("IN", *comparable(sides, strict=len(sides) == 2))


def _in_rows(node: exp.Expr) -> exp.Expr:
    """Return a row IN rows, as a comparison with each of them if their cells are of different types."""
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
    """Return whether SQLite compares values of these kinds as MySQL does."""
    return one.name == other.name or (one.is_number and other.is_number)


def _beside_rows(node: exp.Expr) -> exp.Expr:
    """Return the value that IN looks up in a query's rows, as their kind, or convert them to its kind."""
    value, kinds = node.this, [kind for _, kind in node.args["query"].unnest().meta.get("row", ())]
    own, theirs = kind_of(value), kinds[0] if len(kinds) == 1 else UNKNOWN
    if _alike(own, theirs) or {own.name, theirs.name} & {"null", "unknown"}:
        return value
    if own.name == "text" and theirs.is_number:
        read = call("CAST_DOUBLE", in_change(value))
        for check in filter(is_check, list(read.find_all(exp.Anonymous))):
            doubt(check)  # if there are no rows, MySQL reads nothing
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
    refuse_if(any(kind.is_moment for kind in kinds) and text and number, "a date BETWEEN a number and a text")
    refuse_if(kinds[0].name == "text" and any(kind.is_moment for kind in kinds), "a text BETWEEN dates")
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
    if number and text:  # then all are compared as numbers
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
    function = isinstance(node.this, exp.Func) and not isinstance(node.this, exp.Case | exp.If)
    refuse_if(
        function and node.this.find(exp.Null), "REGEXP of a function of NULL"
    )  # it has no character set
    exact = is_binary(node.this) or is_binary(node.expression)
    return call(
        "REGEXP_LIKE", as_text(_bare(node.this)), as_text(_bare(node.expression)), "c" if exact else ""
    )


def _case(node: exp.Expr) -> exp.Expr:
    """Return `CASE a WHEN b THEN x ...` as a CASE on the position of the value that equals a."""
    subject = node.this
    if subject is not None:
        of_dates = any(kind_of(branch.this).is_moment for branch in node.args["ifs"])
        refuse_if(kind_of(subject).name == "text" and of_dates, "CASE of a text with dates")
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
    """Yield the operands of a chain of AND or of OR."""
    for side in (node.this.unnest(), node.expression.unnest()):
        if isinstance(side, kind):
            yield from _chain(side, kind)
        else:
            yield side


def _may_be_known(side: exp.Expr) -> bool:
    """Return whether MySQL may decide a condition by a column's type, as `id IS NULL` or `i = 1.5`."""
    numbers = [each for each in side.find_all(exp.Literal) if not each.is_string]
    odd = any(not each.name.isdecimal() or int(each.name) >= 2**31 for each in numbers)
    return odd or isinstance(side.this if isinstance(side, exp.Not) else side, exp.Is)


def _connector(node: exp.Expr) -> exp.Expr:
    """Return AND or OR. MySQL may decide it by a constant and not evaluate the other operands."""
    above = node.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    if type(above) is type(node) or not is_in_change(node):
        return node  # the top of a chain checks all of it
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
    """Return whether a condition equates a column and a constant, which MySQL evaluates first in AND."""
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
    **dict.fromkeys((exp.And, exp.Or), _connector),
    exp.Like: _like,
    exp.Escape: _escape,
    exp.RegexpLike: _regexp,
    exp.Case: _case,
    exp.If: _if,
}
"""Translation rules for comparisons, by node type (see `rules`)."""
