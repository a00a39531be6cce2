"""Episodes of a task read the same tables, and each statement is executed for each of them."""

from __future__ import annotations

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from databases import LIMITS, table, task

from trl_dbbench.database import Database, Limits, open_database
from trl_dbbench.database.dialect import MYSQL
from trl_dbbench.tasks import Gold, Source, Task

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))
QUESTION = task(MEDALS)
ROWS = [("Chad", 1), ("Peru", 22)]
LOOK = "SELECT * FROM medals"


def test_episodes_of_a_task_read_its_tables(server_database: Database) -> None:
    with open_database(server_database.url, limits=LIMITS) as database:
        results = []
        for _ in range(3):
            with database.sandbox(QUESTION) as sandbox:
                results.append(sandbox.execute(LOOK))
                assert not sandbox.changed
        assert [result.rows for result in results] == [ROWS] * 3
        assert results[1].columns == ("nation", "gold")

        other = task(table("medals", "nation TEXT, gold INT", ("Mali", 3)))
        with database.sandbox(other) as sandbox:
            assert sandbox.execute(LOOK).rows == [("Mali", 3)], "other tables of the same name"


def test_episodes_at_the_same_time(server_database: Database) -> None:
    with open_database(server_database.url, limits=LIMITS) as database, ThreadPoolExecutor(8) as pool:
        together = threading.Barrier(8, timeout=30)

        def episode(_: int) -> list[tuple] | None:
            with database.sandbox(QUESTION) as sandbox:
                together.wait()
                return sandbox.execute(LOOK).rows

        assert list(pool.map(episode, range(8))) == [ROWS] * 8


def test_limits_of_one_statement(server_database: Database) -> None:
    with open_database(server_database.url, limits=LIMITS) as database, database.sandbox(QUESTION) as sandbox:
        for _ in range(2):
            assert sandbox.execute(LOOK).rows == ROWS
            assert sandbox.execute(LOOK, Limits(rows=1)).rows == ROWS[:1]


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


def test_of_a_source_with_a_view_that_draws_lots(server_database: Database, tmp_path: Path) -> None:
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


def test_a_column_that_is_computed_in_a_source(server_database: Database, tmp_path: Path) -> None:
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


def test_taking_tables_that_are_there_does_not_end_an_outage(server_database: Database) -> None:
    with open_database(server_database.url, limits=LIMITS) as database:
        with database.sandbox(QUESTION) as sandbox:
            sandbox.execute(LOOK)
        database.outage.failed(patience=60)
        with database.sandbox(QUESTION) as sandbox:
            assert database.outage.failed(patience=60) > 0, "it goes on"
            assert sandbox.execute("SELECT MAX(gold) FROM medals").rows == [(22,)]
            assert database.outage.failed(patience=60) == 0, "another one: the server has answered"


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
