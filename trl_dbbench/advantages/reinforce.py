"""REINFORCE (Williams, 1992): an episode's reward, or the reward minus a running mean."""

from __future__ import annotations

from typing import Any, Literal

import torch

from trl_dbbench.advantages.batch import AdvantageBatch
from trl_dbbench.utils.lookup import check_choice


class Reinforce:
    """Reward of an episode as its advantage; works with one sample per prompt.

    Args:
        baseline: `none`, or `running` to subtract the mean reward of all episodes before this batch.
    """

    def __init__(self, baseline: Literal["none", "running"] = "none"):
        check_choice("advantage_args.baseline", baseline, ("none", "running"))
        self.baseline = baseline
        self._sum, self._count = 0.0, 0

    def __call__(self, batch: AdvantageBatch) -> torch.Tensor:
        """(N,)"""
        if self.baseline == "none":
            return batch.weighted
        known = batch.weighted[batch.scored].double()
        mean = self._sum / self._count if self._count else 0.0
        self._sum, self._count = self._sum + known.sum().item(), self._count + len(known)
        return batch.weighted - mean

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum, self._count = state["sum"], state["count"]
