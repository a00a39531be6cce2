"""MySQL's expressions, rewritten for SQLite: a rule for each kind of node in sqlglot's tree.

Operators and functions whose meaning differs become calls of the Python functions in `functions`, which
SQLite knows under the prefix `my_`. What MySQL would refuse, and what has no counterpart, raises
`StatementError` with MySQL's number.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from trl_dbbench.mysqlite.calls import cast, counted, function_call, move, remainder_of
from trl_dbbench.mysqlite.charsets import CHARSETS, in_charset
from trl_dbbench.mysqlite.checks import single_row
from trl_dbbench.mysqlite.coercions import (
    as_text,
    call,
    doubt,
    exact,
    in_change,
    is_check,
    is_early,
    is_in_change,
    may_fail,
    numeric,
    unified,
    unless_null,
)
from trl_dbbench.mysqlite.comparisons import BINARY, COMPARISONS, collated
from trl_dbbench.mysqlite.dates import EXTRACTED
from trl_dbbench.mysqlite.errors import SHOWN_DATABASE, StatementError, syntax_error, unsupported
from trl_dbbench.mysqlite.joins import turn_right_joins
from trl_dbbench.mysqlite.kinds import JSON, keep_kind, kind_of
from trl_dbbench.mysqlite.output_names import having_alone
from trl_dbbench.mysqlite.overflow import OVERFLOW, bits, checked
from trl_dbbench.mysqlite.parse import text_of
from trl_dbbench.mysqlite.totals import TOTALS
from trl_dbbench.mysqlite.values import COLLATION


def rewrite(node: exp.Expr) -> None:
    """Replaces a node whose descendants have been rewritten."""
    rule = next((_RULES[kind] for kind in type(node).__mro__ if kind in _RULES), None)
    if rule is None:
        return
    new = rule(node)
    if new is not node and node.parent is not None:
        node.replace(keep_kind(new, node))


def _plus(name: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(node: exp.Expr) -> exp.Expr:
        for moment, amount in ((node.this, node.expression), (node.expression, node.this)):
            if isinstance(amount, exp.Interval):
                return move(name, moment, amount, kind_of(node))
        return _arithmetic(node)

    return rule


def _arithmetic(node: exp.Expr) -> exp.Expr:
    for side in ("this", "expression"):
        node.set(side, numeric(node.args[side]))
    return exact(checked(_again(node), kind_of(node)), kind_of(node))


def _again(node: exp.Expr) -> exp.Expr:
    """The same node, to stand below the one that takes its place."""
    return type(node)(**node.args)


def _quotient(node: exp.Expr) -> exp.Expr:
    kind = kind_of(node)
    places = exp.Literal.number(kind.places) if kind.name == "decimal" else None
    dividend = numeric(node.this)
    if kind.name == "float":  # of texts such as '1', SQLite makes whole numbers
        dividend = call("CAST_DOUBLE", dividend)
    return call("DIV", dividend, _divisor(node), places)


def _remainder(node: exp.Expr) -> exp.Expr:
    kind = kind_of(node)
    return exact(call(remainder_of(kind), numeric(node.this), _divisor(node)), kind)


def _whole_quotient(node: exp.Expr) -> exp.Expr:
    strict = is_in_change(node)
    dividend, divisor = (numeric(side, "FULL_BEGUN_DECIMAL") for side in (node.this, node.expression))
    fails = strict and may_fail(divisor)
    if strict:
        divisor = call("DIVISOR", divisor, dividend.copy())
    quotient = checked(call("INT_DIV", dividend, divisor), kind_of(node))
    return unless_null([dividend], quotient) if fails else quotient


def _divisor(node: exp.Expr) -> exp.Expr:
    divisor = numeric(node.expression)
    return call("DIVISOR", divisor, numeric(node.this).copy()) if is_in_change(node) else divisor


def _negative(node: exp.Expr) -> exp.Expr:
    kind = kind_of(node.this).name
    number = numeric(node.this)
    if kind == "text" and is_in_change(node):
        number = call("NOT_ZERO", number)
    elif kind in ("text", "float"):
        return call("NEGATIVE", number)  # SQLite subtracts from 0, which gives no -0
    node.set("this", number)
    return node


def _xor(node: exp.Expr) -> exp.Expr:
    sides = (node.this, node.expression)
    if is_in_change(node) and any(map(may_fail, sides)):  # MySQL does not look at it beside NULL
        raise unsupported("XOR of what may be no number in a statement that changes rows")
    return call("NE", *(exp.Not(this=exp.paren(side)) for side in sides))


def _is(node: exp.Expr) -> exp.Expr:
    if isinstance(node.expression, exp.Column | exp.Literal):
        raise syntax_error(text_of(node.expression))
    if isinstance(node.expression, exp.Null) and is_in_change(node) and may_fail(node.this):
        raise unsupported("IS NULL of what may be no number in a statement that changes rows")
    return node


def _first_of(node: exp.Expr) -> exp.Expr:
    if not node.expressions:  # SQLite's has two arguments at least
        return exp.paren(node.this)
    node.set("this", unified(node.this, kind_of(node)))
    node.set("expressions", [unified(each, kind_of(node)) for each in node.expressions])
    return node


def _collate(node: exp.Expr) -> exp.Expr:
    exact = node.expression.name.lower().endswith("_bin") or node.expression.name.upper() == BINARY
    node.set("expression", exp.var(BINARY if exact else COLLATION))
    return node


def _extract(node: exp.Expr) -> exp.Expr:
    unit, value = node.name.upper(), node.expression
    if unit not in EXTRACTED:
        raise unsupported(f"EXTRACT({unit} ...)")
    read = call("DATED", value) if kind_of(value).is_number else in_change(value, "FULL_DATE")
    return call("EXTRACT", exp.Literal.string(unit), read)


def _interval(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Tuple):
        raise unsupported("INTERVAL()")
    return node


def _trim(node: exp.Expr) -> exp.Expr:
    where = exp.Literal.string(str(node.args.get("position") or "BOTH").upper())
    return call("TRIM", as_text(node.this), node.expression or exp.Literal.string(" "), where)


def _substring(node: exp.Expr) -> exp.Expr:
    start, length = node.args.get("start"), node.args.get("length")
    if start is None:
        raise syntax_error(")")
    counts = [counted(each) for each in (start, length) if each is not None]
    return call("SUBSTRING", as_text(node.this), *counts)


def _characters(node: exp.Expr) -> exp.Expr:
    charset = node.args.get("charset")
    if not charset:
        raise unsupported("CHAR() without USING, which gives bytes")
    return in_charset(call("CHAR", *map(counted, node.expressions)), charset.name)


def _literal(node: exp.Expr) -> exp.Expr:
    if node.is_string and "\0" in node.name:  # where SQLite would stop to read the statement
        return call("CAST_CHAR", exp.HexString(this=node.name.encode().hex()))
    return node


def _variable(node: exp.Expr) -> exp.Expr:
    name = node.name.lower()
    if isinstance(node, exp.Parameter):
        return exp.null()  # like a user variable that was never set
    if name == "version":
        return call("VERSION")
    raise StatementError(1193, f"Unknown system variable '{name}'")


_INTERNAL = re.compile(r"sqlite_|pragma_|dbstat$", re.IGNORECASE)
"""SQLite's own tables."""


def _table(node: exp.Expr) -> exp.Expr:
    if node.args.get("hints"):  # an error where there is no such index
        raise unsupported("USE INDEX and the like")
    if node.alias_column_names:
        raise syntax_error("(")
    if isinstance(node.this, exp.Func):
        raise unsupported("a function as a table")
    if _INTERNAL.match(node.name):
        raise StatementError(1146, f"Table '{SHOWN_DATABASE}.{node.name}' doesn't exist")
    schema = node.text("db")
    if node.text("catalog") or (node.args.get("db") is not None and not schema):
        raise syntax_error(text_of(node))
    if schema:
        if schema.lower() == "information_schema":
            if not node.alias:
                node.set("alias", exp.TableAlias(this=node.this.copy()))
            node.set("this", exp.to_identifier(f"information_schema.{node.name.lower()}", quoted=True))
        elif schema != SHOWN_DATABASE:
            raise StatementError(1049, f"Unknown database '{schema}'")
        node.set("db", None)
    return node


def _column(node: exp.Expr) -> exp.Expr:
    schema = node.text("db")
    if schema and schema != SHOWN_DATABASE and schema.lower() != "information_schema":
        written = text_of(node).replace("`", "")
        raise StatementError(1054, f"Unknown column '{written}' in 'field list'")
    node.set("db", None)
    if kind_of(node) == JSON and not _is_shown(node):
        raise unsupported("a column of JSON in an expression")
    if kind_of(node).name == "fixed" and not (_is_shown(node) or isinstance(node.parent, _COMPARING)):
        raise unsupported("FLOAT or DOUBLE with a number of places in an expression")
    return node


_COMPARING = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.In, exp.Between, exp.Ordered, exp.Group)


def _is_shown(column: exp.Expr) -> bool:
    """Whether a column is shown as it is, counted, or asked for NULL."""
    above = column.parent.parent if isinstance(column.parent, exp.Alias) else column.parent
    asked = isinstance(above, exp.Is) and isinstance(above.expression, exp.Null)
    listed = isinstance(above, exp.Select) and not above.args.get("distinct")
    if isinstance(above, exp.Select) and kind_of(column).name == "fixed":
        listed = listed and not isinstance(above.parent, exp.SetOperation)
    return asked or listed or isinstance(above, exp.Count)


def _no_place(key: exp.Expr) -> exp.Expr:
    """A key of GROUP BY or ORDER BY; SQLite takes `-1` for the place of a column, as it does with `1`."""
    inner = key
    while isinstance(inner, exp.Neg | exp.Paren):
        inner = inner.this
    constant = isinstance(inner, exp.Literal) and key.find(exp.Neg) is not None
    if isinstance(key, exp.Literal) and key.is_int:  # the place of a column, which may be a computed text
        return exp.Collate(this=key, expression=exp.var(COLLATION))
    return exp.null() if constant else collated(key)


def _order(node: exp.Expr) -> exp.Expr:
    if is_in_change(node) and may_fail(node.this):
        raise unsupported("ORDER BY what may be no number in a statement that changes rows")
    node.set("this", _no_place(node.this))
    node.set("nulls_first", not node.args.get("desc"))  # NULL is the smallest value in both
    return node


def _group(node: exp.Expr) -> exp.Expr:
    if node.args.get("rollup"):
        raise unsupported("WITH ROLLUP")
    shown = node.parent.expressions if isinstance(node.parent, exp.Select) else []
    folded = {
        str(place) for place, each in enumerate(shown, 1) if each.find(exp.AggFunc)
    }  # a mistake of its own
    keys = node.expressions
    mistaken = [isinstance(key, exp.Literal) and key.name in folded for key in keys]
    node.set(
        "expressions",
        [key if wrong else _no_place(key) for key, wrong in zip(keys, mistaken, strict=True)],
    )
    return node


def _select(node: exp.Expr) -> exp.Expr:
    if node.args.get("limit") and node.args.get("where") and is_in_change(node):
        checks = filter(is_check, node.args["where"].find_all(exp.Anonymous))
        if not all(map(is_early, checks)):  # which MySQL may not reach
            raise unsupported("LIMIT beside what may fail in a statement that changes rows")
    if node.args.get("limit") and node.args.get("order"):  # SQLite computes more rows than it shows
        for each in (call for column in node.expressions for call in column.find_all(exp.Anonymous)):
            if str(each.this).removeprefix("my_") in OVERFLOW:
                doubt(each)
    if node.args.get("having") is not None and node.args.get("group") is None:
        having_alone(node)
    if any(isinstance(each.unalias(), exp.Tuple) for each in node.expressions):
        raise unsupported("a row among the columns")
    turn_right_joins(node)
    node.set("locks", None)
    node.set("operation_modifiers", None)
    if node.args.get("into"):
        raise unsupported("SELECT ... INTO")
    source = node.args.get("from_")
    if source is not None and isinstance(source.this, exp.Table) and source.this.name.upper() == "DUAL":
        node.set("from_", None)
    above = node.parent.parent if isinstance(node.parent, exp.Subquery) else node.parent
    if node.args.get("distinct") or isinstance(above, exp.SetOperation):
        node.set("expressions", [_collated_column(column) for column in node.expressions])
    return node


def _collated_column(column: exp.Expr) -> exp.Expr:
    if isinstance(column, exp.Alias):
        column.set("this", _collated_column(column.this))
        return column
    number = isinstance(column, exp.Literal) and not column.is_string
    plain = number or isinstance(column, exp.Column | exp.Star | exp.Collate)
    return column if plain else collated(column)


def _refuse(what: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(node: exp.Expr) -> exp.Expr:
        raise unsupported(what)

    return rule


def _placeholder(node: exp.Expr) -> exp.Expr:
    raise syntax_error(text_of(node))


def _call_of(name: str) -> Callable[[exp.Expr], exp.Expr]:
    return lambda node: call(name)


_RULES: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    **COMPARISONS,
    **TOTALS,
    **CHARSETS,
    exp.Subquery: single_row,
    exp.Div: _quotient,
    exp.IntDiv: _whole_quotient,
    exp.Mod: _remainder,
    exp.Add: _plus("DATE_ADD"),
    exp.Sub: _plus("DATE_SUB"),
    exp.Mul: _arithmetic,
    exp.Neg: _negative,
    exp.Is: _is,
    exp.Coalesce: _first_of,
    exp.Xor: _xor,
    exp.Cast: cast,
    exp.Collate: _collate,
    exp.Trim: _trim,
    exp.Extract: _extract,
    exp.Interval: _interval,
    **dict.fromkeys((exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot), bits),
    exp.StrPosition: lambda node: call("LOCATE", as_text(node.args["substr"]), as_text(node.this)),
    exp.Substring: _substring,
    exp.Chr: _characters,
    exp.Concat: lambda node: call("CONCAT", *map(as_text, node.expressions)),
    exp.CurrentDate: _call_of("CURDATE"),
    exp.CurrentTime: _call_of("CURTIME"),
    exp.CurrentTimestamp: _call_of("NOW"),
    exp.Localtime: _call_of("NOW"),
    exp.Localtimestamp: _call_of("NOW"),
    exp.CurrentUser: _call_of("USER"),
    exp.Anonymous: function_call,
    exp.Literal: _literal,
    exp.Parameter: _variable,
    exp.SessionParameter: _variable,
    exp.PropertyEQ: _refuse(":="),
    exp.Placeholder: _placeholder,
    exp.Table: _table,
    exp.Column: _column,
    exp.Ordered: _order,
    exp.Group: _group,
    exp.Select: _select,
    **dict.fromkeys((exp.JSONExtract, exp.JSONExtractScalar), _refuse("-> and ->>")),
    exp.MatchAgainst: _refuse("MATCH ... AGAINST"),
}
