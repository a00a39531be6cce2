"""Reward functions in TRL's form: keyword arguments in, one float or `None` per row out.

The trainer passes `episode`, a list of `episode.types.Episode`, so your own needs no parsing of text:

```python
def short(episode, **kwargs):
    return [-0.1 * len(e.turns) for e in episode]
```

For an episode it may also return a list, a value for each turn (*step rewards*) or `None`: their sum is the
episode's reward, the parts are recorded with the turns, and advantage functions see them. `rewards/steps.py`
has some.

Our functions return `None` for an episode whose environment failed: it gets no advantage and is not trained
on. A reward function whose environment fails calls `Episode.fail`; the others' values then do not count
either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from torch import nn
from trl.trainer.utils import get_callable_name, is_async_callable

from trl_dbbench.database import Database
from trl_dbbench.episode.gold import limits_beside, whole_result
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Invalid
from trl_dbbench.episode.table_states import of_each
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading import SQL_GRADERS
from trl_dbbench.grading.rows import same_state
from trl_dbbench.rewards.efficiency import EfficiencyReward, QueryCostReward
from trl_dbbench.rewards.learned import LearnedReward, RewardModel
from trl_dbbench.rewards.outcome import OUTCOME_PRESETS, OutcomeReward
from trl_dbbench.rewards.process import ProcessRewardModel
from trl_dbbench.rewards.steps import StateProgress, answer_seen, executes
from trl_dbbench.tasks.skills import operation_of
from trl_dbbench.utils.lookup import look_up, place_of

RewardFunction = Callable[..., Sequence[float | None] | Sequence[list[float | None] | None]]


class ExecutionReward:
    """1 if the agent's last SQL does what the gold SQL does, else 0, whatever the agent answered.

    Both are executed on fresh sandboxes. Results of questions are compared as the grader `strict` does; a
    gold result without rows, or only NULLs, is never matched. Changes compare the tables; a SELECT after them
    does not count as the last SQL. `None` if the task has no gold SQL or it fails on this database.
    """

    __name__ = "execution"

    def __init__(self, database: Database, judge: Judge | None = None):
        self._database = database
        self._judge = judge or Judge(database)

    def __call__(self, episode: Sequence[Episode], **kwargs: object) -> list[float | None]:
        return of_each(episode, self._database, "the execution reward", self._value, crashed=0.0)

    def _value(self, episode: Episode, database: Database) -> float | None:
        task = episode.task
        if task.gold.sql is None:
            return None
        if task.is_question:
            return self._same_rows(episode, task.gold.sql)
        return self._same_state(episode)

    def _same_rows(self, episode: Episode, gold_sql: str) -> float | None:
        gold, _ = whole_result(self._database, episode.task, gold_sql)
        if gold is None:
            return None
        if not episode.statements or gold.says_nothing:
            return 0.0
        strict = SQL_GRADERS["strict"]
        limits = limits_beside([gold], strict)
        given, _ = whole_result(self._database, episode.task, episode.statements[-1], limits)
        return float(given is not None and strict.right(given, [gold], gold_sql))

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
    """Return the share of an episode's turns that the protocol could read, 0 to 1."""
    return [_readable_share(e) for e in episode]


def _readable_share(episode: Episode) -> float | None:
    if episode.status == Status.ENVIRONMENT_FAULT:
        return None
    return sum(not isinstance(turn.action, Invalid) for turn in episode.turns) / len(episode.turns)


PLAIN_FUNCTIONS: dict[str, RewardFunction] = {
    "format": format_reward,
    "executes": executes,
    "answer_seen": answer_seen,
}
"""The library's functions that need no database, by name."""


def load_reward_functions(
    names: Sequence[str], *, database: Database, outcome: OutcomeReward = OUTCOME_PRESETS["greedy_then_grpo"]
) -> list[RewardFunction]:
    """Return the reward functions of a recipe.

    Args:
        names: `outcome`, `execution`, `format`, `executes`, `state_progress`, `answer_seen`, `efficiency`,
            `query_cost`, `model:PATH` or `prm:PATH` for a model that was trained to score episodes or turns,
            or the dotted path of a function of the user's own, looked up from the working directory as well.
        database: where rewards execute statements.
        outcome: the four values of the outcome reward.

    Raises:
        ConfigError: if a name is none of these, its import fails, there is no such model, or the database
            lacks what a reward needs.
    """
    judge = Judge(database)  # which remembers the gold states
    of_database: dict[str, Callable[[], RewardFunction]] = {
        "execution": lambda: ExecutionReward(database, judge),
        "state_progress": lambda: StateProgress(database, judge),
        "efficiency": lambda: EfficiencyReward(database),
        "query_cost": lambda: QueryCostReward(database),
    }
    ours = {"outcome": outcome, **of_database, **PLAIN_FUNCTIONS}
    return [of_database[name]() if name in of_database else _reward_function(name, ours) for name in names]


LEARNED: dict[str, Callable[[str], RewardFunction]] = {
    kind.kind: kind.load for kind in (RewardModel, ProcessRewardModel)
}
"""Kind before the colon -> loader of the path after it."""


def _reward_function(name: str, ours: dict[str, Any]) -> RewardFunction:
    kind, colon, path = name.partition(":")
    if not colon or kind.endswith(".py"):
        return look_up("reward function", name, ours)
    if kind not in LEARNED or not path:
        allowed = ", ".join(f"{each}:PATH" for each in LEARNED)
        raise ConfigError(f"unknown reward function {name!r}; of those with a colon there are {allowed}.")
    return LEARNED[kind](path)


class StepRewards:
    """Turns a reward function that may return a list for an episode into one that returns the list's sum.

    The list's values are noted in `Turn.rewards`.

    Raises:
        ConfigError: if the function does not give a value for each episode, or a list is not as long as its
            episode has turns.
    """

    def __init__(self, function: RewardFunction):
        self.__name__ = get_callable_name(function)
        self.function = function

    def __call__(self, episode: Sequence[Episode], **kwargs: Any) -> list[float | None]:
        values = self.function(episode=episode, **kwargs)
        try:
            given: int | str = len(values)
        except TypeError:
            given = type(values).__name__
        if given != len(episode):
            raise ConfigError(
                f"the reward function {self.__name__!r} must return a list of {len(episode)} values, one for "
                f"each episode; it returned {given if isinstance(given, str) else f'{given} values'}."
            )
        return [
            self._sum(e, value) if isinstance(value, list | tuple) else value
            for e, value in zip(episode, values, strict=True)
        ]

    def _sum(self, episode: Episode, values: Sequence[float | None]) -> float | None:
        if len(values) != len(episode.turns):
            raise ConfigError(
                f"the reward function {self.__name__!r} gave {len(values)} step rewards for an episode of "
                f"{len(episode.turns)} turns; give one for each turn, or a number for the episode."
            )
        for turn, value in zip(episode.turns, values, strict=True):
            if value is not None:
                turn.rewards[self.__name__] = float(value)
        given = [value for value in values if value is not None]
        return float(sum(given)) if given else None


def with_step_rewards(function: Any) -> Any:
    """Wrap a reward function so that its lists are summed; leave reward models and coroutines."""
    takes = callable(function) and not isinstance(function, nn.Module | StepRewards)
    return StepRewards(function) if takes and not is_async_callable(function) else function


def plain(function: Any) -> Any:
    """Return the function that `with_step_rewards` was given."""
    return function.function if isinstance(function, StepRewards) else function


def gives_no_steps(functions: Sequence[Any]) -> bool:
    """Return whether no function can give step rewards: all are the library's own without them."""
    never = OutcomeReward, ExecutionReward, EfficiencyReward, RewardModel
    return all(isinstance(plain(each), never) or plain(each) is format_reward for each in functions)


def describe_reward(function: object) -> dict[str, Any] | None:
    """Return what `load_reward_functions` needs to make the function again: its name, and an outcome's
    values.

    `None` if it has no name there, like a module that TRL calls itself.
    """
    function = plain(function)
    if isinstance(function, LearnedReward):
        return {"function": function.name}
    if isinstance(function, OutcomeReward):
        return {"function": "outcome", **asdict(function)}
    if isinstance(function, ExecutionReward | StateProgress | EfficiencyReward):
        return {"function": function.__name__}
    for own, known in PLAIN_FUNCTIONS.items():
        if function is known:
            return {"function": own}
    place = place_of(function)
    return None if place is None else {"function": place}
