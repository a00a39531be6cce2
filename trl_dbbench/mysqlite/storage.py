"""New values of columns as MySQL stores them: rounded, as dates, or refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from sqlglot import exp

from trl_dbbench.mysqlite.coercions import as_number, call, doubt, sure_decimal, unified
from trl_dbbench.mysqlite.dates import is_date, moment
from trl_dbbench.mysqlite.errors import StatementError, unsupported
from trl_dbbench.mysqlite.kinds import DATETIME, TEXT, UNKNOWN, Kind, TableColumns, keep_kind, kind_of
from trl_dbbench.mysqlite.values import Value, decimal, single, text, written

EXACT_DIGITS = 15
"""Significant digits of a DECIMAL that SQLite gives back as they were."""

_INTEGERS = 2**63
_EVERY_DIGIT = Context(prec=400)


def store(tree: exp.Expr, columns: Sequence[TableColumns]) -> exp.Expr:
    """The statement, with the values that it writes as their columns hold them."""
    if isinstance(tree, exp.Update):
        _assign(tree.expressions, in_order=tree.args.get("from_") is None)
    if isinstance(tree, exp.Insert):
        _insert(tree, columns)
        for each in tree.find_all(exp.Anonymous) if tree.args.get("ignore") else ():
            if str(each.this).startswith("my_STORE_"):  # MySQL stores something else, with a warning
                doubt(each)
        conflict = tree.args.get("conflict")
        if conflict is not None:
            _assign(conflict.expressions)
    return tree


def _assign(assignments: list[exp.Expr], in_order: bool = True) -> None:
    """Stores new values as their columns hold them. Of one table MySQL sets columns in the order of the
    statement, and a later value is computed of the earlier ones; SQLite computes all of the row as it was."""
    new: dict[str, exp.Expr] = {}
    for each in assignments:
        if not isinstance(each, exp.EQ):
            continue
        name = each.this.name.lower()
        if name in new:
            raise unsupported("a column that is set twice")
        if in_order:
            _renew(each, new)
        each.set("expression", stored(each.expression, each.this.name, kind_of(each.this)))
        new[name] = each.expression


def _renew(assignment: exp.EQ, new: Mapping[str, exp.Expr]) -> None:
    """Puts the new values of columns in the place of their names in the value of another."""
    nodes = assignment.expression.walk(prune=lambda node: isinstance(node, exp.Query))
    for node in [each for each in nodes if isinstance(each, exp.Column) and each.table != "excluded"]:
        if (value := new.get(node.name.lower())) is not None:
            node.replace(keep_kind(value.copy(), node))


def _insert(tree: exp.Insert, columns: Sequence[TableColumns]) -> None:
    schema = tree.this if isinstance(tree.this, exp.Schema) else None
    target = schema.this if schema is not None else tree.this
    known = next((each.columns for each in columns if each.name == target.name), None)
    if known is None:
        return
    kinds = {name.lower(): kind for name, kind in known}
    names = [each.name for each in schema.expressions] if schema is not None else [name for name, _ in known]
    if len({name.lower() for name in names}) < len(names):
        twice = next(name for name in names if [each.lower() for each in names].count(name.lower()) > 1)
        raise StatementError(1110, f"Column '{twice}' specified twice")
    wanted = [(name, kinds.get(name.lower(), UNKNOWN)) for name in names]
    source = tree.expression
    if isinstance(source, exp.Values):
        for place, row in enumerate(source.expressions, 1):
            if (
                isinstance(row, exp.Tuple)
                and len(row.expressions) != len(wanted)
                and set(names) <= set(kinds)
            ):
                raise StatementError(1136, f"Column count doesn't match value count at row {place}")
            if set(names) <= set(kinds) and any(_names_column(row, target.name, kinds, columns)):
                raise unsupported("a column in VALUES")
            if isinstance(row, exp.Tuple) and len(row.expressions) == len(wanted):
                cells = zip(row.expressions, wanted, strict=True)
                row.set("expressions", [stored(cell, name, kind) for cell, (name, kind) in cells])
    elif isinstance(source, exp.Query) and len(source.meta.get("row", ())) == len(wanted):
        tree.set("expression", _selected(source, wanted))


def _names_column(
    row: exp.Expr, target: str, kinds: Mapping[str, Kind], columns: Sequence[TableColumns]
) -> Iterator[bool]:
    """Whether each column in a row of VALUES is one of the table that it is for; a subquery has others."""
    read = {each.name for each in row.find_all(exp.Table)}
    known = {name.lower() for each in columns if each.name in read for name, _ in each.columns}
    for column in row.find_all(exp.Column):
        outer = column.table == target if column.table else column.name.lower() in kinds.keys() - known
        yield column.find_ancestor(exp.Query) is None or (outer and target not in read)


def _selected(source: exp.Query, wanted: list[tuple[str, Kind]]) -> exp.Expr:
    """The rows of a query, as they are stored."""
    cells, names = [], []
    for place, ((name, kind), (_, own)) in enumerate(zip(wanted, source.meta["row"], strict=True)):
        cell = exp.column(f"c{place}", "my_rows")
        cell.meta["kind"] = own
        names.append(exp.to_identifier(f"c{place}"))
        cells.append(stored(cell, name, kind))
    part = exp.CTE(this=source, alias=exp.TableAlias(this=exp.to_identifier("my_rows"), columns=names))
    query = exp.Select(expressions=cells).from_("my_rows")
    query.set("with_", exp.With(expressions=[part]))
    return query


def stored(node: exp.Expr, column: str, kind: Kind) -> exp.Expr:
    """A new value of a column of this kind."""
    if kind.is_number and kind_of(node).is_moment and node.find(exp.Query) is not None:
        raise unsupported("a date of a subquery as a number")
    if isinstance(node, exp.Null | exp.Column) and (isinstance(node, exp.Null) or kind_of(node) == kind):
        return node
    name = exp.Literal.string(column)
    node = sure_decimal(node, kind)
    match kind.name:
        case "int":
            float_ = exp.Literal.number(int(kind_of(node).name in ("float", "text")))
            bounds = [exp.Literal.string(str(bound)) for bound in _range(kind)]
            return call("STORE_INT", as_number(node), name, float_, *bounds)
        case "decimal":
            sizes = (exp.Literal.number(kind.size or 10), exp.Literal.number(kind.places))
            return call("STORE_DECIMAL", as_number(node), name, *sizes)
        case "float":
            return call("STORE_FLOAT", as_number(node), name, exp.Literal.number(int(kind.is_single)))
        case "fixed":
            raise unsupported("new values of a FLOAT or DOUBLE with a number of places")
        case "date" | "datetime":
            return call("STORE_DATE", node, name, exp.Literal.number(int(kind == DATETIME)))
        case "text" if kind.size is not None:
            of_float = kind_of(node).name == "float"
            written = (
                call("REAL_TEXT", node, exp.Literal.number(kind.size)) if of_float else unified(node, TEXT)
            )
            return call("STORE_TEXT", written, name, exp.Literal.number(kind.size))
        case "text":
            computed = kind_of(node).is_single and not isinstance(node, exp.Column)
            return call("WRITTEN", node) if computed else unified(node, TEXT)
        case "json":
            return call("STORE_JSON", node, name)
    return node


def stored_cell(value: Value, column: str, kind: Kind) -> Value:
    """A cell of a task's table, as a column of this kind holds it.

    Raises:
        StatementError: MySQL would refuse it.
    """
    if value is None:
        return None
    match kind.name:
        case "int" if not isinstance(value, int):
            return _store_int(value, column, 1, *_range(kind))
        case "decimal":
            return _exact_decimal(value, column, kind.size or 10, kind.places)
        case "float" if kind.is_single:
            return _store_float(value, column, 1)
        case "fixed":
            return _store_float(
                decimal(_amount(value, column, "double"), kind.places), column, kind.size == 32
            )
        case "date" | "datetime" if not _WRITTEN[kind.name].fullmatch(text(value)):
            return _store_date(value, column, kind == DATETIME)
        case "text" if kind.size is not None:
            return _store_text(value, column, kind.size)
        case "json":
            return _store_json(value, column)
    return value


_WRITTEN = {
    "date": re.compile(r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"),
    "datetime": re.compile(r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8]) [01]\d:[0-5]\d:[0-5]\d"),
}
"""Texts that certainly are what MySQL writes."""


def _range(kind: Kind) -> tuple[int, int]:
    values = 2 ** (kind.size or 64)
    low = 0 if kind.unsigned else -values // 2
    return low, low + values - 1


_WRITTEN_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def _amount(value: Value, column: str, type: str) -> int | float:
    """A number, or an error for a text that is none."""
    if isinstance(value, str | bytes):
        written = text(value).strip()
        if not _WRITTEN_NUMBER.fullmatch(written):
            raise StatementError(1366, f"Incorrect {type} value: '{written}' for column '{column}' at row 1")
        return int(written) if written.lstrip("+-").isdecimal() else float(written)
    return value


def _out_of_range(column: str) -> StatementError:
    return StatementError(1264, f"Out of range value for column '{column}' at row 1")


def _store_int(value: Value, column: str, is_float: int, low: str | int, high: str | int) -> Value:
    amount = _amount(value, column, "integer")
    if isinstance(amount, float):
        if not math.isfinite(amount):
            raise _out_of_range(column)
        half_up = (
            int(Decimal(repr(amount)).quantize(Decimal(1), ROUND_HALF_UP))
            if abs(amount) < 1e18
            else int(amount)
        )
        amount = round(amount) if is_float and not isinstance(value, str) else half_up
    if _INTEGERS <= amount <= 2 * _INTEGERS and int(high) >= _INTEGERS:  # BIGINT UNSIGNED
        raise unsupported(f"whole numbers above {_INTEGERS - 1}")
    if not int(low) <= amount <= int(high):
        raise _out_of_range(column)
    return amount


def _exact_decimal(value: Value, column: str, digits: int, places: int) -> Value:
    """A cell with every digit, or an error."""
    try:
        written = Decimal(str(int(value)) if isinstance(value, bool) else text(value).strip())
        exact = written.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _EVERY_DIGIT)
    except InvalidOperation:  # no number, or none of a size that a column has
        return _store_decimal(value, column, digits, places)
    if not exact.is_finite():
        return _store_decimal(value, column, digits, places)
    if abs(exact) >= 10 ** (digits - places):
        raise _out_of_range(column)
    if _digits(exact) > EXACT_DIGITS:
        raise StatementError(
            1235,
            f"The column {column!r} holds {exact}, and the embedded database DECIMAL of up to {EXACT_DIGITS} "
            "digits. Play it on a server (database: docker, local or a URL), or give the column the type "
            "TEXT.",
        )
    return float(exact) + 0.0  # no -0


def _digits(number: Decimal) -> int:
    """Those that count."""
    return len(number.normalize(_EVERY_DIGIT).as_tuple().digits)


def _store_decimal(value: Value, column: str, digits: int, places: int) -> Value:
    amount = _amount(value, column, "decimal")
    rounded = decimal(amount, places)
    if abs(rounded) >= 10 ** (digits - places):
        raise _out_of_range(column)
    lost = _digits(Decimal(rounded)) > EXACT_DIGITS if isinstance(rounded, int) else None
    if lost or (lost is None and abs(rounded) >= 10 ** (EXACT_DIGITS - places)):
        raise unsupported(f"DECIMAL of more than {EXACT_DIGITS} digits")
    return float(rounded)


_FRACTION = re.compile(r":\d{1,2}\.\d*[1-9]", re.ASCII)


def _store_date(value: Value, column: str, with_time: int) -> Value:
    found = moment(value)
    if found is None or not is_date(text(value)):
        type = "datetime" if with_time else "date"
        raise StatementError(1292, f"Incorrect {type} value: '{text(value)}' for column '{column}' at row 1")
    if with_time and _FRACTION.search(text(value)):
        raise unsupported("fractions of a second in a column")  # a server keeps or rounds them
    return found.isoformat(" ") if with_time else found.date().isoformat()


def _store_text(value: Value, column: str, size: int) -> Value:
    written = text(value)
    if len(written.rstrip(" ")) > size:
        raise StatementError(1406, f"Data too long for column '{column}' at row 1")
    return written[:size] if len(written) > size else value  # without the spaces that are too many


def _store_float(value: Value, column: str, is_single: int) -> float:
    amount = float(_amount(value, column, "double"))
    kept = single(amount) if is_single else amount
    if kept is None or not math.isfinite(kept):
        raise _out_of_range(column)
    return kept


def _real_text(value: Value, size: int) -> str:
    """A floating-point number as a text of so many characters at most; MySQL rounds what is longer."""
    if not isinstance(value, float):
        return text(value)
    if len(written(value, size)) > size or float(written(value, size)) != value:
        raise unsupported("a number that is longer than the column of texts")
    return written(value, size)


def _store_json(value: Value, column: str) -> str:
    """A document as MySQL writes it: the members of an object by the length of their names."""
    try:
        if not isinstance(value, str):
            raise unsupported("a value of JSON that is no text")
        return _json(json.loads(value, parse_float=_json_float, parse_constant=_no_json))
    except (ValueError, RecursionError):
        raise StatementError(3140, f"Invalid JSON text: in value for column '{column}'.") from None


def _json(value: Any) -> str:
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda member: (len(member[0].encode()), member[0].encode()))
        return f"{{{', '.join(f'{_json(name)}: {_json(each)}' for name, each in members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    if isinstance(value, int) and abs(value) >= 2**63:
        raise unsupported("whole numbers above 9223372036854775807 in JSON")
    return json.dumps(value, ensure_ascii=False)


def _json_float(written: str) -> float:
    if not 1e-4 <= abs(float(written)) < 1e15 and float(written) != 0:
        raise unsupported("numbers of JSON that are written with an exponent")
    return float(written)


def _no_json(written: str) -> None:
    raise ValueError(written)


STORAGE: dict[str, Callable[..., Value]] = {
    "STORE_INT": _store_int,
    "STORE_DECIMAL": _store_decimal,
    "STORE_FLOAT": _store_float,
    "REAL_TEXT": _real_text,
    "STORE_DATE": _store_date,
    "STORE_TEXT": _store_text,
    "STORE_JSON": _store_json,
}
"""They return NULL for NULL."""
