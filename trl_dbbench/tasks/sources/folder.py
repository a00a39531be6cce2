"""Folders of CSV or parquet files as databases of tasks: each file is a table, or a part of one.

They are converted once to a SQLite file in the user's cache, which is then the database.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.csv_tables import CSV_SUFFIXES, read_csv_tables
from trl_dbbench.tasks.parts import by_table, table_name
from trl_dbbench.tasks.sources.base import file_digest
from trl_dbbench.tasks.sources.parquet import ParquetColumn, batches, parquet_files, too_long
from trl_dbbench.tasks.sources.sqlite_file import SQLiteFile
from trl_dbbench.tasks.table import Column, check_differ
from trl_dbbench.utils.files import visible
from trl_dbbench.utils.sql import quote

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

logger = logging.getLogger(__name__)

SUFFIXES = (*CSV_SUFFIXES, ".parquet")

_VERSION = 5
"""Version of the conversion. Files of older versions are not used."""


class Folder(SQLiteFile):
    """The tables of a folder's files."""

    def __init__(self, path: Path, digest: str) -> None:
        super().__init__(_converted(path, digest), digest)
        for note in json.loads(_notes_of(self.path).read_text(encoding="utf-8")):
            logger.warning(note)

    @staticmethod
    def digest_of(path: Path) -> str:
        """Return a hash of all its files; raise OSError or TaskError if it cannot be read."""
        digest = hashlib.blake2b(digest_size=8)
        for file in table_files(path):
            digest.update(f"{file.name}\0{file_digest(file)}\0".encode())
            if (name := table_name(file)) != file.stem:  # it may be the folder's
                digest.update(f"{name}\0".encode())
        return digest.hexdigest()


def cache_folder() -> Path:
    """Return the folder of converted databases. Files there may be deleted while no run uses them."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trl_dbbench" / "databases"


_PART = re.compile(r"\w+=.*")
"""Name of a folder with the rows that share one value of a column, such as `year=2024`."""


def table_files(folder: Path) -> list[Path]:
    """Return the files of a folder that are tables or parts of one (`parts.by_table`).

    Raises TaskError if there are none, if two tables have the same name, and for folders such as `year=2024`.
    """
    there = visible(folder.iterdir())
    if part := next((each.name for each in there if _PART.fullmatch(each.name)), None):
        raise TaskError(
            f"the folder '{folder}' has parts of one table, such as '{part}'; each file must be a "
            "whole table. Write one: pandas.read_parquet(FOLDER).to_parquet(FILE)."
        )
    if (folder / "@.json").exists():  # its .tsv files have no line of names
        raise TaskError(
            f"the folder '{folder}' is a dump of MySQL Shell, whose files do not name their columns. Load it "
            "into a server (util.loadDump) and give the server's URL, or write a dump with mysqldump."
        )
    found = [each for each in there if each.suffix.lower() in SUFFIXES and each.is_file()]
    if not found:
        raise TaskError(f"the folder '{folder}' holds no tables: no .csv, .tsv or .parquet file.")
    names: dict[str, Path] = {}
    for file, *_ in by_table(found):
        first = names.setdefault(table_name(file).casefold(), file)
        if first is not file:
            raise TaskError(f"'{first}' and '{file}' are two tables of one name; rename one of them.")
    return found


def _converted(folder: Path, digest: str) -> Path:
    """Return the SQLite file with the tables of the folder. It is made if it does not exist."""
    target = cache_folder() / f"{digest}-{_VERSION}.sqlite"
    if target.is_file() and _notes_of(target).is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # in a folder per process: processes that convert at the same time replace equal files
        with tempfile.TemporaryDirectory(dir=target.parent) as working:
            made = Path(working) / target.name
            notes = _convert(table_files(folder), made)
            _notes_of(made).write_text(json.dumps(notes), encoding="utf-8")
            _notes_of(made).replace(_notes_of(target))
            made.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise TaskError(
            f"the tables of '{folder}' cannot be put into the cache {target.parent}: {error}. Free some "
            "space there, or set XDG_CACHE_HOME to another folder."
        ) from None
    return target


def _notes_of(converted: Path) -> Path:
    """Return the file with the notes of the conversion."""
    return converted.with_suffix(".json")


def _convert(files: Iterable[Path], target: Path) -> list[str]:
    notes = list[str]()
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("BEGIN")
        for parts in by_table(files):
            file, name = parts[0], quote(table_name(parts[0]))
            rows: Iterable[tuple[Any, ...]]
            if file.suffix.lower() == ".parquet":
                columns, rows = _parquet_table(parts, notes.append)
                check_differ([column.name for column in columns], str(file))
            else:
                (table,) = read_csv_tables(parts, note=notes.append).values()
                columns, rows = table.columns, table.rows
            made = ", ".join(f"{quote(column.name)} {_sqlites(column.type)}" for column in columns)
            places = ", ".join("?" * len(columns))
            try:
                connection.execute(f"CREATE TABLE {name} ({made})")
                connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
            except sqlite3.Error as error:
                if "disk" in str(error):  # the disk is full or faulty
                    raise
                raise TaskError(f"{file}: its table cannot be made: {error}.") from None
        connection.execute("COMMIT")
    return notes


def _sqlites(type_: str) -> str:
    """Return a column's type for SQLite, which has no ENUM or SET."""
    return re.sub(r"^(ENUM|SET)\s*\((?:'(?:[^']|'')*'|[^')])*\)", "TEXT", type_, flags=re.IGNORECASE)


def _parquet_table(
    parts: Sequence[Path], note: Callable[[str], object]
) -> tuple[tuple[Column, ...], Iterable[tuple[Any, ...]]]:
    path, (files, columns) = parts[0], parquet_files(parts)
    for column in columns:
        if not column.type:
            raise TaskError(f"{path}: the column '{column.name}' {column.unfit}. Leave it out.")
        if column.note:
            note(f"{table_name(path)}.{column.name}: {column.note}")
    return tuple(Column(each.name, each.type) for each in columns), _parquet_rows(files, columns, note)


def _parquet_rows(
    files: Mapping[Path, FileMetaData], columns: list[ParquetColumn], note: Callable[[str], object]
) -> Iterator[tuple[Any, ...]]:
    none: Counter[str] = Counter()
    for path, cells in batches(files, columns):
        for place, column in enumerate(columns):
            try:
                held = [_held(value) for value in cells[place]]
            except TaskError as error:
                raise TaskError(f"{path}, column '{column.name}' holds {error}") from None
            none[column.name] += held.count(None) - cells[place].count(None)
            cells[place] = held
        yield from zip(*cells, strict=True)
    for name, count in none.items():
        if count:
            note(f"{table_name(path)}.{name}: NaN ({count} cells) is read as NULL")


def _held(value: Any) -> Any:
    """Return the cell to store for a value; raise TaskError if SQLite would lose some of its digits."""
    if isinstance(value, float) and math.isnan(value):
        return None
    beyond = too_long(value)
    if beyond and isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < 2**63:
        return int(value)
    if beyond:
        raise TaskError(
            f"{value}, a number of more than {beyond}, which SQLite does not hold exactly. Write the column "
            "as texts, or as doubles if its last digits do not matter."
        )
    return str(value) if isinstance(value, Decimal) else value
