"""Whatever an agent writes, it sees and changes its own task's tables only, and costs no more than its turn.

The statements are those of `hostile.py`. They run eight at a time on a server where others live, too: another run,
and other episodes of this one. Each of these has a table `secrets` whose word must not show anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
from databases import LIMITS, table, task
from hostile import MEDALS, OTHER, TABLES, items
from sqlalchemy import make_url

from trl_dbbench.database import Database, Sandbox
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Gold, Task

QUESTION = task(*TABLES)
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 2"))
WORDS = ("kestrel-8841", "heron-2217", "osprey-5530")
SECRETS = [table("secrets", "id INT, word VARCHAR(40)", (7, word)) for word in WORDS]
AT_ONCE = 8
MEGABYTES = 300


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["question", "change"])
def test_hostile_statements(database: Database, kind: str) -> None:
    attacked = QUESTION if kind == "question" else CHANGE
    with surroundings(database) as (names, wrong):
        begin = peak_megabytes(reset=True)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for found in pool.map(lambda item: attack(database, attacked, names, *item), items()):
                wrong += found
        if (grown := peak_megabytes() - begin) > MEGABYTES:
            wrong.append(f"the process grew by {grown:.0f} MB")
    assert not wrong, "\n".join([f"{len(wrong)} violations", *wrong])


def attack(
    database: Database, attacked: Task, names: dict[str, str], intent: str, statements: tuple[str, ...]
) -> list[str]:
    """Runs the statements in one sandbox, then a normal episode; returns what went wrong."""
    wrong = []
    shown = f"[{intent}] {'; '.join(sql if len(sql) < 90 else f'{sql[:90]}...' for sql in statements[:4])}"
    try:
        with database.sandbox(attacked) as sandbox:
            for sql in statements:
                for place, name in names.items():
                    sql = sql.replace(place, name)
                start = time.monotonic()
                result = sandbox.execute(sql)
                seconds = time.monotonic() - start
                if seconds > LIMITS.seconds + 1:
                    wrong.append(f"{shown}: held its turn for {seconds:.1f} s")
                if told := [word for word in WORDS if word in str(result.rows) or word in str(result.error)]:
                    wrong.append(f"{shown}: saw {told}")
                if len(str(result.error)) > LIMITS.characters:
                    wrong.append(f"{shown}: an error of {len(str(result.error))} characters")
            start = time.monotonic()
            sandbox.state()
            sandbox.close()
            if (seconds := time.monotonic() - start) > 5:
                wrong.append(f"{shown}: its state and its end took {seconds:.1f} s")
    except EnvironmentFault as fault:
        wrong.append(f"{shown}: looked like a failure of the database: {fault}")
    except Exception as error:
        wrong.append(f"{shown}: raised {error!r}")
    try:
        with database.sandbox(attacked) as sandbox:
            normal_episode(sandbox, attacked)
    except Exception as error:
        wrong.append(f"{shown}: the next episode failed: {error!r}")
    return wrong


def normal_episode(sandbox: Sandbox, asked: Task) -> None:
    result = sandbox.execute("SELECT nation, gold FROM medals WHERE gold > 1")
    assert result.rows == [("Peru", 22)], result
    medals = list(MEDALS.rows)
    if not asked.is_question:
        result = sandbox.execute("UPDATE medals SET gold = 2 WHERE nation = 'Chad'")
        assert result.affected == 1, result
        medals[0] = ("Chad", 2)
    state = {name: sorted(rows, key=str) for name, rows in sandbox.state().items()}
    assert state == {"medals": sorted(medals, key=str), "orders": sorted(TABLES[1].rows, key=str)}


def peak_megabytes(*, reset: bool = False) -> float:
    """The most memory that this process has had, since the last reset if the system knows of resets."""
    if reset:
        gc.collect()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


# What lies around, and whether it is still as it was.


@contextmanager
def surroundings(database: Database) -> Iterator[tuple[dict[str, str], list[str]]]:
    """The names in the corpus, and a list of what was found wrong that is complete at the end."""
    wrong: list[str] = []
    folders = [Path.cwd(), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    with ExitStack() as stack:
        admin = None
        if database.dialect != "sqlite":
            admin = stack.enter_context(pymysql.connect(**connect_arguments(database.url))).cursor()
            stack.enter_context(another_run(admin))
            folders += [Path(run(admin, "SELECT @@datadir")[0][0])]
        neighbours = [
            stack.enter_context(database.sandbox(each)) for each in (task(SECRETS[1]), change(SECRETS[2]))
        ]
        for neighbour, secrets in zip(neighbours, SECRETS[1:], strict=True):
            assert neighbour.execute("SELECT * FROM secrets").rows == list(secrets.rows)
        stack.enter_context(database.sandbox(QUESTION))  # whose pristine tables then are there
        names = {"{other}": OTHER, "{slot}": "dbb_1_s1", "{pristine}": "dbb_1_t1"}
        if admin is not None:
            homes = run(
                admin, "SELECT table_schema FROM information_schema.tables WHERE table_name = 'secrets'"
            )
            (names["{pristine}"],) = [home for (home,) in homes if "_t" in home]
            (names["{slot}"],) = [home for (home,) in homes if "_s" in home and home != OTHER]
        own = names["{slot}"].rpartition("_")[0]
        before = {} if admin is None else everything(admin, own)
        yield names, wrong
        after = {} if admin is None else everything(admin, own)
        wrong += [
            f"changed: {what}: {difference(before[what], after[what])}"
            for what in before
            if before[what] != after[what]
        ]
        for neighbour, secrets in zip(neighbours, SECRETS[1:], strict=True):
            if neighbour.state() != {"secrets": list(secrets.rows)}:
                wrong.append(f"another episode's tables are {neighbour.state()}")
        wrong += [f"written: {path}" for folder in folders for path in written(folder)]


def change(*tables: Any) -> Task:
    return dataclasses.replace(task(*tables), operation="UPDATE", gold=Gold(sql="UPDATE secrets SET id = 1"))


@contextmanager
def another_run(admin: Any) -> Iterator[None]:
    """A run that lives: it holds the lock of its name, has a database, and an account that may use it."""
    lock = OTHER.rpartition("_")[0]
    assert run(admin, f"SELECT GET_LOCK('{lock}', 5)") == ((1,),)
    try:
        run(admin, f"CREATE DATABASE {OTHER}")
        run(admin, f"CREATE TABLE {OTHER}.secrets (id INT PRIMARY KEY, word VARCHAR(40))")
        run(admin, f"INSERT INTO {OTHER}.secrets VALUES (7, '{WORDS[0]}')")
        run(admin, f"CREATE USER {OTHER}@'%' IDENTIFIED BY 'another-1A!'")
        run(admin, f"GRANT ALL ON {OTHER}.* TO {OTHER}@'%'")
        yield
    finally:
        run(admin, f"DROP DATABASE IF EXISTS {OTHER}")
        run(admin, f"DROP USER IF EXISTS {OTHER}@'%'")
        run(admin, f"SELECT RELEASE_LOCK('{lock}')")


def everything(admin: Any, own: str) -> dict[str, Any]:
    """What no agent may change: all on the server but the databases and accounts of this run's slots."""
    databases = sorted(name for (name,) in run(admin, "SHOW DATABASES") if not name.startswith(f"{own}_s"))
    tables = run(
        admin,
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema LIKE 'dbb\\_%'",
    )
    users = run(admin, "SELECT * FROM mysql.user ORDER BY User, Host")
    return {
        "databases": databases,
        "tables": {
            f"{home}.{name}": run(admin, f"CHECKSUM TABLE `{home}`.`{name}`")
            for home, name in sorted(tables)
            if home in databases
        },
        "accounts": [
            user for user in users if not any(str(cell).startswith(f"{own}_s") for cell in user[:2])
        ],
        "grants": run(admin, f"SHOW GRANTS FOR {OTHER}@'%'"),
        "variables": dict(run(admin, "SHOW GLOBAL VARIABLES")),
        "plugins": run(admin, "SHOW PLUGINS"),
        "functions": run(admin, "SELECT * FROM mysql.func"),
        "servers": run(admin, "SELECT * FROM mysql.servers"),
        "routines": run(
            admin, "SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema LIKE 'dbb%'"
        ),
        "events": run(admin, "SELECT COUNT(*) FROM information_schema.events"),
        "triggers": run(
            admin, "SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema LIKE 'dbb%'"
        ),
        "transactions": run(admin, "XA RECOVER"),
        "lock": run(admin, "SELECT IS_USED_LOCK('hostile')"),
        "running": run(
            admin,
            "SELECT User, Info FROM information_schema.processlist WHERE Command = 'Query' AND Time > 3",
        ),
    }


def difference(before: Any, after: Any) -> str:
    if isinstance(before, dict):
        return str(
            {
                key: (before.get(key), after.get(key))
                for key in {**before, **after}
                if before.get(key) != after.get(key)
            }
        )
    return f"{before} -> {after}"


def written(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (path for path in folder.glob("*hostile_out*"))


def run(admin: Any, sql: str) -> Any:
    admin.execute(sql)
    return admin.fetchall()


def connect_arguments(url: str) -> dict[str, Any]:
    parsed = make_url(url)
    where = (
        {"unix_socket": parsed.query["unix_socket"]}
        if parsed.query
        else {"host": parsed.host, "port": parsed.port}
    )
    return {"user": parsed.username, "password": parsed.password or "", "autocommit": True, **where}
