"""Column types of MySQL and MariaDB: their names, their kinds of cells, and how CSV cells are read.

To add a type, add an entry to `_TYPES`. `mysqlite/storage.py` has what the embedded database stores.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Literal

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.table import Cell, Column
from trl_dbbench.utils.lookup import nearest

Kind = Literal["whole", "exact", "float", "date", "time", "text", "json", "bytes", "other"]

NO_CELL = (ValueError, KeyError, InvalidOperation)
"""Exceptions that `ColumnType.read` raises for a text that is not a cell of the type."""

MAX_WHOLE_DIGITS = 65
"""Most digits of a whole number, as in MySQL's DECIMAL."""

_INT = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_DOUBLE = re.compile(r"-?(0|[1-9]\d*)?(?<=\d)(\.\d*)?([eE][+-]?\d+)?|-?\.\d+([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def number_or_text(text: str) -> Cell:
    """Return the number that a text is, or the text itself."""
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
    # Python also reads 1_000 and non-ASCII digits, servers do not
    if "_" in text or not text.isascii() or not Decimal(text).is_finite():
        raise ValueError
    return text


def _year(text: str) -> int:
    year = int(text) if re.fullmatch(r"\d{4}", text, re.ASCII) else -1
    if year != 0 and not 1901 <= year <= 2155:
        raise ValueError  # a server would read 24 as another year
    return year


def _bool(text: str) -> int:
    return {"0": 0, "1": 1, "false": 0, "true": 1}[text.lower()]


def read_date(text: str) -> str:
    """Return a date as MySQL writes it; raise ValueError unless it is written as `2024-12-31`."""
    if not _DATE.fullmatch(text):
        raise ValueError
    return datetime.date.fromisoformat(text).isoformat()


@dataclass(frozen=True)
class ColumnType:
    """A column type.

    `read` converts a text of a CSV file to a cell. It is `None` for types that a CSV header cannot name, and
    for those with a time of day, which `csv_tables.timed` reads. `held`: imported columns can have the type,
    and it is suggested for a misspelled one. `becomes`: a type for its texts that every server has.
    """

    kind: Kind
    read: Callable[[str], Cell] | None = None
    held: bool = True
    becomes: str | None = None


def _types(names: str, *described: object, **more: object) -> dict[str, ColumnType]:
    return dict.fromkeys(names.split(), ColumnType(*described, **more))  # type: ignore[arg-type]


_TYPES = {
    **_types("INT INTEGER TINYINT SMALLINT MEDIUMINT BIGINT", "whole", _int),
    **_types("YEAR", "whole", _year),
    **_types("FLOAT DOUBLE REAL", "float", _double),
    **_types("BOOLEAN BOOL", "whole", _bool),
    **_types("DECIMAL NUMERIC", "exact", _decimal),
    **_types("DATE", "date", read_date),
    **_types("CHAR VARCHAR TINYTEXT TEXT MEDIUMTEXT LONGTEXT ENUM", "text", str),
    **_types("DATETIME TIMESTAMP TIME", "time"),
    **_types("SET", "text"),
    **_types("JSON", "json"),
    **_types("DEC FIXED", "exact"),
    **_types("UUID", "text", held=False, becomes="char(36)"),
    **_types("INET4", "text", held=False, becomes="varchar(15)"),
    **_types("INET6", "text", held=False, becomes="varchar(45)"),
    **_types("INT1 INT2 INT3 INT4 INT8 MIDDLEINT SERIAL", "whole", held=False),
    **_types("NUMBER", "exact", held=False),
    **_types("FLOAT4 FLOAT8", "float", held=False),
    **_types("CHARACTER NCHAR NATIONAL VARCHARACTER NVARCHAR VARCHAR2 LONG CLOB XMLTYPE", "text", held=False),
    **_types(
        "BIT BINARY VARBINARY RAW TINYBLOB BLOB MEDIUMBLOB LONGBLOB GEOMETRY POINT LINESTRING POLYGON "
        "MULTIPOINT MULTILINESTRING MULTIPOLYGON GEOMETRYCOLLECTION GEOMCOLLECTION VECTOR",
        "bytes",
        held=False,
    ),
}
"""Types of MySQL 9 and MariaDB 12, including synonyms (manuals, "Data Types")."""

SYNONYMS = {
    **{"nvarchar": "varchar", "varcharacter": "varchar", "nchar": "char", "character": "char"},
    **{"int1": "tinyint", "int2": "smallint", "int3": "mediumint", "middleint": "mediumint", "int4": "int"},
    **{"int8": "bigint", "float4": "float", "float8": "double"},
}
"""Synonyms that scripts use, with the names that servers show."""

CSV_TYPES = tuple(name for name, each in _TYPES.items() if each.read or each.kind == "time")
"""Types that the header of a CSV file can name."""

_HELD = [name for name, each in _TYPES.items() if each.held]

_FORM = re.compile(
    r"""\s*(?P<name>[A-Za-z]\w*)(?:\s+PRECISION|\s+VARYING)?
        (?:\s*\(\s*(?:\d+|'[^'\\]*')(?:\s*,\s*(?:\d+|'[^'\\]*'))*\s*\))?
        (?:\s+(?:[A-Za-z_]+|DEFAULT\s+(?:\d+|'[^'\\]*')))*\s*""",
    re.VERBOSE | re.IGNORECASE,
)


def column_type(declared: str) -> ColumnType | None:
    """Return the type of a declaration such as `varchar(20) NOT NULL`, or `None` if it is unknown."""
    word = re.match(r"\s*(\w*)", declared)
    return _TYPES.get(word[1].upper()) if word else None


def kind_of_type(declared: str) -> Kind:
    """Return the kind of a declaration's type."""
    found = column_type(declared)
    return "other" if found is None else found.kind


@lru_cache(maxsize=10_000)
def check_type(type: str, table: str, column: str) -> None:
    """Raise TaskError for a type that no server has, or for text beyond a type and words such as NOT NULL.

    The text becomes part of CREATE TABLE unchanged.
    """
    form = _FORM.fullmatch(type)
    if form is None:
        raise TaskError(
            f"Table {table!r}, column {column!r}: {type!r} is not a column type. Allowed are MySQL's types, "
            "such as TEXT, INT NOT NULL, VARCHAR(50), DECIMAL(10,2), ENUM('a','b'). Correct the task."
        )
    if form["name"].upper() not in _TYPES:
        near = nearest(form["name"], _HELD)
        meant = f"nearest: {near}" if near else "allowed are such as TEXT, INT, VARCHAR(50), DECIMAL(10,2)."
        raise TaskError(f"Table {table!r}, column {column!r}: no server has the type {type!r}; {meant}")


_ZERO_DATE = re.compile(r"\d{4}-00-\d\d|\d{4}-\d\d-00")

_UNFIT = re.compile(r"['\\]|[^\x20-\x7e]")
"""Characters that a default must not have, since it becomes part of the column's type."""

MAX_SHOWN = 40
"""Most characters of a type or default in a note."""


@dataclass(frozen=True)
class Declared:
    """A column as a server's catalog, a dump or a SQLite file declares it.

    `default` is the text of a constant or, if `computed`, of an expression. `key` is PRIMARY KEY, UNIQUE or
    empty; keys over several columns are not recorded here.
    """

    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    computed: bool = False
    auto_increment: bool = False
    generated: bool = False
    on_update: bool = False
    key: str = ""

    @property
    def word(self) -> str:
        """The name of the type."""
        return re.match(r"\s*(\w*)", self.type)[1].lower()  # type: ignore[index]

    @property
    def kind(self) -> Kind:
        return kind_of_type(self.type)


def task_column(declared: Declared) -> tuple[Column | None, list[str]]:
    """Return a task's column, or `None` if no task can have it, and notes on what it loses."""
    if declared.kind == "bytes":
        return None, [f"left out, its type {declared.type} holds bytes"]
    type_, notes = _type(declared)
    if type_ is None:
        return None, notes
    words = [re.sub(r"^[a-z]+", lambda word: word[0].upper(), type_)]
    if not declared.nullable:
        words.append("NOT NULL")
    words += _default(declared, type_, notes)
    if declared.key and (too_long := _too_long_for_a_key(type_)):
        notes.append(f"its {declared.key} is not held: MySQL has no key of {too_long}")
    elif declared.key:
        words.append(declared.key)
    return Column(declared.name, " ".join(words)), notes


MAX_KEY_CHARACTERS = 768
"""Most characters of a text in a key: InnoDB allows 3,072 bytes, and utf8mb4 takes up to four a character."""


def _is_text(type_: str) -> bool:
    return type_.lower().endswith("text")


def _too_long_for_a_key(type_: str) -> str | None:
    """Return a description of the type if its texts are too long for a key, else `None`."""
    if _is_text(type_):
        return f"a whole {type_.upper()}"
    found = re.match(r"(?:var)?char\s*\((\d+)", type_, re.IGNORECASE)
    length = int(found[1]) if found else 0
    return f"texts of {length:,} characters" if length > MAX_KEY_CHARACTERS else None


def _type(declared: Declared) -> tuple[str | None, list[str]]:
    type_ = re.sub(r"\s*/\*.*?\*/", "", declared.type)  # such as of MariaDB's COMPRESSED
    found = column_type(declared.type)
    if found is not None and found.becomes:
        return found.becomes, [f"its type {type_} becomes {found.becomes.upper()}"]
    if found is None or not found.held:
        return None, [f"left out, no task has its type {type_[:MAX_SHOWN]}"]
    if re.search(r"[^\x20-\x7e]|\\|''", type_):
        return "text", [f"its type {type_[:MAX_SHOWN]} becomes TEXT"]
    # display widths are deprecated, and MySQL 8 no longer shows them
    type_ = re.sub(r"^(\w*int)\(\d+\)", r"\1", type_, flags=re.IGNORECASE)
    notes = []
    # UNSIGNED is deprecated for fractions, and the embedded database does not support it there
    for word in ("ZEROFILL", *(("UNSIGNED",) if found.kind in ("exact", "float") else ())):
        type_, times = re.subn(rf"\s*\b{word}\b", "", type_, flags=re.IGNORECASE)
        notes += [f"its {word} is not held"] if times else []
    return type_, notes


def _default(declared: Declared, type_: str, notes: list[str]) -> Iterator[str]:
    """Yield AUTO_INCREMENT, and DEFAULT if the type can have one and its value is constant."""
    if declared.auto_increment and declared.key == "PRIMARY KEY":
        yield "AUTO_INCREMENT"
    elif declared.auto_increment:
        notes.append("its AUTO_INCREMENT is not held, which needs a primary key of the column alone")
    if declared.generated:
        notes.append("generated by an expression, becomes a column of plain values")
        return
    if declared.on_update:
        notes.append("its ON UPDATE is not held")
    value = declared.default
    if value is None:
        return
    unfit = _is_text(type_) or declared.kind == "json"  # MySQL takes only expressions as their defaults
    if unfit or declared.computed or _UNFIT.search(value) or _ZERO_DATE.match(value):
        notes.append(f"its default {value[:MAX_SHOWN]} is not held")
        return
    yield f"DEFAULT '{value}'"


def text_type(longest: int) -> str:
    """Return the type for texts of at most `longest` bytes."""
    return "TEXT" if longest < 2**16 else "MEDIUMTEXT" if longest < 2**24 else "LONGTEXT"


def shortest_float(value: float) -> float:
    """Return the number that a FLOAT column shows for a 32-bit value: 0.1, not 0.10000000149011612."""
    import numpy

    return float(str(numpy.float32(value)))
