"""Questions drafted over tables of your own: the plans of level full, on tables that are not made but given.

A column gets the part that its type, its keys and its cells allow (`source_of`); what cannot be asked about
without doubt, such as texts that differ in case only, is left out of the questions, and stays in the table.
As everywhere in this package, gold SQL is executed and must tell a slip from a right answer.

Each question is asked of one table. Which plans a table can serve shows only when they are tried: a skill of
which no task comes is given up, and named at the end.
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
"""Drafts for one task, before its skill is given up."""

_LONGEST = 60
"""Characters of a text that a question may quote."""

_LONG = 10**12
"""Whole numbers from here on are codes, such as bar codes; a mean of them has more digits than a DOUBLE."""

_LARGEST = 1e300
"""Fractions from here on are not asked about: their sums and products leave the range of a DOUBLE."""

_SMALLEST = 1e-3
"""Fractions nearer to 0 are not asked about: graders take numbers within 1e-6 of each other for equal."""

_BITS = {"TINYINT": 8, "BOOL": 8, "BOOLEAN": 8, "SMALLINT": 16, "MEDIUMINT": 24, "BIGINT": 64}

_WRITTEN: dict[Kind, str] = {
    "date": r"\d{4}-\d\d-\d\d",
    "time": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
    "text": rf"(?s).{{1,{_LONGEST}}}",
}
"""Form of the cells that are asked about, by kind; a time of day alone is not."""

_SILENT = ("ENUM", "SET", "YEAR")
"""Types that are not asked about."""


@dataclass
class Drafts:
    """Drafts of tasks, made while iterating; afterwards `missing` has the skills without further tasks.

    A task has at most `max_skills`. Tables that nothing can be asked of are `silent`.
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
        plans = dict(Request(max_skills=self.max_skills).plans())  # a copy, to give skills up in
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
                if not waiting:  # each skill once, then each once more
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
                if source.table.name in rough:  # then hashes differ between servers
                    task = replace(task, gold=replace(task.gold, state_md5=None))
                yield replace(task, id=f"own-{self.seed}-{number:05d}")
                number += 1


def source_of(table: Table) -> Source | None:
    """Return what can be asked of a table; `None` if it does not suffice for a question."""
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
    """Return whether servers and the embedded database show a cell differently: of a FLOAT, which has 32
    bits, servers show six digits; the embedded one computes with the digits that a DOUBLE has, and cuts the
    fractions of moments."""
    if (kind := kind_of_type(type_)) == "time":
        return "." in str(cell)
    if cell is None or kind not in ("exact", "float"):
        return False
    value = float(cell)
    if type_.upper().startswith("FLOAT"):
        return float(np.float32(value)) != value or float(f"{value:.6g}") != value
    return Decimal(str(cell)) != Decimal(repr(value))


def _read(kind: Kind, cell: Any) -> Any:
    """Return a cell of a kind; raise ValueError or TypeError for what cannot be asked about."""
    if kind == "whole":
        return int(str(cell))
    if kind in ("exact", "float"):
        return float(cell)
    pattern = _WRITTEN.get(kind)
    if pattern is None or not isinstance(cell, str) or not re.fullmatch(pattern, cell):
        raise ValueError(cell)
    return cell


def _bounds(kind: Kind, type_: str) -> tuple[float, float]:
    """Return the least and the greatest number (MySQL's manual, "Integer Types" and "Fixed-Point Types")."""
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
    """Return whether whole numbers are keys, flags, years or long codes, so that their sum says nothing."""
    named = re.search(r"(^|_)(id|nr|no|number|code|year|zip|phone)$|[a-z]I[Dd]$", column.name, re.IGNORECASE)
    key = re.search("PRIMARY KEY|UNIQUE", column.type, re.IGNORECASE)
    return bool(named or key) or set(values) <= {0, 1} or max(map(abs, values)) >= _LONG


def _fresh(role: str, present: Sequence[Any], length: int, unique: bool, rng: random.Random) -> Cell:
    """Return a value that fits the column, for a new or a changed row; a new one if they are unique."""
    if role == "id" and unique:
        return present[-1] + 1
    if role == "day" and unique:
        with suppress(ValueError, OverflowError):  # there is none before the first day of all
            day = datetime.datetime.fromisoformat(present[0]) - datetime.timedelta(1)
            return str(day)[: len(present[0])]
    if role == "count":
        return rng.randint(present[0], present[-1])
    if role == "money":
        low, high = round(present[0] * 100), round(present[-1] * 100)
        whole = all(float(value).is_integer() for value in present)
        value = rng.randint(low, high) / 100
        return float(round(value)) if whole else value
    if role == "key":  # the beginning of one and the end of another, where they are of several words
        first, last = (rng.choice(present).split() for _ in range(2))
        mixed = " ".join([first[0], last[-1]])
        if len(first) > 1 and len(last) > 1 and len(mixed) <= length:
            return mixed
        if unique:
            return _new_text(present, rng)
    return rng.choice(present)


def _new_text(present: Sequence[str], rng: random.Random) -> str:
    """Return a text that is like these: one with the next number at its end, or the halves of two of them."""
    last = max(present, key=lambda text: (len(text), text))
    if digits := re.search("[0-9]+$", last):
        return last[: digits.start()] + str(int(digits[0]) + 1).zfill(len(digits[0]))
    first, other = rng.choice(present), rng.choice(present)
    return first[: len(first) // 2] + other[len(other) // 2 :]
