"""What an agent can take of a server that we start."""

from __future__ import annotations

import dataclasses
import time

import pymysql
import pytest
from databases import LIMITS, connect_arguments, opened, table, task
from pymysql.err import InterfaceError
from sqlalchemy.exc import DBAPIError

from trl_dbbench.database import Database, open_database
from trl_dbbench.database.server.connections import as_fault
from trl_dbbench.database.server.start import Server
from trl_dbbench.errors import ServerCrash, TaskError
from trl_dbbench.tasks import Gold

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))
QUESTION = task(MEDALS)
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 2"))


# Texts and memory.


def test_functions_make_no_giant_texts(server_database: Database) -> None:
    with server_database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute("SELECT LENGTH(REPEAT('x', 300000))").rows == [(300_000,)]
        assert sandbox.execute("SELECT LENGTH(REPEAT('x', 400000))").rows == [(None,)]


def test_the_longest_statement_is_sent(server_database: Database) -> None:
    """65,536 characters, of four bytes each."""
    with server_database.sandbox(QUESTION) as sandbox:
        sql = "SELECT CHAR_LENGTH('" + "😀" * (65_536 - 22) + "')"
        assert len(sql) == 65_536 and sandbox.execute(sql).rows == [(65_514,)]


def test_large_tables_of_a_task(server_database: Database) -> None:
    """Many rows, and large cells."""
    many = table("many", "id INT, note VARCHAR(100)", *((n, f"note {n} " + "x" * 80) for n in range(20_000)))
    large = table("large", "a LONGTEXT", ("é" * 150_000,), ("x" * 300_000,))
    with server_database.sandbox(task(many, large)) as sandbox:
        assert sandbox.execute("SELECT COUNT(*), MAX(id) FROM many").rows == [(20_000, 19_999)]
        assert sandbox.execute("SELECT LENGTH(a) FROM large").rows == [(300_000,), (300_000,)]


def test_a_cell_that_is_larger_than_what_the_server_takes(local_database: Database) -> None:
    """It would hang up, which is no reason to wait for it or to stop the run."""
    for kind in (QUESTION, CHANGE):
        large = dataclasses.replace(kind, tables=(table("large", "a LONGTEXT", ("x" * 400_000,)),))
        with pytest.raises(TaskError, match=r"'large' cannot be filled: a row takes 400,.* up to 327,680"):
            local_database.sandbox(large)
    with local_database.sandbox(QUESTION) as sandbox:
        assert sandbox.execute("SELECT COUNT(*) FROM medals").rows == [(2,)]


def test_a_session_that_takes_too_much_memory(local_database: Database) -> None:
    """The statement is at fault, and what the episode did before is still there."""
    take = ["SET " + ", ".join(f"@v{m}_{n} = REPEAT('x', 300000)" for n in range(60)) for m in range(5)]
    with local_database.sandbox(CHANGE) as sandbox:
        assert sandbox.execute("UPDATE medals SET gold = 5").affected == 2
        assert sandbox.execute("SELECT COUNT(*) > 0 FROM information_schema.tables").rows == [(1,)]
        assert [sandbox.execute(sql).error for sql in take[:4]] == [None] * 4
        sandbox.execute(take[4])
        result = sandbox.execute("SELECT COUNT(*) > 0 FROM information_schema.tables")
        assert (result.error, result.limit) == (
            "1290 (HY000): The connection's memory limit was exceeded",
            "server",
        )
        assert sandbox.retries == 0


# Disk.


@pytest.mark.parametrize("engine", ["MyISAM", "MEMORY", "CSV", "MRG_MyISAM", "Aria", "ARCHIVE"])
@pytest.mark.parametrize("kind", ["", "TEMPORARY"])
def test_only_innodb(server_database: Database, engine: str, kind: str) -> None:
    with server_database.sandbox(CHANGE) as sandbox:
        assert sandbox.execute(f"CREATE {kind} TABLE g (a INT) ENGINE={engine}").error_code in (
            1286,
            1290,
            3161,
        )
        assert sandbox.execute("CREATE TABLE g (a INT) ENGINE=InnoDB").error is None


GROW = "AS SELECT REPEAT('x', 9000) AS s FROM (WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i FROM n) AS many"


def test_temporary_tables_count(docker_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl_dbbench.database.server.sandbox.MAX_TABLE_BYTES", 4_000_000)
    monkeypatch.setattr("trl_dbbench.database.server.sandbox.UNMEASURED_SECONDS", 0)
    with docker_database.sandbox(CHANGE) as sandbox:
        result = sandbox.execute(f"CREATE TEMPORARY TABLE g {GROW}")
        assert (result.error_code, result.limit) == (1114, "size"), result


def test_tables_of_other_engines_count(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a server that is not ours they cannot be forbidden."""
    monkeypatch.setattr("trl_dbbench.database.server.sandbox.MAX_TABLE_BYTES", 4_000_000)
    monkeypatch.setattr("trl_dbbench.database.server.sandbox.UNMEASURED_SECONDS", 0)
    with pymysql.connect(**connect_arguments(server.url)) as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL enforce_storage_engine = NULL")
    with open_database(server.url, limits=LIMITS) as database, database.sandbox(CHANGE) as sandbox:
        assert sandbox.execute("CREATE TABLE g (s LONGTEXT) ENGINE=MyISAM").error is None
        result = sandbox.execute(f"INSERT INTO g {GROW.removeprefix('AS ')}")
        assert (result.error_code, result.limit) == (1114, "size"), result


# Processors.

ENDLESS = "SELECT '\N{GRINNING FACE}', LOCATE(CONCAT(REPEAT('a', 150000), 'b'), REPEAT('a', 300000))"
"""No server notices a kill in it. MySQL 9 cannot show a statement with such a character in its list of processes."""


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_a_statement_that_goes_on_after_its_kill(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is started again, which other episodes do not notice."""
    monkeypatch.setattr("trl_dbbench.database.server.database.RUNAWAY_SECONDS", 2)
    with opened(kind) as database, database.sandbox(CHANGE) as other, database.sandbox(CHANGE) as sandbox:
        assert other.execute("UPDATE medals SET gold = 5").affected == 2
        result = sandbox.execute(ENDLESS)
        assert (result.error_code, result.limit) == (3024, "time")
        deadline = time.monotonic() + 60
        while not database.restarts and time.monotonic() < deadline:
            time.sleep(0.1)
        assert database.restarts == 1
        assert other.execute("SELECT * FROM medals").rows == [("Chad", 5), ("Peru", 5)]
        with pytest.raises(ServerCrash):
            sandbox.execute("SELECT * FROM medals")


def test_an_error_without_a_servers_number_is_shown_as_a_lost_connection():
    """PyMySQL says `InterfaceError(0, '')` of a connection that it finds closed, as after a kill."""
    error = DBAPIError("SELECT 1", None, InterfaceError(0, ""))
    fault = as_fault(error)
    assert fault.observation == "2013 (HY000): Lost connection to MySQL server during query"
    assert fault.error_code == 2013
