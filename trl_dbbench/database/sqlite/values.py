"""MySQL's values as SQLite holds them: `None`, int, float, str, bytes; how they convert and compare.

Texts are compared as MySQL's utf8mb4_0900_ai_ci does: without regard to case and accents, punctuation before
digits before letters. A text meets a number as the number it starts with. Dates and times are texts, as MySQL
writes them.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Any

import regex

Value = Any
"""`None`, int, float, str or bytes: what an SQLite function may be given and return."""

LONGEST_TEXT = 131_072
"""Characters (and bytes of a row), twice what MySQL's TEXT holds. A function whose result would be longer returns
NULL, as beyond MySQL's max_allowed_packet. It bounds the time of every call, too: none can be interrupted."""


LONGEST_PATTERN = 2_000
"""Characters of a pattern or a format; a longer one takes long to read, and is no agent's."""


class FunctionError(Exception):
    """A call that MySQL refuses: its error number and message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


_PUNCTUATION = "\t\n\r _‾-‐‑‒–—―,;:!?.…'‘’\"“”()[]{}@*/\\&#%†‡•`´^¨°©®+±<=>|~¦¢£¥€$"  # noqa: RUF001
_ORDER = {
    **{ord(char): chr(1 + place) for place, char in enumerate(dict.fromkeys(_PUNCTUATION))},
    **{code: chr(0x100 + code) for code in range(ord("0"), ord("9") + 1)},
    **{code: chr(0x100 + code) for code in range(ord("a"), ord("z") + 1)},
}


def sort_key(text: str) -> str:
    """Equal for texts that the collation holds equal; ordered as it orders them."""
    return _remembered_sort_key(text) if len(text) <= 100 else _sort_key(text)


def _sort_key(text: str) -> str:
    if not text.isascii():
        text = "".join(
            char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char)
        )
    return text.casefold().translate(_ORDER)


_remembered_sort_key = lru_cache(maxsize=65_536)(_sort_key)


def collate(left: str, right: str) -> int:
    """The collation, as SQLite asks for it."""
    first, second = sort_key(left), sort_key(right)
    return (first > second) - (first < second)


_NUMBER = regex.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)")


def number(value: Value) -> int | float:
    """A value as a number: a text is the number it starts with, or 0."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    match = _NUMBER.match(value)
    return float(match[1]) if match else 0.0


def text(value: Value) -> str:
    """A value as MySQL writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return str(value)


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


def fold(value: str) -> str:
    decomposed = unicodedata.normalize("NFKD", value)
    return "".join(char for char in decomposed if not unicodedata.combining(char)).casefold()


def order_key(value: Value) -> tuple[int, Any]:
    """NULLs first, then numbers, then texts."""
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, sort_key(text(value)))
