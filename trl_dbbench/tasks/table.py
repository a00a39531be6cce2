"""Tables of tasks: columns with MySQL types, and rows of JSON values."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Any

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks.fields import as_object, optional, required

Cell = str | int | float | bool | None
"""A cell of a table, as JSON holds it. The database converts it to the column's type."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, and its type as in CREATE TABLE, such as `INT NOT NULL`."""

    name: str
    type: str = "TEXT"

    @property
    def nullable(self) -> bool:
        """Return whether its cells may be NULL."""
        words = self.type.upper()
        return "NOT NULL" not in words and "PRIMARY KEY" not in words


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is when an episode starts."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()


def content_key(tables: tuple[Table, ...]) -> bytes:
    """Return a hash of the tables. Comparing the tables would not do: in Python, 1 equals 1.0 and True."""
    return hashlib.blake2b(repr(tables).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def read_table(table: Mapping[str, Any], columns: str = "columns", rows: str = "rows") -> Table:
    """Read a table from an entry whose fields of these names hold the columns and rows."""
    title = required(table, "name", str)
    read = []
    for column in required(table, columns, list):
        column = as_object(column, "column")
        read.append(_column(required(column, "name", str), optional(column, "type", str) or "TEXT"))
    if not read:
        raise TaskError(f"table '{title}' has no columns")
    check_differ([column.name for column in read], f"table '{title}'")
    return Table(title, tuple(read), read_rows(required(table, rows, list), len(read), f"table '{title}'"))


def table_entry(table: Table, columns: str = "columns", rows: str = "rows") -> dict[str, Any]:
    """Return the entry that `read_table` reads as this table."""
    listed = [{"name": column.name, "type": column.type} for column in table.columns]
    return {"name": table.name, columns: listed, rows: list(map(list, table.rows))}


MAX_NAME_CHARACTERS = 64
"""Most characters of a table's or column's name on MySQL and MariaDB."""


def check_names(table: Table) -> None:
    """Raise TaskError if the name of the table or of a column is longer than servers accept."""
    for what, name in _named(table):
        if len(name) > MAX_NAME_CHARACTERS:
            raise TaskError(
                f"{what} '{name}' has a name of {len(name)} characters; MySQL and MariaDB take at most "
                f"{MAX_NAME_CHARACTERS} (1059: Identifier name is too long). Shorten it."
            )


def check_new_names(table: Table) -> None:
    """Raise TaskError for a name that servers do not accept in a new table.

    Published tasks are not checked by this, as some have such names.
    """
    for what, name in _named(table):
        if not name or re.search("[\0\U00010000-\U0010ffff]| \\Z", name):
            raise TaskError(
                f"{what} has the name {name!r}; MySQL and MariaDB take none that is empty, ends in a space, "
                "or has a NUL or a character beyond U+FFFF (1166: Incorrect column name). Rename it."
            )
    check_names(table)


def _named(table: Table) -> Iterator[tuple[str, str]]:
    yield "the table", table.name
    for column in table.columns:
        yield f"table '{table.name}': the column", column.name


def first_twice(names: Sequence[str]) -> int | None:
    """Return the index of the first name that occurs again later, or `None` if all differ."""
    times = Counter(names)
    return next((place for place, name in enumerate(names) if times[name] > 1), None)


def check_differ(names: Sequence[str], where: str) -> None:
    """Raise TaskError if two columns have the same name. The message begins with `where`."""
    if (twice := first_twice([name.casefold() for name in names])) is not None:
        raise TaskError(
            f"{where}: the column '{names[twice]}' is there twice; MySQL and SQLite ignore case in column "
            "names. Rename one."
        )


def read_rows(rows: Sequence[Any], width: int, where: str) -> tuple[tuple[Cell, ...], ...]:
    """Read rows of an entry, each of `width` cells. An error's message begins with `where`."""
    lines = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list | tuple) or len(row) != width:
            size = f"{len(row)} cells" if isinstance(row, list | tuple) else repr(row)
            raise TaskError(f"{where}, row {number} has {size}, the table has {width} columns")
        if wrong := [cell for cell in row if not is_cell(cell)]:
            raise TaskError(
                f"{where}, row {number} has the cell {wrong[0]!r}; a cell is a string, a finite number, "
                "true, false or null"
            )
        # interned: files of many tasks repeat the same texts
        lines.append(tuple(intern(cell) if isinstance(cell, str) else cell for cell in row))
    return tuple(lines)


@lru_cache(maxsize=10_000)
def _column(name: str, type: str) -> Column:
    return Column(name, type)


def is_cell(value: Any) -> bool:
    """Return whether a value can be a cell: a scalar, neither NaN nor infinite."""
    return value is None or (
        isinstance(value, str | int | float) and not (value != value or value in (math.inf, -math.inf))
    )
