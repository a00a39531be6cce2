"""MySQL's aggregate functions in Python, for SQLite to call."""

from __future__ import annotations

import math
from typing import Any

from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.mysqlite.values import Value, number, order_key, sort_key, text

MAX_GROUP_CONCAT_BYTES = 1024
MAX_SORT_CHARACTERS = 1024
MAX_SORT_MEMORY_CHARACTERS = 2_000_000
"""Characters that one GROUP_CONCAT may hold in order to sort them."""
MAX_SORT_ROWS = 100_000
"""Rows that it may hold: each takes some memory, even of empty texts."""


class Deviation:
    """The variance and its root, of a population or a sample; by Welford's recurrence, as in MySQL."""

    sample, root = False, False

    def __init__(self) -> None:
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

    It is called with the separator, whether DISTINCT is wanted, the directions of the keys as a text of `+`
    and `-`, the keys, and the values. It keeps only what can show in the bytes that it returns.
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
        if distinct and not directions:  # MySQL finds the distinct ones by sorting
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
    """A sort key that is cut to the length that MySQL compares (max_sort_length)."""
    kind, key = order_key(value)
    return (kind, key[:MAX_SORT_CHARACTERS]) if isinstance(key, str) else (kind, key)


class _VariancePopulation(Deviation): ...


class _VarianceSample(Deviation):
    sample = True


class _DeviationPopulation(Deviation):
    root = True


class _DeviationSample(Deviation):
    sample, root = True, True


AGGREGATES: dict[str, type] = {
    "GROUP_CONCAT": GroupConcat,
    "VARIANCE": _VariancePopulation,
    "VAR_POP": _VariancePopulation,
    "VAR_SAMP": _VarianceSample,
    "STD": _DeviationPopulation,
    "STDDEV": _DeviationPopulation,
    "STDDEV_POP": _DeviationPopulation,
    "STDDEV_SAMP": _DeviationSample,
}
