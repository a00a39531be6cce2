"""MySQL's operators and functions by name, in Python, for SQLite to call."""

from __future__ import annotations

import json
import math
import operator
import random
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import time
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial, wraps
from inspect import signature
from typing import Any

import regex

from trl_dbbench.mysqlite.collation import find, lower, upper
from trl_dbbench.mysqlite.dates import DATE_FUNCTIONS, clock_text, is_date, moment
from trl_dbbench.mysqlite.errors import SHOWN_DATABASE, StatementError, fail_if, refuse_if, unsupported
from trl_dbbench.mysqlite.patterns import like, regexp_like, regexp_replace, regexp_substr
from trl_dbbench.mysqlite.values import (
    BEGUN_NUMBER,
    MAX_TEXT_CHARACTERS,
    Value,
    compare,
    comparison_with,
    decimal,
    number,
    order_key,
    single,
    single_text,
    sort_key,
    text,
    written,
)

LOWEST = "0000-00-00 00:00:00"
"""Date that MySQL compares instead of a text that is not a date."""

_LARGE = "whole numbers above 9223372036854775807"

Test = Callable[[Value], Any]


def _unless(test: Test, error: str | Callable[[str], StatementError], read: Any = None) -> Callable:
    """Return a function that returns its value, or `read(value)`, if the value passes a test. Otherwise, it
    raises `unsupported(error)`, or what `error` returns for the value as a text."""

    def check(value: Value) -> Value:
        if not test(value):
            raise unsupported(error) if isinstance(error, str) else error(text(value))
        return value if read is None else read(value)

    return check


def _error(code: int, form: str) -> Callable[[str], StatementError]:
    return lambda written: StatementError(code, form.format(written))


def incorrect(written: str) -> StatementError:
    """Return the error for a text that is compared with a date and is not one."""
    if _BEGUN.match(written):
        return unsupported("a text that begins like a date and is none")
    return StatementError(1525, f"Incorrect DATE value: '{written}'")


_BEGUN = re.compile(r"\s*\d{2,4}-\d\d?-\d\d?\d")


def is_number(written: str) -> bool:
    """Return whether the whole text is a number."""
    return _NUMBER.fullmatch(written) is not None and math.isfinite(float(written))


_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE | re.ASCII)


def _whole_number(type: str) -> Callable[[Value], Value]:
    error = _error(1292, f"Truncated incorrect {type} value: '{{}}'")
    return _unless(lambda value: is_number(text(value)), error, lambda value: float(text(value)))


_full_double = _whole_number("DOUBLE")


def _written(value: Value, places: int | None = None) -> str:
    if places is None or isinstance(value, str | bytes):
        return text(value)
    return f"{Decimal(repr(decimal(value, places))):.{places}f}"


def _is_moment(value: Value) -> bool:
    return moment(value) is not None


def _moment(value: Value) -> str:
    """Return a date and time as a text that sorts; anything else is `LOWEST`, which comes first."""
    found = moment(value)
    return LOWEST if found is None else found.isoformat(" ")


def _day(value: Value) -> Value:
    """Return a date without its time, any other value as it is."""
    found = moment(value)
    return value if found is None else found.date().isoformat()


def _is_integer(value: Value) -> bool:
    digits = text(value).strip().lstrip("+-")
    return digits.isascii() and digits.isdecimal()


def _divisor(value: Value, dividend: Value) -> Value:
    """Return the divisor, which must not be 0. MySQL does not evaluate it if the dividend is NULL."""
    fail_if(number(value) == 0, 1365, "Division by 0")
    return value


def _signed(rounded: Value, value: Value) -> Value:
    """Return a rounded floating-point number with its sign: -0.4 becomes -0."""
    return math.copysign(0.0, number(value)) if rounded == 0 else rounded


def _is_minus_zero(value: Value) -> bool:
    return value == 0 and str(value).startswith("-")


def _signed_text(written: Value, value: Value) -> Value:
    """Return FORMAT of a floating-point number; -0 keeps its sign."""
    return f"-{written}" if _is_minus_zero(value) and not text(written).startswith("-") else written


def _date_number(value: Value) -> int | float:
    found = moment(value) if isinstance(value, str) else None
    if found is None:
        return number(value)
    return int(found.strftime("%Y%m%d%H%M%S" if ":" in value else "%Y%m%d"))


COERCIONS: dict[str, Callable[..., Value]] = {
    "WRITTEN": _written,
    "WRITTEN_SINGLE": lambda value: single_text(float(number(value))),
    # MySQL's plan decides whether it has six digits or all
    "SURE_SINGLE": _unless(
        lambda value: not isinstance(value, float) or single_text(value) == text(value),
        "a computed FLOAT as a text",
        text,
    ),
    "DECIMAL": decimal,
    "MOMENT": _moment,
    "DAY_OF": _day,
    "FULL_DAY_OF": _unless(  # MySQL keeps the time of some texts and not of others
        lambda value: (found := moment(value)) is None or found.time() == time.min,
        "a text with a time beside a date in a statement that changes rows",
        _day,
    ),
    "DATED": _unless(  # MySQL reads some short numbers as dates, and years as years
        lambda value: isinstance(value, str) or _is_moment(value), "a number that is no date as a date"
    ),
    "SURE_MOMENT": _unless(_is_moment, "a text that is no date, chosen among dates", _moment),
    "DATE_NUMBER": _date_number,
    "FULL_NUMBER": lambda value: _full_double(value) if text(value).strip() else 0,
    "FULL_DECIMAL": _whole_number("DECIMAL"),
    "FULL_BEGUN_DECIMAL": _unless(  # MySQL ignores what follows the number
        lambda value: BEGUN_NUMBER.match(text(value)) is not None,
        _error(1366, "Incorrect DECIMAL value: '0' for column '' at row -1: '{}'"),
        number,
    ),
    "FULL_INTEGER": _unless(_is_integer, _error(1292, "Truncated incorrect INTEGER value: '{}'")),
    "FULL_MOMENT": _unless(_is_moment, incorrect, _moment),
    "FULL_DATE": _unless(lambda value: is_date(text(value)), _error(1292, "Incorrect datetime value: '{}'")),
    "COUNT": _unless(
        lambda value: not number(value) % 1,
        "a number of characters or places that is not whole",
        lambda value: int(number(value)),
    ),
    "POSITIVE": _unless(lambda value: number(value) > 0, _error(3020, "Invalid argument for logarithm")),
    "DIVISOR": _divisor,
    # if the text is not an integer, such as '0.0', MySQL writes the result as `-0`
    "NOT_ZERO": _unless(number, "minus a text that is 0 in a statement that changes rows"),
    # MySQL tells 0 and -0 apart in some plans
    "PLAIN_ZERO": _unless(lambda value: not _is_minus_zero(value), "minus zero where rows are compared"),
    "SIGNED": _signed,
    "SIGNED_TEXT": _signed_text,
    # MySQL may or may not write the places of 0
    "SURE_DECIMAL": _unless(number, "a computed decimal that is 0 as a stored text"),
    "NEGATIVE": lambda value: -float(number(value)),
}
"""Functions that convert values to another type, or check them. They return NULL for NULL."""

_BIGINT = 2**63


def _unsigned(value: Value) -> Value:
    fail_if(number(value) < 0, 1690, "BIGINT UNSIGNED value is out of range")
    refuse_if(isinstance(value, float) and value >= _BIGINT, _LARGE)
    return value


OVERFLOW: dict[str, Callable[[Value], Value]] = {
    "WHOLE": _unless(  # for integers, SQLite returns a float only on overflow
        lambda value: not isinstance(value, float) or abs(value) < _BIGINT,
        _error(1690, "BIGINT value is out of range"),
    ),
    "UNSIGNED": _unsigned,
    "FINITE": _unless(
        lambda value: not isinstance(value, float) or math.isfinite(value),
        _error(1690, "DOUBLE value is out of range"),
    ),
    "BITS": _unless(lambda value: number(value) >= 0, _LARGE),
}
"""Functions that check the results of arithmetic. They return NULL for NULL."""

_EVERY_DIGIT = Context(prec=400)
"""Decimal context with enough digits for the longest float and its places after the point."""


def _ints(*values: Value) -> bool:
    return all(isinstance(value, int) for value in values)


def divide(left: Value, right: Value, places: int | None = None) -> float | None:
    """Return `left / right`, NULL for a division by zero. For integers, `places` defaults to 4."""
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
    """Return ROUND of a float, which rounds half to even, as the processor does: 2.5 to 2."""
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
    # MySQL reads an unsigned number as a signed one
    refuse_if(not -_BIGINT <= whole < _BIGINT, "CAST of a text with more than 19 digits")
    return whole


def cast_unsigned(value: Value) -> int:
    whole = cast_signed(value)
    # MySQL returns an unsigned 64-bit integer, which SQLite cannot hold
    refuse_if(whole < 0, "CAST of a negative number AS UNSIGNED")
    return whole


def cast_decimal(value: Value, places: Value, digits: int) -> int | float:
    rounded = round_half_up(number(value), places)
    if abs(rounded) >= 10 ** (digits - places):  # MySQL returns the largest one that fits
        raise unsupported("CAST of a number AS DECIMAL with fewer digits")
    return float(rounded) if places else int(rounded)


def cast_float(value: Value) -> float:
    """Return CAST(value AS FLOAT)."""
    amount = single(float(number(value)))
    if amount is None:
        raise StatementError(1690, f"DOUBLE value is out of range in 'cast({text(value)} as float)'")
    return amount


def hexadecimal(value: Value) -> str:
    if isinstance(value, int | float):
        refuse_if(value % 1 == 0.5, "HEX of a half")  # MySQL rounds it by the kind of number
        return f"{round(value) % (2 * _BIGINT):X}"
    return text(value).encode().hex().upper()


def format_number(value: Value, digits: Value) -> str:
    places = min(max(int(number(digits)), 0), 30)
    refuse_if(places > 15 and isinstance(value, str), "FORMAT of a text with more than 15 places")
    return f"{Decimal(str(round_half_up(number(value), places))):,.{places}f}"


def defined(function: Callable[..., float]) -> Callable[..., float | None]:
    """Return a function that returns NULL where it is undefined, and raises StatementError on overflow."""

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
    except ValueError:  # 0 to a negative power, or a root of a negative number
        raise OverflowError from None


def logarithm(first: Value, second: Value = None) -> float:
    return math.log(first) if second is None else math.log(second, first)


def bounded(value: str) -> str | None:
    """Return a text, NULL if it is too long."""
    return value if len(value) <= MAX_TEXT_CHARACTERS else None


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
    cut = int(number(length))
    return whole[: first - 1] + text(new) + (whole[first - 1 + cut :] if cut >= 0 else "")


DOUBTFUL = "DOUBTFUL_"
"""Prefix of functions that refuse where others fail, because MySQL may ignore the failure."""
CHECKS = ("FULL_", "DIVISOR")
"""Prefixes of functions that raise in a statement that changes rows."""


def doubtful(check: Callable[..., Value]) -> Callable[..., Value]:
    """Return a check that refuses instead of failing, because MySQL may ignore the failure."""

    @wraps(check)
    def checked(*values: Value) -> Value:
        try:
            return check(*values)
        except StatementError:
            raise unsupported("what fails where MySQL may not look at it") from None

    return checked


EXACT_DIGITS = 15
"""Most significant digits of a DECIMAL that SQLite returns unchanged."""


def amount_of(value: Value, column: str, type: str) -> int | float:
    """Return a value as a number; raise StatementError for a text that is not one."""
    if isinstance(value, str | bytes):
        written = text(value).strip()
        if not _NUMBER.fullmatch(written):
            raise StatementError(1366, f"Incorrect {type} value: '{written}' for column '{column}' at row 1")
        return int(written) if written.lstrip("+-").isdecimal() else float(written)
    return value


YEARS = (1901, 2155)
"""Smallest and largest YEAR, apart from 0."""


def _out_of_range(column: str) -> StatementError:
    return StatementError(1264, f"Out of range value for column '{column}' at row 1")


def store_int(value: Value, column: str, is_float: int, low: str | int, high: str | int) -> Value:
    amount = amount_of(value, column, "integer")
    if isinstance(amount, float):
        if not math.isfinite(amount):
            raise _out_of_range(column)
        if is_float and not isinstance(value, str):
            amount = round(amount)
        elif abs(amount) < 1e18:
            amount = int(Decimal(repr(amount)).quantize(Decimal(1), ROUND_HALF_UP))
        else:
            amount = int(amount)
    if _BIGINT <= amount <= 2 * _BIGINT and int(high) >= _BIGINT:  # BIGINT UNSIGNED
        raise unsupported(f"whole numbers above {_BIGINT - 1}")
    refuse_if((int(low), int(high)) == YEARS and 0 <= amount < 100, "a YEAR of two digits")
    if not int(low) <= amount <= int(high):
        raise _out_of_range(column)
    return amount


def exact_decimal(value: Value, column: str, digits: int, places: int) -> Value:
    """Return a DECIMAL cell; raise StatementError if SQLite cannot hold all of its digits."""
    try:
        written = Decimal(str(int(value)) if isinstance(value, bool) else text(value).strip())
        exact = written.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _EVERY_DIGIT)
    except InvalidOperation:  # not a number, or too large for any column
        exact = Decimal("NaN")
    if not exact.is_finite():
        return _store_decimal(value, column, digits, places)
    if abs(exact) >= 10 ** (digits - places):
        raise _out_of_range(column)
    if _digits(exact) > EXACT_DIGITS:
        raise StatementError(
            1235,
            f"The column {column!r} holds {exact}, and the embedded database DECIMAL of up to {EXACT_DIGITS} "
            "digits. Play it on a server (database: docker, local or a URL), or give the column the type "
            "TEXT.",
        )
    return float(exact) + 0.0  # no -0


def _digits(number: Decimal) -> int:
    """Return the number of significant digits."""
    return len(number.normalize(_EVERY_DIGIT).as_tuple().digits)


def _store_decimal(value: Value, column: str, digits: int, places: int) -> Value:
    amount = amount_of(value, column, "decimal")
    rounded = decimal(amount, places)
    if abs(rounded) >= 10 ** (digits - places):
        raise _out_of_range(column)
    lost = _digits(Decimal(rounded)) > EXACT_DIGITS if isinstance(rounded, int) else None
    if lost or (lost is None and abs(rounded) >= 10 ** (EXACT_DIGITS - places)):
        raise unsupported(f"DECIMAL of more than {EXACT_DIGITS} digits")
    return float(rounded)


_FRACTION = re.compile(r":\d{1,2}\.\d*[1-9]", re.ASCII)


def store_date(value: Value, column: str, with_time: int) -> Value:
    found = moment(value)
    if found is None or not is_date(text(value)):
        type = "datetime" if with_time else "date"
        raise StatementError(1292, f"Incorrect {type} value: '{text(value)}' for column '{column}' at row 1")
    if with_time and _FRACTION.search(text(value)):
        raise unsupported("fractions of a second in a column")  # a server keeps or rounds them
    return found.isoformat(" ") if with_time else found.date().isoformat()


def store_time(value: Value, column: str) -> Value:
    written = text(value)
    if (found := clock_text(written)) is None:
        raise StatementError(1292, f"Incorrect time value: '{written}' for column '{column}' at row 1")
    return found


def store_text(value: Value, column: str, size: int) -> Value:
    written = text(value)
    fail_if(len(written.rstrip(" ")) > size, 1406, f"Data too long for column '{column}' at row 1")
    return written[:size] if len(written) > size else value  # without the excess spaces


def store_member(value: Value, column: str, several: int, *members: str) -> str:
    """Return the member of an ENUM that a text names or, if `several`, the members of a SET in order."""
    named = text(value).rstrip(" ")
    parts = [sort_key(each) for each in (named.split(",") if several else [named]) if named or not several]
    known = {sort_key(each): each for each in members}
    if not set(parts) <= set(known):
        refuse_if(not isinstance(value, str) or named.isdecimal(), "a number as a member of ENUM or SET")
        raise StatementError(1265, f"Data truncated for column '{column}' at row 1")
    return ",".join(each for key, each in known.items() if key in parts)


def store_float(value: Value, column: str, is_single: int) -> float:
    amount = float(amount_of(value, column, "double"))
    kept = single(amount) if is_single else amount
    if kept is None or not math.isfinite(kept):
        raise _out_of_range(column)
    return kept


def _real_text(value: Value, size: int) -> str:
    """Return a float as a text of at most `size` characters; refuse longer ones, which MySQL rounds."""
    if not isinstance(value, float):
        return text(value)
    if len(written(value, size)) > size or float(written(value, size)) != value:
        raise unsupported("a number that is longer than the column of texts")
    return written(value, size)


def store_json(value: Value, column: str) -> str:
    """Return a document as MySQL writes it: an object's members are sorted by the length of their names."""
    try:
        refuse_if(not isinstance(value, str), "a value of JSON that is no text")
        return _json(json.loads(value, parse_float=_json_float, parse_constant=int))
    except (ValueError, RecursionError):
        raise StatementError(3140, f"Invalid JSON text: in value for column '{column}'.") from None


def _json(value: Any) -> str:
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: (len(member[0].encode()), member[0].encode()))
        return f"{{{', '.join(f'{_json(name)}: {_json(each)}' for name, each in members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    refuse_if(isinstance(value, int) and abs(value) >= _BIGINT, f"{_LARGE} in JSON")
    return json.dumps(value, ensure_ascii=False)


def _json_float(written: str) -> float:
    if not 1e-4 <= abs(float(written)) < 1e15 and float(written) != 0:
        raise unsupported("numbers of JSON that are written with an exponent")
    return float(written)


STORAGE: dict[str, Callable[..., Value]] = {
    "STORE_INT": store_int,
    "STORE_DECIMAL": _store_decimal,
    "STORE_FLOAT": store_float,
    "REAL_TEXT": _real_text,
    "STORE_DATE": store_date,
    "STORE_TIME": store_time,
    "STORE_TEXT": store_text,
    "STORE_JSON": store_json,
    "STORE_MEMBER": store_member,
}
"""Functions that convert values for columns. They return NULL for NULL."""


def _comparison(test: Callable[[int, int], bool]) -> Callable[[Value, Value], int | None]:
    def function(left: Value, right: Value) -> int | None:
        order = compare(left, right)
        return None if order is None else int(test(order, 0))

    return function


def null_safe_equal(left: Value, right: Value) -> int:
    """Return the result of `<=>`."""
    return int(left is right if left is None or right is None else compare(left, right) == 0)


def is_in(value: Value, *options: Value) -> int | None:
    """Return `value IN (options)`, with NULL as in SQL."""
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
            if placed > 0 or (sign > 0 and placed == 0):  # GREATEST returns the last of equal texts
                best, order = value, comparison_with(value)
        return best

    return function


def one_row(rows: Value, perhaps: int) -> int:
    """Return 1; fail if a subquery used as a value has several rows. `perhaps`: MySQL may not read it."""
    refuse_if(number(rows) > 1 and perhaps, "a subquery with several rows beside another condition")
    fail_if(number(rows) > 1, 1242, "Subquery returns more than 1 row")
    return 1


def present(value: Value, column: str) -> Value:
    fail_if(value is None, 1048, f"Column '{column}' cannot be null")
    return value


def field(value: Value, *options: Value) -> int:
    order = comparison_with(value)
    return next((place for place, option in enumerate(options, 1) if order(option) == 0), 0)


def elt(place: Value, *options: Value) -> Value:
    chosen = int(number(place)) if place is not None else 0
    return options[chosen - 1] if 1 <= chosen <= len(options) else None


_COMPARING: dict[str, Callable[..., Value]] = {
    **{name: _comparison(getattr(operator, name.lower())) for name in ("EQ", "NE", "LT", "LE", "GT", "GE")},
    "NULL_SAFE_EQ": null_safe_equal,
    "IN": is_in,
    "BETWEEN": between,
    "LIKE": like,
}

# functions that are also called with NULL; the others return NULL for it
_SEEING_NULL: dict[str, Callable[..., Value]] = {
    **_COMPARING,
    "REGEXP_LIKE": regexp_like,
    "CONCAT_WS": concat_ws,
    "ONE_ROW": one_row,
    "PRESENT": present,
    "FIELD": field,
    "ELT": elt,
    "ISNULL": lambda value: int(value is None),
    "NULLIF": lambda left, right, value: None if compare(left, right) == 0 else value,
    **dict.fromkeys(("DATABASE", "SCHEMA"), lambda: SHOWN_DATABASE),
    "VERSION": lambda: "9.7.0-sqlite",
    **dict.fromkeys(("USER", "CURRENT_USER"), lambda: "agent@localhost"),
    "CONNECTION_ID": lambda: 1,
    "SLEEP": lambda seconds: 0,
    "PI": lambda: math.pi,
    "RAND": random.random,
    "UUID": lambda: str(uuid.uuid4()),
}

OVERFLOWING = ("POW", "POWER", "EXP")
"""MySQL functions whose results may exceed the range of a DOUBLE."""

_STRICT: dict[str, Callable[..., Value]] = {
    "DIV": divide,
    "INT_DIV": whole_divide,
    "MOD": modulo,
    "DECIMAL_MOD": decimal_modulo,
    "ROUND": round_half_up,
    "ROUND_FLOAT": round_half_even,
    "TRUNCATE": truncate,
    "FLOOR": lambda value: math.floor(number(value)),
    **dict.fromkeys(("CEIL", "CEILING"), lambda value: math.ceil(number(value))),
    "ABS": absolute,
    "SIGN": lambda value: (number(value) > 0) - (number(value) < 0),
    **dict.fromkeys(("POW", "POWER"), defined(power)),
    "LN": defined(lambda value: math.log(value)),
    "LOG": defined(logarithm),
    **{
        name.upper(): defined(getattr(math, name))
        for name in ["sqrt", "exp", "log2", "log10", "sin", "cos", "tan", "radians", "degrees"]
    },
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
    "REGEXP_SUBSTR": regexp_substr,
    "REGEXP_REPLACE": regexp_replace,
    "CONCAT": lambda *values: bounded("".join(text(value) for value in values)),
    **dict.fromkeys(("LENGTH", "OCTET_LENGTH"), lambda value: len(text(value).encode())),
    **dict.fromkeys(("CHAR_LENGTH", "CHARACTER_LENGTH"), lambda value: len(text(value))),
    **dict.fromkeys(("UPPER", "UCASE"), lambda value: upper(text(value))),
    **dict.fromkeys(("LOWER", "LCASE"), lambda value: lower(text(value))),
    "LEFT": lambda value, count: text(value)[: max(int(number(count)), 0)],
    "RIGHT": lambda value, count: text(value)[-int(number(count)) :] if int(number(count)) > 0 else "",
    **dict.fromkeys(("SUBSTRING", "SUBSTR", "MID"), substring),
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
    """Return every function by its MySQL name, or by a name of our own for an operator."""
    named = {**_STRICT, **DATE_FUNCTIONS, **_OURS}
    strict = {name: _null_in_null_out(function) for name, function in named.items()}
    failing = [name for name in strict if name.startswith((*CHECKS, "STORE_"))] + [*OVERFLOW, *OVERFLOWING]
    checks = {f"{DOUBTFUL}{name}": doubtful(strict[name]) for name in failing}
    return {**strict, **checks, **_SEEING_NULL}


def is_own(name: str) -> bool:
    """Return whether a name is one of our own, not a MySQL function's."""
    return name in _OWN or name.startswith(("FULL_", "CAST_", DOUBTFUL))


_OURS = {**COERCIONS, **OVERFLOW, **STORAGE}
_OWN = {*_OURS, *_COMPARING, "DIV", "INT_DIV", "DECIMAL_MOD", "ONE_ROW", "PRESENT", "ROUND_FLOAT"} | {
    *("YEAR_MONTH", "EXTRACT")
}


def takes(function: Callable[..., Value], values: Sequence[object]) -> bool:
    """Return whether a function can be called with these values."""
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


MAX_GROUP_CONCAT_BYTES = 1024
MAX_SORT_CHARACTERS = 1024
MAX_SORT_MEMORY_CHARACTERS = 2_000_000
"""Most characters that one GROUP_CONCAT may hold in order to sort them."""
MAX_SORT_ROWS = 100_000
"""Most rows that one GROUP_CONCAT may hold: even an empty text takes some memory."""


class Deviation:
    """Variance or standard deviation of a population or sample, by Welford's recurrence, as in MySQL."""

    def __init__(self, sample: bool = False, root: bool = False) -> None:
        self.sample, self.root = sample, root
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def step(self, value: Value) -> None:
        if value is not None:
            self.count += 1
            away = float(number(value)) - self.mean
            self.mean += away / self.count
            self.squares += away * (float(number(value)) - self.mean)

    def finalize(self) -> float | None:
        divisor = self.count - self.sample
        if divisor <= 0:
            return None
        variance = self.squares / divisor
        return math.sqrt(variance) if self.root else variance


class GroupConcat:
    """GROUP_CONCAT(value..., ORDER BY key...).

    Each step takes the separator, whether DISTINCT is given, the directions of the keys as a text of `+` and
    `-`, the keys, and the values. Only what can appear in the returned bytes is kept.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[list[tuple[int, Any]], str]] = []
        self.seen: set[int] = set()
        self.separator, self.directions = ",", ""
        self.size = 0

    def step(self, separator: str, distinct: int, directions: str, *values: Value) -> None:
        keys, parts = values[: len(directions)], values[len(directions) :]
        if None in parts or (not directions and not distinct and self.size > MAX_GROUP_CONCAT_BYTES):
            return
        joined = "".join(text(part) for part in parts)
        if distinct and not directions:  # MySQL finds distinct values by sorting
            keys, directions = (joined,), "+"
        self.separator, self.directions = text(separator), directions
        if distinct:
            mark = hash(sort_key(joined))
            if mark in self.seen:
                return
            self.seen.add(mark)
        places, joined = [_sortable(key) for key in keys], joined[:MAX_GROUP_CONCAT_BYTES]
        self.rows.append((places, joined))
        self.size += len(joined) + len(separator) + sum(len(str(place)) for place in places)
        if self.size > MAX_SORT_MEMORY_CHARACTERS or len(self.rows) > MAX_SORT_ROWS:
            raise StatementError(1038, "Out of sort memory, consider increasing server sort buffer size")

    def finalize(self) -> str | None:
        if not self.rows:
            return None
        for place in reversed(range(len(self.directions))):
            self.rows.sort(key=lambda row: row[0][place], reverse=self.directions[place] == "-")
        joined = self.separator.join(row[1] for row in self.rows).encode()[:MAX_GROUP_CONCAT_BYTES]
        return joined.decode("utf-8", "ignore")


def _sortable(value: Value) -> tuple[int, Any]:
    """Return a sort key, cut to the length that MySQL compares (max_sort_length)."""
    kind, key = order_key(value)
    return (kind, key[:MAX_SORT_CHARACTERS]) if isinstance(key, str) else (kind, key)


AGGREGATES: dict[str, Callable[[], Any]] = {
    "GROUP_CONCAT": GroupConcat,
    **dict.fromkeys(("VARIANCE", "VAR_POP"), Deviation),
    "VAR_SAMP": partial(Deviation, sample=True),
    **dict.fromkeys(("STD", "STDDEV", "STDDEV_POP"), partial(Deviation, root=True)),
    "STDDEV_SAMP": partial(Deviation, sample=True, root=True),
}
"""Aggregate functions that SQLite lacks: each creates an object for the rows of a group."""
