"""Credit by continuations: episodes are continued from their middle, on real tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from trl_dbbench.advantages.batch import AdvantageBatch, needs
from trl_dbbench.advantages.estimators import in_groups, places_of_groups, vary
from trl_dbbench.episode.types import Episode, Sampling, Start, Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.rewards.registry import StepRewards, call_reward
from trl_dbbench.utils.ranks import Ranks, together
from trl_dbbench.utils.settings import check_number


@needs("groups")
class Vine:
    """VinePPO (Kazemnejad et al., 2024): a turn's advantage is V(after it) - V(before it).

    V before a turn is the mean reward of new continuations: the episode's earlier statements are executed on
    fresh tables, and the policy continues from the same tokens. V before the first turn is the group's mean
    reward, V after the last turn the episode's own. A group with equal rewards gets advantage 0, and no
    continuations are played for it.

    If no continuation from a turn could be played, this turn and the one before share their change in V
    equally.

    Args:
        continuations: number of continuations per turn, for each turn but the first.
    """

    def __init__(self, continuations: int = 4):
        check_number("advantage_args.continuations", continuations, whole=True)
        self.continuations = continuations

    def prepare(self, trainer: Any, episodes: Sequence[Episode]) -> None:
        """Play the continuations, and record their values and token counts in the episodes."""
        places = [
            (episode, number)
            for episode, mixed in zip(episodes, _mixed(trainer), strict=True)
            if mixed and episode.status != Status.ENVIRONMENT_FAULT
            for number in range(1, len(episode.turns))
        ]
        starts = [
            Start(episode.task, episode.prompt_ids, _sampling(episode, number, k), episode.turns[:number])
            for episode, number in places
            for k in range(self.continuations)
        ]
        with trainer.engine() as engine:
            played = trainer.player.play_all(starts, engine)
        with together():
            worth = _worth(trainer, played)
        for place, (episode, number) in enumerate(places):
            own = slice(place * self.continuations, (place + 1) * self.continuations)
            values = [value for value in worth[own] if value is not None]
            episode.turns[number].value = sum(values) / len(values) if values else None
            episode.branch_tokens += sum(
                len(turn.completion.ids) for other in played[own] for turn in other.turns[number:]
            )

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        rewards = batch.weighted
        advantages = torch.zeros(batch.has_turn.shape)
        for rows in places_of_groups(rewards, batch.groups):
            if not vary(rewards[rows]):
                continue
            first = rewards[rows].mean().item()
            for row in rows.tolist():
                values = [first, *(turn.value for turn in batch.episodes[row].turns[1:])]
                changes = differences([*values, rewards[row].item()])
                advantages[row, : len(changes)] = torch.tensor(changes)
        return batch.over_tokens(advantages)


def differences(values: Sequence[float | None]) -> list[float]:
    """Return V(k + 1) - V(k) for each k; turns around an unknown V share the difference equally.

    The first and the last of the K + 1 values must be known.
    """
    known = [place for place, value in enumerate(values) if value is not None]
    changes = list[float]()
    for place, after in pairwise(known):
        change = values[after] - values[place]  # type: ignore[operator]
        changes += [change / (after - place)] * (after - place)
    return changes


def _mixed(trainer: Any) -> list[bool]:
    """Return, for each of this rank's rows, whether it has a reward and its group's rewards differ."""
    groups = torch.arange(len(trainer.rewards)) // trainer.num_generations
    total = AdvantageBatch([], trainer.rewards.cpu(), trainer.reward_weights.cpu(), groups).weighted
    return Ranks().own(in_groups(total, groups, torch.ones_like) == 1).tolist()


def _worth(trainer: Any, episodes: Sequence[Episode]) -> list[float | None]:
    """Return the weighted rewards of continuations; `None` where the environment failed.

    Raise ConfigError if a reward is a module, which only TRL can call.
    """
    by_prompt = {tuple(row["episode"].prompt_ids): row for row in trainer.batch.rows}
    rows = [by_prompt[tuple(each.prompt_ids)] for each in episodes]
    # TRL passes the rows' columns, without these
    columns = set(trainer.batch.rows[0]) - {"prompt", "completion", "completion_ids"}
    given: dict[str, Any] = {name: [row[name] for row in rows] for name in columns} | {
        "episode": episodes,
        "prompts": [row["prompt"] for row in rows],
        "completions": [each.messages() for each in episodes],
        "completion_ids": [each.completion_ids for each in episodes],
        "task": [each.task.to_json() for each in episodes],
        "trainer_state": trainer.state,
        # TRL's table and means are for the trained episodes only
        **dict.fromkeys(("log_extra", "log_metric"), lambda *_, **__: None),
    }
    total: list[float | None] = [None] * len(episodes)  # stays `None` if no function gives a reward
    for function, weight in zip(trainer.reward_funcs, trainer.reward_weights.tolist(), strict=True):
        if not isinstance(function, StepRewards):
            raise ConfigError(
                f"the advantage {trainer.args.advantage!r} asks what other episodes than TRL's are worth, "
                "which only reward functions tell: leave modules such as reward models out."
            )
        values = call_reward(function, **given)
        total = [
            sum if value is None else (sum or 0.0) + weight * value
            for sum, value in zip(total, values, strict=True)
        ]
    failed = [each.status == Status.ENVIRONMENT_FAULT for each in episodes]
    return [None if gone else sum for sum, gone in zip(total, failed, strict=True)]


def _sampling(episode: Episode, number: int, k: int) -> Sampling:
    """Return the episode's sampling with a new seed, for continuation `k` from a turn."""
    own = episode.sampling
    seed = np.random.SeedSequence((own.seed, number, k + 1)).generate_state(1)[0]
    return Sampling(own.temperature, own.top_p, own.top_k, seed=int(seed))
