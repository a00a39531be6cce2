"""Says whether an episode ended right: its answer against the gold answer, or its tables against the gold's.

A change is judged by its full final tables: the gold SQL is executed on a sandbox of its own, once per
task, and what it leaves is compared row by row. The published five-digit hash is computed beside it, for
comparison with published numbers only: it collides and does not see rows beyond the 170th.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from trl_dbbench.database import Database, Sandbox, State
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.protocol import Answer
from trl_dbbench.scoring import grade, same_state, state_digest, state_hash
from trl_dbbench.tasks import Table, Task

logger = logging.getLogger(__name__)

_REMEMBERED = 4096
"""Gold states kept in memory; making one again costs a sandbox and a statement."""


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


@dataclass(frozen=True)
class GoldState:
    """The tables after the gold SQL, or the error it met on this database."""

    state: State | None
    error: str | None = None


class Judge:
    """Judges episodes on one database. Thread-safe.

    Where the gold SQL of a change fails on this database (MariaDB refuses two published ones in its
    strict mode), the published hash decides; without one, the episode cannot be judged.
    """

    def __init__(self, database: Database, grader: str | None = None):
        self._database = database
        self._grader = grader
        # by what it is made of: ids are unique in a file only, and a judge may see training and evaluation tasks
        self._gold: OrderedDict[tuple[tuple[Table, ...], str], GoldState] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, task: Task, answer: Answer, sandbox: Sandbox, protocol_grader: str) -> Verdict:
        """
        Args:
            task: what was asked.
            answer: what the agent committed.
            sandbox: as the agent left it.
            protocol_grader: for tasks that leave the grader to the protocol.

        Raises:
            EnvironmentFault: if the database fails, or the gold SQL on it.
        """
        if task.is_question:
            assert task.gold.answer is not None
            grader = task.grader or protocol_grader
            return Verdict(grade(answer.for_grader(grader), task.gold.answer, grader))
        state = sandbox.state()
        published, digest = published_right(task, state), state_digest(state)
        gold = self.gold_state(task)
        if gold.state is None:
            if published is None:
                raise EnvironmentFault(f"the gold SQL fails on this database: {gold.error}")
            return Verdict(published, published, digest)
        return Verdict(same_state(state, gold.state), published, digest)

    def gold_state(self, task: Task) -> GoldState:
        """The tables that a right change leaves.

        Raises:
            EnvironmentFault: if the database fails.
        """
        assert task.gold.sql is not None
        key = task.tables, task.gold.sql
        with self._lock:
            if key in self._gold:
                self._gold.move_to_end(key)
                return self._gold[key]
        with self._database.sandbox(task) as sandbox:
            result = sandbox.execute(task.gold.sql)
            gold = GoldState(None, result.error) if result.error else GoldState(sandbox.state())
        if gold.error:
            logger.warning("the gold SQL of task %s fails on this database: %s", task.id, gold.error)
        if result.limit == "time":  # a busy machine; it may do better the next time
            return gold
        with self._lock:
            self._gold[key] = gold
            if len(self._gold) > _REMEMBERED:
                self._gold.popitem(last=False)
        return gold


def published_right(task: Task, state: State) -> bool | None:
    """Whether the task's first table has the published hash; `None` where none is published."""
    if task.gold.state_md5 is None:
        return None
    rows = state.get(task.tables[0].name)
    return rows is not None and (state_hash(rows) or "") == task.gold.state_md5
