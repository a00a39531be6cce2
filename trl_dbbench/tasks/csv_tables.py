"""Tables of CSV files: nothing about them has to be declared, as types are read off the cells."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from trl_dbbench.errors import TaskError
from trl_dbbench.files import nearest_path
from trl_dbbench.tasks.entries import CSV_SUFFIXES, csv_rows
from trl_dbbench.tasks.table import Cell, Column, Table


def read_csv_tables(paths: Iterable[str | Path]) -> dict[str, Table]:
    """Tables by name, each named after its file.

    A header names the columns, as `name` or as `name:TYPE`; a type that is not given is the first of INT
    (BIGINT beyond 32 bits), DOUBLE, DATE (2020-01-31) and TEXT that all cells fit. An empty cell is NULL. A
    number with leading zeros or a plus is text: a postal code, a telephone number.

    Raises:
        TaskError: naming file and line.
    """
    tables: dict[str, Table] = {}
    for path in map(Path, paths):
        table = _csv_table(path)
        if table.name in tables:
            raise TaskError(f"{path}: there is a table named '{table.name}' already; rename the file.")
        tables[table.name] = table
    return tables


def number_or_text(text: str) -> Cell:
    """A number where the text is written as one."""
    for read in (_int, _double):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _csv_table(path: Path) -> Table:
    if path.suffix not in CSV_SUFFIXES:
        raise TaskError(f"tables are read from .csv or .tsv, not from '{path}'.")
    if not path.is_file():
        near = nearest_path(path)
        raise TaskError(f"there is no file '{path}'{f'; nearest: {near}' if near else ''}.")
    header, rows = csv_rows(path)
    columns = []
    cells_by_column = []
    for place, title in enumerate(header):
        name, type_ = _title(title, path)
        texts = [(where, row[place]) for where, row in rows]
        if type_ is None:
            type_ = _inferred([text for _, text in texts if text])
        columns.append(Column(name, type_))
        cells_by_column.append(
            [_csv_cell(text, type_, f"{path}, {where}, column '{name}'") for where, text in texts]
        )
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
    if typed[2].upper() not in _READERS:
        raise TaskError(
            f"{path}: unknown type '{typed[2]}' of the column '{typed[1]}'; allowed: {', '.join(_READERS)}. "
            f"Where it is part of the name, write '{title}:TEXT'."
        )
    return typed[1], typed[2].upper() + typed[3]


def _inferred(texts: Sequence[str]) -> str:
    """The narrowest type; texts of more digits than a number holds are names of something, not amounts."""
    stripped = [text.strip() for text in texts]
    if not stripped:
        return "TEXT"
    if all(map(_INT.fullmatch, stripped)):
        largest = max(10**20 if len(text) > 20 else max(int(text), -int(text) - 1) for text in stripped)
        return "INT" if largest < 2**31 else "BIGINT" if largest < 2**63 else "TEXT"
    if all(len(re.sub(r"[eE].*|\D", "", text).lstrip("0")) <= 17 for text in stripped) and _are(
        _double, stripped
    ):
        return "DOUBLE"
    return "DATE" if _are(_date, stripped) else "TEXT"


def _are(read: Callable[[str], Cell], texts: Iterable[str]) -> bool:
    try:
        for text in texts:
            read(text)
    except _NO_CELL:
        return False
    return True


def _csv_cell(text: str, type_: str, where: str) -> Cell:
    if text == "":
        return None
    read = _READERS[re.match("[A-Z]+", type_)[0]]  # type: ignore[index]
    try:
        return read(text if read is str else text.strip())
    except _NO_CELL:
        raise TaskError(f"{where}: {text!r} is no {type_}.") from None


# --- cells -----------------------------------------------------------------------------------------

_INT = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_DOUBLE = re.compile(r"-?(0|[1-9]\d*)?(?<=\d)(\.\d*)?([eE][+-]?\d+)?|-?\.\d+([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def _int(text: str) -> int:
    if not _INT.fullmatch(text) or len(text) > 20:
        raise ValueError
    return int(text)


def _double(text: str) -> float:
    value = float(text) if _DOUBLE.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise ValueError
    return value


def _bool(text: str) -> int:
    return {"0": 0, "1": 1, "false": 0, "true": 1}[text.lower()]


def _decimal(text: str) -> str:
    if not Decimal(text).is_finite():
        raise ValueError
    return text


def _date(text: str) -> str:
    if not _DATE.fullmatch(text):
        raise ValueError
    return datetime.date.fromisoformat(text).isoformat()


def _datetime(text: str) -> str:
    datetime.datetime.fromisoformat(text)
    return text


_READERS: dict[str, Callable[[str], Cell]] = {
    **dict.fromkeys(("INT", "INTEGER", "TINYINT", "SMALLINT", "MEDIUMINT", "BIGINT", "YEAR"), _int),
    **dict.fromkeys(("FLOAT", "DOUBLE", "REAL"), _double),
    **dict.fromkeys(("BOOL", "BOOLEAN"), _bool),
    **dict.fromkeys(("DECIMAL", "NUMERIC"), _decimal),
    "DATE": _date,
    **dict.fromkeys(("DATETIME", "TIMESTAMP"), _datetime),
    **dict.fromkeys(("TIME", "CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM"), str),
}
"""How a cell of each type is read; a ValueError, KeyError or InvalidOperation says that it is none."""

_NO_CELL = (ValueError, KeyError, InvalidOperation)
