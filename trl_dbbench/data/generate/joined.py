"""What a draft over several tables is written with: its tables, columns, conditions and orders.

Each knows how SQL writes it and how a question calls it, so that templates (`relational.py`) are plain text:
`{p.name}` is a column as SQL has it, `{p.name.label}` the same in words. In the short style of level tiny_sql
tables have no aliases and are joined by USING.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trl_dbbench.data.generate.schemas import Entity, World
from trl_dbbench.data.generate.tables import literal
from trl_dbbench.tasks import Table


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
    """A table in a statement, under an alias if that is not empty."""

    entity: Entity
    table: Table
    alias: str
    short: bool

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
            column if self.short else column.replace("_", " "),
            role,
            tuple(row[place] for row in self.table.rows),
        )

    @property
    def key(self) -> Col:
        return self.col(self.entity.key)

    @property
    def name(self) -> Col:
        """The column that a question tells the rows apart by."""
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
    """`c.age > 30`, and "with age above 30"."""

    sql: str
    text: str


@dataclass(frozen=True)
class Order:
    """`c.age DESC`, and "sorted by age in descending order", of which `how` is the end; `plain` is for set
    operations, which know no tables."""

    sql: str
    plain: str
    how: str
    text: str


_WORDS = {
    ">": ("above", "of more than", "greater than"),
    "<": ("below", "of less than", "smaller than"),
    ">=": ("of at least",),
    "<=": ("of at most",),
}


def condition(rng: random.Random, part: Part, but: Col | None = None) -> Condition | None:
    """One that some rows of the table meet; about another column than `but`."""
    roles = ("kind", "number") if part.short else ("kind", "number", "money", "day")
    found = [col for col in part.cols(*roles) if but is None or col.column != but.column]
    if not found:
        return None
    col = rng.choice(found)
    if col.role == "kind":
        value = literal(rng.choice(col.cells))
        said = rng.choice(["with {} {}", "whose {} is {}"]) if not part.short else "with {} {}"
        return Condition(f"{col} = {value}", said.format(col.label, value))
    sign = rng.choice("><" if part.short or col.role == "day" else list(_WORDS))
    cells = sorted(col.cells, reverse=sign[0] == "<")
    cell = rng.choice(cells[len(cells) // 3 :])  # so that it holds for some rows, and not for most
    if col.role == "day":
        word = "after" if sign == ">" else "before"
        return Condition(f"{col} {sign} {literal(cell)}", f"with {col.label} {word} {cell}")
    word = _WORDS[sign][0] if part.short else rng.choice(_WORDS[sign])
    return Condition(f"{col} {sign} {literal(cell)}", f"with {col.label} {word} {literal(cell)}")


def order(rng: random.Random, col: Col, short: bool) -> Order:
    """The rows of an answer by one column, in either direction."""
    down = rng.random() < 0.4
    sql, plain = (f"{each} DESC" if down else each for each in (col.sql, col.column))
    if short:
        how = "descending" if down else "ascending"
        return Order(sql, plain, how, f"by {col.label} {how}")
    if col.role in ("name", "kind"):
        how = rng.choice(
            ["in reverse alphabetical order", "from Z to A"] if down else ["alphabetically", "from A to Z"]
        )
    else:
        how = rng.choice(
            ["in descending order", "from high to low"]
            if down
            else ["in ascending order", "from low to high"]
        )
    return Order(sql, plain, how, f"{rng.choice(['sorted', 'ordered'])} by {col.label} {how}")


@dataclass
class Draft:
    """The chance, the tables and the style of one draft."""

    rng: random.Random
    world: World
    short: bool

    def part(self, noun: str, alias: str = "") -> Part:
        """A table; without an alias it gets its first letters, or none in the short style."""
        (place,) = (place for place, each in enumerate(self.world.entities) if each.noun == noun)
        if not alias and not self.short:
            others = [each.noun for each in self.world.entities if each.noun != noun]
            size = next(n for n in range(1, 9) if not any(each.startswith(noun[:n]) for each in others))
            alias = noun[:size]
        return Part(self.world.entities[place], self.world.tables[place], alias, self.short)

    def parts(self, shape: str) -> dict[str, Part] | None:
        """Tables for a shape, each by its letter; `None` if the world has no such.

        `p` is a parent of `c`, `q` another one, `r` a parent of `q`, `d` another child of `p`; `i` is `c`
        once more. `a` refers to its superior `b` in the same table; `e` and `g` are copies of any table.
        """
        found = list(self._found(shape))
        if not found:
            return None
        nouns = self.rng.choice(found)
        if shape in ("ab", "eg"):
            return {letter: self.part(nouns[0], alias) for letter, alias in zip(shape, "ab", strict=True)}
        parts = {letter: self.part(noun) for letter, noun in zip(shape.replace("i", ""), nouns, strict=True)}
        if "i" in shape:  # of two copies, the inner one needs no alias to be told from the outer one
            inner = self.part(nouns[1], "" if self.short else "other")
            parts |= {"c": self.part(nouns[1], "a" if self.short else ""), "i": inner}
        return parts

    def _found(self, shape: str) -> Iterator[Sequence[str]]:
        entities = {each.noun: each for each in self.world.entities}
        if shape == "ab":
            yield from ([each.noun] for each in entities.values() if each.superior)
        if shape == "eg":
            yield from ([each.noun] for each in entities.values() if each.fields[0].role == "name")
        for child in entities.values():
            for parent in child.parents if shape[0] == "p" else ():
                pair = [parent, child.noun]
                others = [each for each in child.parents if each != parent]
                siblings = [
                    each.noun for each in entities.values() if parent in each.parents and each is not child
                ]
                if shape in ("pc", "pci"):
                    yield pair
                elif shape == "pcq":
                    yield from ([*pair, other] for other in others)
                elif shape == "pcqr":
                    yield from ([*pair, q, r] for q in others for r in entities[q].parents if r != parent)
                elif shape == "pcd":
                    yield from ([*pair, sibling] for sibling in siblings)


def joined(*parts: Part, how: str = "JOIN") -> str:
    """The tables in a row, each joined to the one before it."""
    sql = parts[0].source
    for before, part in pairwise(parts):
        child, parent = (part, before) if before.noun in part.entity.parents else (before, part)
        on = f"ON {child.ref(parent)} = {parent.key}" if part.alias else f"USING ({parent.entity.key})"
        sql += f" {how} {part.source} {on}"
    return sql
