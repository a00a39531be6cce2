"""Gold episodes for a supervised warm start, played by the rollout itself.

An agent that reads its turns from a script plays each task through a `Player`, so a demonstration has the
ids, the mask and the observations that the same turns have in a rollout: there is no second place that lays
out tokens. What it writes is the gold SQL, then the rows it got as the answer.

A teacher need not be perfect. `Habits` gives it bad ones, such as leaving out WHERE, in a share of the tasks
of some skills. A model that learns from it is partly competent: it has seen the right way too, which is what
GRPO needs to find it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from tqdm.auto import tqdm

from trl_dbbench.database import Database, QueryResult
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.dataset import sft_row
from trl_dbbench.episode.gold import execute_alone
from trl_dbbench.episode.judge import Judge, grader_of
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol, Answer, Operation
from trl_dbbench.episode.types import Completion, Episode, Request, Rules
from trl_dbbench.errors import TaskError
from trl_dbbench.grading import SQLGrader
from trl_dbbench.tasks import Task

if TYPE_CHECKING:
    from datasets import Dataset


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


Teacher = Callable[[Task, AgentProtocol, Database, Habits], list[Operation | Answer]]
"""What a teacher writes for a task, turn by turn; the last one is an answer."""


def demonstrate(
    tasks: Sequence[Task],
    chat: ChatFormat,
    database: Database,
    *,
    system_prompt: Opening | None = None,
    habits: Habits = Habits(),
    teacher: Teacher | None = None,
    batch_size: int = 256,
) -> list[Episode]:
    """Plays each task as the teacher would: by default one that writes the gold SQL, then what it gave.

    Raises:
        TaskError: if a task is none that the teacher can do: without gold SQL, or it fails on this database.
    """
    teacher = teacher or gold_actions
    rules = Rules(max_turns=100, max_turn_tokens=100_000, max_completion_length=1_000_000)
    player = Player(chat, database, Judge(database), rules)
    episodes: list[Episode] = []
    with tqdm(total=len(tasks), desc="demonstrations", unit="task") as bar:
        for first in range(0, len(tasks), batch_size):
            batch = tasks[first : first + batch_size]
            scripts = [
                [chat.turn_ids(action) for action in teacher(task, chat.protocol, database, habits)]
                for task in batch
            ]
            starts = [player.start(task, system_prompt=system_prompt) for task in batch]
            episodes += player.play_all(starts, _Script(scripts))
            bar.update(len(batch))
    return episodes


def to_sft_dataset(episodes: Sequence[Episode]) -> Dataset:
    """Rows for TRL's SFTTrainer; see `sft_row`."""
    from datasets import Dataset

    return Dataset.from_list([sft_row(episode) for episode in episodes])


def execute_actions(
    database: Database, task: Task, actions: Sequence[Operation | Answer]
) -> list[QueryResult]:
    """What the statements among the actions give, one after the other.

    Raises:
        EnvironmentFault: if the database fails.
    """
    with database.sandbox(task) as sandbox:
        return [sandbox.execute(action.sql) for action in actions if isinstance(action, Operation)]


def gold_actions(
    task: Task, protocol: AgentProtocol, database: Database, habits: Habits
) -> list[Operation | Answer]:
    """The gold SQL, spoiled or not, then the rows that it gives.

    Raises:
        TaskError: if there is none, or it fails on this database.
    """
    if task.gold.sql is None:
        raise TaskError(f"task '{task.id}' has no gold SQL to demonstrate; add 'sql', or leave the task out.")
    sql = habits.apply(task, task.gold.sql)
    result = execute_alone(database, task, sql)
    if result.error:
        raise TaskError(f"task '{task.id}': its SQL fails on this database: {result.error}")
    if not task.is_question:
        return [Operation(sql), Answer("done", ("done",))]
    grader = grader_of(task, protocol.grader)
    if isinstance(grader, SQLGrader):
        return [Operation(sql), Answer(sql)]
    rows = result.rows or []
    if grader.rows:
        return [Operation(sql), Answer(str(rows), tuple(map(str, rows)))]
    values = tuple(str(row[0]) for row in rows)
    return [Operation(sql), Answer(str(list(values)), values)]


class _Script:
    """An engine that says what stands in the script: `ids[row][turn]`."""

    def __init__(self, ids: Sequence[Sequence[list[int]]]):
        self._ids = ids

    async def generate(self, request: Request) -> Completion:
        ids = self._ids[request.row][request.turn]
        return Completion(ids, [0.0] * len(ids))

    def serve(self, episodes: Sequence[Future]) -> None:
        wait(episodes)
