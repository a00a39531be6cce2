"""Tasks of several turns for a model of a million parameters: what to write must be read first.

No single statement solves them reliably, because a cell or an error decides what the next statement is:
which table, which column, which operation. There are four kinds, and each task names its own as its skill:

- `read_first`: a note in another table says what to change, or where the value stands.
- `follow_key`: one table says in which other one, and under which id, the row is.
- `mend_error`: an INSERT fails, as a column that nobody named must not be NULL; its value is looked up.
- `check_change`: what is right next depends on the rows that a change has left.

Without mistakes they take 3 to 5 turns, the answer included. The words are those of level tiny and some more.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from trl_dbbench.data.generate import Level
from trl_dbbench.database import Database
from trl_dbbench.tasks import Cell, Column, Gold, Table, Task
from trl_dbbench.tasks.model import operation_in
from worlds.tiny import LARGEST, NAMES

# two tables of the same columns
PAIRS: tuple[tuple[str, str, tuple[str, str, str]], ...] = (
    ("cats", "dogs", ("age", "weight", "height")),
    ("cars", "bikes", ("speed", "price", "length")),
    ("books", "films", ("pages", "copies", "score")),
    ("teams", "clubs", ("wins", "points", "goals")),
)
ROWS = 3
MOST_ID = 9


@dataclass(frozen=True)
class Scene:
    """Tables of one theme, before a plan has chosen among them; `table` is the one that the split goes by."""

    pair: tuple[Table, Table]
    numbers: tuple[str, str, str]

    @property
    def table(self) -> Table:
        return self.pair[0]


@dataclass(frozen=True)
class Story:
    """A task but for its question: the blanks of the question, the tables, and the gold."""

    blanks: dict[str, str]
    tables: tuple[Table, ...]
    gold: Gold


@dataclass(frozen=True)
class MultiPlan:
    """A template: the kind of its tasks, the questions that ask for it, and what makes the rest."""

    name: str
    kind: str
    questions: tuple[str, ...]
    tell: Callable[[random.Random, Scene], Story]

    @property
    def skills(self) -> frozenset[str]:
        return frozenset({self.kind})


def make_scene(rng: random.Random) -> Scene:
    """A pair of tables in either order, `ROWS` rows each; no name and no id comes twice in the two."""
    first, second, numbers = rng.choice(PAIRS)
    names = rng.sample(NAMES, 2 * ROWS)
    titles = rng.sample([first, second], 2)
    pair = [
        _table(title, {"name": names[part::2], **{each: _numbers(rng) for each in numbers}})
        for part, title in enumerate(titles)
    ]
    return Scene((pair[0], pair[1]), numbers)


def _numbers(rng: random.Random, largest: int = LARGEST) -> list[int]:
    return rng.sample(range(1, largest + 1), ROWS)


def _other_number(rng: random.Random, present: Cell) -> int:
    return rng.choice([number for number in range(1, LARGEST + 1) if number != present])


def _table(name: str, columns: dict[str, list]) -> Table:
    """A table of these columns: whole numbers or short texts."""
    return Table(
        name,
        tuple(
            Column(each, "VARCHAR(20)" if isinstance(cells[0], str) else "INT")
            for each, cells in columns.items()
        ),
        tuple(zip(*columns.values(), strict=True)),
    )


def cell(table: Table, key: Cell, column: str) -> Cell:
    """The cell of `column` in the row whose first cell is `key`."""
    place = [each.name for each in table.columns].index(column)
    return next(row[place] for row in table.rows if row[0] == key)


def _names_of(table: Table) -> list[str]:
    return [str(row[0]) for row in table.rows]


# --- the plans ------------------------------------------------------------------------------------


def _note(rng: random.Random, scene: Scene) -> Story:
    """Each row has a note; those of the other rows look alike, so taking any one of them is no use."""
    table = scene.table
    names = _names_of(table)
    name = rng.choice(names)
    notes = []
    for each in names:
        other = rng.choice([one for one in names if one != each])
        number = rng.choice(scene.numbers)
        forms = [
            f"{number} is {_other_number(rng, cell(table, each, number))}",
            f"{number} as {other}",
            "remove",
        ]
        notes.append(rng.choices(forms, [4, 4, 1])[0])
    what = notes[names.index(name)].split()
    if what == ["remove"]:
        sql = f"DELETE FROM {table.name} WHERE name = '{name}'"
    else:
        value = what[2] if what[1] == "is" else cell(table, what[2], what[0])
        sql = f"UPDATE {table.name} SET {what[0]} = {value} WHERE name = '{name}'"
    shelf = _table("notes", {"name": names, "note": notes})
    return Story({"table": table.name, "name": name}, (table, shelf), Gold(sql=sql))


def _owned(rng: random.Random, scene: Scene, change: bool, by_friend: bool) -> Story:
    """Things without names in two tables; owners says which thing is whose."""
    things = [
        _table(
            table.name,
            {"id": _numbers(rng, MOST_ID), **{each: _numbers(rng) for each in scene.numbers}},
        )
        for table in scene.pair
    ]
    owners = rng.sample(NAMES, ROWS)
    friends = [rng.choice([one for one in owners if one != each]) for each in owners]
    shares = [rng.choice([(table.name, row[0]) for table in things for row in table.rows]) for _ in owners]
    name = rng.choice(owners)
    owner = friends[owners.index(name)] if by_friend else name
    place, id = shares[owners.index(owner)]
    number = rng.choice(scene.numbers)
    (thing,) = (table for table in things if table.name == place)
    blanks = {"name": name, "number": number}
    if change:
        blanks["value"] = str(_other_number(rng, cell(thing, id, number)))
        gold = Gold(sql=f"UPDATE {place} SET {number} = {blanks['value']} WHERE id = {id}")
    else:
        gold = Gold(((cell(thing, id, number),),), f"SELECT {number} FROM {place} WHERE id = {id}")
    columns: dict[str, list] = {
        "name": owners,
        "friend": friends,
        "place": [place for place, _ in shares],
        "id": [id for _, id in shares],
    }
    return Story(blanks, (*things, _table("owners", columns)), gold)


def _missing_cell(rng: random.Random, scene: Scene) -> Story:
    """One of the columns that the question leaves out must be given; which one, the error says."""
    given, *others = rng.sample(scene.numbers, 3)
    required = rng.choice(others)
    names = _names_of(scene.table)
    table = Table(
        scene.table.name,
        tuple(
            Column(each.name, "INT NOT NULL" if each.name == required else each.type)
            for each in scene.table.columns
        ),
        scene.table.rows,
    )
    name = rng.choice([one for one in NAMES if one not in names])
    value = str(rng.randint(1, LARGEST))
    cells = [rng.choice([str(rng.randint(1, LARGEST)), f"as {rng.choice(names)}"]) for _ in others]
    found = cells[others.index(required)]
    extra = cell(table, found.split()[1], required) if found.startswith("as") else found
    return Story(
        {"table": table.name, "name": name, "number": given, "value": value},
        (table, _table("defaults", {"field": others, "cell": cells})),
        Gold(sql=f"INSERT INTO {table.name} (name, {given}, {required}) VALUES ('{name}', {value}, {extra})"),
    )


def _set_or_add(rng: random.Random, scene: Scene) -> Story:
    table, number = scene.table, rng.choice(scene.numbers)
    names = _names_of(table)
    name = rng.choice([rng.choice(names), rng.choice([one for one in NAMES if one not in names])])
    value = str(_other_number(rng, cell(table, name, number) if name in names else None))
    if name in names:
        sql = f"UPDATE {table.name} SET {number} = {value} WHERE name = '{name}'"
    else:
        sql = f"INSERT INTO {table.name} (name, {number}) VALUES ('{name}', {value})"
    return Story(
        {"table": table.name, "name": name, "number": number, "value": value}, (table,), Gold(sql=sql)
    )


def _rename(rng: random.Random, scene: Scene) -> Story:
    """The new name may be there already; then it is there twice, and both rows go."""
    table = scene.table
    names = _names_of(table)
    name = rng.choice(names)
    others = [[one for one in NAMES if one not in names], [one for one in names if one != name]]
    other = rng.choice(rng.choice(others))
    sql = f"UPDATE {table.name} SET name = '{other}' WHERE name = '{name}'"
    if other in names:
        sql = f"DELETE FROM {table.name} WHERE name IN ('{name}', '{other}')"
    return Story({"table": table.name, "name": name, "other": other}, (table,), Gold(sql=sql))


PLANS = (
    MultiPlan(
        "note",
        "read_first",
        (
            "Change {table} as the note of '{name}' says.",
            "Do in {table} what the note of '{name}' says.",
        ),
        _note,
    ),
    MultiPlan(
        "owned",
        "follow_key",
        (
            "What is the {number} of what '{name}' owns?",
            "Show the {number} of the thing that '{name}' owns.",
        ),
        lambda rng, scene: _owned(rng, scene, change=False, by_friend=False),
    ),
    MultiPlan(
        "owned_by_friend",
        "follow_key",
        (
            "What is the {number} of what the friend of '{name}' owns?",
            "Show the {number} of the thing that the friend of '{name}' owns.",
        ),
        lambda rng, scene: _owned(rng, scene, change=False, by_friend=True),
    ),
    MultiPlan(
        "set_owned",
        "follow_key",
        (
            "Set the {number} of what '{name}' owns to {value}.",
            "Change to {value} the {number} of the thing that '{name}' owns.",
        ),
        lambda rng, scene: _owned(rng, scene, change=True, by_friend=False),
    ),
    MultiPlan(
        "missing_cell",
        "mend_error",
        (
            "Add '{name}' with {number} {value} to {table}; defaults has what else it needs.",
            "Insert into {table} '{name}' with {number} {value} and, of defaults, only what it needs.",
        ),
        _missing_cell,
    ),
    MultiPlan(
        "set_or_add",
        "check_change",
        (
            "Set the {number} of '{name}' in {table} to {value}; add '{name}' if missing.",
            "Change in {table} the {number} of '{name}' to {value}, or add '{name}' with it.",
        ),
        _set_or_add,
    ),
    MultiPlan(
        "rename",
        "check_change",
        (
            "Rename '{name}' in {table} to '{other}'; if '{other}' is there twice then, remove both.",
            "Change the name '{name}' in {table} to '{other}'. Remove '{other}' if it is there twice then.",
        ),
        _rename,
    ),
)


def draft(rng: random.Random, scene: Scene, plan: MultiPlan) -> tuple[str, Story]:
    """A question and what lies behind it."""
    story = plan.tell(rng, scene)
    return rng.choice(plan.questions).format(**story.blanks), story


def make_task(database: Database, scene: Scene, plan: MultiPlan, question: str, story: Story) -> Task | None:
    """The task, if its gold SQL gives its answer, or changes something; it always should."""
    sql = story.gold.sql
    assert sql is not None
    task = Task("", question, story.tables, operation_in(sql), story.gold, (plan.kind,))
    with database.sandbox(task) as sandbox:
        before, result = sandbox.state(), sandbox.execute(sql)
        as_said = (
            result.rows == list(story.gold.answer or []) if task.is_question else sandbox.state() != before
        )
    return task if as_said else None


def read_question(question: str) -> tuple[MultiPlan, dict[str, str]] | None:
    """The plan that a question is of, and what stands in its blanks; `None` if it is of none."""
    for plan in PLANS:
        for form in plan.questions:
            seen: set[str] = set()
            pattern = ""
            for part in re.split(r"(\{\w+\})", form):
                if not part.startswith("{"):
                    pattern += re.escape(part)
                elif (blank := part[1:-1]) in seen:
                    pattern += f"(?P={blank})"
                else:
                    seen.add(blank)
                    pattern += rf"(?P<{blank}>\w+)"
            if found := re.fullmatch(pattern, question):
                return plan, found.groupdict()
    return None


def level() -> Level:
    """`generate --level worlds.multi.level`"""
    return Level("multi", PLANS, make_scene, draft, make_task)
