"""What the episodes of a task ask their tables with the same words is executed once, if it gives the same."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from databases import LIMITS, table, task

from trl_dbbench.database import Database, Limits, QueryResult, open_database
from trl_dbbench.database.dialect import MYSQL
from trl_dbbench.database.server.answers import MAX_ANSWERS, MAX_CHARACTERS, MAX_ROWS, Answers
from trl_dbbench.database.server.readers import Readers
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
        together = threading.Barrier(8, timeout=30)

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


def over_dump(folder: Path, statements: str) -> Task:
    """A question over a dump of these."""
    path = folder / "shop.sql"
    path.write_text(statements)
    return dataclasses.replace(QUESTION, tables=(), source=Source.of(path))


def test_of_a_source_with_a_view_that_draws_lots(
    server_database: Database, tmp_path: Path, executed: list[str]
) -> None:
    shared = over_dump(
        tmp_path,
        "CREATE TABLE medals (nation TEXT, gold INT);\nINSERT INTO medals VALUES ('Chad', 1), ('Peru', 22);\n"
        "CREATE VIEW lots AS SELECT nation, RAND() AS lot FROM medals;\n",
    )
    with open_database(server_database.url, limits=LIMITS) as database:
        lots, rows = [], []
        for _ in range(3):
            with database.sandbox(shared) as sandbox:
                lots.append(sandbox.execute("SELECT lot FROM lots").rows)
                rows.append(sandbox.execute(LOOK).rows)
        assert rows == [ROWS] * 3
        assert lots[0] != lots[1] != lots[2]
        assert len(executed) == 3 + 1


def test_a_time_of_day_in_a_table(server_database: Database, executed: list[str]) -> None:
    """Where a date is needed it is one of today, which no word of the statement says."""
    shops = task(table("shops", "name TEXT, opens TIME", ("Kiosk", "10:00:00")))
    with open_database(server_database.url, limits=LIMITS) as database:
        for _ in range(2):
            with database.sandbox(shops) as sandbox:
                assert sandbox.execute("SELECT DATE(opens) FROM shops").error is None
    assert len(executed) == 2


def test_a_column_that_is_computed_in_a_source(
    server_database: Database, tmp_path: Path, executed: list[str]
) -> None:
    shared = over_dump(
        tmp_path,
        "CREATE TABLE medals (nation TEXT, gold INT, twice INT GENERATED ALWAYS AS (gold * 2) VIRTUAL);\n"
        "INSERT INTO medals (nation, gold) VALUES ('Chad', 1);\n"
        "CREATE TABLE days (time INT);\nINSERT INTO days VALUES (7);\n",
    )
    with open_database(server_database.url, limits=LIMITS) as database:
        for _ in range(2):
            with database.sandbox(shared) as sandbox:
                assert sandbox.execute("SELECT twice FROM medals").rows == [(2,)]
                assert sandbox.execute("SELECT * FROM days").rows == [(7,)]
    assert len(executed) == 2 + 1, "a column may be called time"


def test_what_is_known_does_not_end_an_outage(server_database: Database) -> None:
    with open_database(server_database.url, limits=LIMITS) as database:
        with database.sandbox(QUESTION) as sandbox:
            sandbox.execute(LOOK)
        database.outage.failed(patience=60)
        with database.sandbox(QUESTION) as sandbox:
            assert sandbox.execute(LOOK).rows == ROWS
            assert database.outage.failed(patience=60) > 0, "it goes on"
            assert sandbox.execute("SELECT MAX(gold) FROM medals").rows == [(22,)]
            assert database.outage.failed(patience=60) == 0, "another one: the server has answered"


# --- by the text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT UTC_DATE",
        "SELECT UTC_TIMESTAMP + 0",
        "DESC SELECT * FROM medals",
        "DESCRIBE FORMAT=JSON SELECT * FROM medals",
        "DESC (SELECT 1)",
        "DESC(SELECT 1)",
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


@pytest.mark.parametrize(
    ("sql", "is_so"),
    [
        (LOOK, True),
        ("SELECT nation, YEAR(day) FROM medals WHERE gold > 1 ORDER BY gold LIMIT 3", True),
        ("DESCRIBE medals", True),
        ("SHOW CREATE TABLE medals", True),
        ("SELECT NOW()", False),
        ("SELECT UTC_TIME", False),
        ("SELECT RAND()", False),
        ("SELECT own(gold) FROM medals", False),
        ("SELECT @x", False),
        # a time of day becomes one of today
        ("SELECT CAST(TIME('10:00:00') AS DATETIME)", False),
        ("SELECT CAST(TIME '10:00:00' AS DATE)", False),
        ("SELECT CONVERT('10:00', TIME) + INTERVAL 1 DAY", False),
        ("SELECT STR_TO_DATE('10:00', '%H:%i') + INTERVAL 1 DAY", False),
    ],
)
def test_what_gives_the_same_at_another_time(sql: str, is_so: bool) -> None:
    assert MYSQL.is_steady(sql) is is_so


# --- what is known --------------------------------------------------------------------------------------------


class Held:
    """A statement that is executed until it is let go, by one who then waits no longer than that."""

    def __init__(self, result: QueryResult | EnvironmentFault) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.result = result

    def __call__(self) -> QueryResult:
        self.begun.set()
        assert self.go.wait(30)
        if isinstance(self.result, EnvironmentFault):
            raise self.result
        return self.result


def asked_twice(
    answers: Answers, held: Held, monkeypatch: pytest.MonkeyPatch
) -> tuple[Future[QueryResult], Future[QueryResult]]:
    """By one who executes the statement and one who waits for it, and would get 2."""
    waits = threading.Event()
    exception = Future.exception

    def waited(self: Future, timeout: float | None = None):
        waits.set()
        return exception(self, timeout)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(answers.ask, "db", "q", held)
        assert held.begun.wait(30)
        with monkeypatch.context() as patched:
            patched.setattr(Future, "exception", waited)
            second = pool.submit(answers.ask, "db", "q", lambda: QueryResult([(2,)]))
            assert waits.wait(30)
        held.go.set()
    return first, second


def test_who_comes_meanwhile_gets_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = asked_twice(Answers(), Held(QueryResult([(1,)])), monkeypatch)
    assert first.result().rows == second.result().rows == [(1,)]


@pytest.mark.parametrize("error", ["no such table", "the time limit was exceeded"])
def test_a_failure_is_not_passed_on(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    first, second = asked_twice(answers, Held(QueryResult(None, error, 1146)), monkeypatch)
    assert first.result().error == error
    assert second.result().rows == [(2,)]
    assert answers.ask("db", "q", lambda: QueryResult([(3,)])).rows == [(3,)], "nothing was kept"


def test_who_waited_for_a_fault_executes_the_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers()
    first, second = asked_twice(answers, Held(EnvironmentFault("the server was stopped")), monkeypatch)
    with pytest.raises(EnvironmentFault):
        first.result()
    assert second.result().rows == [(2,)]
    assert answers.ask("db", "q", lambda: QueryResult([(3,)])).rows == [(3,)], "nothing was kept"


def test_what_one_does_to_its_rows_nobody_else_sees() -> None:
    answers = Answers()
    for _ in range(3):
        result = answers.ask("db", "q", lambda: QueryResult([(1,), (2,)]))
        assert result.rows == [(1,), (2,)]
        result.rows.clear()


def test_what_is_kept_is_bounded() -> None:
    answers = Answers()
    for number in range(MAX_ANSWERS + 1):
        answers.ask("db", f"q{number}", lambda: QueryResult([(1,)]))
        answers.ask("db", "q0", lambda: QueryResult([(1,)]))  # asked for all the time
    assert answers.ask("db", "q0", lambda: QueryResult([(2,)])).rows == [(1,)]
    assert answers.ask("db", "q1", lambda: QueryResult([(2,)])).rows == [(2,)], "asked for longest ago"


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("many rows", [(number,) for number in range(MAX_ROWS + 1)]),
        ("long texts", [("x" * (MAX_CHARACTERS // 2), "y" * (MAX_CHARACTERS // 2))]),
        ("a long statement" + " " * MAX_CHARACTERS, [(1,)]),
    ],
)
def test_what_is_large_is_not_kept(sql: str, rows: list[tuple]) -> None:
    answers = Answers()
    assert answers.ask("db", sql, lambda: QueryResult(rows)).rows == rows
    assert answers.ask("db", sql, lambda: QueryResult([(2,)])).rows == [(2,)]
