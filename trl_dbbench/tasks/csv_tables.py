"""Tables of CSV files: nothing about them has to be declared, as types are read off the cells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path

from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks.column_types import CSV_TYPES, NO_CELL, ColumnType, column_type
from trl_dbbench.tasks.csv_files import CSV_SUFFIXES, FROM_FILE, CsvFile, CsvOptions, read_csv
from trl_dbbench.tasks.csv_types import (
    Reading,
    Unfit,
    is_missing,
    kept_as_text,
    point_for_comma,
    timed,
    with_missing,
)
from trl_dbbench.tasks.table import Cell, Column, Table
from trl_dbbench.utils.files import nearest_path
from trl_dbbench.utils.lookup import unknown


def read_csv_tables(
    paths: Iterable[str | Path],
    options: CsvOptions = FROM_FILE,
    note: Callable[[str], object] = lambda text: None,
) -> dict[str, Table]:
    """Tables by name, each named after its file.

    A header names the columns, as `name` or as `name:TYPE`; a type that is not given is the first of INT
    (BIGINT beyond 32 bits), DECIMAL, DOUBLE, DATE, DATETIME and TEXT that holds all cells as they are written
    (`csv_types`). An empty cell is NULL. A number with leading zeros or a plus is text: a postal code, a
    telephone number.

    Args:
        note: gets a line for each thing that was found out or read otherwise than it is written.

    Raises:
        ConfigError: the options name a column that is not there.
        TaskError: naming file and line.
    """
    tables: dict[str, Table] = {}
    for path in map(Path, paths):
        table = _csv_table(path, options, note)
        if table.name in tables:
            raise TaskError(f"{path}: there is a table named '{table.name}' already; rename the file.")
        tables[table.name] = table
    columns = {column.name for table in tables.values() for column in table.columns}
    columns |= {f"{table.name}.{column.name}" for table in tables.values() for column in table.columns}
    if strange := [name for name in options.types if name not in columns]:
        raise ConfigError(unknown("column", strange[0], sorted(columns)))
    return tables


def _csv_table(path: Path, options: CsvOptions, note: Callable[[str], object]) -> Table:
    if path.suffix.lower() not in CSV_SUFFIXES:
        raise TaskError(f"tables are read from .csv or .tsv, not from '{path}'.")
    if not path.is_file():
        near = nearest_path(path)
        raise TaskError(f"there is no file '{path}'{f'; nearest: {near}' if near else ''}.")
    file = read_csv(path, options)
    for line in file.notes:
        note(line)
    readings: list[tuple[int, str, Reading]] = []
    texts_of = {}
    for place, title in enumerate(file.header):
        name, type_ = _title(title, path)
        if not name:
            note(f"{path.stem}: column {place + 1} has no name and is left out; name it to keep it")
            continue
        chosen = options.types.get(f"{path.stem}.{name}", options.types.get(name))
        if chosen is not None:
            type_ = _title(f"{name}:{chosen}", path)[1]
            if type_ is None:
                raise ConfigError(f"{chosen!r} is no type for the column '{name}'; allowed are such as TEXT.")
        texts = [row[place] for _, row in file.rows]
        if type_ is None:
            texts_of[name] = [text for text in texts if text]
            reading = with_missing(texts_of[name], file.delimiter != ",")
        else:
            reading = _declared(type_, file, texts)
        readings.append((place, name, reading))
    commas = file.delimiter == ";" or any(reading.commas for _, _, reading in readings)
    columns, cells_by_column = [], []
    for place, name, reading in readings:
        if commas and (kept := kept_as_text(texts_of.get(name, ()))) is not None:
            reading = kept
        columns.append(Column(name, reading.type))
        cells_by_column.append(
            [_csv_cell(row[place], reading, f"{path}, {where}, column '{name}'") for where, row in file.rows]
        )
        if reading.note:
            note(f"{path.stem}.{name}: {reading.note}")
    if not columns:
        raise TaskError(f"{path}: none of its columns has a name; its first line must name them.")
    folded = Counter(column.name.casefold() for column in columns)
    if twice := [column.name for column in columns if folded[column.name.casefold()] > 1]:
        raise TaskError(
            f"{path}: the column '{twice[0]}' is there twice; MySQL ignores case in column names."
        )
    return Table(path.stem, tuple(columns), tuple(zip(*cells_by_column, strict=True)))


def _title(title: str, path: Path) -> tuple[str, str | None]:
    """`price:DECIMAL(10,2)` is a name and a type; a colon before anything else belongs to the name."""
    typed = re.fullmatch(r"(.*\S):([A-Za-z]+)((?:\(.*\))?(?: [A-Za-z ]+)?)", title)
    if typed is None:
        return title, None
    if typed[2].upper() not in CSV_TYPES:
        raise TaskError(
            f"{path}: unknown type '{typed[2]}' of the column '{typed[1]}'; allowed: {', '.join(CSV_TYPES)}. "
            f"Where it is part of the name, write '{title}:TEXT'."
        )
    return typed[1], typed[2].upper() + typed[3]


def _declared(type_: str, file: CsvFile, texts: Sequence[str]) -> Reading:
    """How a column of a type that the user named is read."""
    type = column_type(type_)
    assert type is not None  # by `_title`
    if type.kind == "text":
        return Reading(type_, str)
    missing = sorted({repr(text.strip()) for text in texts if is_missing(text)})
    given = [text for text in texts if text and not is_missing(text)]
    found = timed(type_, given) if type.kind == "time" else _number_or_day(type_, type, file, given)

    def read(text: str) -> Cell:
        return None if is_missing(text) else found.read(text)

    notes = [f"{', '.join(missing)} is read as NULL"] if missing else []
    return Reading(found.type, read, "; ".join([*notes, *filter(None, [found.note])]) or None)


def _number_or_day(type_: str, type: ColumnType, file: CsvFile, texts: Sequence[str]) -> Reading:
    scale = re.search(r"\((\d+)(?:,\s*(\d+))?\)", type_)
    places = int(scale[2] or 0) if scale else 0
    commas = file.delimiter != "," and type.kind in ("exact", "float") and any("," in text for text in texts)

    def read(text: str) -> Cell:
        text = text.strip()
        if commas:
            text = point_for_comma(text)
        if type.kind == "exact" and (behind := _digits_behind(text)) > places:
            raise Unfit(f"it has {behind} digits behind the point, of which a server would keep {places}")
        assert type.read is not None  # `timed` reads the others
        return type.read(text)

    return Reading(type_, read, "decimal commas are read as points" if commas else None)


def _digits_behind(text: str) -> int:
    """The digits behind the point of a number."""
    exponent = Decimal(text).as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def _csv_cell(text: str, reading: Reading, where: str) -> Cell:
    if text == "":
        return None
    try:
        return reading.read(text)
    except Unfit as error:
        raise TaskError(f"{where}: {text!r} is no {reading.type}: {error}.") from None
    except NO_CELL:
        raise TaskError(f"{where}: {text!r} is no {reading.type}.") from None
