"""Rewards for a whole episode: its outcome, its last SQL, and the share of readable turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from trl_dbbench.database import Database
from trl_dbbench.database.dialect import Dialect
from trl_dbbench.episode.gold import gives_gold_rows
from trl_dbbench.episode.protocol import Invalid, Operation
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.grading.rows import same_state
from trl_dbbench.rewards.efficiency import sql_of
from trl_dbbench.rewards.named import DatabaseReward, named
from trl_dbbench.tasks.skills import operation_of


@dataclass(frozen=True)
class OutcomeReward:
    """Reward with a value for each way an episode can end.

    Running out of tokens counts as `turn_limit`. By default, a crash of the database server counts as
    `wrong`, and a failing program (see `harness`) as `invalid_action`.
    """

    right: float = 1.0
    wrong: float = -1.0
    turn_limit: float = -0.8
    invalid_action: float = -0.2
    server_crash: float | None = None
    harness_fault: float | None = None

    __name__ = "outcome"
    steps: ClassVar = False

    def __call__(self, episode: Sequence[Episode], **kwargs: object) -> list[float | None]:
        return [self._value(e) for e in episode]

    def _value(self, episode: Episode) -> float | None:
        match episode.status:
            case Status.ANSWERED:
                return self.right if episode.right else self.wrong
            case Status.SERVER_CRASH:
                return self.wrong if self.server_crash is None else self.server_crash
            case Status.TURN_LIMIT | Status.OUT_OF_TOKENS:
                return self.turn_limit
            case Status.INVALID_ACTION:
                return self.invalid_action
            case Status.HARNESS_FAULT:
                return self.invalid_action if self.harness_fault is None else self.harness_fault
        return None


OUTCOME_PRESETS = {
    "greedy_then_grpo": OutcomeReward(right=1.0, wrong=-1.0, turn_limit=-0.8, invalid_action=-0.2),
    "reinforce": OutcomeReward(right=1.0, wrong=-0.1, turn_limit=-0.3, invalid_action=-0.1),
}


@named("execution")
class ExecutionReward(DatabaseReward):
    """Reward of 1 if the agent's last SQL has the effect of the gold SQL, else 0, whatever an answer in words
    says.

    Both are executed on fresh sandboxes. For a question, the grader `strict` compares the rows of an answer
    in SQL, or else of the last statement; a gold without rows, or with NULLs only, makes every answer wrong.
    For a change, the tables are compared after the last statement that succeeded and may have changed them.
    The reward is `None` without gold SQL, or if the gold SQL fails on this database.
    """

    __name__ = "execution"
    crashed = 0.0

    def _value(self, episode: Episode, database: Database) -> float | None:
        task = episode.task
        if task.gold.sql is None:
            return None
        if task.is_question:
            same = gives_gold_rows(self._database, task, sql_of(episode))
            return None if same is None else float(same)
        gold = self._judge.gold_state(task)
        if gold.state is None:
            return None
        change = _last_change(episode, self._database.dialect)
        if change is None:
            return 0.0
        with self._database.sandbox(task) as sandbox:
            sandbox.execute(change)
            return float(same_state(sandbox.state(), gold.state))


_NO_CHANGE = re.compile(
    r"""\s*(?: BEGIN (?:\s+(?:WORK | TRANSACTION | DEFERRED | IMMEDIATE | EXCLUSIVE))*
    | START\s+TRANSACTION\b[^;]* | (?:COMMIT | END)\b[^;]* | PRAGMA\b[^=;]*)\s*;?\s*""",
    re.IGNORECASE | re.VERBOSE,
)
"""Pattern of statements that begin or commit a transaction, and of those by which SQLite shows tables."""


def _last_change(episode: Episode, dialect: Dialect) -> str | None:
    """Return the last successful statement that may have changed the tables, or `None`."""
    for turn in reversed(episode.turns):
        succeeded = turn.result is not None and turn.result.error is None
        if isinstance(turn.action, Operation) and succeeded:
            sql = turn.action.sql
            shows = dialect.only_shows(sql) or dialect.kind_of(sql) == "reads"
            if not (
                shows or _NO_CHANGE.fullmatch(sql) or operation_of(sql, episode.task.dialect) == "SELECT"
            ):
                return sql
    return None


@named("format")
def format_reward(episode: Sequence[Episode], **kwargs: object) -> list[float | None]:
    """Return the share of an episode's turns that the protocol could read, 0 to 1."""
    return [
        None
        if e.status == Status.ENVIRONMENT_FAULT
        else sum(not isinstance(turn.action, Invalid) for turn in e.turns) / max(1, len(e.turns))
        for e in episode
    ]
