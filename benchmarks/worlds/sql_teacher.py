"""A teacher that answers a question with one SQL statement (level tiny_sql), with bad habits.

A bad habit sits in one *spot*: the questions that one form of statement answers, on one choice of tables.
There the teacher mostly makes the same mistake, and elsewhere none. A mistake is a slip that the generator
has tried (`generate.slips`), so the wrong statement gives other rows: a join of the wrong kind, no DISTINCT,
the wrong direction, another column. A model that learned from it is wrong in those spots and right elsewhere.
"""

from __future__ import annotations

import random
import re

import sqlglot

from trl_dbbench.data.generate.slips import wrong_statements
from trl_dbbench.database import Database
from trl_dbbench.episode.protocol import AgentProtocol, Answer, Operation
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Task
from worlds.habits import Habits

OFTEN = 0.75
"""How often the teacher makes its mistake in a spot where it has a bad habit."""


def sql_actions(
    task: Task, protocol: AgentProtocol, database: Database, habits: Habits
) -> list[Operation | Answer]:
    """The gold SQL as the answer, or the teacher's mistake in its place.

    Args:
        habits: `share` is that of the spots where the teacher has a bad habit; with 0 it is always right.

    Raises:
        TaskError: if the task is no question with gold SQL.
    """
    if task.gold.sql is None or not task.is_question:
        raise TaskError(
            f"task '{task.id}' is not a question with 'sql', which this teacher answers with; leave it out."
        )
    return [Answer(_mistaken(task, habits) or task.gold.sql)]


def _mistaken(task: Task, habits: Habits) -> str | None:
    """What the teacher writes by mistake, if it has a bad habit here and makes it this time."""
    assert task.gold.sql is not None
    spot = f"{habits.seed}/{spot_of(task)}"
    excused = habits.skills and habits.skills.isdisjoint(task.skills)
    slips = random.Random(f"{habits.seed}/{task.id}/{task.question}").random() < OFTEN
    if excused or not slips or random.Random(spot).random() >= habits.share:
        return None
    tree = sqlglot.parse_one(task.gold.sql, dialect="mysql")
    wrong = {_mistake(task.gold.sql, each): each for each in wrong_statements(tree, task.tables)}
    # the same mistake on every task of the spot, as far as it can be made there
    return wrong[min(wrong, key=lambda mistake: random.Random(f"{spot}/{mistake}").random())]


def spot_of(task: Task) -> str:
    """The form of a task's gold SQL, whatever its columns, values and direction, and the tables it names."""
    sql = task.gold.sql or ""
    words = [word for word in re.findall(r"\b[A-Z]+\b", sql) if word != "DESC"]
    tables = [table.name for table in task.tables if re.search(rf"\b{table.name}\b", sql)]
    return " ".join([*words, *sorted(tables)])


def _mistake(gold: str, wrong: str) -> tuple[int, str, int]:
    """What tells a wrong statement from the right one, whatever its columns: where they part, the keyword
    there, and how many words it has more."""
    words, others = (re.findall(r"\w+|[^\w\s]", sql) for sql in (gold, wrong))
    pairs = [*zip(words, others, strict=False), ("", others[-1])]
    place = next(place for place, (word, other) in enumerate(pairs) if word != other)
    return place, pairs[place][1] if pairs[place][1].isupper() else "", len(others) - len(words)
