"""MySQL's arithmetic and casts in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import wraps

import regex

from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.floats import single
from trl_dbbench.mysqlite.values import Value, decimal, number, text

_EVERY_DIGIT = Context(prec=400)
"""Of the longest float, and places behind the point."""


_BIGINT = 2**63


def _ints(*values: Value) -> bool:
    return all(isinstance(value, int) for value in values)


def divide(left: Value, right: Value, places: int | None = None) -> float | None:
    """`/`: NULL for a division by zero.

    Args:
        places: of a decimal result, the dividend's and 4; whole numbers have 4 if it is not known.
    """
    divisor = number(right)
    if divisor == 0:
        return None
    quotient = number(left) / divisor
    if places is None and not _ints(left, right):
        return quotient
    return decimal(quotient, 4 if places is None else places)


def whole_divide(left: Value, right: Value) -> int | None:
    one, other = number(left), number(right)
    if other == 0:
        return None
    quotient = int(Decimal(str(one)) / Decimal(str(other)))
    if not -_BIGINT <= quotient < _BIGINT:
        raise StatementError(1690, f"BIGINT value is out of range in '({text(left)} DIV {text(right)})'")
    return quotient


def absolute(value: Value) -> int | float:
    amount = abs(number(value))
    if amount == _BIGINT and isinstance(amount, int):
        raise StatementError(1690, f"BIGINT value is out of range in 'abs({text(value)})'")
    return amount


def modulo(left: Value, right: Value) -> int | float | None:
    one, other = number(left), number(right)
    if other == 0:
        return None
    if isinstance(one, int) and isinstance(other, int):
        remainder = abs(one) % abs(other)  # fmod has 53 bits
        return -remainder if one < 0 else remainder
    return math.fmod(one, other)


def decimal_modulo(left: Value, right: Value) -> float | None:
    one, other = number(left), number(right)
    if other == 0:
        return None
    return float(_EVERY_DIGIT.remainder(Decimal(str(one)), Decimal(str(other))))


def round_half_up(value: Value, digits: Value = 0) -> int | float:
    amount, places = number(value), int(number(digits))
    if isinstance(amount, float) and not math.isfinite(amount):
        return amount
    unit = Decimal(1).scaleb(-min(max(places, -30), 15))
    rounded = Decimal(str(amount)).quantize(unit, ROUND_HALF_UP, _EVERY_DIGIT)
    return int(rounded) if places <= 0 and not isinstance(value, str) else float(rounded)


def round_half_even(value: Value, digits: Value = 0) -> int | float:
    """ROUND of a float, which is rounded as the processor does it: 2.5 to 2."""
    amount, places = number(value), min(max(int(number(digits)), -30), 15)
    if isinstance(amount, int) or not math.isfinite(amount) or abs(amount) > 1e15:
        return amount
    scale = 10.0 ** abs(places)
    rounded = round(amount * scale) / scale if places >= 0 else float(round(amount / scale) * scale)
    return math.copysign(rounded, amount)  # -0.4 to -0


def truncate(value: Value, digits: Value) -> int | float:
    scale = Decimal(10) ** min(max(int(number(digits)), -30), 30)
    cut = int(Decimal(str(number(value))) * scale) / scale
    return int(cut) if _ints(value) else float(cut)


_INTEGER = regex.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)")


def cast_signed(value: Value) -> int:
    if isinstance(value, float):
        return min(max(int(round_half_up(value)), -_BIGINT), _BIGINT - 1) if math.isfinite(value) else 0
    if isinstance(value, int):
        return value
    match = _INTEGER.match(text(value))
    whole = int(match[1][:40]) if match else 0
    if not -_BIGINT <= whole < _BIGINT:  # MySQL's is a number without a sign, read as one with a sign
        raise unsupported("CAST of a text with more than 19 digits")
    return whole


def cast_unsigned(value: Value) -> int:
    whole = cast_signed(value)
    if whole < 0:  # MySQL's has 64 bits without a sign, which SQLite cannot hold
        raise unsupported("CAST of a negative number AS UNSIGNED")
    return whole


def cast_decimal(value: Value, places: Value, digits: int) -> int | float:
    rounded = round_half_up(number(value), places)
    if abs(rounded) >= 10 ** (digits - places):  # MySQL gives the largest one that fits
        raise unsupported("CAST of a number AS DECIMAL with fewer digits")
    return float(rounded) if places else int(rounded)


def cast_float(value: Value) -> float:
    """CAST AS FLOAT."""
    amount = single(float(number(value)))
    if amount is None:
        raise StatementError(1690, f"DOUBLE value is out of range in 'cast({text(value)} as float)'")
    return amount


def hexadecimal(value: Value) -> str:
    if isinstance(value, int | float):
        if value % 1 == 0.5:  # which MySQL rounds by the kind of number
            raise unsupported("HEX of a half")
        return f"{round(value) % (2 * _BIGINT):X}"
    return text(value).encode().hex().upper()


def format_number(value: Value, digits: Value) -> str:
    places = min(max(int(number(digits)), 0), 30)
    if places > 15 and isinstance(value, str):
        raise unsupported("FORMAT of a text with more than 15 places")
    return f"{Decimal(str(round_half_up(number(value), places))):,.{places}f}"


def defined(function: Callable[..., float]) -> Callable[..., float | None]:
    """The function with NULL where it is not defined, as in MySQL, and an error for what no float holds."""

    @wraps(function)
    def call(*values: Value) -> float | None:
        try:
            return function(*(number(value) for value in values))
        except OverflowError:
            shown = ",".join(map(text, values))
            name = function.__name__
            raise StatementError(1690, f"DOUBLE value is out of range in '{name}({shown})'") from None
        except (ValueError, ZeroDivisionError):
            return None

    return call


def power(base: float, exponent: float) -> float:
    try:
        return math.pow(base, exponent)
    except ValueError:  # of 0 to a negative power, or a root of a negative number
        raise OverflowError from None


def logarithm(first: Value, second: Value = None) -> float:
    return math.log(first) if second is None else math.log(second, first)
