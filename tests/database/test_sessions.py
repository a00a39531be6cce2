"""What an episode leaves in its session or its database does not reach the next one, whatever its text hides."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
from databases import LIMITS, connect_arguments, opened, owned, table, task
from hostile import HIDDEN, PREPARED, seen

from trl_dbbench.database import Database, open_database
from trl_dbbench.database.dialect import MARIADB, MYSQL
from trl_dbbench.database.server.ownership import prepared_transactions, roll_back_prepared
from trl_dbbench.tasks import Gold

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))
QUESTION = task(MEDALS)
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 2"))


@pytest.mark.parametrize("sql", HIDDEN)
def test_what_a_statement_hides_stays_in_its_episode(server_database: Database, sql: str) -> None:
    with open_database(server_database.url, limits=LIMITS) as database:
        with database.fresh_sandbox(CHANGE) as sandbox:
            fresh = seen(sandbox)
        for _ in range(2):
            with database.fresh_sandbox(CHANGE) as sandbox:
                sandbox.execute(sql)
        with database.fresh_sandbox(CHANGE) as sandbox:
            assert seen(sandbox) == fresh


@pytest.mark.parametrize(
    "left",
    ["SELECT @x := 5", "DO GET_LOCK('mine', 0)", "SELECT LAST_INSERT_ID(77)", "SET NAMES latin1", "BEGIN"],
)
def test_a_reader_is_lent_as_new(server_database: Database, left: str) -> None:
    """Even if a statement gets there that should not."""
    with (
        open_database(server_database.url, limits=LIMITS) as database,
        database.fresh_sandbox(QUESTION) as sandbox,
    ):
        readers, name = database.tenancy.readers, sandbox._pristine.loaded.database
        fresh = readers.read(seen, database=name, reader="one episode")
        assert (
            readers.read(lambda session: session.execute(left), database=name, reader="another").error is None
        )
        assert len(readers._idle) == 1
        assert readers.read(seen, database=name, reader="a third") == fresh


# XA transactions: a prepared one outlives its connection and holds its tables.


@pytest.mark.parametrize(
    "sql",
    [
        "XA/**/START 'x'",
        "XA# comment\nBEGIN 'x'",
        "/* */ xa -- \n start 'x'",
        "XA /*!99999 not */ /*!50000 START */ 'x'",
        "/*!99999 SELECT */ XA START 'x'",
        "CREATE PROCEDURE p() BEGIN SET @a = '/*'; XA/**/START 'x'; SET @a = '*/'; END",
        "CREATE PROCEDURE p() BEGIN SET @a = '\\'; XA START 'x'; SET @b = '; END",
        "CREATE PROCEDURE p() XA ROLLBACK 'of another'",
        "PREPARE s FROM 'XA/**/START ''x'''",
        "EXECUTE IMMEDIATE \"XA START 'x'\"",
        "CREATE TABLE f (a INT) DATA/**/DIRECTORY = '/tmp/x'",
        "CREATE TABLE f (a INT) INDEX # \n DIRECTORY = '/tmp/x'",
        "SELECT 1 /*M!100000 INTO OUTFILE 'x' */; KILL 1",
    ],
)
def test_comments_hide_nothing_that_is_denied(sql: str) -> None:
    assert MYSQL.kind_of(sql) == "denied"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT xa FROM medals",
        "SELECT 'xa start', \"data directory\"",
        "SELECT * FROM medals WHERE nation = 'Kill Bill\\'s'",
        "SELECT `xa start` FROM medals -- XA START",
    ],
)
def test_what_only_quotes_such_words_is_not_denied(sql: str) -> None:
    assert MYSQL.kind_of(sql) == "reads"


@contextmanager
def administrator(url: str) -> Iterator[Any]:
    with pymysql.connect(**connect_arguments(url)) as connection, connection.cursor() as cursor:

        def run(sql: str) -> Any:
            cursor.execute(sql)
            return cursor.fetchall()

        yield run


def prepare(url: str, name: str, place: str) -> None:
    """A transaction that holds a table, and that nobody but an administrator ends."""
    with administrator(url) as run:
        for sql in (
            f"XA START {name}",
            f"INSERT INTO {place} () VALUES ()",
            f"XA END {name}",
            f"XA PREPARE {name}",
        ):
            run(sql)


@contextmanager
def bank(url: str) -> Iterator[str]:
    """A table of another application."""
    with administrator(url) as run:
        run("CREATE DATABASE bank")
        run("CREATE TABLE bank.accounts (id INT) ENGINE = InnoDB")
    try:
        yield "bank.accounts"
    finally:
        with administrator(url) as run:
            for name in names_of_prepared(url):
                run(f"XA ROLLBACK '{name}'")
            run("DROP DATABASE bank")


def names_of_prepared(url: str) -> list[str]:
    with administrator(url) as run:
        return [
            data.decode(errors="replace") if isinstance(data, bytes) else data
            for *_, data in run("XA RECOVER")
        ]


def test_a_prepared_transaction_ends_with_its_episode(server_database: Database) -> None:
    """MariaDB prepares whatever text is made; MySQL knows no EXECUTE IMMEDIATE, and no PREPARE of XA. Transactions
    of others stay, whatever the order in which the server lists them."""
    url = server_database.url
    others = [f"theirs {number}" for number in range(5)]
    before = owned(url)
    with bank(url) as accounts:
        for name in others:
            prepare(url, f"'{name}'", accounts)
        with open_database(url, limits=LIMITS) as database:
            for _ in range(2):
                with database.sandbox(CHANGE) as sandbox:
                    errors = [sandbox.execute(sql).error for sql in PREPARED]
                    assert not any(errors) or database.dialect is not MARIADB, errors
            sandbox = database.sandbox(CHANGE)
            for sql in PREPARED:
                sandbox.execute(sql)
            start = time.monotonic()
        assert time.monotonic() - start < 10
        assert sorted(names_of_prepared(url)) == others
        assert owned(url) <= before


def test_all_are_rolled_back_whatever_they_are_called(server_database: Database) -> None:
    names = ["'plain'", "'it''s', 'two parts', 7", "X'00ff27', X'5c', 1"]
    tenancy = server_database.tenancy
    with bank(server_database.url) as accounts, tenancy.admin.connect() as admin:
        for name in names:
            prepare(server_database.url, name, accounts)
        assert len(prepared_transactions(admin, tenancy.dialect)) == len(names)
        deadline = time.monotonic() + 10  # until the connections that prepared them have ended
        while prepared_transactions(admin, tenancy.dialect) and time.monotonic() < deadline:
            roll_back_prepared(admin, tenancy.dialect)
        assert prepared_transactions(admin, tenancy.dialect) == []


@pytest.mark.parametrize("kind", ["local", "docker"])
def test_one_that_outlived_its_connection_ends_on_a_server_of_our_own(kind: str) -> None:
    kill = "EXECUTE IMMEDIATE CONCAT('KI', 'LL ', CONNECTION_ID())"
    with opened(kind) as database:
        before = owned(database.url)
        with database.sandbox(CHANGE) as sandbox:
            for sql in (*PREPARED, kill):
                sandbox.execute(sql)
        deadline = time.monotonic() + 10
        while (
            names_of_prepared(database.url) or owned(database.url) - before
        ) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert names_of_prepared(database.url) == [] and owned(database.url) <= before


def test_a_database_that_its_agent_made_read_only_is_dropped(docker_database: Database) -> None:
    before = owned(docker_database.url)
    with (
        open_database(docker_database.url, limits=LIMITS) as database,
        database.sandbox(CHANGE) as sandbox,
    ):
        assert sandbox.execute("ALTER DATABASE dbbench READ ONLY = 1").error is None
        assert sandbox.execute("DELETE FROM medals").error_code == 3989
    assert owned(docker_database.url) <= before


def test_what_cannot_be_dropped_keeps_nobody(
    server_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the end of its run nor the next run; one after that removes it once it can."""
    url = server_database.url
    with open_database(url, limits=LIMITS) as database:
        sandboxes = [database.fresh_sandbox(CHANGE) for _ in range(3)]
        held = sandboxes[0]._slot.name
        owner = held.rpartition("_")[0]
        prepare(url, "'theirs'", f"{held}.medals")
        start = time.monotonic()
        database.close()
        assert time.monotonic() - start < 30
        assert {name for name in owned(url) if name.startswith(owner)} == {held}
        assert held in caplog.text and "XA RECOVER" in caplog.text
    start = time.monotonic()
    with open_database(url):
        assert time.monotonic() - start < 20
        assert held in owned(url)
    with administrator(url) as run:
        run("XA ROLLBACK 'theirs'")
    with open_database(url):
        assert held not in owned(url)
