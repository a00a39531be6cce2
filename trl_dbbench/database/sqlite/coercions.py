"""Values of one type in the place of another, as MySQL converts them in comparisons, texts and arithmetic.

The rules ask here with the nodes of an expression, whose kinds are known (`annotation`), and get nodes that
call the functions at the end of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlglot import exp

from trl_dbbench.database.sqlite.dates import moment
from trl_dbbench.database.sqlite.kinds import DATE, DATETIME, Kind, keep_kind, kind_of
from trl_dbbench.database.sqlite.values import StatementError, Value, decimal, number, text


def call(name: str, *arguments: exp.Expr | None) -> exp.Anonymous:
    """A call of one of our functions."""
    return exp.Anonymous(this=f"my_{name}", expressions=[each for each in arguments if each is not None])


def as_text(node: exp.Expr) -> exp.Expr:
    """A number as MySQL writes it, with all places of a decimal; anything else is a text already."""
    kind = kind_of(node)
    if kind.name == "decimal":
        return call("WRITTEN", node, exp.Literal.number(kind.places))
    return node


def as_number(node: exp.Expr) -> exp.Expr:
    """A date as the number 20200131, or 20200131235959."""
    return call("DATE_NUMBER", node) if kind_of(node).is_moment else node


def exact(node: exp.Expr, kind: Kind, places: int | None = None) -> exp.Expr:
    """A computed decimal, rounded to its places or to so many: floats differ after the 15th digit."""
    if kind.name != "decimal" or not kind.places:
        return node
    new = call("DECIMAL", node, exp.Literal.number(kind.places if places is None else places))
    new.meta["kind"] = kind
    return new


def unified(node: exp.Expr, kind: Kind) -> exp.Expr:
    """A value of CASE, COALESCE or UNION as the kind that all its values have together."""
    own = kind_of(node)
    if kind == DATETIME and own == DATE:
        new = call("MOMENT", node)
    elif kind.name == "text" and (own.is_number or own.is_moment):
        new = call("WRITTEN", node, exp.Literal.number(own.places) if own.name == "decimal" else None)
    else:
        return node
    new.meta["kind"] = kind
    return new


def comparable(nodes: Sequence[exp.Expr], strict: bool = False) -> list[exp.Expr]:
    """The sides of a comparison; where one is a date, the others are read as dates.

    In a statement that changes something, a text that is compared with a number must be one.

    Args:
        strict: an unreadable date among the constants is an error, as with `=`.
    """
    kinds = [kind_of(node) for node in nodes]
    if not any(kind.is_moment for kind in kinds):
        return _numeric(nodes) if any(kind.is_number for kind in kinds) else list(nodes)
    constants = {n: _constant(node, strict) for n, node in enumerate(nodes) if isinstance(node, exp.Literal)}
    if any(kind.name in ("int", "decimal", "float") and not constants.get(n) for n, kind in enumerate(kinds)):
        return [as_number(node) for node in nodes]
    days = all(
        kind in (DATE, Kind("null")) or (n in constants and (constants[n] or "00:00:00").endswith("00:00:00"))
        for n, kind in enumerate(kinds)
    )
    read = []
    for n, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        if n in constants:
            written = constants[n]
            read.append(exp.Literal.string(written[:10] if days else written) if written else node)
        elif (kind == DATE and days) or kind.name == "null":
            read.append(node)
        else:
            checked = (
                strict
                and kind.name == "text"
                and (is_in_change(node) or node.find(exp.Column, exp.Query) is None)
            )
            read.append(call("FULL_MOMENT" if checked else "MOMENT", node))
    return [keep_kind(new, node) for new, node in zip(read, nodes, strict=True)]


def is_in_change(node: exp.Expr) -> bool:
    """Whether an expression stands in a statement that changes rows, where MySQL is strict."""
    return node.find_ancestor(exp.Insert, exp.Update, exp.Delete) is not None


def in_change(node: exp.Expr, check: str = "FULL_NUMBER") -> exp.Expr:
    """A text in the place of a number: in a statement that changes rows, it must be one to the end."""
    if kind_of(node).name != "text" or not is_in_change(node):
        return node
    return keep_kind(call(check, node), node)


def _numeric(nodes: Sequence[exp.Expr]) -> list[exp.Expr]:
    return [in_change(node) for node in nodes]


def _constant(node: exp.Literal, strict: bool) -> str | None:
    """A constant as a date and time, or `None`."""
    found = moment(node.name)
    if found is None and strict and node.is_string:
        raise StatementError(1525, f"Incorrect DATE value: '{node.name}'")
    return None if found is None else found.isoformat(" ")


# --- what SQLite calls -------------------------------------------------------------------------------------


def _full_number(value: Value) -> int | float:
    return _whole_number(value, "DOUBLE") if text(value).strip() else 0


def _full_decimal(value: Value) -> int | float:
    return _whole_number(value, "DECIMAL")


def _whole_number(value: Value, type: str) -> float:
    try:
        return float(text(value).strip())
    except ValueError:
        raise StatementError(1292, f"Truncated incorrect {type} value: '{text(value)}'") from None


def _written(value: Value, places: int | None = None) -> str:
    if places is None or isinstance(value, str | bytes):
        return text(value)
    return f"{Decimal(repr(decimal(value, places))):.{places}f}"


def _moment(value: Value) -> str:
    """A date and time as a text that sorts; what is none comes before all of them."""
    found = moment(value)
    return "0000-00-00 00:00:00" if found is None else found.isoformat(" ")


def _full_moment(value: Value) -> str:
    if moment(value) is None:
        raise StatementError(1525, f"Incorrect DATE value: '{text(value)}'")
    return _moment(value)


def _full_integer(value: Value) -> Value:
    if not text(value).strip().lstrip("+-").isdecimal():
        raise StatementError(1292, f"Truncated incorrect INTEGER value: '{text(value)}'")
    return value


def _divisor(value: Value) -> Value:
    if number(value) == 0:
        raise StatementError(1365, "Division by 0")
    return value


def _date_number(value: Value) -> int | float:
    found = moment(value) if isinstance(value, str) else None
    if found is None:
        return number(value)
    return int(found.strftime("%Y%m%d%H%M%S" if ":" in value else "%Y%m%d"))


COERCIONS: dict[str, Callable[..., Value]] = {
    "WRITTEN": _written,
    "DECIMAL": decimal,
    "MOMENT": _moment,
    "DATE_NUMBER": _date_number,
    "FULL_NUMBER": _full_number,
    "FULL_DECIMAL": _full_decimal,
    "FULL_INTEGER": _full_integer,
    "FULL_MOMENT": _full_moment,
    "DIVISOR": _divisor,
}
"""They return NULL for NULL."""


# --- what the agent reads ----------------------------------------------------------------------------------

_CONVERTED = ("text", "date", "datetime", "time", "decimal")


def shown(rows: Iterable[Sequence[Any]], kinds: Sequence[Kind]) -> Iterable[Sequence[Any]]:
    """The rows of a result, with cells of these kinds in Python's types for them, as a driver gives them."""
    places = [(n, kind) for n, kind in enumerate(kinds) if kind.name in _CONVERTED]
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
        return str(value) if isinstance(value, int | float | Decimal) else value
    if kind.name == "decimal" and isinstance(value, float):
        return decimal(value, kind.places)
    if not isinstance(value, str):
        return value
    try:
        if kind.name == "date":
            return date.fromisoformat(value[:10])
        if kind.name == "datetime":
            return datetime.fromisoformat(value)
        if kind.name == "time":
            hours, minutes, seconds = value.split(":")
            return timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
    except ValueError:
        pass  # no date of Python's: the text says what it is
    return value
