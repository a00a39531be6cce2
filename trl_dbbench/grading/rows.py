"""Comparison of rows and table states, cell by cell; rewards and verdicts use it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

Row = Sequence[Any]


class TableState(NamedTuple):
    """A table's column names, in order, and its rows, in any order.

    `rest` represents rows that are too many to hold in memory; two tables are equal only if their `rest` is.
    """

    columns: Sequence[str]
    rows: Sequence[tuple]
    rest: Hashable = None


State = Mapping[str, TableState]
"""Tables by name."""

Key = tuple[str, Hashable]
"""Kind of a value, and the value; cells with equal keys are equal."""


def same_state(state_a: State, state_b: State) -> bool:
    """Return whether two databases hold the same tables: columns in order, rows in any order.

    NULL differs from every text, text from every number (`'1'` is not `1`). Numbers compare by value:
    `Decimal('1.0')`, `1.0` and `1` are equal. If one is a float, a relative difference of 1e-9 is allowed.
    Table names compare exactly, column names without case, as in SQL.
    """
    return state_a.keys() == state_b.keys() and all(
        column_key(table) == column_key(state_b[name])
        and table.rest == state_b[name].rest
        and same_rows(table.rows, state_b[name].rows)
        for name, table in state_a.items()
    )


def column_key(table: TableState) -> list[str]:
    """Return a key that is equal for tables with the same columns."""
    return [name.lower() for name in table.columns]


def same_rows(a: Iterable[Row], b: Iterable[Row], ordered: bool = False) -> bool:
    """Return whether rows are equal, as multisets or, if `ordered`, one by one; cells as in `same_state`.

    Numbers are sorted per column, instead of comparing all pairs of rows. Therefore values of a column count
    as equal if a chain of values within 1e-9 of each other connects them.
    """
    keys_a = [tuple(cell_key(cell) for cell in row) for row in a]
    keys_b = [tuple(cell_key(cell) for cell in row) for row in b]
    if len(keys_a) != len(keys_b):
        return False
    if ordered:
        return all(_close_rows(x, y) for x, y in zip(keys_a, keys_b, strict=True))
    left, right = Counter(keys_a), Counter(keys_b)
    if left == right:
        return True
    rest_a, rest_b = list((left - right).elements()), list((right - left).elements())
    clusters = _clusters(rest_a + rest_b)
    return Counter(_clustered(rest_a, clusters)) == Counter(_clustered(rest_b, clusters))


def cell_key(cell: Any) -> Key:
    """Return a key that is equal for equal cells; cells of two kinds (NULL, text, number, ...) differ."""
    if cell is None:
        return "null", None
    if isinstance(cell, str):
        return "text", cell
    if isinstance(cell, (int, float, Decimal)):
        # A NaN is not equal to itself, and a Decimal one cannot be sorted.
        is_nan = cell.is_nan() if isinstance(cell, Decimal) else cell != cell
        return ("nan", None) if is_nan else ("number", cell)
    if isinstance(cell, (bytearray, memoryview)):
        return "bytes", bytes(cell)
    try:
        hash(cell)
    except TypeError:
        return "repr", repr(cell)
    return type(cell).__name__, cell


def _close_rows(a: tuple[Key, ...], b: tuple[Key, ...]) -> bool:
    return len(a) == len(b) and all(
        x == y or (x[0] == y[0] == "number" and _close_numbers(x[1], y[1])) for x, y in zip(a, b, strict=True)
    )


def _close_numbers(a: Any, b: Any) -> bool:
    """Return whether both are equal, or within 1e-9 if one is a float. Large ids, as ints, stay distinct."""
    if a == b:
        return True
    if not (isinstance(a, float) or isinstance(b, float)):
        return False
    try:
        return math.isclose(a, b, rel_tol=1e-9)
    except OverflowError:  # an int too large for a float
        return False


def _clusters(rows: list[tuple[Key, ...]]) -> dict[tuple[int, Any], int]:
    """Return (column, number) -> group: in sorted order, a number joins its predecessor's group if close."""
    columns: dict[int, set] = {}
    for row in rows:
        for column, (kind, value) in enumerate(row):
            if kind == "number":
                columns.setdefault(column, set()).add(value)
    groups: dict[tuple[int, Any], int] = {}
    for column, values in columns.items():
        group, before = 0, None
        for value in sorted(values):
            group += before is not None and not _close_numbers(before, value)
            groups[column, value] = group
            before = value
    return groups


def _clustered(rows: list[tuple[Key, ...]], clusters: dict[tuple[int, Any], int]) -> Iterator[tuple]:
    """Yield each row with its numbers replaced by their groups."""
    for row in rows:
        yield tuple(
            ("number", clusters[column, value]) if kind == "number" else (kind, value)
            for column, (kind, value) in enumerate(row)
        )
