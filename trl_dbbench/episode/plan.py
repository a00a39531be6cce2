"""A sampling plan: how often each task is played, and with which random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trl_dbbench.episode.player import Player
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.types import Sampling, Start
from trl_dbbench.tasks import Task
from trl_dbbench.utils.lookup import check_choice
from trl_dbbench.utils.settings import check_numbers


@dataclass(frozen=True)
class Plan:
    """Plan of the episodes to play, and which of them to keep.

    Args:
        n: episodes per task.
        keep: `right` keeps right episodes that were not cut off; `all` keeps wrong ones too.
        max_per_task: keep at most this many per task, the first ones.
        temperature, top_p, top_k, seed: see `Sampling`.

    Raises:
        ConfigError: if a value is out of range.
    """

    n: int = 8
    keep: str = "right"
    max_per_task: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("keep", self.keep, ("right", "all"))
        check_numbers(self, Plan)

    def starts(self, tasks: Iterable[Task], player: Player, system_prompt: Opening | None) -> list[Start]:
        """Return the starts of all episodes in playing order, the `n` episodes of a task side by side."""
        starts = []
        for task in tasks:
            start = player.start(task, system_prompt=system_prompt)
            starts += [replace(start, sampling=sampling) for sampling in self.samplings(task)]
        return starts

    def samplings(self, task: Task) -> list[Sampling]:
        """Return the sampling of each of a task's episodes."""
        # seeded by the task, not its position, so that adding tasks or samples changes no other episode
        names = (f"{self.seed}/{task.digest}/{number}".encode() for number in range(self.n))
        seeds = (hashlib.blake2b(name, digest_size=4).digest() for name in names)
        settings = self.temperature, self.top_p, self.top_k
        return [Sampling(*settings, seed=int.from_bytes(seed, "big")) for seed in seeds]
