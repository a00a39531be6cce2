"""Says whether an episode ended right: its answer against the gold answer, or its tables against the gold's.

Where answers are SQL, both the answer and the gold SQL are executed on the tables as they were at the start,
and what they give is compared. Where the gold is results, what the answer gives has to be one of them. No
answer is right beside a gold that gives no rows, or only NULLs: a wrong filter gives that, too.

A change is judged by its full final tables: the gold SQL is executed on a sandbox of its own, once per
task, and the columns and rows that it leaves are compared. The published five-digit hash is computed beside
it, for comparison with published numbers only: it collides, and sees neither the names of columns nor rows
beyond the 170th.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from trl_dbbench.database import Database, Sandbox, State
from trl_dbbench.episode.gold import GoldState, gold_state, limits_beside, whole_result
from trl_dbbench.episode.protocol import AgentProtocol, Answer
from trl_dbbench.errors import ConfigError, EnvironmentFault, TaskError
from trl_dbbench.grading import GRADERS, Grader, SQLGrader, get_grader
from trl_dbbench.grading.rows import same_state
from trl_dbbench.grading.scorers import Result
from trl_dbbench.grading.states import state_digest, state_hash
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.model import TablesKey
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Key = tuple[TablesKey, str]

_MAX_REMEMBERED = 4096
"""States, and results, that are kept in memory; making one again costs a sandbox and a statement."""

_MAX_KEPT_ROWS = 1000
_MAX_KEPT_CHARACTERS = 100_000
"""Larger results are made again each time."""


@dataclass(frozen=True)
class Verdict:
    """`right` is what rewards and accuracy use.

    `published_right` is what the benchmark's own grader says of a change; `None` for questions and where
    no hash is published. `state` is the digest of the tables that a change was judged by, in full: no part of
    the judgement, but it lets `replay` see whether they come out again.
    """

    right: bool
    published_right: bool | None = None
    state: str | None = field(default=None, compare=False)


class _Remembered(Generic[T]):
    """What gold SQL gave; the ones that were wanted last are kept. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, T] = OrderedDict()
        self._making: dict[_Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: _Key, make: Callable[[], T], keep: Callable[[T], bool]) -> T:
        """What is kept, or else is made now; whoever wants the same meanwhile waits for it.

        Args:
            keep: whether it is to be remembered.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                if key in self._kept:
                    return self._kept[key]
            try:
                made = make()
                if keep(made):
                    self._put(key, made)
            finally:
                with self._lock:
                    self._making.pop(key, None)
        return made

    def _put(self, key: _Key, value: T) -> None:
        with self._lock:
            self._kept[key] = value
            if len(self._kept) > _MAX_REMEMBERED:
                self._kept.popitem(last=False)


def _key(task: Task, sql: str) -> _Key:
    # by content: ids are unique in a file only, and a judge may see the tasks of several
    return task.tables_key, sql


class Judge:
    """Judges episodes on one database. Thread-safe.

    Where the gold SQL of a change fails on this database (MariaDB refuses two published ones in its
    strict mode), the published hash decides; without one, the episode cannot be judged.

    Args:
        database: where gold SQL is executed.
        grader: judges all questions instead of their own or the protocol's grader: a name of
            `grading.GRADERS` or the dotted path of your own.

    Raises:
        ConfigError: if there is no such grader.
    """

    def __init__(self, database: Database, grader: str | None = None):
        self._database = database
        self._grader = None if grader is None else get_grader(grader)
        self._states: _Remembered[GoldState] = _Remembered()
        self._results: _Remembered[Result] = _Remembered()

    def __call__(
        self,
        task: Task,
        answer: Answer,
        sandbox: Sandbox,
        protocol_grader: str,
        statements: Sequence[str] = (),
    ) -> Verdict:
        """
        Args:
            task: what was asked.
            answer: what the agent committed.
            sandbox: as the agent left it.
            protocol_grader: for tasks that leave the grader to the protocol; see `grader_of`.
            statements: what the agent has executed; where answers are SQL, an empty one is the last of these.

        Raises:
            EnvironmentFault: if the database fails, or the gold SQL on it.
        """
        if task.is_question:
            grader = self.grader_for(task, protocol_grader)
            if isinstance(grader, SQLGrader):
                return Verdict(self._sql_right(task, answer.text or "".join(statements[-1:]), grader))
            return Verdict(self._answer_right(task, answer, grader))
        state = sandbox.state()
        published, digest = published_right(task, state), state_digest(state)
        gold = self.gold_state(task)
        if gold.state is None:
            if published is None:
                raise EnvironmentFault(f"the gold SQL fails on this database: {gold.error}")
            return Verdict(published, published, digest)
        return Verdict(same_state(state, gold.state), published, digest)

    def grader_for(self, task: Task, protocol_grader: str) -> Grader | SQLGrader:
        """Who judges the answer to a question."""
        return self._grader or grader_of(task, protocol_grader)

    def check_task(self, task: Task, protocol: AgentProtocol) -> None:
        """Finds a task whose episodes could not be judged.

        Args:
            protocol: in which they are played.

        Raises:
            TaskError: the database does not have its dialect, or the answer is SQL and the gold is not.
            ConfigError: the protocol does not ask for SQL, which the task's grader judges.
        """
        self._database.check_dialect(task)
        if not task.is_question:
            return
        asked, grader = get_grader(protocol.grader), self.grader_for(task, protocol.grader)
        if not isinstance(grader, SQLGrader):
            return
        if not isinstance(asked, SQLGrader):
            raise ConfigError(
                f"task '{task.id}' is answered with SQL, which its grader {grader.name} executes, and the "
                f"protocol {protocol.name} asks for something else. Set protocol: text_sql or tools_sql, or "
                "another grader."
            )
        if task.gold.sql is None and not task.gold.results:
            raise TaskError(
                f"task '{task.id}' has no gold SQL, which the grader {grader.name} of the protocol "
                f"{protocol.name} needs. Add 'sql', or set protocol: text or tools."
            )

    def _answer_right(self, task: Task, answer: Answer, grader: Grader) -> bool:
        if task.gold.answer is None:
            raise EnvironmentFault(f"the grader {grader.name} needs a gold answer, and the task has only SQL")
        gold = list(task.gold.answer) if self._grader is None else grader.gold(task.gold.answer)
        return bool(grader.judge(answer.for_grader(grader.name), gold))

    def _sql_right(self, task: Task, sql: str, grader: SQLGrader) -> bool:
        """Of a suite, the gold may say nothing on some databases, where an answer has to do the same."""
        told = False
        for each in task.on_each_database():
            golds = self._gold_results(each, grader)
            if not sql.strip() or len(sql) > MAX_STATEMENT_CHARACTERS:
                return False
            telling = [gold for gold in golds if not gold.says_nothing]
            limits = limits_beside(telling or golds, grader)
            predicted, _ = whole_result(self._database, each, grader.rewrite(sql), limits)
            if predicted is None or not grader.right(predicted, telling or golds, task.gold.sql):
                return False
            told = told or bool(telling)
        return told

    def _gold_results(self, task: Task, grader: SQLGrader) -> Sequence[Result]:
        """Of which an answer has to give one."""
        if task.gold.results:
            return task.gold.results
        if task.gold.sql is None:
            raise EnvironmentFault(f"the grader {grader.name} needs gold SQL, which the task has not")
        return [self._gold_result(task, grader.rewrite(task.gold.sql))]

    def _gold_result(self, task: Task, sql: str) -> Result:
        def make() -> Result:
            gold, problem = whole_result(self._database, task, sql)
            if gold is None:
                raise EnvironmentFault(f"the gold SQL cannot be judged by: {problem}")
            return gold

        return self._results.get(_key(task, sql), make, _is_small)

    def gold_state(self, task: Task) -> GoldState:
        """The tables that a right change leaves; remembered, but for one that ran out of time.

        Raises:
            EnvironmentFault: if the database fails.
        """

        def make() -> GoldState:
            gold = gold_state(self._database, task)
            if gold.error:
                logger.warning("the gold SQL of task %s fails on this database: %s", task.id, gold.error)
            return gold

        assert task.gold.sql is not None
        return self._states.get(_key(task, task.gold.sql), make, lambda gold: not gold.out_of_time)


def _is_small(gold: Result) -> bool:
    return len(gold.rows) <= _MAX_KEPT_ROWS and len(repr(gold.rows)) <= _MAX_KEPT_CHARACTERS


def grader_of(task: Task, protocol_grader: str) -> Grader | SQLGrader:
    """The task's grader; the protocol's where the task leaves it to that, or where the protocol's answers are
    SQL and the task's grader reads others."""
    found, protocols = (get_grader(name) for name in (task.grader or protocol_grader, protocol_grader))
    return protocols if isinstance(protocols, SQLGrader) and not isinstance(found, SQLGrader) else found


def answer_graders(task: Task, override: Grader | None = None) -> list[tuple[Grader, list]]:
    """The graders of a question whose answers are no SQL, each with the gold answer that it is given.

    Args:
        override: judges in the place of the task's own.
    """
    answer = task.gold.answer or ()
    if override is not None:
        return [(override, override.gold(answer))]
    if task.grader is not None:
        return [(GRADERS[task.grader], list(answer))]
    # the protocol will choose one; those of the protocols are graders of labels
    return [(grader, list(answer)) for grader in GRADERS.values() if not grader.rows]


def published_right(task: Task, state: State) -> bool | None:
    """Whether the task's first table has the published hash; `None` where none is published."""
    if task.gold.state_md5 is None:
        return None
    table = state.get(task.tables[0].name)
    return table is not None and (state_hash(table.rows) or "") == task.gold.state_md5
