"""MySQL's expressions, rewritten for SQLite: a rule for each kind of node in sqlglot's tree.

Operators and functions whose meaning differs become calls of the Python functions in `functions`, which
SQLite knows under the prefix `my_`. What MySQL would refuse, and what has no counterpart, raises
`StatementError` with MySQL's number.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from trl_dbbench.database.sandbox import SHOWN_DATABASE
from trl_dbbench.database.sqlite.calls import cast, counted, function_call, move
from trl_dbbench.database.sqlite.checks import single_row
from trl_dbbench.database.sqlite.coercions import (
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
from trl_dbbench.database.sqlite.comparisons import BINARY, COMPARISONS, collated
from trl_dbbench.database.sqlite.dates import EXTRACTED
from trl_dbbench.database.sqlite.joins import turn_right_joins
from trl_dbbench.database.sqlite.kinds import JSON, Kind, keep_kind, kind_of
from trl_dbbench.database.sqlite.output_names import having_alone
from trl_dbbench.database.sqlite.overflow import OVERFLOW, bits, checked
from trl_dbbench.database.sqlite.parse import syntax_error, text_of, unsupported
from trl_dbbench.database.sqlite.values import COLLATION, StatementError


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
    return call("DIV", numeric(node.this), _divisor(node), places)


def _whole_quotient(node: exp.Expr) -> exp.Expr:
    strict = is_in_change(node)
    dividend, divisor = (numeric(side, "FULL_DECIMAL") for side in (node.this, node.expression))
    fails = strict and may_fail(divisor)
    if strict:
        divisor = call("DIVISOR", divisor, dividend.copy())
    quotient = checked(call("INT_DIV", dividend, divisor), kind_of(node))
    return unless_null([dividend], quotient) if fails else quotient


def _divisor(node: exp.Expr) -> exp.Expr:
    divisor = numeric(node.expression)
    return call("DIVISOR", divisor, numeric(node.this).copy()) if is_in_change(node) else divisor


def _negative(node: exp.Expr) -> exp.Expr:
    node.set("this", numeric(node.this))
    return node


def _total(node: exp.Expr) -> exp.Expr:
    """SUM and AVG, which give decimals of a number of places."""
    if any(each.find(exp.Avg) for each in node.find_all(exp.Subquery)):
        raise unsupported("a sum of a subquery's mean")
    if not isinstance(node.this, exp.Distinct):
        node.set("this", numeric(node.this))
    return node if isinstance(node.parent, exp.Window) else _of_mean(node, kind_of(node))


def _of_mean(node: exp.Expr, kind: Kind) -> exp.Expr:
    """A total, rounded; MySQL keeps a mean with nine places, or a multiple of them, until it is shown."""
    mean = isinstance(node.this if isinstance(node, exp.Window) else node, exp.Avg) and not _is_kept(node)
    return exact(_again(node), kind, -(-kind.places // 9) * 9 if mean else kind.places)


def _is_kept(node: exp.Expr) -> bool:
    """Whether it is a column of a table that is made for the statement, and rounded there."""
    above = node.parent.parent if isinstance(node.parent, exp.Alias) else node.parent
    while isinstance(above, exp.Query | exp.Subquery):
        above = above.parent
    return isinstance(above, exp.CTE | exp.From | exp.Join)


def _extreme(node: exp.Expr) -> exp.Expr:
    """MIN and MAX, of texts by MySQL's order."""
    if kind_of(node).name in ("text", "unknown") and not isinstance(node.this, exp.Column | exp.Distinct):
        node.set("this", collated(node.this))
    return node


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
    if not node.args.get("charset"):
        raise unsupported("CHAR() without USING, which gives bytes")
    return call("CHAR", *map(numeric, node.expressions))


def _group_concat(node: exp.Expr) -> exp.Expr:
    value, keys, directions = node.this, [], ""
    if isinstance(value, exp.Order):
        keys = [_group_key(ordered.this, value.this) for ordered in value.expressions]
        directions = "".join("-" if ordered.args.get("desc") else "+" for ordered in value.expressions)
        value = value.this
    distinct = isinstance(value, exp.Distinct)
    values = [as_text(each) for each in (value.expressions if distinct else [value])]
    separator = node.args.get("separator") or exp.Literal.string(",")
    flags = [exp.Literal.number(int(distinct)), exp.Literal.string(directions)]
    return call("GROUP_CONCAT", separator, *flags, *keys, *values)


def _group_key(key: exp.Expr, value: exp.Expr) -> exp.Expr:
    """What GROUP_CONCAT sorts by: a whole number is the place of one of its arguments."""
    if not isinstance(key, exp.Literal) or key.is_string:
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
    return node


def _is_shown(column: exp.Column) -> bool:
    """Whether a column is shown as it is, counted, or asked for NULL."""
    above = column.parent.parent if isinstance(column.parent, exp.Alias) else column.parent
    asked = isinstance(above, exp.Is) and isinstance(above.expression, exp.Null)
    return asked or isinstance(above, exp.Count) or (isinstance(above, exp.Select) and not above.args.get("distinct"))


def _no_place(key: exp.Expr) -> exp.Expr:
    """A key of GROUP BY or ORDER BY; SQLite takes `-1` for the place of a column, as it does with `1`."""
    constant = isinstance(key, exp.Neg) and isinstance(key.this, exp.Literal)
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
    node.set("expressions", [_no_place(each) for each in node.expressions])
    return node


def _window(node: exp.Expr) -> exp.Expr:
    node.set("partition_by", [collated(each) for each in node.args.get("partition_by") or []] or None)
    if not isinstance(node.this, exp.Sum | exp.Avg):
        return node
    return _of_mean(node, kind_of(node))


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
    exp.Subquery: single_row,
    exp.Div: _quotient,
    exp.IntDiv: _whole_quotient,
    exp.Mod: lambda node: exact(call("MOD", numeric(node.this), _divisor(node)), kind_of(node)),
    exp.Add: _plus("DATE_ADD"),
    exp.Sub: _plus("DATE_SUB"),
    exp.Mul: _arithmetic,
    exp.Neg: _negative,
    exp.Sum: _total,
    exp.Avg: _total,
    exp.Min: _extreme,
    exp.Max: _extreme,
    exp.Is: _is,
    exp.Coalesce: _first_of,
    exp.Xor: lambda node: call(
        "NE", exp.Not(this=exp.paren(node.this)), exp.Not(this=exp.paren(node.expression))
    ),
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
    exp.GroupConcat: _group_concat,
    exp.Count: _count,
    exp.Anonymous: function_call,
    exp.Literal: _literal,
    exp.Parameter: _variable,
    exp.SessionParameter: _variable,
    exp.PropertyEQ: _refuse(":="),
    exp.Placeholder: _placeholder,
    exp.Introducer: lambda node: node.expression,
    exp.Table: _table,
    exp.Column: _column,
    exp.Ordered: _order,
    exp.Group: _group,
    exp.Window: _window,
    exp.Select: _select,
    **dict.fromkeys((exp.JSONExtract, exp.JSONExtractScalar), _refuse("-> and ->>")),
    exp.MatchAgainst: _refuse("MATCH ... AGAINST"),
}
