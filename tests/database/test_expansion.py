"""SQLite writes out views and CTEs without looking at the time, so what would become huge is refused before."""

from __future__ import annotations

import dataclasses
import random
import sqlite3
from contextlib import closing

import pytest
from databases import rows_of, table, task

from trl_dbbench.database import Database
from trl_dbbench.database.embedded.expansion import MAX_WORDS, views_of, words_written_out

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 2))
NATIVE = dataclasses.replace(task(MEDALS), dialect="sqlite")
EMULATED = task(MEDALS)
TWICE = "SELECT p.x FROM {0} p, {0} q"
VIEWS = (("v", "CREATE VIEW v AS SELECT * FROM medals"), ("w", "CREATE VIEW w AS SELECT * FROM v a, v b"))
REFUSED = {
    "the statement has too many parts",
    "1436 (HY000): Thread stack overrun: too many tables, views written out",
}
DEPTH = 60
"""Written out, there are 10^18 tables."""


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT 1", 2),
        ("SELECT * FROM v", 4 + 8),
        ("SELECT * FROM w", 4 + 12 + 2 * 8),
        ('SELECT * FROM "W", [w], `w`, \'w\'', 10 + 4 * 28),
        ("SELECT * FROM (v JOIN main . w ON a = b, v)", 16 + 28 + 2 * 8),
        ("SELECT w, sum(w) AS w FROM medals WHERE w = 'w' GROUP BY w", 18),
        ("DELETE FROM medals WHERE gold IN v", 7 + 8),
        ("WITH a AS (SELECT 1), b(x) AS NOT MATERIALIZED (SELECT * FROM a, a) SELECT * FROM b", 30),
        ("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT n FROM c", 27),
        ("ALTER TABLE medals RENAME TO m", 6 + 8 + 28),
        ("SELECT '", 2),
    ],
)  # fmt: skip
def test_words_written_out(sql: str, words: int) -> None:
    assert words_written_out(sql, VIEWS) >= words
    assert words_written_out(sql, VIEWS) < words + 20, "not much more either"


def test_common_table_expressions_that_read_each_other() -> None:
    chain = "".join(f", a{n} AS ({TWICE.format(f'a{n - 1}')})" for n in range(1, DEPTH))
    for sql in (
        f"WITH a0 AS (SELECT 1 AS x){chain} SELECT * FROM a{DEPTH - 1}",
        f"WITH a0 AS (SELECT 1 AS x){chain.replace(' AS ', ' /**/ aS NOT MATERIALIZED ')} SELECT * FROM a{DEPTH - 1}",
    ):
        assert words_written_out(sql, ()) > MAX_WORDS


@pytest.mark.parametrize(
    "part", ["(", "[", "'", '"', "`", "/*", "--\n", "x AS (", "not (", "\"'`[", "a,", ".", "in "]
)
def test_no_text_takes_long(part: str) -> None:
    """A time that grew with the square of the length would exceed the suite's limit for a test."""
    words_written_out(part * (65_000 // len(part)), VIEWS)


def test_words_of_views_drawn_at_random() -> None:
    """Each way to name a table counts, and SQLite takes the views."""
    rng = random.Random(5)
    for _ in range(40):
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("CREATE TABLE t (x)")
            tables = {"t": 1}
            """How often each reads `t`, written out."""
            for number in range(rng.randint(1, 7)):
                read = rng.choices(list(tables)[-2:], k=2)
                written = [
                    rng.choice(("{}", '"{}"', "main.{}", "[{}]", "MAIN . '{}'")).format(each) for each in read
                ]
                body = rng.choice(
                    (
                        "SELECT p.x FROM {} p, {} q",
                        "SELECT p.x FROM {} p JOIN {} q ON p.x = q.x",
                        "SELECT x FROM (SELECT x FROM {}) UNION ALL SELECT x FROM {}",
                        "WITH c AS (SELECT x FROM {}) SELECT x FROM c WHERE x IN {}",
                        "SELECT (SELECT MAX(x) FROM {}) AS x FROM ({})",
                    )
                )
                connection.execute(f"CREATE VIEW v{number} AS {body.format(*written)}")
                tables[f"v{number}"] = sum(map(tables.__getitem__, read))
            name = list(tables)[-1]
            connection.execute(f"SELECT * FROM {name} LIMIT 0")
            assert words_written_out(f"SELECT * FROM {name}", views_of(connection)) > 5 * tables[name]


@pytest.mark.parametrize("asked", [NATIVE, EMULATED], ids=["native", "emulation"])
def test_views_that_read_each_other_hold_nobody_up(sqlite_database: Database, asked) -> None:
    """Reading the state took 93 s after 15 such views of SQLite's own."""
    with sqlite_database.sandbox(asked) as sandbox:
        sandbox.execute("CREATE VIEW a0 AS SELECT 1 AS x")
        refused = set()
        for number in range(1, DEPTH):
            made = sandbox.execute(f"CREATE VIEW a{number} AS {TWICE.format(f'a{number - 1}')}")
            refused.add(made.error)
            sandbox.execute(f"CREATE VIEW a{number} AS SELECT 1 AS x")  # mostly, it is there already
        assert refused & REFUSED
        for sql in (f"SELECT * FROM a{DEPTH - 1}", "ALTER TABLE medals RENAME TO m", "SELECT * FROM a0"):
            sandbox.execute(sql)
        assert sandbox.execute("SELECT * FROM a3").rows == [(1,)]
        assert len(rows_of(sandbox)) == 1


@pytest.mark.parametrize("asked", [NATIVE, EMULATED], ids=["native", "emulation"])
def test_a_statement_after_one_that_was_stopped(sqlite_database: Database, asked) -> None:
    """Its views, when there were many, were read under the time limit of the stopped statement."""
    with sqlite_database.sandbox(asked) as sandbox:
        for number in range(DEPTH):
            sandbox.execute(f"CREATE VIEW v{number} AS SELECT 1 AS x")
        stopped = sandbox.execute(f"SELECT COUNT(*) FROM {', '.join(f'medals m{n}' for n in range(40))}")
        assert stopped.limit == "time"
        assert sandbox.execute("SELECT * FROM v3").rows == [(1,)]
        assert set(rows_of(sandbox)) == {"medals"}


def test_in_a_temporary_view_and_after_a_rollback(sqlite_database: Database) -> None:
    with sqlite_database.sandbox(NATIVE) as sandbox:
        sandbox.execute("CREATE TEMP VIEW a0 AS SELECT 1 AS x")
        for number in range(1, DEPTH):
            sandbox.execute("BEGIN")
            sandbox.execute(f"CREATE VIEW a{number} AS SELECT 1 AS x")
            sandbox.execute("ROLLBACK")
            sandbox.execute(f"CREATE TEMP VIEW a{number} AS {TWICE.format(f'a{number - 1}')}")
        result = sandbox.execute(f"SELECT * FROM a{DEPTH - 1}")
        assert (result.error or "").startswith("no such table"), "one of the chain was refused"
        assert rows_of(sandbox)["medals"] == [("Chad", 1), ("Peru", 2)]
