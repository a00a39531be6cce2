"""Functions that SQLite calls to read values as another type, and to check them in changes of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import time
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import wraps

import regex

from trl_dbbench.mysqlite.collation import find
from trl_dbbench.mysqlite.dates import is_date, moment
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.values import (
    BEGUN_NUMBER,
    MAX_TEXT_CHARACTERS,
    Value,
    decimal,
    number,
    single,
    single_text,
    text,
)

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


def _whole(value: Value) -> Value:
    if isinstance(value, float) and abs(value) >= _BIGINT:  # of whole numbers, SQLite makes one only then
        raise StatementError(1690, "BIGINT value is out of range")
    return value


def _unsigned(value: Value) -> Value:
    if number(value) < 0:
        raise StatementError(1690, "BIGINT UNSIGNED value is out of range")
    if isinstance(value, float) and value >= _BIGINT:
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


def bounded(value: str) -> str | None:
    """NULL for a text that is too long."""
    return value if len(value) <= MAX_TEXT_CHARACTERS else None


def characters(*codes: Value) -> str | None:
    """CHAR: the text of these bytes, several for a code above 255; NULL if they are none in UTF-8."""
    whole = [int(number(code)) % 2**32 for code in codes if code is not None]
    try:
        return b"".join(code.to_bytes(max((code.bit_length() + 7) // 8, 1)) for code in whole).decode()
    except UnicodeDecodeError:
        return None


def substring(value: Value, start: Value, length: Value = None) -> str:
    whole, first = text(value), int(number(start))
    if first == 0 or abs(first) > len(whole):
        return ""
    begin = first - 1 if first > 0 else len(whole) + first
    if length is None:
        return whole[begin:]
    return whole[begin : begin + max(int(number(length)), 0)]


def substring_index(value: Value, delimiter: Value, count: Value) -> str:
    parts, wanted = text(value).split(text(delimiter)) if delimiter else [], int(number(count))
    return text(delimiter).join(parts[:wanted] if wanted > 0 else parts[wanted:] if wanted < 0 else [])


def locate(part: Value, whole: Value, start: Value = 1) -> int:
    return find(text(part), text(whole), int(number(start)) - 1) + 1


def replace(value: Value, old: Value, new: Value) -> str | None:
    whole, part, other = text(value), text(old), text(new)
    if not part or len(whole) + whole.count(part) * len(other) > MAX_TEXT_CHARACTERS:
        return whole if not part else None
    return whole.replace(part, other)


def repeat(value: Value, count: Value) -> str | None:
    times = max(int(number(count)), 0)
    return text(value) * times if len(text(value)) * times <= MAX_TEXT_CHARACTERS else None


def pad(left: bool) -> Callable[[Value, Value, Value], str | None]:
    def function(value: Value, length: Value, filler: Value = " ") -> str | None:
        whole, width = text(value), int(number(length))
        if width < 0 or width > MAX_TEXT_CHARACTERS:
            return None
        missing = width - len(whole)
        if missing <= 0:
            return whole[:width]
        if not text(filler):
            return ""
        padding = (text(filler) * (missing // len(text(filler)) + 1))[:missing]
        return padding + whole if left else whole + padding

    return function


def trim(value: Value, part: Value = " ", where: Value = "BOTH") -> str:
    whole, cut = text(value), text(part)
    start, end = 0, len(whole)
    while cut and where in ("BOTH", "LEADING") and whole.startswith(cut, start):
        start += len(cut)
    while cut and where in ("BOTH", "TRAILING") and whole.endswith(cut, start, end):
        end -= len(cut)
    return whole[start:end]


def concat_ws(separator: Value, *values: Value) -> str | None:
    if separator is None:
        return None
    return bounded(text(separator).join(text(value) for value in values if value is not None))


def insert_text(value: Value, start: Value, length: Value, new: Value) -> str:
    whole, first = text(value), int(number(start))
    if not 1 <= first <= len(whole):
        return whole
    return whole[: first - 1] + text(new) + whole[first - 1 + int(number(length)) :]
