"""A folder of CSV or parquet files as the database of tasks: each file is a table.

They are converted into a SQLite file once, in the user's cache, and that is the database from then on.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_dbbench.errors import TaskError
from trl_dbbench.sql import quote
from trl_dbbench.tasks.csv_files import CSV_SUFFIXES
from trl_dbbench.tasks.csv_tables import read_csv_tables
from trl_dbbench.tasks.sources.base import file_digest
from trl_dbbench.tasks.sources.sqlite_file import SQLiteFile
from trl_dbbench.tasks.table import Column, first_twice, twice_text

if TYPE_CHECKING:
    import pyarrow

logger = logging.getLogger(__name__)

SUFFIXES = (*CSV_SUFFIXES, ".parquet")

ROWS_AT_ONCE = 10_000

EXACT_DIGITS = 15
"""Significant digits of a number with places that SQLite gives back as they were."""

_EVERY_DIGIT = Context(prec=100)

_VERSION = 2
"""Of the conversion; files of an older one are made again."""


class Folder(SQLiteFile):
    """The tables of a folder's files; see `Kind`.

    Raises:
        TaskError: a file cannot be read, or is no table.
    """

    def __init__(self, path: Path, digest: str) -> None:
        super().__init__(_converted(path, digest), digest)

    @staticmethod
    def digest_of(path: Path) -> str:
        """
        Raises:
            OSError: the folder cannot be read.
            TaskError: there are no tables in it.
        """
        digest = hashlib.blake2b(digest_size=8)
        for file in _files(path):
            digest.update(f"{file.name}\0{file_digest(file)}\0".encode())
        return digest.hexdigest()


def cache_folder() -> Path:
    """Where converted folders are kept; any file there may be deleted when nothing uses it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trl_dbbench" / "databases"


def _files(folder: Path) -> list[Path]:
    found = sorted(each for each in folder.iterdir() if each.suffix.lower() in SUFFIXES and each.is_file())
    if not found:
        raise TaskError(f"the folder '{folder}' holds no tables: no .csv, .tsv or .parquet file.")
    names: dict[str, Path] = {}
    for file in found:
        first = names.setdefault(file.stem.casefold(), file)
        if first is not file:
            raise TaskError(f"'{first}' and '{file}' are two tables of one name; rename one of them.")
    return found


def _converted(folder: Path, digest: str) -> Path:
    """The SQLite file with the tables of the folder, which is made if it is not there."""
    target = cache_folder() / f"{digest}-{_VERSION}.sqlite"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # of its own name for each process: who is last replaces the same with the same
        with tempfile.TemporaryDirectory(dir=target.parent) as working:
            made = Path(working) / target.name
            _convert(_files(folder), made)
            made.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise TaskError(
            f"the tables of '{folder}' cannot be put into the cache {target.parent}: {error}. Free some "
            "space there, or set XDG_CACHE_HOME to another folder."
        ) from None
    return target


def _convert(files: Iterable[Path], target: Path) -> None:
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("BEGIN")
        for file in files:
            columns, rows = _parquet_table(file) if file.suffix.lower() == ".parquet" else _csv_table(file)
            if (twice := first_twice([column.name.casefold() for column in columns])) is not None:
                raise TaskError(f"{file}: {twice_text(columns[twice].name)}")
            made = ", ".join(f"{quote(column.name)} {column.type}" for column in columns)
            connection.execute(f"CREATE TABLE {quote(file.stem)} ({made})")
            places = ", ".join("?" * len(columns))
            connection.executemany(f"INSERT INTO {quote(file.stem)} VALUES ({places})", rows)
        connection.execute("COMMIT")


def _csv_table(path: Path) -> tuple[tuple[Column, ...], Iterable[tuple[Any, ...]]]:
    (table,) = read_csv_tables([path], note=logger.warning).values()
    return table.columns, table.rows


# --- parquet --------------------------------------------------------------------------------------


def _parquet_table(path: Path) -> tuple[tuple[Column, ...], Iterable[tuple[Any, ...]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        kept = [(field.name, *_column(field.type)) for field in file.schema_arrow]
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskError(f"{path} is not a readable parquet file: {error}") from None
    except _NoColumn as error:
        raise TaskError(f"{path}: {error}") from None
    columns = tuple(Column(name, type) for name, type, _ in kept)
    return columns, _parquet_rows(path, file, [(name, read) for name, _, read in kept])


def _parquet_rows(
    path: Path, file: pyarrow.parquet.ParquetFile, reads: list[tuple[str, Callable[[Any], Any] | None]]
) -> Iterator[tuple[Any, ...]]:
    import pyarrow

    try:
        for batch in file.iter_batches(ROWS_AT_ONCE):
            cells = []
            for column, (name, read) in zip(batch.columns, reads, strict=True):
                values = column.to_pylist()
                try:
                    cells.append(
                        values if read is None else [each if each is None else read(each) for each in values]
                    )
                except _NotHeld as error:
                    raise TaskError(f"{path}, column '{name}' holds {error}") from None
            yield from zip(*cells, strict=True)
    except (OSError, ValueError, pyarrow.ArrowException) as error:  # such as a date after the year 9999
        raise TaskError(f"{path} is not a readable parquet file: {error}") from None


class _NoColumn(Exception):
    """A type that no column of a database has."""


class _NotHeld(Exception):
    """A value that SQLite would change."""


def _whole(value: int) -> int:
    if value >= 2**63:
        raise _NotHeld(f"{value}; SQLite has integers of 64 bits with a sign. Write the column as texts.")
    return value


def _exact(value: Decimal) -> str | int:
    """A decimal number as a cell that gives all of its digits back."""
    if len(value.normalize(_EVERY_DIGIT).as_tuple().digits) <= EXACT_DIGITS:
        return str(value)
    if value == value.to_integral_value() and abs(value) < 2**63:
        return int(value)
    raise _NotHeld(
        f"{value}; SQLite has numbers of {EXACT_DIGITS} digits, beside integers of 64 bits. Write the column "
        "as texts, or as doubles if its last digits do not matter."
    )


def _column(type: pyarrow.DataType) -> tuple[str, Callable[[Any], Any] | None]:
    """The type of a column, and what makes a cell of a value unless it is one already."""
    import pyarrow

    is_ = pyarrow.types
    if is_.is_dictionary(type):
        return _column(type.value_type)
    if is_.is_boolean(type):
        return "BOOLEAN", int
    if is_.is_integer(type):
        read = _whole if type == pyarrow.uint64() else None
        return ("INT" if type.bit_width < 64 and type != pyarrow.uint32() else "BIGINT"), read
    if is_.is_floating(type):
        return "DOUBLE", float
    if is_.is_decimal(type):
        return f"DECIMAL({type.precision},{max(type.scale, 0)})", _exact
    if is_.is_date(type):
        return "DATE", lambda value: value.isoformat()
    if is_.is_timestamp(type):
        return "DATETIME", _moment
    if is_.is_time(type):
        return "TIME", lambda value: value.isoformat()
    if is_.is_string(type) or is_.is_large_string(type) or is_.is_null(type):
        return "TEXT", None
    if is_.is_binary(type) or is_.is_large_binary(type) or is_.is_fixed_size_binary(type):
        return "BLOB", None
    raise _NoColumn(f"a column has the type {type}; a table has numbers, texts, dates, times and bytes")


def _moment(value: Any) -> str:
    """A time as databases write it, in UTC where a zone is given."""
    if value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return str(value.isoformat(sep=" "))
