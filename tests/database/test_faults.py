"""Failures of servers: what an episode did is done again, or it ends without a reward; nothing else."""

from __future__ import annotations

import dataclasses
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest
from databases import (
    DOCKER_IMAGE,
    LATE_SECONDS,
    LIMITS,
    connect_arguments,
    kill_server,
    opened,
    owned,
    processes,
    rows_of,
    table,
    task,
)
from sqlalchemy.engine import Connection
from waiting import wait_until

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox, State, open_database
from trl_dbbench.database.base import MAX_PAUSE_SECONDS, MAX_STANDSTILLS, MAX_TRIES, Outage
from trl_dbbench.database.dialect import MYSQL
from trl_dbbench.database.server import local
from trl_dbbench.database.server.database import ServerDatabase
from trl_dbbench.database.server.ownership import Account, create_account
from trl_dbbench.database.server.pulse import BEAT_SECONDS
from trl_dbbench.database.server.start import Server
from trl_dbbench.database.server.tenancy import ADMIN_CONNECTIONS, KILL_CONNECTIONS, MAKER_CONNECTIONS
from trl_dbbench.errors import DatabaseError, EnvironmentFault
from trl_dbbench.tasks import Gold, Task

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 2))
QUESTION = task(MEDALS)
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 3"))


def kill_connections(url: str) -> None:
    """All of this server's that belong to runs, as a server does that goes down."""
    with pymysql.connect(**connect_arguments(url)) as admin, admin.cursor() as cursor:
        for number, account, *_ in processes(cursor):
            if account.startswith("dbb"):
                cursor.execute(f"KILL {number}")


# --- one connection ---------------------------------------------------------------------------------------


def test_changes_are_repeated_on_a_fresh_sandbox(server_database: Database) -> None:
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("UPDATE medals SET gold = gold + 1")
        sandbox.execute("INSERT INTO medals VALUES ('Togo', 9)")
        assert sandbox.execute("INSERT INTO medals VALUES ('Mali')").error
        kill_connections(server_database.url)
        assert sandbox.execute("UPDATE medals SET gold = gold * 10").affected == 3
        assert sorted(sandbox.state()["medals"].rows) == [("Chad", 20), ("Peru", 30), ("Togo", 90)]
        assert sandbox.retries == 1


def test_an_open_transaction_is_repeated(server_database: Database) -> None:
    with server_database.sandbox(QUESTION) as sandbox:
        sandbox.execute("BEGIN")
        sandbox.execute("DELETE FROM medals")
        sandbox.execute("SET @kept = 7")
        kill_connections(server_database.url)
        assert sandbox.execute("SELECT @kept").rows == [(7,)]
        assert sandbox.execute("ROLLBACK").error is None
        assert len(sandbox.state()["medals"].rows) == 2


@pytest.mark.parametrize("seconds", [0, 1.5 * BEAT_SECONDS])
def test_what_cannot_be_repeated_ends_the_episode(server_database: Database, seconds: float) -> None:
    """Where the server has failed for others, too: during the statement, or while the model was writing."""
    with server_database.sandbox(QUESTION) as sandbox:
        drawn = sandbox.execute("SELECT @drawn := UUID()").rows
        kill_connections(server_database.url)
        time.sleep(seconds)
        with pytest.raises(
            EnvironmentFault, match=r"'SELECT @drawn := UUID\(\)' cannot be repeated: it gave"
        ) as fault:
            sandbox.execute("SELECT @drawn")
        assert str(drawn) in str(fault.value)


def test_a_failure_right_after_another_is_the_servers_too(server_database: Database) -> None:
    """The health check has connected again, and the second failure ends that connection."""
    with server_database.sandbox(QUESTION) as sandbox:
        sandbox.execute("SET @kept = 7")
        kill_connections(server_database.url)
        assert sandbox.execute("SELECT @kept").rows == [(7,)]
        sandbox.execute("SELECT @drawn := UUID()")
        kill_connections(server_database.url)
        with pytest.raises(EnvironmentFault, match="cannot be repeated"):
            sandbox.execute("SELECT @drawn")


def test_the_clock_and_chance_are_repeated(server_database: Database) -> None:
    """The fresh sandbox holds the very values that the agent has read."""
    with server_database.sandbox(QUESTION) as sandbox:
        read = sandbox.execute("SELECT @drawn := RAND(), @now := NOW(6)").rows
        sandbox.execute("CREATE TABLE log (at DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6), gold INT)")
        sandbox.execute("INSERT INTO log (gold) SELECT FLOOR(1000 * RAND()) FROM medals")
        logged = rows_of(sandbox)["log"]
        kill_connections(server_database.url)
        assert sandbox.execute("SELECT @drawn, @now").rows == read
        assert sandbox.retries == 1
        assert rows_of(sandbox)["log"] == logged


def test_what_was_shown_is_kept(server_database: Database) -> None:
    """Names and numbers of the session, and a UUID, are others on a fresh sandbox; nothing depends on them."""
    with server_database.sandbox(QUESTION) as sandbox:
        sandbox.execute("SET @mine = 7")
        for sql in (
            "SELECT UUID(), CONNECTION_ID(), @mine",
            "SELECT ROW_COUNT(), @mine",
            "SHOW STATUS LIKE 'Uptime'",
        ):
            sandbox.execute(sql)
        kill_connections(server_database.url)
        assert sandbox.execute("SELECT @mine").rows == [(7,)]
        assert sandbox.retries == 1


def test_what_reads_of_the_statement_before_reads_of_the_agents(server_database: Database) -> None:
    """Setting the clock is a statement of ours, which the agent must not notice."""
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("UPDATE medals SET gold = RAND() < 2, nation = IF(NOW(), 'Chad', 'Chad')")
        assert sandbox.execute("SELECT ROW_COUNT()").rows == [(2,)]
        sandbox.execute("UPDATE medals SET gold = gold + (NOW() > 0)")
        assert sandbox.execute("SELECT ROW_COUNT(), NOW() > 0").rows == [(2, 1)]
        sandbox.execute("SET timestamp = 1700000000")
        assert sandbox.execute("SELECT UNIX_TIMESTAMP(NOW())").rows == [(1_700_000_000,)]


class Failing(Database):
    """Its sandboxes answer with what is in `answers`, one after another."""

    url, dialect, patience = "failing", MYSQL, 0.3

    def __init__(self, *answers: QueryResult | EnvironmentFault, up: bool = True):
        self.answers, self.up, self.made = list(answers), up, 0

    def fresh_sandbox(self, task: Task) -> Sandbox:
        self.made += 1
        if not self.up:
            raise EnvironmentFault("2003: no server")
        return FailingSandbox(self)

    def recover(self) -> bool:
        return self.up

    def describe(self) -> str:
        return "failing"

    def close(self) -> None:
        self.closed = True


class FailingSandbox(Sandbox):
    def __init__(self, database: Failing):
        self.database = database

    def execute(self, sql: str, limits: Limits | None = None) -> QueryResult:
        answer = self.database.answers.pop(0)
        if isinstance(answer, EnvironmentFault):
            raise answer
        return answer

    def state(self) -> State:
        return {}

    def close(self) -> None:
        pass


OUT_OF_MEMORY = EnvironmentFault(
    "Out of sort memory", observation="1038 (HY001): Out of sort memory", error_code=1038
)
LOST = EnvironmentFault("2013: lost connection")
DELETED = QueryResult(None, affected=2)


def test_a_statement_that_always_fails_is_the_agents() -> None:
    """A server that makes the tables and repeats the earlier changes, three times, is in order."""
    database = Failing(*[DELETED, OUT_OF_MEMORY] * MAX_TRIES, DELETED, DELETED)
    with database.sandbox(QUESTION) as sandbox:
        sandbox.execute("DELETE FROM medals")
        result = sandbox.execute("SELECT huge FROM medals")
        assert (result.error, result.error_code, result.limit) == (
            "1038 (HY001): Out of sort memory",
            1038,
            "server",
        )
        assert sandbox.execute("DELETE FROM medals") == DELETED
        assert database.made == MAX_TRIES + 1


def test_two_lost_connections_in_a_row_are_not_the_statements_doing() -> None:
    lost = EnvironmentFault("2013: lost connection", observation="2013: lost connection", error_code=2013)
    database = Failing(lost, lost, DELETED)
    with database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute("DELETE FROM medals") == DELETED
        assert sandbox.retries == 2


def test_a_server_that_stood_still_is_asked_more_often() -> None:
    still = EnvironmentFault("stood still", observation="3024: too long", error_code=3024, still=True)
    again = [DELETED, still] * (MAX_STANDSTILLS - 1)
    database = Failing(*[still] * (MAX_STANDSTILLS - 1), DELETED, still, *again)
    with database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute("DELETE FROM medals") == DELETED
        assert sandbox.execute("SELECT 1").error == "3024: too long", "each time with this statement"


def test_a_statement_that_always_loses_the_server_has_no_reward() -> None:
    database = Failing(*[LOST] * MAX_TRIES)
    with database.sandbox(QUESTION) as sandbox, pytest.raises(EnvironmentFault, match="lost connection"):
        sandbox.execute("SELECT crash()")
    assert database.gave_up is None, "the server itself answers"


def test_a_server_that_stays_away() -> None:
    database = Failing(up=False)
    with pytest.raises(EnvironmentFault, match=r"2003: no server; waited for 0\.3 s"):
        database.sandbox(QUESTION)
    assert database.gave_up == "2003: no server"
    database.up = True
    time.sleep(MAX_PAUSE_SECONDS)
    database.sandbox(QUESTION)
    assert database.gave_up is None


def test_an_outage_has_one_clock_for_all() -> None:
    """160 episodes over 32 threads wait together, and not one after another."""
    database = Failing(up=False)
    database.patience = 1.5
    start = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        waiting = [pool.submit(database.sandbox, QUESTION) for _ in range(160)]
        for each in waiting:
            with pytest.raises(EnvironmentFault, match=r"2003: no server; waited for 1\.5 s"):
                each.result()
    assert time.monotonic() - start < 4 * database.patience
    assert database.made < 32 * 10, "who comes later does not even try"


def test_an_outage_long_after_another_is_waited_for_anew() -> None:
    outage = Outage()
    outage.failed(patience=0.1)
    time.sleep(MAX_PAUSE_SECONDS + 0.1)
    assert outage.failed(patience=0.1) == 0.0


def test_nobody_waits_once_the_database_is_closed() -> None:
    database = Failing(up=False)
    database.patience = 60
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(database.sandbox, QUESTION)
        time.sleep(0.1)
        database.close()
        with pytest.raises(DatabaseError, match="closed"):
            waiting.result(5)


# --- what the agent has done itself -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        ["SET sql_big_selects = 0, max_join_size = 1"],
        ["SET sql_select_limit = 1"],
        ["SET SESSION max_statement_time = 0.0001"],
        ["SET SESSION max_execution_time = 1"],
        ["SET SESSION net_buffer_length = 1024", "SET SESSION sql_mode = 'ANSI_QUOTES'"],
        ["SET character_set_results = 'utf16'", "SET time_zone = '+09:00'"],
        ["LOCK TABLES medals WRITE"],
        ["CREATE TEMPORARY TABLE medals AS SELECT 'Mali' AS nation, 7 AS gold"],
        ["BEGIN", "SET TRANSACTION READ ONLY"],
        ["CREATE TABLE made (a INT) START TRANSACTION"],
    ],
    ids=lambda settings: settings[0],
)
def test_nothing_that_an_agent_does_to_its_session_hides_its_tables(
    settings: list[str], server_database: Database
) -> None:
    """Neither right tables become wrong by it, nor wrong ones a failure of the environment."""
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("UPDATE medals SET gold = 3")
        for sql in settings:
            sandbox.execute(sql)
        assert rows_of(sandbox)["medals"] == [("Chad", 3), ("Peru", 3)]
        assert sandbox.retries == 0


def test_what_is_not_committed_counts(server_database: Database) -> None:
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("SET autocommit = 0")
        sandbox.execute("UPDATE medals SET gold = 3")
        assert rows_of(sandbox) == {"medals": [("Chad", 3), ("Peru", 3)]}
        sandbox.execute("ROLLBACK")
        assert rows_of(sandbox) == {"medals": [("Chad", 1), ("Peru", 2)]}, "reading it changes nothing"


def test_an_agent_that_costs_itself_its_tables_goes_on(server_database: Database) -> None:
    """What it drew cannot be drawn again, and nobody else is to blame for that."""
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("SELECT @drawn := RAND()")
        sandbox.execute("UPDATE medals SET gold = 3")
        assert sandbox.execute("UPDATE medals SET gold = 4 WHERE SLEEP(60) = 0").limit == "time"
        assert sandbox.execute("SELECT @drawn IS NULL").rows == [(0,)]
        assert rows_of(sandbox) == {"medals": [("Chad", 3), ("Peru", 3)]}


@pytest.mark.parametrize(
    "sql",
    [
        "WITH best AS (SELECT MAX(gold) AS gold FROM medals) UPDATE medals, best SET medals.gold = 7",
        "WITH chad AS (SELECT 'Chad' AS nation) DELETE FROM medals WHERE nation IN (SELECT nation FROM chad)",
        "SELECT crown()",
        "SELECT * FROM crowned",
    ],
)
def test_reads_that_write_are_repeated(sql: str, server_database: Database) -> None:
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute(
            "CREATE FUNCTION crown() RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN "
            "UPDATE medals SET gold = gold + 5; RETURN 1; END"
        )
        sandbox.execute("CREATE VIEW crowned AS SELECT crown()")
        if sandbox.execute(sql).error:  # MariaDB has no WITH before UPDATE
            pytest.skip(f"{server_database.describe()} refuses it")
        changed = rows_of(sandbox)
        assert sorted(changed["medals"]) != [("Chad", 1), ("Peru", 2)]
        kill_connections(server_database.url)
        sandbox.execute("SELECT 1")
        assert sandbox.retries == 1
        assert rows_of(sandbox) == changed


# --- a whole server ---------------------------------------------------------------------------------------


def changed(database: Database, down: Callable[[], None]) -> None:
    """An episode that reads and one that changes, over a failure of their server."""
    with database.sandbox(QUESTION) as reader, database.sandbox(CHANGE) as writer:
        assert len(reader.execute("SELECT * FROM medals", LIMITS).rows or []) == 2
        writer.execute("UPDATE medals SET gold = gold + 1")
        down()
        assert len(reader.execute("SELECT * FROM medals", LIMITS).rows or []) == 2
        assert writer.execute("DELETE FROM medals WHERE nation = 'Chad'").affected == 1
        assert rows_of(reader) == {"medals": [("Chad", 1), ("Peru", 2)]}
        assert rows_of(writer) == {"medals": [("Peru", 3)]}


def test_a_server_that_is_away_for_a_while(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with open_database(server.url, limits=LIMITS) as database:

        def down() -> None:
            kill_server(server)
            threading.Timer(2.0, server.restart).start()

        with caplog.at_level(logging.WARNING, "trl_dbbench.database"):
            changed(database, down)
            changed(database, down)
        assert len(caplog.messages) == 4, "a line when it goes, one when it is back"
        assert "does not answer (" in caplog.messages[0] and "it is waited for" in caplog.messages[0]
        assert re.search(r"answers again after \d+ s", caplog.messages[1])
    assert owned(server.url) == set()


def test_a_server_that_loses_the_last_writes(server: Server) -> None:
    """Back with its old data, or a part of it: what it still holds is not trusted."""
    with open_database(server.url, limits=LIMITS) as database, database.sandbox(QUESTION) as reader:
        assert len(reader.execute("SELECT * FROM medals", LIMITS).rows or []) == 2
        (pristine,) = [name for name in owned(server.url) if "_t" in name]
        kill_connections(server.url)
        with pymysql.connect(**connect_arguments(server.url)) as admin, admin.cursor() as cursor:
            for number, account, *_ in processes(cursor):
                if account == "root" and number != admin.thread_id():
                    cursor.execute(f"KILL {number}")  # the run's lock goes with its connection
            cursor.execute(f"DELETE FROM {pristine}.medals")
            admin.commit()
        assert len(reader.execute("SELECT * FROM medals", LIMITS).rows or []) == 2
        assert len(reader.state()["medals"].rows) == 2


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_our_own_server_is_started_again(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with opened(kind) as database:
        assert isinstance(database, ServerDatabase) and database._server is not None
        server = database._server

        def down() -> None:
            if kind == "local":
                kill_server(server)
            else:
                container_at(server.url).kill("SIGKILL")

        with caplog.at_level(logging.WARNING, "trl_dbbench.database"):
            changed(database, down)
        assert any("has ended; it is started again" in line for line in caplog.messages)
        url = database.url
    with pytest.raises(pymysql.OperationalError):
        pymysql.connect(**connect_arguments(url))


def test_the_thread_that_starts_a_server_again_survives_an_error(
    local_database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Docker's client, or a process that can start no thread, may raise anything; other ranks wait for the server."""
    looks: list[Server] = []

    def look(server: Server) -> None:
        looks.append(server)
        raise RuntimeError("can't start new thread")

    assert isinstance(local_database, ServerDatabase)
    monkeypatch.setattr(local_database, "_look_at", look)
    wait_until(lambda: len(looks) > 1)
    assert "the database server cannot be looked after now" in caplog.text


def test_a_private_server_that_cannot_be_started_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(program: str, folder: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(local, "_start_process", full)
    with pytest.raises(DatabaseError, match=r"cannot be started again: .*No space left on device"):
        server.restart()


def test_docker_restart() -> None:
    """The container goes on with its data, at the same port."""
    with opened("docker") as database:
        assert isinstance(database, ServerDatabase)
        container = container_at(database.url)
        changed(database, lambda: container.restart(timeout=2))


def container_at(url: str) -> Any:
    """The Docker container whose server has this URL."""
    import docker

    port = url.rpartition(":")[2].strip("/")
    (container,) = [each for each in docker.from_env().containers.list() if f"'{port}'" in str(each.ports)]
    return container


# --- limits that take the tables with them ----------------------------------------------------------------


def test_what_hits_a_limit_is_undone(server_database: Database) -> None:
    """Changes that would have to be rolled back for long, rows of many megabytes, tables without end."""
    grow = "INSERT INTO medals SELECT REPEAT('x', 200), a.gold FROM medals a, medals b, medals c"
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("UPDATE medals SET gold = gold + 1")
        for _ in range(3):
            sandbox.execute("INSERT INTO medals SELECT a.nation, a.gold FROM medals a, medals b")
        before = sandbox.execute("SELECT COUNT(*), SUM(gold) FROM medals").rows
        start = time.monotonic()
        result = sandbox.execute(grow)
        assert time.monotonic() - start < LIMITS.seconds + LATE_SECONDS
        assert result.limit == "time" and "time limit of 1 s" in (result.error or "")
        assert result.error_code == 3024
        assert sandbox.execute("SELECT COUNT(*), SUM(gold) FROM medals").rows == before

        large = sandbox.execute("SELECT " + ", ".join(["REPEAT('x', 300000)"] * 20))
        assert (large.error, large.error_code, large.limit) == (
            "2020 (HY000): Got packet bigger than 'max_allowed_packet' bytes",
            2020,
            "size",
        )
        assert sandbox.execute("SELECT COUNT(*), SUM(gold) FROM medals").rows == before
        assert isinstance(server_database, ServerDatabase)
        # a busy machine may hold the server up at the very end of a statement's time
        stood_still = server_database.tenancy.pulse.stood_still(start - LIMITS.seconds)
        assert sandbox.retries == 0 or stood_still, "that was no failure of the server"


def test_tables_may_not_grow_for_ever(server_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl_dbbench.database.server.sandbox.MAX_TABLE_BYTES", 4_000_000)
    with server_database.sandbox(CHANGE) as sandbox:
        sandbox.execute("CREATE TABLE notes (text LONGTEXT)")
        sandbox.execute("INSERT INTO notes VALUES ('kept')")
        numbers = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 400)"
        for _ in range(6):
            full = sandbox.execute(f"INSERT INTO notes {numbers} SELECT REPEAT('x', 60000) FROM n")
            if full.limit:
                break
        assert (full.error, full.error_code, full.limit) == ("1114 (HY000): The table is full", 1114, "size")
        assert ("kept",) in sandbox.state()["notes"].rows


def test_the_state_of_monstrous_tables(server_database: Database) -> None:
    """It is wrong in any case, and not the server's failure."""
    with server_database.sandbox(CHANGE) as sandbox:
        more = ", ".join(f"ADD COLUMN c{n} LONGTEXT DEFAULT (REPEAT('x', 300000))" for n in range(20))
        assert sandbox.execute(f"ALTER TABLE medals {more}").error is None
        assert sandbox.state() == {}


# --- more sandboxes than connections ----------------------------------------------------------------------


def test_256_sandboxes_on_151_connections() -> None:
    """All open at once, each with a change of its own that it keeps, half of them in the midst of a transaction."""
    with opened("docker") as docker:
        with pymysql.connect(**connect_arguments(docker.url)) as admin, admin.cursor() as cursor:
            cursor.execute("SET GLOBAL max_connections = 151")
        with open_database(docker.url) as database, ThreadPoolExecutor(64) as pool:
            sandboxes = list(pool.map(lambda _: database.sandbox(CHANGE), range(256)))

            def change(number: int) -> None:
                if number % 2:
                    sandboxes[number].execute("BEGIN")
                assert sandboxes[number].execute(f"UPDATE medals SET gold = {number}").affected == 2

            def finish(number: int) -> set[int]:
                sandboxes[number].execute("INSERT INTO medals VALUES ('Togo', -1)")
                return {row[1] for row in sandboxes[number].state()["medals"].rows}

            list(pool.map(change, range(256)))
            assert list(pool.map(finish, range(256))) == [{number, -1} for number in range(256)]
            assert all(sandbox.retries == 0 for sandbox in sandboxes)
            with pymysql.connect(**connect_arguments(docker.url)) as admin, admin.cursor() as cursor:
                cursor.execute("SHOW STATUS LIKE 'Max_used_connections'")
                assert int(cursor.fetchone()[1]) <= 151
            list(pool.map(lambda sandbox: sandbox.close(), sandboxes))


def test_accounts_are_made_over_a_few_connections(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes long for each must not run out of connections because many episodes want one."""
    most = 0

    def slow(admin: Connection, name: str) -> Account:
        nonlocal most
        account = create_account(admin, name)
        time.sleep(0.05)
        ours = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'root'"
        most = max(most, int(admin.exec_driver_sql(ours).scalar() or 0))
        return account

    with open_database(server.url) as database, ThreadPoolExecutor(48) as pool:
        monkeypatch.setattr("trl_dbbench.database.server.slots.ownership.create_account", slow)
        list(pool.map(lambda _: database.sandbox(CHANGE).execute("DELETE FROM medals"), range(48)))
    assert 1 < most <= ADMIN_CONNECTIONS + MAKER_CONNECTIONS + KILL_CONNECTIONS


def test_a_connection_is_waited_for(server: Server) -> None:
    with pymysql.connect(**connect_arguments(server.url)) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE USER other@localhost")
        with open_database(server.url) as database, database.sandbox(QUESTION) as sandbox:
            cursor.execute("SHOW STATUS LIKE 'Threads_connected'")
            cursor.execute("SET GLOBAL max_connections = %s", (max(10, int(cursor.fetchone()[1])),))
            taken = []
            with pytest.raises(pymysql.err.OperationalError, match="Too many connections"):
                while True:
                    taken.append(
                        pymysql.connect(**{**connect_arguments(server.url), "user": "other", "password": ""})
                    )
            threading.Timer(0.3, lambda: [each.close() for each in taken]).start()
            assert sandbox.execute("DELETE FROM medals").affected == 2
            assert sandbox.retries == 0


def test_an_account_with_few_connections(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """While others have them all, the agent reads no error, and its tables do not look as if it had dropped them."""
    few = {**connect_arguments(server.url), "user": "few", "password": "word"}
    with pymysql.connect(**connect_arguments(server.url)) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE USER few@localhost IDENTIFIED BY 'word' WITH MAX_USER_CONNECTIONS 12")
        cursor.execute("GRANT ALL ON *.* TO few@localhost WITH GRANT OPTION")
    with (
        open_database(server.url.replace("root@", "few:word@")) as database,
        database.sandbox(CHANGE) as sandbox,
    ):
        assert "max_user_connections = 12. Raise it" in caplog.text
        assert database.statements_at_once == 1
        sandbox.execute("DELETE FROM medals WHERE gold = 2")
        taken = []
        with pytest.raises(pymysql.err.OperationalError, match="max_user_connections"):
            while True:
                taken.append(pymysql.connect(**few))
        threading.Timer(2.0, lambda: [each.close() for each in taken]).start()
        assert rows_of(sandbox) == {"medals": [("Chad", 1)]}
        assert sandbox.retries > MAX_TRIES


# --- accounts ---------------------------------------------------------------------------------------------


def test_accounts_can_be_required(server_database: Database) -> None:
    with pymysql.connect(**connect_arguments(server_database.url)) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE USER plain@'%' IDENTIFIED BY 'word', plain@localhost IDENTIFIED BY 'word'")
        cursor.execute(r"GRANT ALL ON `dbb\_%`.* TO plain@'%', plain@localhost")
        try:
            url = server_database.url.replace(
                server_database.url.split("//")[1].split("@")[0], "plain:word", 1
            )
            with (
                pytest.raises(
                    DatabaseError, match=r"no account of its own for the agent \(.*require_accounts is set"
                ),
                open_database(url, require_accounts=True),
            ):
                pass
        finally:
            cursor.execute("DROP USER plain@'%', plain@localhost")
            for name in owned(server_database.url):
                if database_of_nobody(cursor, name):
                    cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


def database_of_nobody(cursor: pymysql.cursors.Cursor, name: str) -> bool:
    cursor.execute("SELECT IS_FREE_LOCK(%s)", (name.rpartition("_")[0],))
    return bool(cursor.fetchone()[0])


# --- what a killed run leaves -----------------------------------------------------------------------------

RUN = """
import sys, time
from trl_dbbench.database import open_database
from trl_dbbench.tasks import Task

with open_database(sys.argv[1], docker_image=sys.argv[2]) as database:
    sandboxes = [database.sandbox(Task.from_json(line)) for line in sys.argv[3:]]
    for sandbox in sandboxes:
        sandbox.execute("SELECT 1 FROM medals")
    print(database.url, flush=True)
    time.sleep(300)
"""


@pytest.mark.parametrize("kind", ["url", "docker"])
def test_the_next_run_removes_what_a_killed_one_left(kind: str, server: Server) -> None:
    """Databases and accounts on a server that stays, or the container with all that is in it."""
    if kind == "docker":
        with opened("docker"):
            pass
    spec = server.url if kind == "url" else "docker"
    asked = dataclasses.replace(QUESTION, gold=Gold(answer=((2,),)))
    lines = [each.to_json() for each in (asked, CHANGE)]
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, spec, DOCKER_IMAGE, *lines], stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    url = run.stdout.readline().strip()
    assert {name.rpartition("_")[2][0] for name in owned(url)} == {"s", "t"}
    run.kill()
    run.wait()
    run.stdout.close()

    with open_database(spec, docker_image=DOCKER_IMAGE):
        pass
    if kind == "url":
        assert owned(url) == set()
    else:
        import docker

        client = docker.from_env()
        labels = [each.labels for each in client.containers.list(all=True)]
        client.close()
        assert not any(f"/{run.pid}/" in str(each) for each in labels)
        with pytest.raises(pymysql.OperationalError):
            pymysql.connect(**connect_arguments(url))
