"""Questions over two to five tables: joins, set operations, window functions, CTEs, correlated subqueries.

A draft fills the blanks of a form with tables, columns and conditions. `forms.txt` has the forms, separated
by empty lines, each with its SQL and several wordings of the question that it answers:

```
kind, shape, by the column that its rows are ordered by
  SQL
  - a wording
```

The shape says how the tables are linked (`Draft.parts`). The skill of each task is its kind, one of
`skills.QUERY_KINDS`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from trl_dbbench.data.generate.checks import gold_answer
from trl_dbbench.data.generate.schemas import SCHEMAS, Entity, World, make_world
from trl_dbbench.data.generate.tables import literal
from trl_dbbench.database import Database
from trl_dbbench.tasks import Gold, Table, Task


@dataclass(frozen=True)
class Form:
    """A template of SQL and questions; see the module."""

    kind: str
    shape: str
    by: str
    sql: str
    wordings: tuple[str, ...]

    @property
    def skills(self) -> frozenset[str]:
        return frozenset({self.kind})


def _read(text: str) -> Iterator[Form]:
    for entry in text.strip().split("\n\n"):
        head, sql, *wordings = map(str.strip, entry.splitlines())
        kind, shape, by = head.split(", ")
        yield Form(kind, shape, by.removeprefix("by "), sql, tuple(each[2:] for each in wordings))


FORMS = tuple(_read(Path(__file__).with_name("forms.txt").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Col:
    """A column of a table in a statement."""

    sql: str
    column: str
    label: str
    role: str
    cells: tuple[Any, ...]

    def __str__(self) -> str:
        return self.sql


@dataclass(frozen=True)
class Part:
    """A table in a statement, with an alias unless that is empty."""

    entity: Entity
    table: Table
    alias: str

    @property
    def source(self) -> str:
        return f"{self.table.name} AS {self.alias}" if self.alias else self.table.name

    @property
    def noun(self) -> str:
        return self.entity.noun

    @property
    def nouns(self) -> str:
        return self.entity.table

    @property
    def a(self) -> str:
        """The noun with its article."""
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"

    def col(self, column: str, role: str = "key") -> Col:
        place = [each.name for each in self.table.columns].index(column)
        return Col(
            f"{self.alias}.{column}" if self.alias else column,
            column,
            self.label(column),
            role,
            tuple(row[place] for row in self.table.rows),
        )

    def label(self, column: str) -> str:
        return column.replace("_", " ")

    @property
    def key(self) -> Col:
        return self.col(self.entity.key)

    @property
    def name(self) -> Col:
        """The column that identifies a row in questions."""
        found = self.cols("name")
        return found[0] if found else self.key

    @property
    def superior(self) -> Col:
        return self.col(f"{self.entity.superior}_id")

    def cols(self, *roles: str) -> list[Col]:
        return [self.col(field.name, field.role) for field in self.entity.fields if field.role in roles]

    def field(self, rng: random.Random, *roles: str) -> Col | None:
        found = self.cols(*roles)
        return rng.choice(found) if found else None

    def ref(self, parent: Part) -> Col:
        return self.col(parent.entity.key)


@dataclass(frozen=True)
class Condition:
    """A condition in SQL and in English: `c.age > 30`, "with age above 30"."""

    sql: str
    text: str


@dataclass(frozen=True)
class Order:
    """An order in SQL and in English: `c.age DESC`, "sorted by age in descending order".

    `text` ends in `how`. `plain` is the SQL for set operations, whose columns belong to no table.
    """

    sql: str
    plain: str
    how: str
    text: str

    @classmethod
    def of(cls, col: Col, down: bool, how: str, text: str) -> Order:
        sql, plain = (f"{each} DESC" if down else each for each in (col.sql, col.column))
        return cls(sql, plain, how, text)


_WORDS = {
    ">": ("above", "of more than", "greater than"),
    "<": ("below", "of less than", "smaller than"),
    ">=": ("of at least",),
    "<=": ("of at most",),
}


_WAYS = {
    (True, True): ("in reverse alphabetical order", "from Z to A"),
    (True, False): ("alphabetically", "from A to Z"),
    (False, True): ("in descending order", "from high to low"),
    (False, False): ("in ascending order", "from low to high"),
}
"""(whether of texts, whether descending) -> words for the order."""


@dataclass
class Draft:
    """The random numbers, tables and style of one draft."""

    COPIES = ("", "other")
    """Aliases of the outer and the inner copy of a table."""

    rng: random.Random
    world: World

    def part(self, noun: str, alias: str = "") -> Part:
        """Return a table; its default alias is the first letters of its noun."""
        (place,) = (place for place, each in enumerate(self.world.entities) if each.noun == noun)
        return self.made(self.world.entities[place], self.world.tables[place], alias)

    def made(self, entity: Entity, table: Table, alias: str) -> Part:
        if not alias:
            others = [each.noun for each in self.world.entities if each is not entity]
            size = next(
                n for n in range(1, 9) if not any(each.startswith(entity.noun[:n]) for each in others)
            )
            alias = entity.noun[:size]
        return Part(entity, table, alias)

    def parts(self, shape: str) -> dict[str, Part] | None:
        """Return the tables for a shape by their letters; `None` if the world has no such tables.

        `p` is a parent of `c`, `q` another parent of `c`, `r` a parent of `q`, `d` another child of `p`; `i`
        is a second copy of `c`. `a` refers to its superior `b` in the same table; `e` and `g` are copies of
        any table.
        """
        found = list(self._found(shape))
        if not found:
            return None
        nouns = self.rng.choice(found)
        if shape in ("ab", "eg"):
            return {letter: self.part(nouns[0], alias) for letter, alias in zip(shape, "ab", strict=True)}
        parts = {letter: self.part(noun) for letter, noun in zip(shape.replace("i", ""), nouns, strict=True)}
        if "i" in shape:
            parts |= {key: self.part(nouns[1], alias) for key, alias in zip("ci", self.COPIES, strict=True)}
        return parts

    def _found(self, shape: str) -> Iterator[Sequence[str]]:
        entities = {each.noun: each for each in self.world.entities}
        for child in entities.values():
            if (shape == "ab" and child.superior) or (shape == "eg" and child.fields[0].role == "name"):
                yield [child.noun]
            for parent in child.parents if shape[0] == "p" else ():
                pair = [parent, child.noun]
                others = [each for each in child.parents if each != parent]
                siblings = [each for each, it in entities.items() if parent in it.parents and it is not child]
                if shape in ("pc", "pci"):
                    yield pair
                elif shape == "pcqr":
                    yield from ([*pair, q, r] for q in others for r in entities[q].parents if r != parent)
                else:
                    yield from ([*pair, noun] for noun in (others if shape == "pcq" else siblings))

    def condition(self, part: Part) -> Condition | None:
        """Return a condition on a table; `None` if it has no column for one."""
        if not (found := part.cols("kind", "number", "money", "day")):
            return None
        col = self.rng.choice(found)
        if col.role == "kind":
            value = literal(self.rng.choice(col.cells))
            said = self.rng.choice(["with {} {}", "whose {} is {}"])
            return Condition(f"{col} = {value}", said.format(col.label, value))
        sign = self.rng.choice("><" if col.role == "day" else list(_WORDS))
        cell = self.cell(col, sign)
        if col.role == "day":
            word, said = "after" if sign == ">" else "before", cell
        else:
            word, said = self.rng.choice(_WORDS[sign]), literal(cell)
        return Condition(f"{col} {sign} {literal(cell)}", f"with {col.label} {word} {said}")

    def cell(self, col: Col, sign: str) -> Any:
        """Return one of the column's values as a bound that at most about two thirds of the rows meet."""
        cells = sorted(col.cells, reverse=sign[0] == "<")
        return self.rng.choice(cells[len(cells) // 3 :])

    def order(self, col: Col) -> Order:
        """Return an order of the answer's rows by one column, ascending or descending."""
        down = self.rng.random() < 0.4
        how = self.rng.choice(_WAYS[col.role in ("name", "kind"), down])
        return Order.of(col, down, how, f"{self.rng.choice(['sorted', 'ordered'])} by {col.label} {how}")


def joined(*parts: Part, how: str = "JOIN") -> str:
    """Return the SQL that joins each table to the one before it."""
    sql = parts[0].source
    for before, part in pairwise(parts):
        child, parent = (part, before) if before.noun in part.entity.parents else (before, part)
        on = f"ON {child.ref(parent)} = {parent.key}" if part.alias else f"USING ({parent.entity.key})"
        sql += f" {how} {part.source} {on}"
    return sql


make_relational = partial(make_world, schemas=SCHEMAS, most_tables=5, rows=(4, 10), most_id=40)


def draft(rng: random.Random, world: World, form: Form, style: type[Draft] = Draft) -> tuple[str, str] | None:
    """Return a question and its SQL; `None` if the tables do not suit this form."""
    made = style(rng, world)
    parts = made.parts(form.shape)
    if parts is None:
        return None
    blanks = {name: each for name, each in _blanks(made, parts, form).items() if each is not None}
    question = rng.choice(form.wordings)
    try:
        return question.format(**blanks), form.sql.format(**blanks)
    except KeyError:  # a blank that these tables cannot fill
        return None


def _blanks(made: Draft, parts: dict[str, Part], form: Form) -> dict[str, Any]:
    """Return the values of all blanks that a form may have; `None` for one that these tables cannot fill."""
    rng = made.rng
    blanks: dict[str, Any] = dict(parts)
    first = parts.get("a") or parts.get("e") or parts["p"]
    number, kind = first.field(rng, "number", "money"), first.field(rng, "kind")
    blanks |= {
        "number": number,
        "pn": number and number.label,
        "k": kind,
        "v": made.condition(first),
        "value": _middle(rng, first),
    }
    if second := parts.get("b") or parts.get("g"):
        blanks |= {"other": number and second.col(number.column), "k2": kind and second.col(kind.column)}
    if "b" in parts:
        a, b = parts["a"], parts["b"]
        blanks |= {"ab": f"{a.source} JOIN {b.source} ON {a.superior} = {b.key}", "boss": a.entity.superior}
        above = [row for row in a.superior.cells if row is not None]
        top = max(above, key=above.count)
        blanks["top"] = b.name.cells[b.key.cells.index(top)]
    if child := parts.get("c"):
        n = child.field(rng, "number", "money")
        word, function = rng.choice([("highest", "MAX"), ("lowest", "MIN"), ("total", "SUM")])
        blanks |= {"n": n, "word": word, "f": function, "m": rng.randint(2, 3), "ref": child.ref(first)}
        extreme, function = rng.choice([("highest", "MAX"), ("lowest", "MIN")])
        blanks |= {"extreme": extreme, "edge": function, "w": made.condition(child)}
        blanks |= {"pc": joined(first, child), "left": joined(first, child, how="LEFT JOIN")}
        blanks["sum"] = n and literal(rng.choice(_sums(blanks["ref"], n)))
    if "d" in parts:
        blanks["dref"] = parts["d"].ref(first)
    if "i" in parts:
        inner, n = parts["i"], blanks["n"]
        blanks |= {"i_n": n and inner.col(n.column), "i_ref": inner.ref(first)}
    if "q" in parts:
        chain = [parts[letter] for letter in "pcqr" if letter in parts]
        last = chain[-1]
        blanks |= {
            "chain": joined(*chain),
            "u": made.condition(last),
            "qk": last.field(rng, "kind"),
            "z": last,
        }
    letter, _, column = form.by.partition(".")
    by = getattr(parts[letter], column) if column else blanks[letter]
    blanks["o"] = by and made.order(by)
    blanks["s"] = blanks["o"] and blanks["o"].text
    return blanks


def _sums(ref: Col, number: Col) -> list[float]:
    """Return the sum of a column for each value of another."""
    rows = list(zip(ref.cells, number.cells, strict=True))
    return [sum(cell for other, cell in rows if other == key) for key in sorted(set(ref.cells))]


def _middle(rng: random.Random, part: Part) -> Any:
    """Return the name of a row, in a hierarchy one with rows above and below it if there is one."""
    if not part.entity.superior:
        return rng.choice(part.name.cells)
    rows = list(zip(part.name.cells, part.key.cells, part.superior.cells, strict=True))
    found = [name for name, key, above in rows if above is not None and key in part.superior.cells]
    return rng.choice(found or part.name.cells)


def make_task(database: Database, world: World, form: Form, question: str, sql: str) -> Task | None:
    """Return the task; `None` if a slip gives the same answer or the answer has a NULL."""
    task = Task("", question, world.tables, "SELECT", Gold(sql=sql), (form.kind,))
    with database.sandbox(task) as sandbox:
        gold = gold_answer(sandbox, sql, world.tables)
    if gold is None or any(cell is None for row in gold.answer or () for cell in row):
        return None
    return replace(task, gold=gold)
