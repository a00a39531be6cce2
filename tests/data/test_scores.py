"""Predicted SQL, scored by the rules of all evaluators beside each other."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from databases import table, task
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.data.score_predictions import read_predictions, score_all
from trl_dbbench.database import Database
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.grading import SQL_GRADERS
from trl_dbbench.tasks import Gold, Source

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22), ("Togo", 22))


def question(name: str, sql: str):
    return dataclasses.replace(task(MEDALS), id=name, gold=Gold(sql=sql), grader="strict")


TASKS = [
    question("who", "SELECT nation FROM medals WHERE gold > 20"),
    question("all", "SELECT nation, gold FROM medals ORDER BY gold DESC, nation"),
    question("none", "SELECT nation FROM medals WHERE gold > 99"),
]


def test_each_grader_says_what_its_evaluator_would(database: Database) -> None:
    predictions = {
        "who": "SELECT nation FROM medals WHERE gold = 22 UNION ALL SELECT 'Peru'",
        "all": "SELECT gold, nation FROM medals ORDER BY gold DESC, nation",
        "none": "SELECT nation FROM medals WHERE gold > 50",
    }
    found = {each.task.id: each for each in score_all(TASKS, predictions, database)}
    right = {name: [key for key, value in each.values.items() if value == 1] for name, each in found.items()}
    assert right == {
        "who": ["bird_ex", "bird_soft_f1", "critic", "critic_mysql", "critic_mysql_no_distinct"],
        "all": ["bird_soft_f1", "spider_ts", "spider_ts_distinct", "spider2", "spider2_ordered"],
        "none": [name for name in SQL_GRADERS if not name.startswith("critic")],
    }
    assert all(each.problem is None for each in found.values())


def test_what_gives_nothing_is_wrong_and_said(database: Database) -> None:
    predictions = {"who": "SELECT nations FROM medals", "all": " "}
    who, everything, none = score_all(TASKS, predictions, database)
    assert set(who.values.values()) == set(everything.values.values()) == set(none.values.values()) == {0.0}
    assert (who.problem or "").startswith("it fails: 1054 (42S22): Unknown column 'nations'")
    assert everything.problem == none.problem == "there is no prediction"
    for predictions in ({"broken": "SELECT 1"}, {}):  # a task counts with every prediction, or with none
        (broken,) = score_all([question("broken", "SELECT x FROM medals")], predictions, database)
        assert set(broken.values.values()) == {None}
        assert (broken.problem or "").startswith("the gold SQL fails: 1054")


def test_only_questions_with_gold_sql(sqlite_database: Database) -> None:
    with pytest.raises(TaskError, match="task 'test' is not a question with gold SQL; leave it out"):
        list(score_all([task(MEDALS)], {}, sqlite_database))


WANTED = {"who": "SELECT 1", "all": "SELECT 'a\tb'", "none": "SELECT 3"}
EPISODE = {
    "task_id": "none",
    "turns": [{"sql": "SELECT 3", "action": "operation"}, {"answer": "", "action": "answer"}],
}


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("a.jsonl", "\n".join(json.dumps({"id": key, "sql": sql}) for key, sql in WANTED.items()), WANTED),
        ("episodes.jsonl", json.dumps(EPISODE), {"none": "SELECT 3"}),
        (
            "episodes.jsonl",
            json.dumps({"task_id": "who", "turns": [{"sql": "SELECT 9"}, {"answer": "SELECT 1"}]}),
            {"who": "SELECT 1"},
        ),
        ("episodes.jsonl", json.dumps({"task_id": "who", "turns": [{"sql": "SELECT 9"}]}), {"who": ""}),
        (
            "episodes.jsonl",
            f"{json.dumps(EPISODE)}\n{json.dumps({**EPISODE, 'turns': [], 'status': 'environment_fault'})}\n",
            {"none": "SELECT 3"},
        ),
        ("episodes.jsonl", f"{json.dumps(EPISODE)}\n{json.dumps(EPISODE)[:50]}", {"none": "SELECT 3"}),
        (
            "episodes.jsonl",
            "\n".join(
                json.dumps({**EPISODE, "task_id": key, "task_digest": digest})
                for key, digest in (("none", TASKS[2].digest), ("who", "of a training task"), ("no-such", ""))
            ),
            {"none": "SELECT 3"},
        ),
        ("a.json", json.dumps(WANTED), WANTED),
        (
            "a.json",
            json.dumps({"0": "SELECT 1\t----- bird -----\tsinger", "2": "SELECT 3\t----- bird -----\tcars"}),
            {"who": "SELECT 1", "none": "SELECT 3"},
        ),
        ("a.json", json.dumps([{"id": key, "sql": sql} for key, sql in WANTED.items()]), WANTED),
        ("A.JSONL", "\n".join(json.dumps({"id": key, "sql": sql}) for key, sql in WANTED.items()), WANTED),
        ("a.jsonl", '{"id": "who", "sql": "SELECT 1\\t----- bird -----\\tsinger"}', {"who": "SELECT 1"}),
        ("a.json", '{"0": "SELECT 1", "1": 0, "2": null}', {"who": "SELECT 1", "all": "", "none": ""}),
        ("a.json", '{"0": "SELECT 1", "1": NaN}', {"who": "SELECT 1", "all": ""}),
        ("a.jsonl", '{"id": "who", "sql": NaN}\n{"id": "all", "sql": NaN}', {"who": "", "all": ""}),
        ("eval.json", json.dumps({"accuracy": {}, "episodes": [EPISODE]}), {"none": "SELECT 3"}),
        ("a.jsonl", '{"id": "who", "sql": "SELECT \u2028 1"}', {"who": "SELECT \u2028 1"}),
        ("a.sql", "SELECT 1\tsinger\r\nSELECT 2\r\n\r\n", {"who": "SELECT 1", "all": "SELECT 2", "none": ""}),
    ],
    ids=[
        "id and sql",
        "episodes",
        "answered",
        "cut",
        "a void one later",
        "of a killed run",
        "other tasks too",
        "by id",
        "BIRD",
        "list",
        "capital letters",
        "BIRD line",
        "none",
        "NaN",
        "NaN lines",
        "eval --json",
        "separator",
        "lines",
    ],
)
def test_predictions_as_people_have_them(
    name: str, text: str, expected: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert read_predictions(tmp_path / name, TASKS) == expected


@pytest.mark.parametrize(
    "name, text, error",
    [
        ("a.sql", "SELECT 1\n", "2 lines|1 lines for 3 tasks"),
        ("a.jsonl", '{"sql": "SELECT 1"}', "KeyError: 'id'"),
        ("a.jsonl", "SELECT 1", "JSONDecodeError"),
        ("a.json", '["SELECT 1"]', "a list does not say which tasks its SQL is for"),
        (
            "a.json",
            '{"who": "SELECT 1", "who": "SELECT 2"}',
            "'who' stands twice, with 'SELECT 1' and 'SELECT 2'",
        ),
        ("a.jsonl", '{"id": 1, "sql": "a"}\n{"id": "1", "sql": "b"}', "'1' stands twice, with 'a' and 'b'"),
        ("a.json", '{"who": ["SELECT 1"]}', "is not SQL"),
        ("a.json", '{"9": "SELECT 1"}', "'9' is not a task's id, and '9' not the place"),
        ("a.jsonl", '{"id": "who", "sql": 5}', "'5' is not SQL"),
        ("a.json", '{"-1": "SELECT 1"}', "'-1' is not a task's id, and '-1' not the place of one of 3 tasks"),
        ("a.jsonl", "[" * 100_000, "RecursionError"),
        (
            "episodes.jsonl",
            json.dumps({"task_id": "who", "turns": [{"sql": "SELECT 1"}, {"answer": "42"}]}),
            "episodes.jsonl: its episodes answer in words, such as '42'; only a run with protocol text_sql",
        ),
        ("a.jsonl", '{"id": "other", "sql": "SELECT 1"}', "tasks that are not there, such as 'other'"),
    ],
)
def test_predictions_that_cannot_be_read(name: str, text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TaskError, match=error):
        read_predictions(tmp_path / name, TASKS)
    with pytest.raises(TaskError, match="FileNotFoundError"):
        read_predictions(tmp_path / "missing.sql", TASKS)


def test_the_command(tmp_path: Path) -> None:
    change = dataclasses.replace(
        task(MEDALS), id="change", operation="DELETE", gold=Gold(sql="DELETE FROM medals")
    )
    (tmp_path / "tasks.jsonl").write_text("".join(f"{each.to_json()}\n" for each in [*TASKS, change]))
    (tmp_path / "mine.sql").write_text("SELECT 'Togo' UNION SELECT 'Peru'\nSELECT x\nSELECT 1\n-\n")
    told = CliRunner().invoke(
        app,
        [
            *("scores", str(tmp_path / "tasks.jsonl"), str(tmp_path / "mine.sql")),
            *("--database", "sqlite", "--json", str(tmp_path / "scores.json")),
        ],
    )
    assert told.exit_code == 0, told.output
    assert "1 of 4 tasks are left out: changes, or without gold SQL." in told.output
    assert "all: it fails: 1054" in told.output
    assert "strict                     33.3% of 3; right [6.1%, 79.2%]" in told.output
    written = json.loads((tmp_path / "scores.json").read_text())
    assert [each["scores"]["strict"] for each in written] == [1.0, 0.0, 0.0]
    assert [each["id"] for each in written] == ["who", "all", "none"]


def test_changes_alone_get_no_figures(tmp_path: Path) -> None:
    """Not `0.0 % of 0`."""
    change = dataclasses.replace(task(MEDALS), operation="DELETE", gold=Gold(sql="DELETE FROM medals"))
    (tmp_path / "tasks.jsonl").write_text(change.to_json() + "\n")
    (tmp_path / "mine.sql").write_text("DELETE FROM medals\n")
    with pytest.raises(
        ConfigError, match=r"tasks\.jsonl' has no question with gold SQL: nothing can be scored"
    ):
        CliRunner().invoke(
            app, ["scores", str(tmp_path / "tasks.jsonl"), str(tmp_path / "mine.sql")], catch_exceptions=False
        )


def of_database(name: str, folder: Path, id: str):
    """A task whose tables lie in the SQLite file of this name."""
    file = folder / f"{name}.sqlite"
    if not file.exists():
        with closing(sqlite3.connect(file)) as made:
            made.execute("CREATE TABLE medals (nation TEXT, gold INT)")
    source = Source.of(file)
    return dataclasses.replace(
        question(id, "SELECT nation FROM medals"), source=source, tables=source.tables(), dialect="sqlite"
    )


def read(folder: Path, tasks, predictions: dict[str, str] | str) -> dict[str, str]:
    path = folder / ("p.sql" if isinstance(predictions, str) else "p.json")
    path.write_text(predictions if isinstance(predictions, str) else json.dumps(predictions))
    return read_predictions(path, tasks)


BIRD_FILE = {str(place): f"SELECT {place}\t----- bird -----\tshop" for place in range(3)}


def test_the_files_of_mini_dev_go_by_place(tmp_path: Path) -> None:
    """Their keys are 0, 1, 2, ..., and one of the tasks' ids is 0, too."""
    tasks = [of_database("shop", tmp_path, id) for id in ("1471", "0", "93")]
    assert read(tmp_path, tasks, BIRD_FILE) == {"1471": "SELECT 0", "0": "SELECT 1", "93": "SELECT 2"}
    assert read(tmp_path, tasks, {"0": "by id", "93": "c"}) == {"0": "by id", "93": "c"}
    tasks = [of_database("shop", tmp_path, id) for id in ("0", "1", "2")]
    assert read(tmp_path, tasks, BIRD_FILE) == {"0": "SELECT 0", "1": "SELECT 1", "2": "SELECT 2"}


def test_keys_that_are_ids_and_places_of_different_tasks_are_an_error(tmp_path: Path) -> None:
    tasks = [of_database("shop", tmp_path, id) for id in ("2", "0", "1")]
    with pytest.raises(TaskError, match=r"the key '0' is the id of one task and, from 0, the place of '2'"):
        read(tmp_path, tasks, BIRD_FILE)


def test_the_database_that_a_prediction_names_says_whether_keys_are_places(tmp_path: Path) -> None:
    tasks = [of_database(name, tmp_path, id) for name, id in (("shop", "1"), ("zoo", "0"))]
    shop, zoo = "a\t----- bird -----\tshop", "b\t----- bird -----\tzoo"
    assert read(tmp_path, tasks, {"0": shop, "1": zoo}) == {"1": "a", "0": "b"}  # places
    assert read(tmp_path, tasks, {"0": zoo, "1": shop}) == {"1": "a", "0": "b"}  # ids


def test_predictions_for_other_databases_are_an_error(tmp_path: Path) -> None:
    tasks = [of_database(name, tmp_path, id) for name, id in (("shop", "a"), ("zoo", "b"))]
    with pytest.raises(TaskError, match="for the task 'a' is for the database 'zoo', the task's is 'shop'"):
        read(tmp_path, tasks, {"a": "x\t----- bird -----\tzoo", "b": "y\t----- bird -----\tshop"})
    with pytest.raises(TaskError, match="for the task 'a' is for the database 'zoo', the task's is 'shop'"):
        read(tmp_path, tasks, "x\tzoo\ny\tshop\n")
    assert read(tmp_path, tasks, "x\tshop\ny\tzoo\n") == {"a": "x", "b": "y"}


def test_keys_that_are_ids_or_places_but_not_all_the_same(tmp_path: Path) -> None:
    tasks = [of_database("shop", tmp_path, id) for id in ("7", "8")]
    with pytest.raises(TaskError, match="'1' is not a task's id, and '7' not the place of one of"):
        read(tmp_path, tasks, {"7": "x", "1": "y"})


def test_a_task_that_stands_twice_has_one_prediction_by_id(tmp_path: Path) -> None:
    tasks = [of_database("shop", tmp_path, id) for id in ("137", "137-2", "138")]
    assert read(tmp_path, tasks, {"137": "x", "138": "y"}) == {"137": "x", "137-2": "x", "138": "y"}
