"""Arithmetic that MySQL refuses because no BIGINT or DOUBLE holds its result; SQLite goes on with floats."""

from __future__ import annotations

import math
from collections.abc import Callable

from sqlglot import exp

from trl_dbbench.mysqlite.coercions import call
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.kinds import Kind, kind_of, words
from trl_dbbench.mysqlite.values import Value, number

_BITS = 63
"""Those of a BIGINT without its sign."""
_OF_ROWS = 40
"""The bits of a number of rows."""
_PASSING = words(
    """
    my_ABS my_FLOOR my_CEIL my_CEILING my_ROUND my_TRUNCATE my_GREATEST my_LEAST my_NULLIF my_MOD my_ELT
    IFNULL
    """
)
"""Functions whose result is about as large as what they are given."""
_WIDE = words("my_INT_DIV my_CAST_SIGNED my_CAST_FLOAT_SIGNED my_CAST_UNSIGNED")


def checked(node: exp.Expr, kind: Kind) -> exp.Expr:
    """A sum, difference or product, with a check where its result may be too large."""
    if kind.name == "float" and isinstance(node, exp.Mul):
        return call("FINITE", node)
    if kind.name == "int" and kind.unsigned:
        return call("UNSIGNED", node)
    if kind.name != "int" or _bits(node) <= _BITS:
        return node
    if any(not each.is_string and _bits(each) > _BITS for each in node.find_all(exp.Literal)):
        raise unsupported("whole numbers above 9223372036854775807")
    return call("WHOLE", node)


def bits(node: exp.Expr) -> exp.Expr:
    """An operator of bits, of whole numbers: to MySQL, they have no sign."""
    sides = [each for each in (node.this, node.args.get("expression")) if each is not None]
    if any(kind_of(each).name not in ("int", "null") for each in sides):
        raise unsupported("bits of what is no whole number")
    return call("BITS", type(node)(**node.args))


def _bits(node: exp.Expr) -> int:
    """The most bits that a whole number may have, as far as its expression tells."""
    kind = kind_of(node)
    match node:
        case exp.Literal():
            return int(node.name).bit_length() if node.name.isdecimal() else _BITS
        case exp.Paren() | exp.Neg():
            return _bits(node.this)
        case exp.Mul():
            return _bits(node.this) + _bits(node.expression)
        case exp.Add() | exp.Sub():
            return max(_bits(node.this), _bits(node.expression)) + 1
        case exp.Column():
            return kind.size if kind.name == "int" and kind.size is not None else _BITS
        case exp.Count() | exp.Window():
            return _OF_ROWS
        case exp.Predicate() | exp.Not() | exp.Connector() | exp.Boolean() | exp.Null():
            return 1
        case exp.Anonymous():
            name = str(node.this)
            if name in _PASSING:
                return max(map(_bits, node.expressions), default=_BITS)
            return _BITS if name in _WIDE else 32
    return _BITS


def _whole(value: Value) -> Value:
    if isinstance(value, float) and abs(value) >= 2**_BITS:  # of whole numbers, SQLite makes one only then
        raise StatementError(1690, "BIGINT value is out of range")
    return value


def _unsigned(value: Value) -> Value:
    if number(value) < 0:
        raise StatementError(1690, "BIGINT UNSIGNED value is out of range")
    if isinstance(value, float) and value >= 2**_BITS:
        raise unsupported("whole numbers above 9223372036854775807")
    return value


def _finite(value: Value) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        raise StatementError(1690, "DOUBLE value is out of range")
    return value


def _bits_of(value: Value) -> Value:
    if number(value) < 0:
        raise unsupported("whole numbers above 9223372036854775807")
    return value


OVERFLOW: dict[str, Callable[[Value], Value]] = {
    "WHOLE": _whole,
    "UNSIGNED": _unsigned,
    "FINITE": _finite,
    "BITS": _bits_of,
}
"""They return NULL for NULL."""
