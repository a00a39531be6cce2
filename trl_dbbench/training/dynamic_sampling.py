"""Which prompts an update trains on, where that is decided when its rollout begins, or in it.

- `task_sampling: frontier` takes the tasks of a batch by what is known of the agent at its beginning
  (`training/frontier.py`).
- `dynamic_sampling: true` plays further prompts in the place of groups whose episodes all have the same
  reward, which teach nothing, until there are none or `dynamic_sampling_rounds` have been played (DAPO, Yu et
  al., 2025). A round plays as many prompts as groups are missing; a few more where the ranks could not share
  them.

Which tasks come is a function of the seed, the step and what checkpoints keep.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from trl_dbbench.advantages.batch import AdvantageBatch
from trl_dbbench.advantages.registry import needs_of
from trl_dbbench.episode.types import Episode
from trl_dbbench.runs.records import EpisodeRecord, episode_record
from trl_dbbench.training.assign_advantages import ScoredGRPOTrainer
from trl_dbbench.training.frontier import Frontier
from trl_dbbench.training.samplers import Order, task_order
from trl_dbbench.utils.ranks import Ranks

Row = dict[str, Any]

TRIES = 100
"""A task is drawn so often at most before those that are not in the batch yet count as used up."""


BY_STEPS = ("token_wise", "turn")
"""Advantages that go by each turn's reward if there is one."""


@dataclass(frozen=True)
class Group:
    """The episodes of a prompt, in the rows that they are trained in."""

    rows: list[Row]
    rewards: torch.Tensor  # (G, F)
    extra: list[dict[str, Any]]  # what reward functions have logged for each row
    teaches: bool
    """Whether its rewards differ."""


class DynamicGRPOTrainer(ScoredGRPOTrainer):
    """A trainer that chooses the prompts of a batch itself. Its subclass says how they are played."""

    shots: Any
    _order: Order
    _step: int
    _left_out: Sequence[EpisodeRecord] = ()  # of all ranks
    _left_out_tasks: Sequence[str] = ()
    _known_rewards: torch.Tensor | None = None
    _played_already = False
    """Whether the rows that are to be scored have their episodes."""
    _pending_extra_logs: dict[str, list[Any]]  # TRL's: columns of its table of completions

    def _order_tasks(self, dataset: Dataset) -> None:
        """Finds the order that `task_sampling` asks for; one that learns goes with the checkpoints."""
        self._order = task_order(dataset, self.args)
        if isinstance(self._order, Frontier):
            self.stateful["frontier"] = self._order

    def _play(self, rows: Sequence[Row], part: int) -> list[Episode]:
        """The episodes of this rank's rows.

        Args:
            part: of the rollout, from 0; the rows of a part are played at once.
        """
        raise NotImplementedError

    def _rows_to_play(self, rows: list[Row]) -> list[Row]:
        """What this rank plays and scores, in the place of the rows that the data loader gave.

        Those that were played on the way have their `episode`. To be called on all ranks.
        """
        self._left_out, self._left_out_tasks, self._known_rewards = (), (), None
        self._played_already = False
        if not self.model.training:  # examples for held-out tasks stay the same over the run
            return rows if self.shots is None else self.shots.put(rows, 0)
        if isinstance(self._order, Frontier):
            rows = self._share(self._draw(0, len(rows) * Ranks().count // self.num_generations, ()))
        if self.shots is not None:
            rows = self.shots.put(rows, self._step)
        return self._with_spread(rows) if self.args.dynamic_sampling else rows

    def _ask_for_rewards(self, inputs, prompts, completions, completion_ids_list) -> torch.Tensor:
        if self._known_rewards is not None:
            return self._known_rewards
        return super()._ask_for_rewards(inputs, prompts, completions, completion_ids_list)

    # --- groups whose rewards differ --------------------------------------------------------------

    def _with_spread(self, rows: list[Row]) -> list[Row]:
        groups, left_out = self._played(rows, part=0), []
        seen = {row["task"] for group in groups for row in group.rows}
        for part in range(1, self.args.dynamic_sampling_rounds + 1):
            flat = [place for place, group in enumerate(groups) if not group.teaches]
            further = self._draw(part, len(flat), seen) if flat else []
            if not further:
                break
            seen.update(row["task"] for row in further)
            rows = self._share(further)
            if self.shots is not None:
                rows = self.shots.put(rows, self._step, further=True)
            for group in self._played(rows, part):
                if group.teaches and flat:
                    place = flat.pop(0)
                    groups[place], group = group, groups[place]
                left_out.append(group)
        self._keep(groups, left_out)
        return self._own([row for group in groups for row in group.rows])

    def _played(self, rows: list[Row], part: int) -> list[Group]:
        """The groups of all ranks' rows, played and scored; on all ranks."""
        for row, episode in zip(rows, self._play(rows, part), strict=True):
            row["episode"] = episode
        self._stop_without_database(self.player.database.gave_up)
        mine = [row["episode"] for row in rows]
        rewards = super()._ask_for_rewards(
            rows,
            [row["prompt"] for row in rows],
            [episode.messages() for episode in mine],
            [episode.completion_ids or [self._tokenizer.eos_token_id] for episode in mine],
        )
        self._note_rewards(rows, rewards)
        columns = {name: [*values, *[None] * len(rows)] for name, values in self._pending_extra_logs.items()}
        logged = [{name: values[n] for name, values in columns.items()} for n in range(len(rows))]
        self._pending_extra_logs.clear()
        everyone = [each for given in Ranks().gather([*zip(rows, logged, strict=True)]) for each in given]
        size = self.num_generations
        rewards, weights = rewards.cpu(), self.reward_weights.cpu()
        by_steps = self.args.advantage in BY_STEPS or "step_rewards" in needs_of(self._advantage)
        groups = []
        for start in range(0, len(everyone), size):
            of_group, extra = zip(*everyone[start : start + size], strict=True)
            known = rewards[start : start + size]
            episodes = [row["episode"] for row in of_group]
            batch = AdvantageBatch(episodes, known, weights, torch.zeros(size, dtype=torch.long))
            groups.append(Group([*of_group], known, [*extra], teaches(batch, by_steps)))
        return groups

    def _keep(self, groups: Sequence[Group], left_out: Sequence[Group]) -> None:
        """Notes for later what of all ranks is trained on, and what is not."""
        rewards = torch.cat([group.rewards for group in groups])
        self._known_rewards = rewards.to(self.accelerator.device)
        self._played_already = True
        columns = {name: None for group in groups for logged in group.extra for name in logged}
        for logged in self._own([each for group in groups for each in group.extra]):
            for name in columns:
                self._pending_extra_logs[name].append(logged.get(name))
        gone = [row for group in left_out for row in group.rows]
        records = [episode_record(row["episode"], "train", self.state.global_step) for row in gone]
        self._left_out = [{**record, "left_out": True} for record in records]
        self._left_out_tasks = [row["task"] for row in gone]

    def _record_choice(self, trained: Sequence[EpisodeRecord]) -> dict[str, list[float]]:
        """Tells those who choose tasks what became of them, in a training; returns values whose means are
        logged.

        Logged:

        - `dynamic/left_out`: groups that were played and not trained on, of all that were, with
          `dynamic_sampling`.
        - `dynamic/left_out_tokens`: tokens sampled in these groups, one value for the batch, its sum.

        Args:
            trained: the episodes that are trained on, of all ranks.
        """
        values: dict[str, list[float]] = {}
        if not self.model.training:
            return values
        if isinstance(self._order, Frontier):
            values |= self._order.record([*trained, *self._left_out])
        if self.args.dynamic_sampling:
            tokens = sum(turn["tokens"] for record in self._left_out for turn in record["turns"])
            trained_groups, others = (len(each) // self.num_generations for each in (trained, self._left_out))
            values["dynamic/left_out"] = [0.0] * trained_groups + [1.0] * others
            values["dynamic/left_out_tokens"] = [float(tokens)]
        return values

    # --- rows -------------------------------------------------------------------------------------

    def _draw(self, part: int, number: int, seen: Collection[str]) -> list[Row]:
        """So many rows of the dataset, or a few more, on all ranks.

        There are fewer where few tasks are not `seen`; of the first part a task comes twice instead.
        """
        ranks = Ranks()
        at_once = ranks.count // math.gcd(ranks.count, self.num_generations)  # groups that all can share
        number = math.ceil(number / at_once) * at_once
        random = np.random.default_rng(np.random.SeedSequence((self.args.seed, self._step, part)))
        rows: dict[str, Row] = {}
        again: list[Row] = []
        for place in islice(self._order.further(random), TRIES * number):
            row = self.train_dataset[place]
            if row["task"] in seen or row["task"] in rows:
                again.append(row)
                continue
            rows[row["task"]] = row
            if len(rows) == number:
                break
        drawn = [*rows.values(), *(again if part == 0 else ())][:number]
        return drawn[: len(drawn) // at_once * at_once]

    def _share(self, rows: Sequence[Row]) -> list[Row]:
        """This rank's part of the rows, each of which is repeated for the samples of its group."""
        return self._own([dict(row) for row in rows for _ in range(self.num_generations)])

    def _own(self, of_all: list[Any]) -> list[Any]:
        ranks = Ranks()
        each = len(of_all) // ranks.count
        return of_all[ranks.number * each : (ranks.number + 1) * each]


def teaches(batch: AdvantageBatch, by_steps: bool = False) -> bool:
    """Whether the rewards of a group differ, so that some of its episodes are better than others.

    Args:
        batch: the episodes of one prompt.
        by_steps: whether it is enough if those of their turns do.
    """
    known = batch.weighted[batch.scored]
    if len(known) < 2:
        return False
    if not torch.allclose(known, known[:1]):
        return True
    scored = [episode for episode, is_scored in zip(batch.episodes, batch.scored, strict=True) if is_scored]
    of_turns = {str([turn.rewards for turn in episode.turns if turn.rewards]) for episode in scored}
    return by_steps and len(of_turns) > 1
