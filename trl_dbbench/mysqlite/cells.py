"""What the agent reads of a result: its cells in Python's types for MySQL's, as a driver gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from trl_dbbench.mysqlite.errors import unsupported
from trl_dbbench.mysqlite.floats import shown_single, single
from trl_dbbench.mysqlite.kinds import Kind
from trl_dbbench.mysqlite.values import decimal, text

_CONVERTED = ("text", "date", "datetime", "time", "decimal", "fixed")


def shown(rows: Iterable[Sequence[Any]], kinds: Sequence[Kind]) -> Iterable[Sequence[Any]]:
    """The rows of a result, with cells of these kinds in Python's types for them, as a driver gives them."""
    places = [(n, kind) for n, kind in enumerate(kinds) if kind.name in _CONVERTED or kind.is_single]
    return (_converted(row, places) for row in rows) if places else rows


def _converted(row: Sequence[Any], places: Sequence[tuple[int, Kind]]) -> tuple:
    cells = list(row)
    for place, kind in places:
        cells[place] = _cell(cells[place], kind)
    return tuple(cells)


def _cell(value: Any, kind: Kind) -> Any:
    if kind.name == "text":
        if isinstance(value, date | datetime):
            return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
        return text(value) if isinstance(value, int | float | Decimal) else value
    if isinstance(value, int | float) and kind.is_single:
        digits = shown_single(single(value) or value)
        if kind.silent and digits != value:
            raise unsupported("MIN or MAX of a computed FLOAT in groups")
        return digits
    if kind.name in ("decimal", "fixed") and isinstance(value, float):
        return decimal(value, kind.places)
    if not isinstance(value, str):
        return value
    try:
        if kind.name == "date":
            return date.fromisoformat(value[:10])
        if kind.name == "datetime":
            return datetime.fromisoformat(value)
        if kind.name == "time":
            return duration(value)
    except (ValueError, OverflowError):
        pass  # no date of Python's: the text says what it is
    return value


def duration(value: str) -> timedelta:
    """A TIME; the sign in front is that of all its parts."""
    hours, minutes, seconds = value.removeprefix("-").split(":")
    length = timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
    return -length if value.startswith("-") else length
