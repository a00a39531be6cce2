"""Advantages computed from a batch's rewards alone, as pure functions.

- An episode without any reward (NaN: its environment failed) is left out of all statistics. Its own
  advantage is NaN, which counts as 0.
- A group with equal rewards, or with only one episode left, gets exactly 0.
- Standard deviations divide by n - 1.

`docs/credit.md` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from trl_dbbench.advantages.batch import AdvantageBatch, needs
from trl_dbbench.utils.lookup import check_choice
from trl_dbbench.utils.settings import check_number

EPSILON = 1e-6
"""Constant added to standard deviations. TRL's own is 1e-4."""


def in_groups(
    values: torch.Tensor, groups: torch.Tensor, of_group: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Return `of_group` applied to each group's values; 0 in groups whose values are equal.

    Args:
        values: (N,); NaN is left out and stays NaN.
        groups: (N,), group numbers.
    """
    result = torch.full_like(values, torch.nan)
    for rows in places_of_groups(values, groups):
        own = values[rows]
        result[rows] = of_group(own) if vary(own) else 0.0
    return result


def normalised(values: torch.Tensor, groups: torch.Tensor, epsilon: float = EPSILON) -> torch.Tensor:
    """Return (v - mean) / (std + epsilon) within each group; see `in_groups`."""
    return in_groups(values, groups, lambda own: (own - own.mean()) / (own.std() + epsilon))


def normalised_columns(values: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Return (N, L) values, each column `normalised` separately."""
    columns = [normalised(column, groups) for column in values.unbind(dim=1)]
    return torch.stack(columns, dim=1) if columns else values


@needs("groups")
def grpo(batch: AdvantageBatch) -> torch.Tensor:
    """Return (r - mean) / (std + 1e-4) in each group, as TRL computes it (Shao et al., 2024, DeepSeekMath).

    `advantage: grpo` is TRL's own result; this function is for rewards that TRL has not seen.
    """
    return normalised(batch.weighted, batch.groups, epsilon=1e-4)


@needs("groups")
def rloo(batch: AdvantageBatch) -> torch.Tensor:
    """Return a reward minus the mean of the others in its group (Ahmadian et al., 2024, "Back to Basics")."""
    return in_groups(batch.weighted, batch.groups, lambda own: own - (own.sum() - own) / (len(own) - 1))


@needs("groups")
def reinforce_pp(batch: AdvantageBatch) -> torch.Tensor:
    """Return rewards minus their group's mean, normalised over the batch (Hu, 2025, REINFORCE++).

    Within a group the differences from its mean add up to 0, so the batch's mean is 0 and is not subtracted.
    """
    centred = in_groups(batch.weighted, batch.groups, lambda own: own - own.mean())
    return in_groups(centred, torch.zeros_like(batch.groups), lambda own: own / (own.std() + EPSILON))


@needs("groups")
def weighted(batch: AdvantageBatch) -> torch.Tensor:
    """Return w (r - mean) / (std + eps), w = 0.5 + 0.5 (r - min) / (max - min) (RewardSQL).

    The best episode weighs twice as much as the worst, so a group's sum is not 0.
    """
    weights = in_groups(
        batch.weighted, batch.groups, lambda own: 0.5 + 0.5 * (own - own.min()) / (own.max() - own.min())
    )
    return normalised(batch.weighted, batch.groups) * weights


@needs("groups", "step_rewards")
@dataclass(frozen=True)
class ProcessAvgUnique:
    """Each turn's step reward x, signed and scaled by its episode's advantage A in the group (RewardSQL).

    u is the mean of an episode's distinct nonzero step rewards, or 0; A = (u - mean) / (std + eps) in the
    group. If A > 0, a turn gets A (x - 1) for x > 1 and A x otherwise; if A <= 0, it gets A (1 - x), so that
    a reward above 1 makes a negative A positive. Turns without a reward get 0. Rewards for whole episodes do
    not count.

    Args:
        step_spread: sampled tokens of a turn that get its value: `last_token` (as in RewardSQL), or `turn`
            for all.
    """

    step_spread: Literal["last_token", "turn"] = "last_token"

    def __post_init__(self) -> None:
        check_choice("advantage_args.step_spread", self.step_spread, ("last_token", "turn"))

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        steps = batch.steps  # (N, K)
        means = [torch.unique(row[~row.isnan() & (row != 0)]) for row in steps]
        unique = torch.stack([values.mean() if len(values) else torch.tensor(0.0) for values in means])
        advantage = normalised(unique.masked_fill(~batch.scored, torch.nan), batch.groups)[:, None]
        given = torch.where(steps > 1, advantage * (steps - 1), advantage * steps)
        given = torch.where(advantage > 0, given, advantage * (1 - steps)).nan_to_num()
        return batch.over_tokens(given) if self.step_spread == "turn" else batch.at_last_tokens(given)


@needs("groups")
def token_wise(batch: AdvantageBatch) -> torch.Tensor:
    """Return token rewards, normalised at each position over the group's episodes (RewardSQL).

    Token rewards are `AdvantageBatch.token_rewards`. Positions count from the first token after the prompt; a
    position where fewer than two episodes sampled a token gets 0.
    """
    rewards = batch.token_rewards()  # (N, T)
    sampled = (batch.mask == 1) & batch.scored[:, None]
    return normalised_columns(rewards.masked_fill(~sampled, torch.nan), batch.groups)


@needs("groups")
@dataclass(frozen=True)
class TurnReturns:
    """Turn-level GRPO: returns from each turn, normalised over the group's episodes with that turn.

    Args:
        gamma: discount per turn, 0 to 1.
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        check_number("advantage_args.gamma", self.gamma)

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        return batch.over_tokens(normalised_columns(batch.returns(self.gamma), batch.groups))


def places_of_groups(values: torch.Tensor, groups: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield, for each group, the indices of its values that are not NaN, if it has any."""
    for group in groups.unique():
        rows = ((groups == group) & ~values.isnan()).nonzero().flatten()
        if len(rows):
            yield rows


def vary(values: torch.Tensor) -> bool:
    """Return whether the values differ; there must be at least one."""
    return bool((values != values[0]).any())
