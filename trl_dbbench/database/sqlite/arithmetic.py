"""MySQL's arithmetic and casts in Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from functools import wraps

import regex

from trl_dbbench.database.sqlite.values import Value, number, text


def _ints(*values: Value) -> bool:
    return all(isinstance(value, int) for value in values)


def divide(left: Value, right: Value) -> float | None:
    """`/`: for whole numbers with 4 decimals, like MySQL's DECIMAL; NULL for a division by zero."""
    divisor = number(right)
    if divisor == 0:
        return None
    quotient = number(left) / divisor
    return round(quotient, 4) if _ints(left, right) else quotient


def whole_divide(left: Value, right: Value) -> int | None:
    one, other = number(left), number(right)
    return None if other == 0 else int(Decimal(str(one)) / Decimal(str(other)))


def modulo(left: Value, right: Value) -> int | float | None:
    one, other = number(left), number(right)
    if other == 0:
        return None
    remainder = math.fmod(one, other)
    return int(remainder) if _ints(left, right) else remainder


def round_half_up(value: Value, digits: Value = 0) -> int | float:
    amount, places = number(value), int(number(digits))
    if isinstance(amount, float) and not math.isfinite(amount):
        return amount
    rounded = Decimal(str(amount)).quantize(Decimal(1).scaleb(-min(max(places, -30), 15)), ROUND_HALF_UP)
    return int(rounded) if places <= 0 and not isinstance(value, str) else float(rounded)


def truncate(value: Value, digits: Value) -> int | float:
    scale = Decimal(10) ** min(max(int(number(digits)), -30), 30)
    cut = int(Decimal(str(number(value))) * scale) / scale
    return int(cut) if _ints(value) else float(cut)


_INTEGER = regex.compile(r"\s*([+-]?\d+)")


def cast_signed(value: Value) -> int:
    if isinstance(value, float):
        return int(round_half_up(value))
    if isinstance(value, int):
        return value
    match = _INTEGER.match(text(value))
    return int(match[1]) if match else 0


def cast_decimal(value: Value, places: Value) -> int | float:
    rounded = round_half_up(number(value), places)
    return float(rounded) if places else int(rounded)


def format_number(value: Value, digits: Value) -> str:
    places = min(max(int(number(digits)), 0), 30)
    return f"{Decimal(str(round_half_up(number(value), places))):,.{places}f}"


def defined(function: Callable[..., float]) -> Callable[..., float | None]:
    """The function with NULL where it is not defined, as in MySQL."""

    @wraps(function)
    def call(*values: Value) -> float | None:
        try:
            return function(*(number(value) for value in values))
        except (ValueError, OverflowError, ZeroDivisionError):
            return None

    return call


def logarithm(first: Value, second: Value = None) -> float:
    return math.log(first) if second is None else math.log(second, first)
