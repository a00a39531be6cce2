"""Assignment of rewards to episodes, and of advantages, TRL's or the configured ones, to tokens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from trl_dbbench.advantages.batch import AdvantageBatch
from trl_dbbench.advantages.registry import AdvantageFunction, compute, note
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.utils.ranks import Ranks, together

NO_REWARD = (
    "No reward function gave a value for an episode, and the update leaves it out. That is so for void ones, "
    "whose environment failed; look at the others, if there are any."
)


def without_rows(record: logging.LogRecord) -> bool:
    """Shorten TRL's warning about a row without reward, which prints the row's tables; a logging filter."""
    if "All reward functions returned None" in str(record.msg)[:60]:  # after the number of its rank
        record.msg, record.args = NO_REWARD, ()
    return True


def note_rewards(
    episodes: Sequence[Episode],
    rewards: torch.Tensor,
    names: Sequence[str],
    gather: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Write this rank's rewards into its episodes. All ranks call it together.

    Args:
        rewards: (N, F), of all ranks. Rows whose environment failed are set to NaN, whatever a reward
            function returned.
        names: names of the reward functions.
    """
    failed = [episode.status == Status.ENVIRONMENT_FAULT for episode in episodes]
    rewards[gather(torch.tensor(failed, device=rewards.device))] = torch.nan
    for episode, values in zip(episodes, Ranks().own(rewards).tolist(), strict=True):
        # TRL holds them in fp32, with about seven digits: -0.8 comes back as -0.800000012
        known = (None if np.isnan(value) else float(f"{value:.7g}") for value in values)
        episode.rewards = dict(zip(names, known, strict=True))


def assign(
    name: str,
    function: AdvantageFunction,
    episodes: Sequence[Episode],
    rewards: torch.Tensor,
    weights: torch.Tensor,
    group_size: int,
    width: int,
    penalties: torch.Tensor | float = 0.0,
) -> tuple[torch.Tensor, list[float]]:
    """Compute the advantages of this rank's episodes and record them there. All ranks call it together.

    Args:
        name: name of the function, for errors.
        episodes: this rank's episodes. A group of `group_size` consecutive ones may span several ranks.
        rewards: (N, F), of all ranks.
        weights: (F,).
        width: number of tokens to which this rank's completions are padded.
        penalties: (N,), subtracted from the rewards of all ranks' episodes.

    Returns:
        Advantages (n,) or (n, width) of this rank's n episodes, and one value for each of all ranks' N
        episodes, for the log.
    """
    ranks = Ranks()
    parts = ranks.gather(episodes)
    parts[ranks.number] = episodes  # the originals, not copies: advantages are recorded in them
    everyone = [episode for part in parts for episode in part]
    groups = torch.arange(len(everyone)) // group_size
    batch = AdvantageBatch(everyone, rewards.cpu(), weights.cpu(), groups, penalties)
    with together():
        given = compute(name, function, batch)
    own = ranks.own(given)
    if own.dim() == 2:
        own = F.pad(own, (0, width - own.shape[1]))  # or cut, if other ranks have longer ones
    return own, note(everyone, given)
