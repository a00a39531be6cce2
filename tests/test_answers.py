"""What the episodes of a task ask their tables with the same words is executed once, if it gives the same."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from databases import LIMITS, table, task

from trl_dbbench.database import Database, Limits, QueryResult, open_database
from trl_dbbench.database.answers import MAX_ANSWERS, MAX_ROWS, Answers
from trl_dbbench.database.dialect import MYSQL
from trl_dbbench.database.server.readers import Readers
from trl_dbbench.database.sqlite.native import NativeSandbox, reads_the_same
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Gold, Source, Task

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))
QUESTION = task(MEDALS)
ROWS = [("Chad", 1), ("Peru", 22)]
LOOK = "SELECT * FROM medals"


# --- on a server ----------------------------------------------------------------------------------------------


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The databases in which readers executed a statement."""
    databases: list[str] = []
    read = Readers.read

    def counted(self: Readers, action, *, database=None, **more):
        databases.append(database)
        return read(self, action, database=database, **more)

    monkeypatch.setattr(Readers, "read", counted)
    return databases


def test_the_same_statement_of_several_episodes_is_executed_once(
    server_database: Database, executed: list[str]
) -> None:
    with open_database(server_database.url, limits=LIMITS) as database:
        results = []
        for _ in range(3):
            with database.sandbox(QUESTION) as sandbox:
                results.append(sandbox.execute(LOOK))
                assert not sandbox.changed
        assert [result.rows for result in results] == [ROWS] * 3
        assert results[1].columns == ("nation", "gold")
        assert len(executed) == 1

        other = task(table("medals", "nation TEXT, gold INT", ("Mali", 3)))
        with database.sandbox(other) as sandbox:
            assert sandbox.execute(LOOK).rows == [("Mali", 3)], "other tables of the same name"


def test_episodes_at_the_same_time_wait_for_one(server_database: Database, executed: list[str]) -> None:
    with open_database(server_database.url, limits=LIMITS) as database, ThreadPoolExecutor(8) as pool:
        together = threading.Barrier(8)

        def episode(_: int) -> list[tuple] | None:
            with database.sandbox(QUESTION) as sandbox:
                together.wait()
                return sandbox.execute(LOOK).rows

        assert list(pool.map(episode, range(8))) == [ROWS] * 8
        assert len(executed) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT RAND(), nation FROM medals",
        "SELECT NOW(6)",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT UTC_TIME",
        "SELECT UUID()",
        "SELECT nation FROM medals ORDER BY RAND()",
        "SELECT SLEEP(0)",
        "EXPLAIN SELECT * FROM medals",
        "DESC SELECT * FROM medals",
        "SELECT gold FROM medal",
    ],
)
def test_what_may_give_something_else_or_fails_is_executed_each_time(
    server_database: Database, executed: list[str], sql: str
) -> None:
    with open_database(server_database.url, limits=LIMITS) as database:
        for _ in range(2):
            with database.sandbox(QUESTION) as sandbox:
                sandbox.execute(sql)
    assert len(executed) == 2


def test_limits_of_its_own_have_a_statement_executed(server_database: Database, executed: list[str]) -> None:
    """As the reward for efficiency has, which measures the time."""
    with open_database(server_database.url, limits=LIMITS) as database, database.sandbox(QUESTION) as sandbox:
        for _ in range(2):
            assert sandbox.execute(LOOK).rows == ROWS
            assert sandbox.execute(LOOK, Limits(rows=1)).rows == ROWS[:1]
    assert len(executed) == 3


def test_who_changes_a_table_reads_the_changed_one(server_database: Database) -> None:
    change = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 2"))
    with open_database(server_database.url, limits=LIMITS) as database:
        for each in (QUESTION, change, QUESTION):
            with database.sandbox(each) as sandbox:
                assert sandbox.execute(LOOK).rows == ROWS
                assert sandbox.execute("UPDATE medals SET gold = 0 WHERE nation = 'Chad'").affected == 1
                assert sandbox.execute(LOOK).rows == [("Chad", 0), ("Peru", 22)]


def test_of_a_source_with_a_view_that_draws_lots(server_database: Database, tmp_path: Path) -> None:
    path = tmp_path / "shop.sql"
    path.write_text(
        "CREATE TABLE medals (nation TEXT, gold INT);\nINSERT INTO medals VALUES ('Chad', 1), ('Peru', 22);\n"
        "CREATE VIEW lots AS SELECT nation, RAND() AS lot FROM medals;\n"
    )
    shared = dataclasses.replace(QUESTION, tables=(), source=Source.of(path))
    with open_database(server_database.url, limits=LIMITS) as database:
        lots, rows = [], []
        for _ in range(3):
            with database.sandbox(shared) as sandbox:
                lots.append(sandbox.execute("SELECT lot FROM lots").rows)
                rows.append(sandbox.execute(LOOK).rows)
        assert rows == [ROWS] * 3
        assert lots[0] != lots[1] != lots[2]


# --- in SQLite's files ----------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Task:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE medals (nation TEXT, gold INT)")
        connection.executemany("INSERT INTO medals VALUES (?, ?)", ROWS)
    connection.close()
    return dataclasses.replace(QUESTION, tables=(), source=Source.of(path), dialect="sqlite")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Statements that were executed."""
    statements: list[str] = []
    ask = NativeSandbox._ask

    def counted(self: NativeSandbox, sql: str, limits: Limits) -> QueryResult:
        statements.append(sql)
        return ask(self, sql, limits)

    monkeypatch.setattr(NativeSandbox, "_ask", counted)
    return statements


def test_a_file_is_asked_once(shop: Task, asked: list[str]) -> None:
    with open_database("sqlite", limits=LIMITS) as database:
        for _ in range(3):
            with database.sandbox(shop) as sandbox:
                assert sandbox.execute(LOOK).rows == ROWS
                assert not sandbox.changed
        assert asked == [LOOK]
        with database.sandbox(shop) as sandbox:
            sandbox.execute("DELETE FROM medals WHERE gold = 1")
            assert sandbox.execute(LOOK).rows == ROWS[1:], "in a copy of its own"
        with database.sandbox(shop) as sandbox:
            sandbox.execute("CREATE TEMP TABLE medals AS SELECT 'Mali' AS nation")
            assert sandbox.execute(LOOK).rows == [("Mali",)], "a temporary table hides the file's"
        with database.sandbox(shop) as sandbox:
            assert sandbox.execute(LOOK).rows == ROWS


def test_a_view_that_draws_lots(shop: Task, asked: list[str]) -> None:
    assert shop.source is not None
    with sqlite3.connect(shop.source.path) as connection:
        connection.execute("CREATE VIEW lots AS SELECT random() AS lot FROM medals")
    connection.close()
    shop = dataclasses.replace(shop, source=Source.of(shop.source.path))
    with open_database("sqlite", limits=LIMITS) as database:
        lots = []
        for _ in range(2):
            with database.sandbox(shop) as sandbox:
                lots.append(sandbox.execute("SELECT lot FROM lots").rows)
        assert lots[0] != lots[1]


@pytest.mark.parametrize(
    ("sql", "is_so"),
    [
        ("SELECT nation FROM medals WHERE gold > 1 ORDER BY gold LIMIT 3", True),
        ("WITH best AS (SELECT MAX(gold) AS gold FROM medals) SELECT * FROM best", True),
        ("SELECT REPLACE(nation, 'a', 'e') FROM medals", True),
        ("SELECT strftime('%Y', day), date(day, '+1 day') FROM days", True),
        ("VALUES (1), (2)", True),
        ("SELECT random()", False),
        ("SELECT hex(RANDOMBLOB(4))", False),
        ("SELECT date('now'), 1", False),
        ("SELECT date()", False),
        ("SELECT date(/**/)", False),
        ('SELECT "date" ( )', False),
        ("SELECT strftime('%s')", False),
        ("SELECT strftime('%' || 's')", False),
        ("SELECT unixepoch('subsec')", False),
        ("SELECT CURRENT_TIMESTAMP", False),
        ("SELECT changes(), total_changes()", False),
        ("SELECT last_insert_rowid()", False),
        ("WITH m AS (SELECT 1) INSERT INTO medals SELECT 'Mali', 3 RETURNING nation", False),
        ("WITH m AS (SELECT 1) REPLACE INTO medals SELECT 'Mali', 3", False),
        ("PRAGMA table_info(medals)", False),
        ("SELECT * FROM pragma_data_version", False),
        ("BEGIN", False),
    ],
)
def test_what_gives_the_same_in_sqlite(sql: str, is_so: bool) -> None:
    assert reads_the_same(sql) is is_so


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT UTC_DATE",
        "SELECT UTC_TIMESTAMP + 0",
        "DESC SELECT * FROM medals",
        "DESCRIBE FORMAT=JSON SELECT * FROM medals",
        "DESC (SELECT 1)",
        "(EXPLAIN SELECT 1)",
    ],
)
def test_what_varies_on_a_server(sql: str) -> None:
    assert MYSQL.varies(sql)


@pytest.mark.parametrize(
    "sql", ["DESC medals", "DESCRIBE `medals`", "DESC selected", "SELECT utc_dates FROM medals"]
)
def test_what_does_not_vary_on_a_server(sql: str) -> None:
    assert not MYSQL.varies(sql)


# --- what is known --------------------------------------------------------------------------------------------


def test_an_error_is_told_to_those_who_wait_and_then_forgotten() -> None:
    answers, error = Answers(), QueryResult(None, "no such table", 1146)
    begun, told = threading.Event(), threading.Event()

    def fails() -> QueryResult:
        begun.set()
        told.wait(10)
        return error

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answers.ask, "q", fails)
        begun.wait(10)
        second = pool.submit(answers.ask, "q", lambda: QueryResult([]))
        told.set()
        assert first.result() == error
        assert second.result() in (error, QueryResult([])), "by when it came"
    assert answers.ask("q", lambda: QueryResult([(1,)])).rows == [(1,)]


def test_who_waited_for_a_fault_executes_the_statement() -> None:
    answers = Answers()
    begun, told = threading.Event(), threading.Event()

    def breaks() -> QueryResult:
        begun.set()
        told.wait(10)
        raise EnvironmentFault("the server was stopped")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answers.ask, "q", breaks)
        begun.wait(10)
        second = pool.submit(answers.ask, "q", lambda: QueryResult([(2,)]))
        told.set()
        with pytest.raises(EnvironmentFault):
            first.result()
        assert second.result().rows == [(2,)]
    assert answers.ask("q", lambda: QueryResult([(3,)])).rows == [(3,)], "nothing was kept"


def test_what_one_does_to_its_rows_nobody_else_sees() -> None:
    answers = Answers()
    for _ in range(3):
        result = answers.ask("q", lambda: QueryResult([(1,), (2,)]))
        assert result.rows == [(1,), (2,)]
        result.rows.clear()


def test_what_is_kept_is_bounded() -> None:
    answers = Answers()
    for number in range(MAX_ANSWERS + 1):
        answers.ask(number, lambda: QueryResult([(1,)]))
        answers.ask(0, lambda: QueryResult([(1,)]))  # asked for all the time
    assert answers.ask(0, lambda: QueryResult([(2,)])).rows == [(1,)]
    assert answers.ask(1, lambda: QueryResult([(2,)])).rows == [(2,)], "asked for the longest time ago"

    long = [(number,) for number in range(MAX_ROWS + 1)]
    answers.ask("long", lambda: QueryResult(long))
    assert answers.ask("long", lambda: QueryResult([(2,)])).rows == [(2,)]
