"""A plan for sampling: how often each task is played, and with which random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trl_dbbench.episode.player import Player
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.types import Sampling, Start
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks import Task

KEEP = ("right", "all")


@dataclass(frozen=True)
class Plan:
    """What is played, and what is kept of it.

    Args:
        n: episodes of each task.
        keep: `right` keeps episodes that ended right and came to their end, `all` wrong ones too.
        max_per_task: at most so many are kept of a task, the first ones.
        temperature, top_p, top_k, seed: of the sampling.

    Raises:
        ConfigError: if one of them cannot be.
    """

    n: int = 8
    keep: str = "right"
    max_per_task: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.keep not in KEEP:
            raise ConfigError(f"unknown keep {self.keep!r}; allowed: {', '.join(KEEP)}.")
        rules = {
            "n": ("at least 1", self.n >= 1),
            "max_per_task": ("at least 1", self.max_per_task is None or self.max_per_task >= 1),
            "temperature": (
                "above 0; an episode that is not drawn would only be repeated",
                self.temperature > 0,
            ),
            "top_p": ("above 0 and at most 1", 0 < self.top_p <= 1),
            "top_k": ("0, which is no limit, or more", self.top_k >= 0),
        }
        for name, (allowed, holds) in rules.items():
            if not holds:
                raise ConfigError(f"{name} must be {allowed}; given is {getattr(self, name)}.")

    def starts(self, tasks: Iterable[Task], player: Player, system_prompt: Opening | None) -> list[Start]:
        """All episodes, in the order in which they are played: the `n` of a task side by side."""
        starts = []
        for task in tasks:
            start = player.start(task, system_prompt=system_prompt)
            starts += [replace(start, sampling=sampling) for sampling in self.samplings(task)]
        return starts

    def samplings(self, task: Task) -> list[Sampling]:
        """Return how each of a task's episodes is drawn."""
        return [self._sampling(task.digest, number) for number in range(self.n)]

    def _sampling(self, digest: str, number: int) -> Sampling:
        # of the task and not of its place, so that more tasks or samples change no episode
        name = hashlib.blake2b(f"{self.seed}/{digest}/{number}".encode(), digest_size=4)
        seed = int.from_bytes(name.digest(), "big")
        return Sampling(self.temperature, self.top_p, self.top_k, seed=seed)
