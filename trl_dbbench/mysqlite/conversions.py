"""Functions that SQLite calls to read values as another type, and to check them in changes of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import time
from decimal import Decimal

from trl_dbbench.mysqlite.dates import is_date, moment
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.floats import single_text
from trl_dbbench.mysqlite.values import BEGUN_NUMBER, Value, decimal, number, text

LOWEST = "0000-00-00 00:00:00"
"""What MySQL compares in the place of a text that is no date."""


def incorrect(written: str) -> StatementError:
    if _BEGUN.match(written):
        return unsupported("a text that begins like a date and is none")
    return StatementError(1525, f"Incorrect DATE value: '{written}'")


_BEGUN = re.compile(r"\s*\d{2,4}-\d\d?-\d\d?\d")


def _full_number(value: Value) -> int | float:
    return _whole_number(value, "DOUBLE") if text(value).strip() else 0


def _full_decimal(value: Value) -> int | float:
    return _whole_number(value, "DECIMAL")


def _begun_decimal(value: Value) -> float:
    """A text that begins with a number; MySQL does not mind what comes behind it."""
    if BEGUN_NUMBER.match(text(value)) is None:
        raise StatementError(1366, f"Incorrect DECIMAL value: '0' for column '' at row -1: '{text(value)}'")
    return number(value)


def is_number(written: str) -> bool:
    """Whether a text is a number to its end."""
    return _NUMBER.fullmatch(written) is not None and math.isfinite(float(written))


_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE | re.ASCII)


def _whole_number(value: Value, type: str) -> float:
    if not is_number(text(value)):
        raise StatementError(1292, f"Truncated incorrect {type} value: '{text(value)}'")
    return float(text(value))


def _written(value: Value, places: int | None = None) -> str:
    if places is None or isinstance(value, str | bytes):
        return text(value)
    return f"{Decimal(repr(decimal(value, places))):.{places}f}"


def _sure_single(value: Value) -> str:
    """A computed FLOAT as a text: MySQL's plan decides whether it has six digits or all."""
    if isinstance(value, float) and single_text(value) != text(value):
        raise unsupported("a computed FLOAT as a text")
    return text(value)


def _moment(value: Value) -> str:
    """A date and time as a text that sorts; what is none comes before all of them."""
    found = moment(value)
    return LOWEST if found is None else found.isoformat(" ")


def _dated(value: Value) -> Value:
    """A number that is to be a date; MySQL makes dates of some short ones, and reads years as years."""
    if not isinstance(value, str) and moment(value) is None:
        raise unsupported("a number that is no date as a date")
    return value


def _day(value: Value) -> Value:
    """A date without its time; any other text as it is."""
    found = moment(value)
    return value if found is None else found.date().isoformat()


def _full_day(value: Value) -> Value:
    """A date; MySQL keeps the time of some texts and not of others."""
    found = moment(value)
    if found is not None and found.time() != time.min:
        raise unsupported("a text with a time beside a date in a statement that changes rows")
    return _day(value)


def _sure_moment(value: Value) -> str:
    if moment(value) is None:
        raise unsupported("a text that is no date, chosen among dates")
    return _moment(value)


def _full_moment(value: Value) -> str:
    if moment(value) is None:
        raise incorrect(text(value))
    return _moment(value)


def _full_integer(value: Value) -> Value:
    digits = text(value).strip().lstrip("+-")
    if not (digits.isascii() and digits.isdecimal()):
        raise StatementError(1292, f"Truncated incorrect INTEGER value: '{text(value)}'")
    return value


def _full_date(value: Value) -> Value:
    if not is_date(text(value)):
        raise StatementError(1292, f"Incorrect datetime value: '{text(value)}'")
    return value


def _narrow(value: Value) -> Value:
    """A text in utf8mb3, which has no characters of four bytes."""
    if isinstance(value, str) and any(ord(char) > 0xFFFF for char in value):
        raise unsupported("a character of four bytes in utf8mb3")
    return value


def _count(value: Value) -> int:
    if number(value) % 1:
        raise unsupported("a number of characters or places that is not whole")
    return int(number(value))


def _positive(value: Value) -> Value:
    if number(value) <= 0:
        raise StatementError(3020, "Invalid argument for logarithm")
    return value


def _divisor(value: Value, dividend: Value) -> Value:
    """The divisor; MySQL does not look at that of NULL."""
    if number(value) == 0:
        raise StatementError(1365, "Division by 0")
    return value


def _not_zero(value: Value) -> Value:
    """A number to be made negative; as a text, MySQL writes `-0` of one that is no whole number."""
    if number(value) == 0:
        raise unsupported("minus a text that is 0 in a statement that changes rows")
    return value


def _signed(rounded: Value, value: Value) -> Value:
    """A floating-point number that was rounded; -0.4 becomes -0."""
    return math.copysign(0.0, number(value)) if rounded == 0 else rounded


def _is_minus_zero(value: Value) -> bool:
    return value == 0 and str(value).startswith("-")


def _signed_text(written: Value, value: Value) -> Value:
    """FORMAT of a floating-point number; that of -0 has its sign."""
    return f"-{written}" if _is_minus_zero(value) and not text(written).startswith("-") else written


def _sure_decimal(value: Value) -> Value:
    """A computed decimal as a stored text; of 0, MySQL writes the places or not."""
    if number(value) == 0:
        raise unsupported("a computed decimal that is 0 as a stored text")
    return value


def _plain_zero(value: Value) -> Value:
    """A floating-point number; where rows are compared, MySQL tells 0 and -0 apart in some plans."""
    if _is_minus_zero(value):
        raise unsupported("minus zero where rows are compared")
    return value


def _date_number(value: Value) -> int | float:
    found = moment(value) if isinstance(value, str) else None
    if found is None:
        return number(value)
    return int(found.strftime("%Y%m%d%H%M%S" if ":" in value else "%Y%m%d"))


COERCIONS: dict[str, Callable[..., Value]] = {
    "WRITTEN": _written,
    "WRITTEN_SINGLE": lambda value: single_text(float(number(value))),
    "SURE_SINGLE": _sure_single,
    "DECIMAL": decimal,
    "MOMENT": _moment,
    "DAY_OF": _day,
    "FULL_DAY_OF": _full_day,
    "DATED": _dated,
    "SURE_MOMENT": _sure_moment,
    "DATE_NUMBER": _date_number,
    "FULL_NUMBER": _full_number,
    "FULL_DECIMAL": _full_decimal,
    "FULL_BEGUN_DECIMAL": _begun_decimal,
    "FULL_INTEGER": _full_integer,
    "FULL_MOMENT": _full_moment,
    "FULL_DATE": _full_date,
    "COUNT": _count,
    "NARROW": _narrow,
    "POSITIVE": _positive,
    "DIVISOR": _divisor,
    "NOT_ZERO": _not_zero,
    "PLAIN_ZERO": _plain_zero,
    "SIGNED": _signed,
    "SIGNED_TEXT": _signed_text,
    "SURE_DECIMAL": _sure_decimal,
    "NEGATIVE": lambda value: -float(number(value)),
}
"""They return NULL for NULL."""
