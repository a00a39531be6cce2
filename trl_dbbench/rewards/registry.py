"""Reward functions in TRL's form: keyword arguments in, one float or `None` per row out.

Each gets `episode`, a list of `Episode`, so that your own need not parse text (`docs/rewards.md` shows one).

It may also return a list for an episode: one value per turn (*step rewards*), or `None` for a turn. Their sum
is the episode's reward; the parts are recorded with the turns and used by advantages. See `rewards/steps.py`.

It may be a coroutine function (`async def`).

The library's functions return `None` for an episode whose environment failed: TRL then gives it no advantage,
and the update leaves it out. If the environment of a reward function fails, it should call `Episode.fail`,
which cancels all rewards of the episode.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from torch import nn
from trl import GRPOTrainer
from trl.trainer.utils import get_callable_name, is_async_callable, start_event_loop_in_daemon

from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.templates import check_shows_episodes
from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards import efficiency, steps  # noqa: F401  (they register their rewards)
from trl_dbbench.rewards.learned import LearnedReward, RewardModel
from trl_dbbench.rewards.named import NAMED
from trl_dbbench.rewards.outcome import OUTCOME_PRESETS, OutcomeReward
from trl_dbbench.rewards.process import ProcessRewardModel
from trl_dbbench.utils.lookup import look_up, place_of

RewardFunction = Callable[..., Sequence[float | None] | Sequence[list[float | None] | None]]


def load_reward_functions(
    names: Sequence[str], *, database: Database, outcome: OutcomeReward = OUTCOME_PRESETS["greedy_then_grpo"]
) -> list[RewardFunction]:
    """Return the reward functions of a recipe.

    Args:
        names: `outcome`, a name in `rewards.named`, `model:PATH` or `prm:PATH` for a model trained to score
            episodes or turns, or the dotted path of your own function.
        database: executes the statements of rewards.
        outcome: the values of the outcome reward.

    Raises:
        ConfigError: if a name is unknown, its import fails, there is no such model, or the database lacks
            something that the reward needs.
    """
    judge = Judge(database)  # one for all, because it remembers gold states
    functions: list[RewardFunction] = []
    for name in names:
        function: Any = find_reward(name, outcome)()
        takes_database = name in NAMED and isinstance(function, type)
        functions.append(function(database, judge) if takes_database else function)
    return functions


LEARNED: dict[str, Callable[[str], RewardFunction]] = {
    kind.kind: kind.load for kind in (RewardModel, ProcessRewardModel)
}
"""Prefix before the colon -> loader of the path after it."""


def find_reward(
    name: str, outcome: OutcomeReward = OUTCOME_PRESETS["greedy_then_grpo"]
) -> Callable[[], RewardFunction]:
    """Return a function that loads the reward of a name, as `load_reward_functions` takes it.

    Raises:
        ConfigError: if the name is unknown, or its import fails. Models are not looked for yet.
    """
    kind, colon, path = name.partition(":")
    if not colon or kind.endswith(".py") or (kind not in LEARNED and path.isidentifier()):
        found = look_up("reward function", name, {"outcome": outcome, **dict(sorted(NAMED.items()))})
        return lambda: found
    if kind not in LEARNED or not path:
        allowed = ", ".join(f"{each}:PATH" for each in LEARNED)
        raise ConfigError(f"unknown reward function {name!r}; of those with a colon there are {allowed}.")
    return partial(LEARNED[kind], path)


class StepRewards:
    """Wrapper of a reward function that records a list of step rewards in `Turn.rewards` and returns its sum.

    Numbers and arrays of NumPy and PyTorch count as Python's, infinity and NaN as `None`.

    Raises:
        ConfigError: unless there is one value per episode, each list has one value per turn, and every value
            is a number or `None`.
    """

    def __init__(self, function: RewardFunction):
        self.__name__ = get_callable_name(function)
        self.function = function

    def __call__(self, episode: Sequence[Episode], **kwargs: Any) -> Any:
        with self._named():
            values = self.function(episode=episode, **kwargs)
        return self._sums(episode, values)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the function's name as a note to its exceptions."""
        try:
            yield
        except Exception as error:
            error.add_note(f"raised by the reward function {self.__name__!r}")
            raise

    def _sums(self, episodes: Sequence[Episode], values: Any) -> list[float | None]:
        values = _listed(values)
        count = len(values) if isinstance(values, list) else None
        if count != len(episodes):
            returned = type(values).__name__ if count is None else f"{count} values"
            raise ConfigError(
                f"the reward function {self.__name__!r} must return a list of {len(episodes)} values, one "
                f"for each episode; it returned {returned}."
            )
        return [self._sum(*each) for each in zip(episodes, map(_listed, values), strict=True)]

    def _sum(self, episode: Episode, value: Any) -> float | None:
        if not isinstance(value, list):
            return self._number(value)
        if len(value) != len(episode.turns):
            raise ConfigError(
                f"the reward function {self.__name__!r} gave {len(value)} step rewards for an episode of "
                f"{len(episode.turns)} turns; give one for each turn, or a number for the episode."
            )
        numbers = [self._number(_listed(each)) for each in value]
        for turn, number in zip(episode.turns, numbers, strict=True):
            if number is not None:
                turn.rewards[self.__name__] = number
        given = [number for number in numbers if number is not None]
        return sum(given) if given else None

    def _number(self, value: Any) -> float | None:
        if value is not None and not isinstance(value, int | float):
            raise ConfigError(
                f"the reward function {self.__name__!r} gave {value!r:.80} as a reward; give a number, or "
                "None."
            )
        return float(value) if value is not None and math.isfinite(value) else None


class AsyncStepRewards(StepRewards):
    """Wrapper of a coroutine function, which TRL awaits concurrently; elsewhere `call_reward` awaits it."""

    async def __call__(self, episode: Sequence[Episode], **kwargs: Any) -> Any:
        with self._named():
            values = await self.function(episode=episode, **kwargs)  # type: ignore[misc]
        return self._sums(episode, values)


def _listed(value: Any) -> Any:
    """Return arrays, tensors and their elements as Python lists and numbers, and tuples as lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, tuple) else value


def call_reward(function: Callable[..., Any], **given: Any) -> Any:
    """Call a reward function; await a coroutine function, even if an event loop is already running."""
    values = function(**given)
    if not inspect.iscoroutine(values):
        return values
    return asyncio.run_coroutine_threadsafe(values, _event_loop()).result()


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop for all calls, because clients that a function keeps open belong to one loop."""
    _, loop, ready = start_event_loop_in_daemon("rewards")
    ready.wait()
    return loop


GIVEN = ("episode", "prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Keyword arguments that training passes to each reward function, besides the dataset's columns."""


def with_step_rewards(function: Any) -> Any:
    """Wrap a reward function in `StepRewards`; return models unchanged. Raise ConfigError if it does
    not accept the arguments `GIVEN`."""
    if not callable(function) or isinstance(function, nn.Module | StepRewards):
        return function
    try:
        inspect.signature(function).bind_partial(**dict.fromkeys(GIVEN))
    except TypeError as error:
        name = get_callable_name(function)
        raise ConfigError(
            f"the reward function {name!r} cannot take what a training gives it: {error}. Write it as def "
            f"{name}(episode, **kwargs)."
        ) from None
    return (AsyncStepRewards if is_async_callable(function) else StepRewards)(function)


def plain(function: Any) -> Any:
    """Undo `with_step_rewards`."""
    return function.function if isinstance(function, StepRewards) else function


def gives_no_steps(functions: Sequence[Any]) -> bool:
    """Return whether no function can give step rewards; a user's own function can."""
    return not any(getattr(plain(each), "steps", True) for each in functions)


def _name_of(function: Any) -> str | None:
    """Return the name of a function in `NAMED`, or of an instance of a class in it, or `None`."""
    own = getattr(function, "__name__", None)
    for name, made in NAMED.items():
        if function is made or (isinstance(made, type) and isinstance(function, made) and own == name):
            return name
    return None


def describe_reward(function: Any) -> dict[str, Any] | None:
    """Return what `load_reward_functions` needs to load the function again: its name, and the values of an
    outcome reward. Return `None` if it cannot be loaded again, such as a module that TRL calls itself."""
    function = plain(function)
    if isinstance(function, LearnedReward):
        return {"function": function.name}
    if isinstance(function, OutcomeReward):
        return {"function": "outcome", **asdict(function)}
    name = _name_of(function) or place_of(function)
    return None if name is None else {"function": name}


def prepare_reward_models(trainer: GRPOTrainer, protocol: AgentProtocol) -> None:
    """Give reward models the policy's roles, tools and template settings. Modules that TRL calls itself get
    the conversation from TRL, without the tools.

    Raises:
        ConfigError: if the chat template of a reward model cannot show an episode, or two functions have the
            same name.
    """
    names = trainer.reward_func_names
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(
            f"two reward functions are named {repeated[0]!r}, so their values could not be told apart; give "
            "each its own name (a function's __name__, the folder of a model)."
        )
    shown = {**trainer.chat_template_kwargs, "tools": protocol.tools}
    models = zip(
        trainer.reward_func_names, trainer.reward_funcs, trainer.reward_processing_classes, strict=True
    )
    remedy = "Give reward_processing_classes a tokenizer whose chat_template can."
    for name, function, tokenizer in models:
        if isinstance(function, nn.Module):
            check_shows_episodes(name, tokenizer, protocol.observation_role, shown, remedy=remedy)
        elif isinstance(own := plain(function), LearnedReward):
            own.read_as(protocol, trainer.chat_template_kwargs, trainer.accelerator.device)
