"""Order in which tasks are trained on.

TRL's `RepeatSampler` decides which task comes next, and repeats its row for the samples of a group. Here an
order lists the row at each place of an epoch, and TRL's sampler, with shuffling off, walks over the places.

- `Shuffled`: every task once per epoch; in an uninterrupted run exactly TRL's order.
- `BySkill`: first a skill, then one of its tasks, so that a skill of ten tasks is trained as often as one of
  a thousand.

Both depend only on seed and epoch: all ranks agree without communication, and a resumed run continues in the
order of its epoch. TRL's own generator would repeat the order of epoch 0 in a resumed run.

An order also draws further tasks, to replace groups without spread (`training/dynamic_sampling.py`).
`training/frontier.py` and `training/stream.py` draw all their tasks this way, when the batch begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import Sampler
from trl.trainer.utils import RepeatSampler

from trl_dbbench.advantages.registry import needs_of
from trl_dbbench.episode.dataset import is_fresh, task_in
from trl_dbbench.errors import ConfigError
from trl_dbbench.runs.records import EpisodeRecord
from trl_dbbench.tasks.skills import NAMED
from trl_dbbench.training.frontier import Frontier
from trl_dbbench.training.stream import Stream, prompts_of

logger = logging.getLogger(__name__)


class Order(Protocol):
    """Order of the tasks to train on, as rows of the dataset."""

    def epoch(self, number: int) -> Sequence[int]:
        """Return the row at each place of an epoch, counted from 0."""
        ...

    def further(self, random: np.random.Generator) -> Iterator[int]:
        """Yield further rows, drawn at random outside the epochs. A row may be repeated."""
        ...


@runtime_checkable
class LiveOrder(Order, Protocol):
    """Order that uses earlier results, and chooses when a batch begins. Checkpoints keep its state."""

    name: str

    def record(self, episodes: Sequence[EpisodeRecord]) -> dict[str, list[float]]:
        """Count all ranks' samples of a generation; return values whose means are logged."""
        ...


def task_order(dataset: Dataset, args: Any, held_out: Dataset | None = None) -> Order:
    """Return the order that the settings ask for, over rows with the column `task`.

    Args:
        held_out: rows that a stream is evaluated on.

    Raises:
        ConfigError: if the tasks do not fill one batch, or `task_sampling: skill` finds no skill to draw.
    """
    _check_number(len(dataset), args)
    if args.stream is not None:
        return Stream(dataset, held_out, args)
    if is_fresh(dataset):
        _check_fresh(args)
    if args.task_sampling == "shuffle":
        return Shuffled(len(dataset), args.seed)
    if args.task_sampling == "frontier":
        return Frontier(dataset)
    skills = [task_in(line).skills for line in dataset["task"]]
    pools = skill_pools(skills, args.sampled_skills, args.min_tasks_per_skill, args.single_skill)
    return BySkill(pools, len(dataset), args.seed)


def check_task_sampling(args: Any) -> None:
    """Raise ConfigError for task-sampling settings that cannot work."""
    if args.sampled_skills is not None:
        if not args.sampled_skills:
            raise ConfigError("sampled_skills is empty; name at least one skill, or leave it out for all.")
        if unknown := [name for name in args.sampled_skills if name not in NAMED]:
            raise ConfigError(f"unknown skill {unknown[0]!r} in sampled_skills; allowed: {', '.join(NAMED)}.")
    if args.dynamic_sampling and "groups" not in needs_of(args.advantage_function()):
        raise ConfigError(
            "dynamic_sampling leaves out groups whose rewards are all the same, and the advantage "
            f"{args.advantage!r} learns from them too (it is not marked by @needs('groups')); leave one of "
            "them out."
        )


def _check_fresh(args: Any) -> None:
    if args.max_steps < 1:
        raise ConfigError("generate:// never runs out of tasks; say with max_steps when the training ends.")
    if args.task_sampling == "skill":
        raise ConfigError(
            "generate:// gives each skill in turn by itself; leave task_sampling out, and name skills as in "
            "generate://full?skills=select,limit_only."
        )


def _check_number(tasks: int, args: Any) -> None:
    """Raise ConfigError for too few tasks to fill a batch: TRL would leave out all of them."""
    if tasks < (prompts := prompts_of(args)):
        raise ConfigError(
            f"{tasks} training tasks are fewer than the {prompts} prompts of a batch, which are "
            f"per_device_train_batch_size ({args.per_device_train_batch_size}) x processes "
            f"({args.world_size}) x steps_per_generation ({args.steps_per_generation}, by default "
            f"gradient_accumulation_steps) / num_generations ({args.num_generations}). Give more tasks, or "
            f"lower these until it is at most {tasks}."
        )


class TaskSampler(Sampler[int]):
    """Sampler with the repetitions of a `RepeatSampler`, over tasks in a given order.

    Args:
        epoch: returns the number of the epoch that starts. (`set_epoch` does not reach the sampler if a run
            on several ranks resumes within an epoch.)
    """

    def __init__(self, repeat: RepeatSampler, order: Order, epoch: Callable[[], int]):
        repeat.shuffle = False
        self.repeat = repeat
        self.order = order
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = self.order.epoch(self.epoch())
        return (order[place] for place in self.repeat)

    def __len__(self) -> int:
        return len(self.repeat)


@dataclass(frozen=True)
class Shuffled:
    """Order with every task once per epoch, in the permutation that TRL's generator draws for that epoch."""

    tasks: int
    seed: int

    def epoch(self, number: int) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(number):
            torch.randperm(self.tasks, generator=generator)
        return torch.randperm(self.tasks, generator=generator).tolist()

    def further(self, random: np.random.Generator) -> Iterator[int]:
        while True:
            yield int(random.integers(self.tasks))


def skill_pools(
    skills: Sequence[Sequence[str]],
    sampled_skills: Sequence[str] | None = None,
    min_tasks: int = 1,
    single: bool = False,
) -> dict[str, list[int]]:
    """Return the rows of each skill to draw from; a task with several skills is in the pool of each.

    Raise ConfigError if no skill is left.

    Args:
        skills: the skills of each task, row by row.
        sampled_skills: skills to draw from; all that occur if left out.
        min_tasks: minimum number of tasks of a skill; smaller skills are left out.
        single: whether to draw only tasks with exactly one skill.
    """
    found: dict[str, list[int]] = {}
    for row, names in enumerate(skills):
        for name in names if len(names) == 1 or not single else ():
            found.setdefault(name, []).append(row)
    wanted = {name: found.get(name, []) for name in (sampled_skills or sorted(found))}
    rows = {name: pool for name, pool in wanted.items() if len(pool) >= min_tasks}
    if not rows:
        have = _counted({name: len(pool) for name, pool in found.items()}) or "none"
        raise ConfigError(
            f"no skill is left to draw: min_tasks_per_skill is {min_tasks}, sampled_skills is "
            f"{list(sampled_skills) if sampled_skills else 'not given'}, and the tasks "
            f"{'with one skill ' if single else ''}have these skills: "
            f"{have}. Lower the one, widen the other, or use task_sampling: shuffle."
        )
    left_out = {name: len(pool) for name, pool in wanted.items() if name not in rows}
    reached = {row for pool in rows.values() for row in pool}
    logger.info(
        "Task sampling: %d skills are drawn: %s. Left out for having too few tasks: %s. %d tasks have none "
        "of the drawn skills and are never trained on.",
        *(len(rows), _counted({name: len(pool) for name, pool in rows.items()})),
        *(_counted(left_out) or "none", len(skills) - len(reached)),
    )
    return rows


@dataclass(frozen=True)
class BySkill:
    """Order that draws for each place a skill, all equally likely, and then one of its tasks.

    A skill's tasks come in random order, each once before any is repeated in the same epoch.
    """

    pools: dict[str, list[int]]
    places: int
    seed: int

    def epoch(self, number: int) -> list[int]:
        random = np.random.default_rng(np.random.SeedSequence((self.seed, number)))
        names = sorted(self.pools)  # the order must not depend on the dictionary's
        left: dict[str, list[int]] = {name: [] for name in names}
        order = []
        for choice in random.integers(len(names), size=self.places).tolist():
            name = names[choice]
            if not left[name]:
                left[name] = random.permutation(self.pools[name]).tolist()
            order.append(left[name].pop())
        return order

    def further(self, random: np.random.Generator) -> Iterator[int]:
        pools = [rows for _, rows in sorted(self.pools.items())]
        while True:
            pool = pools[random.integers(len(pools))]
            yield pool[random.integers(len(pool))]


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
