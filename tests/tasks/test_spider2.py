"""Spider2-lite's local part, whose gold is results and no SQL: read, judged, and what is done without gold SQL."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from fakes import RULES
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from spider2_layout import entry_of, lines, spider2
from worlds.habits import Habits
from worlds.sql_teacher import sql_actions

from trl_dbbench.data.audit import examine
from trl_dbbench.data.convert import convert
from trl_dbbench.data.demonstrations import gold_actions
from trl_dbbench.data.score_predictions import score_all
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer, get_protocol
from trl_dbbench.episode.types import Episode
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.grading.scorers import Result
from trl_dbbench.rewards.efficiency import EfficiencyReward
from trl_dbbench.rewards.outcome import ExecutionReward
from trl_dbbench.tasks import Column, Gold, Source, Table, Task, load_tasks
from trl_dbbench.tasks.formats.spider2 import _marks_in
from trl_dbbench.tasks.formats.verl import VerlFormat

Command = Callable[..., tuple[int | str | None, str]]

OWNED = {"local001": {"": "owner,pets\nAnn,2\nBo,1\n"}}


def only(path: Path) -> Task:
    (task,) = load_tasks(path)
    return task


def right(database: Database, task: Task, sql: str) -> bool:
    with database.sandbox(task) as sandbox:
        return Judge(database)(task, Answer(sql), sandbox, "strict").right


def episode_of(task: Task) -> Episode:
    return Episode(task, [], RULES)


# --- the layout -----------------------------------------------------------------------------------


def test_an_entry(tmp_path: Path) -> None:
    path = spider2(tmp_path, OWNED, {"local001": {"external_knowledge": "RFM.md"}})
    document = tmp_path / "resource/documents/RFM.md"
    document.parent.mkdir()
    document.write_text("# RFM\nRecency counts.\n", encoding="utf-8")
    task = only(path)
    assert task == Task(
        id="local001",
        question="What is local001?",
        tables=(
            Table("owners", (Column("id", "INTEGER"), Column("name", "TEXT"))),
            Table("pets", (Column("name", "TEXT"), Column("owner", "INTEGER"), Column("weight", "REAL"))),
        ),
        operation="SELECT",
        gold=Gold(results=(Result(("owner", "pets"), (("Ann", 2), ("Bo", 1))),)),
        grader="spider2",
        source=Source.of(tmp_path / "resource/databases/spider2-localdb/pets.sqlite"),
        dialect="sqlite",
        knowledge="# RFM\nRecency counts.",
        schema="full",
    )
    assert task.prompt().startswith("What is local001?\n# RFM\nRecency counts.\nCREATE TABLE owners (id")
    named = spider2(tmp_path, OWNED, {"local001": {"external_knowledge": "RFM"}})
    assert only(named) == task


def test_marks_are_read_once_for_all_entries(tmp_path: Path) -> None:
    golds = {f"local{number:03}": {"": "a\n1\n"} for number in range(3)}
    path = spider2(tmp_path, golds)
    for ignored, grader in ((True, "spider2"), (False, "spider2_ordered")):
        spider2(tmp_path, golds, marks={id: {"ignore_order": ignored} for id in golds})
        before = _marks_in.cache_info().misses
        assert {task.grader for task in load_tasks(path)} == {grader}
        assert _marks_in.cache_info().misses == before + 1


def test_databases_beside_the_file(tmp_path: Path) -> None:
    path = spider2(tmp_path, OWNED)
    there = tmp_path / "resource/databases/spider2-localdb/pets.sqlite"
    here = there.rename(tmp_path / "pets.sqlite")
    assert only(path).source == Source.of(here)


@pytest.mark.parametrize(
    ("golds", "places", "expected"),
    [
        (["a,b\n1,2\n"], [], [("a", "b")]),
        (["a,b\n1,2\n"], [[]], [("a", "b")]),
        (["a,b\n1,2\n"], [1], [("b",)]),
        (["a,b\n1,2\n"], [1, 0], [("b", "a")]),
        (["a,b\n1,2\n"], [[0]], [("a",)]),  # one list too many for the evaluator, which then never says yes
        (["a,b\n1,2\n", "c,d\n3,4\n"], [0], [("a",), ("c",)]),
        (["a,b\n1,2\n", "c,d\n3,4\n"], [[1], []], [("b",), ("c", "d")]),
        (["a,b\n1,2\n", "c,d\n3,4\n"], [[], [1]], [("a", "b"), ("d",)]),
        (["a,b\n1,2\n", "c,d\n3,4\n"], [[1]], [("b",)]),
    ],
)
def test_columns_that_count(
    tmp_path: Path, golds: list[str], places: list[Any], expected: list[tuple[str, ...]]
) -> None:
    """For each gold; the others are not in the task."""
    named = dict(zip(["_a", "_b"] if len(golds) > 1 else [""], golds, strict=True))
    path = spider2(tmp_path, {"local001": named}, marks={"local001": {"condition_cols": places}})
    assert [tuple(each.columns) for each in only(path).gold.results] == expected


def test_cells_are_those_that_pandas_reads(tmp_path: Path) -> None:
    """No NaN and no infinite number is in a task, since JSON has none; once they are CSV again, they are the same."""
    text = 'n,x,t,b,none\n012,1.5,N/A,True,\n3,inf,"a ""b""\nc",False,\n'
    (result,) = only(spider2(tmp_path, {"local001": {"": text}})).gold.results
    assert result.columns == ("n", "x", "t", "b", "none")
    assert repr(result.rows) == repr((
        (12, 1.5, None, True, None),
        (3, "inf", 'a "b"\nc', False, None),
    ))  # fmt: skip


def test_a_file_of_another_task_is_no_gold(tmp_path: Path) -> None:
    golds = {"local01": {"": "a\n1\n", "_a": "b\n2\n"}, "local012": {"": "c\n3\n"}}
    path = spider2(tmp_path, golds)
    (tmp_path / "evaluation_suite/gold/exec_result/local01_old.csv").write_text("d\n4\n")
    found = {task.id: [tuple(each.columns) for each in task.gold.results] for task in load_tasks(path)}
    assert found == {"local01": [("a",), ("b",)], "local012": [("c",)]}


# --- what is left out, and what is missing --------------------------------------------------------


def test_what_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning counts it."""
    cloud = {id: {"db": "ga4"} for id in ("bq011", "sf_bq029", "ga001", "sf001")}
    path = spider2(
        tmp_path,
        {**OWNED, "local002": {"": "a\n1\n"}},
        {**cloud, "local009": {}},
        {"local002": {"condition_cols": [1]}},
    )
    with caplog.at_level(logging.WARNING, "trl_dbbench"):
        assert only(path).id == "local001"
    gold = tmp_path / "evaluation_suite/gold"
    assert caplog.messages == [
        f"{path}: 6 of 7 entries are left out; local002: whose 'condition_cols' in spider2lite_eval.jsonl are no "
        "columns of its gold result; bq011, sf_bq029, ga001 and 1 more: on BigQuery or Snowflake; only the local "
        f"part is read, which is on SQLite; local009: without a gold result in {gold}, or not in its "
        "spider2lite_eval.jsonl"
    ]


def gone(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).rename(folder / "gone")


def broken(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


MISSING: list[tuple[Callable[[Path], None], str]] = [
    (
        gone("evaluation_suite/gold"),
        "there is no 'evaluation_suite/gold' in {0} nor in {1}. Bring it there: it is in the folder spider2-lite "
        "of the benchmark.",
    ),
    (
        gone("evaluation_suite/gold/exec_result"),
        "the gold results cannot be read: [Errno 2] No such file or directory: '{0}/evaluation_suite/gold/exec_result'",
    ),
    (
        gone("evaluation_suite/gold/spider2lite_eval.jsonl"),
        "{0}/evaluation_suite/gold/spider2lite_eval.jsonl, which says how gold results count, cannot be read: "
        "[Errno 2]",
    ),
    (
        broken("evaluation_suite/gold/spider2lite_eval.jsonl", b"[1]\n"),
        "spider2lite_eval.jsonl, which says how gold results count, cannot be read: must be a JSON object, is list",
    ),
    (
        broken("evaluation_suite/gold/exec_result/local001.csv", b""),
        "the gold result {0}/evaluation_suite/gold/exec_result/local001.csv cannot be read as CSV: No columns",
    ),
    (
        broken("evaluation_suite/gold/exec_result/local001.csv", b"a\n\xff\n"),
        "local001.csv cannot be read as CSV: 'utf-8' codec can't decode",
    ),
    (
        gone("resource/documents"),
        "there is no 'resource/documents/RFM.md' in {0} nor in {1}. Bring it there: it is in the folder",
    ),
    (
        broken("resource/documents/RFM.md", b"\xff"),
        "'external_knowledge' is in {0}/resource/documents/RFM.md, which cannot be read",
    ),
    (
        gone("resource/databases/spider2-localdb/pets.sqlite"),
        "there is no database 'pets': pets.sqlite was looked for in {0}/resource/databases/spider2-localdb, "
        "{0}/spider2-localdb, {0}, ",
    ),
    (broken("resource/databases/spider2-localdb/pets.sqlite", b"none" * 200), "cannot be read: file is not"),
]


@pytest.mark.parametrize(("spoil", "message"), MISSING)
def test_one_error_for_what_is_missing(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    home = tmp_path / "spider2-lite"
    path = spider2(home, OWNED, {"local001": {"external_knowledge": "RFM.md"}})
    (home / "resource/documents").mkdir()
    (home / "resource/documents/RFM.md").write_text("Recency counts.")
    spoil(home)
    with pytest.raises(TaskError) as error:
        load_tasks(path)
    assert str(error.value).startswith(f"{path}, line 1: ")
    assert message.format(home, tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"db": "../pets"}, "a database needs a name that is not a path, has '../pets'"),
        ({"db": "pet"}, "where 'pets' is nearest. Correct the name"),
        ({"external_knowledge": "../RFM.md"}, "'external_knowledge' must be a name that is not a path"),
        ({"question": 5}, "the field 'question' must be str, is int"),
        ({"instance_id": 1}, "the field 'instance_id' must be str, is int"),
    ],
)
def test_entries_that_cannot_be_right(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    spider2(tmp_path, OWNED)
    with pytest.raises(TaskError, match=message):
        load_tasks(lines(tmp_path / "spider2-lite.jsonl", entry_of("local001") | fields))


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.sampled_from("a1,\n\"'\\\r\t .-eENnaif\0é"), max_size=30),
    marks=st.dictionaries(
        st.sampled_from(["condition_cols", "ignore_order"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=2), st.lists, max_leaves=4
        ),
    ),
)
def test_gold_files_with_anything_in_them(tmp_path: Path, text: str, marks: dict[str, Any]) -> None:
    """A task that the native format keeps as it is, or one error."""
    path = spider2(tmp_path, {"local001": {"": text}}, marks={"local001": marks})
    try:
        task = only(path)
    except TaskError as error:
        assert str(error).startswith((f"{path}, line 1: ", f"{path}: 1 of 1 entries are left out; "))
    else:
        again = Task.from_json(task.to_json())
        assert again == task and repr(again) == repr(task)


# --- judging --------------------------------------------------------------------------------------

BY_OWNER = "SELECT o.name, COUNT(*) FROM pets p JOIN owners o ON o.id = p.owner GROUP BY o.name"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (BY_OWNER, True),
        (f"{BY_OWNER} ORDER BY 1 DESC", True),
        (
            "SELECT 'more', COUNT(*) + 0.009, o.name FROM pets p JOIN owners o ON o.id = p.owner GROUP BY o.name",
            False,  # more columns than the gold, which are free to the evaluator and not as a reward
        ),
        ("SELECT COUNT(*) + 0.009, o.name FROM pets p JOIN owners o ON o.id = p.owner GROUP BY o.name", True),
        (f"{BY_OWNER} HAVING COUNT(*) > 1", False),
        ("SELECT name FROM owners", False),
        ("SELECT name FROM nobody", False),
        ("DELETE FROM pets", False),
        ("", False),
        ("SELECT 'x', 12", True),  # the other gold, whose first column does not count and may be there
        ("SELECT 'x', 12, 13", False),
    ],
)
def test_an_answer_matches_one_of_the_golds(
    tmp_path: Path, sqlite_database: Database, sql: str, expected: bool
) -> None:
    golds = {"local001": {"_a": "owner,pets\nAnn,2\nBo,1\n", "_b": "key,n\n7,12\n"}}
    marks = {"local001": {"condition_cols": [[0, 1], [1]]}}
    task = only(spider2(tmp_path, golds, marks=marks))
    assert right(sqlite_database, task, sql) is expected


def test_the_order_of_rows(tmp_path: Path, sqlite_database: Database) -> None:
    path = spider2(tmp_path, OWNED, marks={"local001": {"ignore_order": False}})
    task = only(path)
    assert task.grader == "spider2_ordered"
    assert right(sqlite_database, task, f"{BY_OWNER} ORDER BY 1")
    assert not right(sqlite_database, task, f"{BY_OWNER} ORDER BY 1 DESC")
    assert right(sqlite_database, replace(task, grader="spider2"), f"{BY_OWNER} ORDER BY 1 DESC")


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ('w\n20.5\n4\n""\n', "SELECT weight FROM pets"),  # NULL, which is 0 there
        ("w\n20.5\n4\n0\n", "SELECT weight FROM pets"),
        ("a,b\nNone,inf\nx,1\n", "SELECT 'None' AS a, 9e999 AS b UNION ALL SELECT 'x', 1"),
        ("a\nTrue\n", "SELECT 1 AS a"),
    ],
)
def test_cells_are_compared_as_the_evaluator_does(
    tmp_path: Path, sqlite_database: Database, text: str, sql: str
) -> None:
    task = only(spider2(tmp_path, {"local001": {"": text}}))
    assert right(sqlite_database, task, sql)
    assert [each.problem for each in validate([task], sqlite_database)] == [None]


def test_scores(tmp_path: Path, command: Command) -> None:
    """Each grader by the gold that it likes most; those of other benchmarks want the columns that count and no other."""
    golds = {"local001": {"_a": "owner,pets\nAnn,2\nBo,1\n", "_b": "n\n3\n"}, "local002": {"": "n\n3\n"}}
    path = spider2(tmp_path, golds)
    predictions = lines(
        tmp_path / "predicted.jsonl",
        {"id": "local001", "sql": f"{BY_OWNER} ORDER BY 1 DESC"},
        {"id": "local002", "sql": "SELECT COUNT(*), 'more' FROM pets"},
    )
    report = tmp_path / "scores.json"
    code, output = command("scores", path, predictions, "--database", "sqlite", "--json", report)
    assert code == 0
    assert re.search(r"^spider2 +100\.0% of 2;", output, re.MULTILINE) and "left out" not in output
    first, second = (each["scores"] for each in json.loads(report.read_text()))
    assert [name for name, value in first.items() if value != 1] == [
        "bird_soft_f1",
        "spider2_ordered",
        "critic_ordered",
    ]
    assert [name for name, value in second.items() if value == 1] == ["spider2", "spider2_ordered"]


def test_scores_do_not_replace_what_they_read(tmp_path: Path, command: Command) -> None:
    path = spider2(tmp_path, {"local001": {"": "n\n3\n"}})
    predictions = lines(tmp_path / "predicted.jsonl", {"id": "local001", "sql": "SELECT 3"})
    before = predictions.read_text()
    code, _ = command("scores", path, predictions, "--database", "sqlite", "--json", predictions)
    assert "is the file to read; write to another" in code
    assert predictions.read_text() == before


def test_what_a_prediction_fails_with_is_said(tmp_path: Path, sqlite_database: Database) -> None:
    task = only(spider2(tmp_path, OWNED))
    (scores,) = score_all([task], {"local001": "SELECT nope FROM pets"}, sqlite_database)
    assert set(scores.values.values()) == {0.0}
    assert scores.problem == "it fails: no such column: nope"


# --- formats --------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["own.jsonl", "verl.parquet"])
def test_it_comes_back_from_files(tmp_path: Path, target: str) -> None:
    golds = {"local001": {"_a": "a,b\n1,\n2.5,x\n", "_b": "c\n"}, "local002": {"": "d\nTrue\n"}}
    path = spider2(tmp_path, golds)
    tasks = load_tasks(path)
    converted = convert(path, tmp_path / target)
    assert (converted.losses, converted.skipped) == ([], [])
    again = load_tasks(tmp_path / target)
    assert again == tasks and repr(again) == repr(tasks)
    assert [task.digest for task in again] == [task.digest for task in tasks]
    assert (
        len(
            {
                task.digest
                for task in [*tasks, replace(tasks[0], gold=Gold(results=tasks[0].gold.results[:1]))]
            }
        )
        == 3
    )


def test_what_verl_gets_as_the_ground_truth(tmp_path: Path) -> None:
    class Context:
        split, protocol, index = "train", "text", 0

        def messages(self, task: Task) -> list[dict[str, str]]:
            return []

    def truth(task: Task) -> Any:
        return json.loads(VerlFormat().write(task, Context())["reward_model"]["ground_truth"])  # type: ignore[arg-type]

    task = only(spider2(tmp_path, OWNED))
    assert truth(task)["results"] == [{"columns": ["owner", "pets"], "rows": [["Ann", 2], ["Bo", 1]]}]
    assert "results" not in truth(replace(task, gold=Gold(sql="SELECT 1")))


OWN = {
    "id": "who",
    "question": "Who owns pets?",
    "tables": [{"name": "owners", "columns": [{"name": "name"}], "rows": [["Ann"], ["Bo"]]}],
    "grader": "strict",
    "results": [{"columns": ["name"], "rows": [["Ann"]]}, {"columns": ["name"], "rows": [["Bo"], ["Ann"]]}],
}


def test_results_of_the_own_format(database: Database) -> None:
    """They are judged by any grader of SQL, and, as nothing sorts them, whatever the order of rows."""
    task = Task.from_json(json.dumps(OWN))
    assert Task.from_json(task.to_json()) == task and hash(task)
    for sql, expected in (
        ("SELECT name FROM owners", True),
        ("SELECT 'Ann'", True),
        ("SELECT 'Bo'", False),
        ("SELECT name, name FROM owners", False),
    ):
        assert right(database, task, sql) is expected, sql
    assert [each.problem for each in validate([task], database)] == [None]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sql": "SELECT 1"}, "a task has gold 'results' or 'sql', which gives the gold, not both; leave one out"),
        ({"grader": "lifelong"}, "gold 'results' are for questions that are answered with SQL: name one of the graders strict,"),
        ({"grader": None}, "gold 'results' are for questions that are answered with SQL"),
        ({"operation": "DELETE"}, "gold 'results' are for questions that are answered with SQL"),
        ({"results": []}, "a question needs its gold 'sql' or 'results' for the grader strict"),
        ({"results": {}}, "the field 'results' must be list, is dict"),
        ({"results": [[1]]}, "a gold result must be a JSON object, is \\[1\\]"),
        ({"results": [{"rows": []}]}, "the field 'columns' is missing; found: rows"),
        ({"results": [{"columns": ["a"]}]}, "the field 'rows' is missing; found: columns"),
        ({"results": [{"columns": [], "rows": []}]}, "the 'columns' of a gold result must be a list of names, are"),
        ({"results": [{"columns": [1], "rows": []}]}, "the 'columns' of a gold result must be a list of names, are"),
        ({"results": [{"columns": ["a"], "rows": [[1, 2]]}]}, "a gold result, row 1 has 2 cells, the table has 1"),
        ({"results": [{"columns": ["a"], "rows": [], "width": 1}]}, "more than the 1 that do; it is 1. Leave it out where all count"),
        ({"results": [{"columns": ["a"], "rows": [], "width": "3"}]}, "the field 'width' must be int, is str"),
        ({"results": [{"columns": ["a"], "rows": [[{}]]}]}, "a gold result, row 1 has the cell {}; a cell is a string"),
        ({"results": [{"columns": ["a"], "rows": [], "sql": ""}]}, "unknown field of a gold result 'sql'"),
    ],
)  # fmt: skip
def test_results_that_cannot_be_right(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        Task.from_json(json.dumps(OWN | fields))


def test_results_and_a_suite(tmp_path: Path) -> None:
    task = only(spider2(tmp_path, OWNED))
    assert task.source is not None
    with pytest.raises(TaskError, match="'results' or a 'suite', on whose databases it differs, not both"):
        Task.from_json(replace(task, suite=(task.source,)).to_json())


def test_the_digests_of_other_tasks_are_as_they_were() -> None:
    line = {
        "id": "1",
        "question": "?",
        "tables": [{"name": "t", "columns": [{"name": "a"}], "rows": [["x"]]}],
        "sql": "SELECT a FROM t",
        "grader": "strict",
        "answer": [["x"]],
    }
    assert Task.from_json(json.dumps(line)).digest == "e5688c56634c491a"


# --- without gold SQL -----------------------------------------------------------------------------


def test_validate_says_that_there_is_no_sql(tmp_path: Path, command: Command) -> None:
    path = spider2(tmp_path, {**OWNED, "local002": {"": "a\n1\n"}})
    code, output = command("validate", path, "--database", "sqlite")
    assert (code, output) == (
        0,
        "2 have gold results and no gold SQL: nothing was executed but a look at their tables\n"
        "2 of 2 gold solutions score as correct\n",
    )
    code, output = command("validate", path, "--database", "sqlite", "--grader", "critic")
    assert code == 0
    (tmp_path / "evaluation_suite/gold/exec_result/local002.csv").write_text("a\n")
    code, output = command("validate", path, "--database", "sqlite", "--grader", "critic")
    assert code == 1
    assert output.startswith("local002: the gold result () is not right to the grader critic\n")


def test_validate_opens_the_database(tmp_path: Path, sqlite_database: Database) -> None:
    task = only(spider2(tmp_path, OWNED))
    assert task.source is not None
    Path(task.source.path).write_bytes(b"none" * 200)
    (validation,) = validate([task], sqlite_database)
    assert "file is not a database" in (validation.problem or "")
    renamed = replace(task, tables=(replace(task.tables[0], name="nobody"),))
    spider2(tmp_path, OWNED)
    (validation,) = validate([renamed], sqlite_database)
    assert validation.problem == "its database cannot be read: no such table: nobody"


def test_what_needs_gold_sql_says_so(tmp_path: Path, sqlite_database: Database) -> None:
    task = only(spider2(tmp_path, OWNED))
    assert [found.kind for found in examine(task, [sqlite_database])] == ["not examined"]
    protocol = get_protocol("text_sql")
    with pytest.raises(
        TaskError, match="'local001' has no gold SQL to demonstrate; add 'sql', or leave the task out"
    ):
        gold_actions(task, protocol, sqlite_database)
    with pytest.raises(
        TaskError, match="'local001' is not a question with 'sql', which this teacher answers with"
    ):
        sql_actions(task, protocol, sqlite_database, Habits())
    for reward in (EfficiencyReward(sqlite_database), ExecutionReward(sqlite_database)):
        assert reward([episode_of(task)]) == [None]


def test_protocols_that_it_can_be_played_in(tmp_path: Path, sqlite_database: Database) -> None:
    task, judge = only(spider2(tmp_path, OWNED)), Judge(sqlite_database)
    judge.check_task(task, get_protocol("text_sql"))
    with pytest.raises(
        ConfigError, match=r"'local001' is answered with SQL, which its grader spider2 executes"
    ):
        judge.check_task(task, get_protocol("text"))


def test_a_grader_of_answers_needs_one(tmp_path: Path, sqlite_database: Database) -> None:
    judge = Judge(sqlite_database, "lifelong")
    with pytest.raises(TaskError, match="'local001' has no gold answer, which the grader lifelong needs"):
        judge.check_task(only(spider2(tmp_path, OWNED)), get_protocol("text"))


def test_results_are_shown_in_reports(tmp_path: Path) -> None:
    gold = only(spider2(tmp_path, OWNED)).gold
    assert gold.shown == ((("Ann", 2), ("Bo", 1)),)
    long = Gold(results=(Result(("n",), tuple((n,) for n in range(100))),)).shown
    assert long is not None and long[0][-1] == (19,)
    assert Gold(answer=(1,)).shown == (1,) and Gold(sql="SELECT 1").shown is None
