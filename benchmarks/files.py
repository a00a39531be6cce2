"""What an episode costs on databases that many tasks share, beside tables that stand in each task.

    python benchmarks/files.py [--database sqlite] [--megabytes 200] [--files 11] [--tasks 500] [--dump]

Makes SQLite files, or with --dump one dump of MySQL's of as many databases, loads them if the database is a
server, then plays each task once: two statements that read by an index and one that counts, or in their place
an UPDATE of one row, which makes a private copy of the file or, on a server, of the table. The same on as
many tables of 20 rows that stand in the tasks. Prints milliseconds an episode, wall time over their number.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from trl_dbbench.database import Database, open_database
from trl_dbbench.tasks import Column, Gold, Source, Table, Task

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath")
COLUMNS = "id INTEGER PRIMARY KEY, name TEXT, city TEXT, score REAL"
TABLE = (
    "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(40), city TEXT, score DOUBLE, KEY by_name (name))"
)


def rows(count: int, seed: int) -> list[tuple]:
    rng = random.Random(seed)
    return [
        (n, f"{rng.choice(WORDS)} {n}", " ".join(rng.choices(WORDS, k=8)), rng.random()) for n in range(count)
    ]


def files(folder: Path, megabytes: float, count: int) -> list[Source]:
    paths = [folder / f"{number}.sqlite" for number in range(count)]
    for number, path in enumerate(paths):
        make(path, megabytes / count, number)
    return [Source.of(path) for path in paths]


def make(path: Path, megabytes: float, seed: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE people ({COLUMNS})")
        connection.executemany("INSERT INTO people VALUES (?, ?, ?, ?)", rows(int(megabytes * 12_500), seed))
        connection.execute("CREATE INDEX by_name ON people (name)")
        connection.commit()


def dump(path: Path, megabytes: float, databases: int) -> list[Source]:
    """One dump of so many databases, and each of them."""
    names = [f"db{number}" for number in range(databases)]
    with path.open("w", encoding="utf-8") as file:
        for number, name in enumerate(names):
            print(f"CREATE DATABASE `{name}`;\nUSE `{name}`;\n{TABLE};", file=file)
            people = rows(int(megabytes / databases * 12_500), number)
            for start in range(0, len(people), 1000):
                some = ", ".join(map(str, people[start : start + 1000]))
                print(f"INSERT INTO people VALUES {some};", file=file)
    return [Source.of(path, name=name) for name in names]


def shared(sources: Sequence[Source], count: int, dialect: str) -> list[Task]:
    return [
        Task(str(n), "?", source.tables(), "SELECT", Gold(), source=source, dialect=dialect)
        for n, source in zip(range(count), sources * count, strict=False)
    ]


def inline(count: int, dialect: str, different: int) -> list[Task]:
    columns = tuple(Column(*column.split(" ", 1)) for column in COLUMNS.split(", "))
    tables = [Table("people", columns, tuple(rows(20, number))) for number in range(different)]
    return [
        Task(str(n), "?", (tables[n % different],), "SELECT", Gold(), dialect=dialect) for n in range(count)
    ]


READS = (
    "SELECT * FROM people LIMIT 3",
    "SELECT city FROM people WHERE id = 7",
    "SELECT COUNT(*) FROM people WHERE name LIKE 'amber 7%' AND id < 50",
)
CHANGES = (READS[0], "UPDATE people SET score = 1 WHERE id = 7", READS[1])


def measure(database: Database, tasks: Sequence[Task], statements: Sequence[str], at_a_time: int) -> float:
    def episode(task: Task) -> None:
        with database.sandbox(task) as sandbox:
            for sql in statements:
                result = sandbox.execute(sql, database.limits)  # executed, known or not
                assert result.error is None, result

    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(episode, tasks[:at_a_time]))
        clock = time.perf_counter()
        list(pool.map(episode, tasks))
    return 1000 * (time.perf_counter() - clock) / len(tasks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="sqlite", help="sqlite, local, docker or the URL of a server")
    parser.add_argument("--megabytes", type=float, default=200, help="of all files together")
    parser.add_argument("--files", type=int, default=11)
    parser.add_argument("--dump", action="store_true", help="one dump in place of the files, for a server")
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--changing", type=int, default=50, help="tasks that change their file's copy")
    parser.add_argument("--at-a-time", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, open_database(arguments.database) as database:
        dialect = "sqlite" if arguments.database == "sqlite" else "mysql"
        if arguments.dump:
            sources = dump(Path(folder) / "all.sql", arguments.megabytes, arguments.files)
        else:
            sources = files(Path(folder), arguments.megabytes, arguments.files)
        size = sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6
        tasks = shared(sources, arguments.tasks, dialect)
        print(database.describe())
        print(f"{arguments.files} databases, {size:.0f} MB")
        clock = time.perf_counter()
        with ThreadPoolExecutor(arguments.files) as pool:
            list(pool.map(lambda task: database.sandbox(task).close(), tasks[: arguments.files]))
        print(f"{time.perf_counter() - clock:.2f} s until they are opened or loaded")
        for name, statements, count in (
            ("reads", READS, arguments.tasks),
            ("changes", CHANGES, arguments.changing),
        ):
            for where, of in (
                ("shared", tasks),
                ("in the task", inline(arguments.tasks, dialect, arguments.files)),
            ):
                cost = measure(database, of[:count], statements, arguments.at_a_time)
                print(f"{name:<8} {where:<12} {cost:8.2f} ms an episode, {arguments.at_a_time} at a time")


if __name__ == "__main__":
    main()
