"""Rewards of a replay, computed by the run's own functions or by others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import torch
from trl.trainer.utils import get_callable_name

from trl_dbbench.database import Database
from trl_dbbench.database.dialect import Dialect
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.learned import LearnedReward
from trl_dbbench.rewards.outcome import OUTCOME_PRESETS, OutcomeReward
from trl_dbbench.rewards.registry import (
    RewardFunction,
    call_reward,
    describe_reward,
    load_reward_functions,
    plain,
    with_step_rewards,
)
from trl_dbbench.runs.conversations import prompt_messages, protocol_of
from trl_dbbench.runs.differences import Difference, Replayed, excuse_of
from trl_dbbench.runs.records import EpisodeRecord
from trl_dbbench.runs.settings import RunSettings

MAX_SCORED_AT_ONCE = 1024
"""Most episodes per call of a reward function."""


@dataclass(frozen=True)
class Reward:
    """A reward function under its name."""

    name: str
    function: Callable[..., list[float | None]]
    same: bool
    """True if the run used this function with these values, so that rewards must be equal."""


def rewards_of(
    settings: RunSettings,
    names: Sequence[str] | None,
    outcome: OutcomeReward | None,
    database: Database,
    notes: list[str],
) -> list[Reward]:
    """Return the named reward functions; without names, the run's own functions that can be loaded."""
    values = outcome or outcome_of(settings)
    functions: list[RewardFunction] = []
    if names is not None:
        functions = loaded_rewards(names, settings, database, values)
    elif not settings.rewards:
        notes.append("The run does not say how it was rewarded: rewards are not checked.")
    else:
        for name, made in settings.rewards.items():
            try:
                if made is None:
                    raise ConfigError("it is not a function that can be imported")
                functions += loaded_rewards([made["function"]], settings, database, values)
            except ConfigError as error:
                notes.append(f"The reward {name} is not checked: {error}.")
    named = {get_callable_name(function): with_step_rewards(function) for function in functions}
    return [
        Reward(name, function, settings.rewards.get(name) == describe_reward(function))
        for name, function in named.items()
    ]


def loaded_rewards(
    names: Sequence[str], settings: RunSettings, database: Database, outcome: OutcomeReward
) -> list[RewardFunction]:
    """Return the named rewards, prepared for these settings; raise ConfigError if one cannot be loaded."""
    functions = load_reward_functions(names, database=database, outcome=outcome)
    for function in functions:
        if isinstance(function, LearnedReward):
            device = "cuda" if torch.cuda.is_available() else "cpu"
            function.read_as(protocol_of(settings), settings.chat_template_kwargs, device)
    return functions


def outcome_of(settings: RunSettings) -> OutcomeReward:
    """Return the outcome reward of a run, or the default one if it had none."""
    for made in settings.rewards.values():
        if made is not None and made["function"] == "outcome":
            return OutcomeReward(**{name: value for name, value in made.items() if name != "function"})
    return OUTCOME_PRESETS["greedy_then_grpo"]


def batches(replayed: Iterable[Replayed]) -> Iterator[list[Replayed]]:
    """Yield the episodes that the run scored together; large evaluations in parts."""
    for _, group in groupby(replayed, key=lambda each: (each.saved["phase"], each.saved["step"])):
        while batch := list(islice(group, MAX_SCORED_AT_ONCE)):
            yield batch


def score(
    batch: Sequence[Replayed],
    rewards: list[Reward],
    settings: RunSettings,
    dialect: Dialect,
    notes: list[str],
) -> None:
    """Reward the episodes, and compare rewards marked as `same`. If such a function fails, remove it from the
    list with a note; if another one fails, raise ConfigError."""
    for reward in list(rewards):
        scored = [
            (each, each.episode)
            for each in batch
            if each.episode is not None
            and each.episode.status != Status.ENVIRONMENT_FAULT
            and (not reward.same or reward.name in each.saved["rewards"])  # greedy episodes got none
        ]
        if not scored:
            continue
        try:
            prompts = [prompt_messages(each.saved, episode.task, settings) for each, episode in scored]
            values = values_of(reward.function, [episode for _, episode in scored], prompts)
        except Exception as error:  # a user's function may need what a replay lacks
            what = f"fails on saved episodes, which have no token ids: {type(error).__name__}: {error}"
            if not reward.same:
                raise ConfigError(f"the reward function '{reward.name}' {what}") from error
            notes.append(f"The reward {reward.name} is not checked: it {what}.")
            rewards.remove(reward)
            continue
        for (each, episode), value in zip(scored, values, strict=True):
            episode.rewards[reward.name] = value
            if reward.same:
                each.differences += _differences(reward, each.saved, episode, dialect)


def _differences(
    reward: Reward, saved: EpisodeRecord, episode: Episode, dialect: Dialect
) -> Iterator[Difference]:
    """Yield the rewards, of the episode and of its turns, that changed, appeared or disappeared."""
    name, turns = reward.name, zip(saved["turns"], episode.turns, strict=False)
    rewards = [(saved["rewards"].get(name), episode.rewards[name])]
    rewards += [(turn.get("rewards", {}).get(name), now.rewards.get(name)) for turn, now in turns]
    for number, (was, value) in enumerate(rewards):
        if not _same_reward(was, value, reward.function):
            _, excuse = excuse_of(saved, episode, dialect)
            yield Difference(f"reward {name}", was, value, number, excuse)


def values_of(
    function: Callable[..., list[float | None]],
    episodes: Sequence[Episode],
    prompts: Sequence[list[dict[str, Any]]],
    **columns: Any,
) -> list[float | None]:
    """Return the values of a reward function (see `with_step_rewards`), given TRL's arguments."""
    return call_reward(
        function,
        episode=episodes,
        prompts=prompts,
        completions=[episode.messages() for episode in episodes],
        task=[episode.task.to_json() for episode in episodes],
        **columns,
    )


def _same_reward(was: Any, now: float | None, function: Callable) -> bool:
    """Return whether rewards are equal in fp32, which TRL uses, or within a reward model's own tolerance."""
    if was is None or now is None or not isinstance(was, int | float):
        return was is now
    if isinstance(own := plain(function), LearnedReward):
        return abs(was - now) <= own.tolerance * max(1.0, abs(was))
    return math.isclose(was, now, rel_tol=1e-6)
