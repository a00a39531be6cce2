"""BIRD, LiveSQLBench and BIRD-CRITIC: their entries, descriptions and folders, and what is left out."""

from __future__ import annotations

import csv
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from text2sql_entries import (
    BIRD,
    CRITIC,
    PETS_TABLES,
    as_lines,
    as_list,
    database,
    without,
)

from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Gold, Source, Task, load_tasks
from trl_dbbench.tasks.sources.base import descriptions


@pytest.mark.parametrize("layout", ["mini_dev_{}-00000-of-00001.parquet", "mini_dev_{}/0000.parquet"])
def test_the_name_of_a_file_in_a_folder_says_whose_sql_it_has(tmp_path: Path, layout: str) -> None:
    """As BIRD's mini-dev lies on the hub, and as the hub itself converts it."""
    database(tmp_path / "dev_databases/pets/pets.sqlite")
    for name in ("sqlite", "pg"):
        path = tmp_path / "data" / layout.format(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([BIRD]), path)
    (task,) = load_tasks(tmp_path / "data", "mini_dev_sqlite")
    assert task.dialect == "sqlite"
    with pytest.raises(TaskError, match="PostgreSQL"):
        load_tasks(tmp_path / "data", "mini_dev_pg")


def test_birds_entries(tmp_path: Path) -> None:
    """Difficulty has no place in a task."""
    file = database(tmp_path / "dev_databases/pets/pets.sqlite")
    entries = [
        BIRD,
        BIRD | {"question_id": 0, "evidence": ""},
        without(without(BIRD, "question_id"), "evidence"),  # as train.json has them
    ]
    hinted, *plain = load_tasks(as_list(tmp_path / "dev.json", *entries))
    assert hinted == Task(
        id="7",
        question="Who owns heavy pets?",
        tables=PETS_TABLES,
        operation="SELECT",
        gold=Gold(sql=BIRD["SQL"]),
        skills=("select", "where_single_condition", "table_alias"),
        grader="bird_ex",
        source=Source.of(file),
        dialect="sqlite",
        knowledge="Hint: heavy means weight > 10",
        schema="full",
    )
    assert hinted.prompt().startswith(
        "Who owns heavy pets?\nHint: heavy means weight > 10\nCREATE TABLE owners"
    )
    assert [(task.id, task.knowledge) for task in plain] == [("0", None), ("bird-dev-3", None)]


HEADER = "original_column_name,column_name,column_description,data_format,value_description"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252"])
def test_birds_descriptions_of_columns(
    tmp_path: Path, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The files are as people have written them: ragged, in several encodings, some for no table at all."""
    file = database(tmp_path / "dev_databases/pets/pets.sqlite")
    folder = file.parent / "database_description"
    folder.mkdir()
    lines = [
        HEADER,
        'weight,body weight,poids pesé,real,"in kg,\n0: unknown */"',
        "age,,in years,,",
        "name,,ID,text,,too,many",
        f"owner,who feeds it,{'x' * 500},integer",
    ]
    (folder / "Pets.csv").write_bytes("\r\n".join(lines).encode(encoding))
    (folder / "owners.csv").write_text("column,meaning\nname,a name\n")
    (folder / "houses.csv").write_text(f"{HEADER}\naddress,,where it is,,\n")
    (task,) = load_tasks(as_list(tmp_path / "dev.json", BIRD))
    told = task.prompt().partition("/* What columns of pets mean:\n")[2].partition("CREATE TABLE pets")[0]
    assert told == (
        "name: ID\n"
        f"owner: who feeds it; {'x' * 200}...\n"
        "weight: body weight; poids pesé; values: in kg, 0: unknown * / */\n"
    )
    assert "houses" not in task.prompt()
    assert (
        f"'{folder / 'owners.csv'}' is not a CSV file as BIRD's descriptions are (no column original"
        in caplog.text
    )
    names = replace(task, schema="names")
    assert "poids" not in names.prompt()


def test_a_description_that_is_not_csv_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "pets.csv"
    file.write_text(f"{HEADER}\nweight,{'x' * 2000},,,\n")
    limit = csv.field_size_limit(1000)
    try:
        assert descriptions(tmp_path) == {"pets": {}}
    finally:
        csv.field_size_limit(limit)
    assert (
        f"'{file}' is not a CSV file as BIRD's descriptions are (field larger than field limit (1000))"
        in caplog.text
    )


@pytest.mark.parametrize("folder", ["dev_databases", "train_databases", "databases", ".", "../dev_databases"])
def test_where_birds_databases_lie(tmp_path: Path, folder: str) -> None:
    path = as_list(tmp_path / "bird" / "mini_dev_sqlite.json", BIRD)
    file = database(path.parent / folder / "pets/pets.sqlite")
    (task,) = load_tasks(path)
    assert task.source is not None and Path(task.source.path).samefile(file)


@pytest.mark.parametrize("name", ["mini_dev_postgresql", "mini_dev_pg-00000-of-00001"])
def test_birds_files_for_postgresql_are_not_read(tmp_path: Path, name: str) -> None:
    database(tmp_path / "dev_databases/pets/pets.sqlite")
    path = as_list(tmp_path / f"{name}.json", BIRD)
    message = (
        rf"{name}\.json, entry 1: the file has SQL for PostgreSQL, which is not executed here\. Use BIRD's file "
        r"for SQLite or for MySQL, such as mini_dev_mysql\.json\.$"
    )
    with pytest.raises(TaskError, match=message):
        load_tasks(path)


# --- LiveSQLBench and BIRD-CRITIC -----------------------------------------------------------------


def test_a_line_separator_within_a_text_ends_no_line(tmp_path: Path) -> None:
    """Knowledge with U+2028 in it could not be read: it was cut there."""
    database(tmp_path / "pets/pets_template.sqlite")
    known = '{"id": 0, "knowledge": "Heavy", "definition": "weight\u2028> 10"}\n'
    (tmp_path / "pets/pets_kb.jsonl").write_text(known, encoding="utf-8")
    path = as_lines(tmp_path / "livesqlbench_data_sqlite.jsonl", CRITIC | {"external_knowledge": [0]})
    (task,) = load_tasks(path)
    assert task.knowledge is not None and task.knowledge.endswith("Heavy: weight\u2028> 10")


def test_livesqlbenchs_entries(tmp_path: Path) -> None:
    file = database(tmp_path / "pets/pets_template.sqlite")
    database(tmp_path / "pets/pets.sqlite", "CREATE TABLE left_by_an_evaluation (a)")
    knowledge = [
        {
            "id": 0,
            "knowledge": "Heavy",
            "description": "A heavy pet",
            "definition": "weight > 10",
            "type": "domain",
        },
        {"id": 1, "knowledge": "Light", "description": "A light pet", "definition": "weight < 1"},
    ]
    as_lines(tmp_path / "pets/pets_kb.jsonl", *knowledge)
    entries = [
        CRITIC | {"external_knowledge": [0]},
        CRITIC | {"instance_id": "pets_2", "sol_sql": "SELECT 1", "conditions": {"order": False}},
        without(CRITIC, "conditions") | {"instance_id": "pets_3"},
    ]
    first, second, third = load_tasks(as_lines(tmp_path / "livesqlbench_data_sqlite.jsonl", *entries))
    assert first == Task(
        id="pets_1",
        question="List the pets by weight.",
        tables=PETS_TABLES,
        operation="SELECT",
        gold=Gold(sql="SELECT name FROM pets ORDER BY weight;"),
        skills=("select", "order_by_single_column"),
        grader="critic_ordered",
        source=Source.of(file),
        dialect="sqlite",
        knowledge="Heavy: A heavy pet: weight > 10",
        schema="full",
    )
    assert [(task.grader, task.knowledge) for task in (second, third)] == [("critic", None)] * 2


def test_bird_critics_entries(tmp_path: Path) -> None:
    database(tmp_path / "database/pets/pets.sqlite")
    entry = without(CRITIC, "selected_database") | {
        "dialect": "SQLite",
        "db_id": "pets",
        "query": "My list has no order.",
        "issue_sql": ["SELECT name FROM pets"],
    }
    (task,) = load_tasks(as_lines(tmp_path / "bird_critic.jsonl", entry))
    assert task.question == "My list has no order."
    assert task.knowledge == "The SQL with the issue:\nSELECT name FROM pets"


def test_exports_as_parquet(tmp_path: Path) -> None:
    """A folder of parquet also holds the databases. Its lists and objects may be JSON text."""
    database(tmp_path / "pets/pets.sqlite")
    packed = {
        key: json.dumps(value) if isinstance(value, list | dict) else value for key, value in CRITIC.items()
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([packed]), tmp_path / "dev.parquet")
    expected = load_tasks(as_lines(tmp_path / "live.jsonl", CRITIC))
    assert load_tasks(tmp_path) == load_tasks(tmp_path / "dev.parquet") == expected


LEFT_OUT = [
    ({"category": "Management"}, "of the category Management, which changes the database"),
    (
        {"test_cases": ["def test_case(pred, sol, path, conn): raise SystemExit"]},
        "judged by 'test_cases', Python that would have to be executed",
    ),
    ({"preprocess_sql": ["CREATE TABLE t (a)"]}, "needs 'preprocess_sql', statements beside the solution"),
    ({"clean_up_sql": "DROP TABLE t"}, "needs 'clean_up_sql', statements beside the solution"),
    ({"sol_sql": ["SELECT 1", "SELECT 2"]}, "'sol_sql' is not a single query"),
    ({"sol_sql": "DELETE FROM pets"}, "'sol_sql' is not a single query"),
    ({"dialect": "Oracle"}, "of Oracle; only SQLite and MySQL are read"),
]


@pytest.mark.parametrize(("fields", "reason"), LEFT_OUT)
def test_entries_that_can_be_no_task_are_left_out(
    tmp_path: Path, fields: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others of the file are read, and a warning names those that are not."""
    database(tmp_path / "pets/pets.sqlite")
    odd = [CRITIC | fields | {"instance_id": f"odd_{number}"} for number in range(5)]
    path = as_lines(tmp_path / "live.jsonl", CRITIC, *odd)
    with caplog.at_level(logging.WARNING, "trl_dbbench"):
        assert [task.id for task in load_tasks(path)] == ["pets_1"]
    told = f"{path}: 5 of 6 entries are left out; odd_0, odd_1, odd_2 and 2 more: {reason}"
    assert [record.message for record in caplog.records] == [told]
    for named in ("critic", "spider"):
        load_tasks(path, format=named)
        assert caplog.records[-1].message == told

    with pytest.raises(TaskError, match=r"live\.jsonl: 5 of 5 entries are left out; odd_0"):
        load_tasks(as_lines(path, *odd))


def test_each_reason_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database(tmp_path / "pets/pets.sqlite")
    management = CRITIC | {"category": "Management"}
    entries = [management | {"instance_id": "a"}, CRITIC, CRITIC | {"instance_id": "b", "test_cases": ["x"]}]
    load_tasks(as_lines(tmp_path / "live.jsonl", *entries))
    assert caplog.messages == [
        f"{tmp_path}/live.jsonl: 2 of 3 entries are left out; a: of the category Management, which changes the "
        "database; b: judged by 'test_cases', Python that would have to be executed"
    ]
