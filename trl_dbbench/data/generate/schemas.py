"""Schemas of several tables linked by keys, and rows for them.

A schema is a list of entities, written as text (`read_schemas`). The first column of each table is its key,
named after the entity; a column of the same name in another table refers to it, so a prompt's column names
tell how tables are joined. The rows are made so that joins matter: some rows have no partner, others several.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_dbbench.data.generate.themes import random_day, words
from trl_dbbench.tasks import Cell, Column, Table


@dataclass(frozen=True)
class Field:
    """A column that is not a key.

    By its role, a `name` identifies a row, a `kind` is shared by some rows, and a `number`, `money` or `day`
    can be compared.
    """

    name: str
    role: str
    words: tuple[str, ...] = ()
    low: int = 0
    high: int = 0

    @property
    def type(self) -> str:
        return {"number": "INT", "money": "DECIMAL(8,2)", "day": "DATE"}.get(self.role, "VARCHAR(60)")

    def cells(self, rng: random.Random, size: int) -> list[Cell]:
        if self.role == "name":
            return list(rng.sample(self.words, size))
        if self.role == "kind":
            few = rng.sample(self.words, min(len(self.words), rng.randint(2, 4)))
            return [rng.choice(few) for _ in range(size)]
        if self.role == "number":
            return list(rng.sample(range(self.low, self.high + 1), size))
        if self.role == "money":
            return [each / 4 for each in rng.sample(range(4 * self.low, 4 * self.high + 1), size)]
        return [random_day(rng) for _ in range(size)]


@dataclass(frozen=True)
class Entity:
    """A table of a schema.

    Args:
        table: its name, the plural of `noun`.
        parents: nouns of the entities that each row belongs to.
        superior: noun for the row of the same table that a row refers to, such as `manager`.
    """

    table: str
    noun: str
    fields: tuple[Field, ...]
    parents: tuple[str, ...] = ()
    superior: str = ""

    @property
    def key(self) -> str:
        return f"{self.noun}_id"


@dataclass(frozen=True)
class World:
    """The tables of a task; `table` is the first one, which decides the split."""

    entities: tuple[Entity, ...]
    tables: tuple[Table, ...]

    @property
    def table(self) -> Table:
        return self.tables[0]


def make_world(
    rng: random.Random,
    schemas: Sequence[Sequence[Entity]],
    most_tables: int,
    rows: tuple[int, int],
    most_id: int,
) -> World:
    """Return two to `most_tables` tables of one schema, including each table that a column refers to."""
    schema = rng.choice(schemas)
    by_noun = {entity.noun: entity for entity in schema}

    def with_parents(entity: Entity) -> set[str]:
        return {entity.noun}.union(*(with_parents(by_noun[parent]) for parent in entity.parents))

    wanted = rng.randint(2, most_tables)
    chosen: set[str] = set()
    children = [entity for entity in schema if entity.parents]
    for entity in rng.sample(children, len(children)):
        more = chosen | with_parents(entity)
        if not chosen or len(more) <= wanted:
            chosen = more
    entities = [entity for entity in schema if entity.noun in chosen]
    made: dict[str, Table] = {}
    for entity in entities:  # parents come first in a schema
        # children tend to have more rows than parents
        size = rng.randint((rows[0] + rows[1]) // 2 if entity.parents else rows[0], rows[1])
        made[entity.noun] = _rows(rng, entity, made, size, most_id)
    rng.shuffle(entities)
    return World(tuple(entities), tuple(made[entity.noun] for entity in entities))


def _rows(rng: random.Random, entity: Entity, made: dict[str, Table], size: int, most_id: int) -> Table:
    ids = rng.sample(range(1, most_id + 1), size)
    columns: list[tuple[Column, list[Any]]] = [(Column(entity.key, "INT"), ids)]
    columns += [
        (Column(f"{parent}_id", "INT"), _references(rng, made[parent], size)) for parent in entity.parents
    ]
    columns += [(Column(field.name, field.type), field.cells(rng, size)) for field in entity.fields]
    if entity.superior:  # a hierarchy: each row refers to an earlier one, the first to none
        above: list[Any] = [None, *(rng.choice(ids[:place]) for place in range(1, size))]
        columns.append((Column(f"{entity.superior}_id", "INT"), above))
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    rng.shuffle(rows)
    return Table(entity.table, tuple(column for column, _ in columns), tuple(rows))


def _references(rng: random.Random, parent: Table, size: int) -> list[Any]:
    """Return keys from only some of the parent's rows, so that some have no partner and others several."""
    ids = [row[0] for row in parent.rows]
    some = rng.sample(ids, rng.randint(2, max(2, len(ids) - 1)))
    return [rng.choice(some) for _ in range(size)]


# --- schemas --------------------------------------------------------------------------------------

_LISTS = {
    "PEOPLE": """Alma Frank, Bruno Keller, Carla Rossi, Dora Silva, Emil Larsen, Farid Haddad, Greta Weber,
        Hiro Tanaka, Ivan Petrov, Jonas Brandt, Karin Nowak, Liam Murphy, Malik Okafor, Nadia Costa,
        Oscar Marino, Priya Sharma, Rosa Castro, Selma Kaya, Tomas Novak, Wanda Fischer""",
    "CITIES": "Oslo, Lisbon, Nairobi, Quito, Osaka, Porto, Turin, Boston, Lima, Hanoi",
    "NAMES": """ann, ben, carl, dora, emil, finn, gina, hugo, ida, jack, kim, leo, mia, nora, olaf, pia,
        rosa, sam, tina, zoe""",
}


def read_schemas(text: str) -> tuple[tuple[Entity, ...], ...]:
    """Return the schemas in a text, separated by empty lines. An entity comes after its parents.

    `books: book of author below editor` is the table of books; each belongs to an author and may refer to
    another book, its editor. Its columns follow, each with its role and its words or bounds.
    """
    return tuple(tuple(_entities(schema)) for schema in text.strip().split("\n\n"))


def _entities(schema: str) -> Iterator[Entity]:
    for entry in re.split(r"\n(?! )", schema):
        head, *columns = entry.splitlines()
        found = re.fullmatch(r"(\w+): (\w+)(?: of ([\w, ]+?))?(?: below (\w+))?", head)
        assert found is not None, head
        table, noun, parents, superior = found.groups()
        yield Entity(table, noun, tuple(map(_field, columns)), tuple(words(parents or "")), superior or "")


def _field(line: str) -> Field:
    column, _, rest = line.strip().partition(": ")
    role, _, values = rest.partition(" ")
    if role in ("name", "kind"):
        return Field(column, role, tuple(words(_LISTS.get(values, values))))
    low, high = map(int, values.split(" to ")) if values else (0, 0)
    return Field(column, role, low=low, high=high)


SCHEMAS = read_schemas(Path(__file__).with_name("schemas.txt").read_text(encoding="utf-8"))
"""The eight schemas of level relational."""
