"""Stages of a stream of tasks, for continual learning.

```
stream: skills        a stage for each skill that the tasks have
stream: operations    SELECT, INSERT, UPDATE, DELETE
stream: databases     a stage for each database, or each set of table names
stream: file          the file's own order, cut into stages of equal size
stream: [insert, ...] these skills, or these operations, in this order
```

A task with several skills belongs to the last of them in the fixed order, whatever the order of the stages.
In the fixed order it thus comes after the agent has met all of its skills. Each task, including held-out
ones, belongs to at most one stage.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks.model import OPERATIONS, Task
from trl_dbbench.tasks.skills import NAMED
from trl_dbbench.tasks.split import question_of, tables_of
from trl_dbbench.utils.lookup import unknown

KINDS = ("skills", "operations", "databases", "file")
"""Ways to sort tasks into stages."""

ORDERS = ("fixed", "random", "difficulty", "mixed")
"""Orders of stages. fixed: the order of the list, or else of `skills.NAMED`, of the operations above, or of
the file. random: drawn with the seed. difficulty: by the mean number of skills per task, fewest first.
mixed: one stage of all tasks, an upper bound of what a stream can reach."""

ALL = "all"
"""Name of the only stage of `mixed`, and of the only held-out group of `stream: file`."""


@dataclass(frozen=True)
class Stage:
    """A stage: its name, and the indices of its training tasks in the file's order."""

    name: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Stages:
    """The stages of a stream in order, and the groups in which held-out tasks are evaluated.

    Attributes:
        stages: stages to train on.
        groups: names of the held-out groups, which are those of the stages except for `mixed` and `file`.
        left_out: number of training tasks that belong to no stage.
        names: all names in their fixed order, which decides a task's stage.
    """

    by: str
    stages: tuple[Stage, ...]
    groups: tuple[str, ...]
    left_out: int
    names: tuple[str, ...] = ()

    def group_of(self, task: Task) -> int | None:
        """Return the index of a held-out task's group; `None` if it belongs to none."""
        if self.by == "file":
            return 0
        name = _latest(task, self.by, self.names)
        return self.groups.index(name) if name in self.groups else None


def plan_stages(
    tasks: Sequence[Task], stream: str | Sequence[str], order: str = "fixed", size: int = 0, seed: int = 0
) -> Stages:
    """Sort training tasks into stages.

    Args:
        stream: one of `KINDS`, or names of skills or operations.
        order: one of `ORDERS`.
        size: tasks per stage of `stream: file`.
        seed: for `order: random`.

    Raises:
        ConfigError: if a name is unknown, or fewer than two stages have tasks.
    """
    by, names = kind_of(stream)
    if by == "file":
        return _cut(len(tasks), size)
    found = names if names else _found(tasks, by)
    members = _members(tasks, by, found)
    if empty := [name for name in names if not members[name]]:
        raise ConfigError(
            f"stream: no training task belongs to {empty[0]!r}, as a task with several skills belongs to the "
            f"last of them in the list; the tasks have {', '.join(_found(tasks, by)) or 'none'}. Leave it "
            "out, or name it later."
        )
    groups = tuple(name for name in found if members[name])
    if order == "difficulty":
        # sorted is stable
        groups = tuple(sorted(groups, key=lambda name: mean(len(tasks[row].skills) for row in members[name])))
    elif order == "random":
        groups = tuple(random.Random(seed).sample(groups, len(groups)))
    if len(groups) < 2:
        raise ConfigError(
            f"stream: {len(tasks)} training tasks make {len(groups)} stages by {by}; at least 2 are needed. "
            "Give tasks that differ more, or leave stream out."
        )
    stages = tuple(Stage(name, tuple(members[name])) for name in groups)
    reached = sum(len(stage.rows) for stage in stages)
    if order == "mixed":
        stages = (Stage(ALL, tuple(sorted(row for stage in stages for row in stage.rows))),)
    return Stages(by, stages, groups, len(tasks) - reached, found)


def kind_of(stream: str | Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a stream, one of `KINDS`, and the names it lists. Raises ConfigError."""
    if isinstance(stream, str):
        if stream not in KINDS:
            raise ConfigError(unknown("stream", stream, KINDS))
        return stream, ()
    names = tuple(stream)
    if not names:
        raise ConfigError(f"stream is empty; allowed: {', '.join(KINDS)}, or names of skills or operations.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"stream names {twice[0]!r} twice; a stage comes once.")
    if len(names) == 1 and names[0] in KINDS:  # as the command line gives it
        return names[0], ()
    for by, known in (("operations", OPERATIONS), ("skills", NAMED)):
        if all(name in known for name in names):
            return by, names
    if wrong := [name for name in names if name not in (*OPERATIONS, *NAMED)]:
        raise ConfigError(unknown("stage of stream", wrong[0], [*KINDS, *OPERATIONS, *NAMED]))
    raise ConfigError(f"stream: {', '.join(names)} are skills and operations; name stages of one kind.")


def shared_with_training(
    training: Iterable[Task], held_out: Sequence[Task], tables: bool = True
) -> list[Task]:
    """Return the held-out tasks that share a question or, with `tables`, a table with a training task."""

    def keys(task: Task) -> list[Hashable]:
        return [question_of(task), *(tables_of(task) if tables else ())]

    known = {key for task in training for key in keys(task)}
    return [task for task in held_out if not known.isdisjoint(keys(task))]


def _keys(task: Task, by: str) -> tuple[str, ...]:
    """Return the names of the stages that a task could belong to."""
    if by == "skills":
        return task.skills
    if by == "operations":
        return (task.operation,)
    if (source := task.source) is not None:  # a dump may hold the tables of many databases
        return (source.name or "+".join(sorted(source.only)) or source.path,)
    return ("+".join(sorted(table.name for table in task.tables)),)


def _latest(task: Task, by: str, names: Sequence[str]) -> str | None:
    keys = _keys(task, by)
    return next((name for name in reversed(names) if name in keys), None)


def _found(tasks: Sequence[Task], by: str) -> tuple[str, ...]:
    """Return the names that occur in the tasks, in their fixed order."""
    present = dict.fromkeys(key for task in tasks for key in _keys(task, by))
    known = {"skills": NAMED, "operations": OPERATIONS}.get(by)
    return tuple(present) if known is None else tuple(name for name in known if name in present)


def _members(tasks: Sequence[Task], by: str, names: Sequence[str]) -> Mapping[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row, task in enumerate(tasks):
        if (name := _latest(task, by, names)) is not None:
            rows[name].append(row)
    return rows


def _cut(tasks: int, size: int) -> Stages:
    if size >= tasks:
        raise ConfigError(
            f"stream: file makes one stage of {tasks} tasks, as stage_tasks is {size}; set it to less, for "
            "at least 2 stages."
        )
    parts = [range(tasks)[start : start + size] for start in range(0, tasks, size)]
    stages = tuple(Stage(f"tasks {part[0] + 1} to {part[-1] + 1}", tuple(part)) for part in parts)
    return Stages("file", stages, (ALL,), 0)
