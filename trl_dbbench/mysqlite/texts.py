"""MySQL's functions of texts in Python."""

from __future__ import annotations

from collections.abc import Callable

from trl_dbbench.mysqlite.collation import find
from trl_dbbench.mysqlite.values import MAX_TEXT_CHARACTERS, Value, number, text


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
