"""Rows that a program gets, and what it answers, as JSON holds them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from typing import Any


def as_answer(given: Any, levels: int = 2) -> Any:
    """Return a cell, a list of cells or of rows as JSON holds them; raise TypeError for anything else."""
    if hasattr(given, "tolist"):  # numbers and arrays of numpy
        given = given.tolist()
    if levels and isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray):
        return [as_answer(each, levels - 1) for each in given]
    return given if given is None or isinstance(given, str | int | float) else as_json(given)


def as_json(cell: Any) -> Any:
    """Return a cell that JSON has no form of: a DECIMAL as a number, others as text.

    A DECIMAL with more digits than a float is text too. A TIME is text as MySQL prints it.
    """
    if isinstance(cell, Decimal) and cell.is_finite():
        number = int(cell) if cell == int(cell) else float(cell)
        return number if Decimal(repr(number)) == cell else str(cell)
    if isinstance(cell, datetime.timedelta):
        from trl_dbbench.grading.states import without_dates  # loads more than most programs need

        return without_dates((cell,))[0]
    if isinstance(cell, datetime.date | datetime.time | Decimal | bytes | bytearray):
        return str(cell)
    raise TypeError(
        f"the answer of a harness cannot hold a {type(cell).__name__}: return a text, a list of values or of "
        "rows, or None"
    )
