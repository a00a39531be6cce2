"""Preference for tasks that the agent solves sometimes, `task_sampling: frontier`.

A group of samples teaches only if some are right and some wrong. The agent's accuracy on a task is estimated
from the task's own samples and from those of similar tasks:

- Right and wrong samples are counted for each task, its kind (its operation with its skills), its tables, and
  each skill. A count's weight halves every `HALF_LIFE` rollouts, since the agent changes.
- The accuracy p of a task has a Beta distribution: its own counts on top of a prior worth `PRIOR` samples.
  The prior's accuracy is the mean over its kind and its tables, as far as they were played; otherwise the
  lowest of its skills' accuracies.
- Each place in the batch takes the best of `CANDIDATES` random tasks: the one with the largest p (1 - p), the
  variance of its samples, with p drawn from its distribution. So unknown tasks are tried too (Thompson
  sampling; Russo et al., 2018, A Tutorial on Thompson Sampling).
- A share `FLOOR` of the places takes the candidate whose kind was played least, so that no kind is abandoned.

Checkpoints keep the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean
from typing import Any

import numpy as np
from datasets import Dataset

from trl_dbbench.episode.dataset import is_fresh, task_in
from trl_dbbench.runs.records import EpisodeRecord, groups_of, is_void

HALF_LIFE = 20
"""Rollouts after which a sample counts half."""

PRIOR = 2.0
"""Weight of the prior from similar tasks, in samples."""

CANDIDATES = 8
"""Random tasks that compete for a place in the batch."""
FRESH_CANDIDATES = 4
"""The same for tasks generated when drawn, which takes some hundredths of a second each."""

FLOOR = 0.125
"""Share of the places for the kind played least."""

FORGOTTEN = 0.05
"""Aged count, in samples, below which an entry is dropped."""


@dataclass(frozen=True)
class Names:
    """Names under which a task is counted: its own, its kind's, its tables' and each skill's."""

    digest: str
    kind: str
    tables: str
    parts: tuple[str, ...]

    @classmethod
    def of(cls, line: str) -> Names:
        task = task_in(line)
        parts = groups_of(task.operation, sorted(task.skills))
        tables = "+".join(sorted(table.name for table in task.tables))
        return cls(task.digest, "kind/" + "+".join(parts), f"tables/{tables}", tuple(parts))


class Frontier:
    """Order of `task_sampling: frontier`, decided when a batch begins.

    All ranks draw the same tasks, with equal generators and counts.
    """

    name = "frontier"

    def __init__(self, dataset: Dataset):
        self._dataset = dataset
        self._counts: dict[str, list[float]] = {}  # by name: [right, wrong, rollout of the last sample]
        self._rollout = 0
        self._candidates = FRESH_CANDIDATES if is_fresh(dataset) else CANDIDATES
        # by digest: the task, its expected accuracy, and whether it was played before
        self._drawn: dict[str, tuple[Names, float, bool]] = {}
        self._names = lru_cache(maxsize=100_000)(lambda row: Names.of(dataset[row]["task"]))

    def epoch(self, number: int) -> Sequence[int]:
        """Return placeholders, which are replaced when their batch begins."""
        return range(len(self._dataset))

    def further(self, random: np.random.Generator) -> Iterator[int]:
        while True:
            rows = random.integers(len(self._dataset), size=self._candidates).tolist()
            if random.random() < FLOOR:
                row = min(rows, key=lambda row: sum(self._aged(self._names(row).kind)))
            else:
                accuracies = [random.beta(*self._posterior(self._names(row))) for row in rows]
                row = rows[int(np.argmax([p * (1 - p) for p in accuracies]))]
            task = self._names(row)
            self._drawn[task.digest] = task, self.expected(task), task.digest in self._counts
            yield row

    def record(self, episodes: Iterable[EpisodeRecord]) -> dict[str, list[float]]:
        """Count all ranks' samples of a rollout; return values whose means are logged.

        Logged:

        - `frontier/expected`: mean expected accuracy on the drawn tasks, 0 to 1.
        - `frontier/known`: share of the drawn tasks that had been played before.
        """
        self._rollout += 1
        for episode in episodes:
            if is_void(episode):
                continue
            if (drawn := self._drawn.get(episode["task_digest"])) is not None:
                task, _, _ = drawn
                for name in (task.digest, task.kind, task.tables, *task.parts):
                    right, wrong = self._aged(name)
                    solved = episode["right"]
                    self._counts[name] = [right + solved, wrong + (not solved), self._rollout]
        expected = [each for _, each, _ in self._drawn.values()]
        known = [float(each) for _, _, each in self._drawn.values()]
        self._drawn.clear()
        self._counts = {n: counts for n, counts in self._counts.items() if sum(self._aged(n)) >= FORGOTTEN}
        return {"frontier/expected": expected, "frontier/known": known} if expected else {}

    def expected(self, task: Names) -> float:
        """Return the expected accuracy on a task, 0 to 1."""
        right, wrong = self._posterior(task)
        return right / (right + wrong)

    def _posterior(self, task: Names) -> tuple[float, float]:
        """Return the parameters of the Beta distribution of the accuracy on a task."""
        groups, parts = (
            [(right + 1) / (right + wrong + 2) for right, wrong in map(self._aged, names) if right + wrong]
            for names in ((task.kind, task.tables), task.parts)
        )
        prior = mean(groups) if groups else min(parts, default=0.5)
        right, wrong = self._aged(task.digest)
        return PRIOR * prior + right, PRIOR * (1 - prior) + wrong

    def _aged(self, name: str) -> tuple[float, float]:
        right, wrong, then = self._counts.get(name, (0.0, 0.0, self._rollout))
        kept = 0.5 ** ((self._rollout - then) / HALF_LIFE)
        return right * kept, wrong * kept

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self._counts, "rollout": self._rollout}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts, self._rollout = state["counts"], state["rollout"]
