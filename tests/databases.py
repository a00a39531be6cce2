"""Fixtures of real databases, each opened once per session. A kind that this machine lacks is skipped with a
reason, unless `TRL_DBBENCH_REQUIRE` (such as `docker,local`) names it: then its tests fail."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
from required import lacking
from sqlalchemy import make_url

from trl_dbbench.database import Database, Limits, Sandbox, open_database
from trl_dbbench.database.server.local import start_local
from trl_dbbench.database.server.start import Server
from trl_dbbench.errors import DatabaseError
from trl_dbbench.tasks import Column, Gold, Table, Task

DOCKER_IMAGE = os.environ.get("TRL_DBBENCH_DOCKER_IMAGE", "mysql:8.4")
LIMITS = Limits(seconds=1.0, rows=100, characters=5_000)
LATE_SECONDS = 5.0
"""How long after its limit a statement may end on a slow machine: the server hears the kill, undoes what was done
and deletes its files. What no kill ends is cut off after twice that."""
KINDS = ("sqlite", "local", "docker")


@contextmanager
def opened(kind: str, limits: Limits = LIMITS) -> Iterator[Database]:
    """A database of this kind, or the test's end as a skip or a failure."""
    manager = open_database(kind, docker_image=DOCKER_IMAGE, limits=limits)
    try:
        database = manager.__enter__()
    except DatabaseError as error:
        lacking(kind, f"no {kind!r} database here: {error}")
    try:
        yield database
    finally:
        manager.__exit__(None, None, None)


@pytest.fixture(scope="session")
def sqlite_database() -> Iterator[Database]:
    with opened("sqlite") as database:
        yield database


@pytest.fixture(scope="session")
def local_database() -> Iterator[Database]:
    with opened("local") as database:
        yield database


@pytest.fixture(scope="session")
def docker_database() -> Iterator[Database]:
    with opened("docker") as database:
        yield database


@pytest.fixture
def mysql(docker_database: Database) -> Database:
    """MySQL of the version that the embedded database answers for; older ones round quotients otherwise."""
    with docker_database.sandbox(Task("version", "?", (), "SELECT", Gold())) as sandbox:
        ((version,),) = sandbox.execute("SELECT VERSION()").rows or [("?",)]
    if not version.startswith("9."):
        pytest.skip(f"the embedded database answers as MySQL 9 does, and this is {version}")
    return docker_database


@pytest.fixture(scope="session", params=KINDS)
def database(request: pytest.FixtureRequest) -> Database:
    """Each kind of database in turn."""
    return request.getfixturevalue(f"{request.param}_database")


@pytest.fixture(scope="session", params=KINDS[1:])
def server_database(request: pytest.FixtureRequest) -> Database:
    """Each kind that has a server."""
    return request.getfixturevalue(f"{request.param}_database")


@pytest.fixture(params=KINDS)
def own_database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Each kind in turn, for one test alone: with its server ends whatever the test's statements leave at work there.
    They have half the usual time: those that take all of it keep a processor busy."""
    with opened(request.param, dataclasses.replace(LIMITS, seconds=LIMITS.seconds / 2)) as database:
        yield database


@pytest.fixture
def server() -> Iterator[Server]:
    """A private server that is the test's and not the run's."""
    try:
        server = start_local()
    except DatabaseError as error:
        lacking("local", f"no 'local' database here: {error}")
    yield server
    server.stop()


def kill_server(server: Server) -> None:
    """SIGKILL, as the kernel sends when memory runs out."""
    folder = Path(server.url.partition("unix_socket=")[2]).parent
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    while server.alive():
        time.sleep(0.02)


def connect_arguments(url: str) -> dict:
    parsed = make_url(url)
    where = (
        {"unix_socket": parsed.query["unix_socket"]}
        if parsed.query
        else {"host": parsed.host, "port": parsed.port}
    )
    return {"user": parsed.username, "password": parsed.password or "", "autocommit": True, **where}


def processes(cursor: Any) -> list[Any]:
    """(number, account, host, database, command, seconds, state, start of the statement) of each connection.

    In ASCII, for statements of other characters: `information_schema.processlist` fails at those (MySQL 9)."""
    cursor.execute("SET character_set_results = ascii")
    cursor.execute("SHOW PROCESSLIST")
    rows = [row[:8] for row in cursor.fetchall()]
    cursor.execute("SET character_set_results = utf8mb4")
    return rows


def owned(url: str) -> set[str]:
    """The databases and accounts on the server that are ours by name."""
    with pymysql.connect(**connect_arguments(url)) as admin, admin.cursor() as cursor:
        cursor.execute(r"SHOW DATABASES LIKE 'dbb\_%'")
        names = {row[0] for row in cursor.fetchall()}
        cursor.execute(r"SELECT User FROM mysql.user WHERE User LIKE 'dbb\_%'")
        return names | {row[0] for row in cursor.fetchall()}


def table(name: str, header: str, *rows: tuple) -> Table:
    """`table("medals", "nation TEXT, gold INT", ("Chad", 1))`."""
    columns = [each.strip().split(" ", 1) for each in header.split(", ")]
    return Table(name, tuple(Column(each[0], each[1] if each[1:] else "TEXT") for each in columns), rows)


def rows_of(sandbox: Sandbox) -> dict[str, list[tuple]]:
    """The rows of all its tables, by name."""
    return {name: list(table.rows) for name, table in sandbox.state().items()}


def task(*tables: Table) -> Task:
    """A task of these tables; what is asked plays no part here."""
    return Task("test", "?", tables, "SELECT", Gold())
