"""Rewards that a recipe can name. A new one is a function or class in this package, marked with `@named`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.table_states import for_each_episode
from trl_dbbench.episode.types import Episode

R = TypeVar("R", bound=Callable)

NAMED: dict[str, Any] = {}
"""Rewards by name: functions, and classes to be created with a `Database` and a `Judge`, whose `__name__` is
the same name. Filled when the modules of this package are imported, which `registry` does."""


def named(name: str, *, steps: bool = False) -> Callable[[R], R]:
    """Return a decorator that registers a reward by name; `steps` says whether it gives a value per turn."""

    def register(reward: R) -> R:
        NAMED[name] = reward
        reward.steps = steps  # type: ignore[attr-defined]
        return reward

    return register


class DatabaseReward:
    """Base class of rewards that execute SQL for each episode. A subclass defines `__name__` and `_value`."""

    __name__: str
    crashed: float | None = None
    """Value of an episode that crashed the database server."""

    def __init__(self, database: Database, judge: Judge | None = None):
        self._database, self._judge = database, judge or Judge(database)

    def __call__(self, episode: Sequence[Episode], **kwargs: object) -> list[Any]:
        asked_by = f"the reward {self.__name__}"
        return for_each_episode(episode, self._database, asked_by, self._value, self.crashed)

    def _value(self, episode: Episode, database: Database) -> Any:
        raise NotImplementedError
