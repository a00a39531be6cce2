"""MySQL's collation utf8mb4_0900_ai_ci, and its upper and lower case.

A character has the weight in `letters.json`, or the weights of its parts in Unicode: `ä` sorts as `a`, `ø` as
`o`, `ß` as `ss`. Accents have no weight. Ideographs come last, in the order of their code points.
"""

from __future__ import annotations

import json
import threading
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

MAX_CACHED_KEY_CHARACTERS = 100
MAX_CACHED_KEYS = 16_384
MAX_CACHED_CHARACTERS = 16_384
"""Most entries of each cache. All caches together stay below 64 MB: one character may become 18 in a key."""

_LETTERS: dict[str, Any] = json.loads(Path(__file__).with_name("letters.json").read_text())
"""MySQL's order of the characters in `ranges` (pairs of code points), written by benchmarks/make_letters.py.
`order` has one character of each weight, `ignored` the characters without a weight. Where MySQL differs from
Unicode, `alike` maps a character to others that together have its weights, `upper` and `lower` to its other
case. The other case of `growing` characters takes more bytes: MySQL loses them in UPPER and LOWER."""

_IDEOGRAPHS = range(0x4E00, 0x9FD6)
_UNKNOWN = "\U00100000"
"""Prefix of characters of unknown weight and of ideographs in sort keys, so that both come last."""


def sort_key(text: str) -> str:
    """Return a key that sorts a text in the collation's order."""
    return _cached_sort_key(text) if len(text) <= MAX_CACHED_KEY_CHARACTERS else _sort_key(text)


def collate(left: str, right: str) -> int:
    """Return -1, 0 or 1 for the order of two texts, as SQLite expects it of a collation."""
    first, second = sort_key(left), sort_key(right)
    return (first > second) - (first < second)


def symbols(text: str) -> str:
    """Return a symbol for each character, the same for characters of equal weight, for LIKE to compare."""
    return text.translate(_SYMBOLS)


def find(part: str, whole: str, start: int = 0) -> int:
    """Return the first index, from `start` on, at which the collation finds `part`, or -1."""
    if not 0 <= start <= len(whole):
        return -1
    wanted, key, offset = sort_key(part), sort_key(whole[start:]), 0
    found = key.find(wanted)
    if found < 0 or (whole.isascii() and len(key) == len(whole) - start):
        return found if found < 0 else found + start
    places: dict[int, int] = {}
    for place, weights in enumerate(map(_weights, whole[start:]), start):
        places.setdefault(offset, place)
        offset += len(weights)
    places.setdefault(offset, len(whole))
    while found >= 0 and found not in places:
        found = key.find(wanted, found + 1)
    return -1 if found < 0 else places[found]


def unknown_letters(texts: Iterable[str]) -> set[str]:
    """Return the characters of texts whose weight or case is unknown: they are compared by code point."""
    seen = {char for text in texts if not text.isascii() for char in text}
    unknown = {char for char in seen if ord(char) not in _IDEOGRAPHS and _UNKNOWN in _weights(char)}
    return unknown | (seen & set(_LETTERS["growing"]))


def upper(text: str) -> str:
    """Return UPPER of a text, which changes one character to one: `ß` stays as it is."""
    return text.upper() if text.isascii() else text.translate(_UPPER)


def lower(text: str) -> str:
    """Return LOWER of a text."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def decomposed(char: str) -> str:
    """Return a character's compatibility decomposition (NFKD) in Unicode, case-folded."""
    return unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())


class _Table(dict[int, str]):
    """A table for `str.translate` that computes its entries when a character is first met.

    Texts are changed character by character: for a whole text, `normalize` would also sort its combining
    characters, which takes seconds for 10,000 of them in a row.
    """

    def __init__(self, compute: Callable[[str], str]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, code: int) -> str:
        computed = self._compute(chr(code))
        if len(self) < MAX_CACHED_CHARACTERS:
            self[code] = computed
        return computed


_KNOWN = {char: chr(0xF0000 + place) for place, char in enumerate(_LETTERS["order"])}
_KNOWN |= dict.fromkeys(_LETTERS["ignored"], "")
_KNOWN |= {char: "".join(map(_KNOWN.__getitem__, others)) for char, others in _LETTERS["alike"].items()}


def _weights(char: str) -> str:
    return _KEYS[ord(char)]


def _computed_weights(char: str) -> str:
    if (known := _KNOWN.get(char)) is not None:
        return known
    if not any(first <= ord(char) <= last for first, last in _LETTERS["ranges"]):
        return _UNKNOWN + char
    return "".join(_KNOWN.get(part, _UNKNOWN + part) for part in decomposed(char))


def _symbol(char: str) -> str:
    weights = _weights(char)
    if len(weights) == 1:
        return weights
    with _lock:
        return _SEVERAL.setdefault(weights, chr(ord(_UNKNOWN) + 1 + len(_SEVERAL)))


def _one(changed: str, char: str) -> str:
    return changed if len(changed) == 1 else char


_KEYS, _SYMBOLS = _Table(_computed_weights), _Table(_symbol)
_UPPER = _Table(lambda char: _LETTERS["upper"].get(char) or _one(char.upper(), char))
_LOWER = _Table(lambda char: _LETTERS["lower"].get(char) or _one(char.lower(), char))
_SEVERAL: dict[str, str] = {}
"""Symbols of characters with no weight or several, by these weights: about 30,000 in Unicode."""
_lock = threading.Lock()


def _sort_key(text: str) -> str:
    return text.translate(_KEYS)


_cached_sort_key = lru_cache(maxsize=MAX_CACHED_KEYS)(_sort_key)
