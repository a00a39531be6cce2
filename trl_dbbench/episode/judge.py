"""Judges an episode: its answer against the gold answer, or its final tables against the gold's.

- **An answer in words** goes to a grader with the gold answer.
- **An answer in SQL** and the gold SQL are executed on the initial tables, and their results compared. If the
  gold is a list of results, the answer must give one of them. A gold without rows, or with NULLs only, makes
  every answer wrong, because a wrong filter gives that too.
- **A change** is judged by its full final tables. The gold SQL is executed once per task on its own sandbox,
  and columns and rows are compared. The published hash is computed only for comparison with published
  numbers: it collides, and ignores column names and rows beyond the 170th.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from trl_dbbench.database import Database, Sandbox, State
from trl_dbbench.episode.gold import (
    GoldState,
    answer_limits,
    execute_untruncated,
    gold_state,
    reads_clock,
)
from trl_dbbench.episode.protocol import AgentProtocol, Answer
from trl_dbbench.errors import ConfigError, EnvironmentFault, TaskError
from trl_dbbench.grading import GRADERS, Grader, SQLGrader, get_grader
from trl_dbbench.grading.rows import same_state
from trl_dbbench.grading.scorers import Result
from trl_dbbench.grading.states import rows_digest, state_digest, state_hash
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.model import TablesKey
from trl_dbbench.utils.sql import MAX_STATEMENT_CHARACTERS

logger = logging.getLogger(__name__)

T = TypeVar("T")
_Key = tuple[TablesKey, str]
"""Tables and SQL: task ids are unique in one file only, and a judge may see several files."""

_MAX_REMEMBERED = 4096
"""Most gold states, and most gold results, kept in memory; each saves a sandbox and a statement."""

_MAX_STATE_ROWS = 1_000_000
"""Most rows of all gold states in memory together, some 300 MB."""

_MAX_KEPT_ROWS = 1000
_MAX_KEPT_CELLS = 20_000
_MAX_KEPT_CHARACTERS = 100_000
"""Bounds on a remembered result, which is computed each time beyond them, and on one that has a digest."""


@dataclass(frozen=True)
class Verdict:
    """The judgement of an episode; rewards and accuracy use `right`.

    `published_right` is the benchmark's own judgement of a change; `None` for questions and without a
    published hash. `state` is the digest of a change's final tables, which `replay` compares. `result` is the
    digest of the rows of an answer that is SQL; `None` if it fails or gives very many. Their order and
    repetition count as for the grader.
    """

    right: bool
    published_right: bool | None = None
    state: str | None = field(default=None, compare=False)
    result: str | None = field(default=None, compare=False)


class _Remembered(Generic[T]):
    """Cache of gold SQL results; the most recently used are kept. Thread-safe."""

    def __init__(self, rows: Callable[[T], int] = lambda _: 0) -> None:
        self._rows, self._held = rows, 0  # counts a result's rows, and how many are kept
        self._kept: OrderedDict[_Key, T] = OrderedDict()
        self._making: dict[_Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: _Key, make: Callable[[], T], keep: Callable[[T], bool]) -> T:
        """Return the kept value, or make it once while others wait; `keep` says whether to remember it."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            try:
                with self._lock:
                    if key in self._kept:
                        self._kept.move_to_end(key)
                        return self._kept[key]
                made = make()
                if keep(made):
                    with self._lock:
                        self._kept[key] = made
                        self._held += self._rows(made)
                        while len(self._kept) > _MAX_REMEMBERED or self._held > _MAX_STATE_ROWS:
                            self._held -= self._rows(self._kept.popitem(last=False)[1])
                return made
            finally:
                with self._lock:
                    self._making.pop(key, None)


class Judge:
    """Judges episodes on one database. Thread-safe.

    If the gold SQL of a change fails on this database (MariaDB's strict mode refuses two published ones), the
    published hash decides; without one, the episode cannot be judged.

    Args:
        grader: replaces the graders of all questions: a name of `grading.GRADERS` or your own dotted path.
    """

    def __init__(self, database: Database, grader: str | None = None):
        self._database = database
        self._grader = None if grader is None else get_grader(grader)
        self._states: _Remembered[GoldState] = _Remembered(
            lambda gold: sum(len(table.rows) for table in (gold.state or {}).values())
        )
        self._results: _Remembered[Result] = _Remembered()

    def __call__(
        self,
        task: Task,
        answer: Answer,
        sandbox: Sandbox,
        protocol_grader: str,
        statements: Sequence[str] = (),
    ) -> Verdict:
        """Return the verdict on an answer.

        Args:
            sandbox: as the agent left it.
            protocol_grader: for tasks that leave the grader to the protocol; see `grader_of`.
            statements: the agent's statements; an empty SQL answer means the last one.

        Raises:
            EnvironmentFault: if the database fails, or the gold SQL fails on it.
        """
        if task.is_question:
            grader = self._grader or grader_of(task, protocol_grader)
            if isinstance(grader, SQLGrader):
                return self._sql_verdict(task, answer.text or "".join(statements[-1:]), grader)
            if task.gold.answer is None:
                raise EnvironmentFault(
                    f"the grader {grader.name} needs a gold answer, and the task has only SQL"
                )
            gold = list(task.gold.answer) if self._grader is None else grader.gold(task.gold.answer)
            return Verdict(bool(grader.judge(answer.for_grader(grader.name), gold)))
        state = sandbox.state()
        published, digest = published_right(task, state), state_digest(state)
        gold_tables = self.gold_state(task)
        if gold_tables.state is None:
            if published is None:
                raise EnvironmentFault(f"the gold SQL fails on this database: {gold_tables.error}")
            return Verdict(published, published, digest)
        return Verdict(same_state(state, gold_tables.state), published, digest)

    def check_task(self, task: Task, protocol: AgentProtocol) -> None:
        """Raise for a task whose episodes could not be judged in this protocol.

        Raises:
            TaskError: if the database lacks the task's dialect, or answers are SQL and there is no gold SQL.
            ConfigError: if the task's grader judges SQL and the protocol does not ask for SQL.
        """
        self._database.check_dialect(task)
        if not task.is_question:
            return
        asked, grader = get_grader(protocol.grader), self._grader or grader_of(task, protocol.grader)
        if not isinstance(grader, SQLGrader):
            if task.gold.answer is None:
                raise TaskError(
                    f"task '{task.id}' has no gold answer, which the grader {grader.name} needs. Leave "
                    "grader out, and set protocol: text_sql or tools_sql."
                )
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

    def _sql_verdict(self, task: Task, sql: str, grader: SQLGrader) -> Verdict:
        """Return the verdict on an answer, which must be right on each database of a suite. The gold may give
        nothing on some of them, but not on all."""
        told, digest = False, None
        for each in task.on_each_database():
            golds = self._gold_results(each, grader)
            if not sql.strip() or len(sql) > MAX_STATEMENT_CHARACTERS:
                return Verdict(False)
            telling = [gold for gold in golds if not gold.says_nothing]
            limits = answer_limits(telling or golds, grader)
            # samples vote by their rows, also by more than a right answer has
            limits = replace(
                limits, rows=max(limits.rows, _MAX_KEPT_ROWS), cells=max(limits.cells or 0, _MAX_KEPT_CELLS)
            )
            predicted, _ = execute_untruncated(self._database, each, grader.rewrite(sql), limits)
            if predicted is not None and digest is None and _is_small(predicted):
                ordered = grader.ordered(task.gold.sql or "")
                digest = rows_digest(predicted.rows, ordered, repeated=grader.counts_rows)
            if predicted is None or not grader.right(predicted, telling or golds, task.gold.sql):
                return Verdict(False, result=digest)
            told = told or bool(telling)
        return Verdict(told, result=digest)

    def _gold_results(self, task: Task, grader: SQLGrader) -> Sequence[Result]:
        """Return the gold results; a right answer gives one of them."""
        if task.gold.results:
            return task.gold.results
        if task.gold.sql is None:
            raise EnvironmentFault(f"the grader {grader.name} needs gold SQL, which the task has not")
        sql = grader.rewrite(task.gold.sql)

        def make() -> Result:
            gold, problem = execute_untruncated(self._database, task, sql)
            if gold is None:
                raise EnvironmentFault(f"the gold SQL cannot be judged by: {problem}")
            return gold

        return [self._results.get((task.tables_key, sql), make, _is_small)]

    def gold_state(self, task: Task) -> GoldState:
        """Return the tables after the gold SQL; remembered unless it ran out of time, or reads the clock."""

        def make() -> GoldState:
            gold = gold_state(self._database, task)
            if gold.error:
                logger.warning("the gold SQL of task %s fails on this database: %s", task.id, gold.error)
            return gold

        assert task.gold.sql is not None
        if reads_clock(self._database, task):
            return make()
        return self._states.get((task.tables_key, task.gold.sql), make, lambda gold: not gold.out_of_time)


def _is_small(result: Result) -> bool:
    return len(result.rows) <= _MAX_KEPT_ROWS and len(repr(result.rows)) <= _MAX_KEPT_CHARACTERS


def grader_of(task: Task, protocol_grader: str) -> Grader | SQLGrader:
    """Return the task's grader; the protocol's if the task names none, or only the protocol's judges SQL."""
    found, protocols = (get_grader(name) for name in (task.grader or protocol_grader, protocol_grader))
    return protocols if isinstance(protocols, SQLGrader) and not isinstance(found, SQLGrader) else found


def answer_graders(task: Task, override: Grader | None) -> list[tuple[Grader, list]]:
    """Return the graders of a question answered in words, or their override, each with its gold answer."""
    answer = task.gold.answer or ()
    if override is not None:
        return [(override, override.gold(answer))]
    if task.grader is not None:
        return [(GRADERS[task.grader], list(answer))]
    # the protocol will choose one of the graders of labels, not of rows
    return [(grader, list(answer)) for grader in GRADERS.values() if not grader.rows]


def published_right(task: Task, state: State) -> bool | None:
    """Return whether the task's first table has the published hash; `None` if there is no hash."""
    if task.gold.state_md5 is None:
        return None
    table = state.get(task.tables[0].name)
    return table is not None and (state_hash(table.rows) or "") == task.gold.state_md5
