"""Tables of parquet files: the column that each of their types becomes, and their cells."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.column_types import shortest_float, text_type
from trl_dbbench.tasks.table import Cell, Column, Table

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

ROWS_AT_ONCE = 10_000

EXACT_DIGITS = 15
"""Significant digits of a number with places that SQLite gives back as they were."""

_EVERY_DIGIT = Context(prec=100)

_UNITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""Digits behind the point of the seconds in a unit of time."""

_INDEX = re.compile(r"__index_level_\d+__")
"""Column that pandas makes of an index without a name."""

_UTC = ("UTC", "Etc/UTC", "+00:00", "GMT", "Z")

_BEGIN = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True)
class ParquetColumn:
    """A column: its type, empty if no table has it, and what makes a list of cells of an array."""

    name: str
    type: str
    arrow: str
    read: Callable[[pyarrow.Array], list[Any]]
    zone: str | None = None


def open_parquet(path: Path) -> tuple[ParquetFile, list[ParquetColumn]]:
    """
    Raises:
        TaskError: it cannot be read, or has no columns.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        columns = [_column(field.name, field.type) for field in file.schema_arrow]
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskError(f"{path} is not a readable parquet file: {error}") from None
    if not columns:
        raise TaskError(f"{path} has no columns.")
    return file, columns


def batches(path: Path, file: ParquetFile, columns: list[ParquetColumn]) -> Iterator[list[list[Any]]]:
    """The cells of some of the columns, each a list, for some rows after the others.

    Raises:
        TaskError: they cannot be read, such as a date after the year 9999.
    """
    import pyarrow

    try:
        names = [column.name for column in columns]
        # a name with a point would mean a field of a structure
        chosen = None if any("." in name for name in names) else names
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=chosen):
            cells = []
            for column in columns:
                place = batch.schema.get_all_field_indices(column.name)[0]
                try:
                    cells.append(column.read(batch.columns[place]))
                except (OverflowError, ValueError) as error:
                    raise TaskError(f"{path}, column '{column.name}' cannot be read: {error}") from None
            yield cells
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskError(f"{path} is not a readable parquet file: {error}") from None


def no_column(column: ParquetColumn) -> str:
    """Return why a table cannot have a column."""
    return f"has the type {column.arrow}; a table has numbers, texts, dates, times and bytes"


def in_utc(column: ParquetColumn) -> str:
    """Return what there is to say of times with a zone."""
    return f"its times of {column.zone} are in UTC"


def digits_of(value: Decimal) -> int:
    """Significant digits."""
    return len(value.normalize(_EVERY_DIGIT).as_tuple().digits)


def parquet_table(path: Path, note: Callable[[str], object]) -> Table:
    """The table of a file, named after it; a column that no task can have is left out.

    Args:
        note: gets a line for each column that is left out or read otherwise than it is written.

    Raises:
        TaskError: it cannot be read, or no column is left.
    """
    file, columns = open_parquet(path)
    kept, cells_by_column = [], []
    for column in columns:
        try:
            made = _task_cells(path, file, column)
        except TaskError as error:
            note(f"{path.stem}.{column.name}: left out, {str(error).removeprefix(f'{path}, ')}")
            continue
        kept.append(Column(column.name, made[0]))
        cells_by_column.append(made[1])
        for text in made[2]:
            note(f"{path.stem}.{column.name}: {text}")
    if not kept:
        raise TaskError(f"{path}: no task can have any of its columns.")
    return Table(path.stem, tuple(kept), tuple(zip(*cells_by_column, strict=True)))


def _task_cells(path: Path, file: ParquetFile, column: ParquetColumn) -> tuple[str, list[Cell], list[str]]:
    """The type of a column, its cells as JSON holds them, and what there is to say of it."""
    if _INDEX.fullmatch(column.name):
        raise TaskError("it is pandas' index, which has no name; name it to keep it")
    if not column.type:
        raise TaskError(f"it {no_column(column)}")
    if column.type == "BLOB":
        raise TaskError(f"its type {column.arrow} holds bytes")
    cells = [cell for batch in batches(path, file, [column]) for cell in batch[0]]
    held = [cell for cell in cells if cell is not None]
    notes = [in_utc(column)] if column.zone and held else []
    if column.type == "DOUBLE":
        if any(map(math.isinf, held)):
            raise TaskError("it holds an infinite number, which MySQL has not")
        if none := sum(map(math.isnan, held)):
            notes.append(f"NaN ({none} cells) is read as NULL")
        return column.type, [None if cell is None or math.isnan(cell) else cell for cell in cells], notes
    if column.type.endswith(",0)") and all(abs(cell) < 2**63 for cell in held):
        return "BIGINT", [None if cell is None else int(cell) for cell in cells], notes
    too_long = None
    if any(isinstance(cell, int) and cell >= 2**63 for cell in held):
        too_long = "64 bits"
    elif any(isinstance(cell, Decimal) and digits_of(cell) > EXACT_DIGITS for cell in held):
        too_long = f"{EXACT_DIGITS} digits"
    texts = [f"{cell:f}" if isinstance(cell, Decimal) else cell for cell in cells]
    if too_long:
        notes.append(f"numbers of more than {too_long} are kept as TEXT")
        return "TEXT", [None if cell is None else str(cell) for cell in texts], notes
    if column.type in ("TIME", "DATETIME"):
        places = max((len(cell.partition(".")[2]) for cell in held), default=0)
        if places > 6:
            return "TEXT", texts, [*notes, "times of more than six digits are kept as TEXT"]
        return f"{column.type}({places})" if places else column.type, texts, notes
    if column.type == "TEXT":
        return text_type(max((len(cell.encode()) for cell in held), default=0)), texts, notes
    return column.type, texts, notes


def _column(name: str, type: pyarrow.DataType) -> ParquetColumn:
    import pyarrow

    is_ = pyarrow.types
    made = partial(ParquetColumn, name, arrow=str(type))
    if is_.is_dictionary(type):
        return _column(name, type.value_type)
    if is_.is_boolean(type):
        return made("BOOLEAN", read=_each(int))
    if is_.is_integer(type):
        return made("INT" if type.bit_width < 64 and type != pyarrow.uint32() else "BIGINT", read=_listed)
    if is_.is_floating(type):
        return made("DOUBLE", read=_each(float if type.bit_width == 64 else shortest_float))
    if is_.is_decimal(type):
        return made(f"DECIMAL({type.precision},{max(type.scale, 0)})", read=_listed)
    if is_.is_date(type):
        return made("DATE", read=_each(lambda value: value.isoformat()))
    if is_.is_timestamp(type):
        return made(
            "DATETIME", read=_counted(_UNITS[type.unit], _moment), zone=None if type.tz in _UTC else type.tz
        )
    if is_.is_time(type):
        return made("TIME", read=_counted(_UNITS[type.unit], _time))
    if any(each(type) for each in (is_.is_string, is_.is_large_string, is_.is_string_view, is_.is_null)):
        return made("TEXT", read=_listed)
    of_bytes = (is_.is_binary, is_.is_large_binary, is_.is_fixed_size_binary, is_.is_binary_view)
    return made("BLOB" if any(each(type) for each in of_bytes) else "", read=_listed)


def _listed(array: pyarrow.Array) -> list[Any]:
    return list(array.to_pylist())


def _each(read: Callable[[Any], Any]) -> Callable[[pyarrow.Array], list[Any]]:
    return lambda array: [None if value is None else read(value) for value in array.to_pylist()]


def _counted(places: int, read: Callable[[int, str], str]) -> Callable[[pyarrow.Array], list[Any]]:
    """Times that are stored as a number of units; Python's own have no more than six places."""

    def shown(value: int) -> str:
        seconds, rest = divmod(value, 10**places)
        if places == 9 and rest % 1000 == 0:
            return read(seconds, f".{rest // 1000:06d}" if rest else "")
        return read(seconds, f".{rest:0{places}d}" if rest else "")

    def cells(array: pyarrow.Array) -> list[Any]:
        import pyarrow

        whole = pyarrow.int32() if array.type.bit_width == 32 else pyarrow.int64()
        return [None if value is None else shown(value) for value in array.cast(whole).to_pylist()]

    return cells


def _moment(seconds: int, fraction: str) -> str:
    """A time as databases write it, in UTC."""
    return f"{(_BEGIN + datetime.timedelta(seconds=seconds)).isoformat(sep=' ')}{fraction}"


def _time(seconds: int, fraction: str) -> str:
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
