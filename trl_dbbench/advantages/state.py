"""Credit by the database's state: turns that start from the same tables are compared."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from trl_dbbench.advantages.batch import AdvantageBatch, needs
from trl_dbbench.advantages.estimators import EPSILON, check_share, normalised, places_of_groups, vary
from trl_dbbench.database import Database
from trl_dbbench.episode.table_states import for_each_episode, states_along
from trl_dbbench.episode.types import Episode
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading.states import state_digest


class _ByStates:
    """Compares turns that start from the same tables."""

    def prepare(self, trainer: Any, episodes: Sequence[Episode]) -> None:
        """Record in each turn a digest of the tables before it."""
        for_each_episode(episodes, trainer.player.database, "the credit by states", note_states)


@needs("groups")
class StateGroups(_ByStates):
    """GiGPO (Feng et al., 2025, "Group-in-Group Policy Optimization") with the tables as the anchor.

    An episode's advantage is its reward normalised in its group. A turn's is added, times `omega`: the return
    from there on, normalised over the turns of the group that start from the same tables after the same
    observations. Statements are executed again, once, to read the tables between them.

    Args:
        omega: weight of a turn's own advantage, 0 or more.
        gamma: the discount for each turn between a reward and what led to it, 0 to 1.

    Raises:
        ConfigError: for other values.
    """

    def __init__(self, omega: float = 1.0, gamma: float = 0.95):
        check_share("gamma", gamma)
        if isinstance(omega, bool) or not isinstance(omega, int | float) or omega < 0:
            raise ConfigError(f"omega in advantage_args must be 0 or more, is {omega!r}.")
        self.omega, self.gamma = omega, gamma

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        own = normalised(batch.weighted, batch.groups)
        returns = batch.returns(self.gamma)  # (N, K)
        turns = normalised(returns.flatten(), _numbers_of_states(batch).flatten()).view(returns.shape)
        return batch.over_tokens(own[:, None] + self.omega * turns.nan_to_num())


@needs("groups")
class StateTree(_ByStates):
    """A turn's advantage is V(after it) - V(before it), with V from the group's own episodes: vine's
    (Kazemnejad et al., 2024, VinePPO) without its continuations.

    A group's episodes form a tree. A node is a state as in `StateGroups`: the same tables after the same
    observations. V of a node is the mean return of the episodes that came through it. A turn gets its own
    reward, plus V of the node it leads to, less V of the node it starts from; at a node of one episode, V is
    its return. All in units of the standard deviation of the group's rewards. An episode's turns sum up to
    its `grpo` advantage.

    Args:
        lam: discount of later turns' differences, as in GAE (Schulman et al., 2016). 0: only the turn's own;
        1: the
            return from there on, less V of the node.

    Raises:
        ConfigError: if it is not a number from 0 to 1.
    """

    def __init__(self, lam: float = 0.0):
        check_share("lam", lam)
        self.lam = lam

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        returns, numbers = batch.returns(), _numbers_of_states(batch)  # (N, K)
        values = torch.zeros_like(returns)
        for places in places_of_groups(returns.flatten(), numbers.flatten()):
            values.view(-1)[places] = returns.flatten()[places].mean()
        changes = batch.turn_rewards + F.pad(values[:, 1:], (0, 1)) - values
        ahead = torch.zeros(len(changes))
        for k in reversed(range(changes.shape[1])):
            changes[:, k] = ahead = changes[:, k] + self.lam * ahead
        scale = torch.full_like(batch.weighted, torch.nan)
        for rows in places_of_groups(batch.weighted, batch.groups):
            rewards = batch.weighted[rows]
            scale[rows] = 1 / (rewards.std() + EPSILON) if vary(rewards) else 0.0
        return batch.over_tokens((scale[:, None] * changes).nan_to_num())


def _numbers_of_states(batch: AdvantageBatch) -> torch.Tensor:
    """Return (N, K), equal for a group's turns that start from the same tables and observations."""
    numbers = torch.zeros(batch.has_turn.shape, dtype=torch.long)
    known: dict[Hashable, int] = {}
    for n, episode in enumerate(batch.episodes):
        seen: tuple[str, ...] = ()
        for k, turn in enumerate(episode.turns):
            numbers[n, k] = known.setdefault((batch.groups[n].item(), turn.state, seen), len(known) + 1)
            seen = (*seen, turn.observation or "")
    return numbers


def note_states(episode: Episode, database: Database) -> None:
    """Write into each turn a digest of the tables before it.

    Raises:
        EnvironmentFault: if the database fails, or the tables cannot be rebuilt.
    """
    digests: dict[int, str] = {}  # most turns change nothing, and the state is the same object
    for turn, state in zip(episode.turns, states_along(episode, database), strict=False):
        if id(state) not in digests:
            digests[id(state)] = state_digest(state)
        turn.state = digests[id(state)]
