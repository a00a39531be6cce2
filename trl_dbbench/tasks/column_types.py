"""Column types of MySQL and MariaDB: names, what their cells are, and how a CSV cell becomes one.

A new type is one entry of `_TYPES`. What the embedded database stores for it is in `mysqlite/storage.py`.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Literal

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.table import Cell
from trl_dbbench.utils.lookup import nearest

Kind = Literal["whole", "exact", "float", "date", "time", "text", "json", "bytes", "other"]

NO_CELL = (ValueError, KeyError, InvalidOperation)
"""Errors of `ColumnType.read` for a text that is no cell of the type."""

MAX_WHOLE_DIGITS = 65
"""Digits of a whole number, as many as MySQL's DECIMAL has."""

_INT = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_DOUBLE = re.compile(r"-?(0|[1-9]\d*)?(?<=\d)(\.\d*)?([eE][+-]?\d+)?|-?\.\d+([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def number_or_text(text: str) -> Cell:
    """Return a number where the text is written as one; a whole one of any length."""
    if _INT.fullmatch(text) and len(text) <= MAX_WHOLE_DIGITS:
        return int(text)
    try:
        return _double(text)
    except ValueError:
        return text


def _int(text: str) -> int:
    if not _INT.fullmatch(text) or len(text) > 20:
        raise ValueError
    return int(text)


def _double(text: str) -> float:
    value = float(text) if _DOUBLE.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise ValueError
    return value


def _decimal(text: str) -> str:
    if not Decimal(text).is_finite():
        raise ValueError
    return text


def _year(text: str) -> int:
    year = int(text) if re.fullmatch(r"\d{4}", text, re.ASCII) else -1
    if year != 0 and not 1901 <= year <= 2155:
        raise ValueError  # a server makes another year of 24
    return year


def _bool(text: str) -> int:
    return {"0": 0, "1": 1, "false": 0, "true": 1}[text.lower()]


def read_date(text: str) -> str:
    """Return a day as MySQL writes it.

    Raises:
        ValueError: it is not written as `2024-12-31`, or there is no such day.
    """
    if not _DATE.fullmatch(text):
        raise ValueError
    return datetime.date.fromisoformat(text).isoformat()


@dataclass(frozen=True)
class ColumnType:
    """A type.

    `read` makes a cell of a text in a CSV file; it is `None` for types that a CSV header cannot name, and
    for those with a time of day, which `csv_types.timed` reads. `held`: an imported column may have it.
    `usual`: it is suggested for a misspelled one. `becomes`: the type that holds its texts on every server.
    """

    kind: Kind
    read: Callable[[str], Cell] | None = None
    held: bool = True
    usual: bool = True
    becomes: str | None = None


def _types(names: str, *described: object, **more: object) -> dict[str, ColumnType]:
    return dict.fromkeys(names.split(), ColumnType(*described, **more))  # type: ignore[arg-type]


_TYPES = {
    **_types("INT INTEGER TINYINT SMALLINT MEDIUMINT BIGINT", "whole", _int),
    **_types("YEAR", "whole", _year),
    **_types("FLOAT DOUBLE", "float", _double),
    **_types("REAL", "float", _double, usual=False),
    **_types("BOOLEAN", "whole", _bool),
    **_types("BOOL", "whole", _bool, usual=False),
    **_types("DECIMAL NUMERIC", "exact", _decimal),
    **_types("DATE", "date", read_date),
    **_types("CHAR VARCHAR TINYTEXT TEXT MEDIUMTEXT LONGTEXT ENUM", "text", str),
    **_types("DATETIME TIMESTAMP TIME", "time"),
    **_types("SET", "text"),
    **_types("JSON", "json"),
    **_types("DEC FIXED", "exact", usual=False),
    **_types("UUID", "text", held=False, usual=False, becomes="char(36)"),
    **_types("INET4", "text", held=False, usual=False, becomes="varchar(15)"),
    **_types("INET6", "text", held=False, usual=False, becomes="varchar(45)"),
    **_types("INT1 INT2 INT3 INT4 INT8 MIDDLEINT SERIAL", "whole", held=False, usual=False),
    **_types("NUMBER", "exact", held=False, usual=False),
    **_types("FLOAT4 FLOAT8", "float", held=False, usual=False),
    **_types(
        "CHARACTER NCHAR NATIONAL VARCHARACTER NVARCHAR VARCHAR2 LONG CLOB XMLTYPE",
        "text",
        held=False,
        usual=False,
    ),
    **_types(
        "BIT BINARY VARBINARY RAW TINYBLOB BLOB MEDIUMBLOB LONGBLOB GEOMETRY POINT LINESTRING POLYGON "
        "MULTIPOINT MULTILINESTRING MULTIPOLYGON GEOMETRYCOLLECTION GEOMCOLLECTION VECTOR",
        "bytes",
        held=False,
        usual=False,
    ),
}
"""The types of either server, synonyms included (MySQL 9 and MariaDB 12, "Data Types")."""

CSV_TYPES = tuple(name for name, each in _TYPES.items() if each.read or each.kind == "time")
"""Types that a CSV header can name."""

_USUAL = [name for name, each in _TYPES.items() if each.usual]

_FORM = re.compile(
    r"""\s*(?P<name>[A-Za-z]\w*)(?:\s+PRECISION|\s+VARYING)?
        (?:\s*\(\s*(?:\d+|'[^'\\]*')(?:\s*,\s*(?:\d+|'[^'\\]*'))*\s*\))?
        (?:\s+(?:[A-Za-z_]+|DEFAULT\s+(?:\d+|'[^'\\]*')))*\s*""",
    re.VERBOSE | re.IGNORECASE,
)


def column_type(declared: str) -> ColumnType | None:
    """Return the type that a declaration such as `varchar(20) NOT NULL` begins with."""
    word = re.match(r"\s*(\w*)", declared)
    return _TYPES.get(word[1].upper()) if word else None


@lru_cache(maxsize=10_000)
def check_type(type: str, table: str, column: str) -> None:
    """Check a column's type, which CREATE TABLE takes as it is written.

    Raises:
        TaskError: it is anything but the name of a type, an optional list in parentheses, and words such as
            NOT NULL; or neither MySQL nor MariaDB has such a type. SQLite would take any word.
    """
    form = _FORM.fullmatch(type)
    if form is None:
        raise TaskError(
            f"Table {table!r}, column {column!r}: {type!r} is not a column type. Allowed are MySQL's types, "
            "such as TEXT, INT NOT NULL, VARCHAR(50), DECIMAL(10,2), ENUM('a','b'). Correct the task."
        )
    if form["name"].upper() not in _TYPES:
        near = nearest(form["name"], _USUAL)
        meant = f"nearest: {near}" if near else "allowed are such as TEXT, INT, VARCHAR(50), DECIMAL(10,2)."
        raise TaskError(f"Table {table!r}, column {column!r}: no server has the type {type!r}; {meant}")
