"""A teacher for the tasks of several turns (`worlds.multi`), with bad habits in single turns.

It knows no more than an agent does: the question, and what the database has said so far. Each plan has a
script, a generator that yields a statement and gets its result; when it ends, the teacher answers.

A bad habit sits in one *spot*: a step of a plan, on tasks about one table. There the teacher mostly makes
the same mistake, and elsewhere none: it guesses instead of reading, reads the wrong row, writes to the wrong
column, answers too early, forgets to check. A model that has learned from it is wrong in those single turns,
while all others of the episode are right, so what went wrong is a turn, not an episode.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from trl_dbbench.database import Database, QueryResult
from trl_dbbench.episode.protocol import AgentProtocol, Answer, Operation
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Task
from worlds.habits import Habits
from worlds.multi import read_question

OFTEN = 0.75
"""How often the teacher makes its mistake in a spot where it has a bad habit."""

DONE = Answer("done", ("done",))


@dataclass
class Choice:
    """What the teacher writes at a step: what is right, or its bad habit there."""

    habits: Habits
    task: Task
    plan: str

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.habits.seed}/{self.task.id}/{self.task.question}")
        excused = self.habits.skills and self.habits.skills.isdisjoint(self.task.skills)
        self._share = 0.0 if excused else self.habits.share

    def __call__(self, step: str, right: str, *mistakes: str) -> str:
        """`right`, or one of `mistakes`; an empty text ends the script."""
        spot = random.Random(f"{self.habits.seed}/{self.plan}/{step}/{self.task.tables[0].name}")
        bad, mistake = spot.random() < self._share, spot.choice(mistakes)
        slips = self._rng.random() < OFTEN
        return mistake if bad and slips else right

    @property
    def numbers(self) -> list[str]:
        """The columns of the first table that hold numbers, but for the id."""
        return [c.name for c in self.task.tables[0].columns if c.type.startswith("INT") and c.name != "id"]

    def other(self, number: str) -> str:
        """The column that the teacher takes for `number` by mistake."""
        numbers = self.numbers
        return numbers[(numbers.index(number) + 1) % len(numbers)]

    def guess(self) -> int:
        return self._rng.randint(1, 9)


Script = Generator[str, QueryResult, None]
EARLY = ""
"""In the place of a statement: the teacher stops and answers."""


def _cells(result: QueryResult) -> tuple[Any, ...]:
    """The first row; empty where there is none."""
    return (result.rows or [()])[0]


def _note(choose: Choice, table: str, name: str) -> Script:
    guess = f"UPDATE {table} SET {choose.numbers[0]} = {choose.guess()} WHERE name = '{name}'"
    seen = yield choose(
        "read", f"SELECT note FROM notes WHERE name = '{name}'", "SELECT note FROM notes", guess
    )
    if not (cells := _cells(seen)):
        return
    words = str(cells[0]).split()
    if words == ["remove"]:
        right = f"DELETE FROM {table} WHERE name = '{name}'"
        yield choose("remove", right, f"DELETE FROM {table}", EARLY)
        return
    number, how, value = words
    if how == "as":
        right = f"SELECT {number} FROM {table} WHERE name = '{value}'"
        wrong = f"SELECT {choose.other(number)} FROM {table} WHERE name = '{value}'"
        seen = yield choose("look", right, wrong, EARLY)
        if not (cells := _cells(seen)):
            return
        value = cells[0]
    wrong = f"UPDATE {table} SET {choose.other(number)} = {value} WHERE name = '{name}'"
    yield choose(
        f"write {how}",
        f"UPDATE {table} SET {number} = {value} WHERE name = '{name}'",
        wrong,
        f"UPDATE {table} SET {number} = {value}",
        EARLY,
    )


def _owned(choose: Choice, number: str, name: str, value: str | None = None, friend: bool = False) -> Script:
    owner = name
    if friend:
        right = f"SELECT friend FROM owners WHERE name = '{name}'"
        seen = yield choose(
            "friend",
            right,
            "SELECT friend FROM owners",
            f"SELECT place, id FROM owners WHERE name = '{name}'",
        )
        if len(cells := _cells(seen)) != 1:
            return
        owner = cells[0]
    first, second = (table.name for table in choose.task.tables[:2])
    wrong = f"SELECT {number} FROM {first} WHERE id = {choose.guess()}"
    seen = yield choose(
        "find",
        f"SELECT place, id FROM owners WHERE name = '{owner}'",
        "SELECT place, id FROM owners",
        wrong
        if value is None
        else wrong.replace(f"SELECT {number} FROM {first}", f"UPDATE {first} SET {number} = {value}"),
    )
    if len(cells := _cells(seen)) != 2:
        return
    place, id = cells

    def last(place: str, number: str, where: str) -> str:
        if value is None:
            return f"SELECT {number} FROM {place}{where}"
        return f"UPDATE {place} SET {number} = {value}{where}"

    where = f" WHERE id = {id}"
    yield choose(
        "fetch",
        last(place, number, where),
        last(second if place == first else first, number, where),
        last(place, choose.other(number), where),
        last(place, number, ""),
        EARLY,
    )


def _missing_cell(choose: Choice, name: str, number: str, value: str, table: str) -> Script:
    first = f"INSERT INTO {table} (name, {number}) VALUES ('{name}', {value})"
    seen = yield first
    if not seen.error or not (found := re.search(r"'(\w+)'", seen.error)):
        return
    needed = found[1]

    def insert(cell: object) -> str:
        return f"INSERT INTO {table} (name, {number}, {needed}) VALUES ('{name}', {value}, {cell})"

    (unneeded,) = {*choose.numbers} - {number, needed}
    seen = yield choose(
        "read",
        f"SELECT cell FROM defaults WHERE field = '{needed}'",
        f"SELECT cell FROM defaults WHERE field = '{unneeded}'",
        insert(choose.guess()),
        EARLY,
    )
    if not (cells := _cells(seen)):
        return
    words = str(cells[0]).split()
    if words[0] == "as":
        right = f"SELECT {needed} FROM {table} WHERE name = '{words[1]}'"
        seen = yield choose(
            "look", right, f"SELECT {number} FROM {table} WHERE name = '{words[1]}'", insert(choose.guess())
        )
        if not (cells := _cells(seen)):
            return
        words = [str(cells[0])]
    wrong = insert(words[0]).replace(f"(name, {number}, {needed})", f"(name, {needed}, {number})")
    yield choose("again", insert(words[0]), insert(value), wrong, EARLY)


def _set_or_add(choose: Choice, name: str, number: str, value: str, table: str) -> Script:
    change = f"UPDATE {table} SET {number} = {value}"
    add = f"INSERT INTO {table} (name, {number}) VALUES ('{name}', {value})"
    yield choose("change", f"{change} WHERE name = '{name}'", change, add)
    seen = yield choose("check", f"SELECT {number} FROM {table} WHERE name = '{name}'", EARLY, add)
    if seen.rows == []:
        wrong = add.replace(number, choose.other(number))
        yield choose("add", add, wrong, EARLY)


def _rename(choose: Choice, name: str, other: str, table: str) -> Script:
    change = f"UPDATE {table} SET name = '{other}'"
    yield choose("change", f"{change} WHERE name = '{name}'", change)
    remove = f"DELETE FROM {table} WHERE name = '{other}'"
    seen = yield choose("check", f"SELECT COUNT(*) FROM {table} WHERE name = '{other}'", EARLY, remove)
    if _cells(seen) == (2,):
        yield choose("remove", remove, f"DELETE FROM {table}", EARLY)


SCRIPTS: dict[str, Callable[..., Script]] = {
    "note": _note,
    "owned": _owned,
    "owned_by_friend": lambda choose, **blanks: _owned(choose, **blanks, friend=True),
    "set_owned": _owned,
    "missing_cell": _missing_cell,
    "set_or_add": _set_or_add,
    "rename": _rename,
}


def multi_actions(
    task: Task, protocol: AgentProtocol, database: Database, habits: Habits
) -> list[Operation | Answer]:
    """What the teacher writes for a task of level multi, turn by turn.

    Args:
        habits: `share` is that of the spots where the teacher has a bad habit; with 0 it is always right.

    Raises:
        TaskError: if the question is none of level multi.
    """
    if (read := read_question(task.question)) is None:
        raise TaskError(f"task '{task.id}' is none of level multi; leave the teacher out.")
    plan, blanks = read
    script = SCRIPTS[plan.name](Choice(habits, task, plan.name), **blanks)
    actions: list[Operation | Answer] = []
    seen: QueryResult | None = None
    with database.sandbox(task) as sandbox:
        try:
            statement = next(script)
            while statement != EARLY:
                actions.append(Operation(statement))
                seen = sandbox.execute(statement)
                statement = script.send(seen)
        except StopIteration:
            pass
    if not task.is_question:
        return [*actions, DONE]
    rows = (seen.rows if seen else None) or []
    return [*actions, Answer(str(rows), tuple(map(str, rows)))]
