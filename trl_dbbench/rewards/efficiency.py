"""Rewards for fast, right SQL: `efficiency` by measured time, `query_cost` by the optimizer's estimate.

Both are 0 for a wrong episode, and for an answer in words unless the statement before it gives the gold rows
by the grader `strict`: the time of a `SELECT 1` would say nothing. Otherwise the reward is the square root of
a value that depends on the ratio gold / agent, as in BIRD's R-VES (Li et al., 2023; mini-dev): 1.25 from a
ratio of 2, 1 from 0.9, 0.75 from 0.5, 0.5 from 0.25, else 0.25. The value 1 starts at 0.9 because two timings
of the same statement differ by 10 %.

```yaml
reward_funcs: [outcome, efficiency]
reward_weights: [1.0, 0.1]
```
"""

from __future__ import annotations

import json
import math
import statistics
import threading
from collections.abc import Callable
from typing import Any

from trl_dbbench.database import Database, Sandbox
from trl_dbbench.episode.gold import JUDGED, gives_gold_rows, ignores_rows
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.named import DatabaseReward, named
from trl_dbbench.tasks.skills import operation_of

REPEATS = 7
"""Executions of each statement, alternating; the median counts."""

AS_FAST = 0.9
"""Lowest ratio that counts as equally fast."""

ONE_ROW = 1.0
"""Least cost of a query: for a row found by its key, one format of EXPLAIN gives 1 and the other 0."""

BANDS = ((2.0, 1.25), (AS_FAST, 1.0), (0.5, 0.75), (0.25, 0.5), (0.0, 0.25))


def of_ratio(ratio: float) -> float:
    """Return the reward for the ratio of the gold SQL's time to the agent's."""
    return math.sqrt(next(value for least, value in BANDS if ratio >= least))


@named("efficiency")
class EfficiencyReward(DatabaseReward):
    """Reward by the execution times of the gold SQL and a right answer's SQL on the agent's database.

    This process times one pair at a time; other load on the server still disturbs it. The reward is `None`
    for changes, without gold SQL, and if one of the statements fails. It is 0 for SQL that contains values
    seen before instead of computing them, such as `SELECT 2857`.
    """

    __name__ = "efficiency"
    crashed = 0.0
    _alone = threading.Lock()

    def _value(self, episode: Episode, database: Database) -> float | None:
        gold, own = episode.task.gold.sql, sql_of(episode)
        if not episode.task.is_question or gold is None:
            return None
        if not episode.right or own is None:
            return 0.0
        if episode.answer is None or own != episode.answer.text:  # an answer in words, after this statement
            same = gives_gold_rows(database, episode.task, own)
            if not same:
                return None if same is None else 0.0
        with database.sandbox(episode.task) as sandbox:
            measured = self._measure(sandbox, gold, own)
        if measured is not None and ignores_rows(database, episode.task, own):
            return 0.0
        return None if measured is None else of_ratio(measured[0] / max(measured[1], 1e-9))

    def _measure(self, sandbox: Sandbox, gold: str, own: str) -> tuple[float, float] | None:
        seconds: dict[str, list[float]] = {gold: [], own: []}
        with self._alone:
            for sql in REPEATS * [gold, own]:
                result = sandbox.execute(sql, JUDGED)
                if result.error:
                    return None
                seconds[sql].append(result.seconds)
        return statistics.median(seconds[gold]), statistics.median(seconds[own])


@named("query_cost")
class QueryCostReward(EfficiencyReward):
    """Reward like `efficiency`, but by the cost that MySQL's optimizer estimates, which is reproducible.

    It is also `None` for a plan without costs, such as a bare `SELECT COUNT(*) FROM t`. Raises ConfigError if
    the database is not MySQL.
    """

    __name__ = "query_cost"

    def __init__(self, database: Database, judge: Judge | None = None):
        super().__init__(database, judge)
        if database.dialect.product != "MySQL":
            raise ConfigError(
                f"the reward query_cost goes by the costs of MySQL's EXPLAIN, and the database is "
                f"{database.dialect.product}. Use a MySQL server (database: docker) or the reward efficiency."
            )

    def _measure(self, sandbox: Sandbox, gold: str, own: str) -> tuple[float, float] | None:
        of_gold, of_own = (_cost(sandbox.execute, sql) for sql in (gold, own))
        return None if of_gold is None or of_own is None else (of_gold, of_own)


def _cost(execute: Callable, sql: str) -> float | None:
    """Return the optimizer's estimate; `None` for a plan without costs."""
    costs: list[float] = []

    def note(step: dict[str, Any]) -> None:
        # MySQL's first format has one query_cost; in the second each step's cost includes the steps below it
        costs.extend(float(step[key]) for key in ("query_cost", "estimated_total_cost") if key in step)

    if rows := execute(f"EXPLAIN FORMAT=JSON {sql}", JUDGED).rows:
        json.loads(rows[0][0], object_hook=note)
    return max(*costs, ONE_ROW) if costs else None


def sql_of(episode: Episode) -> str | None:
    """Return an episode's final SQL: its answer if that is a query, else its last statement."""
    text = episode.answer.text if episode.answer is not None else None
    if text and operation_of(text, episode.task.dialect) == "SELECT":
        return text
    return episode.statements[-1] if episode.statements else None
