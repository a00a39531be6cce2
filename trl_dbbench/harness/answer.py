"""What a program answers, as JSON holds it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any


def as_answer(given: Any, levels: int = 2) -> Any:
    """Return a cell, a list of cells or a list of rows with cells as JSON holds them.

    Args:
        levels: how deep lists may be nested.

    Raises:
        TypeError: if it is anything else.
    """
    if hasattr(given, "tolist"):  # numbers and arrays of numpy
        given = given.tolist()
    if levels and isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray):
        return [as_answer(each, levels - 1) for each in given]
    return given if given is None or isinstance(given, str | int | float) else as_json(given)


def as_json(cell: Any) -> Any:
    """Return a cell that JSON has no form of.

    Raises:
        TypeError: if it is no cell.
    """
    if isinstance(cell, datetime.date | datetime.time | datetime.timedelta | Decimal | bytes | bytearray):
        return str(cell)
    raise TypeError(
        f"the answer of a harness cannot hold a {type(cell).__name__}: return a text, a list of values or of "
        "rows, or None"
    )
