"""Named locks, which are the whole server's: an agent sees and holds none, its own neither. And what else a server
tells of other sessions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
from databases import connect_arguments, table, task

from trl_dbbench.database import Database
from trl_dbbench.database.dialect import MARIADB, MYSQL
from trl_dbbench.tasks import Gold

QUESTION = task(table("medals", "nation TEXT, gold INT", ("Chad", 1)))
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 2"))

CALLS = (
    "SELECT GET_LOCK('shared', 0)",
    "SELECT RELEASE_LOCK('shared')",
    "SELECT RELEASE_ALL_LOCKS()",
    "SELECT IS_FREE_LOCK('shared')",
    "SELECT IS_USED_LOCK('shared')",
)
FORMS = [
    *CALLS,
    "select is_used_lock ('shared')",
    "SELECT `IS_USED_LOCK`('shared')",
    "SELECT \"IS_USED_LOCK\"('shared')",
    "SELECT {fn IS_USED_LOCK('shared')}",
    "SELECT IS_USED_LOCK/* between */('shared')",
    "SELECT IS_USED_LOCK# between\n('shared')",
    "SELECT IS_USED_LOCK-- between\n('shared')",
    "SELECT /*! IS_USED_LOCK('shared') */",
    "SELECT IS_USED_LOCK /*! ('shared') */",
    "SELECT 'a\\', IS_USED_LOCK('shared'), 'b'",
    "DO IS_USED_LOCK('shared')",
    "SET @a = GET_LOCK('shared', 0)",
    "UPDATE medals SET gold = GET_LOCK('shared', 0)",
    "CREATE VIEW v AS SELECT IS_USED_LOCK('shared') AS a",
    "CREATE FUNCTION f() RETURNS INT RETURN IS_USED_LOCK('shared')",
    "CREATE TABLE u (a INT DEFAULT (IS_USED_LOCK('shared')))",
    "PREPARE s FROM 'SELECT GET_LOCK(''shared'', 0)'",
    "SET @s = 'SELECT GET_LOCK(''shared'', 0)'",
    "EXECUTE IMMEDIATE 'SELECT GET_LOCK(''shared'', 0)'",
]
TEXTS = ["SELECT get_lock FROM doors", "SELECT 'GET_LOCK' AS name", "SELECT is_used_lock + 1 FROM doors"]


@pytest.mark.parametrize("sql", FORMS)
def test_recognised(sql: str) -> None:
    assert {dialect.kind_of(sql) for dialect in (MYSQL, MARIADB)} == {"denied"}
    assert not MYSQL.only_reads(sql)


@pytest.mark.parametrize("sql", TEXTS)
def test_no_call(sql: str) -> None:
    assert MYSQL.kind_of(sql) != "denied"


@contextmanager
def somebody(database: Database) -> Iterator[Any]:
    """Another connection, which holds a lock."""
    with pymysql.connect(**connect_arguments(database.url)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('shared', 0)")
        assert cursor.fetchall() == ((1,),)
        yield cursor


@pytest.mark.parametrize("kind", [QUESTION, CHANGE], ids=["question", "change"])
def test_an_agent_sees_and_holds_no_locks(server_database: Database, kind: Any) -> None:
    with somebody(server_database) as cursor, server_database.sandbox(kind) as sandbox:
        for sql in FORMS:
            result = sandbox.execute(sql)
            assert result.rows is None and (result.error or "").startswith(("1227", "1142", "1064")), (
                sql,
                result,
            )
        assert sandbox.execute("SELECT gold FROM medals").rows == [(1,)]
        cursor.execute("SELECT IS_USED_LOCK('shared') = CONNECTION_ID(), IS_FREE_LOCK('mine')")
        assert cursor.fetchall() == ((1, 1),)


OTHERS = (
    "SELECT COUNT(*) FROM performance_schema.metadata_locks",
    "SELECT COUNT(*) FROM performance_schema.threads",
    "SELECT COUNT(*) FROM information_schema.INNODB_TRX",
    "SELECT COUNT(*) FROM information_schema.INNODB_LOCKS",
    "SELECT COUNT(*) FROM sys.processlist",
    "SELECT COUNT(*) FROM sys.session",
    "KILL 1",
)


def test_nor_what_other_sessions_do(server_database: Database) -> None:
    with somebody(server_database), server_database.sandbox(CHANGE) as sandbox:
        for sql in OTHERS:
            result = sandbox.execute(sql)
            assert result.error is not None or result.rows == [(0,)], (sql, result)
        for sql in ("SHOW FULL PROCESSLIST", "SELECT * FROM information_schema.PROCESSLIST"):
            assert len(sandbox.execute(sql).rows or ()) == 1, "its own"


def test_nor_the_idle_sessions_of_earlier_episodes(server_database: Database) -> None:
    """Each is still of the account that used it last."""
    first, second = (
        dataclasses.replace(CHANGE, tables=(table(name, "a INT", (1,)),)) for name in ("first", "second")
    )
    with server_database.sandbox(first) as one, server_database.sandbox(second) as other:
        for sandbox in (one, other):
            assert sandbox.execute("SELECT 1").rows == [(1,)]
    with server_database.sandbox(second) as sandbox:  # with the tables, and so the account, of before
        assert len(sandbox.execute("SHOW PROCESSLIST").rows or ()) == 1, "its own"
