"""Every task format from a small file, and what each wrong file is told."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from any_tasks import MD5, any_tasks, cells, text
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from required import lacking

from trl_dbbench.episode.dataset import to_dataset
from trl_dbbench.episode.protocol import ToolsProtocol
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Column, Gold, Table, Task, load_tasks
from trl_dbbench.tasks.entries import read_entries, write_entries

DATA = Path(__file__).parents[3] / "shared" / "data"

OWN = {
    "id": "late-orders",
    "question": "How many orders were late?",
    "tables": [
        {
            "name": "orders",
            "columns": [{"name": "id", "type": "INT"}, {"name": "late", "type": "INT"}, {"name": "note"}],
            "rows": [[1, 0, None], [2, 1, "Zoë's"], [3, 1, ""]],
        }
    ],
    "sql": "SELECT COUNT(*) FROM orders WHERE late = 1",
    "answer": [[2]],
}

AGENTBENCH_QUESTION = {
    "description": "Which medal count has Chad?",
    "add_description": "The name of this table is medals, its headers are Nation,Gold 100%.",
    "type": ["counting"],
    "label": ["1"],
    "sql": {"query": "SELECT `Gold 100%` FROM medals WHERE Nation = 'Chad'"},
    "table": {
        "table_name": "medals",
        "table_info": {
            "columns": [{"name": "Nation", "type": "TEXT"}, {"name": "Gold 100%", "type": "INT"}],
            "rows": [["Chad", 1], ["Togo", 2.5]],
        },
    },
}

EMPTIED = "[(None,)]"
AGENTBENCH_CHANGE = AGENTBENCH_QUESTION | {
    "description": "Give Chad a second one.",
    "type": ["UPDATE", "counting"],
    "label": ["UPDATE medals SET `Gold 100%` = '2' WHERE Nation = 'Chad'"],
    "answer_md5": f"[('{MD5}',)]",
}

LIFELONG_QUESTION: dict[str, Any] = {
    "instruction": "Which fruits cost more than 2?",
    "answer_info": {
        "direct": [["pear", 2.5], ["plum", 3.0]],
        "md5": None,
        "sql": "SELECT name, price FROM fruits WHERE price > 2",
    },
    "table_info": {
        "name": "fruits",
        "column_info_list": [{"name": "name", "type": "VARCHAR(50)"}, {"name": "price", "type": "FLOAT"}],
        "row_list": [["apple", 1.5], ["pear", 2.5], ["plum", 3.0]],
    },
    "skill_list": ["select", "where_single_condition"],
}
LIFELONG_CHANGE = LIFELONG_QUESTION | {
    "instruction": "Delete the apple.",
    "answer_info": {"direct": None, "md5": MD5, "sql": "DELETE FROM fruits WHERE name = 'apple'"},
    "skill_list": ["delete", "where_single_condition"],
}


def without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


def jsonl(folder: Path, *entries: Any) -> Path:
    path = folder / "tasks.jsonl"
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


# --- our own format -----------------------------------------------------------------------------------


def test_own_format(tmp_path: Path) -> None:
    (task,) = load_tasks(jsonl(tmp_path, OWN))
    assert task == Task(
        id="late-orders",
        question="How many orders were late?",
        tables=(
            Table(
                "orders",
                (Column("id", "INT"), Column("late", "INT"), Column("note", "TEXT")),
                ((1, 0, None), (2, 1, "Zoë's"), (3, 1, "")),
            ),
        ),
        operation="SELECT",  # read off the SQL, as are the skills
        gold=Gold(answer=((2,),), sql="SELECT COUNT(*) FROM orders WHERE late = 1"),
        skills=("select", "where_single_condition"),
        grader="lifelong",
    )
    assert task.is_question
    assert task.prompt() == (
        "How many orders were late?\nThe table is named orders and has these columns: id, late, note"
    )


def test_own_question_without_sql_and_with_bare_cells(tmp_path: Path) -> None:
    (task,) = load_tasks(jsonl(tmp_path, without(OWN, "sql") | {"answer": ["a", 2]}))
    assert task.gold == Gold(answer=(("a",), (2,)))  # a bare cell is a row of one
    assert task.skills == ()


@pytest.mark.parametrize("answer", [["2", "3"], [["2"], ["3"]], [["2", "3"]]])
@pytest.mark.parametrize("grader", ["agentbench_text", "agentbench_fc", None])
def test_own_question_may_name_another_grader(tmp_path: Path, answer: list, grader: str | None) -> None:
    """One of labels gets those of rows."""
    (task,) = load_tasks(jsonl(tmp_path, OWN | {"grader": grader, "answer": answer}))
    assert (task.grader, task.gold.answer) == (grader, ("2", "3"))


def test_own_change_needs_its_sql_only(tmp_path: Path) -> None:
    (task,) = load_tasks(jsonl(tmp_path, without(OWN, "answer") | {"sql": "DELETE FROM orders", "id": 7}))
    assert (task.id, task.operation, task.skills) == ("7", "DELETE", ("delete",))
    assert not task.is_question


def test_own_task_with_two_tables_names_both_to_the_agent(tmp_path: Path) -> None:
    second = {"name": "staff", "columns": [{"name": "who"}], "rows": []}
    (task,) = load_tasks(jsonl(tmp_path, OWN | {"tables": [*OWN["tables"], second]}))
    assert task.prompt().splitlines()[1:] == [
        "The table is named orders and has these columns: id, late, note",
        "The table is named staff and has these columns: who",
    ]


def test_own_format_as_a_json_list_and_with_a_byte_order_mark(tmp_path: Path) -> None:
    as_list = tmp_path / "tasks.json"
    as_list.write_text(json.dumps([OWN, OWN | {"id": "second"}]), encoding="utf-8-sig")
    assert [task.id for task in load_tasks(as_list)] == ["late-orders", "second"]


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    """U+2028 inside a string ends a line for `str.splitlines` but not in JSONL; blank lines are skipped."""
    line = json.dumps(OWN | {"question": "one\u2028two"}, ensure_ascii=False)
    (task,) = load_tasks(jsonl(tmp_path, "", line, "  "))
    assert task.question == "one\u2028two"


# --- AgentBench -------------------------------------------------------------------------------------------


def test_agentbench_question(tmp_path: Path) -> None:
    (task,) = load_tasks(jsonl(tmp_path, AGENTBENCH_QUESTION))
    assert task.id == "tasks-1"  # file and line: the benchmark has no ids
    assert task.operation == "SELECT"
    assert task.gold == Gold(answer=("1",))  # the published SQL is not trusted
    assert task.skills == ("select", "where_single_condition")  # but skills are read off it
    assert task.grader is None  # each protocol has its own
    # every column is TEXT and every cell a string, whatever the file says
    assert task.tables == (
        Table(
            "medals",
            (Column("Nation", "TEXT"), Column("Gold 100%", "TEXT")),
            (("Chad", "1"), ("Togo", "2.5")),
        ),
    )


def test_agentbench_question_whose_sql_does_not_parse_or_is_missing(tmp_path: Path) -> None:
    odd = [{"sql": {"query": "SELEC ((("}}, {"sql": {"query": None}}, {"sql": None}, {"sql": "SELECT 1"}]
    tasks = load_tasks(jsonl(tmp_path, *(AGENTBENCH_QUESTION | each for each in odd)))
    assert [task.skills for task in tasks] == [(), (), (), ()]


def test_agentbench_change(tmp_path: Path) -> None:
    (task,) = load_tasks(jsonl(tmp_path, AGENTBENCH_CHANGE))
    assert task.operation == "UPDATE"
    assert task.gold == Gold(sql="UPDATE medals SET `Gold 100%` = '2' WHERE Nation = 'Chad'", state_md5=MD5)
    assert task.skills == ("update", "where_single_condition")


def test_agentbench_hash_of_an_empty_table(tmp_path: Path) -> None:
    (task,) = load_tasks(jsonl(tmp_path, AGENTBENCH_CHANGE | {"answer_md5": EMPTIED}))
    assert task.gold.state_md5 == ""


def test_agentbench_list_of_tables(tmp_path: Path) -> None:
    other = {
        "table_name": "cities",
        "table_info": {"columns": [{"name": "City", "type": "TEXT"}], "rows": []},
    }
    both = [AGENTBENCH_QUESTION["table"], other]
    (task,) = load_tasks(jsonl(tmp_path, AGENTBENCH_QUESTION | {"table": both}))
    assert [table.name for table in task.tables] == ["medals", "cities"]


def test_agentbench_evidence_is_part_of_the_question(tmp_path: Path) -> None:
    (task,) = load_tasks(jsonl(tmp_path, AGENTBENCH_QUESTION | {"evidence": "Chad's NOC code is CHA."}))
    assert task.question == "Which medal count has Chad?\nChad's NOC code is CHA."


@pytest.mark.parametrize(("name", "count"), [("dev.jsonl", 60), ("standard_part.jsonl", 150)])
def test_the_published_tasks_load(name: str, count: int) -> None:
    path = DATA / "agentbench" / name
    if not path.exists():
        lacking("data", f"no {path.name} beside the checkout")
    tasks = load_tasks(path)
    assert len(tasks) == count
    for task in tasks:
        assert task.gold.answer if task.is_question else task.gold.sql and task.gold.state_md5 is not None
        assert Task.from_json(task.to_json()) == task
        assert task.tables[0].name in task.prompt()


# --- LifelongAgentBench ------------------------------------------------------------------------------------


def lifelong(folder: Path, entries: dict[str, Any]) -> list[Task]:
    path = folder / "entry_dict.json"
    path.write_text(json.dumps(entries), encoding="utf-8")
    return load_tasks(path)


def test_lifelong_json(tmp_path: Path) -> None:
    question, change = lifelong(tmp_path, {"0": LIFELONG_QUESTION, "1": LIFELONG_CHANGE})
    assert (question.id, change.id) == ("0", "1")
    assert question.gold == Gold(
        answer=(("pear", 2.5), ("plum", 3.0)), sql="SELECT name, price FROM fruits WHERE price > 2"
    )
    assert question.tables == (
        Table(
            "fruits",
            (Column("name", "VARCHAR(50)"), Column("price", "FLOAT")),
            (("apple", 1.5), ("pear", 2.5), ("plum", 3.0)),
        ),
    )
    assert question.skills == ("select", "where_single_condition")  # the file's own
    assert question.grader == "lifelong"
    assert change.operation == "DELETE"
    assert change.gold == Gold(sql="DELETE FROM fruits WHERE name = 'apple'", state_md5=MD5)


def test_lifelong_answer_without_rows(tmp_path: Path) -> None:
    entry = LIFELONG_QUESTION | {"answer_info": LIFELONG_QUESTION["answer_info"] | {"direct": []}}
    (task,) = lifelong(tmp_path, {"0": entry})
    assert task.gold.answer == ()


def test_lifelong_skills_are_read_off_the_sql_where_the_file_has_none(tmp_path: Path) -> None:
    (task,) = lifelong(tmp_path, {"0": without(LIFELONG_CHANGE, "skill_list")})
    assert task.skills == ("delete", "where_single_condition")


def test_lifelong_hash_of_an_empty_table(tmp_path: Path) -> None:
    """The benchmark cuts the hash out of MySQL's `[(None,)]`, which leaves the text None."""
    info = {"direct": None, "md5": "None", "sql": "DELETE FROM fruits"}
    (task,) = lifelong(tmp_path, {"0": LIFELONG_CHANGE | {"answer_info": info}})
    assert (task.operation, task.gold.state_md5) == ("DELETE", "")


def rows_of_the_hub() -> list[dict[str, Any]]:
    return [{"sample_index": 0, **LIFELONG_QUESTION}, {"sample_index": 1, **LIFELONG_CHANGE}]


def as_text(write: Any) -> list[dict[str, Any]]:
    nested = ("answer_info", "table_info", "skill_list")
    return [{k: write(v) if k in nested else v for k, v in row.items()} for row in rows_of_the_hub()]


def text_inside_structs() -> list[dict[str, Any]]:
    rows = rows_of_the_hub()
    for row in rows:
        row["answer_info"] = row["answer_info"] | {"direct": json.dumps(row["answer_info"]["direct"])}
        row["table_info"] = row["table_info"] | {"row_list": json.dumps(row["table_info"]["row_list"])}
    return rows


@pytest.mark.parametrize(
    "rows", [as_text(json.dumps), as_text(repr), text_inside_structs()], ids=["json", "repr", "mixed"]
)
def test_lifelong_parquet_with_nested_fields_as_text(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """Exports write nested fields as JSON or, by way of `str()`, as Python's literals."""
    path = tmp_path / "train-00000-of-00001.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert load_tasks(path) == lifelong(tmp_path, {"0": LIFELONG_QUESTION, "1": LIFELONG_CHANGE})


def test_lifelong_parquet_with_structs(tmp_path: Path) -> None:
    """Arrow's lists hold one type, so cells of such an export are all text."""
    rows = rows_of_the_hub()
    for row in rows:
        row["table_info"] = row["table_info"] | {
            "row_list": [["apple", "1.5"], ["pear", "2.5"], ["plum", "3.0"]]
        }
    rows[0]["answer_info"] = rows[0]["answer_info"] | {"direct": [["pear", "2.5"], ["plum", "3.0"]]}
    path = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    question, change = load_tasks(path)
    assert (question.id, question.gold.answer) == ("0", (("pear", "2.5"), ("plum", "3.0")))
    assert question.tables[0].columns == (Column("name", "VARCHAR(50)"), Column("price", "FLOAT"))
    assert (change.id, change.operation, change.gold.state_md5) == ("1", "DELETE", MD5)


def test_text_that_looks_like_json_stays_text(tmp_path: Path) -> None:
    rows = [row | {"instruction": "[1] is a footnote"} for row in as_text(json.dumps)]
    rows[0]["instruction"] = "[1]"
    path = tmp_path / "tasks.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert [task.question for task in load_tasks(path)] == ["[1]", "[1] is a footnote"]


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    """What `snapshot_download` leaves: the wanted folder among others."""
    folder = tmp_path / "snapshot" / "db_bench"
    folder.mkdir(parents=True)
    question, change = as_text(json.dumps)
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([question]), folder / "train-00000-of-00001.parquet"
    )
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([change]), folder / "test-00000-of-00001.parquet")
    return folder.parent


def test_hub_id_downloads_the_one_folder(hub_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(repo: str, **how: Any) -> str:
        asked.update(repo=repo, **how)
        return str(hub_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert sorted(task.id for task in load_tasks("csyq/LifelongAgentBench")) == ["0", "1"]
    assert asked == {
        "repo": "csyq/LifelongAgentBench",
        "repo_type": "dataset",
        "allow_patterns": "db_bench/*.parquet",
    }
    assert [task.id for task in load_tasks("csyq/LifelongAgentBench", split="train")] == ["0"]
    with pytest.raises(TaskError, match=r"has no validation\*\.parquet"):
        load_tasks("csyq/LifelongAgentBench", split="validation")


def test_a_hub_that_cannot_be_reached_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    for error in (
        LocalEntryNotFoundError("no connection\nand more"),
        ConnectionError("no connection"),
        OSError(),
    ):

        def refuse(*args: Any, error: Exception = error, **how: Any) -> str:
            raise error

        monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
        with pytest.raises(
            TaskError, match=r"could not be downloaded \((no connection|OSError)\)\. Check the network"
        ):
            load_tasks("csyq/LifelongAgentBench")


def test_the_real_hub_client_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(TaskError, match="could not be downloaded"):
        load_tasks("csyq/LifelongAgentBench")


@pytest.mark.parametrize(
    ("split", "ids"),
    [(None, ["a", "b", "c", "d"]), ("train", ["b", "d"]), ("training", ["c"]), ("test", ["a"])],
)
def test_a_split_is_a_file_or_folder_of_that_name(tmp_path: Path, split: str | None, ids: list[str]) -> None:
    names = ["test.parquet", "train-00000-of-00002.parquet", "training.parquet", "train/0000.parquet"]
    for id, name in zip("abcd", names, strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        rows = [as_text(json.dumps)[0] | {"id": id}]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
    assert sorted(task.id for task in load_tasks(tmp_path, split)) == ids


def test_tasks_without_ids_are_named_after_their_file_in_a_folder(tmp_path: Path, caplog) -> None:
    """As AgentBench's, whose two parts both begin with row 1."""
    for name in ("dev", "standard"):
        rows = [{"type": ["other"], "description": "How old?", "label": [name], "table": AGES}]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    assert [task.id for task in load_tasks(tmp_path)] == ["dev-1", "standard-1"] and not caplog.text
    assert load_tasks(tmp_path / "dev.parquet")[0].id == "dev-1"


AGES = {"table_name": "pets", "table_info": {"columns": [{"name": "age", "type": "TEXT"}], "rows": [["3"]]}}


# --- there and back --------------------------------------------------------------------------------------------


@given(any_tasks())
def test_a_task_survives_json(task: Task) -> None:
    line = task.to_json()
    assert "\n" not in line
    again = Task.from_json(line)
    assert again == task
    assert again.to_json() == line  # 1, 1.0 and True are equal in Python but not here


def test_dataset_rows(tmp_path: Path) -> None:
    tasks = load_tasks(jsonl(tmp_path, OWN, OWN | {"id": "second", "question": "Again?"}))
    dataset = to_dataset(tasks, protocol="tools", system_prompt="Be brief.")
    assert dataset.column_names == ["prompt", "task"]
    assert dataset[1]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": "Again?\nThe table is named orders and has these columns: id, late, note",
        },
    ]
    assert [Task.from_json(row) for row in dataset["task"]] == tasks
    assert to_dataset(tasks, ToolsProtocol(), "Be brief.")["prompt"] == dataset["prompt"]
    assert "Action: Operation" in to_dataset(tasks)[0]["prompt"][0]["content"]


def test_a_dataset_holds_tables_whose_cells_differ_in_type(tmp_path: Path) -> None:
    other = OWN | {"id": "x", "tables": [{"name": "t", "columns": [{"name": "a"}], "rows": [["one"], [2]]}]}
    tasks = load_tasks(jsonl(tmp_path, OWN, other))
    assert [Task.from_json(row) for row in to_dataset(tasks)["task"]] == tasks


# --- what is wrong -----------------------------------------------------------------------------------------------


def table(**changes: Any) -> dict[str, Any]:
    return OWN | {"tables": [OWN["tables"][0] | changes]}  # type: ignore[index]


def lifelong_gold(**changes: Any) -> dict[str, Any]:
    return LIFELONG_QUESTION | {"answer_info": LIFELONG_QUESTION["answer_info"] | changes}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        # not a task at all
        ('{"id": ', "not JSON (Expecting value: line 1 column 8 (char 7))"),
        ("[" * 100_000, "not JSON (maximum recursion depth exceeded"),
        ("[1, 2]", "must be a JSON object, is list"),
        ("null", "must be a JSON object, is NoneType"),
        ("{}", "the field 'id' is missing; found: nothing"),
        # fields
        (without(OWN, "question"), "the field 'question' is missing; found: id, tables, sql, answer"),
        (OWN | {"question": None}, "the field 'question' is missing"),
        (OWN | {"question": 5}, "the field 'question' must be str, is int"),
        (OWN | {"id": 1.5}, "the field 'id' must be str or int, is float"),
        (OWN | {"tables": {}}, "the field 'tables' must be list, is dict"),
        (OWN | {"tables": []}, "a task needs at least one table; the list is empty"),
        (OWN | {"tables": ["orders"]}, "a table must be a JSON object, is 'orders'"),
        (OWN | {"tables": OWN["tables"] * 2}, "there are two tables named 'orders'"),
        (OWN | {"answer": "2"}, "the field 'answer' must be list, is str"),
        (OWN | {"sql": ["SELECT 1"]}, "the field 'sql' must be str, is list"),
        (OWN | {"question": "\ud800"}, r"holds half of a surrogate pair, which is not text: '\ud800'"),
        # gold
        (without(OWN, "answer"), "a question needs its gold 'answer'"),
        (OWN | {"answer": [{"name": "Ann"}]}, "the answer has the cell {'name': 'Ann'}; a cell is a string"),
        (OWN | {"answer": [[["Ann", 5]]]}, "the answer has the cell ['Ann', 5]; a cell is a string"),
        (OWN | {"answer": [float("nan")], "grader": None}, "the answer has the cell nan; a cell is a string"),
        (OWN | {"answer": [[float("inf")]]}, "the answer has the cell inf; a cell is a string"),
        (without(OWN, "sql") | {"operation": "DELETE"}, "DELETE needs its gold solution 'sql'"),
        (OWN | {"operation": "MERGE"}, "unknown operation 'MERGE'; allowed: SELECT, INSERT, UPDATE, DELETE"),
        (OWN | {"operation": ["SELECT"]}, "unknown operation ['SELECT']; allowed: SELECT"),
        (
            OWN | {"sql": "DROP TABLE orders"},
            "'sql' is not one statement of SELECT, INSERT, UPDATE, DELETE: DROP",
        ),
        (OWN | {"skills": ["jump"]}, "unknown skill 'jump'; allowed: select, insert"),
        (OWN | {"skills": "select"}, "the skills must be a list of names, are 'select'"),
        (OWN | {"skills": [["select"]]}, "unknown skill ['select']"),
        (
            OWN | {"grader": "mine"},
            "unknown grader 'mine'; allowed: agentbench_text, agentbench_fc, lifelong",
        ),
        (OWN | {"grader": ["lifelong"]}, "unknown grader ['lifelong']"),
        (OWN | {"state_md5": "abc"}, "the gold state's md5 must be 32 hex digits, is 'abc'"),
        # tables
        (table(rows=[[1, 0, "a", 4]]), "table 'orders', row 1 has 4 cells, the table has 3 columns"),
        (table(rows=[[1, 0, "a"], [1]]), "table 'orders', row 2 has 1 cells, the table has 3 columns"),
        (table(rows=["abc"]), "table 'orders', row 1 has 'abc', the table has 3 columns"),
        (table(rows=[[1, 0, ["a"]]]), "table 'orders', row 1 has the cell ['a']; a cell is a string"),
        (table(rows=[[1, 0, float("nan")]]), "table 'orders', row 1 has the cell nan; a cell is"),
        (table(rows=[[1, 0, float("-inf")]]), "table 'orders', row 1 has the cell -inf; a cell is"),
        (table(columns=[]), "table 'orders' has no columns"),
        (table(columns=["id"]), "a column must be a JSON object, is 'id'"),
        (table(columns=[{"type": "INT"}]), "the field 'name' is missing; found: type"),
        (table(columns=[{"name": "id", "type": 4}]), "the field 'type' must be str, is int"),
        (
            table(columns=[{"name": "Id"}, {"name": "x"}, {"name": "ID"}]),
            "table 'orders': the column 'Id' is there twice; MySQL and SQLite ignore case in column names",
        ),
        # AgentBench
        (without(AGENTBENCH_QUESTION, "label"), "the field 'label' is missing; found: description"),
        (AGENTBENCH_QUESTION | {"label": []}, "'label' is empty"),
        (
            AGENTBENCH_QUESTION | {"type": ["MERGE"]},
            "unknown operation 'MERGE' in 'type'; allowed: INSERT, UPDATE",
        ),
        (AGENTBENCH_QUESTION | {"type": [["UPDATE"]]}, "unknown operation ['UPDATE'] in 'type'"),
        (AGENTBENCH_QUESTION | {"table": []}, "a task needs at least one table"),
        (AGENTBENCH_QUESTION | {"table": {}}, "the field 'table_info' is missing; found: nothing"),
        (
            AGENTBENCH_QUESTION | {"table": without(AGENTBENCH_QUESTION["table"], "table_name")},  # type: ignore[arg-type]
            "the field 'table_name' is missing; found: table_info",
        ),
        (AGENTBENCH_CHANGE | {"label": [5]}, "the 'label' of a change must be its gold SQL, is 5"),
        (without(AGENTBENCH_CHANGE, "answer_md5"), "the field 'answer_md5' is missing"),
        (AGENTBENCH_CHANGE | {"answer_md5": MD5}, f"'answer_md5' must look like [('<md5>',)], is '{MD5}'"),
        (
            AGENTBENCH_CHANGE | {"answer_md5": "[(5,)]"},
            "'answer_md5' must look like [('<md5>',)], is '[(5,)]'",
        ),
        (AGENTBENCH_CHANGE | {"answer_md5": "(" * 5000}, "'answer_md5' must look like"),
        # LifelongAgentBench
        (
            lifelong_gold(md5=MD5),
            "'answer_info' must have exactly one of 'direct' (a question) and 'md5' (a change)",
        ),
        (lifelong_gold(direct=None), "'answer_info' must have exactly one of 'direct'"),
        (lifelong_gold(direct="pear"), "the field 'direct' must be list, is str"),
        (
            lifelong_gold(direct=None, md5="xyz", sql="DELETE FROM fruits"),
            "md5 must be 32 hex digits, is 'xyz'",
        ),
        (lifelong_gold(direct=None, md5=MD5, sql=None), "the field 'sql' is missing"),
        (lifelong_gold(direct=None, md5=MD5), "a question needs its gold 'answer'"),
        (without(LIFELONG_QUESTION, "table_info"), "the field 'table_info' is missing"),
        (without(LIFELONG_QUESTION, "instruction"), "the field 'instruction' is missing"),
    ],
)
def test_a_wrong_task_is_named_by_its_line(tmp_path: Path, entry: Any, message: str) -> None:
    path = jsonl(tmp_path, OWN | {"id": "fine"}, "", entry)
    with pytest.raises(TaskError) as error:
        load_tasks(path)
    assert str(error.value).startswith(f"{path}, line 3: {message}") or (
        str(error.value).startswith(f"{path}, line 3: ") and message in str(error.value)
    )
    assert error.value.__suppress_context__ or error.value.__context__ is None


def test_an_object_of_tasks_in_one_line_is_told_its_ending(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"0": OWN, "1": OWN})
    with pytest.raises(TaskError, match=r"line 1: .* An object \{key: entry\} must be in a \.json file"):
        load_tasks(path)


def test_ids_must_differ(tmp_path: Path) -> None:
    path = jsonl(tmp_path, OWN | {"id": 1}, OWN | {"id": "2"}, OWN | {"id": "1"})
    with pytest.raises(TaskError, match=r"line 3: the id '1' stands at line 1 already; ids must differ"):
        load_tasks(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"no task file at '.*gone\.jsonl'\. Give a \.jsonl, \.json or \.parquet file"
    ):
        load_tasks(tmp_path / "gone.jsonl")


@pytest.mark.parametrize(
    ("name", "content"), [("a.jsonl", ""), ("a.jsonl", "\n\n"), ("a.json", "{}"), ("a.json", "[]")]
)
def test_a_file_without_tasks(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TaskError, match=r"holds no tasks\. Expected one JSON object a line"):
        load_tasks(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("q.xlsx", "Save its sheet as a CSV"), ("q.jsonl.gz", "Unpack it"), ("q.csv.zip", "Unpack it")],
)
def test_a_workbook_or_packed_file_is_refused_with_what_to_do(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04\xff\xfe")
    with pytest.raises(TaskError, match=rf"{name}' cannot be read as it is\. {remedy}"):
        load_tasks(tmp_path / name)


def test_jsonl_of_powershell(tmp_path: Path) -> None:
    line = '{"id": "ö", "question": "q", "tables": [{"name": "t", "columns": [{"name": "a"}], "rows": []}], "answer": [1]}\n'
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        content = (line + line.replace("ö", "ü")).encode(encoding)
        (tmp_path / "q.jsonl").write_bytes(content)
        assert [task.id for task in load_tasks(tmp_path / "q.jsonl")] == ["ö", "ü"]
        reading, writing = os.pipe()
        os.write(writing, content)
        os.close(writing)
        assert [task.id for task in load_tasks(f"/dev/fd/{reading}")] == ["ö", "ü"]
        os.close(reading)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"is not JSON: .* must be named \.jsonl"),
        ('{"a": 1}', r"must hold an object {key: entry} or a list of tasks"),
        ("[1]", r"must hold an object {key: entry} or a list of tasks"),
        ("[" * 100_000, r"is not JSON: maximum recursion depth exceeded"),
        (
            '{"a": {"x": 1, "x": 2}, "b": {}, "a": {}}',
            "has the key 'a' twice; keys are ids of tasks, which must",
        ),
        (
            '{"question": {"0": "Who?", "1": "Why?"}, "sql": {"0": "SELECT 1", "1": null}}',
            r"has columns, question, sql, as pandas' to_json\(\) writes them, .* with to_json\(FILE, orient='records'\)",
        ),
        ('{"7": {"instruction": "?", "table_info": {}}}', r"entry '7': the field 'answer_info' is missing"),
    ],
)
def test_a_json_file_that_is_not_tasks(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(content)
    with pytest.raises(TaskError, match=message):
        load_tasks(path)


@pytest.mark.parametrize("content", [[OWN], {"1": OWN}])
def test_a_json_document_in_a_file_of_lines_is_told_its_name(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(content, indent=1))
    with pytest.raises(TaskError, match=r"line 1: .*must be in a \.json file$"):
        load_tasks(path)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(json.dumps(OWN, ensure_ascii=False).encode("latin-1"))
    with pytest.raises(
        TaskError, match=r"tasks\.jsonl cannot be read as UTF-8 text: .* can't decode byte 0xeb"
    ):
        load_tasks(path)


def test_a_parquet_file_has_the_fields_of_all_entries(tmp_path: Path) -> None:
    """pyarrow takes those of the first."""
    write_entries(tmp_path / "t.parquet", [{"id": 1}, {"id": 2, "knowledge": "rain"}])
    read = [entry.fields for entry in read_entries(tmp_path / "t.parquet")]
    assert read == [{"id": 1, "knowledge": None}, {"id": 2, "knowledge": "rain"}]


@pytest.mark.parametrize("ids", [(1, 2), (1, 1), (1, "1"), (None, 2)])
def test_a_json_file_has_all_entries(tmp_path: Path, ids: tuple) -> None:
    """By their ids, if these differ."""
    entries = [{"question": "a"} | ({} if id is None else {"id": id}) for id in ids]
    write_entries(tmp_path / "t.json", entries)
    assert len(list(read_entries(tmp_path / "t.json"))) == 2


def test_a_parquet_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    path.write_bytes(b"PAR1 or so")
    with pytest.raises(TaskError, match=r"tasks\.parquet is not a readable parquet file: "):
        load_tasks(path)


def test_parquet_cells_that_no_task_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    bytes_in_a_row = OWN["tables"][0] | {"rows": [[b"1", b"2", b"3"]]}  # type: ignore[index]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([OWN | {"tables": [bytes_in_a_row]}]), path)
    with pytest.raises(TaskError, match=r"tasks\.parquet, row 1: table 'orders', row 1 has the cell b'1'"):
        load_tasks(path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"the folder .* has no \*\.parquet"):
        load_tasks(tmp_path)


json_values = st.recursive(
    cells, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
)


@examples(200)
@given(
    entry=st.sampled_from([OWN, AGENTBENCH_QUESTION, AGENTBENCH_CHANGE, LIFELONG_QUESTION, LIFELONG_CHANGE]),
    data=st.data(),
)
def test_any_field_with_anything_in_it_is_a_task_or_a_task_error(
    entry: dict[str, Any], data: st.DataObject
) -> None:
    """Replaces one value, at any depth, by any other."""
    entry = json.loads(json.dumps(entry))
    place: Any = entry
    while True:
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(len(place)))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
        else:
            place[key] = data.draw(json_values)
            break
    from trl_dbbench.tasks.entries import Entry
    from trl_dbbench.tasks.load import _read

    try:
        (task,) = _read([Entry("line 1", entry)], "tasks.jsonl", None, {})
    except TaskError as error:
        assert str(error).startswith("tasks.jsonl, line 1: ")
    else:
        assert Task.from_json(task.to_json()) == task


def test_answers_are_never_run_as_code() -> None:
    """Python literals are read with `ast.literal_eval`; a call in one is refused."""
    with pytest.raises(ValueError, match="malformed node"):
        ast.literal_eval("[(__import__('os').getcwd(),)]")
    with pytest.raises(TaskError, match="'answer_md5' must look like"):
        from trl_dbbench.tasks.formats.agentbench import _published_md5

        _published_md5("[(__import__('os').getcwd(),)]")


# --- typos ------------------------------------------------------------------------------------------


def test_turns_of_a_task() -> None:
    task = Task.from_entry(with_table() | {"max_turns": 5})
    assert task.max_turns == 5
    assert Task.from_json(task.to_json()) == task
    assert "max_turns" not in Task.from_entry(with_table()).to_entry()


def with_table(**fields: Any) -> dict[str, Any]:
    table = {"name": "pets", "columns": [{"name": "age"}], "rows": [[3]], **fields}
    return {"id": 1, "question": "How old?", "tables": [table], "answer": [[3]]}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            with_table() | {"anwser": [[3]]},
            "unknown field 'anwser'; allowed: id, question, tables, .*; nearest: answer$",
        ),
        (with_table() | {"zzz": 1}, "unknown field 'zzz'; allowed: id, question, .*, max_turns$"),
        (with_table() | {"max_turns": 0}, "max_turns must be a whole number from 1 on, is 0"),
        (with_table() | {"max_turns": True}, "max_turns must be a whole number from 1 on, is True"),
        (with_table() | {"max_turns": "5"}, "max_turns must be a whole number from 1 on, is '5'"),
        (with_table(row=[]), "unknown field of a table 'row'; allowed: name, columns, rows; nearest: rows$"),
        (
            with_table(columns=[{"name": "age", "typ": "INT"}]),
            "unknown field of a column 'typ'; allowed: name, type; nearest: type$",
        ),
        (
            with_table(columns=[{"name": "age", "type": "VARCAHR(20)"}]),
            r"Table 'pets', column 'age': no server has the type 'VARCAHR\(20\)'; nearest: VARCHAR$",
        ),
        (
            with_table(columns=[{"name": "age", "type": "money"}]),
            "no server has the type 'money'; allowed are such as",
        ),
    ],
)
def test_a_misspelled_name_is_refused_with_the_nearest(
    tmp_path: Path, entry: dict[str, Any], message: str
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(entry))
    with pytest.raises(TaskError, match=f"line 1: .*{message}" if "^" not in message else message):
        load_tasks(path)


@pytest.mark.parametrize(
    "type", ["int", "Double Precision", "ENUM('a','b') NOT NULL", "bigint unsigned", "UUID"]
)
def test_types_that_a_server_has(tmp_path: Path, type: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(with_table(columns=[{"name": "age", "type": type}])))
    assert load_tasks(path)[0].tables[0].columns[0].type == type


def test_a_misspelled_file_is_answered_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tasks.jsonl").touch()
    for wrong in ("runs/task.jsonl", "run/tasks.jsonl"):
        with pytest.raises(TaskError, match=f"no task file at '{wrong}'; nearest: runs/tasks.jsonl"):
            load_tasks(wrong)


# --- wide and many ----------------------------------------------------------------------------------------


def numbered(letter: str, count: int) -> list[dict[str, Any]]:
    return [{"name": f"{letter}{number}", "type": "INT"} for number in range(count)]


@pytest.mark.slow
@pytest.mark.timeout(100)
@pytest.mark.parametrize("kind", ["columns", "tables"])
def test_time_grows_as_the_task_does(tmp_path: Path, kind: str) -> None:
    """Seconds; with time by the square of the number, each would take half an hour."""
    count = 200_000
    if kind == "columns":
        tables = [{"name": "t", "columns": numbered("c", count), "rows": [list(range(count))]}]
    else:
        tables = [
            {"name": f"t{number}", "columns": numbered("c", 1), "rows": [[1]]} for number in range(count)
        ]
    line = json.dumps({"id": "x", "question": "?", "answer": ["1"], "dialect": "sqlite", "tables": tables})
    (tmp_path / "tasks.jsonl").write_text(line)
    (task,) = load_tasks(tmp_path / "tasks.jsonl")
    assert len(task.tables) == len(tables)
    assert sum(len(table.columns) for table in task.tables) == count


@pytest.mark.parametrize(("dialect", "told"), [("mysql", True), ("sqlite", False)])
def test_a_table_that_no_server_takes_is_told_when_it_is_read(dialect: str, told: bool) -> None:
    entry = {"id": "x", "question": "?", "answer": ["1"], "dialect": dialect}
    widest = entry | {"tables": [{"name": "t", "columns": numbered("c", 1017), "rows": []}]}
    wider = entry | {"tables": [{"name": "t", "columns": numbered("c", 1018), "rows": []}]}
    assert len(Task.from_entry(widest).tables[0].columns) == 1017
    if told:
        with pytest.raises(TaskError, match=r"table 't' has 1,018 columns; .* at most 1,017\. Leave out"):
            Task.from_entry(wider)
    else:
        Task.from_entry(wider)
