"""Reward functions in TRL's form: keyword arguments in, one float or `None` per row out.

The trainer hands every one of them `episode`, a list of `rollout.Episode`, so a user's own needs no
parsing of text:

```python
def short(episode, **kwargs):
    return [-0.1 * len(e.turns) for e in episode]
```

An episode whose environment failed is `None` to all of ours: TRL then gives it no advantage, and the
update goes on without it.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trl_dbbench.database import Database
from trl_dbbench.errors import ConfigError, EnvironmentFault
from trl_dbbench.judge import Judge
from trl_dbbench.protocol import Invalid
from trl_dbbench.rollout import Episode, Status
from trl_dbbench.scoring import same_rows, same_state
from trl_dbbench.skills import operation_of

logger = logging.getLogger(__name__)

RewardFunction = Callable[..., list[float | None]]


@dataclass(frozen=True)
class OutcomeReward:
    """One value for each way an episode can end.

    An episode that runs out of tokens counts as one that runs out of turns.
    """

    right: float = 1.0
    wrong: float = -1.0
    turn_limit: float = -0.8
    invalid_action: float = -0.2

    __name__ = "outcome"

    def __call__(self, episode: Sequence[Episode], **kwargs: object) -> list[float | None]:
        return [self._value(e) for e in episode]

    def _value(self, episode: Episode) -> float | None:
        match episode.status:
            case Status.ANSWERED:
                return self.right if episode.right else self.wrong
            case Status.TURN_LIMIT | Status.OUT_OF_TOKENS:
                return self.turn_limit
            case Status.INVALID_ACTION:
                return self.invalid_action
        return None


OUTCOME_PRESETS = {
    "greedy_then_grpo": OutcomeReward(right=1.0, wrong=-1.0, turn_limit=-0.8, invalid_action=-0.2),
    "reinforce": OutcomeReward(right=1.0, wrong=-0.1, turn_limit=-0.3, invalid_action=-0.1),
}


class ExecutionReward:
    """1 if the agent's last SQL does what the gold SQL does, else 0, whatever the agent answered.

    Both are executed on fresh sandboxes. Questions compare the rows, in order if the gold SQL sorts
    them. Changes compare the tables, and a SELECT with which the agent looked at its work afterwards does
    not count as its last SQL. `None` where the task has no gold SQL or it fails on this database.
    """

    __name__ = "execution"

    def __init__(self, database: Database, judge: Judge | None = None):
        self._database = database
        self._judge = judge or Judge(database)

    def __call__(self, episode: Sequence[Episode], **kwargs: object) -> list[float | None]:
        with ThreadPoolExecutor(max_workers=8) as pool:
            return list(pool.map(self._value, episode))

    def _value(self, episode: Episode) -> float | None:
        task = episode.task
        if episode.status == Status.ENVIRONMENT_FAULT or task.gold.sql is None:
            return None
        try:
            if task.is_question:
                return self._same_rows(episode, task.gold.sql)
            return self._same_state(episode)
        except EnvironmentFault as fault:
            logger.warning("execution reward of task %s: %s", task.id, fault)
            return None

    def _same_rows(self, episode: Episode, gold_sql: str) -> float | None:
        with self._database.sandbox(episode.task) as sandbox:
            gold = sandbox.execute(gold_sql)
        if gold.rows is None:
            return None
        if not episode.statements:
            return 0.0
        with self._database.sandbox(episode.task) as sandbox:
            rows = sandbox.execute(episode.statements[-1]).rows
        ordered = "order_by" in " ".join(episode.task.skills)
        return float(rows is not None and same_rows(rows, gold.rows, ordered=ordered))

    def _same_state(self, episode: Episode) -> float | None:
        gold = self._judge.gold_state(episode.task)
        if gold.state is None:
            return None
        changes = [sql for sql in episode.statements if operation_of(sql) != "SELECT"]
        if not changes:
            return 0.0
        with self._database.sandbox(episode.task) as sandbox:
            sandbox.execute(changes[-1])
            return float(same_state(sandbox.state(), gold.state))


def format_reward(episode: Sequence[Episode], **kwargs: object) -> list[float | None]:
    """The share of an episode's turns that the protocol could read, 0 to 1."""
    return [_readable_share(e) for e in episode]


def _readable_share(episode: Episode) -> float | None:
    if episode.status == Status.ENVIRONMENT_FAULT:
        return None
    return sum(not isinstance(turn.action, Invalid) for turn in episode.turns) / len(episode.turns)


def load_reward_functions(
    names: Sequence[str], *, database: Database, outcome: OutcomeReward = OUTCOME_PRESETS["greedy_then_grpo"]
) -> list[RewardFunction]:
    """The reward functions of a recipe.

    Args:
        names: `outcome`, `execution`, `format`, or the dotted path of a function of the user's own,
            looked up from the working directory as well.
        database: where the execution reward executes.
        outcome: the four values of the outcome reward.

    Raises:
        ConfigError: if a name is none of these, or its import fails.
    """
    ours: dict[str, Callable[[], RewardFunction]] = {
        "outcome": lambda: outcome,
        "execution": lambda: ExecutionReward(database),
        "format": lambda: format_reward,
    }
    return [ours[name]() if name in ours else _import(name, sorted(ours)) for name in names]


def describe_reward(function: object) -> dict[str, Any] | None:
    """What `load_reward_functions` needs to make such a function again: its name there, and an outcome's values.

    `None` for what has no such name, as a reward model.
    """
    if isinstance(function, OutcomeReward):
        return {"function": "outcome", **asdict(function)}
    if isinstance(function, ExecutionReward):
        return {"function": "execution"}
    if function is format_reward:
        return {"function": "format"}
    name = getattr(function, "__qualname__", None)
    return None if name is None else {"function": f"{function.__module__}.{name}"}


def _import(path: str, ours: list[str]) -> RewardFunction:
    module_name, dot, name = path.rpartition(".")
    if not dot:
        raise ConfigError(
            f"unknown reward function {path!r}; allowed: {', '.join(ours)}, or a dotted path such as my_rewards.short"
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # whatever the user's module does when it is imported
        raise ConfigError(
            f"the reward function {path!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise ConfigError(f"the reward function {path!r} is not callable but {type(function).__name__}")
    return function
