"""Answers that are written without reading the question: what published rules and what rewards pay for them."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sqlite3
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest
from databases import table, task
from fakes import play_script
from required import lacking
from spider2_layout import spider2
from transformers import PreTrainedTokenizerBase

from trl_dbbench import grading
from trl_dbbench.data.score_predictions import score_all
from trl_dbbench.database import Database, Limits
from trl_dbbench.database.sandbox import clip
from trl_dbbench.episode.gold import JUDGED, answer_limits, execute_untruncated
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer
from trl_dbbench.episode.validation import validate
from trl_dbbench.grading import SQL_GRADERS
from trl_dbbench.grading.scorers import Result, csv_cells
from trl_dbbench.rewards.outcome import ExecutionReward
from trl_dbbench.tasks import Gold, Source, Task, load_tasks

DATA = Path(__file__).parents[3] / "shared" / "data" / "scorers"

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22), ("Togo", 22))
CONSTANTS = f"SELECT {', '.join(map(str, range(200)))}"


def question(sql: str, grader: str = "strict") -> Task:
    return dataclasses.replace(task(MEDALS), gold=Gold(sql=sql), grader=grader)


def right(database: Database, task: Task, sql: str) -> bool:
    with database.sandbox(task) as sandbox:
        return Judge(database)(task, Answer(sql), sandbox, "strict").right


# --- Spider's 1,034 questions ---------------------------------------------------------------------


def all_aggregates(database: sqlite3.Connection) -> str:
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = []
    for name in tables:
        found.append(f'(SELECT COUNT(*) FROM "{name}")')
        for column in database.execute(f'PRAGMA table_info("{name}")'):
            calls = ("MAX({})", "MIN({})", "SUM({})", "AVG({})", "COUNT(DISTINCT {})")
            found += [f'(SELECT {call.format(quoted(column[1]))} FROM "{name}")' for call in calls]
    return f"SELECT {', '.join(found[:2000])}"


def quoted(name: str) -> str:
    return f'"{name}"'


BLIND: dict[str, Callable[[sqlite3.Connection], str]] = {
    "200 constants": lambda database: CONSTANTS,
    "all aggregates": all_aggregates,
    "no rows": lambda database: "SELECT 1 WHERE 0",
    "NULL": lambda database: "SELECT NULL",
    "1": lambda database: "SELECT 1",
}

Question = tuple[sqlite3.Connection, str, Result]


def result(database: sqlite3.Connection, sql: str) -> Result:
    cursor = database.execute(sql)
    return Result([column[0] for column in cursor.description], cursor.fetchall())


@cache
def spider() -> Sequence[Question]:
    """Each question's database, gold SQL and gold result. The rows are the kit's, not Spider's."""
    if not DATA.is_dir():
        lacking("data", f"{DATA} is missing")
    databases: dict[str, sqlite3.Connection] = {}
    with gzip.open(DATA / "spider_rows.sql.gz", "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith("-- database: "):
                filled = databases[line.removeprefix("-- database: ").strip()] = sqlite3.connect(
                    ":memory:", check_same_thread=False
                )
            else:
                filled.execute(line)
    entries = [json.loads(line) for line in (DATA / "spider_dev.jsonl").read_text().splitlines()]
    return [
        (database := databases[each["db_id"]], each["query"], result(database, each["query"]))
        for each in entries
    ]


SEVEN = dict.fromkeys(
    ("strict", "bird_ex", "bird_soft_f1", "spider_ts", "spider2", "critic", "critic_mysql"), 7
)
"""Questions whose answer is 1."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "published", "rewarded"),
    [
        ("200 constants", {"spider2": 236}, {}),
        ("all aggregates", {"spider2": 273}, {}),
        (
            "no rows",
            {"strict": 68, "bird_ex": 74, "bird_soft_f1": 74, "spider_ts": 74, "spider2": 74},
            {},
        ),
        (
            "NULL",
            {
                **{"strict": 8, "bird_ex": 8, "bird_soft_f1": 10, "spider_ts": 8, "spider2": 45},
                **{"critic": 8, "critic_mysql": 8},
            },
            {"spider2": 35},  # golds that are 0, which is NULL there: another constant
        ),
        ("1", SEVEN, SEVEN),
    ],
)
def test_what_one_statement_is_paid_over_all_questions(
    name: str, published: dict[str, int], rewarded: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions of the 1,034 that are paid. No reward pays a statement of many things for more than one of them."""
    written: dict[int, Result] = {}  # the same few results again and again
    monkeypatch.setattr(
        grading,
        "csv_cells",
        lambda each: written.get(id(each)) or written.setdefault(id(each), csv_cells(each)),
    )
    graders = {
        key: grader for key, grader in SQL_GRADERS.items() if not key.endswith(("ordered", "distinct"))
    }
    given = {
        id(each): result(each, BLIND[name](each)) for each in {id(q[0]): q[0] for q in spider()}.values()
    }
    by_rule, as_reward = Counter[str](), Counter[str]()
    for database, sql, gold in spider():
        answer = given[id(database)]
        for key, grader in graders.items():
            paid = grader.best(answer, [gold], sql) >= 1
            by_rule[key] += paid
            as_reward[key] += paid and not gold.says_nothing and grader.right(answer, [gold], sql)
    print(name, +by_rule, +as_reward)
    assert (+by_rule, +as_reward) == (published, rewarded)


# --- by the judge ---------------------------------------------------------------------------------


@pytest.mark.parametrize("grader", SQL_GRADERS)
def test_more_columns_than_the_gold_are_not_right(database: Database, grader: str) -> None:
    asked = question("SELECT MAX(gold) FROM medals", grader)
    assert right(database, asked, "SELECT 22")
    assert not right(database, asked, CONSTANTS)
    assert not right(database, asked, "SELECT 22, 22")
    assert not right(database, asked, "SELECT MIN(gold), MAX(gold), COUNT(*) FROM medals")


@pytest.mark.parametrize("grader", SQL_GRADERS)
@pytest.mark.parametrize(
    "gold",
    ["SELECT nation FROM medals WHERE gold > 99", "SELECT MAX(gold), NULL FROM medals WHERE gold > 99"],
)
def test_a_gold_that_gives_nothing_pays_nothing(sqlite_database: Database, grader: str, gold: str) -> None:
    asked = question(gold, grader)
    for sql in (
        gold,
        "SELECT 1 WHERE 1 = 0",
        "SELECT NULL, NULL",
        "SELECT nation FROM medals WHERE gold < 0",
    ):
        assert not right(sqlite_database, asked, sql)
    (found,) = validate([asked], sqlite_database)
    assert found.problem and "gives no rows" in found.problem


def test_a_null_among_others_says_something(sqlite_database: Database) -> None:
    asked = question("SELECT nation, NULL FROM medals WHERE gold = 1")
    assert right(sqlite_database, asked, "SELECT 'Chad', NULL")


def test_published_figures_are_as_published(sqlite_database: Database) -> None:
    """`trl-dbbench scores` has the rules as they are."""
    most, none = "SELECT MAX(gold) FROM medals", "SELECT nation FROM medals WHERE gold > 99"
    tasks = [dataclasses.replace(question(sql), id=name) for name, sql in (("most", most), ("none", none))]
    predictions = {"most": CONSTANTS, "none": "SELECT 1 WHERE 1 = 0"}
    wide, empty = score_all(tasks, predictions, sqlite_database)
    assert wide.values["spider2"] == 1 and wide.values["strict"] == 0
    assert empty.values["spider2"] == empty.values["strict"] == empty.values["bird_ex"] == 1


def test_columns_that_do_not_count_may_be_there(tmp_path: Path, sqlite_database: Database) -> None:
    """Spider 2.0 compares only some columns of many golds. An answer may have a column for each of the others."""
    path = spider2(
        tmp_path,
        {"local001": {"": "id,owner,pets\n7,Ann,2\n8,Bo,1\n"}},
        marks={"local001": {"condition_cols": [2]}},
    )
    (asked,) = load_tasks(path)
    (gold,) = asked.gold.results
    assert (gold.columns, gold.rows, gold.width) == (("pets",), ((2,), (1,)), 3)
    assert Task.from_json(asked.to_json()) == asked
    assert right(sqlite_database, asked, "SELECT 2 UNION SELECT 1")
    assert right(sqlite_database, asked, "SELECT 'Ann', 2, 'x' UNION SELECT 'Bo', 1, 'y'")
    assert not right(sqlite_database, asked, "SELECT 0, 1, 2, 3 UNION SELECT 0, 1, 1, 3")


def test_of_several_golds_those_that_give_nothing_do_not_count(
    tmp_path: Path, sqlite_database: Database
) -> None:
    path = spider2(tmp_path, {"local001": {"_a": "a\n", "_b": "n\n3\n"}, "local002": {"": 'a\n""\n'}})
    first, second = load_tasks(path)
    assert right(sqlite_database, first, "SELECT COUNT(*) FROM pets")
    assert not right(sqlite_database, first, "SELECT name FROM pets WHERE 0")
    assert not right(sqlite_database, second, "SELECT NULL")
    assert [each.problem is None for each in validate([first, second], sqlite_database)] == [True, False]


def test_on_a_suite_some_golds_may_give_nothing(tmp_path: Path, sqlite_database: Database) -> None:
    """The answer has to give nothing there, too, and the same rows on the others."""
    sources = []
    for name, rows in (("one", "('Ann')"), ("two", "('Bo')")):
        with sqlite3.connect(tmp_path / f"{name}.sqlite") as connection:
            connection.executescript(f"CREATE TABLE pets (name TEXT); INSERT INTO pets VALUES {rows}")
        connection.close()
        sources.append(Source.of(tmp_path / f"{name}.sqlite"))
    asked = dataclasses.replace(
        task(*sources[0].tables()),
        gold=Gold(sql="SELECT name FROM pets WHERE name < 'B'"),
        grader="strict",
        source=sources[0],
        suite=(sources[1],),
        dialect="sqlite",
    )
    assert right(sqlite_database, asked, "SELECT name FROM pets WHERE name = 'Ann'")
    assert not right(sqlite_database, asked, "SELECT 'Ann'")
    assert [each.problem for each in validate([asked], sqlite_database)] == [None]
    nowhere = dataclasses.replace(asked, gold=Gold(sql="SELECT name FROM pets WHERE name > 'C'"))
    assert not right(sqlite_database, nowhere, "SELECT name FROM pets WHERE name > 'C'")
    assert [each.problem is None for each in validate([nowhere], sqlite_database)] == [False]


def test_the_execution_reward(tokenizer: PreTrainedTokenizerBase, sqlite_database: Database) -> None:
    def value(gold: str, sql: str) -> float | None:
        turns = [f"Action: Operation\n```sql\n{sql}\n```", "Action: Answer\nFinal Answer: 1"]
        episode = play_script(question(gold), turns, tokenizer, sqlite_database, protocol="text_sql")
        return ExecutionReward(sqlite_database)([episode])[0]

    nobody = "SELECT nation FROM medals WHERE gold > 99"
    assert value(nobody, nobody) == value(nobody, "SELECT 1 WHERE 1 = 0") == 0
    assert value("SELECT MAX(gold) FROM medals WHERE gold > 99", "SELECT NULL") == 0


def test_the_execution_reward_compares_all_rows(
    tokenizer: PreTrainedTokenizerBase, sqlite_database: Database
) -> None:
    """An agent is shown 1,000."""
    numbers = table("numbers", "n INT", *((n,) for n in range(1500)))
    asked = dataclasses.replace(task(numbers), gold=Gold(sql="SELECT n FROM numbers"), grader="strict")
    for sql, expected in (("SELECT n FROM numbers", 1), ("SELECT n FROM numbers WHERE n < 1499", 0)):
        turns = [f"Action: Operation\n```sql\n{sql}\n```", "Action: Answer\nFinal Answer: 1"]
        episode = play_script(asked, turns, tokenizer, sqlite_database, protocol="text_sql")
        assert ExecutionReward(sqlite_database)([episode]) == [expected]


# --- time and memory ------------------------------------------------------------------------------

WIDE = (
    "WITH RECURSIVE n (a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n WHERE a < 80000) "
    f"SELECT {', '.join(f'a + {n}' for n in range(200))} FROM n"
)
"""200 columns, 80,000 rows."""


def test_rows_are_read_up_to_a_number_of_cells() -> None:
    """In whole rows. What comes after is not asked for."""
    rows = iter([(1, 2), (3, 4), (5, 6), (7, 8)])
    assert clip(rows, Limits(cells=5)) == ([(1, 2), (3, 4)], "cells")
    assert list(rows) == [(7, 8)]
    assert clip(iter([(1, 2)]), Limits(cells=2)) == ([(1, 2)], None)
    assert clip(iter([(1, 2)]), Limits(cells=1)) == ([], "cells")


def test_no_more_is_read_than_can_be_right() -> None:
    one, table_ = Result(["a"], [(1,)]), Result(["a", "b"], [(1, 2)] * 30)
    assert answer_limits([one], SQL_GRADERS["spider2"]) == dataclasses.replace(JUDGED, rows=1, cells=1)
    assert answer_limits([one, table_], SQL_GRADERS["strict"]) == dataclasses.replace(
        JUDGED, rows=30, cells=60
    )
    # sets do not mind how often a row comes
    assert answer_limits([one], SQL_GRADERS["bird_ex"]) == dataclasses.replace(JUDGED, cells=JUDGED.rows)


@pytest.mark.parametrize("grader", ["spider2", "strict", "spider_ts", "bird_ex", "bird_soft_f1", "critic"])
def test_a_large_answer_is_not_read_whole(sqlite_database: Database, grader: str) -> None:
    asked = dataclasses.replace(question("SELECT gold FROM medals", grader), dialect="sqlite")
    tracemalloc.start()
    try:
        assert not right(sqlite_database, asked, WIDE)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000_000


def test_what_is_too_much_is_said(database: Database) -> None:
    """Servers are told to stop, and what a sandbox has left is as before."""
    asked, few = question("SELECT gold FROM medals"), dataclasses.replace(JUDGED, cells=5)
    with database.sandbox(asked) as sandbox:
        most = sandbox.execute("SELECT * FROM medals ORDER BY gold", few)
        assert (most.rows, most.limit) == ([("Chad", 1), ("Peru", 22)], "cells")
        assert len(sandbox.execute("SELECT * FROM medals").rows or []) == 3
    assert execute_untruncated(database, asked, "SELECT * FROM medals", few) == (
        None,
        "it gives more than can be judged (100000 rows, 5 cells, 16000000 characters)",
    )


@pytest.mark.timeout(120)
def test_wide_results_with_as_many_rows_are_compared() -> None:
    """Each column is sorted once, not for each column that it is compared with."""
    rows = [tuple((n * (c + 3)) % 9973 for c in range(40)) for n in range(2_000)]
    turned = [row[::-1] for row in rows]
    gold, predicted = (Result([f"c{n}" for n in range(40)], each) for each in (rows, turned))
    assert SQL_GRADERS["spider2"].right(predicted, [gold], "")
    assert SQL_GRADERS["spider_ts"].right(predicted, [gold], "")
    alike = Result(gold.columns, [(0,) * 40] * 2_000)
    assert SQL_GRADERS["spider_ts"].right(alike, [alike], "")
