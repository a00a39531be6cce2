"""Floating-point numbers as MySQL writes them, and FLOAT, which has 32 bits.

A column of FLOAT holds the double that its 32 bits mean, such as 0.10000000149011612 for 0.1. MySQL compares
this double and computes with it, and shows six digits of it.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal

SINGLE_DIGITS = 6
"""Significant digits that MySQL shows of a FLOAT."""
SINGLE_WIDTH = 12
"""Characters of a column of FLOAT as a text."""
WIDTH = 22
"""Characters of any other floating-point number as a text."""

_PLAIN_DIGITS = 15
"""Digits before the point, or zeros behind it, that MySQL writes without an exponent."""
_MOST_DIGITS = 17
_LARGEST = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


def single(value: float) -> float | None:
    """The double for the 32 bits of a FLOAT, or `None` if it is out of their range."""
    if not abs(value) <= _LARGEST:
        return None
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def shown_single(value: float) -> float:
    """The number that MySQL shows of a FLOAT."""
    return float(f"{value:.{SINGLE_DIGITS}g}")


def single_text(value: float) -> str:
    """A FLOAT as a text."""
    return written(value, SINGLE_WIDTH, SINGLE_DIGITS)


def written(value: float, width: int = WIDTH, most: int = _MOST_DIGITS) -> str:
    """A number as a text of `width` characters at most, and `most` significant digits (MySQL's `my_gcvt`)."""
    if value == 0 or not math.isfinite(value):
        return repr(value).removesuffix(".0")  # -0, too
    amount, sign = abs(value), "-" if value < 0 else ""
    width -= len(sign)
    digits, point = _digits(amount, min(width, most))
    length = len(digits) - point + 2 if point <= 0 else len(digits) + 1 if point < len(digits) else point
    fits = length <= width or (point <= width and point >= -1)
    if fits and point > -_PLAIN_DIGITS and (point <= _PLAIN_DIGITS or len(digits) > point):
        return sign + _plain(amount, digits, point, width)
    return sign + _with_exponent(amount, digits, point, width)


def _digits(amount: float, most: int) -> tuple[str, int]:
    """The fewest digits that mean a number, `most` at most, and the place of the point among them."""
    _, digits, exponent = Decimal(repr(amount)).as_tuple()
    shortest = "".join(map(str, digits)).lstrip("0")
    point = len(shortest) + int(exponent)
    shortest = shortest.rstrip("0")
    if len(shortest) <= most:
        return shortest, point
    mantissa, _, power = f"{amount:.{max(most, 1) - 1}e}".partition("e")
    return mantissa.replace(".", "").rstrip("0"), int(power) + 1


def _plain(amount: float, digits: str, point: int, width: int) -> str:
    """Such as 0.00015."""
    room = width - (point < len(digits)) - (1 - point if point <= 0 else 0)
    if room < len(digits):
        cut = f"{amount:.{max(room - point, 0)}f}"
        return cut.rstrip("0").rstrip(".") if "." in cut else cut
    if point <= 0:
        return f"0.{'0' * -point}{digits}"
    return f"{digits[:point]}.{digits[point:]}" if point < len(digits) else digits.ljust(point, "0")


def _with_exponent(amount: float, digits: str, point: int, width: int) -> str:
    """Such as 1.5e-15."""
    power = f"e{point - 1}"
    room = width - len(power) - (len(digits) > 1)
    if 0 < room < len(digits):
        digits, point = _digits(amount, room)
        power = f"e{point - 1}"
    return f"{digits[0]}.{digits[1:]}{power}" if len(digits) > 1 else f"{digits}{power}"
