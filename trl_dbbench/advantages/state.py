"""Credit by database state: turns that start from the same tables are compared with each other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from trl_dbbench.advantages.batch import AdvantageBatch, needs
from trl_dbbench.advantages.estimators import EPSILON, in_groups, normalised, places_of_groups
from trl_dbbench.advantages.gae import gae
from trl_dbbench.database import Database
from trl_dbbench.episode.table_states import for_each_episode, states_along
from trl_dbbench.episode.types import Episode
from trl_dbbench.grading.states import state_digest
from trl_dbbench.utils.settings import check_number


class _ByStates:
    """Base of advantages that compare turns starting from the same tables."""

    def prepare(self, trainer: Any, episodes: Sequence[Episode]) -> None:
        """Record a digest of the tables before each turn."""
        for_each_episode(episodes, trainer.player.database, "the credit by states", note_states)


@needs("groups")
class StateGroups(_ByStates):
    """GiGPO (Feng et al., 2025, "Group-in-Group Policy Optimization") with the tables as the anchor state.

    A turn's advantage is its episode's reward normalised in the group, plus `omega` times the turn's return,
    normalised over the group's turns that start from the same tables after the same observations. An
    episode's statements are executed once more to find the tables between them.

    Args:
        omega: weight of the turn's return, 0 or more.
        gamma: discount per turn, 0 to 1.
    """

    def __init__(self, omega: float = 1.0, gamma: float = 0.95):
        check_number("advantage_args.omega", omega)
        check_number("advantage_args.gamma", gamma)
        self.omega, self.gamma = omega, gamma

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        own = normalised(batch.weighted, batch.groups)
        returns = batch.returns(self.gamma)  # (N, K)
        turns = normalised(returns.flatten(), _numbers_of_states(batch).flatten()).view(returns.shape)
        return batch.over_tokens(own[:, None] + self.omega * turns.nan_to_num())


@needs("groups")
class StateTree(_ByStates):
    """Turn advantages: a turn's reward plus V(after it) - V(before it), with V from the group's own episodes.

    This is VinePPO (Kazemnejad et al., 2024) without continuations. A group's episodes form a tree with the
    nodes of `StateGroups`: the same tables after the same observations. V of a node is the mean return from
    it, over the episodes through it. Advantages are in units of the standard deviation of the group's
    rewards; those of an episode's turns add up to its `grpo` advantage.

    Args:
        lam: 0 to 1, as in GAE (Schulman et al., 2016). 0 uses only the turn's own difference; 1 uses the
            return minus V of the node.
    """

    def __init__(self, lam: float = 0.0):
        check_number("advantage_args.lam", lam)
        self.lam = lam

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        returns, numbers = batch.returns(), _numbers_of_states(batch)  # (N, K)
        values = torch.zeros_like(returns)
        for places in places_of_groups(returns.flatten(), numbers.flatten()):
            values.view(-1)[places] = returns.flatten()[places].mean()
        changes = gae(batch.turn_rewards, values, batch.has_turn, lam=self.lam)
        scale = in_groups(batch.weighted, batch.groups, lambda own: 1 / (own.std() + EPSILON))
        return batch.over_tokens((scale[:, None] * changes).nan_to_num())


def _numbers_of_states(batch: AdvantageBatch) -> torch.Tensor:
    """Return (N, K), equal for turns of a group that start from the same tables after the same observations.

    First turns of a group are always equal, even for an episode that ended the database server, whose
    tables are unknown.
    """
    numbers = torch.zeros(batch.has_turn.shape, dtype=torch.long)
    known: dict[Hashable, int] = {}
    for n, episode in enumerate(batch.episodes):
        seen: tuple[str, ...] = ()
        for k, turn in enumerate(episode.turns):
            state = turn.state if seen else None
            numbers[n, k] = known.setdefault((batch.groups[n].item(), state, seen), len(known) + 1)
            seen = (*seen, turn.observation or "")
    return numbers


def note_states(episode: Episode, database: Database) -> None:
    """Write into each turn a digest of the tables before it; raise EnvironmentFault if the database fails."""
    digests: dict[int, str] = {}  # most turns change nothing and share one object
    for turn, state in zip(episode.turns, states_along(episode, database), strict=False):
        if id(state) not in digests:
            digests[id(state)] = state_digest(state)
        turn.state = digests[id(state)]
