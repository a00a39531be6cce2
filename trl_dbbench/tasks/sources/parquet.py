"""Read tables from parquet files: convert Arrow types to column types, and values to cells."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.column_types import MAX_WHOLE_DIGITS, shortest_float, text_type
from trl_dbbench.tasks.parts import check_same_columns, table_name
from trl_dbbench.tasks.table import Cell, Column, Table

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import FileMetaData

ROWS_AT_ONCE = 10_000

EXACT_DIGITS = 15
"""Most significant digits of a fraction that SQLite returns unchanged."""

_EVERY_DIGIT = Context(prec=100)

MAX_PLACES = 30
"""Most digits after the point of a DECIMAL."""

_BEGINS = re.compile(r"(?!0000)\d{4}-|\d\d:", re.ASCII)
"""Beginning of a date or time that databases support."""

_SPARE = re.compile(r"\.0+$|(?<=\.\d{6})000$")
"""Trailing zeros of a second's fraction that can be cut: all, or those after six digits."""

_INDEX = re.compile(r"__index_level_\d+__")
"""Column in which pandas stores an index without a name."""

_EXTENSION = b"ARROW:extension:name"
"""Metadata key of a field with the name of an extension type that is not loaded."""

_AS_STORED = (
    *("arrow.json", "arrow.bool8", "arrow.uuid"),
    *("google:sqlType:datetime", "google:sqlType:geography", "google:sqlType:json"),  # BigQuery's
)
"""Extension types whose stored values are the cells. Others differ: pandas' periods are stored as numbers."""

_UTC = ("UTC", "Etc/UTC", "+00:00", "GMT", "Z")


@dataclass(frozen=True)
class ParquetColumn:
    """A column: its type, which is empty if a table cannot have it, and a function from array to cells."""

    name: str
    type: str
    arrow: str
    read: Callable[[pyarrow.Array], list[Any]] = lambda array: array.to_pylist()
    zone: str | None = None

    @property
    def unfit(self) -> str:
        """Reason why a table cannot have the column."""
        return f"has the type {self.arrow}; a table has numbers, texts, dates, times and bytes"

    @property
    def note(self) -> str:
        return f"its times of {self.zone} are in UTC" if self.zone else ""


def parquet_files(parts: Sequence[Path]) -> tuple[dict[Path, FileMetaData], list[ParquetColumn]]:
    """Return the metadata of a file, or of the parts of a table, and the columns.

    Raises TaskError if one cannot be read or has no columns, or if the parts' columns differ.
    """
    import pyarrow
    import pyarrow.parquet

    files, schemas = {}, []
    for path in parts:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                files[path] = file.metadata
                schemas.append(file.schema_arrow)
        except (OSError, pyarrow.ArrowException) as error:
            raise TaskError(f"{path} is not a readable parquet file: {error}") from None
    if not schemas[0].names:
        raise TaskError(f"{parts[0]} has no columns.")
    check_same_columns(parts, [[f"{each.name} {each.type}" for each in schema] for schema in schemas])
    return files, [
        _column(field.name, field.type, (field.metadata or {}).get(_EXTENSION, b"").decode())
        for field in schemas[0]
    ]


def batches(
    files: Mapping[Path, FileMetaData], columns: list[ParquetColumn]
) -> Iterator[tuple[Path, list[list[Any]]]]:
    """Yield batches of rows: their file, and a list of cells for each of the given columns.

    One file is open at a time.
    """
    import pyarrow
    import pyarrow.parquet

    names = [column.name for column in columns]
    # a name with a point would select a field of a struct
    chosen = None if any("." in name for name in names) else names
    for path, metadata in files.items():
        try:
            with pyarrow.parquet.ParquetFile(path, metadata=metadata) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=chosen):
                    cells = []
                    for column in columns:
                        place = batch.schema.get_all_field_indices(column.name)[0]
                        try:
                            cells.append(column.read(batch.columns[place]))
                        except (OverflowError, ValueError) as error:
                            raise TaskError(
                                f"{path}, column '{column.name}' cannot be read: {error}"
                            ) from None
                    yield path, cells
        except (OSError, pyarrow.ArrowException) as error:
            raise TaskError(f"{path} is not a readable parquet file: {error}") from None


def too_long(value: Any) -> str | None:
    """Return the limit that a number exceeds, so that SQLite would change it; `None` if it fits."""
    if isinstance(value, int):
        return "64 bits" if value >= 2**63 else None
    digits = len(value.normalize(_EVERY_DIGIT).as_tuple().digits) if isinstance(value, Decimal) else 0
    return f"{EXACT_DIGITS} digits" if digits > EXACT_DIGITS else None


def parquet_table(parts: Sequence[Path], note: Callable[[str], object]) -> Table:
    """Return the table of a file or of its parts, without columns that no task can have.

    Args:
        note: called with a line for each column that is left out or read differently than written.
    """
    path, name = parts[0], table_name(parts[0])
    files, columns = parquet_files(parts)
    kept, cells_by_column = [], []
    for column in columns:
        try:
            made = _task_cells(files, column)
        except TaskError as error:
            note(f"{name}.{column.name}: left out, {str(error).removeprefix(f'{path}, ')}")
            continue
        kept.append(Column(column.name, made[0]))
        cells_by_column.append(made[1])
        for text in made[2]:
            note(f"{name}.{column.name}: {text}")
    if not kept:
        raise TaskError(f"{path}: no task can have any of its columns.")
    return Table(name, tuple(kept), tuple(zip(*cells_by_column, strict=True)))


def _task_cells(
    files: Mapping[Path, FileMetaData], column: ParquetColumn
) -> tuple[str, list[Cell], list[str]]:
    """Return a column's type, its cells as JSON holds them, and notes.

    Raises TaskError if no task can have the column.
    """
    if _INDEX.fullmatch(column.name):
        raise TaskError("it is pandas' index, which has no name; name it to keep it")
    if not column.type:
        raise TaskError(f"it {column.unfit}")
    if column.type == "BLOB":
        raise TaskError(f"its type {column.arrow} holds bytes")
    cells = [cell for _, batch in batches(files, [column]) for cell in batch[0]]
    held = [cell for cell in cells if cell is not None]
    notes = [column.note] if column.note and held else []
    if column.type == "DOUBLE":
        if any(map(math.isinf, held)):
            raise TaskError("it holds an infinite number, which MySQL has not")
        if none := sum(map(math.isnan, held)):
            notes.append(f"NaN ({none} cells) is read as NULL")
        return column.type, [None if cell is None or math.isnan(cell) else cell for cell in cells], notes
    if column.type.endswith(",0)") and all(abs(cell) < 2**63 for cell in held):
        return "BIGINT", [None if cell is None else int(cell) for cell in cells], notes
    texts = [f"{cell:f}" if isinstance(cell, Decimal) else cell for cell in cells]
    if beyond := next(filter(None, map(too_long, held)), None):
        notes.append(f"numbers of more than {beyond} are kept as TEXT")
        return "TEXT", [None if cell is None else str(cell) for cell in texts], notes
    if column.type in ("TIME", "DATETIME"):
        places = max((len(cell.partition(".")[2]) for cell in held), default=0)
        if places > 6:
            return "TEXT", texts, [*notes, "times of more than six digits are kept as TEXT"]
        return f"{column.type}({places})" if places else column.type, texts, notes
    if column.type == "TEXT":
        return text_type(max((len(cell.encode()) for cell in held), default=0)), texts, notes
    return column.type, texts, notes


def _column(name: str, type: pyarrow.DataType, extension: str = "") -> ParquetColumn:
    import pyarrow

    is_ = pyarrow.types
    made = partial(ParquetColumn, name, arrow=str(type))
    if is_.is_dictionary(type):
        return _column(name, type.value_type, extension)
    if isinstance(type, pyarrow.BaseExtensionType):
        if type.extension_name == "arrow.uuid":
            return made("CHAR(36)", read=_each(str))
        return _column(name, type.storage_type, type.extension_name)
    if extension and extension not in _AS_STORED:
        return made("", arrow=extension)
    if is_.is_boolean(type):
        return made("BOOLEAN", read=_each(int))
    if is_.is_integer(type):
        return made("INT" if type.bit_width < 64 and type != pyarrow.uint32() else "BIGINT")
    if is_.is_floating(type):
        return made("DOUBLE", read=_each(float if type.bit_width == 64 else shortest_float))
    if is_.is_decimal(type):
        precision, scale = min(type.precision, MAX_WHOLE_DIGITS), min(max(type.scale, 0), MAX_PLACES)
        return made(f"DECIMAL({precision},{scale})")
    if is_.is_date(type):
        return made("DATE", read=_written)
    if is_.is_timestamp(type):
        return made("DATETIME", read=_written, zone=None if type.tz in _UTC else type.tz)
    if is_.is_time(type):
        return made("TIME", read=_written)
    if any(each(type) for each in (is_.is_string, is_.is_large_string, is_.is_string_view, is_.is_null)):
        return made("TEXT")
    of_bytes = (is_.is_binary, is_.is_large_binary, is_.is_fixed_size_binary, is_.is_binary_view)
    return made("BLOB" if any(each(type) for each in of_bytes) else "")


def _each(read: Callable[[Any], Any]) -> Callable[[pyarrow.Array], list[Any]]:
    return lambda array: [None if value is None else read(value) for value in array.to_pylist()]


def _written(array: pyarrow.Array) -> list[Any]:
    """Return dates and times as databases write them, in UTC."""
    import pyarrow

    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pyarrow.types.is_timestamp(array.type):
        array = array.cast(pyarrow.timestamp(array.type.unit))
    texts = array.cast(pyarrow.string()).to_pylist()
    if strange := next((text for text in texts if text is not None and not _BEGINS.match(text)), None):
        raise ValueError(f"date value out of range: {strange}")
    return [None if text is None else _SPARE.sub("", text) for text in texts]
