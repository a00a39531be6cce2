"""Count the skills of tasks, select tasks by skill, and split tasks into training and test.

A split keeps related tasks on the same side:

- tasks that share a table, with the same name, columns and rows;
- tasks with the same question, or with the same gold SQL except for layout and aliases.

Your own tables are often few, with many tasks each. If shared tables would keep together more tasks than the
test set is to have, only questions and gold SQL count; `Split.shares_tables` is then true.
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
    """Training and test tasks of one file. `shares_tables`: their tables could not be kept apart."""

    train: list[Task]
    test: list[Task]
    shares_tables: bool


def skill_counts(tasks: Iterable[Task]) -> dict[str, Counter[str]]:
    """Return counts of tasks by `operation` and by `skill`, in the order of `skills.NAMED`.

    A task counts for each of its skills. `(none)` counts tasks without skills.
    """
    tasks = list(tasks)
    found = Counter(skill for task in tasks for skill in task.skills)
    skills = Counter({skill: found[skill] for skill in NAMED if skill in found})
    if without := sum(not task.skills for task in tasks):
        skills["(none)"] = without
    return {"operation": Counter(task.operation for task in tasks), "skill": skills}


def select_tasks(tasks: Sequence[Task], single: bool = False, min_tasks: int = 1) -> list[Task]:
    """Select tasks by their skills, keeping the order. Raises ConfigError if no task is left.

    Args:
        single: select only tasks with exactly one skill.
        min_tasks: select only tasks with a skill that at least this many tasks have, counted after `single`.
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
    """Raise ConfigError unless the size is a share above 0 and below 1."""
    if not 0 < test_size < 1:
        raise ConfigError(
            f"the test size is {test_size}; it must be a share above 0 and below 1, such as 0.1."
        )


def split_tasks(tasks: Sequence[Task], test_size: float = 0.1, seed: int = 0) -> Split:
    """Split tasks into training and test with similar shares of each operation and skill.

    Groups of related tasks (see the module) are assigned one by one, large ones first. Each goes to the side
    that brings the test counts of its operations and skills closer, in squared distance, to their share of
    the tasks assigned so far. Both sides keep the order of the file.

    Args:
        test_size: share of test tasks, above 0 and below 1. If related tasks do not allow it exactly, it is
            met as closely as possible.
        seed: of the order in which groups of equal size are assigned.

    Raises:
        ConfigError: if `test_size` is not such a share, or one side would be empty.
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
    """Return the task's tables, or its shared database. Equal ones have the same rows."""
    return list(task.tables) if task.source is None else [task.source]


def question_of(task: Task) -> Hashable:
    """Return a key that is equal for questions that differ only in white space and case."""
    return "question", " ".join(task.question.lower().split())


def _same_statement(task: Task) -> list[Hashable]:
    """Return keys that tasks on the other side must not share."""
    keys = [question_of(task)]
    if task.gold.sql:
        keys.append(("sql", normal_form(task.gold.sql)))
    return keys


def _tied(keys: Sequence[Iterable[Hashable]]) -> list[list[int]]:
    """Group the indices of tasks that share a key, directly or through other tasks."""
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
    """Return the indices of the test tasks: at least one group, and not all."""
    order = sorted(random.Random(seed).sample(groups, len(groups)), key=len, reverse=True)
    dealt: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    held_out: set[int] = set()
    for group in order:
        labels: Counter[str] = Counter()
        for task in (tasks[number] for number in group):
            labels.update(["any", f"operation {task.operation}", *task.skills])
        dealt += labels
        # how much the squared distances from the share grow if the group is held out
        cost = sum(
            (2 * (taken[each] - share * dealt[each]) + count) * count for each, count in labels.items()
        )
        if cost < 0:
            taken += labels
            held_out.update(group)
    if len(held_out) == len(tasks):
        return held_out - set(order[0])
    return held_out or set(order[-1])
