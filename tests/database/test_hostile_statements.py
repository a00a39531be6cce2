"""The statements of `hostile_statements.py`, on servers that we start: no turn is held, nothing goes on, nothing is left.

They run four at a time. What goes on after its kill makes our server start again, so there are no neighbours here but
the next episode; `test_hostile.py` looks after those.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pymysql
import pytest
from databases import LIMITS, connect_arguments, opened, processes
from hostile import CORPUS, Item
from hostile_statements import GRAMMAR
from required import LONG
from sqlalchemy import make_url
from test_hostile import CHANGE, SLOW, again, normal_episode

from trl_dbbench.database import Database
from trl_dbbench.errors import EnvironmentFault

AT_ONCE = 4
KILLED_SECONDS = 10
MEGABYTES = 64 + 64
"""What may be left; InnoDB's buffer pool, which fills once, is the second part."""
NAMES = {"{other}": "dbb_ca5ca5ca_r0_s1", "{slot}": "dbb_1_s1", "{pristine}": "dbb_1_t1"}


def statements(item: Item) -> tuple[str, ...]:
    return (item,) if isinstance(item, str) else item


def test_they_are_new() -> None:
    known = {statements(item) for group in CORPUS.values() for item in group}
    new = [statements(item) for group in GRAMMAR.values() for item in group]
    assert len({*new} - known) == len(new) >= 300


@pytest.mark.slow
@LONG
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chapter", GRAMMAR)
@pytest.mark.parametrize("kind", ["local", "docker"])
def test_chapter(kind: str, chapter: str, alone: Callable[[], AbstractContextManager[None]]) -> None:
    with opened(kind) as database:
        with database.sandbox(CHANGE) as sandbox:
            normal_episode(sandbox, CHANGE)
        memory, disk = megabytes(database)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            items = map(statements, GRAMMAR[chapter])
            found = list(pool.map(lambda item: attack(database, item), items))
        wrong = []
        again(found, lambda n: attack(database, statements(GRAMMAR[chapter][n])), alone)
        wrong += [line for each in found for line in each]
        wrong += still_killed(database)
        more_memory, more_disk = megabytes(database)
        if more_memory - memory > MEGABYTES:
            wrong.append(f"the server grew from {memory} to {more_memory} MB")
        if more_disk - disk > MEGABYTES:
            wrong.append(f"its folder grew from {disk} to {more_disk} MB")
    assert not wrong, "\n".join([f"{len(wrong)} violations", *wrong])


def attack(database: Database, item: tuple[str, ...]) -> list[str]:
    """Runs the statements in one episode, then a normal one; returns what went wrong."""
    wrong = []
    shown = "; ".join(sql[:90] for sql in item[:4])
    restarts = database.restarts
    try:
        with database.sandbox(CHANGE) as sandbox:
            for sql in item:
                for place, name in NAMES.items():
                    sql = sql.replace(place, name)
                result = sandbox.execute(sql)
                if result.seconds > LIMITS.seconds + 1:
                    wrong.append(f"{shown}: {SLOW} for {result.seconds:.1f} s")
            sandbox.state()
        with database.sandbox(CHANGE) as sandbox:
            normal_episode(sandbox, CHANGE)
    except EnvironmentFault as fault:
        if database.restarts == restarts:
            wrong.append(f"{shown}: looked like a failure of the database: {fault}")
    except Exception as error:
        wrong.append(f"{shown}: {error!r}")
    return wrong


def still_killed(database: Database) -> list[str]:
    """Killed statements that go on, after the time in which they must have ended."""
    deadline = time.monotonic() + KILLED_SECONDS + 5
    found: list[str] = []
    while time.monotonic() < deadline:
        try:
            with pymysql.connect(**connect_arguments(database.url)) as admin, admin.cursor() as cursor:
                found = [
                    f"still runs: {seconds} s: {statement}"
                    for *_, command, seconds, _, statement in processes(cursor)
                    if command == "Killed"
                ]
        except pymysql.MySQLError:  # it is being started again, and with it nothing is left
            while not database.recover():
                time.sleep(0.5)
            return []
        if not found:
            return []
        time.sleep(0.5)
    return found


def megabytes(database: Database) -> tuple[int, int]:
    """What the server has of memory and disk, once it runs."""
    while not database.recover():
        time.sleep(0.5)
    if "Docker" in database.describe():
        import docker

        port = str(make_url(database.url).port)
        (container,) = (
            each
            for each in docker.from_env().containers.list()
            if any(port == place["HostPort"] for places in each.ports.values() for place in places or ())
        )
        memory = container.exec_run("grep VmRSS /proc/1/status").output.split()[1]
        disk = container.exec_run("du -sm /var/lib/mysql").output.split()[0]
        return int(memory) // 1024, int(disk)
    folder = Path(str(make_url(database.url).query["unix_socket"])).parent
    status = Path(f"/proc/{(folder / 'pid').read_text().strip()}/status").read_text()
    disk = subprocess.run(["du", "-sm", folder], capture_output=True, check=False).stdout.split()[0]
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024, int(disk)
