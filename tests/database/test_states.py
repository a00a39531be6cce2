"""The state of a sandbox: what the real tables hold, with their columns, whatever the agent's session sees."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from databases import rows_of, table, task

from trl_dbbench.database import Database
from trl_dbbench.episode.gold import gold_state
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer
from trl_dbbench.grading.states import state_hash
from trl_dbbench.tasks import Gold, Task

MEDALS = table("medals", "nation VARCHAR(20), gold INT", ("Chad", 1), ("Peru", 22))
BEFORE, AFTER = list(MEDALS.rows), [("Chad", 1), ("Peru", 23)]
GOLD = "UPDATE medals SET gold = 23 WHERE nation = 'Peru'"
ONE_MORE = Task("one-more", "?", (MEDALS,), "UPDATE", Gold(sql=GOLD, state_md5=state_hash(AFTER)))

OTHER_COLUMNS = [
    "ALTER TABLE medals RENAME COLUMN gold TO silver",
    "ALTER TABLE medals CHANGE gold silver INT",
    "ALTER TABLE medals DROP COLUMN gold",
    "ALTER TABLE medals ADD COLUMN silver INT",
    "ALTER TABLE medals MODIFY COLUMN gold INT FIRST",
]


@pytest.mark.parametrize("change", OTHER_COLUMNS)
def test_a_table_with_other_columns_is_not_right(database: Database, change: str) -> None:
    with database.sandbox(ONE_MORE) as sandbox:
        assert sandbox.execute(GOLD).error is None
        assert Judge(database)(ONE_MORE, Answer("done"), sandbox, "text").right
        if (sandbox.execute(change).error_code or 0) == 1235:
            pytest.skip("embedded SQLite does not know this change")
        verdict = Judge(database)(ONE_MORE, Answer("done"), sandbox, "text")
    assert not verdict.right
    unseen = "RENAME" in change or "CHANGE" in change or "ADD" in change
    assert verdict.published_right is unseen, "the published hash sees neither names nor NULLs"


def test_the_columns_of_a_state(database: Database) -> None:
    with database.sandbox(task(table("odd", "Nation, a.b, c%s, né INT"))) as sandbox:
        assert list(sandbox.state()["odd"].columns) == ["Nation", "a.b", "c%s", "né"]


HIDES = "CREATE TEMPORARY TABLE medals (nation VARCHAR(20), gold INT)"
FILLS = "INSERT INTO medals VALUES ('Chad', 1), ('Peru', 23)"


@pytest.mark.parametrize(
    ("statements", "rows"),
    [
        ([HIDES, FILLS], BEFORE),
        ([GOLD, HIDES], AFTER),
        (["BEGIN", GOLD, HIDES], AFTER),
        (["SET autocommit = 0", GOLD, HIDES], AFTER),
        ([HIDES, FILLS, "START TRANSACTION READ ONLY"], BEFORE),
        ([HIDES, FILLS, "SET SESSION TRANSACTION READ ONLY"], BEFORE),
        ([HIDES, FILLS, "DROP TABLE medals", GOLD], AFTER),
    ],
    ids=lambda value: "; ".join(value)[:60] if isinstance(value[0], str) else "",
)
def test_a_temporary_table_is_not_the_table_that_it_hides(
    database: Database, statements: list[str], rows: list[tuple]
) -> None:
    with database.sandbox(ONE_MORE) as sandbox:
        for sql in statements:
            error = sandbox.execute(sql).error
            assert error is None or ("READ ONLY" in sql and error.endswith("(embedded database)")), sql
        seen = sandbox.execute("SELECT * FROM medals").rows
        assert rows_of(sandbox) == {"medals": rows}
        assert Judge(database)(ONE_MORE, Answer("done"), sandbox, "text").right is (rows == AFTER)
        assert sandbox.execute("SELECT * FROM medals").rows == seen, "the state is read without a trace"


@pytest.mark.parametrize(
    "setting",
    [
        "SET sql_select_limit = 1",
        "SET sql_big_selects = 0, max_join_size = 1",
        "SET time_zone = '+09:00'",
        "SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'",
        "SET NAMES latin1",
        "SET max_execution_time = 1",
        "SET max_statement_time = 0.000001",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "LOCK TABLES times READ",
        "LOCK TABLES times WRITE",
        "SELECT * FROM times FOR UPDATE",
    ],
)
def test_a_state_does_not_depend_on_the_agents_session(server_database: Database, setting: str) -> None:
    times = table(
        "times",
        "name CHAR(9), at TIMESTAMP NULL",
        ("Perú", "2020-01-02 03:04:05"),
        ("Chad", None),
        ("Togo", None),
    )
    with server_database.sandbox(task(times)) as sandbox:
        sandbox.execute("BEGIN")
        sandbox.execute("UPDATE times SET name = 'Mali' WHERE name = 'Togo'")
        if sandbox.execute(setting).error_code == 1193:
            pytest.skip("a variable of the other product")
        assert rows_of(sandbox) == {
            "times": [("Perú", datetime(2020, 1, 2, 3, 4, 5)), ("Chad", None), ("Mali", None)]
        }


def test_a_group_that_is_judged_at_once_executes_the_gold_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, made, begin = Judge(database), [], threading.Barrier(8)
    monkeypatch.setattr(
        "trl_dbbench.episode.judge.gold_state", lambda *asked: (made.append(asked), gold_state(*asked))[1]
    )

    def judged(_: int) -> bool:
        with database.sandbox(ONE_MORE) as sandbox:
            assert sandbox.execute(GOLD).error is None
            begin.wait(60)
            return judge(ONE_MORE, Answer("done"), sandbox, "text").right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(judged, range(8)))
    assert len(made) == 1
