"""What a second database server gives: episodes a second on one server and on two, behind a slow network.

    python benchmarks/servers.py [--delay 5] [--connections 24] [--seconds 10] [--json FILE]

Each server is a private one. Every packet reaches it `--delay` milliseconds later, through a proxy, and it
lends `--connections` connections: so few that one server is at its limit with the 48 episodes that are played
at a time. An episode asks three questions. Prints the episodes a second and the ratio.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from trl_dbbench.database import Database, open_database
from trl_dbbench.database.server.local import start_local
from trl_dbbench.tasks import Column, Gold, Table, Task

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from proxies import proxied

AT_A_TIME = 48
QUESTIONS = [
    "SELECT * FROM medals",
    "SELECT SUM(gold) FROM medals",
    "SELECT nation FROM medals WHERE gold > 1",
]


def tasks(number: int = 24) -> list[Task]:
    columns = (Column("nation", "TEXT"), Column("gold", "INT"))
    tables = [Table("medals", columns, (("Chad", each), ("Peru", 2))) for each in range(number)]
    return [Task(f"medals-{each}", "?", (table,), "SELECT", Gold()) for each, table in enumerate(tables)]


def episodes_a_second(database: Database, seconds: float) -> float:
    todo, numbers = tasks(), count()
    over = 0.0

    def play(_: int) -> int:
        played = 0
        while time.perf_counter() < over:
            with database.sandbox(
                todo[next(numbers) // 8 % len(todo)]
            ) as sandbox:  # in groups, as in training
                for sql in QUESTIONS:
                    assert sandbox.execute(sql, database.limits).error is None  # known or not
            played += 1
        return played

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        over = time.perf_counter() + seconds / 4
        list(pool.map(play, range(AT_A_TIME)))  # tables and connections are made
        start = time.perf_counter()
        over = start + seconds
        return sum(pool.map(play, range(AT_A_TIME))) / (time.perf_counter() - start)


@contextmanager
def local_server(max_connections: int) -> Iterator[str]:
    """The URL of a private server that lends so many connections."""
    server = start_local()
    try:
        engine = create_engine(server.url)
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SET GLOBAL max_connections = {max_connections}")
        engine.dispose()
        yield server.url
    finally:
        server.stop()


@contextmanager
def elsewhere(target: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """The URL of a server that runs in a process of its own: its work is not ours.

    Args:
        target: called with the arguments and a connection, sends its URL there and goes on for ever.
    """
    processes = multiprocessing.get_context("spawn")
    ours, its = processes.Pipe()
    process = processes.Process(target=target, args=(*arguments, its), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def pass_on(url: str, delay: float, told: Connection) -> None:
    """A proxy in front of the server at the URL; `delay` is in seconds."""
    with proxied(url) as (proxy, through):
        proxy.delay = delay
        told.send(through)
        threading.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delay", type=float, default=5.0, help="milliseconds for each statement")
    parser.add_argument("--connections", type=int, default=24, help="max_connections of each server")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each figure")
    parser.add_argument("--json", type=Path, help="writes the figures here")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        urls = []
        for _ in range(2):
            url = stack.enter_context(local_server(arguments.connections))
            urls.append(stack.enter_context(elsewhere(pass_on, url, arguments.delay / 1000)))
        figures = {}
        for used in (urls[:1], urls):
            with open_database(used) as database:
                figures[len(used)] = episodes_a_second(database, arguments.seconds)
                print(
                    f"{len(used)} of {database.statements_at_once // len(used)} statements at once: "
                    f"{figures[len(used)]:.0f} episodes a second",
                    flush=True,
                )
    print(f"two servers give {figures[2] / figures[1]:.2f} times the episodes of one")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
