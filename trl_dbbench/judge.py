"""Says whether an episode ended right: its answer against the gold answer, or its tables against the gold's.

A change is judged by its full final tables: the gold SQL is executed on a sandbox of its own, once per
task, and the columns and rows that it leaves are compared. The published five-digit hash is computed beside
it, for comparison with published numbers only: it collides, and sees neither the names of columns nor rows
beyond the 170th.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from trl_dbbench.database import Database, Sandbox, State
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.gold import GoldState, gold_state
from trl_dbbench.grading import get_grader
from trl_dbbench.grading.rows import same_state
from trl_dbbench.grading.states import state_digest, state_hash
from trl_dbbench.protocol import Answer
from trl_dbbench.tasks import Table, Task

logger = logging.getLogger(__name__)

_MAX_GOLD_STATES = 4096
"""How many are kept in memory; making one again costs a sandbox and a statement."""


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
        # by content: ids are unique in a file only, and a judge may see the tasks of several
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
            return Verdict(self._answer_right(task, answer, protocol_grader))
        state = sandbox.state()
        published, digest = published_right(task, state), state_digest(state)
        gold = self.gold_state(task)
        if gold.state is None:
            if published is None:
                raise EnvironmentFault(f"the gold SQL fails on this database: {gold.error}")
            return Verdict(published, published, digest)
        return Verdict(same_state(state, gold.state), published, digest)

    def _answer_right(self, task: Task, answer: Answer, protocol_grader: str) -> bool:
        assert task.gold.answer is not None
        if self._grader is not None:
            grader, gold = self._grader, self._grader.gold(task.gold.answer)
        else:
            grader, gold = get_grader(task.grader or protocol_grader), list(task.gold.answer)
        return bool(grader.judge(answer.for_grader(grader.name), gold))

    def gold_state(self, task: Task) -> GoldState:
        """The tables that a right change leaves; remembered, but for one that ran out of time.

        Raises:
            EnvironmentFault: if the database fails.
        """
        assert task.gold.sql is not None
        key = task.tables, task.gold.sql
        with self._lock:
            if key in self._gold:
                self._gold.move_to_end(key)
                return self._gold[key]
        gold = gold_state(self._database, task)
        if gold.error:
            logger.warning("the gold SQL of task %s fails on this database: %s", task.id, gold.error)
        if not gold.out_of_time:
            with self._lock:
                self._gold[key] = gold
                if len(self._gold) > _MAX_GOLD_STATES:
                    self._gold.popitem(last=False)
        return gold


def published_right(task: Task, state: State) -> bool | None:
    """Whether the task's first table has the published hash; `None` where none is published."""
    if task.gold.state_md5 is None:
        return None
    table = state.get(task.tables[0].name)
    return table is not None and (state_hash(table.rows) or "") == task.gold.state_md5
