"""JSON values for the rows that a program gets, and for its answers."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any


def as_answer(given: Any, levels: int = 2) -> Any:
    """Return a cell, a list of cells or a list of rows as JSON values; raise TypeError for anything else."""
    if hasattr(given, "tolist"):  # scalars and arrays of numpy
        given = given.tolist()
    if levels and isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray):
        return [as_answer(each, levels - 1) for each in given]
    return given if given is None or isinstance(given, str | int | float) else as_json(given)


def as_json(cell: Any) -> Any:
    """Return a JSON value for a cell of another type: a number for a DECIMAL, text for others.

    A DECIMAL with more digits than a float holds becomes text too. A TIME is written as MySQL prints it.
    """
    if isinstance(cell, Decimal) and cell.is_finite():
        number = int(cell) if cell == int(cell) else float(cell)
        return number if Decimal(repr(number)) == cell else str(cell)
    if isinstance(cell, datetime.timedelta):
        from trl_dbbench.grading.states import without_dates  # imports more than most programs need

        return without_dates((cell,))[0]
    if isinstance(cell, datetime.date | datetime.time | Decimal | bytes | bytearray):
        return str(cell)
    raise TypeError(
        f"the answer of a harness cannot hold a {type(cell).__name__}: return a text, a list of values or of "
        "rows, or None"
    )
