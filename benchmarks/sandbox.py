"""What the database costs an episode: ours against the usual patterns.

    python benchmarks/sandbox.py [--databases docker local sqlite] [--quick] [--json FILE]

An episode runs three statements, as an agent would that looks, asks (or changes) and looks again. It
compares:

- `shared`: ours. Tables made once per task and read by all its episodes; a copy for those that change them;
- `database`: a database per episode, made and dropped on a pooled connection;
- `connection`: AgentBench's pattern, a connection and a database per episode.

Eight episodes play each task, as a group of GRPO's does. Tasks come again in every pass, as in epochs of a
training and in evaluations; of those that read or change `once` none comes again. Prints milliseconds per
episode, the wall time over the number of episodes, at 1, 8 and 32 at a time, and the ratios at 8.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool, QueuePool

from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.database import Database, open_database
from trl_dbbench.database.dialect import SQLITE
from trl_dbbench.database.server.pristine import fill
from trl_dbbench.errors import DatabaseError
from trl_dbbench.tasks import Task

GROUP = 8
AT_A_TIME = (1, 8, 32)
WARM_UP = 2
"""Passes: the first opens connections and makes tables, the second finds out which tables come again."""


def statements(task: Task) -> list[str]:
    look = f"SELECT * FROM `{task.tables[0].name}` LIMIT 3"
    return [look, task.gold.sql or "", look]


def shared(database: Database) -> Callable[[Task], None]:
    def episode(task: Task) -> None:
        with database.sandbox(task) as sandbox:
            for sql in statements(task):
                assert sandbox.execute(sql).error is None

    return episode


def own_database(database: Database, *, pooled: bool) -> Callable[[Task], None]:
    pool: dict[str, Any] = (
        {"poolclass": QueuePool, "pool_size": max(AT_A_TIME)} if pooled else {"poolclass": NullPool}
    )
    engine = create_engine(
        make_url(database.url).set(drivername="mysql+pymysql"),
        isolation_level="AUTOCOMMIT",
        execution_options={"no_parameters": True},
        **pool,
    )
    numbers = itertools.count()

    def episode(task: Task) -> None:
        name = f"dbb_benchmark_{next(numbers)}"
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            connection.exec_driver_sql(f"USE {name}")
            try:
                for table in task.tables:
                    fill(connection, table)
                for sql in statements(task):
                    result = connection.exec_driver_sql(sql)
                    if result.returns_rows:
                        result.fetchall()
            finally:
                connection.exec_driver_sql(f"DROP DATABASE {name}")

    return episode


def measure(episode: Callable[[Task], None], passes: Iterable[Sequence[Task]], at_a_time: int) -> float:
    """Milliseconds per episode, the median of passes over tasks, after those that warm up."""
    milliseconds = []
    with ThreadPoolExecutor(at_a_time) as pool:
        for tasks in passes:
            work = [task for task in tasks for _ in range(GROUP)]
            clock = time.perf_counter()
            list(pool.map(episode, work))
            milliseconds.append(1000 * (time.perf_counter() - clock) / len(work))
    return statistics.median(milliseconds[WARM_UP:])


def passes_over(tasks: Iterator[Task], count: int, passes: int, *, again: bool) -> Iterator[list[Task]]:
    """So many tasks for each pass, the same ones `again` or always others."""
    taken: list[Task] = []
    for _ in range(passes):
        taken = taken if taken and again else list(itertools.islice(tasks, count))
        assert len(taken) == count
        yield taken


def others(count: int, *, question: bool) -> Iterator[Task]:
    """Ever new tasks, made so many at a time."""
    for seed in itertools.count(2):
        yield from (task for task in generate_tasks(count, seed=seed) if task.is_question == question)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--databases", nargs="+", default=["docker", "local", "sqlite"])
    parser.add_argument("--tasks", type=int, default=24, help="questions, and as many changes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few tasks, one pass, 8 at a time")
    parser.add_argument("--json", type=Path, help="writes the figures here")
    arguments = parser.parse_args()
    count, repeats, at_a_time = (
        (6, 1, (8,)) if arguments.quick else (arguments.tasks, arguments.repeats, AT_A_TIME)
    )

    passes = WARM_UP + repeats
    pool = generate_tasks(8 * count, seed=1)
    kinds: dict[str, Iterable[Task]] = {
        "reads": [task for task in pool if task.is_question][:count],
        "changes": [task for task in pool if not task.is_question][:count],
    }
    for kind in tuple(kinds):
        kinds[f"{kind} once"] = others(8 * count, question=kind == "reads")
    print(
        f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}; milliseconds per "
        "episode"
    )
    figures: list[dict[str, Any]] = []
    for spec in arguments.databases:
        with ExitStack() as stack:
            try:
                database = stack.enter_context(open_database(spec))
            except DatabaseError as error:
                print(f"{spec}: left out: {error}")
                continue
            print(
                f"\n{database.describe()}\n{'':<26}" + "".join(f"{f'{n} at a time':>16}" for n in at_a_time)
            )
            patterns = {"shared": shared(database)}
            if database.dialect is not SQLITE:
                patterns["database"] = own_database(database, pooled=True)
                patterns["connection"] = own_database(database, pooled=False)
            for kind, (name, episode) in itertools.product(kinds, patterns.items()):
                costs = {}
                for n in at_a_time:
                    again = not kind.endswith("once")
                    tasks = passes_over(iter(kinds[kind]), count, passes, again=again)
                    costs[n] = measure(episode, tasks, n)
                figures.append({"database": spec, "kind": kind, "pattern": name, "milliseconds": costs})
                print(
                    f"{kind:<14}{name:<12}" + "".join(f"{cost:>16.2f}" for cost in costs.values()), flush=True
                )
    print()
    cost = {(each["database"], each["kind"], each["pattern"]): each["milliseconds"][8] for each in figures}
    for spec, kind, pattern in cost:
        if pattern in ("database", "connection"):
            share = f"{cost[spec, kind, 'shared'] / cost[spec, kind, pattern]:.2f}"
            print(f"{spec}: an episode that {kind} costs {share} of what it does with a {pattern} of its own")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
