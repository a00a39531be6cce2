"""Generate any number of tasks: procedural tables, questions for every skill, gold checked by execution.

```python
>>> tasks = generate_tasks(100, seed=1)                                     # all 22 skills
>>> tasks = generate_tasks(100, skills=["limit_only"], single_skill=True)   # one skill, and those it needs
>>> tasks = generate_tasks(100, level="plain")       # short requests in everyday words
>>> tasks = generate_tasks(100, level="relational")  # over 2 to 5 tables: joins, windows, CTEs ...
```

A task is made in three steps. A *plan* lists the skills that its SQL must have; the plans of a level are
enumerated, so an impossible request fails at once. A *draft* is a question and its SQL for the plan and a
table. `checks` executes the draft and keeps it if no slip (a small mistake of an agent) gives the same
result.

All random numbers come from one `random.Random` for each chunk of tasks, so a seed gives the same bytes
everywhere. A checksum assigns each table and each question to one of the two splits: whatever the seeds, a
table or question of one split never occurs in the other.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import repeat
from multiprocessing import get_context
from typing import Any

from trl_dbbench.data.generate import plain, queries, relational, tables
from trl_dbbench.data.generate.checks import PATIENT, gold_answer, gold_state
from trl_dbbench.data.generate.plans import all_plans
from trl_dbbench.data.generate.relational import FORMS
from trl_dbbench.database import Database, open_database
from trl_dbbench.errors import ConfigError
from trl_dbbench.grading import GRADERS
from trl_dbbench.tasks import Gold, Table, Task
from trl_dbbench.tasks.skills import NAMED, SKILLS, skills_of
from trl_dbbench.utils.lookup import check_choice, look_up

SPLITS = ("train", "test")
TEST_SHARE = 5
"""1 in TEST_SHARE tables, and 1 in TEST_SHARE questions, is for the test split."""

CHUNK = 200
"""Number of tasks made by one worker with one random generator."""

TRIES = 1_000
"""Tables tried for one task before giving up, as nothing is left to ask; few tasks need more than ten."""

_DRAFTS = 8
"""Drafts tried on one table before another is made."""


def _one_statement(database: Database, source: Any, plan: Any, question: str, sql: str) -> Task | None:
    """Return the task with this gold SQL; `None` if it lacks the plan's skills or a slip gives the same."""
    skills = skills_of(sql)
    if set(skills) != plan.skills:
        return None
    operation = next((name.upper() for name in ("insert", "update", "delete") if name in skills), "SELECT")
    task = Task("", question, (source.table,), operation, Gold(sql=sql), skills)
    with database.sandbox(task) as sandbox:
        gold = gold_answer(sandbox, sql) if task.is_question else gold_state(sandbox, sql, source.table)
    return replace(task, gold=gold) if gold else None


def _plain_task(database: Database, source: Any, plan: Any, question: str, sql: str) -> Task | None:
    """Return the task in AgentBench's form: the answer is labels, judged by the protocol's own grader."""
    task = _one_statement(database, source, plan, question, sql)
    if task is None or task.gold.answer is None:
        return task and replace(task, grader=None)
    labels = GRADERS["agentbench_text"].gold(task.gold.answer)
    return replace(task, grader=None, gold=replace(task.gold, answer=tuple(map(str, labels))))


@dataclass(frozen=True)
class Level:
    """A kind of task.

    Args:
        name: prefix of its tasks' ids, and part of the random seed.
        plans: objects with an attribute `skills`.
        source: makes the tables; the `table` of what it returns decides the split.
        draft: returns a question for tables and a plan, and what the task is made from, such as SQL; `None`
            if the tables do not suit the plan.
        task: makes the task from these; `None` if it is rejected.
    """

    name: str
    plans: Sequence[Any]
    source: Callable[[random.Random], Any]
    draft: Callable[[random.Random, Any, Any], tuple[str, Any] | None]
    task: Callable[[Database, Any, Any, str, Any], Task | None] = _one_statement

    @property
    def skills(self) -> tuple[str, ...]:
        found = frozenset[str]().union(*(plan.skills for plan in self.plans))
        return tuple(skill for skill in NAMED if skill in found)


LEVELS: dict[str, Level] = {
    level.name: level
    for level in (
        Level("full", tuple(all_plans()), tables.make_table, queries.draft),
        Level("plain", plain.PLANS, plain.make_plain, plain.draft, _plain_task),
        Level("relational", FORMS, relational.make_relational, relational.draft, relational.make_task),
    )
}


def find_level(name: str) -> Level:
    """Return the level of this name, or the one that the function of this dotted path returns."""
    makers: dict[str, Callable[[], Level]] = {level: partial(LEVELS.__getitem__, level) for level in LEVELS}
    return look_up("level", name, makers)()


def generate_tasks(
    num_tasks: int,
    seed: int = 0,
    skills: Iterable[str] | None = None,
    single_skill: bool = False,
    max_skills: int | None = None,
    split: str = "train",
    level: str = "full",
    workers: int = 1,
) -> list[Task]:
    """Return tasks whose gold has been executed, each with the skills of its gold SQL.

    Args:
        skills: the skills to ask for, in turn. A task may combine several of these, and has other skills only
            where these need them (`limit_only` needs `select` and an order). All of the level by default.
        single_skill: each task has one of `skills`, and no other skills than that one needs.
        max_skills: largest number of skills of a task, the needed ones included.
        split: `"train"` or `"test"`; the two share no table and no question, whatever their seeds.
        level: `"full"` has all 22 skills; `"plain"` asks in everyday words, and its answers are AgentBench's
            labels; `"relational"` asks about 2 to 5 tables, and its skills are `skills.QUERY_KINDS`; or the
            dotted path of a function that returns a `Level`.
        workers: processes that share the work; the tasks are the same for any number. With more than one, a
            script needs the `if __name__ == "__main__":` that `multiprocessing` asks for.

    Raises:
        ConfigError: if a name is unknown, a number too small, or `max_skills` leaves no room for a skill.
    """
    asked = None if skills is None else tuple(skills)
    request = Request(seed, asked, single_skill, max_skills, split, level)
    return list(iterate_tasks(num_tasks, request, workers))


def iterate_tasks(num_tasks: int, request: Request, workers: int = 1) -> Iterator[Task]:
    """Return an iterator over the tasks of `generate_tasks`; the settings are checked at once."""
    for name, value in (("tasks", num_tasks), ("workers", workers)):
        if value < 1:
            raise ConfigError(f"the number of {name} is {value}; it must be at least 1.")
    check_choice("split", request.split, SPLITS)
    request.plans()  # raises for impossible requests
    return _generate(request, num_tasks, workers)


# --- plans ----------------------------------------------------------------------------------------

Plans = dict[str, dict[int, list[list[Any]]]]
"""Skill -> number of skills -> groups of plans that have the same skills."""


@dataclass(frozen=True)
class Request:
    """The settings of `generate_tasks`, in the form that workers get."""

    seed: int = 0
    skills: tuple[str, ...] | None = None
    single_skill: bool = False
    max_skills: int | None = None
    split: str = "train"
    level: str = "full"

    @property
    def name(self) -> str:
        return f"{find_level(self.level).name}-{self.split}-{self.seed}"

    @lru_cache(maxsize=16)  # noqa: B019 - of a frozen value
    def plans(self) -> Plans:
        """Return the plans that these settings allow; raise ConfigError if there are none."""
        level, max_skills = find_level(self.level), self.max_skills
        if self.skills == ():
            raise ConfigError("the list of skills is empty; leave it out to get all.")
        had = level.skills
        asked = tuple(dict.fromkeys(self.skills or had))
        for skill in asked:
            check_choice("skill", skill, NAMED)
            if skill not in had:
                raise ConfigError(f"level {level.name!r} has no tasks of {skill}; it has {', '.join(had)}")
        if max_skills is not None and max_skills < 1:
            raise ConfigError(f"the most skills of a task is {max_skills}; it must be at least 1.")

        groups: dict[frozenset[str], list[Any]] = defaultdict(list)
        for plan in level.plans:
            groups[plan.skills].append(plan)
        allowed = list(groups) if self.single_skill else _minimal_skill_sets(groups, set(asked))
        plans: Plans = {}
        for skill in asked:
            having = [group for group in allowed if skill in group]
            least = min(map(len, having))
            most = least if self.single_skill else len(SKILLS)
            if max_skills is not None and least > max_skills:
                if self.skills is None:
                    continue
                needed = min(
                    [skill for skill in NAMED if skill in group] for group in having if len(group) == least
                )
                raise ConfigError(
                    f"{skill} cannot be had with {max_skills} skills a task: it needs at least {least} "
                    f"({', '.join(needed)}). Raise the number or leave the skill out."
                )
            by_size: dict[int, list[list[Any]]] = defaultdict(list)
            for group in having:
                if len(group) <= min(most, max_skills or most):
                    by_size[len(group)].append(groups[group])
            plans[skill] = dict(sorted(by_size.items()))
        if not plans:
            raise ConfigError(
                f"no skill of level {level.name!r} can be had with {max_skills} skills a task; raise it."
            )
        return plans


def _minimal_skill_sets(groups: Iterable[frozenset[str]], asked: set[str]) -> list[frozenset[str]]:
    """Return the sets of skills that have no more skills beyond `asked` than necessary.

    A set is compared with all sets that contain at least the same part of `asked`.
    """
    fewest: dict[frozenset[str], int] = {}
    for group in groups:
        part = group & asked
        fewest[part] = min(fewest.get(part, len(SKILLS)), len(group - asked))
    least = {
        part: min(count for other, count in fewest.items() if other >= part)
        for part in fewest
        if fewest[part]
    }
    return [group for group in groups if len(group - asked) == least.get(group & asked, 0)]


# --- tasks ----------------------------------------------------------------------------------------


def _generate(request: Request, num_tasks: int, workers: int) -> Iterator[Task]:
    """Yield the chunks' tasks in order, each question about the same tables once."""
    seen: set[bytes] = set()
    spare: Iterator[Task] = _drawn(request, "spare", None)  # replace repeats of another chunk's tasks
    number = 0
    for chunk in _chunks(request, num_tasks, workers):
        for task in chunk:
            while (key := _identity(task)) in seen:
                task = next(spare)
            seen.add(key)
            yield replace(task, id=f"{request.name}-{number:06d}")
            number += 1


def _chunks(request: Request, num_tasks: int, workers: int) -> Iterator[Iterable[Task]]:
    """Yield the tasks of each chunk. A chunk has its own random generator, so any process may make it."""
    sizes = [min(CHUNK, num_tasks - start) for start in range(0, num_tasks, CHUNK)]
    if workers == 1 or len(sizes) == 1:
        yield from map(partial(_drawn, request), map(str, range(len(sizes))), sizes)
        return
    # spawned, not forked: the caller may have threads
    with ProcessPoolExecutor(min(workers, len(sizes)), get_context("spawn")) as pool:
        try:
            yield from pool.map(_chunk, repeat(request), range(len(sizes)), sizes)
        finally:
            pool.shutdown(cancel_futures=True)


def _chunk(request: Request, number: int, size: int) -> list[Task]:
    return list(_drawn(request, str(number), size))


def _drawn(request: Request, part: str, num_tasks: int | None) -> Iterator[Task]:
    """Yield `num_tasks` different tasks, or endless ones if it is `None`."""
    rng = random.Random(f"{request.name}-{part}")
    seen: set[bytes] = set()
    targets = list(request.plans())
    with open_database("sqlite", limits=PATIENT) as database:
        while num_tasks is None or len(seen) < num_tasks:
            if len(seen) % len(targets) == 0:  # a new round of all skills
                rng.shuffle(targets)
            target = targets[len(seen) % len(targets)]
            made = tried(rng, request, target, database)
            task = next((task for task in made if _identity(task) not in seen), None)
            if task is None:
                raise ConfigError(
                    f"after {len(seen)} tasks there is no new one of {target}. Ask for fewer tasks."
                )
            seen.add(_identity(task))
            yield task


def _identity(task: Task) -> bytes:
    return _checksum(task.question, *map(_key, task.tables))


def tried(rng: random.Random, request: Request, skill: str, database: Database) -> Iterator[Task]:
    """Try `TRIES` tables for a skill, and yield the tasks that they give."""
    level, plans = find_level(request.level), request.plans()[skill]
    for _ in range(TRIES):
        task = try_once(rng, level, draw_plan(rng, plans), request.split, database)
        if task is not None:
            yield task


def draw_plan(rng: random.Random, sizes: dict[int, list[list[Any]]]) -> Any:
    """Draw a plan. Most plans have many skills, so their number is drawn first, small ones more often."""
    (size,) = rng.choices(list(sizes), [0.75**rank for rank in range(len(sizes))])
    return rng.choice(rng.choice(sizes[size]))


def try_once(rng: random.Random, level: Level, plan: Any, split: str, database: Database) -> Task | None:
    """Return a task for a plan on a new table; `None` if `_DRAFTS` drafts give none."""
    source = level.source(rng)
    while _split_of(_key(source.table)) != split:
        source = level.source(rng)
    for _ in range(_DRAFTS):
        drafted = level.draft(rng, source, plan)
        if drafted is None or _split_of(drafted[0]) != split:
            continue
        task = level.task(database, source, plan, *drafted)
        if task is not None and _split_of(_key(task.tables[0])) == split:
            return task
    return None


def _key(table: Table) -> str:
    return json.dumps([table.name, table.rows], ensure_ascii=False)


def _checksum(*texts: str) -> bytes:
    return hashlib.md5("\0".join(texts).encode(), usedforsecurity=False).digest()


def _split_of(text: str) -> str:
    return "test" if _checksum(text)[0] % TEST_SHARE == 0 else "train"
