"""Advantages that are computed from a batch's rewards alone, each a pure function of a page.

What they share:

- An episode without any reward (NaN: its environment failed) is out of every mean, standard deviation,
  minimum and maximum. Its own advantage is NaN, which stands for 0.
- A group in which all rewards are equal gives exactly 0, and so does the only one that is left of a group.
- Standard deviations are of samples (divided by n - 1).

`docs/credit.md` says which to take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from trl_dbbench.advantages.batch import AdvantageBatch, needs
from trl_dbbench.errors import ConfigError

EPSILON = 1e-6
"""Added to standard deviations. TRL's own is 1e-4."""


def normalised(values: torch.Tensor, groups: torch.Tensor, epsilon: float = EPSILON) -> torch.Tensor:
    """Values less their group's mean, in units of its standard deviation: (v - mean) / (std + epsilon).

    Args:
        values: (N,), NaN for those that are left out, which stay NaN.
        groups: (N,), any numbers.
    """
    result = torch.full_like(values, torch.nan)
    for rows in places_of_groups(values, groups):
        result[rows] = 0.0
        if vary(values[rows]):
            result[rows] = (values[rows] - values[rows].mean()) / (values[rows].std() + epsilon)
    return result


@needs("groups")
def grpo(batch: AdvantageBatch) -> torch.Tensor:
    """(r - mean) / (std + 1e-4) in each group, as TRL computes it (Shao et al., 2024, DeepSeekMath).

    What TRL itself gives is under the same name; this one is for rewards that TRL has not seen.
    """
    return normalised(batch.weighted, batch.groups, epsilon=1e-4)


@needs("groups")
def rloo(batch: AdvantageBatch) -> torch.Tensor:
    """Return a reward less the mean of the others of its group (Ahmadian et al., 2024, "Back to Basics")."""
    rewards = batch.weighted
    result = torch.full_like(rewards, torch.nan)
    for rows in places_of_groups(rewards, batch.groups):
        own = rewards[rows]
        result[rows] = 0.0
        if vary(own):
            result[rows] = own - (own.sum() - own) / (len(own) - 1)
    return result


@needs("groups")
def reinforce_pp(batch: AdvantageBatch) -> torch.Tensor:
    """Reward less their group's mean, normalised over the whole batch (Hu, 2025, REINFORCE++)."""
    centred = torch.full_like(batch.weighted, torch.nan)
    for rows in places_of_groups(batch.weighted, batch.groups):
        own = batch.weighted[rows]
        centred[rows] = own - own.mean() if vary(own) else 0.0
    return normalised(centred, torch.zeros_like(batch.groups))


@needs("groups")
def weighted(batch: AdvantageBatch) -> torch.Tensor:
    """w (r - mean) / (std + eps), w = 0.5 + 0.5 (r - min) / (max - min): better episodes weigh up to twice
    as much (RewardSQL). Does not sum to 0.
    """
    rewards = batch.weighted
    result = normalised(rewards, batch.groups)
    for rows in places_of_groups(rewards, batch.groups):
        own = rewards[rows]
        if vary(own):
            result[rows] *= 0.5 + 0.5 * (own - own.min()) / (own.max() - own.min())
    return result


Spread = Literal["last_token", "turn"]


@needs("groups", "step_rewards")
def process_avg_unique(batch: AdvantageBatch, step_spread: Spread = "last_token") -> torch.Tensor:
    """Each turn's reward x, signed and scaled by how its episode compares with the group (RewardSQL).

    u is the mean of an episode's distinct nonzero step rewards, 0 if it has none; A = (u - mean) / (std +
    eps) in the group. A turn with a reward x gets, where A > 0, A (x - 1) if x > 1 and A x otherwise; where
    A <= 0, A (1 - x). So a reward above 1 turns a negative A around. Turns without a reward get 0. Rewards
    for whole episodes do not count.

    Args:
        step_spread: whether a turn's advantage is that of its last sampled token, as in RewardSQL, or of all.
    """
    check_choice("step_spread", step_spread, ("last_token", "turn"))
    steps = batch.steps  # (N, K)
    means = [torch.unique(row[~row.isnan() & (row != 0)]) for row in steps]
    unique = torch.stack([values.mean() if len(values) else torch.tensor(0.0) for values in means])
    advantage = normalised(unique.masked_fill(~batch.scored, torch.nan), batch.groups)[:, None]
    given = torch.where(steps > 1, advantage * (steps - 1), advantage * steps)
    given = torch.where(advantage > 0, given, advantage * (1 - steps)).nan_to_num()
    return batch.over_tokens(given) if step_spread == "turn" else batch.at_last_tokens(given)


@needs("groups")
def token_wise(batch: AdvantageBatch) -> torch.Tensor:
    """Token rewards, normalised at each place over the group's episodes that sampled a token there.

    From RewardSQL.

    A token's reward is its turn's at the turn's last sampled token, at the last turn's with the outcome, and
    0 elsewhere. Places count from the first token after the prompt. Where fewer than two episodes have a
    sampled token, 0.
    """
    rewards = batch.token_rewards()  # (N, T)
    sampled = (batch.mask == 1) & batch.scored[:, None]
    values = rewards.masked_fill(~sampled, torch.nan)
    columns = [normalised(column, batch.groups) for column in values.unbind(dim=1)]
    return torch.stack(columns, dim=1)


@needs("groups")
def turn(batch: AdvantageBatch, gamma: float = 1.0) -> torch.Tensor:
    """Turn-level GRPO: the return from each turn on, normalised over the group's episodes with such a turn.
    All tokens of the turn get it.

    Args:
        gamma: the discount for each turn between a reward and what led to it.
    """
    check_share("gamma", gamma)
    returns = batch.returns(gamma)  # (N, K)
    columns = [normalised(column, batch.groups) for column in returns.unbind(dim=1)]
    return batch.over_tokens(torch.stack(columns, dim=1)) if columns else batch.mask.float()


def places_of_groups(values: torch.Tensor, groups: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield, for each group, the places of its values that are not NaN, if there are any."""
    for group in groups.unique():
        rows = ((groups == group) & ~values.isnan()).nonzero().flatten()
        if len(rows):
            yield rows


def vary(values: torch.Tensor) -> bool:
    """Return whether not all values are the same; there must be one at least."""
    return bool((values != values[0]).any())


def check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    """Raise ConfigError for an argument that is none of these."""
    if value not in allowed:
        raise ConfigError(
            f"unknown {name} {value!r} in advantage_args; allowed: {', '.join(map(str, allowed))}."
        )


def check_share(name: str, value: float) -> None:
    """Raise ConfigError for an argument that is no number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"{name} in advantage_args must be a number from 0 to 1, is {value!r}.")
