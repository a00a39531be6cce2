"""MySQL's operators and functions in Python, for SQLite to call."""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any

import regex

from trl_dbbench.database.sqlite.values import (
    LONGEST_PATTERN,
    LONGEST_TEXT,
    FunctionError,
    Value,
    compare,
    fold,
    number,
    text,
)

REGEX_SECONDS = 0.5
"""Of the whole process's computing, which a match may take."""


# Comparison.


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
    """`value IN (options)`, with SQL's NULL."""
    if value is None:
        return None
    if any(option is not None and compare(value, option) == 0 for option in options):
        return 1
    return None if None in options else 0


def between(value: Value, low: Value, high: Value) -> int | None:
    above, below = compare(value, low), compare(value, high)
    if (above is not None and above < 0) or (below is not None and below > 0):
        return 0
    return None if above is None or below is None else 1


@lru_cache(maxsize=256)
def _like_pattern(pattern: str, escape: str, exact: bool) -> Any:
    """What lies between two % is sought once, at its first place: no later one could match where this fails."""
    segments, chars = [""], iter(pattern if exact else fold(pattern))
    for char in chars:
        if char == "%":
            segments.append("")
        elif char == escape:
            segments[-1] += regex.escape(next(chars, escape))
        else:
            segments[-1] += "." if char == "_" else regex.escape(char)
    first, *others = segments
    middle = "".join(f"(?>.*?{segment})" for segment in others[:-1] if segment)
    return regex.compile(first + middle + (f".*{others[-1]}" if others else ""), regex.DOTALL)


def like(value: Value, pattern: Value, escape: Value = "\\", exact: Value = 0) -> int | None:
    if value is None or pattern is None:
        return None
    wanted = _checked_pattern(pattern)
    subject = text(value) if exact else fold(text(value))
    compiled = _like_pattern(wanted, text(escape), bool(exact))
    return int(in_regex_time(lambda: compiled.fullmatch(subject, timeout=REGEX_SECONDS)) is not None)


def _checked_pattern(pattern: Value) -> str:
    wanted = text(pattern)
    if len(wanted) > LONGEST_PATTERN:
        raise FunctionError(3887, "The regular expression pattern exceeds limits on size or complexity.")
    return wanted


_FOREIGN = regex.compile(r"\(\?(?:R|&|P>|[+-]?\d)|\{[^}]*<")


@lru_cache(maxsize=256)
def _regex(pattern: str, flags: str) -> Any:
    if _FOREIGN.search(pattern):  # recursive and approximate ones, whose timeouts come late
        raise FunctionError(1139, "Got error 'not supported' from regexp")
    try:
        return regex.compile(pattern, 0 if "c" in flags else regex.IGNORECASE)
    except (regex.error, RecursionError, OverflowError) as error:
        raise FunctionError(1139, f"Got error '{error}' from regexp") from None


def in_regex_time(call: Callable[[], Any]) -> Any:
    """What the match returns; one that waited instead of computing is tried again.

    `regex` counts the whole process's time against a timeout, and the time a match waits for Python's lock: while
    another thread collects garbage, that alone can be more than the timeout.
    """
    computing = time.thread_time()
    while True:
        try:
            return call()
        except TimeoutError:
            if time.thread_time() - computing >= REGEX_SECONDS / 5:
                raise FunctionError(3699, "Timeout exceeded in regular expression match.") from None
        except MemoryError:
            raise FunctionError(3698, "Overflow in the regular expression backtrack stack.") from None


def regexp_like(value: Value, pattern: Value, flags: Value = "") -> int | None:
    if value is None or pattern is None:
        return None
    compiled = _regex(_checked_pattern(pattern), flags)
    return int(in_regex_time(lambda: compiled.search(text(value), timeout=REGEX_SECONDS)) is not None)


def regexp_substr(value: Value, pattern: Value) -> str | None:
    if value is None or pattern is None:
        return None
    compiled = _regex(_checked_pattern(pattern), "")
    found = in_regex_time(lambda: compiled.search(text(value), timeout=REGEX_SECONDS))
    return found[0] if found else None


def regexp_replace(value: Value, pattern: Value, new: Value) -> str | None:
    if value is None or pattern is None or new is None:
        return None
    compiled = _regex(_checked_pattern(pattern), "")
    template = regex.sub(r"\$(\d+)", r"\\\1", text(new).replace("\\", "\\\\"))
    made = 0

    def replacement(match: Any) -> str:
        nonlocal made
        written = match.expand(template)
        made += len(written)
        if made > LONGEST_TEXT:
            raise _TooLong
        return written

    try:
        return in_regex_time(lambda: compiled.sub(replacement, text(value), timeout=REGEX_SECONDS))
    except _TooLong:
        return None


class _TooLong(Exception):
    """A text beyond LONGEST_TEXT."""


# Numbers.


def _ints(*values: Value) -> bool:
    return all(isinstance(value, int) for value in values)


def divide(left: Value, right: Value) -> float | None:
    """`/`: of whole numbers with 4 decimals, as MySQL's DECIMAL has them; NULL by zero."""
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


def _domain(function: Callable[..., float]) -> Callable[..., float | None]:
    """NULL where the function is not defined, as in MySQL."""

    def call(*values: Value) -> float | None:
        try:
            return function(*(number(value) for value in values))
        except (ValueError, OverflowError, ZeroDivisionError):
            return None

    return call


def _logarithm(first: Value, second: Value = None) -> float:
    return math.log(first) if second is None else math.log(second, first)


def _extreme(sign: int) -> Callable[..., Value]:
    def function(first: Value, *rest: Value) -> Value:
        best = first
        for value in rest:
            if sign * (compare(value, best) or 0) > 0:
                best = value
        return best

    return function


# Texts.


def _bounded(value: str) -> str | None:
    return value if len(value) <= LONGEST_TEXT else None


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
    return fold(text(whole)).find(fold(text(part)), max(int(number(start)) - 1, 0)) + 1


def replace(value: Value, old: Value, new: Value) -> str | None:
    whole, part, other = text(value), text(old), text(new)
    if not part or len(whole) + whole.count(part) * len(other) > LONGEST_TEXT:
        return whole if not part else None
    return whole.replace(part, other)


def repeat(value: Value, count: Value) -> str | None:
    times = max(int(number(count)), 0)
    return text(value) * times if len(text(value)) * times <= LONGEST_TEXT else None


def _pad(left: bool) -> Callable[[Value, Value, Value], str | None]:
    def function(value: Value, length: Value, filler: Value = " ") -> str | None:
        whole, width = text(value), int(number(length))
        if width < 0 or width > LONGEST_TEXT:
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
    return _bounded(text(separator).join(text(value) for value in values if value is not None))


def field(value: Value, *options: Value) -> int:
    return next((place for place, option in enumerate(options, 1) if compare(value, option) == 0), 0)


def insert_text(value: Value, start: Value, length: Value, new: Value) -> str:
    whole, first = text(value), int(number(start))
    if not 1 <= first <= len(whole):
        return whole
    return whole[: first - 1] + text(new) + whole[first - 1 + int(number(length)) :]


def elt(place: Value, *options: Value) -> Value:
    chosen = int(number(place)) if place is not None else 0
    return options[chosen - 1] if 1 <= chosen <= len(options) else None


# Functions that see NULL; the others return NULL for it.
_SEEING_NULL: dict[str, Callable[..., Value]] = {
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
    "REGEXP_LIKE": regexp_like,
    "REGEXP_SUBSTR": regexp_substr,
    "REGEXP_REPLACE": regexp_replace,
    "CONCAT_WS": concat_ws,
    "FIELD": field,
    "ELT": elt,
    "ISNULL": lambda value: int(value is None),
    "NULLIF": lambda left, right: None if compare(left, right) == 0 else left,
    "DATABASE": lambda: "dbbench",
    "SCHEMA": lambda: "dbbench",
    "VERSION": lambda: "8.4.0-sqlite",
    "USER": lambda: "agent@localhost",
    "CURRENT_USER": lambda: "agent@localhost",
    "CONNECTION_ID": lambda: 1,
    "SLEEP": lambda seconds: 0,
    "PI": lambda: math.pi,
    "RAND": lambda seed=None: random.random() if seed is None else random.Random(int(number(seed))).random(),
    "UUID": lambda: str(uuid.uuid4()),
}

_STRICT: dict[str, Callable[..., Value]] = {
    "DIV": divide,
    "INT_DIV": whole_divide,
    "MOD": modulo,
    "ROUND": round_half_up,
    "TRUNCATE": truncate,
    "FLOOR": lambda value: math.floor(number(value)),
    "CEIL": lambda value: math.ceil(number(value)),
    "CEILING": lambda value: math.ceil(number(value)),
    "ABS": lambda value: abs(number(value)),
    "SIGN": lambda value: (number(value) > 0) - (number(value) < 0),
    "SQRT": _domain(math.sqrt),
    "POW": _domain(math.pow),
    "POWER": _domain(math.pow),
    "EXP": _domain(math.exp),
    "LN": _domain(math.log),
    "LOG": _domain(_logarithm),
    "LOG2": _domain(math.log2),
    "LOG10": _domain(math.log10),
    "SIN": _domain(math.sin),
    "COS": _domain(math.cos),
    "TAN": _domain(math.tan),
    "RADIANS": _domain(math.radians),
    "DEGREES": _domain(math.degrees),
    "GREATEST": _extreme(1),
    "LEAST": _extreme(-1),
    "CAST_SIGNED": cast_signed,
    "CAST_DECIMAL": cast_decimal,
    "CAST_DOUBLE": lambda value: float(number(value)),
    "CAST_CHAR": lambda value, length=None: text(value)[:length],
    "FORMAT": format_number,
    "CONCAT": lambda *values: _bounded("".join(text(value) for value in values)),
    "LENGTH": lambda value: len(text(value).encode()),
    "OCTET_LENGTH": lambda value: len(text(value).encode()),
    "CHAR_LENGTH": lambda value: len(text(value)),
    "CHARACTER_LENGTH": lambda value: len(text(value)),
    "UPPER": lambda value: text(value).upper(),
    "UCASE": lambda value: text(value).upper(),
    "LOWER": lambda value: text(value).lower(),
    "LCASE": lambda value: text(value).lower(),
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
    "LPAD": _pad(True),
    "RPAD": _pad(False),
    "TRIM": trim,
    "LTRIM": lambda value: text(value).lstrip(" "),
    "RTRIM": lambda value: text(value).rstrip(" "),
    "INSERT": insert_text,
    "STRCMP": lambda left, right: compare(text(left), text(right)),
    "FIND_IN_SET": lambda part, items: field(part, *text(items).split(",")) if items else 0,
    "ASCII": lambda value: text(value).encode()[0] if text(value) else 0,
    "ORD": lambda value: int.from_bytes(text(value)[:1].encode()),
    "CHAR": lambda *codes: "".join(chr(int(number(code)) % 0x110000) for code in codes),
    "HEX": lambda value: f"{value:X}" if isinstance(value, int) else text(value).encode().hex().upper(),
}


def functions() -> dict[str, Callable[..., Value]]:
    """Every function by its MySQL name, or by one of ours for an operator."""
    from trl_dbbench.database.sqlite.dates import DATE_FUNCTIONS

    strict = {name: _null_in_null_out(function) for name, function in {**_STRICT, **DATE_FUNCTIONS}.items()}
    return {**strict, **_SEEING_NULL}


def _null_in_null_out(function: Callable[..., Value]) -> Callable[..., Value]:
    def call(*values: Value) -> Value:
        return None if None in values else function(*values)

    return call
