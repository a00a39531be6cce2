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
from trl_dbbench.database.sqlite.aggregates import AGGREGATES
from trl_dbbench.database.sqlite.checks import single_row
from trl_dbbench.database.sqlite.functions import functions
from trl_dbbench.database.sqlite.parse import syntax_error, unsupported
from trl_dbbench.database.sqlite.values import COLLATION, StatementError

_PASSED_ON = frozenset({"IFNULL", "JSON_EXTRACT", "JSON_ARRAY", "JSON_OBJECT", "JSON_VALID", "JSON_TYPE"})
_KNOWN = frozenset(functions()) | frozenset(AGGREGATES)
_BINARY = "BINARY"


def _call(name: str, *arguments: exp.Expr | None) -> exp.Anonymous:
    """A call of one of our functions."""
    return exp.Anonymous(this=f"my_{name}", expressions=[each for each in arguments if each is not None])


def rewrite(node: exp.Expr) -> None:
    """Replaces a node whose descendants have been rewritten."""
    rule = next((_RULES[kind] for kind in type(node).__mro__ if kind in _RULES), None)
    if rule is None:
        return
    new = rule(node)
    if new is not node and node.parent is not None:
        node.replace(new)


def _is_binary(node: exp.Expr) -> bool:
    return isinstance(node, exp.Collate) and node.expression.name == _BINARY


def _collated(node: exp.Expr) -> exp.Expr:
    if (isinstance(node, exp.Literal) and not node.is_string) or isinstance(
        node, exp.Collate | exp.Star | exp.Tuple
    ):
        return node
    return exp.Collate(this=node, expression=exp.var(COLLATION))


def _comparison(name: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(node: exp.Expr) -> exp.Expr:
        left, right = node.this, node.expression
        if isinstance(node.parent, exp.Update | exp.OnConflict) and node.arg_key == "expressions":
            return node  # an assignment
        if isinstance(left, exp.Tuple) or _is_binary(left) or _is_binary(right):
            return node
        if isinstance(right, exp.Any | exp.All):
            return _quantified(name, left, right)
        return _call(name, left, right)

    return rule


def _quantified(name: str, left: exp.Expr, right: exp.Any | exp.All) -> exp.Expr:
    """`a < ALL (SELECT ...)`: it is false for no row; with ANY: it is true for a row."""
    rows = exp.CTE(
        this=right.this.unnest(),
        alias=exp.TableAlias(this=exp.to_identifier("my_q"), columns=[exp.to_identifier("c")]),
    )
    holds: exp.Expr = _call(name, left, exp.column("c", "my_q"))
    if isinstance(right, exp.All):
        holds = exp.Not(this=exp.Coalesce(this=holds, expressions=[exp.Literal.number(0)]))
    query = exp.select("1").from_("my_q").where(holds)
    query.set("with_", exp.With(expressions=[rows]))
    found: exp.Expr = exp.Exists(this=query)
    return exp.Not(this=found) if isinstance(right, exp.All) else found


def _in(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Tuple) or _is_binary(node.this):
        return node
    if node.args.get("query"):
        node.set("this", _collated(node.this))
        return node
    return _call("IN", node.this, *node.expressions)


def _like(node: exp.Expr) -> exp.Expr:
    exact = _is_binary(node.this) or _is_binary(node.expression)
    escape = exp.Literal.string("\\")
    like = _call("LIKE", _bare(node.this), _bare(node.expression), escape, exp.Literal.number(int(exact)))
    return exp.Not(this=like) if node.args.get("negate") else like


def _escape(node: exp.Expr) -> exp.Expr:
    like = node.find(exp.Anonymous)
    assert like is not None
    like.expressions[2].replace(node.expression)
    return node.this


def _bare(node: exp.Expr) -> exp.Expr:
    return node.this if isinstance(node, exp.Collate) else node


def _regexp(node: exp.Expr) -> exp.Expr:
    flags = exp.Literal.string("c" if _is_binary(node.this) or _is_binary(node.expression) else "")
    return _call("REGEXP_LIKE", _bare(node.this), _bare(node.expression), flags)


def _plus(name: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(node: exp.Expr) -> exp.Expr:
        for moment, interval in ((node.this, node.expression), (node.expression, node.this)):
            if isinstance(interval, exp.Interval):
                return _call(name, moment, *_interval(interval))
        return node

    return rule


def _interval(node: exp.Interval) -> tuple[exp.Expr, exp.Expr]:
    unit = node.args.get("unit")
    amount = node.this or exp.null()
    if isinstance(amount, exp.Literal) and unit is None:
        raise syntax_error(node.sql(dialect="mysql"))
    return amount, exp.Literal.string(unit.name.upper().removesuffix("S") if unit else "DAY")


def _case(node: exp.Expr) -> exp.Expr:
    """`CASE a WHEN b THEN x ...`: first the number of the value that equals a, then the result by number."""
    subject = node.this
    if subject is not None:
        node.set("this", _call("FIELD", subject, *(branch.this for branch in node.args["ifs"])))
        for place, branch in enumerate(node.args["ifs"], 1):
            branch.set("this", exp.Literal.number(place))
    return node


_T = exp.DataType.Type
_INTEGERS = {_T.BIGINT, _T.UBIGINT, _T.INT, _T.UINT, _T.SMALLINT, _T.TINYINT, _T.YEAR}
_TEXTS = {_T.CHAR, _T.NCHAR, _T.VARCHAR, _T.NVARCHAR, _T.TEXT, _T.CHARACTER_SET, _T.JSON}


def _cast(node: exp.Expr) -> exp.Expr:
    kind = node.args["to"]
    sizes = [exp.Literal.number(size.name) for size in kind.expressions]
    if kind.this in _INTEGERS:
        return _call("CAST_SIGNED", node.this)
    if kind.this in (_T.DECIMAL, _T.UDECIMAL):
        return _call("CAST_DECIMAL", node.this, sizes[1] if len(sizes) > 1 else exp.Literal.number(0))
    if kind.this in (_T.FLOAT, _T.DOUBLE, _T.UDOUBLE):
        return _call("CAST_DOUBLE", node.this)
    if kind.this in _TEXTS:
        return _call("CAST_CHAR", node.this, *sizes[:1])
    if kind.this in (_T.BINARY, _T.VARBINARY):
        return exp.Collate(this=node.this, expression=exp.var(_BINARY))
    if kind.this == _T.DATE:
        return _call("DATE", node.this)
    if kind.this == _T.TIME:
        return _call("TIME", node.this)
    if kind.this in (_T.DATETIME, _T.TIMESTAMP, _T.TIMESTAMPTZ, _T.TIMESTAMPNTZ):
        return _call("TIMESTAMP", node.this)
    raise syntax_error(node.sql(dialect="mysql"))


def _collate(node: exp.Expr) -> exp.Expr:
    exact = node.expression.name.lower().endswith("_bin") or node.expression.name.upper() == _BINARY
    node.set("expression", exp.var(_BINARY if exact else COLLATION))
    return node


def _trim(node: exp.Expr) -> exp.Expr:
    where = exp.Literal.string(str(node.args.get("position") or "BOTH").upper())
    return _call("TRIM", node.this, node.expression or exp.Literal.string(" "), where)


def _group_concat(node: exp.Expr) -> exp.Expr:
    value, keys, directions = node.this, [], ""
    if isinstance(value, exp.Order):
        keys = [ordered.this for ordered in value.expressions]
        directions = "".join("-" if ordered.args.get("desc") else "+" for ordered in value.expressions)
        value = value.this
    distinct = isinstance(value, exp.Distinct)
    values = value.expressions if distinct else [value]
    separator = node.args.get("separator") or exp.Literal.string(",")
    flags = [exp.Literal.number(int(distinct)), exp.Literal.string(directions)]
    return _call("GROUP_CONCAT", separator, *flags, *keys, *values)


def _count(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Distinct):
        parts = node.this.expressions
        one = parts[0] if len(parts) == 1 else _call("CONCAT", *_between(parts, exp.Literal.string("\x1f")))
        node.set("this", exp.Distinct(expressions=[_collated(one)]))
    return node


def _between(parts: list[exp.Expr], separator: exp.Expr) -> list[exp.Expr]:
    return [each for part in parts for each in (part, separator.copy())][:-1]


def _anonymous(node: exp.Expr) -> exp.Expr:
    name, arguments = str(node.this).upper(), list(node.expressions)
    if name == "VALUES":
        return exp.column(arguments[0].copy(), "excluded")
    if name == "ANY_VALUE" and len(arguments) == 1:
        return arguments[0]
    if name in _PASSED_ON:
        return node
    if name not in _KNOWN:
        raise StatementError(1305, f"FUNCTION {SHOWN_DATABASE}.{name} does not exist")
    if name in ("TIMESTAMPDIFF", "TIMESTAMPADD") and arguments:
        arguments[0] = exp.Literal.string(arguments[0].name.upper())
    names = {"ADDDATE": "DATE_ADD", "SUBDATE": "DATE_SUB"}
    flat = [
        each
        for argument in arguments
        for each in (_interval(argument) if isinstance(argument, exp.Interval) else (argument,))
    ]
    return _call(names.get(name, name), *flat)


def _literal(node: exp.Expr) -> exp.Expr:
    if node.is_string and "\0" in node.name:  # where SQLite would stop to read the statement
        return _call("CAST_CHAR", exp.HexString(this=node.name.encode().hex()))
    return node


def _variable(node: exp.Expr) -> exp.Expr:
    name = node.name.lower()
    if isinstance(node, exp.Parameter):
        return exp.null()  # like a user variable that was never set
    if name == "version":
        return _call("VERSION")
    raise StatementError(1193, f"Unknown system variable '{name}'")


_INTERNAL = re.compile(r"sqlite_|pragma_|dbstat$", re.IGNORECASE)
"""SQLite's own tables."""


def _table(node: exp.Expr) -> exp.Expr:
    node.set("hints", None)
    if isinstance(node.this, exp.Func):
        raise unsupported("a function as a table")
    if _INTERNAL.match(node.name):
        raise StatementError(1146, f"Table '{SHOWN_DATABASE}.{node.name}' doesn't exist")
    schema = node.text("db")
    if node.text("catalog") or (node.args.get("db") is not None and not schema):
        raise syntax_error(node.sql(dialect="mysql"))
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
        written = node.sql(dialect="mysql").replace("`", "")
        raise StatementError(1054, f"Unknown column '{written}' in 'field list'")
    node.set("db", None)
    return node


def _order(node: exp.Expr) -> exp.Expr:
    node.set("this", _collated(node.this))
    node.set("nulls_first", not node.args.get("desc"))  # NULL is the smallest value in both
    return node


def _group(node: exp.Expr) -> exp.Expr:
    if node.args.get("rollup"):
        raise unsupported("WITH ROLLUP")
    node.set("expressions", [_collated(each) for each in node.expressions])
    return node


def _window(node: exp.Expr) -> exp.Expr:
    node.set("partition_by", [_collated(each) for each in node.args.get("partition_by") or []] or None)
    return node


def _select(node: exp.Expr) -> exp.Expr:
    node.set("locks", None)
    node.set("operation_modifiers", None)
    if node.args.get("into"):
        raise unsupported("SELECT ... INTO")
    source = node.args.get("from_")
    if source is not None and isinstance(source.this, exp.Table) and source.this.name.upper() == "DUAL":
        node.set("from_", None)
    if node.args.get("distinct") or isinstance(node.parent, exp.Union):
        node.set("expressions", [_collated_column(column) for column in node.expressions])
    return node


def _collated_column(column: exp.Expr) -> exp.Expr:
    if isinstance(column, exp.Alias):
        column.set("this", _collated_column(column.this))
        return column
    plain = isinstance(column, exp.Column | exp.Star | exp.Literal | exp.Collate)
    return column if plain else _collated(column)


def _refuse(what: str) -> Callable[[exp.Expr], exp.Expr]:
    def rule(node: exp.Expr) -> exp.Expr:
        raise unsupported(what)

    return rule


def _placeholder(node: exp.Expr) -> exp.Expr:
    raise syntax_error(node.sql(dialect="mysql"))


def _call_of(name: str) -> Callable[[exp.Expr], exp.Expr]:
    return lambda node: _call(name)


_RULES: dict[type, Callable[[exp.Expr], exp.Expr]] = {
    exp.EQ: _comparison("EQ"),
    exp.NEQ: _comparison("NE"),
    exp.LT: _comparison("LT"),
    exp.LTE: _comparison("LE"),
    exp.GT: _comparison("GT"),
    exp.GTE: _comparison("GE"),
    exp.NullSafeEQ: lambda node: _call("NULL_SAFE_EQ", node.this, node.expression),
    exp.In: _in,
    exp.Subquery: single_row,
    exp.Between: lambda node: _call("BETWEEN", node.this, node.args["low"], node.args["high"]),
    exp.Like: _like,
    exp.Escape: _escape,
    exp.RegexpLike: _regexp,
    exp.Div: lambda node: _call("DIV", node.this, node.expression),
    exp.IntDiv: lambda node: _call("INT_DIV", node.this, node.expression),
    exp.Mod: lambda node: _call("MOD", node.this, node.expression),
    exp.Add: _plus("DATE_ADD"),
    exp.Sub: _plus("DATE_SUB"),
    exp.Xor: lambda node: _call(
        "NE", exp.Not(this=exp.paren(node.this)), exp.Not(this=exp.paren(node.expression))
    ),
    exp.Case: _case,
    exp.Cast: _cast,
    exp.Collate: _collate,
    exp.Trim: _trim,
    exp.Extract: lambda node: _call("EXTRACT", exp.Literal.string(node.name.upper()), node.expression),
    exp.StrPosition: lambda node: _call("LOCATE", node.args["substr"], node.this),
    exp.Substring: lambda node: _call(
        "SUBSTRING", node.this, node.args.get("start"), node.args.get("length")
    ),
    exp.Chr: lambda node: _call("CHAR", *node.expressions),
    exp.Concat: lambda node: _call("CONCAT", *node.expressions),
    exp.CurrentDate: _call_of("CURDATE"),
    exp.CurrentTime: _call_of("CURTIME"),
    exp.CurrentTimestamp: _call_of("NOW"),
    exp.Localtime: _call_of("NOW"),
    exp.Localtimestamp: _call_of("NOW"),
    exp.CurrentUser: _call_of("USER"),
    exp.GroupConcat: _group_concat,
    exp.Count: _count,
    exp.Anonymous: _anonymous,
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
    exp.MatchAgainst: _refuse("MATCH ... AGAINST"),
}
