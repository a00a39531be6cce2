"""A run on a server takes no more descriptors than the process may have, and says so where that is too few.

Each in a process of its own, since the limit is the process's.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest
from databases import table, task
from sqlalchemy.engine import Connection

from trl_dbbench.database import Database
from trl_dbbench.database.server.connections import make_engine, parse_url
from trl_dbbench.database.server.pulse import Pulse
from trl_dbbench.database.server.start import Server
from trl_dbbench.errors import DatabaseError
from trl_dbbench.tasks import Gold

CHANGE = dataclasses.replace(
    task(table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))),
    operation="UPDATE",
    gold=Gold(sql="UPDATE medals SET gold = 2"),
)


EPISODES = """
import os, resource, sys, time
from concurrent.futures import ThreadPoolExecutor
sys.path[:0] = sys.argv[2:]
from databases import LIMITS
from test_descriptors import CHANGE
from trl_dbbench.database import open_database
from trl_dbbench.errors import DatabaseError

def limit(files):
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def descriptors():
    return len(os.listdir("/dev/fd"))

"""


def episodes(url: str, code: str) -> str:
    command = [sys.executable, "-c", EPISODES + code, url, *map(str, Path(__file__).parents[:2])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_256_descriptors_are_enough_for_300_episodes(server: Server) -> None:
    said = episodes(
        server.url,
        """
limit(256)
with open_database(sys.argv[1]) as database, ThreadPoolExecutor(32) as pool:
    sandboxes = list(pool.map(lambda _: database.sandbox(CHANGE), range(300)))
    changed = list(pool.map(lambda each: each.execute("UPDATE medals SET gold = 7").affected, sandboxes))
    print(changed == [2] * 300, sum(each.retries for each in sandboxes))
    print(descriptors() < 256 - 40)
    list(pool.map(lambda each: each.close(), sandboxes))
    print(descriptors() < 100)
""",
    )
    assert said.split() == ["True", "0", "True", "True"]


def test_too_many_open_files_are_named(server: Server) -> None:
    """At once, and not after waiting for the server."""
    said = episodes(
        server.url,
        """
with open_database(sys.argv[1]) as database:
    database.sandbox(CHANGE).close()
    limit(descriptors() + 4)
    start = time.monotonic()
    try:
        kept = [database.sandbox(CHANGE) for _ in range(30)]
    except DatabaseError as error:
        print(type(error).__name__, time.monotonic() - start < 20, error)
    limit(256)
""",
    )
    assert said.startswith("DatabaseError True No connection to the database, too many open files")
    assert "`ulimit -n 4096`" in said


def test_too_few_descriptors_for_a_run(server: Server) -> None:
    said = episodes(
        server.url,
        """
limit(descriptors() + 70)
try:
    with open_database(sys.argv[1]):
        pass
except DatabaseError as error:
    print(error)
""",
    )
    assert "too few connections: this process may have" in said and "`ulimit -n 4096`" in said


def test_the_pulse_outlives_too_many_open_files(docker_database: Database) -> None:
    """Without it, no statement would ever reach its time limit: the server would seem to stand still for ever."""

    class Full:
        tries = 0
        engine = make_engine(parse_url(docker_database.url), 5)

        def connect(self) -> Connection:
            self.tries += 1
            if self.tries == 1:
                raise DatabaseError("too many open files")
            return self.engine.connect()

        def dispose(self) -> None:
            self.engine.dispose()

    began, pulse = time.monotonic(), Pulse(Full())  # type: ignore[arg-type]
    time.sleep(2)
    assert pulse.stood_still(began) < 1
    pulse.close()
