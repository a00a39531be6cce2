"""Input of an advantage: a batch of episodes with their rewards, by turn and by token.

Shapes: N episodes over all ranks, F reward functions, at most K turns, at most T tokens after the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import torch

from trl_dbbench.episode.types import Episode

NO_TURN = -1


@dataclass(frozen=True)
class AdvantageBatch:
    """Sampled episodes of all ranks, in row order, with tensors on the CPU.

    Attributes:
        episodes: the N episodes.
        rewards: (N, F), NaN if a function gave no reward or the environment failed.
        weights: (F,), weights of the reward functions.
        groups: (N,), each episode's group number, from 0; a group shares one prompt.
        penalties: (N,), subtracted from the rewards, as by `kl_in_reward`; 0 for none.
    """

    episodes: Sequence[Episode]
    rewards: torch.Tensor
    weights: torch.Tensor
    groups: torch.Tensor
    penalties: torch.Tensor | float = 0.0

    @cached_property
    def weighted(self) -> torch.Tensor:
        """(N,): weighted sum of an episode's rewards minus its penalty.

        NaN if all its rewards are NaN; it is then left out of the update.
        """
        total = (self.rewards * self.weights).nansum(dim=1) - self.penalties
        return total.masked_fill(self.scored.logical_not(), torch.nan)

    @cached_property
    def scored(self) -> torch.Tensor:
        """(N,): True if an episode has any reward."""
        return ~self.rewards.isnan().all(dim=1)

    @cached_property
    def mask(self) -> torch.Tensor:
        """(N, T): 1 on sampled tokens, 0 on observations and padding."""
        return padded([episode.mask for episode in self.episodes], 0)

    @cached_property
    def turns(self) -> torch.Tensor:
        """(N, T): the turn number, from 0, of a sampled token; -1 elsewhere."""
        return padded([turns_of_tokens(episode) for episode in self.episodes], NO_TURN)

    @cached_property
    def step_rewards(self) -> torch.Tensor:
        """(N, K, F): each turn's step rewards; NaN without one."""
        names = list(self.episodes[0].rewards)
        rewards = torch.full((*self.has_turn.shape, len(names)), torch.nan)
        for n, episode in enumerate(self.episodes):
            for k, turn in enumerate(episode.turns):
                for f, name in enumerate(names):
                    rewards[n, k, f] = turn.rewards.get(name, torch.nan)
        return rewards

    @cached_property
    def has_turn(self) -> torch.Tensor:
        """(N, K): True if the episode has this turn."""
        lengths = torch.tensor([len(episode.turns) for episode in self.episodes])
        return torch.arange(int(lengths.max())) < lengths[:, None]

    @cached_property
    def steps(self) -> torch.Tensor:
        """(N, K): weighted sum of each turn's step rewards; NaN if no function gives one."""
        total = (self.step_rewards * self.weights).nansum(dim=2)
        return total.masked_fill(self.step_rewards.isnan().all(dim=2), torch.nan)

    @cached_property
    def outcomes(self) -> torch.Tensor:
        """(N,): `weighted`, over only those functions that reward the episode as a whole."""
        whole = self.step_rewards.isnan().all(dim=1)  # (N, F)
        total = (self.rewards * whole * self.weights).nansum(dim=1) - self.penalties
        return total.masked_fill(self.scored.logical_not(), torch.nan)

    @cached_property
    def turn_rewards(self) -> torch.Tensor:
        """(N, K): `steps`, plus `outcomes` at the last turn; 0 without either. NaN at the last turn of an
        episode without any reward."""
        rewards = self.steps.nan_to_num()
        last = self.has_turn.sum(dim=1) - 1
        played = last >= 0
        rewards[played, last[played]] += self.outcomes[played]
        return rewards

    def returns(self, gamma: float = 1.0) -> torch.Tensor:
        """(N, K): discounted return from each turn k: sum over j >= k of gamma^(j-k) times `turn_rewards` j.

        NaN for missing turns and for episodes without any reward.
        """
        rewards = self.turn_rewards
        returns = torch.zeros_like(rewards)
        ahead = torch.zeros(len(rewards))
        for k in reversed(range(rewards.shape[1])):
            ahead = torch.where(self.has_turn[:, k], rewards[:, k] + gamma * ahead, ahead)
            returns[:, k] = ahead
        return returns.masked_fill(~self.has_turn, torch.nan)

    def token_rewards(self) -> torch.Tensor:
        """(N, T): `turn_rewards` at each turn's last sampled token, 0 elsewhere."""
        return self.at_last_tokens(self.turn_rewards)

    def noted(self, of_tokens: Sequence[Sequence[float] | None]) -> torch.Tensor:
        """(N, T): N lists of values per token, or `None`, padded with 0."""
        rows = torch.zeros(self.mask.shape)
        for row, values in zip(rows, of_tokens, strict=True):
            row[: len(values or ())] = torch.tensor(values or [])
        return rows

    def over_tokens(self, values: torch.Tensor) -> torch.Tensor:
        """(N, K) -> (N, T): each turn's value on all its sampled tokens, 0 elsewhere."""
        if not values.shape[1]:
            return torch.zeros(self.turns.shape)
        spread = values.gather(1, self.turns.clamp(min=0))
        return spread.masked_fill(self.turns == NO_TURN, 0.0)

    def at_last_tokens(self, values: torch.Tensor) -> torch.Tensor:
        """(N, K) -> (N, T): each turn's value at its last sampled token, 0 elsewhere."""
        after = torch.nn.functional.pad(self.turns[:, 1:], (0, 1), value=NO_TURN)
        return self.over_tokens(values).masked_fill(self.turns == after, 0.0)


Need = Literal["groups", "step_rewards"]
NEEDS: dict[Need, str] = {
    "groups": "compares the samples of a prompt, and num_generations is 1; set it to 2 or more",
    "step_rewards": "goes by each turn's reward, and no reward function gives one; add one that does to "
    "reward_funcs, such as executes or state_progress",
}
"""Requirement of an advantage -> error message if it is not met."""

C = TypeVar("C", bound=Callable)


def needs(*what: Need) -> Callable[[C], C]:
    """Declare an advantage's requirements: `groups` of at least two samples per prompt, `step_rewards`."""

    def mark(function: C) -> C:
        function.needs = frozenset(what)  # type: ignore[attr-defined]
        return function

    return mark


def turns_of_tokens(episode: Episode) -> list[int]:
    return [
        place
        for number, turn in enumerate(episode.turns)
        for place in [number] * len(turn.completion.ids) + [NO_TURN] * len(turn.observation_ids)
    ]


def padded(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    width = max(1, *map(len, rows))  # an episode without a turn has one masked token
    return torch.tensor([list(row) + [filler] * (width - len(row)) for row in rows])
