"""Level relational in few words, for a model of half a million parameters that answers with SQL.

Schemas have two or three small tables with short names. Tables have no aliases and are joined by USING.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from trl_dbbench.data.generate import Level, relational
from trl_dbbench.data.generate.relational import Col, Condition, Draft, Order, Part
from trl_dbbench.data.generate.schemas import Entity, World, make_world, read_schemas
from trl_dbbench.data.generate.tables import literal
from trl_dbbench.tasks import Table


class ShortPart(Part):
    """A table whose columns are called by their names."""

    def label(self, column: str) -> str:
        return column


class ShortDraft(Draft):
    """The style of this level."""

    COPIES = ("a", "")

    def made(self, entity: Entity, table: Table, alias: str) -> Part:
        return ShortPart(entity, table, alias)

    def condition(self, part: Part) -> Condition | None:
        if not (found := part.cols("kind", "number")):
            return None
        col = self.rng.choice(found)
        if col.role == "kind":
            value = literal(self.rng.choice(col.cells))
            return Condition(f"{col} = {value}", f"with {col.label} {value}")
        sign = self.rng.choice("><")
        value, word = literal(self.cell(col, sign)), "above" if sign == ">" else "below"
        return Condition(f"{col} {sign} {value}", f"with {col.label} {word} {value}")

    def order(self, col: Col) -> Order:
        down = self.rng.random() < 0.4
        how = "descending" if down else "ascending"
        return Order.of(col, down, how, f"by {col.label} {how}")


SCHEMAS = read_schemas(
    """
owners: owner
  owner: name NAMES
  city: kind oslo, rome, paris, lima, cairo
  age: number 1 to 30
pets: pet of owner
  pet: name cat, dog, horse, rabbit, parrot, turtle, goat, duck
  weight: number 1 to 30
  speed: number 1 to 30
walks: walk of owner
  weather: kind rain, sun, snow, wind
  length: number 1 to 30
  pause: number 1 to 30

singers: singer below coach
  singer: name NAMES
  style: kind jazz, rock, folk, soul, pop
  fans: number 1 to 30
songs: song of singer
  song: name river, dawn, moon, ocean, fire, winter, garden, mirror
  minutes: number 1 to 30
  sales: number 1 to 30
shows: show of singer
  hall: kind north, south, east, west
  guests: number 1 to 30
  price: number 1 to 30

workers: worker below boss
  worker: name NAMES
  job: kind cook, nurse, pilot, baker, farmer
  salary: number 1 to 30
tools: tool of worker
  tool: name saw, drill, hammer, knife, brush, shovel, axe, ladder
  size: number 1 to 30
  cost: number 1 to 30
trips: trip of worker
  place: kind beach, lake, forest, desert
  days: number 1 to 30
  miles: number 1 to 30

teams: team
  team: name lions, bears, foxes, wolves, eagles, sharks, tigers, hawks
  sport: kind tennis, golf, hockey, chess, rugby
  wins: number 1 to 30
players: player of team
  player: name NAMES
  goals: number 1 to 30
  height: number 1 to 30
games: game of team
  month: kind may, june, july, march
  score: number 1 to 30
  fouls: number 1 to 30
"""
)

WORDINGS = {
    sql: tuple(each.removeprefix("  * ") for each in wordings)
    for sql, *wordings in (
        entry.splitlines()
        for entry in """
SELECT DISTINCT {p.name} FROM {pc} WHERE {w.sql} ORDER BY {o.sql}
  * Which {p.nouns} have a {c.noun} {w.text}? Show each {p.name} once, {s}.
  * List every {p.name} once who has a {c.noun} {w.text}, {s}.

SELECT {c.name}, {p.name} FROM {pc} WHERE {v.sql} ORDER BY {o.sql}
  * Show {c.name} and {p.name} of {c.nouns} of {p.nouns} {v.text}, {s}.
  * Which {c.nouns} are of {p.nouns} {v.text}? Show {c.name} and {p.name}, {s}.

SELECT {k}, {f}({n}) FROM {pc} GROUP BY {k} ORDER BY {o.sql}
  * Show each {k} of {p.nouns} with {c.nouns} and the {word} {n} of these, {s}.
  * For each {k} of {p.nouns} with {c.nouns}, show {k} and {word} {n}, {s}.

SELECT {p.name} FROM {left} WHERE {c.key} IS NULL ORDER BY {o.sql}
  * Which {p.nouns} have no {c.noun}? Show {p.name}, {s}.
  * List every {p.name} without {c.nouns}, {s}.

SELECT {p.name}, COUNT({c.key}) FROM {left} GROUP BY {p.name} ORDER BY {o.sql}
  * Show {p.name} and number of {c.nouns} of all {p.nouns}, 0 if none, {s}.
  * How many {c.nouns} has each {p.name}? Also show 0, {s}.

SELECT {a.name}, {b.name} FROM {ab} ORDER BY {o.sql}
  * Show each {a.noun} that has a {boss}, and the {boss}, {s}.
  * List every {a.noun} with a {boss}, and that {boss}, {s}.

SELECT {a.name} FROM {ab} WHERE {number} > {other} ORDER BY {o.sql}
  * Which {a.nouns} have more {pn} than the {boss}? Show the {a.noun}, {s}.
  * List each {a.noun} with {pn} above the {boss}, {s}.

SELECT {a.name} FROM {ab} WHERE {b.name} = '{top}' ORDER BY {o.sql}
  * Which {a.nouns} have the {boss} '{top}'? Show the {a.noun}, {s}.
  * List each {a.noun} whose {boss} is '{top}', {s}.

SELECT {ref} FROM {c.source} INTERSECT SELECT {dref} FROM {d.source} ORDER BY {o.plain}
  * Which {ref} are in both {c.nouns} and {d.nouns}? Each once, {s}.
  * Show each {ref} once that {c.nouns} and {d.nouns} share, {s}.

SELECT {ref} FROM {c.source} EXCEPT SELECT {dref} FROM {d.source} ORDER BY {o.plain}
  * Which {ref} are in {c.nouns} but not in {d.nouns}? Each once, {s}.
  * Show each {ref} once of {c.nouns} that {d.nouns} lack, {s}.

SELECT {ref} FROM {c.source} UNION SELECT {dref} FROM {d.source} ORDER BY {o.plain}
  * Which {ref} are in {c.nouns} or {d.nouns}? Each once, {s}.
  * Show each {ref} once of {c.nouns} or {d.nouns}, {s}.

SELECT {p.name}, RANK() OVER (ORDER BY SUM({n}) DESC) FROM {pc} GROUP BY {p.name} ORDER BY {o.sql}
  * Rank {p.nouns} with {c.nouns} by total {n}, highest is 1. Show {p.name} and rank, {s}.
  * Of {p.nouns} with {c.nouns}, show {p.name} and rank by total {n}, 1 is highest, {s}.

SELECT {c.name}, SUM({n}) OVER (PARTITION BY {ref}) FROM {c.source} ORDER BY {o.sql}
  * Show each {c.name} and the total {n} of {c.nouns} of its {p.noun}, {s}.
  * List each {c.name} with the total {n} of its {ref}, {s}.

WITH totals AS (SELECT {ref}, SUM({n}) AS total FROM {c.source} GROUP BY {ref}) SELECT {edge}(total) FROM totals
  * What is the {extreme} total {n} of {c.nouns} of one {p.noun} that has some?
  * Total {n} of {c.nouns} per {ref}: show the {extreme} one.

SELECT {c.name} FROM {c.source} WHERE {n} > (SELECT AVG({i_n}) FROM {i.source} WHERE {i_ref} = {ref}) ORDER BY {o.sql}
  * Which {c.nouns} have {n.label} above the average of their {p.noun}? Show {c.name.label}, {s}.
  * List each {c.name.label} with {n.label} above the average of the same {p.noun}, {s}.
""".strip().split("\n\n")
    )
}
"""The SQL of a form of level relational -> short wordings of its question."""

FORMS = tuple(replace(form, wordings=WORDINGS[form.sql]) for form in relational.FORMS if form.sql in WORDINGS)


def draft(rng: random.Random, world: World, form: relational.Form) -> tuple[str, str] | None:
    return relational.draft(rng, world, form, ShortDraft)


def level() -> Level:
    """`generate --level worlds.tiny_sql.level`"""
    make = partial(make_world, schemas=SCHEMAS, most_tables=3, rows=(3, 6), most_id=9)
    return Level("tiny_sql", FORMS, make, draft, relational.make_task)
