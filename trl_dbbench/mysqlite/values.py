"""Conversion and comparison of MySQL's values, as SQLite holds them: `None`, int, float, str or bytes.

A text compared with a number is the number that it begins with. Dates and times are texts in MySQL's format.
"""

from __future__ import annotations

import math
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import cache
from typing import Any

import regex

from trl_dbbench.mysqlite.collation import collate, sort_key


class OutOfTime(Exception):
    """Error for a statement that has used up its time."""


class _Deadline(threading.local):
    at = float("inf")


_deadline = _Deadline()


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time that this thread may spend in a block."""
    _deadline.at = time.monotonic() + seconds
    try:
        yield
    finally:
        _deadline.at = float("inf")


def is_late(grace: float = 0.0) -> bool:
    """Return whether the time limit passed at least `grace` seconds ago."""
    return time.monotonic() >= _deadline.at + grace


def check_time() -> None:
    """Raise OutOfTime if the time limit has passed."""
    if is_late():
        raise OutOfTime


SINGLE_DIGITS = 6
"""Most significant digits that MySQL shows of a FLOAT."""
SINGLE_WIDTH = 12
"""Most characters of a FLOAT as a text."""
WIDTH = 22
"""Most characters of any other floating-point number as a text."""

_PLAIN_DIGITS = 15
"""Most digits before the point, or zeros after it, that MySQL writes without an exponent."""
_MOST_DIGITS = 17
_LARGEST = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


def single(value: float) -> float | None:
    """Return a number rounded to the 32 bits of a FLOAT, or `None` if it is out of range."""
    if not abs(value) <= _LARGEST:
        return None
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def shown_single(value: float) -> float:
    """Return a FLOAT as MySQL shows it."""
    return float(f"{value:.{SINGLE_DIGITS}g}")


def single_text(value: float) -> str:
    """Return a FLOAT as a text."""
    return written(value, SINGLE_WIDTH, SINGLE_DIGITS)


def written(value: float, width: int = WIDTH, most: int = _MOST_DIGITS) -> str:
    """Return a number as a text of at most `width` characters and `most` digits (MySQL's `my_gcvt`)."""
    if value == 0 or not math.isfinite(value):
        return repr(value).removesuffix(".0")  # also for -0
    amount, sign = abs(value), "-" if value < 0 else ""
    width -= len(sign)
    digits, point = _digits(amount, min(width, most))
    length = len(digits) - point + 2 if point <= 0 else len(digits) + 1 if point < len(digits) else point
    fits = length <= width or (point <= width and point >= -1)
    if fits and point > -_PLAIN_DIGITS and (point <= _PLAIN_DIGITS or len(digits) > point):
        return sign + _plain(amount, digits, point, width)
    return sign + _with_exponent(amount, digits, point, width)


def _digits(amount: float, most: int) -> tuple[str, int]:
    """Return a number's shortest digits, at most `most`, and the position of the point among them."""
    _, digits, exponent = Decimal(repr(amount)).as_tuple()
    shortest = "".join(map(str, digits)).lstrip("0")
    point = len(shortest) + int(exponent)
    shortest = shortest.rstrip("0")
    if len(shortest) <= most:
        return shortest, point
    mantissa, _, power = f"{amount:.{max(most, 1) - 1}e}".partition("e")
    return mantissa.replace(".", "").rstrip("0"), int(power) + 1


def _plain(amount: float, digits: str, point: int, width: int) -> str:
    """Return a number written without an exponent, such as 0.00015."""
    room = width - (point < len(digits)) - (1 - point if point <= 0 else 0)
    if room < len(digits):
        cut = f"{amount:.{max(room - point, 0)}f}"
        return cut.rstrip("0").rstrip(".") if "." in cut else cut
    if point <= 0:
        return f"0.{'0' * -point}{digits}"
    return f"{digits[:point]}.{digits[point:]}" if point < len(digits) else digits.ljust(point, "0")


def _with_exponent(amount: float, digits: str, point: int, width: int) -> str:
    """Return a number written with an exponent, such as 1.5e-15."""
    power = f"e{point - 1}"
    room = width - len(power) - (len(digits) > 1)
    if 0 < room < len(digits):
        digits, point = _digits(amount, room)
        power = f"e{point - 1}"
    return f"{digits[0]}.{digits[1:]}{power}" if len(digits) > 1 else f"{digits}{power}"


Value = Any
"""`None`, int, float, str or bytes: what an SQLite function may receive and return."""

COLLATION = "utf8mb4_0900_ai_ci"

MAX_TEXT_CHARACTERS = 131_072
"""Most characters of a text, and bytes of a row: twice what MySQL's TEXT holds. A longer result of a function
is NULL, as beyond max_allowed_packet. This also bounds the time of each call, which cannot be interrupted."""

MAX_PATTERN_CHARACTERS = 2_000
"""Longest pattern or format, in characters. Longer ones take too long to compile."""

BEGUN_NUMBER = regex.compile(r"[ \t\n\v\f\r]*+([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
"""Number at the beginning of a text."""


def number(value: Value) -> int | float:
    """Return a value as a number: a text is the number that it begins with, or 0."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    match = BEGUN_NUMBER.match(value)
    found = float(match[1]) if match else 0.0
    return found if math.isfinite(found) else math.copysign(sys.float_info.max, found)


DECIMAL_DIGITS = Context(prec=65)
"""Decimal context with the digits of MySQL's DECIMAL."""


def decimal(value: Value, places: int) -> int | float:
    """Return a number rounded half up to `places` decimal places."""
    amount = number(value)
    if isinstance(amount, int) or not math.isfinite(amount) or abs(amount) >= 1e22:
        return amount
    rounded = Decimal(repr(amount)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, DECIMAL_DIGITS)
    return float(rounded) + 0.0  # no -0


def text(value: Value) -> str:
    """Return a value as MySQL writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return written(value) if isinstance(value, float) else str(value)


def compare(left: Value, right: Value) -> int | None:
    """Return a negative number, 0 or a positive one; `None` if either value is NULL."""
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
    """Return a function that compares values with `right`, whose key is computed once. Raises OutOfTime."""
    key = cache(lambda: sort_key(right))

    def compare_left(left: Value) -> int | None:
        check_time()
        if isinstance(left, str) and isinstance(right, str):
            first = sort_key(left)
            return (first > key()) - (first < key())
        return compare(left, right)

    return compare_left


def order_key(value: Value) -> tuple[int, Any]:
    """Return a key that sorts NULLs first, then numbers, then texts."""
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, sort_key(text(value)))
