"""Draft questions about your own tables, with the plans of level full.

A column gets the role that its type, its keys and its cells allow (`source_of`). A column that cannot be
asked about unambiguously, such as texts that differ only in case, is left out of the questions but stays in
the table. As everywhere in this package, the gold SQL is executed, and slips must give another result.

Each question is about one table. Which plans suit a table shows only when they are tried: a skill that yields
no task is given up, and named at the end.
"""

from __future__ import annotations

import datetime
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np

from trl_dbbench.data.generate import LEVELS, Request, draw_plan
from trl_dbbench.data.generate.checks import PATIENT
from trl_dbbench.data.generate.queries import draft
from trl_dbbench.data.generate.tables import Item, Source, fold
from trl_dbbench.database import open_database
from trl_dbbench.errors import ConfigError
from trl_dbbench.mysqlite.collation import sort_key
from trl_dbbench.tasks import Cell, Column, Table, Task
from trl_dbbench.tasks.column_types import Kind, kind_of_type
from trl_dbbench.utils.sql import normal_form

_TRIES = 150
"""Largest number of drafts for one task, after which its skill is given up."""

_LONGEST = 60
"""Largest length, in characters, of a text that a question may quote."""

_LONG = 10**12
"""Smallest whole number taken for a code, such as a bar code; their mean has more digits than a DOUBLE."""

_LARGEST = 1e300
"""Bound of the fractions that are asked about: sums and products of larger ones exceed a DOUBLE's range."""

_SMALLEST = 1e-3
"""Smallest fraction that is asked about: graders take numbers within 1e-6 of each other as equal."""

_BITS = {"TINYINT": 8, "BOOL": 8, "BOOLEAN": 8, "SMALLINT": 16, "MEDIUMINT": 24, "BIGINT": 64}

_WRITTEN: dict[Kind, str] = {
    "date": r"\d{4}-\d\d-\d\d",
    "time": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
    "text": rf"(?s).{{1,{_LONGEST}}}",
}
"""Kind -> pattern of the cells that are asked about; a time of day without a date is not."""

_SILENT = ("ENUM", "SET", "YEAR")
"""Types of columns that are not asked about."""


@dataclass
class Drafts:
    """Tasks, drafted while iterating; afterwards `missing` lists the skills that were given up.

    A task has at most `max_skills` skills. `silent` lists the tables that no question can be asked about.
    """

    tables: Sequence[Table]
    num_tasks: int
    seed: int = 0
    max_skills: int | None = None
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sources = [source for source in map(source_of, self.tables) if source is not None]
        asked = {source.table.name for source in self.sources}
        self.silent = [table.name for table in self.tables if table.name not in asked]

    def __iter__(self) -> Iterator[Task]:
        if not self.sources:
            raise ConfigError(
                f"nothing can be asked of {', '.join(table.name for table in self.tables)}: a table needs "
                "two rows and two columns of numbers, dates or short texts."
            )
        plans = dict(Request(max_skills=self.max_skills).plans())  # a copy, as skills may be given up
        rng = random.Random(f"own-{self.seed}")
        rough = {
            table.name
            for table in (source.table for source in self.sources)
            for row in table.rows
            if any(_is_rough(column.type, cell) for column, cell in zip(table.columns, row, strict=True))
        }
        seen: set[str] = set()
        waiting: list[str] = []
        number = 0
        with open_database("sqlite", limits=PATIENT) as database:
            while number < self.num_tasks and plans:
                if not waiting:  # a new round of all skills
                    waiting = rng.sample(list(plans), len(plans))
                skill = waiting.pop()
                for _ in range(_TRIES):
                    source, plan = rng.choice(self.sources), draw_plan(rng, plans[skill])
                    drafted = draft(rng, source, plan)
                    if drafted is None or (form := normal_form(drafted[1])) in seen:
                        continue
                    task = LEVELS["full"].task(database, source, plan, *drafted)
                    if task is not None:
                        break
                else:
                    self.missing.append(skill)
                    del plans[skill]
                    continue
                seen.add(form)
                if source.table.name in rough:  # its hash would differ between servers
                    task = replace(task, gold=replace(task.gold, state_md5=None))
                yield replace(task, id=f"own-{self.seed}-{number:05d}")
                number += 1


def source_of(table: Table) -> Source | None:
    """Return a table with the columns that can be asked about; `None` if these do not allow a question."""
    cells = [[row[place] for row in table.rows] for place in range(len(table.columns))]
    items = [item for item in map(_item, table.columns, cells) if item is not None]
    # no question could tell two columns with one name apart
    labels = Counter(item.label.casefold() for item in items)
    items = [item for item in items if labels[item.label.casefold()] == 1]
    if len(table.rows) < 2 or len(items) < 2:
        return None
    name = table.name.replace("_", " ")
    rows = name if name.endswith("s") else f"{name} rows"
    return Source(table, rows, tuple(items))


def _item(column: Column, cells: Sequence[Cell]) -> Item | None:
    kind, words = kind_of_type(column.type), column.type.upper()
    if words.startswith(_SILENT):
        return None
    try:
        values = [None if cell is None else _read(kind, cell) for cell in cells]
    except (ValueError, TypeError):
        return None
    present = [value for value in values if value is not None]
    if not present:
        return None
    if kind == "text":
        if not _unmistakable(present):
            return None
        shared = len(set(present)) <= 0.6 * len(present)
        role = "note" if len(present) <= 0.7 * len(cells) else "category" if shared else "key"
    elif kind in ("date", "time"):
        role = "day"
    elif kind == "whole":
        role = "id" if _names_something(column, present) else "count"
    else:
        role = "money" if kind == "exact" else "rate"
        held = all(_SMALLEST <= abs(value) < _LARGEST for value in present if value)
        if not held or any(_is_rough(words, cell) for cell in cells):
            return None
    length = int(size[1]) if (size := re.match(r"(?:VAR)?CHAR\((\d+)\)", words)) else _LONGEST
    unique = re.search("PRIMARY KEY|UNIQUE", words) is not None
    fresh = partial(_fresh, role, sorted(set(present)), length, unique)
    bounds, has_default = _bounds(kind, words), "DEFAULT" in words
    return Item(column.name, role, fresh, column.nullable, tuple(values), bounds, has_default)


def _is_rough(type_: str, cell: Cell) -> bool:
    """Return whether servers and the embedded database show a cell differently.

    Servers show six digits of a FLOAT, which has 32 bits. The embedded database computes with the digits of
    a DOUBLE, and cuts off fractions of seconds.
    """
    if (kind := kind_of_type(type_)) == "time":
        return "." in str(cell)
    if cell is None or kind not in ("exact", "float"):
        return False
    value = float(cell)
    if type_.upper().startswith("FLOAT"):
        return float(np.float32(value)) != value or float(f"{value:.6g}") != value
    return Decimal(str(cell)) != Decimal(repr(value))


def _read(kind: Kind, cell: Any) -> Any:
    """Return a cell as a value of its kind; raise ValueError or TypeError if it cannot be asked about."""
    if kind == "whole":
        return int(str(cell))
    if kind in ("exact", "float"):
        return float(cell)
    pattern = _WRITTEN.get(kind)
    if pattern is None or not isinstance(cell, str) or not re.fullmatch(pattern, cell):
        raise ValueError(cell)
    return cell


def _bounds(kind: Kind, type_: str) -> tuple[float, float]:
    """Return a type's least and greatest number (MySQL's manual, "Integer Types" and "Fixed-Point Types")."""
    unsigned = "UNSIGNED" in type_
    if kind == "whole":
        bits = next((bits for name, bits in _BITS.items() if type_.startswith(name)), 32)
        most = 2 ** (bits - (not unsigned)) - 1
        return (0 if unsigned else -most - 1), most
    if (digits := re.search(r"\((\d+)(?:,\s*(\d+))?\)", type_)) and kind in ("exact", "float"):
        most = 10 ** (int(digits[1]) - int(digits[2] or 0)) - 1
        return (0 if unsigned else -most), most
    return (0 if unsigned else -math.inf), math.inf


def _unmistakable(texts: Sequence[str]) -> bool:
    """Return whether every server tells these texts apart and reads them as they are written."""
    different = set(texts)
    if any(text != text.strip() or re.search(r"[\\\x00-\x1f]", text) for text in different):
        return False
    letters = {fold(text) or text for text in different}
    return len(letters) == len({*map(sort_key, different)}) == len(different)  # to MySQL, ø is o


def _names_something(column: Column, values: Sequence[int]) -> bool:
    """Return whether whole numbers are keys, flags, years or long codes, so that their sum is meaningless."""
    named = re.search(r"(^|_)(id|nr|no|number|code|year|zip|phone)$|[a-z]I[Dd]$", column.name, re.IGNORECASE)
    key = re.search("PRIMARY KEY|UNIQUE", column.type, re.IGNORECASE)
    return bool(named or key) or set(values) <= {0, 1} or max(map(abs, values)) >= _LONG


def _fresh(role: str, present: Sequence[Any], length: int, unique: bool, rng: random.Random) -> Cell:
    """Return a value of the column for a new or changed row; if unique, one that does not occur yet."""
    if role == "id" and unique:
        return present[-1] + 1
    if role == "day" and unique:
        with suppress(ValueError, OverflowError):  # no day precedes the first one
            day = datetime.datetime.fromisoformat(present[0]) - datetime.timedelta(1)
            return str(day)[: len(present[0])]
    if role == "count":
        return rng.randint(present[0], present[-1])
    if role == "money":
        low, high = round(present[0] * 100), round(present[-1] * 100)
        whole = all(float(value).is_integer() for value in present)
        value = rng.randint(low, high) / 100
        return float(round(value)) if whole else value
    if role == "key":  # the first word of one and the last of another, if both have several
        first, last = (rng.choice(present).split() for _ in range(2))
        mixed = " ".join([first[0], last[-1]])
        if len(first) > 1 and len(last) > 1 and len(mixed) <= length:
            return mixed
        if unique:
            return _new_text(present, rng)
    return rng.choice(present)


def _new_text(present: Sequence[str], rng: random.Random) -> str:
    """Return a similar text: one with the next number at its end, or made of halves of two of these."""
    last = max(present, key=lambda text: (len(text), text))
    if digits := re.search("[0-9]+$", last):
        return last[: digits.start()] + str(int(digits[0]) + 1).zfill(len(digits[0]))
    first, other = rng.choice(present), rng.choice(present)
    return first[: len(first) // 2] + other[len(other) // 2 :]
