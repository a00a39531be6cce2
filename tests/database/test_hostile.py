"""Whatever an agent writes, it sees and changes its own task's tables only, and costs no more than its turn.

The statements are those of `hostile.py`. They run eight at a time on a server where others live, too: another run,
and other episodes of this one. Each of these has a table `secrets` whose word must not show anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pymysql
import pytest
from databases import LATE_SECONDS, LIMITS, connect_arguments, processes, rows_of, table, task
from hostile import MEDALS, OTHER, TABLES, items, seen
from required import LONG
from sqlalchemy import make_url

from trl_dbbench.database import Database, QueryResult, Sandbox
from trl_dbbench.database.dialect import MYSQL, SQLITE
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Gold, Source, Task
from trl_dbbench.utils.sql import quote

QUESTION = task(*TABLES)
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 2"))
WORDS = ("kestrel-8841", "heron-2217", "osprey-5530")
SECRETS = [table("secrets", "id INT, word VARCHAR(40)", (7, word)) for word in WORDS]
AT_ONCE = 8
MEGABYTES = 300
OVER_A_SOURCE = [
    ("docker", True),
    *(pytest.param(kind, False, marks=LONG) for kind in ("docker", "local")),
]
"""A kind of database, and whether only those statements run that name a table or another's database: nothing else
depends on where the tables come from, a session neither, so what is left there is not looked for either. It is shared
alike on both servers; MySQL is the one of every run."""
NAMING = re.compile(r"medals|orders|\{(?:pristine|slot|other)\}")
COMPUTING = {"make giant values", "backtrack in patterns"}
SLOW = "held its turn"


def test_corpus() -> None:
    assert len(set(items())) == len(items()) >= 150


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "every",
    [pytest.param(3, marks=pytest.mark.short), pytest.param(1, marks=pytest.mark.slow)],
    ids=["a third", "all"],
)
def test_hostile_statements(
    own_database: Database,
    every: int,
    monkeypatch: pytest.MonkeyPatch,
    alone: Callable[[], AbstractContextManager[None]],
) -> None:
    """Each in an episode of a question. Statements that then read the pristine tables, through an account that may
    do nothing else, run in an episode of a change as well, where they have tables of their own. An episode after each
    finds its session and its database as the first one on the server did."""
    hold_out(own_database, QUESTION, CHANGE, monkeypatch, alone, items()[::every])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("own_database", "few"), OVER_A_SOURCE, indirect=["own_database"])
def test_hostile_statements_over_a_source(
    own_database: Database,
    few: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    alone: Callable[[], AbstractContextManager[None]],
) -> None:
    """The same where the tables are in a SQLite file, of which all episodes of a server read one copy."""
    path = tmp_path / "shared.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as file:
        for each in TABLES:
            columns = ", ".join(f"{column.name} {column.type}" for column in each.columns)
            file.execute(f"CREATE TABLE {each.name} ({columns})")
            file.executemany(f"INSERT INTO {each.name} VALUES (?, ?)", each.rows)
        file.commit()
    shared = {"source": Source.of(path), "tables": Source.of(path).tables()}
    question, change = (dataclasses.replace(each, **shared) for each in (QUESTION, CHANGE))
    corpus = [item for item in items() if not few or NAMING.search(" ".join(item[1]))]
    assert len(corpus) > 100
    hold_out(own_database, question, change, monkeypatch, alone, corpus, left_is_looked_for=not few)


def hold_out(
    database: Database,
    question: Task,
    change: Task,
    monkeypatch: pytest.MonkeyPatch,
    alone: Callable[[], AbstractContextManager[None]],
    corpus: Sequence[tuple[str, tuple[str, ...]]],
    left_is_looked_for: bool = True,
) -> None:
    # a server that ends what no kill ends would take the neighbours' connections with it, which are looked after here
    monkeypatch.setattr("trl_dbbench.database.server.database.RUNAWAY_SECONDS", 3600)
    fresh = traces(database) if left_is_looked_for else []
    attacks = [(question, *item) for item in corpus]
    reading = (item for item in corpus if any(map(MYSQL.only_reads, item[1])))
    attacks += [(change, *item) for item in reading if not computes(*item)]
    with surroundings(database, question) as (names, wrong):
        begin = peak_megabytes(reset=True)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda attacked: attack(database, names, fresh, *attacked), attacks))
        for beside in (nullcontext, alone):  # waiting for all other tests to end is the last resort
            again(found, lambda n: attack(database, names, fresh, *attacks[n]), beside)
        wrong += [line for each in found for line in each]
        if (grown := peak_megabytes() - begin) > MEGABYTES:
            wrong.append(f"the process grew by {grown:.0f} MB")
    assert not wrong, "\n".join([f"{len(wrong)} violations", *wrong])


def computes(intent: str, statements: tuple[str, ...]) -> bool:
    """Return whether they compute something without a table, which is the same for each account."""
    return intent in COMPUTING and not NAMING.search(" ".join(statements))


def again(
    found: list[list[str]],
    attack: Callable[[int], list[str]],
    beside: Callable[[], AbstractContextManager[None]],
) -> None:
    """What only takes long may do so because of what runs beside it on a slow machine."""
    slow = [n for n, each in enumerate(found) if each and all(SLOW in line for line in each)]
    with beside() if slow else nullcontext():
        for n in slow:
            found[n] = attack(n)


def attack(
    database: Database,
    names: dict[str, str],
    fresh: list[QueryResult],
    attacked: Task,
    intent: str,
    statements: tuple[str, ...],
) -> list[str]:
    """Runs the statements in one sandbox, then normal episodes; returns what went wrong."""
    wrong, slot = [], None
    shown = f"[{intent}] {'; '.join(sql if len(sql) < 90 else f'{sql[:90]}...' for sql in statements[:4])}"
    try:
        with database.sandbox(attacked) as sandbox:
            for number, sql in enumerate(statements, 1):
                for place, name in names.items():
                    sql = sql.replace(place, name)
                start = time.monotonic()
                result = sandbox.execute(sql)
                seconds = time.monotonic() - start
                # where an earlier one lost the tables, those before it are repeated first, each within the limit
                limit = database.limits.seconds
                if result.seconds > limit + LATE_SECONDS or seconds > number * limit + LATE_SECONDS:
                    wrong.append(f"{shown}: {SLOW} for {seconds:.1f} s")
                seen = f"{result.rows} {result.error}"
                if (result.error or "").partition(" ")[0] != str(result.error_code or ""):
                    wrong.append(f"{shown}: error number {result.error_code} of {result.error}")
                if any(word in seen for word in WORDS):
                    wrong.append(f"{shown}: saw {seen[:200]}")
                if len(seen) > 10 * LIMITS.characters:
                    wrong.append(f"{shown}: was shown {len(seen)} characters")
            sandbox.state()
            slot = getattr(sandbox._sandbox, "_slot", None)  # type: ignore[attr-defined]
    except EnvironmentFault as fault:
        wrong.append(f"{shown}: looked like a failure of the database: {fault}")
    except Exception as error:
        wrong.append(f"{shown}: raised {error!r}")
    # in a slot that is not lent again nobody finds anything
    if fresh and slot in database.tenancy.slots._all:  # type: ignore[attr-defined]
        try:
            later = traces(database)
            # one that ran out of time changes what those after it see
            why = f" ({SLOW})" if any(now.limit == "time" for now in later) else ""
            left = [
                f"{now} for {before}{why}" for now, before in zip(later, fresh, strict=True) if now != before
            ]
            wrong += [f"{shown}: the next episode saw {each}" for each in left]
        except Exception as error:
            wrong.append(f"{shown}: the next episode failed: {error!r}")
    for normal in dict.fromkeys((attacked, QUESTION, CHANGE)):
        try:
            with database.sandbox(normal) as sandbox:
                normal_episode(sandbox, normal, database.limits.seconds)
        except Exception as error:
            wrong.append(f"{shown}: the next episode failed: {error!r}")
    return wrong


def traces(database: Database) -> list[QueryResult]:
    """What an episode sees of those before it in its slot; the emulation has no slots."""
    if database.dialect is SQLITE:
        return []
    with database.sandbox(CHANGE) as sandbox:
        return seen(sandbox)


def normal_episode(sandbox: Sandbox, asked: Task, seconds: float = LIMITS.seconds) -> None:
    result = in_time(sandbox.execute("SELECT nation, gold FROM medals WHERE gold > 1"), seconds)
    assert result.rows == [("Peru", 22)], result
    medals = list(MEDALS.rows)
    if not asked.is_question:
        result = in_time(sandbox.execute("UPDATE medals SET gold = 2 WHERE nation = 'Chad'"), seconds)
        assert result.affected == 1, result
        medals[0] = ("Chad", 2)
    state = {name: sorted(rows, key=str) for name, rows in rows_of(sandbox).items()}
    assert state == {"medals": sorted(medals, key=str), "orders": sorted(TABLES[1].rows, key=str)}


def in_time(result: QueryResult, seconds: float) -> QueryResult:
    """Tells a statement that was given all its time from one that another's kill has hit."""
    assert result.limit != "time" or result.seconds < seconds, f"{SLOW} for {result.seconds:.1f} s"
    return result


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
def surroundings(database: Database, question: Task = QUESTION) -> Iterator[tuple[dict[str, str], list[str]]]:
    """The names in the corpus, and a list of what was found wrong that is complete at the end."""
    wrong: list[str] = []
    folders = {Path.cwd(), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")}
    with ExitStack() as stack:
        admin = None
        if database.dialect is not SQLITE:
            admin = stack.enter_context(pymysql.connect(**connect_arguments(database.url))).cursor()
            stack.enter_context(another_run(admin))
            folders.add(Path(run(admin, "SELECT @@datadir")[0][0]))
        neighbours = [
            stack.enter_context(database.sandbox(each)) for each in (task(SECRETS[1]), change(SECRETS[2]))
        ]
        for neighbour, secrets in zip(neighbours, SECRETS[1:], strict=True):
            assert neighbour.execute("SELECT * FROM secrets").rows == list(secrets.rows)
        for each in (QUESTION, question):
            stack.enter_context(database.sandbox(each))  # whose pristine tables then are there
        names = {"{other}": OTHER, "{slot}": "dbb_1_s1", "{pristine}": "dbb_1_t1"}
        if admin is not None:
            homes = run(
                admin, "SELECT table_schema FROM information_schema.tables WHERE table_name = 'secrets'"
            )
            (names["{pristine}"],) = [home for (home,) in homes if "_t" in home]
            (names["{slot}"],) = [home for (home,) in homes if "_s" in home and home != OTHER]
        own = names["{slot}"].rpartition("_")[0]
        files = written(database, folders)
        before = {} if admin is None else everything(admin, own)
        yield names, wrong
        after = {} if admin is None else everything(admin, own)
        wrong += [
            f"changed: {what}: {difference(before[what], after[what])}"
            for what in before
            if before[what] != after[what]
        ]
        for neighbour, secrets in zip(neighbours, SECRETS[1:], strict=True):
            if rows_of(neighbour) != {"secrets": list(secrets.rows)}:
                wrong.append(f"another episode's tables are {rows_of(neighbour)}")
        wrong += [f"written: {path}" for path in written(database, folders) - files]


def written(database: Database, folders: set[Path]) -> set[str]:
    """Files that have the name that the corpus gives to all, here and in the server's container."""
    found = {str(path) for folder in folders if folder.is_dir() for path in folder.glob("*hostile_out*")}
    if "Docker" in database.describe():
        import docker

        port = str(make_url(database.url).port)
        for container in docker.from_env().containers.list():
            if any(
                port == place["HostPort"] for places in container.ports.values() for place in places or ()
            ):
                found |= set(container.exec_run("find / -xdev -name *hostile_out*").output.decode().split())
    return found


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
            f"{home}.{name}": run(admin, f"CHECKSUM TABLE `{home}`.{quote(name)}")
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
        "running": still_running(admin),
    }


def still_running(admin: Any, patience: float = 120.0) -> Any:
    """Agents' statements of more than 3 seconds. One that was killed, such as a table of 8,192 partitions on a slow
    disk, first takes back what it did."""
    deadline = time.monotonic() + patience
    while True:
        found = [
            statement
            for _, account, _, _, command, seconds, _, statement in processes(admin)
            if account.startswith("dbb_") and command == "Query" and seconds > 3
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


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


def run(admin: Any, sql: str) -> Any:
    admin.execute(sql)
    return admin.fetchall()


# The embedded database fails like any other.


def broken(sandbox: Any) -> None:
    """Breaks the file format under a sandbox: SQLITE_NOTADB."""
    sandbox._connection._raw.deserialize(b"no database" * 1000)


def corrupt(sandbox: Any) -> None:
    """Breaks a table under a sandbox: SQLITE_CORRUPT."""
    sandbox._connection._raw.executescript(
        "PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 9999; PRAGMA schema_version = 99"
    )


@pytest.mark.parametrize("failure", [broken, corrupt])
def test_a_broken_database_is_made_anew(sqlite_database: Database, failure: Any) -> None:
    """It is a mistake of the emulation, which lets no agent out of its episode."""
    with sqlite_database.fresh_sandbox(QUESTION) as sandbox:
        failure(sandbox)
        assert sandbox.execute("SELECT * FROM medals").limit == "emulation"
        assert sandbox.lost == "agent"
    with sqlite_database.sandbox(QUESTION) as sandbox:
        normal_episode(sandbox, QUESTION)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("CREATE TABLE g AS SELECT REPEAT('x', 100000) AS x FROM orders", "1114 (HY000): The table is full"),
        ("SELECT CONCAT(REPEAT('é', 70000), '')", "1301 (HY000): Result was larger than max_allowed_packet"),
        ("SELECT COUNT(*) FROM orders a, orders b, orders c, orders d", "3024 (HY000)"),
        ("SELECT " + "1, " * 300 + "1", "1117 (HY000): Too many columns"),
        ("SELECT 1" + " + 1" * 2_000, "1436 (HY000): Thread stack overrun"),
        ("SELECT 1" + " + 1" * 6_000, "1436 (HY000): Thread stack overrun"),
        ("SELECT '" + "x" * 70_000 + "'", "1153 (08S01): Got a packet bigger than"),
    ],
    ids=lambda value: value[:30],
)
def test_limits_of_sqlite_are_the_agents(sqlite_database: Database, sql: str, error: str) -> None:
    with sqlite_database.sandbox(QUESTION) as sandbox:
        result = sandbox.execute(sql)
        assert result.rows is None and (result.error or "").startswith(error)
        assert len(sandbox.state()["medals"].rows) == 3


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH ':memory:' AS x",
        "PRAGMA user_version",
        "SELECT * FROM pragma_table_info('medals')",
        "SELECT load_extension('x')",
        "SELECT fts3_tokenizer('simple')",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "CREATE TRIGGER t AFTER INSERT ON medals BEGIN SELECT 1; END",
    ],
)
def test_what_sqlite_does_not_do_for_an_agent(sqlite_database: Database, sql: str) -> None:
    """Even if its own words got through."""
    with sqlite_database.fresh_sandbox(QUESTION) as sandbox:
        with (
            sandbox._connection._guard.statement(1.0),
            pytest.raises(sqlite3.DatabaseError, match="not authorized"),
        ):
            sandbox._connection._raw.execute(sql)
        normal_episode(sandbox, QUESTION)


def test_large_tasks_have_room(sqlite_database: Database) -> None:
    """The limits are of what comes on top of a task's tables."""
    large = table("large", "a LONGTEXT, b INT", *(("x" * 200_000, number) for number in range(60)))
    wide = table("wide", ", ".join(f"c{number} INT" for number in range(300)), tuple(range(300)))
    with sqlite_database.sandbox(task(large, wide)) as sandbox:
        assert sandbox.execute("SELECT LENGTH(a), b FROM large WHERE b = 59").rows == [(200_000, 59)]
        assert sandbox.execute("SELECT * FROM wide").rows == [tuple(range(300))]
        assert sandbox.execute("UPDATE large SET b = -b WHERE b < 30").affected == 30
        assert sorted(sandbox.state()["large"].rows)[0] == ("x" * 200_000, -29)


# What is decided on a statement's text.


@pytest.mark.parametrize(
    "sql",
    [
        "KILL 1",
        "kill connection_id()",
        "/* first */ KILL QUERY 7",
        "-- first\n # then\n KILL 7",
        "/*!50000 KILL CONNECTION_ID() */",
        "/*M!100000 KILL 7 */",
    ],
)
def test_kill_is_recognised(sql: str) -> None:
    assert MYSQL.kind_of(sql) == "denied"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT `LAST_INSERT_ID` (5)",
        "SELECT `FOUND_ROWS`\n()",
    ],
)
def test_functions_that_leave_a_trace(sql: str) -> None:
    assert not MYSQL.only_reads(sql) and MYSQL.kind_of(sql) == "other"


@pytest.mark.parametrize("sql", [" " * 900_000 + "x", "SELECT 1" + ", 1" * 300_000, "(" * 900_000])
def test_long_texts_are_not_looked_into(sql: str) -> None:
    assert not MYSQL.only_reads(sql) and MYSQL.kind_of(sql) == "other"
