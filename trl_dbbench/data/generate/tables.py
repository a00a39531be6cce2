"""Realistic tables: a theme gives the columns; names, rows, NULLs and repeated values are random.

Values are chosen so that MySQL, MariaDB and SQLite agree on them: no two texts of a column differ only in
case or accents (their collations call those equal), and floats have an exact binary value.
"""

from __future__ import annotations

import math
import random
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trl_dbbench.data.generate.themes import THEMES, Field
from trl_dbbench.mysqlite.names import RESERVED
from trl_dbbench.tasks import Cell, Column, Table
from trl_dbbench.utils.sql import quote


@dataclass(frozen=True)
class Item:
    """A column of a table, with what a question needs to know about it."""

    name: str
    role: str
    values: Callable[[random.Random], Cell]
    nullable: bool
    cells: tuple[Cell, ...]
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """Range of the numbers that the type holds."""
    has_default: bool = False
    """The column has a DEFAULT, so a row that leaves it out does not get NULL."""
    as_written: bool = False
    """The name is as people write it, with spaces and punctuation; SQL puts it in backticks."""

    @property
    def sql(self) -> str:
        return quote(self.name) if self.as_written else quoted(self.name)

    @property
    def label(self) -> str:
        """Name of the column in a question."""
        return self.name if self.as_written else self.name.replace("_", " ")

    @property
    def present(self) -> list[Any]:
        """The distinct values except NULL, sorted."""
        return sorted(set(self.present_all))

    @property
    def present_all(self) -> list[Any]:
        """All values except NULL, with repetitions."""
        return [cell for cell in self.cells if cell is not None]


@dataclass(frozen=True)
class Source:
    """A table with the noun for its rows and the roles of its columns."""

    table: Table
    rows: str
    items: tuple[Item, ...]

    @property
    def table_sql(self) -> str:
        return quoted(self.table.name)

    def of(self, *roles: str) -> list[Item]:
        return [item for item in self.items if item.role in roles]


def make_table(rng: random.Random) -> Source:
    """Return a table of 7 to 16 rows and 4 to 9 columns, among them a key, a category and a number."""
    theme = rng.choice(THEMES)
    size = rng.randint(7, 16)
    required = [next(f for f in theme.fields if f.role == role) for role in ("key", "category")]
    required += [next(f for f in theme.fields if f.role in ("count", "money"))]
    if rng.random() < 0.6:  # groups of two columns need a second one
        required += [next(f for f in theme.fields if f.role == "category" and f not in required)]
    others = [field for field in theme.fields if field not in required]
    chosen = required + rng.sample(others, rng.randint(1, min(4, len(others))))
    fields = [field for field in theme.fields if field in chosen]
    items = [_item(rng, field, size) for field in fields]
    if rng.random() < 0.4:
        start = rng.choice([1, 1, 101, 5000])
        ids = tuple(range(start, start + size))
        items.insert(0, Item(rng.choice(["id", "nr"]), "id", lambda rng: start + size, False, ids))
    columns = tuple(Column(item.name, _type(rng, item)) for item in items)
    rows = tuple(zip(*(item.cells for item in items), strict=True))
    return Source(Table(rng.choice(theme.tables), columns, rows), theme.rows, tuple(items))


def _item(rng: random.Random, field: Field, size: int) -> Item:
    name = rng.choice(field.names)
    if rng.random() < 0.08:
        name = name.replace("_", " ")  # such names need backticks
    if field.role == "category":
        pool = _apart(rng, field, rng.randint(3, 5))
        cells = [rng.choice(pool) for _ in range(size)]
    elif field.role == "key":
        # some keys repeat: the same customer orders twice
        pool = _apart(rng, field, size if rng.random() < 0.7 else size - 2)
        cells = [*pool, *(rng.choice(pool) for _ in range(size - len(pool)))]
        rng.shuffle(cells)
    else:
        cells = [field.values(rng) for _ in range(size)]
        for row in range(size):
            if field.nullable and rng.random() < (0.5 if field.role == "note" else 0.15):
                cells[row] = None
            elif row and rng.random() < 0.15:
                cells[row] = cells[rng.randrange(row)]
    return Item(name, field.role, field.values, field.nullable, tuple(cells))


def _apart(rng: random.Random, field: Field, size: int) -> list[Cell]:
    """Return `size` values that all collations tell apart; fewer if the field has no more."""
    found: dict[str, Cell] = {}
    for _ in range(20 * size):
        value = field.values(rng)
        found.setdefault(fold(str(value)), value)
        if len(found) == size:
            break
    return list(found.values())


def fold(text: str) -> str:
    """Return a text without accents, case and punctuation."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return re.sub(r"[^a-z0-9]", "", plain)


def _type(rng: random.Random, item: Item) -> str:
    return rng.choice(
        {
            "id": ["INT"],
            "key": ["VARCHAR(60)", "VARCHAR(100)", "TEXT"],
            "category": ["VARCHAR(40)", "VARCHAR(60)", "TEXT"],
            "note": ["TEXT", "VARCHAR(200)"],
            "count": ["INT", "INT", "BIGINT"],
            "money": ["DECIMAL(10,2)", "DECIMAL(8,2)"],
            "rate": ["FLOAT", "DOUBLE"],
            "day": ["DATE"],
        }[item.role]
    )


_RESERVED = RESERVED | {"offset", "returning", "class", "unit"}
"""Names put in backticks. MySQL reserves all but the last four; of these, MariaDB reserves the first two."""


def quoted(name: str) -> str:
    """Return a name as SQL writes it, in backticks where it needs them."""
    return name if re.fullmatch("[A-Za-z_]+", name) and name.lower() not in _RESERVED else quote(name)


def literal(value: Cell) -> str:
    """Return a value as SQL writes it."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    # written out, a float of more than 65 digits is another number to MySQL, whose DECIMALs are not longer
    return str(int(value)) if abs(value) < 10**15 and float(value).is_integer() else str(value)


def said(value: Cell) -> str:
    """Return a value as a question says it."""
    if isinstance(value, str):
        if re.fullmatch(r"\d{4}-\d\d-\d\d", value):
            return value
        return f"'{value}'" if '"' in value else f'"{value}"'
    return literal(value)
