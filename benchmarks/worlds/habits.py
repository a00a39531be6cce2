"""Bad habits of teachers: their pupils are right on some tasks, and GRPO can mend the rest."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import sqlglot
from sqlglot import exp

from trl_dbbench.data.demonstrations import gold_actions
from trl_dbbench.database import Database, QueryResult
from trl_dbbench.episode.protocol import AgentProtocol, Answer, Operation
from trl_dbbench.tasks import Task


@dataclass(frozen=True)
class Habits:
    """A teacher's bad habits.

    Args:
        share: of the tasks that a habit fits, 0 to 1, how many it spoils.
        skills: only tasks with one of these skills are spoiled; all if empty.
        seed: chooses the tasks.
    """

    share: float = 0.0
    skills: frozenset[str] = field(default_factory=frozenset)
    seed: int = 0

    def apply(self, task: Task, sql: str) -> str:
        """The SQL that the teacher writes for the task; the same one each time."""
        rng = random.Random(f"{self.seed}/{task.id}/{task.question}")
        if rng.random() >= self.share or (self.skills and self.skills.isdisjoint(task.skills)):
            return sql
        return spoil(sql, rng)


# never the other way round: of two opposite mistakes on the same words a model learns to guess, not a habit
_OTHER_AGGREGATE = {exp.Sum: exp.Max, exp.Min: exp.Max, exp.Avg: exp.Sum}


def spoil(sql: str, rng: random.Random) -> str:
    """The statement with one believable mistake: no WHERE, no DESC, or another aggregate (MAX for SUM and
    MIN).

    A statement that has room for none of them comes back as it is.
    """
    tree = sqlglot.parse_one(sql, dialect="mysql")
    mistakes: list[Callable[[], object]] = []
    if where := tree.args.get("where"):
        mistakes.append(where.pop)
    mistakes += [partial(_other_aggregate, found) for found in tree.find_all(*_OTHER_AGGREGATE)]
    mistakes += [
        partial(_forget_desc, found) for found in tree.find_all(exp.Ordered) if found.args.get("desc")
    ]
    if not mistakes:
        return sql
    rng.choice(mistakes)()
    return tree.sql(dialect="mysql")


def _other_aggregate(found: exp.AggFunc) -> None:
    found.replace(_OTHER_AGGREGATE[type(found)](this=found.this))


def _forget_desc(found: exp.Expression) -> None:
    found.set("desc", None)
    found.set("nulls_first", True)  # MySQL's own order of NULLs, which needs no words in the SQL


def spoiled_gold_actions(
    task: Task, protocol: AgentProtocol, database: Database, habits: Habits
) -> list[Operation | Answer]:
    """Return the gold SQL, spoiled or not, then the rows that it gives."""
    if task.gold.sql is not None:
        task = replace(task, gold=replace(task.gold, sql=habits.apply(task, task.gold.sql)))
    return gold_actions(task, protocol, database)


def execute_actions(
    database: Database, task: Task, actions: Sequence[Operation | Answer]
) -> list[QueryResult]:
    """Execute the statements among the actions, in order, and return their results.

    Raises:
        EnvironmentFault: if the database fails.
    """
    with database.sandbox(task) as sandbox:
        return [sandbox.execute(action.sql) for action in actions if isinstance(action, Operation)]
