"""Depth of JSON that models and other programs have written."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

MAX_NESTING = 100
"""Lists and objects inside one another."""


def not_nested_deeply(value: T) -> T:
    """Return a value of JSON as it is.

    Python's decoder follows hundreds of levels, or thousands, as its version has it; chat templates follow
    fewer.

    Raises:
        RecursionError: if it has more than `MAX_NESTING` levels.
    """
    level: list[object] = [value]
    for _ in range(MAX_NESTING + 1):
        within = [each for each in level if isinstance(each, list | dict)]
        if not within:
            return value
        level = [inner for each in within for inner in (each.values() if isinstance(each, dict) else each)]
    raise RecursionError("nested too deep")
