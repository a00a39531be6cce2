"""Counts of the skills in a task file, and parts of it: tasks of one skill, frequent skills, two halves.

A split ties tasks together that say something of each other, and never parts what is tied:

- tasks that share a table, with the same name, columns and rows;
- tasks that ask the same question, or have the same gold SQL, but for layout and aliases.

Tables of your own are often few, with many tasks each. Where more tasks are tied by tables than are to be
held out, that tie is given up, and only questions and gold SQL are kept apart; `Split.shares_tables` says so.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks import Task
from trl_dbbench.tasks.skills import NAMED
from trl_dbbench.utils.sql import normal_form


@dataclass(frozen=True)
class Split:
    """Two halves of a file; `shares_tables` where they could not be kept apart."""

    train: list[Task]
    test: list[Task]
    shares_tables: bool


def skill_counts(tasks: Iterable[Task]) -> dict[str, Counter[str]]:
    """Return counts of tasks by `operation` and by `skill`, in the order of `skills.NAMED`.

    A task counts for each of its skills; `(none)` counts those without any.
    """
    tasks = list(tasks)
    found = Counter(skill for task in tasks for skill in task.skills)
    skills = Counter({skill: found[skill] for skill in NAMED if skill in found})
    if without := sum(not task.skills for task in tasks):
        skills["(none)"] = without
    return {"operation": Counter(task.operation for task in tasks), "skill": skills}


def select_tasks(tasks: Sequence[Task], single: bool = False, min_tasks: int = 1) -> list[Task]:
    """The tasks that are asked for, in their order.

    Args:
        single: only tasks with one skill.
        min_tasks: least tasks of a skill, counted after `single`; skills with fewer are left out. ConfigError
            if no task is left.
    """
    if min_tasks < 1:
        raise ConfigError(f"a skill must have at least 1 task, --min is {min_tasks}.")
    chosen = [task for task in tasks if not single or len(task.skills) == 1]
    counts = Counter(skill for task in chosen for skill in task.skills)
    if min_tasks > 1:
        chosen = [task for task in chosen if any(counts[skill] >= min_tasks for skill in task.skills)]
    if not chosen:
        most = max(counts.items(), key=lambda each: each[1], default=None)
        found = (
            "none has exactly one skill" if most is None else f"the most frequent is {most[0]} ({most[1]})"
        )
        raise ConfigError(
            f"no task is left of {len(tasks)}: {found}. Lower --min"
            + (" or leave --single out." if single else ".")
        )
    return chosen


def check_test_size(test_size: float) -> None:
    """Raise ConfigError unless it is a share of tasks."""
    if not 0 < test_size < 1:
        raise ConfigError(
            f"the test size is {test_size}; it must be a share above 0 and below 1, such as 0.1."
        )


def split_tasks(tasks: Sequence[Task], test_size: float = 0.1, seed: int = 0) -> Split:
    """Split tasks into two halves with about the same shares of each operation and skill; see the module.

    Groups of tied tasks are dealt out one by one, large ones first, each to the half with which the held-out
    counts of all its operations and skills come closer, in squares, to their share of what has been dealt.
    The order of a half is the file's.

    Args:
        test_size: the share of the tasks that is held out, above 0 and below 1. Where tied tasks do not allow
            it, it is met as closely as they do.
        seed: of the order in which equal groups are dealt out.

    Raises:
        ConfigError: if `test_size` is no such share, or a half would be empty.
    """
    check_test_size(test_size)
    statements = [_same_statement(task) for task in tasks]
    groups = _tied([[*same, *tables_of(task)] for same, task in zip(statements, tasks, strict=True)])
    shares_tables = max(map(len, groups)) > max(1, test_size * len(tasks))
    if shares_tables:
        groups = _tied(statements)
    if len(groups) == 1:
        raise ConfigError(
            f"{len(tasks)} tasks cannot be parted: all are tied by their questions or gold SQL. Give more "
            "tasks that differ."
        )
    test = _held_out(tasks, groups, test_size, seed)
    return Split(
        [task for number, task in enumerate(tasks) if number not in test],
        [task for number, task in enumerate(tasks) if number in test],
        shares_tables,
    )


def tables_of(task: Task) -> list[Hashable]:
    """Return its tables, or the database that has them: equal ones have the same rows."""
    return list(task.tables) if task.source is None else [task.source]


def question_of(task: Task) -> Hashable:
    """Return what is equal for questions that differ only in layout and case."""
    return "question", " ".join(task.question.lower().split())


def _same_statement(task: Task) -> list[Hashable]:
    """Return what another task must not share that is in the other half."""
    keys = [question_of(task)]
    if task.gold.sql:
        keys.append(("sql", normal_form(task.gold.sql)))
    return keys


def _tied(keys: Sequence[Iterable[Hashable]]) -> list[list[int]]:
    """Numbers of tasks in groups: those with a key in common are in one, also through others."""
    group_of: list[int] = list(range(len(keys)))

    def root(number: int) -> int:
        while group_of[number] != number:
            group_of[number] = group_of[group_of[number]]
            number = group_of[number]
        return number

    first: dict[Hashable, int] = {}
    for number, own in enumerate(keys):
        for key in own:
            group_of[root(number)] = root(first.setdefault(key, number))
    groups = defaultdict(list)
    for number in range(len(keys)):
        groups[root(number)].append(number)
    return list(groups.values())


def _held_out(tasks: Sequence[Task], groups: Sequence[Sequence[int]], share: float, seed: int) -> set[int]:
    """The numbers of the tasks of the held-out half: at least one group, and not all."""
    order = sorted(random.Random(seed).sample(groups, len(groups)), key=len, reverse=True)
    dealt: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    held_out: set[int] = set()
    for group in order:
        labels: Counter[str] = Counter()
        for task in (tasks[number] for number in group):
            labels.update(["any", f"operation {task.operation}", *task.skills])
        dealt += labels
        # what taking the group adds to the squared distances from the share
        cost = sum(
            (2 * (taken[each] - share * dealt[each]) + count) * count for each, count in labels.items()
        )
        if cost < 0:
            taken += labels
            held_out.update(group)
    if len(held_out) == len(tasks):
        return held_out - set(order[0])
    return held_out or set(order[-1])
