"""MySQL's values as SQLite holds them (`None`, int, float, str, bytes): their conversion and comparison.

Texts are compared by MySQL's `collation`. A text that is compared with a number counts as the number with
which it begins. Dates and times are texts, as MySQL writes them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache
from typing import Any

import regex

from trl_dbbench.mysqlite.clock import check_time
from trl_dbbench.mysqlite.collation import collate, sort_key
from trl_dbbench.mysqlite.floats import written

Value = Any
"""`None`, int, float, str or bytes: what an SQLite function may receive and return."""

COLLATION = "utf8mb4_0900_ai_ci"

MAX_TEXT_CHARACTERS = 131_072
"""Also the bytes of a row: twice what MySQL's TEXT holds. A function whose result would be longer returns
NULL, as beyond MySQL's max_allowed_packet. This bounds the time of each call as well, which nothing can
interrupt."""

MAX_PATTERN_CHARACTERS = 2_000
"""Longer patterns and formats take long to compile, and no agent needs one."""


BEGUN_NUMBER = regex.compile(r"[ \t\n\v\f\r]*+([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
"""A number with which a text begins."""


def number(value: Value) -> int | float:
    """A value as a number: a text is the number with which it begins, or 0."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    match = BEGUN_NUMBER.match(value)
    found = float(match[1]) if match else 0.0
    return found if math.isfinite(found) else math.copysign(sys.float_info.max, found)


_DIGITS = Context(prec=65)
"""As many as MySQL's DECIMAL has."""


def decimal(value: Value, places: int) -> int | float:
    """A number with so many places, rounded half up."""
    amount = number(value)
    if isinstance(amount, int) or not math.isfinite(amount) or abs(amount) >= 1e22:
        return amount
    rounded = Decimal(repr(amount)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _DIGITS)
    return float(rounded) + 0.0  # no -0


def text(value: Value) -> str:
    """A value as MySQL writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return written(value) if isinstance(value, float) else str(value)


def compare(left: Value, right: Value) -> int | None:
    """Negative, 0 or positive; `None` if either is NULL."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return collate(left, right)
    if isinstance(left, bytes) or isinstance(right, bytes):
        first, second = text(left), text(right)
        return (first > second) - (first < second)
    one, other = number(left), number(right)
    return (one > other) - (one < other)


def comparison_with(right: Value) -> Callable[[Value], int | None]:
    """`compare` of one value after another with this one, whose key is computed once.

    Raises:
        OutOfTime: when called after the end of the statement's time.
    """
    key = cache(lambda: sort_key(right))

    def compare_left(left: Value) -> int | None:
        check_time()
        if isinstance(left, str) and isinstance(right, str):
            first = sort_key(left)
            return (first > key()) - (first < key())
        return compare(left, right)

    return compare_left


def order_key(value: Value) -> tuple[int, Any]:
    """NULLs first, then numbers, then texts."""
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, sort_key(text(value)))
