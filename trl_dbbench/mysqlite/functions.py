"""MySQL's operators and functions by name, in Python, for SQLite to call."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature

from trl_dbbench.mysqlite.coercions import CHECKS, DOUBTFUL, doubtful
from trl_dbbench.mysqlite.collation import lower, upper
from trl_dbbench.mysqlite.conversions import (
    COERCIONS,
    OVERFLOW,
    absolute,
    bounded,
    cast_decimal,
    cast_float,
    cast_signed,
    cast_unsigned,
    characters,
    concat_ws,
    decimal_modulo,
    defined,
    divide,
    format_number,
    hexadecimal,
    insert_text,
    locate,
    logarithm,
    modulo,
    pad,
    power,
    repeat,
    replace,
    round_half_even,
    round_half_up,
    substring,
    substring_index,
    trim,
    truncate,
    whole_divide,
)
from trl_dbbench.mysqlite.dates import DATE_FUNCTIONS
from trl_dbbench.mysqlite.errors import SHOWN_DATABASE, StatementError, unsupported
from trl_dbbench.mysqlite.patterns import like, regexp_like, regexp_replace, regexp_substr
from trl_dbbench.mysqlite.recursion import RECURSION
from trl_dbbench.mysqlite.storage import STORAGE
from trl_dbbench.mysqlite.values import Value, compare, comparison_with, number, text


def _comparison(test: Callable[[int], bool]) -> Callable[[Value, Value], int | None]:
    def function(left: Value, right: Value) -> int | None:
        order = compare(left, right)
        return None if order is None else int(test(order))

    return function


def null_safe_equal(left: Value, right: Value) -> int:
    """`<=>`."""
    return (
        int(left is None and right is None)
        if left is None or right is None
        else int(compare(left, right) == 0)
    )


def is_in(value: Value, *options: Value) -> int | None:
    """`value IN (options)`, with NULL as SQL has it."""
    if value is None:
        return None
    order = comparison_with(value)
    if any(order(option) == 0 for option in options):
        return 1
    return None if None in options else 0


def between(value: Value, low: Value, high: Value) -> int | None:
    above, below = compare(value, low), compare(value, high)
    if (above is not None and above < 0) or (below is not None and below > 0):
        return 0
    return None if above is None or below is None else 1


def _extreme(sign: int) -> Callable[..., Value]:
    def function(first: Value, *rest: Value) -> Value:
        best, order = first, comparison_with(first)
        for value in rest:
            placed = sign * (order(value) or 0)
            if placed > 0 or (sign > 0 and placed == 0):  # of equal texts, GREATEST gives the last one
                best, order = value, comparison_with(value)
        return best

    return function


def one_row(rows: Value, perhaps: int) -> int:
    """True, for the number of rows that a subquery has in the place of a value.

    Args:
        perhaps: it may be that MySQL does not read it.
    """
    if number(rows) > 1 and perhaps:
        raise unsupported("a subquery with several rows beside another condition")
    if number(rows) > 1:
        raise StatementError(1242, "Subquery returns more than 1 row")
    return 1


def field(value: Value, *options: Value) -> int:
    order = comparison_with(value)
    return next((place for place, option in enumerate(options, 1) if order(option) == 0), 0)


def elt(place: Value, *options: Value) -> Value:
    chosen = int(number(place)) if place is not None else 0
    return options[chosen - 1] if 1 <= chosen <= len(options) else None


_COMPARING: dict[str, Callable[..., Value]] = {
    "EQ": _comparison(lambda order: order == 0),
    "NE": _comparison(lambda order: order != 0),
    "LT": _comparison(lambda order: order < 0),
    "LE": _comparison(lambda order: order <= 0),
    "GT": _comparison(lambda order: order > 0),
    "GE": _comparison(lambda order: order >= 0),
    "NULL_SAFE_EQ": null_safe_equal,
    "IN": is_in,
    "BETWEEN": between,
    "LIKE": like,
}

# functions that are called with NULL, too; the others return NULL for it
_SEEING_NULL: dict[str, Callable[..., Value]] = {
    **_COMPARING,
    "REGEXP_LIKE": regexp_like,
    "REGEXP_SUBSTR": regexp_substr,
    "REGEXP_REPLACE": regexp_replace,
    "CONCAT_WS": concat_ws,
    "CHAR": characters,
    "ONE_ROW": one_row,
    "FIELD": field,
    "ELT": elt,
    "ISNULL": lambda value: int(value is None),
    "NULLIF": lambda left, right, value: None if compare(left, right) == 0 else value,
    "DATABASE": lambda: SHOWN_DATABASE,
    "SCHEMA": lambda: SHOWN_DATABASE,
    "VERSION": lambda: "8.4.0-sqlite",
    "USER": lambda: "agent@localhost",
    "CURRENT_USER": lambda: "agent@localhost",
    "CONNECTION_ID": lambda: 1,
    "SLEEP": lambda seconds: 0,
    "PI": lambda: math.pi,
    "RAND": lambda seed=None: random.random() if seed is None else random.Random(int(number(seed))).random(),
    "UUID": lambda: str(uuid.uuid4()),
}

OVERFLOWING = ("POW", "POWER", "EXP")
"""MySQL's functions whose results may be out of the range of a DOUBLE."""

_STRICT: dict[str, Callable[..., Value]] = {
    "DIV": divide,
    "INT_DIV": whole_divide,
    "MOD": modulo,
    "DECIMAL_MOD": decimal_modulo,
    "ROUND": round_half_up,
    "ROUND_FLOAT": round_half_even,
    "TRUNCATE": truncate,
    "FLOOR": lambda value: math.floor(number(value)),
    "CEIL": lambda value: math.ceil(number(value)),
    "CEILING": lambda value: math.ceil(number(value)),
    "ABS": absolute,
    "SIGN": lambda value: (number(value) > 0) - (number(value) < 0),
    "SQRT": defined(math.sqrt),
    "POW": defined(power),
    "POWER": defined(power),
    "EXP": defined(math.exp),
    "LN": defined(lambda value: math.log(value)),
    "LOG": defined(logarithm),
    "LOG2": defined(math.log2),
    "LOG10": defined(math.log10),
    "SIN": defined(math.sin),
    "COS": defined(math.cos),
    "TAN": defined(math.tan),
    "RADIANS": defined(math.radians),
    "DEGREES": defined(math.degrees),
    "GREATEST": _extreme(1),
    "LEAST": _extreme(-1),
    "CAST_SIGNED": cast_signed,
    "CAST_UNSIGNED": cast_unsigned,
    "CAST_FLOAT_SIGNED": lambda value: cast_signed(round_half_even(value, 0)),
    "CAST_DECIMAL": cast_decimal,
    "CAST_DOUBLE": lambda value: float(number(value)),
    "CAST_FLOAT": cast_float,
    "CAST_CHAR": lambda value, length=None: text(value)[: None if length is None else int(number(length))],
    "FORMAT": format_number,
    "CONCAT": lambda *values: bounded("".join(text(value) for value in values)),
    "LENGTH": lambda value: len(text(value).encode()),
    "OCTET_LENGTH": lambda value: len(text(value).encode()),
    "CHAR_LENGTH": lambda value: len(text(value)),
    "CHARACTER_LENGTH": lambda value: len(text(value)),
    "UPPER": lambda value: upper(text(value)),
    "UCASE": lambda value: upper(text(value)),
    "LOWER": lambda value: lower(text(value)),
    "LCASE": lambda value: lower(text(value)),
    "LEFT": lambda value, count: text(value)[: max(int(number(count)), 0)],
    "RIGHT": lambda value, count: text(value)[-int(number(count)) :] if int(number(count)) > 0 else "",
    "SUBSTRING": substring,
    "SUBSTR": substring,
    "MID": substring,
    "SUBSTRING_INDEX": substring_index,
    "LOCATE": locate,
    "INSTR": lambda whole, part: locate(part, whole),
    "REPLACE": replace,
    "REPEAT": repeat,
    "REVERSE": lambda value: text(value)[::-1],
    "SPACE": lambda count: repeat(" ", count),
    "LPAD": pad(True),
    "RPAD": pad(False),
    "TRIM": trim,
    "LTRIM": lambda value: text(value).lstrip(" "),
    "RTRIM": lambda value: text(value).rstrip(" "),
    "INSERT": insert_text,
    "STRCMP": lambda left, right: compare(text(left), text(right)),
    "FIND_IN_SET": lambda part, items: field(part, *text(items).split(",")) if items else 0,
    "ASCII": lambda value: text(value).encode()[0] if text(value) else 0,
    "ORD": lambda value: int.from_bytes(text(value)[:1].encode()),
    "HEX": hexadecimal,
}


def functions() -> dict[str, Callable[..., Value]]:
    """Every function by its name in MySQL, or for an operator by a name of our own."""
    strict = {
        name: _null_in_null_out(function)
        for name, function in {
            **_STRICT,
            **DATE_FUNCTIONS,
            **COERCIONS,
            **OVERFLOW,
            **RECURSION,
            **STORAGE,
        }.items()
    }
    failing = [name for name in strict if name.startswith((*CHECKS, "STORE_"))]
    failing += [*OVERFLOW, *OVERFLOWING]
    checks = {f"{DOUBTFUL}{name}": doubtful(strict[name]) for name in failing}
    return {**strict, **checks, **_SEEING_NULL}


def is_own(name: str) -> bool:
    """Whether a name is one of our own, and no function of MySQL's."""
    among = any(name in functions for functions in (COERCIONS, OVERFLOW, RECURSION, STORAGE))
    return among or name in _OWN or name.startswith(("FULL_", "CAST_", DOUBTFUL))


_OWN = frozenset(_COMPARING) | {"DIV", "INT_DIV", "ROUND_FLOAT", "YEAR_MONTH", "EXTRACT"}


def takes(function: Callable[..., Value], values: Sequence[object]) -> bool:
    """Whether a function can be called with so many values."""
    try:
        signature(function).bind(*values)
    except TypeError:
        return False
    return True


def _null_in_null_out(function: Callable[..., Value]) -> Callable[..., Value]:
    @wraps(function)
    def call(*values: Value) -> Value:
        return None if None in values else function(*values)

    return call
