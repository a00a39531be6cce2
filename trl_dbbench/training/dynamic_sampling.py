"""Choice of the prompts that an update trains on.

```
task_sampling: shuffle, skill    the data loader's rows
task_sampling: frontier; stream  tasks chosen by earlier results when the rollout begins
few_shot                         earlier episodes are put into the prompts
dynamic_sampling: true           groups whose episodes all have the same reward teach nothing: further prompts
                                 are played instead, in up to `dynamic_sampling_rounds` rounds (DAPO, Yu et
                                 al., 2025)
```

A round plays one prompt per missing group, plus a few if the ranks could not divide them evenly. The choice
depends only on the seed, the step and the state in checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from trl_dbbench.advantages.batch import AdvantageBatch
from trl_dbbench.advantages.registry import needs_of
from trl_dbbench.episode.types import Episode
from trl_dbbench.runs.few_shot import Shots
from trl_dbbench.runs.records import EpisodeRecord, episode_record
from trl_dbbench.training.samplers import LiveOrder, Order
from trl_dbbench.training.stream import prompts_of
from trl_dbbench.utils.ranks import Ranks

Row = dict[str, Any]

TRIES = 100
"""Maximum number of draws per missing task; then the tasks outside the batch count as used up."""

BY_STEPS = ("token_wise", "turn", "state", "tree")
"""Advantages that use step rewards if any are given."""

BY_STEPS_ALONE = ("process_avg_unique",)
"""Advantages that ignore the rewards of whole episodes."""


@dataclass
class Batch:
    """Rows that this rank plays and trains on at once.

    Attributes:
        rows: rows of the dataset; each gets its `episode`.
        greedy: episodes of the greedy evaluation.
        played: whether the rows have their episodes.
        rewards: (N, F), all ranks' rewards, if they were computed during the choice.
        extra: for each row, the columns that reward functions logged during the choice.
        left_out: all ranks' rows that were played but are not trained on.
    """

    rows: list[Row]
    greedy: list[Episode] = field(default_factory=list)
    played: bool = False
    rewards: torch.Tensor | None = None
    extra: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[Row] = field(default_factory=list)

    @property
    def episodes(self) -> list[Episode]:
        """Episodes of the rows, in order."""
        return [row["episode"] for row in self.rows]

    def add(self, greedy: Sequence[Episode], episodes: Sequence[Episode]) -> None:
        """Add the greedy episodes, and the rows' own."""
        self.greedy += greedy
        for row, episode in zip(self.rows, episodes, strict=True):
            row["episode"] = episode
        self.played = True

    def left_out_records(self, step: int) -> list[EpisodeRecord]:
        """Return the records of the episodes left out of the update `step`."""
        return [{**episode_record(row["episode"], "train", step), "left_out": True} for row in self.left_out]


@dataclass(frozen=True)
class Group:
    """Rows of one prompt, with their rewards (G, F) and the columns that reward functions logged."""

    rows: list[Row]
    rewards: torch.Tensor
    extra: list[dict[str, Any]]


class Chooser:
    """Chooser of each training batch's rows. All ranks call its methods together.

    Args:
        weights: (F,), weights of the reward functions.
        score: function that plays and scores a batch, as part number `part` of a rollout.
    """

    def __init__(
        self,
        args: Any,
        dataset: Dataset,
        order: Order,
        shots: Shots | None,
        weights: torch.Tensor,
        score: Callable[[Batch, int], None],
    ):
        self.args, self.dataset, self.order, self.shots = args, dataset, order, shots
        self._weights, self._score = weights.cpu(), score
        needed = needs_of(args.advantage_function())
        self._by_steps = args.advantage in BY_STEPS or "step_rewards" in needed
        self._by_totals = args.advantage not in BY_STEPS_ALONE

    def choose(self, rows: list[Row], step: int) -> Batch:
        """Return the batch of a micro-step, given the data loader's rows."""
        if isinstance(self.order, LiveOrder):
            prompts = len(rows) * Ranks().count // self.args.num_generations
            rows = self._share(self._draw(step, 0, prompts, ()))
        if self.shots is not None:
            rows = self.shots.put(rows, step)
        return self._with_spread(rows, step) if self.args.dynamic_sampling else Batch(rows)

    def held_out(self, rows: list[Row]) -> Batch:
        """Return a batch of an evaluation. Its few-shot examples stay the same throughout the run."""
        return Batch(rows if self.shots is None else self.shots.put(rows, 0))

    def rows_of(self, generation: int) -> list[Row]:
        """Return this rank's rows of a generation, as the data loader will yield them."""
        prompts, places = prompts_of(self.args), len(self.dataset)
        epoch, number = divmod(generation, places // prompts)
        order = self.order.epoch(epoch) if self.args.shuffle_dataset else range(places)
        return self._share([self.dataset[row] for row in order[number * prompts : (number + 1) * prompts]])

    def record(
        self, trained: Sequence[EpisodeRecord], left_out: Sequence[EpisodeRecord]
    ) -> dict[str, list[float]]:
        """Pass the results of a training batch to the order; return values whose means are logged.

        Logged:

        - `dynamic/left_out`: share of the played groups that are not trained on, with `dynamic_sampling`.
        - `dynamic/left_out_tokens`: tokens sampled in these groups, summed over the batch.
        """
        values: dict[str, list[float]] = {}
        if isinstance(self.order, LiveOrder):
            values |= self.order.record([*trained, *left_out])
        if self.args.dynamic_sampling:
            tokens = sum(turn["tokens"] for record in left_out for turn in record["turns"])
            kept, others = (len(each) // self.args.num_generations for each in (trained, left_out))
            values["dynamic/left_out"] = [0.0] * kept + [1.0] * others
            values["dynamic/left_out_tokens"] = [float(tokens)]
        return values

    # --- groups whose rewards differ --------------------------------------------------------------

    def _with_spread(self, rows: list[Row], step: int) -> Batch:
        batch = Batch(rows)
        groups, left_out = self._played(batch, 0), list[Group]()
        seen = {row["task"] for group in groups for row in group.rows}
        greedy = batch.greedy
        for part in range(1, self.args.dynamic_sampling_rounds + 1):
            flat = [place for place, group in enumerate(groups) if not self._teaches(group)]
            further = self._draw(step, part, len(flat), seen) if flat else []
            if not further:
                break
            seen.update(row["task"] for row in further)
            rows = self._share(further)
            if self.shots is not None:
                rows = self.shots.put(rows, step, further=True)
            batch = Batch(rows)
            for group in self._played(batch, part):
                if flat and self._teaches(group):
                    place = flat.pop(0)
                    groups[place], group = group, groups[place]
                left_out.append(group)
            greedy += batch.greedy
        return Batch(
            rows=Ranks().own([row for group in groups for row in group.rows]),
            greedy=greedy,
            played=True,
            rewards=torch.cat([group.rewards for group in groups]),
            extra=Ranks().own([logged for group in groups for logged in group.extra]),
            left_out=[row for group in left_out for row in group.rows],
        )

    def _teaches(self, group: Group) -> bool:
        episodes, groups = [row["episode"] for row in group.rows], torch.zeros(len(group.rows))
        return teaches(
            AdvantageBatch(episodes, group.rewards, self._weights, groups), self._by_steps, self._by_totals
        )

    def _played(self, batch: Batch, part: int) -> list[Group]:
        """Play and score a batch; return the groups of all ranks."""
        self._score(batch, part)
        assert batch.rewards is not None
        rows, extra = (
            [each for given in Ranks().gather(own) for each in given] for own in (batch.rows, batch.extra)
        )
        size, rewards = self.args.num_generations, batch.rewards.cpu()
        places = [slice(start, start + size) for start in range(0, len(rows), size)]
        return [Group(rows[group], rewards[group], extra[group]) for group in places]

    # --- rows -------------------------------------------------------------------------------------

    def _draw(self, step: int, part: int, number: int, seen: Collection[str]) -> list[Row]:
        """Draw `number` rows of the dataset, rounded up so that the ranks can divide them evenly.

        Fewer are returned if too few tasks are not in `seen`; in part 0 tasks are repeated instead.
        """
        ranks = Ranks()
        at_once = ranks.count // math.gcd(
            ranks.count, self.args.num_generations
        )  # groups that fill whole ranks
        number = math.ceil(number / at_once) * at_once
        random = np.random.default_rng(np.random.SeedSequence((self.args.seed, step, part)))
        rows: dict[str, Row] = {}
        again: list[Row] = []
        for place in islice(self.order.further(random), TRIES * number):
            row = self.dataset[place]
            if row["task"] in seen or row["task"] in rows:
                again.append(row)
                continue
            rows[row["task"]] = row
            if len(rows) == number:
                break
        drawn = [*rows.values(), *(again if part == 0 else ())][:number]
        return drawn[: len(drawn) // at_once * at_once]

    def _share(self, rows: Sequence[Row]) -> list[Row]:
        """Return this rank's part of the rows, after copying each row for every sample of its group."""
        return Ranks().own([dict(row) for row in rows for _ in range(self.args.num_generations)])


def teaches(batch: AdvantageBatch, by_steps: bool = False, by_totals: bool = True) -> bool:
    """Return whether a prompt's episodes differ in their rewards (if `by_totals`) or in their step rewards
    (if `by_steps`)."""
    known = batch.weighted[batch.scored]
    if len(known) < 2:
        return False
    if by_totals and not torch.allclose(known, known[:1]):
        return True
    scored = [episode for episode, is_scored in zip(batch.episodes, batch.scored, strict=True) if is_scored]
    of_turns = {str([turn.rewards for turn in episode.turns if turn.rewards]) for episode in scored}
    return by_steps and len(of_turns) > 1


def take_columns(pending: dict[str, list[Any]], rows: int) -> list[dict[str, Any]]:
    """Remove the columns logged by reward functions from TRL's `_pending_extra_logs`; return them by row."""
    columns = {name: [*values, *[None] * rows] for name, values in pending.items()}
    pending.clear()
    return [{name: values[row] for name, values in columns.items()} for row in range(rows)]


def put_columns(pending: dict[str, list[Any]], extra: Sequence[dict[str, Any]]) -> None:
    """Put back columns taken by `take_columns`; rows may have logged different ones."""
    for name in {name: None for logged in extra for name in logged}:
        pending[name] += [logged.get(name) for logged in extra]
