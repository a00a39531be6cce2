"""Credit by the database's own state: turns that start from the same tables are compared with each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from trl_dbbench.credit.batch import AdvantageBatch, needs
from trl_dbbench.credit.estimators import check_share, normalised
from trl_dbbench.database import Database
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading.states import state_digest
from trl_dbbench.retrace import of_each, states_along
from trl_dbbench.rollout import Episode


@needs("groups")
class StateGroups:
    """GiGPO (Feng et al., 2025, "Group-in-Group Policy Optimization") with the tables as the anchor.

    An episode's advantage is its reward normalised in its group. A turn's is added to it, times `omega`: what
    the episode earns from there on, normalised over the turns of the group that start from the same tables
    after the same observations. Statements are executed again, once, for the tables between them.

    Args:
        omega: what a turn's own advantage weighs, 0 or more.
        gamma: the discount for each turn between a reward and what led to it, 0 to 1.

    Raises:
        ConfigError: for other values.
    """

    def __init__(self, omega: float = 1.0, gamma: float = 0.95):
        check_share("gamma", gamma)
        if isinstance(omega, bool) or not isinstance(omega, int | float) or omega < 0:
            raise ConfigError(f"omega in advantage_args must be 0 or more, is {omega!r}.")
        self.omega, self.gamma = omega, gamma

    def prepare(self, trainer: Any, episodes: Sequence[Episode]) -> None:
        """Notes in each turn a digest of the tables before it."""
        of_each(episodes, trainer.player.database, "the advantage state", note_states)

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N, T)"""
        own = normalised(batch.weighted, batch.groups)
        returns = batch.returns(self.gamma)  # (N, K)
        anchors: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        for n, episode in enumerate(batch.episodes):
            seen: tuple[str, ...] = ()
            for k, turn in enumerate(episode.turns):
                anchors[batch.groups[n].item(), turn.state, seen].append((n, k))
                seen = (*seen, turn.observation or "")
        numbers = torch.zeros(returns.shape, dtype=torch.long)
        for number, places in enumerate(anchors.values()):
            for n, k in places:
                numbers[n, k] = number
        turns = normalised(returns.flatten(), numbers.flatten()).view(returns.shape).nan_to_num()
        return batch.over_tokens(own[:, None] + self.omega * turns)


def note_states(episode: Episode, database: Database) -> None:
    """Writes into each turn a digest of the tables before it.

    Raises:
        EnvironmentFault: if the database fails, or the tables may not become what they were.
    """
    digests: dict[int, str] = {}  # most turns change nothing, and the state is the same object
    for turn, state in zip(episode.turns, states_along(episode, database), strict=False):
        if id(state) not in digests:
            digests[id(state)] = state_digest(state)
        turn.state = digests[id(state)]
