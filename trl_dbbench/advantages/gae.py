"""Generalised advantage estimation (Schulman et al., 2016) over the agent's sampled tokens."""

from __future__ import annotations

from typing import Any

import torch

from trl_dbbench.advantages.batch import AdvantageBatch
from trl_dbbench.advantages.estimators import normalised, vary
from trl_dbbench.episode.types import Status
from trl_dbbench.errors import ConfigError
from trl_dbbench.utils.settings import check_number


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float = 1.0, lam: float = 1.0
) -> torch.Tensor:
    """Return the advantage of each sampled token.

    Over a row's sampled tokens 0, ..., n: delta_t = r_t + gamma V_(t+1) - V_t with V_(n+1) = 0, and
    A_t = sum over l >= 0 of (gamma lam)^l delta_(t+l). Observations are skipped: the sampled tokens before
    and after one are neighbours.

    Args:
        rewards: (N, T), reward for sampling the token.
        values: (N, T), value of the state before the token.
        mask: (N, T), 1 on sampled tokens.

    Returns:
        (N, T), 0 where nothing was sampled.
    """
    sampled = mask.bool()
    advantages = torch.zeros_like(values)
    ahead = next_value = values.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        ahead = torch.where(sampled[:, t], delta + gamma * lam * ahead, ahead)
        next_value = torch.where(sampled[:, t], values[:, t], next_value)
        advantages[:, t] = torch.where(sampled[:, t], ahead, 0.0)
    return advantages


class GAE:
    """PPO's advantages, from the critic's values in `Episode.token_values`.

    After a call, `returns` (N, T) holds the critic's targets, advantages before whitening plus values;
    `values` (N, T) its predictions; and `sampled` (N, T) a mask of the tokens that count.

    Args:
        gamma: discount per sampled token, 0 to 1.
        lam: 0 to 1. 1 uses the final return; lower values trust the critic more (less variance, more bias).
        whiten: whether to give advantages mean 0 and standard deviation 1 over all ranks' sampled tokens.
    """

    def __init__(self, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True):
        check_number("advantage_args.gamma", gamma)
        check_number("advantage_args.lam", lam)
        if not isinstance(whiten, bool):
            raise ConfigError(f"whiten in advantage_args must be true or false, is {whiten!r}.")
        self.gamma, self.lam, self.whiten = gamma, lam, whiten
        self.returns = self.values = self.sampled = torch.zeros(0, 1)

    def check(self, trainer: Any) -> None:
        if not hasattr(trainer, "values_of"):
            raise ConfigError(
                "the advantage 'gae' asks a critic, which GRPO has not; train with DBBenchPPOTrainer "
                "(recipes/ppo_dbbench.py), or take another advantage."
            )

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        self.values = batch.noted([episode.token_values for episode in batch.episodes])
        played = torch.tensor([episode.status != Status.ENVIRONMENT_FAULT for episode in batch.episodes])
        self.sampled = (batch.mask == 1) & (played & batch.scored)[:, None]
        rewards = batch.token_rewards().nan_to_num()
        advantages = gae(rewards, self.values, self.sampled, self.gamma, self.lam)
        self.returns = (advantages + self.values) * self.sampled
        return whitened(advantages, self.sampled) if self.whiten else advantages


def whitened(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return (N, T) values whitened to mean 0 and standard deviation 1 where `mask` is set; 0 elsewhere.

    If all values are equal, the result is 0.
    """
    result = torch.zeros_like(values)
    result[mask] = normalised(values[mask], torch.zeros(int(mask.sum())))
    return result


def explained_variance(returns: torch.Tensor, values: torch.Tensor) -> float:
    """Return 1 - Var(returns - values) / Var(returns) for two (M,) tensors; NaN if all returns are equal.

    1 is a perfect critic, 0 one as good as a constant.
    """
    if len(returns) < 2 or not vary(returns):
        return float("nan")
    return 1 - ((returns - values).var() / returns.var()).item()
