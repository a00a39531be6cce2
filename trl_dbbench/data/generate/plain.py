"""Level plain: short requests in everyday words, about tables as they appear on web pages.

Names are long and contain punctuation (`Nursery Plants of Oslo 2019`, `Height (cm)`), so they have to be
copied from the prompt. Dates are texts, and a value in the question may be in lower case, which makes no
difference to MySQL's collations. A request has one table and at most two conditions: look up, count, find the
largest or smallest, add a row, change one. DB-Bench's standard tasks have such requests; those for MAX, MIN
and SUM are left to level full. The gold SQL has backticks around every name and quotes around every value,
which works for columns of any type.
"""

from __future__ import annotations

import datetime
import random
import re
from dataclasses import dataclass, replace

from trl_dbbench.data.generate import tables
from trl_dbbench.data.generate.drafting import NUMBERS, Choices, listed
from trl_dbbench.data.generate.plans import LIMITS, ORDERS, WHERES
from trl_dbbench.data.generate.tables import Item, Source, literal
from trl_dbbench.data.generate.themes import CITIES, FIRST, LAST
from trl_dbbench.tasks import Cell, Column, Table
from trl_dbbench.utils.sql import quote

TEXTS = ("key", "category")
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
"""Months in English, whatever the locale."""


@dataclass(frozen=True)
class PlainPlan:
    """A form of request, and the number of its conditions."""

    form: str
    conditions: int

    @property
    def skills(self) -> frozenset[str]:
        where = {WHERES[self.conditions - 1]} if self.conditions else set()
        more = {ORDERS[0], LIMITS[0]} if self.form == "extreme" else set()
        return frozenset({self.form if self.form in ("insert", "update") else "select", *where, *more})


PLANS = (
    *(PlainPlan("lookup", conditions) for conditions in (1, 1, 2)),
    *(PlainPlan("number", conditions) for conditions in (1, 2)),
    *(PlainPlan("extreme", conditions) for conditions in (0, 1)),
    PlainPlan("insert", 0),
    *(PlainPlan("update", conditions) for conditions in (1, 2)),
)


# --- the table ------------------------------------------------------------------------------------


def make_plain(rng: random.Random) -> Source:
    """Return a table of `tables.make_table` as a web page would show it."""
    source = tables.make_table(rng)
    written = rng.random() < 0.6  # dates as people write them
    items = tuple(_as_shown(rng, item, written) for item in source.items)
    columns = tuple(
        Column(item.name, "TEXT" if _as_text(item, written) else column.type)
        for item, column in zip(items, source.table.columns, strict=True)
    )
    rows = tuple(zip(*(item.cells for item in items), strict=True))
    return Source(Table(_table_name(rng, source.table.name), columns, rows), source.rows, items)


def _table_name(rng: random.Random, name: str) -> str:
    words = name.replace("_", " ")
    if rng.random() < 0.8:
        words = words.title()
    if rng.random() < 0.6:
        place, person, year = rng.choice(CITIES), rng.choice(LAST), rng.randint(1950, 2030)
        words = rng.choice(
            [
                f"{place} {words}",
                f"{person} {words}",
                f"{year} {words}",
                f"{words} {year}",
                f"{words} in {place}",
                f"{words} of {person} and {rng.choice(LAST)}",
                f"{words} by {rng.choice(['Year', 'Region', 'Name', 'Season'])}",
                f"{words} ({place}, {year})",
                f"{words} Table {rng.randint(1, 9)}",
                f"List of {words}",
            ]
        )
    if rng.random() < 0.2:
        words = words.replace(" ", "_")
    return words if rng.random() < 0.9 else words.lower()


_SIGNS = {
    "count": ("No. of {}", "{} #", "{} (total)", "Total {}", "{} / year"),
    "money": ("{} (EUR)", "{} [USD]", "{} (£)", "{} per unit"),
    "rate": ("{} (avg.)", "{} %", "Mean {}"),
    "day": ("{} (local)", "{} / day", "Date: {}"),
    "category": ("{} or other", "{} / group", "Main {}", "{} (official)"),
    "key": ("{} (full)", "{} #", "{}:", "Official {}", "{} of record"),
}
"""Role of a column -> punctuation and words that its header might have on a web page."""


def _as_text(item: Item, written: bool) -> bool:
    return item.role in (*TEXTS, "note") or (item.role == "day" and written)


def _as_shown(rng: random.Random, item: Item, written: bool) -> Item:
    name = item.name
    if rng.random() < 0.85:
        name = name.replace("_", " ")
        name = name.capitalize() if rng.random() < 0.6 else name.title()
    if rng.random() < 0.25:
        name = rng.choice(_SIGNS.get(item.role, ("{} name", "{} #", "{}:"))).format(name)
    values, cells = item.values, item.cells
    if item.role == "day" and written:
        values, cells = (lambda rng: _written(item.values(rng))), tuple(map(_written, item.cells))
    return replace(item, name=name, values=values, cells=cells, as_written=True)


def _written(day: Cell) -> Cell:
    if day is None:
        return None
    date = datetime.date.fromisoformat(str(day))
    return f"{MONTHS[date.month - 1]} {date.day}, {date.year}"


def words_of(value: Cell) -> str:
    """Return a value as questions say it: whole numbers without a point."""
    return value if isinstance(value, str) else literal(value)


def literal_text(value: Cell) -> str:
    """Return a value as an SQL literal, which is always a text."""
    return literal(words_of(value))


# --- the request ----------------------------------------------------------------------------------


@dataclass
class Draft(Choices):
    """The draft of a request."""

    def __post_init__(self) -> None:
        self.conditions: list[tuple[Item, str]] = []  # columns that have to equal a value
        self.lower = self.rng.random() < 0.35  # column names in the sentence are in lower case
        self.table = self.rng.choice([self.source.table.name, f"'{self.source.table.name}'"])

    def name(self, item: Item) -> str:
        return item.label.lower() if self.lower else item.label

    def is_clear(self, question: str) -> bool:
        """Return whether a question names the column of each value that also occurs in other columns."""
        return not any(
            words_of(cell).casefold() == value.casefold()
            for item, value in self.conditions
            if not re.search(rf"(?<!\w){re.escape(item.label)}(?!\w)", question, re.IGNORECASE)
            for other in self.source.items
            if other is not item
            for cell in other.present
        )

    def where(self, size: int, shown: Item) -> tuple[str, str, list[Item], list[str]] | None:
        """Return ` WHERE ...`, its words, its columns and their values; `None` if the table has too few."""
        first = self.item("key", "id", but=(shown,)) or self.item("category", but=(shown,))
        if self.rng.random() < 0.3 or first is None:
            first = self.item("category", "count", "day", but=(shown,))
        if first is None:
            return None
        row = self.rng.randrange(len(first.cells))
        items = [first]
        if size == 2:
            second = self.item("category", "day", *NUMBERS, but=(shown, first))
            if second is None:
                return None
            items.append(second)
        values = [item.cells[row] for item in items]
        if None in values:
            return None
        conditions, words = [], []
        for place, (item, value) in enumerate(zip(items, values, strict=True)):
            sign, comparison = "=", self.pick("of", "of", "listed as") if place or size == 2 else ""
            if place and item.role in NUMBERS and isinstance(value, int | float):
                sign, comparison = self.rng.choice(
                    [("<", "smaller than"), (">", "larger than"), ("<", "less than"), (">", "greater than")]
                )
                value += self.rng.randint(1, 9) * (1 if sign == "<" else -1)
                values[place] = value
            else:
                self.conditions.append((item, words_of(value)))
            conditions.append(f"{item.sql} {sign} {literal_text(value)}")
            words.append(f"{self.pick('a ', 'a ', '')}{self.name(item)} {comparison} {words_of(value)}")
        return f" WHERE {' AND '.join(conditions)}", " and ".join(words), items, list(map(words_of, values))


Made = tuple[str, str] | None


def draft(rng: random.Random, source: Source, plan: PlainPlan) -> Made:
    """Return a request and its SQL, or `None` if the table lacks the columns for the plan."""
    d = Draft(rng, source)
    made = _FORMS[plan.form](d, plan.conditions)
    if made is None or not d.is_clear(made[0]):
        return None
    question, sql = made
    if plan.form not in ("insert", "update") and rng.random() < 0.25:
        question = question.lower()
    else:
        question = question[0].upper() + question[1:]
    return question, sql


def _person(item: Item) -> bool:
    return any(str(cell).split()[0] in FIRST for cell in item.present[:3])


def _lookup(d: Draft, size: int) -> Made:
    day = () if any(str(cell)[:2] == "20" for item in d.source.of("day") for cell in item.cells) else ("day",)
    shown = d.item("id", *TEXTS, *NUMBERS, *day)  # dates only if they are written in words
    if shown is None or (found := d.where(size, shown)) is None:
        return None
    where, words, items, values = found
    label, value = d.name(shown), values[0]
    wordings = [
        f"Which {label} has {words}?",
        f"What {label} has {words}?",
        f"Name the {label} with {words}.",
        f"What is the {label} with {words}?",
        f"Tell me the {label} that has {words}.",
        f"With {words}, what is the {label}?",
    ]
    if size == 1:
        by = d.name(items[0])
        wordings = [
            f"What is the {label} when the {by} is {value}?",
            f"What is the {label} for {value}?",
            f"What is {value}'s {label}?",
            f"Which {label} has {value} as the {by}?",
            f"What {label} did {value} have?",
            f"Name the {label} for {by} of {value}.",
            f"{value} is the {by} for which {label}?",
            f"What was the {label} of the {by} {value}?",
            f"If the {by} is {value}, what is the {label}?",
            f"Tell me the {label} that has a {by} of {value}.",
            f"{value} has what {label}?",
        ]
        if shown.role in NUMBERS:
            wordings += [f"How many {label} does {value} have?", f"How much {label} was there for {value}?"]
        if _person(shown):
            wordings += [f"Who is the {label} of {value}?", f"Who has {value} as the {by}?"]
    return d.pick(*wordings), f"SELECT {shown.sql} FROM {quote(d.source.table.name)}{where}"


def _number(d: Draft, size: int) -> Made:
    shown = d.item("key", "category", "id")
    if shown is None or (found := d.where(size, shown)) is None:
        return None
    where, words, items, values = found
    rows, label, by = d.source.rows, d.name(shown), d.name(items[0])
    wordings = [
        f"How many {rows} have {words}?",
        f"What is the total number of {rows} with {words}?",
        f"How many {label} entries have {words}?",
    ]
    if size == 1:
        wordings += [
            f"How many {rows} are there for {values[0]}?",
            f"How many times is {values[0]} the {by}?",
            f"Name the number of {label} for {values[0]}.",
            f"How many different entries show {by} {values[0]}?",
        ]
    return d.pick(*wordings), f"SELECT COUNT(*) FROM {quote(d.source.table.name)}{where}"


def _extreme(d: Draft, size: int) -> Made:
    item = d.item(*NUMBERS)
    shown = d.item(*TEXTS)
    if item is None or shown is None:
        return None
    down = d.rng.random() < 0.6
    word = d.rng.choice(
        ("highest", "largest", "most", "biggest") if down else ("lowest", "smallest", "least")
    )
    label, by, where, only = d.name(shown), d.name(item), "", ""
    if size:
        kind = d.item("category", but=(shown,))
        if kind is None:
            return None
        value = d.rng.choice(kind.present)
        d.conditions.append((kind, value))
        where = f" WHERE {kind.sql} = {literal_text(value)}"
        only = d.pick(f" with {value} as {d.name(kind)}", f" for {value}")
    wordings = [
        f"Which {label}{only} has the {word} {by}?",
        f"What {label}{only} had the {word} {by}?",
        f"Of all {d.source.rows}{only}, which {label} has the {word} {by}?",
        f"Name the {label} with the {word} {by}{only}.",
    ]
    if _person(shown):
        wordings += [f"Who had the {word} {by}{only}?", f"Which person{only} has the {word} {by}?"]
    order = f" ORDER BY {item.sql}{' DESC' if down else ''} LIMIT 1"
    return d.pick(*wordings), f"SELECT {shown.sql} FROM {quote(d.source.table.name)}{where}{order}"


def _insert(d: Draft, _: int) -> Made:
    items = [item for item in d.source.items if not item.nullable or d.rng.random() < 0.7]
    cells = [words_of(item.values(d.rng)) for item in items]
    pairs = list(zip(items, cells, strict=True))
    table, rows = d.table, d.source.rows
    quoted = ", ".join(f"'{cell}'" for cell in cells)
    of = ", ".join(f"{item.label} '{cell}'" for item, cell in pairs)
    as_ = ", ".join(f"{item.label} as '{cell}'" for item, cell in pairs)
    is_ = listed([f"{item.label} is '{cell}'" for item, cell in pairs])
    for_ = listed([f"'{cell}' for {item.label}" for item, cell in pairs])
    bare = listed([f"{d.name(item)} {cell}" for item, cell in pairs[1:]])
    names = ", ".join(item.label for item in items)
    first = cells[0]
    question = d.pick(
        f"Insert a new row into the {table} table with {of}.",
        f"Insert a record into the table {table} with the values {for_}.",
        f"In the {table} table, add a new row where {is_}.",
        f"Add a new entry to {table}: {as_}.",
        f"Insert into {table} ({names}) values ({quoted}).",
        f"Add ({quoted}) to the table {table}, with the columns {names}.",
        f"Please record {first} in the {table} table, with {bare}.",
        f"{first} is new in the {table} table, with {bare}.",
        f"A new row about {first} is inserted into {table}; it has {bare}.",
        f"Add {first} to the {rows}: {bare}.",
        f"The table {table} gets a new row in which {is_}.",
    )
    values = ", ".join(map(literal_text, cells))
    columns = ", ".join(item.sql for item in items)
    return question, f"INSERT INTO {quote(d.source.table.name)} ({columns}) VALUES ({values})"


def _update(d: Draft, size: int) -> Made:
    shown = d.item(*TEXTS, *NUMBERS, "day")
    if shown is None or (found := d.where(1, shown)) is None:
        return None
    where, _, items, values = found
    changed = [shown]
    if d.rng.random() < 0.3 and (other := d.item(*TEXTS, *NUMBERS, but=(shown, items[0]))):
        changed.append(other)
    new = [(item, words_of(item.values(d.rng))) for item in changed]
    if any(cell in item.cells for item, cell in new if item.role == "key"):
        return None
    table, value, by = d.table, values[0], items[0].label
    only = ""
    if size == 2:
        second = d.item("category", *NUMBERS, but=(*changed, items[0]))
        if second is None:
            return None
        cell = second.cells[[*map(words_of, items[0].cells)].index(value)]
        if cell is None:
            return None
        where += f" AND {second.sql} = {literal_text(cell)}"
        only = f" and the {second.label} is '{words_of(cell)}'"
    to = listed([f"{item.label} to '{cell}'" for item, cell in new])
    bare = listed([f"the {d.name(item)} to {cell}" for item, cell in new])
    now = listed([f"the {d.name(item)} is now {cell}" for item, cell in new])
    columns = listed([f"the {item.label} column to '{cell}'" for item, cell in new])
    wordings = [
        f"Update the {to} where the {by} is '{value}'{only} in the {table} table.",
        f"In the {table} table, set {columns} for the rows where the {by} is '{value}'{only}.",
        f"Set the {to} in {table} wherever the {by} is {value}{only}.",
        f"In {table}, change {bare} if the {by} is {value}{only}.",
    ]
    if not only:
        wordings += [
            f"Change {bare} for {value} in the {table} table.",
            f"Set {bare} for {value}.",
            f"Update {bare} for the {by} {value} in {table}.",
            f"Update the table {table} for {value}: change {bare}.",
            f"For {value}, {now}.",
            f"{now[0].upper()}{now[1:]} for the {by} {value} in {table}.",
            f"Modify {table} by setting {bare} for the entry with {by} equal to '{value}'.",
        ]
    assigned = ", ".join(f"{item.sql} = {literal_text(cell)}" for item, cell in new)
    return d.pick(*wordings), f"UPDATE {quote(d.source.table.name)} SET {assigned}{where}"


_FORMS = {each.__name__.strip("_"): each for each in (_lookup, _number, _extreme, _insert, _update)}
