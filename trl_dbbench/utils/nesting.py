"""Bound on the nesting of JSON that models and other programs write."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")

MAX_NESTING = 100
"""Most levels of lists and objects inside one another."""


def not_nested_deeply(value: T) -> T:
    """Return a JSON value unchanged, or raise if it is nested too deeply.

    Python's decoder accepts hundreds or thousands of levels, depending on its version; chat templates accept
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
