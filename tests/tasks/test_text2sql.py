"""Benchmarks of SQL answers: their lines and layouts, the tasks that they are, and what cannot be one."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import sqlglot
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from required import lacking
from spider2_layout import entry_of, spider2
from sqlglot import exp

from trl_dbbench.data.audit import examine
from trl_dbbench.data.convert import convert
from trl_dbbench.data.score_predictions import score_all
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Column, Gold, Source, Table, Task, load_tasks
from trl_dbbench.tasks.formats import FORMATS, READ_ONLY
from trl_dbbench.tasks.split import split_tasks

KIT = Path(__file__).parents[3] / "shared" / "data" / "scorers"

PETS = """
CREATE TABLE owners (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE pets (name TEXT, owner INTEGER REFERENCES owners (id), weight REAL);
INSERT INTO owners VALUES (1, 'Ann'), (2, 'Bo');
INSERT INTO pets VALUES ('Rex', 1, 20.5), ('Tom', 2, 4), ('Ada', 1, NULL);
"""
PETS_TABLES = (
    Table("owners", (Column("id", "INTEGER"), Column("name", "TEXT"))),
    Table("pets", (Column("name", "TEXT"), Column("owner", "INTEGER"), Column("weight", "REAL"))),
)

SPIDER = {
    "db_id": "pets",
    "question": "How many pets are there?",
    "query": "SELECT count(*) FROM pets",
    "query_toks": ["SELECT", "count", "(", "*", ")", "FROM", "pets"],
    "question_toks": ["How", "many", "pets", "are", "there", "?"],
    "sql": {"from": {"table_units": [["table_unit", 1]]}},
}
BIRD = {
    "question_id": 7,
    "db_id": "pets",
    "question": "Who owns heavy pets?",
    "evidence": "heavy means weight > 10",
    "SQL": "SELECT T2.name FROM pets AS T1 JOIN owners AS T2 ON T1.owner = T2.id WHERE T1.weight > 10",
    "difficulty": "simple",
}
CRITIC = {
    "instance_id": "pets_1",
    "selected_database": "pets",
    "query": "List the pets by weight.",
    "preprocess_sql": [],
    "clean_up_sql": [],
    "sol_sql": ["SELECT name FROM pets ORDER BY weight;"],
    "external_knowledge": [],
    "test_cases": [],
    "category": "Query",
    "high_level": False,
    "conditions": {"decimal": -1, "distinct": False, "order": True},
    "difficulty_tier": "Simple",
}

CRITIC_MYSQL = CRITIC | {"dialect": "MySQL", "conditions": None, "efficiency": False}
SPIDER2 = entry_of("local001")


def database(path: Path, script: str = PETS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"BEGIN;\n{script};\nCOMMIT;")
    return path


def as_list(path: Path, *entries: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    return path


def as_lines(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    return path


def without(entry: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != key}


# --- Spider ---------------------------------------------------------------------------------------


def test_spiders_entries(tmp_path: Path) -> None:
    file = database(tmp_path / "database/pets/pets.sqlite")
    (task,) = load_tasks(as_list(tmp_path / "dev.json", SPIDER))
    assert task == Task(
        id="spider-dev-1",
        question="How many pets are there?",
        tables=PETS_TABLES,
        operation="SELECT",
        gold=Gold(sql="SELECT count(*) FROM pets"),
        skills=("select",),
        grader="spider_ts",
        source=Source.of(file),
        dialect="sqlite",
        knowledge=None,
        schema="full",
    )
    assert task.prompt().startswith(
        "How many pets are there?\nCREATE TABLE owners (id INTEGER PRIMARY KEY, name TEXT);"
    )


@pytest.mark.parametrize(
    ("file", "folder"),
    [
        ("dev.json", "database"),
        ("train_others.json", "database"),
        ("test.json", "test_database"),
        ("test_data/dev.json", "test_database"),
        ("evaluation/dev.json", "database"),
    ],
)
def test_where_spiders_databases_lie(tmp_path: Path, file: str, folder: str) -> None:
    path = database(tmp_path / folder / "pets/pets.sqlite")
    (task,) = load_tasks(as_list(tmp_path / file, SPIDER))
    assert task.source == Source.of(path)
    assert task.id == f"spider-{Path(file).stem}-1"


def test_a_task_file_named_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(tmp_path / "spider/database/pets/pets.sqlite")
    as_list(tmp_path / "spider/dev.json", SPIDER)
    for folder, name in (("", "spider/dev.json"), ("spider", "dev.json"), ("spider/database", "../dev.json")):
        monkeypatch.chdir(tmp_path / folder)
        (task,) = load_tasks(name)
        assert task.source is not None and Path(task.source.path).samefile(path)
        assert Path(task.source.path).is_absolute()


@pytest.fixture(scope="module")
def spider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Spider's dev.json, with its 20 databases and rows made up for them."""
    if not KIT.is_dir():
        lacking("data", f"{KIT} is missing")
    folder = tmp_path_factory.mktemp("spider")
    with gzip.open(KIT / "spider_rows.sql.gz", "rt", encoding="utf-8") as file:
        for part in file.read().split("-- database: ")[1:]:
            name, script = part.split("\n", 1)
            database(folder / f"database/{name}/{name}.sqlite", script)
    lines = (KIT / "spider_dev.jsonl").read_text(encoding="utf-8").splitlines()
    return as_list(folder / "dev.json", *map(json.loads, lines))


def test_all_of_spiders_dev(spider: Path, tmp_path: Path) -> None:
    started = time.process_time()
    tasks = load_tasks(spider)
    assert time.process_time() - started < 10  # it takes about one
    assert [task.id for task in tasks] == [f"spider-dev-{number}" for number in range(1, 1035)]
    assert len({task.source for task in tasks}) == 20
    assert {task.grader for task in tasks} == {"spider_ts"} and all(task.skills for task in tasks)

    with_rows = 0
    for task in tasks:
        assert task.source is not None and task.gold.sql is not None
        with task.source.file.connect() as connection:
            with_rows += bool(connection.execute(task.gold.sql).fetchall())
    assert with_rows == 960

    converted = convert(spider, tmp_path / "tasks.jsonl")
    assert (converted.written, converted.losses, converted.skipped) == (1034, [], [])
    assert load_tasks(tmp_path / "tasks.jsonl") == tasks


def test_spiders_gold_is_right_to_spiders_grader(spider: Path, command: Callable[..., Any]) -> None:
    code, output = command("validate", spider, "--database", "sqlite")
    *silent, last = output.splitlines()
    assert (code, last) == (1, "950 of 1034 gold solutions score as correct")
    assert len(silent) == 84 and all("the gold gives no rows, or only NULLs" in line for line in silent)


def on_mysql(task: Task) -> Task:
    """The task in MySQL's dialect: tables in the schema's case, and "x" a text where there is no such column."""
    assert task.gold.sql is not None
    tree = sqlglot.parse_one(task.gold.sql, read="sqlite")
    tables = {table.name.lower(): table.name for table in task.tables}
    columns = {column.name.lower() for table in task.tables for column in table.columns}
    names = tables | {alias.name.lower(): alias.name for alias in tree.find_all(exp.TableAlias)}
    for table in tree.find_all(exp.Table):
        table.this.replace(exp.to_identifier(tables[table.name.lower()], quoted=True))
    for column in list(tree.find_all(exp.Column)):
        if column.table:
            column.set("table", exp.to_identifier(names[column.table.lower()], quoted=True))
        elif column.this.args.get("quoted") and column.name.lower() not in columns:
            column.replace(exp.Literal.string(column.name))
    return replace(task, dialect="mysql", gold=Gold(sql=tree.sql(dialect="mysql")))


@pytest.mark.slow
def test_spiders_gold_on_mysql(spider: Path, docker_database: Database) -> None:
    """All but the queries that MySQL refuses: columns that are not grouped by, and a derived table without a name.
    And but those that give nothing, which is no reward for anybody."""
    tasks = [on_mysql(task) for task in load_tasks(spider)]
    problems = {each.task.id: each.problem for each in validate(tasks, docker_database) if each.problem}
    nothing = {id for id, problem in problems.items() if problem.startswith("the gold gives no rows")}
    reasons = {id: problem.split("fails: ")[1][:4] for id, problem in problems.items() if id not in nothing}
    assert {id.removeprefix("spider-dev-"): code for id, code in reasons.items()} == {
        **dict.fromkeys(("17", "336", "337"), "1140"),
        **dict.fromkeys(("232", "233", "464", "465", "642", "643", "817", "818"), "1055"),
        **dict.fromkeys(("745", "746"), "1248"),
    }


SUITE = {
    "pets_v1": "INSERT INTO pets VALUES ('rex', 1, 9.5), ('tom', 2, 30.0)",
    "pets_v2": "INSERT INTO pets VALUES ('ann', 1, 20.0)",
}
"""Two pets, and one, where `PETS` has three."""


def with_suite(folder: Path) -> Task:
    """The question of `SPIDER` with three databases."""
    script = PETS.partition("INSERT INTO pets")[0]
    database(folder / "database/pets/pets.sqlite")
    for name, rows in SUITE.items():
        database(folder / f"database/pets/{name}.sqlite", f"{script}{rows}")
    (task,) = load_tasks(as_list(folder / "dev.json", SPIDER))
    return task


def test_spiders_test_suites(tmp_path: Path, sqlite_database: Database) -> None:
    """An answer counts if it is right on all databases of the folder; the agent sees the one of that name."""
    task = with_suite(tmp_path)
    folder = tmp_path / "database" / "pets"
    assert task.source == Source.of(folder / "pets.sqlite")
    assert task.suite == (Source.of(folder / "pets_v1.sqlite"), Source.of(folder / "pets_v2.sqlite"))
    assert Task.from_json(task.to_json()) == task
    assert task.digest != replace(task, suite=()).digest
    judge = Judge(sqlite_database)
    with sqlite_database.sandbox(task) as sandbox:
        ((count,),) = sandbox.execute("SELECT count(*) FROM pets").rows
        lucky = Answer(f"SELECT {count}")
        assert judge(replace(task, suite=()), lucky, sandbox, "spider_ts").right
        assert not judge(task, lucky, sandbox, "spider_ts").right
        assert judge(task, Answer("SELECT count(name) FROM pets"), sandbox, "spider_ts").right
    (scores,) = score_all([task], {task.id: f"SELECT {count}"}, sqlite_database)
    assert set(scores.values.values()) == {0.0}


def test_the_gold_sql_must_run_on_the_whole_suite(tmp_path: Path, sqlite_database: Database) -> None:
    task = with_suite(tmp_path)
    assert [each.problem for each in validate([task], sqlite_database)] == [None]
    path = database(tmp_path / "other.sqlite", "CREATE TABLE cats (name TEXT)")
    broken = replace(task, suite=(*task.suite, Source.of(path)))
    assert [each.problem for each in validate([broken], sqlite_database)] == [
        f"the gold SQL fails: no such table: pets (on '{path}' of its suite)"
    ]


def test_a_slip_that_the_suite_tells_apart_does_not_pass(tmp_path: Path, sqlite_database: Database) -> None:
    """All pets of the task's own database weigh more than 3; of another's, Max does not."""
    sql = "SELECT count(*) FROM pets WHERE weight > 3"
    path = database(tmp_path / "pets.sqlite", PETS.replace("('Ada', 1, NULL)", "('Ada', 1, 5)"))
    light = database(tmp_path / "light.sqlite", PETS.replace("('Ada', 1, NULL)", "('Max', 1, 2)"))
    task = Task.from_entry(OWN | {"sql": sql, "grader": "strict", "database": {"path": str(path)}})
    no_where = "SELECT COUNT(*) FROM pets"
    for each, passes in ((task, True), (replace(task, suite=(Source.of(light),)), False)):
        slips = [found.slip for found in examine(each, [sqlite_database]) if found.kind == "weak"]
        assert (no_where in slips) is passes


def test_a_suite_of_the_own_format(tmp_path: Path) -> None:
    """Its paths are looked for beside the file, as that of the database."""
    database(tmp_path / "pets.sqlite")
    database(tmp_path / "suite/pets.sqlite")
    entry = OWN | {"database": {"path": "pets.sqlite"}}
    (task,) = load_tasks(
        as_lines(tmp_path / "tasks.jsonl", entry | {"suite": [{"path": "suite/pets.sqlite"}]})
    )
    assert [Path(each.path) for each in task.suite] == [tmp_path / "suite/pets.sqlite"]
    for wrong, said in (
        (
            without(entry, "database")
            | {
                "tables": [{"name": "t", "columns": [{"name": "a"}], "rows": []}],
                "suite": [{"path": "suite/pets.sqlite"}],
            },
            "a 'suite' is for questions over a 'database'; leave it out",
        ),
        (entry | {"suite": [{"path": "no.sqlite"}]}, "there is no database 'no.sqlite'"),
        (entry | {"suite": ["suite/pets.sqlite"]}, "database of the suite"),
    ):
        with pytest.raises(TaskError, match=said):
            load_tasks(as_lines(tmp_path / "wrong.jsonl", wrong))


# --- BIRD -----------------------------------------------------------------------------------------


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
    assert f"'{folder / 'owners.csv'}' has no column original_column_name" in caplog.text
    names = replace(task, schema="names")
    assert "poids" not in names.prompt()


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
    """Of a folder, the databases lie in it; lists and objects may be text there."""
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


# --- what cannot be right -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        (
            "dev.json",
            SPIDER | {"query": " "},
            r"entry 1: the gold SQL 'query' is empty\. Test sets are published",
        ),
        ("dev.json", BIRD | {"SQL": ""}, r"entry 1: the gold SQL 'SQL' is empty\. .* take the entry out\.$"),
        ("dev.json", BIRD | {"SQL": None}, r"entry 1: the field 'SQL' is missing; found: question_id, db_id"),
        ("dev.json", SPIDER | {"query": "DELETE FROM pets"}, "must be a query, is DELETE: DELETE FROM pets$"),
        ("dev.json", SPIDER | {"question": 5}, "entry 1: the field 'question' must be str, is int"),
        ("dev.json", BIRD | {"evidence": []}, "entry 1: the field 'evidence' must be str, is list"),
        (
            "dev.json",
            SPIDER | {"db_id": "../pets"},
            r"a database needs a name that is not a path, has '\.\./pets'",
        ),
        ("dev.json", SPIDER | {"db_id": ""}, "a database needs a name that is not a path, has ''"),
        ("dev.json", SPIDER | {"db_id": ".."}, r"a database needs a name that is not a path, has '\.\.'"),
        (
            "live.jsonl",
            without(CRITIC, "sol_sql"),
            "line 1: the gold 'sol_sql' is missing or empty. The benchmark",
        ),
        ("live.jsonl", CRITIC | {"sol_sql": [""]}, "line 1: the gold 'sol_sql' is missing or empty"),
        ("live.jsonl", CRITIC | {"sol_sql": [5]}, "'sol_sql' must be a text or a list of texts, holds 5"),
        ("live.jsonl", CRITIC | {"conditions": "order"}, "'conditions' must be dict, is str"),
        (
            "live.jsonl",
            CRITIC | {"external_knowledge": [3]},
            r"has numbers of lines in .*/pets/pets_kb\.jsonl, which cannot be read: .* Bring the file there",
        ),
    ],
)
def test_entries_that_cannot_be_right(tmp_path: Path, name: str, entry: dict[str, Any], message: str) -> None:
    database(tmp_path / "database/pets/pets.sqlite")
    write = as_list if name.endswith(".json") else as_lines
    with pytest.raises(TaskError, match=message) as error:
        load_tasks(write(tmp_path / name, entry))
    assert str(error.value).startswith(f"{tmp_path / name}, ")


def test_knowledge_that_the_file_does_not_have(tmp_path: Path) -> None:
    database(tmp_path / "pets/pets.sqlite")
    as_lines(tmp_path / "pets/pets_kb.jsonl", {"id": 0, "knowledge": "Heavy"})
    with pytest.raises(
        TaskError, match=r"'external_knowledge' names 3, which .*pets_kb\.jsonl does not have"
    ):
        load_tasks(as_lines(tmp_path / "live.jsonl", CRITIC | {"external_knowledge": [0, 3]}))


def test_an_id_that_a_published_file_has_twice_becomes_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As 137 and 138 of BIRD's mini-dev, whose prediction files go by place."""
    database(tmp_path / "databases/pets/pets.sqlite")
    tasks = load_tasks(as_list(tmp_path / "dev.json", BIRD, BIRD, BIRD | {"question_id": 8}, BIRD))
    assert [task.id for task in tasks] == ["7", "7-2", "8", "7-3"]
    assert "has ids twice: their later entries have ids of their own, 7-2, 7-3." in caplog.text


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entry=st.sampled_from([SPIDER, BIRD, CRITIC, SPIDER2, CRITIC_MYSQL]), data=st.data())
def test_any_field_with_anything_in_it(tmp_path: Path, entry: dict[str, Any], data: st.DataObject) -> None:
    """A task, or one error that names the place."""
    file = tmp_path / "databases/pets/pets.sqlite"
    for each in (file, tmp_path / "database/pets/pets.sqlite"):
        if not each.exists():
            database(each)
            spider2(tmp_path, {"local001": {"": "n\n3\n"}})
            (tmp_path / "pets_template_dump.sql").write_text("CREATE TABLE `pets` (`name` text);")
    key = data.draw(st.sampled_from(sorted(entry)))
    value = data.draw(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=3)
        | st.lists(st.integers() | st.text(), max_size=2)
    )
    path = as_lines(tmp_path / "tasks.jsonl", entry | {key: value})
    try:
        (task,) = load_tasks(path)
    except TaskError as error:
        assert str(error).startswith((f"{path}, line 1: ", f"{path}: 1 of 1 entries are left out; "))
    else:
        assert Task.from_json(task.to_json()) == task


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    """The places where it was looked for, and what is there instead."""
    path = as_list(tmp_path / "spider" / "dev.json", SPIDER | {"db_id": "pet"})
    looked = f"{path}, entry 1: there is no database 'pet': pet/pet.sqlite was looked for in " + ", ".join(
        f"{home}/{name}" for home in (path.parent, tmp_path) for name in ("database", "test_database")
    )

    def told() -> str:
        with pytest.raises(TaskError) as error:
            load_tasks(path)
        return str(error.value)

    assert told() == f"{looked}. Unpack the databases of the benchmark into one of these folders."
    dump = path.parent / "MINIDEV_mysql" / "BIRD_dev.sql"
    dump.parent.mkdir()
    dump.write_text("CREATE TABLE")
    assert told() == (
        f"{looked}. {dump} is for servers: take the task file that goes with it, such as mini_dev_mysql.json, or "
        "unpack the SQLite files of the benchmark into one of these folders."
    )
    database(path.parent / "database/flights/flights.sqlite")
    assert told() == f"{looked}, which have 1 others. Bring the database there."
    database(path.parent / "database/pets/pets.sqlite")
    assert told() == f"{looked}, where 'pets' is nearest. Correct the name, or bring the database there."


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "database/pets/pets.sqlite"
    file.parent.mkdir(parents=True)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n" * 20)
    with pytest.raises(
        TaskError, match=r"dev\.json, entry 1: the database '.*pets\.sqlite' cannot be read: file is not"
    ):
        load_tasks(as_list(tmp_path / "dev.json", SPIDER))


# --- the own format, and others -------------------------------------------------------------------


@pytest.fixture
def layouts(tmp_path: Path) -> dict[str, Path]:
    """A file of each format, beside the same database."""
    for folder in ("database", "databases"):
        database(tmp_path / folder / "pets/pets.sqlite")
    return {
        "spider": as_list(tmp_path / "spider.json", SPIDER, SPIDER),
        "bird": as_list(tmp_path / "bird.json", BIRD, BIRD | {"question_id": 8}),
        "critic": as_lines(tmp_path / "critic.jsonl", CRITIC, CRITIC | {"instance_id": "pets_2"}),
        "spider2": spider2(tmp_path, {"local001": {"": "name\nRex\n"}, "local002": {"": "n\n3\n"}}),
    }


@pytest.mark.parametrize("format", READ_ONLY)
@pytest.mark.parametrize("target", ["own.jsonl", "verl.parquet"])
def test_what_own_and_verl_hold(layouts: dict[str, Path], tmp_path: Path, format: str, target: str) -> None:
    """Everything, wherever the file is moved to afterwards: the path of the database is a whole one."""
    tasks = load_tasks(layouts[format])
    assert tasks == load_tasks(layouts[format], format=format)
    converted = convert(layouts[format], tmp_path / target)
    assert (converted.losses, converted.skipped) == ([], [])
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.move(tmp_path / target, tmp_path / "elsewhere" / target)
    assert load_tasks(moved) == tasks
    assert [task.to_json() for task in load_tasks(moved)] == [task.to_json() for task in tasks]


@pytest.mark.parametrize("format", READ_ONLY)
@pytest.mark.parametrize("target", ["agentbench", "lifelong"])
def test_what_older_formats_cannot_hold(
    layouts: dict[str, Path], tmp_path: Path, format: str, target: str
) -> None:
    message = (
        rf"the format {target} cannot hold 2 of 2 tasks; --skip leaves them out:\n  tasks .*, database: its rows lie in "
        r"a database file; \w+'s tasks hold their tables themselves$"
    )
    with pytest.raises(TaskError, match=message):
        convert(layouts[format], tmp_path / f"out{FORMATS[target].suffix}", target)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dialect": "sqlite"}, "dialect: its SQL is of sqlite; .*'s is MySQL's"),
        ({"grader": "strict"}, "grader: its answers are SQL, judged by strict; .*'s answers are values"),
        ({"knowledge": "Hint: one"}, "knowledge: .* has no place for what is told beside the question"),
    ],
)
@pytest.mark.parametrize("target", ["agentbench", "lifelong"])
def test_parts_that_older_formats_cannot_hold(
    tmp_path: Path, target: str, fields: dict[str, Any], message: str
) -> None:
    plain = Task(
        "t", "How many?", (Table("a", (Column("b"),), (("1",),)),), "SELECT", Gold((("1",),), "SELECT 1")
    )
    path, out = tmp_path / "tasks.jsonl", tmp_path / f"out{FORMATS[target].suffix}"
    path.write_text(replace(plain, **fields).to_json())
    with pytest.raises(TaskError, match=message):
        convert(path, out, target)
    path.write_text(replace(plain, schema="full").to_json())
    assert f"task 't', schema: is not kept by the format {target}" in map(
        str, convert(path, out, target).losses
    )


def test_benchmarks_are_only_read(layouts: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the task format 'bird' can only be read: it has no 'suffix'"):
        convert(layouts["bird"], tmp_path / "out.json", "bird")


OWN = {
    "id": "count",
    "question": "How many pets?",
    "sql": "SELECT count(*) FROM pets",
    "grader": "bird_ex",
    "database": {"path": "data/pets.sqlite"},
}


def test_a_relative_path_of_the_own_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the task file first, then from the working directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = as_lines(tmp_path / "there/tasks.jsonl", OWN)
    with pytest.raises(TaskError) as error:
        load_tasks("../there/tasks.jsonl")
    assert str(error.value).startswith(
        f"../there/tasks.jsonl, line 1: there is no database 'data/pets.sqlite', not in {tmp_path}/here/../there nor "
        f"in {tmp_path}/here. Give its path from the task file, from the working directory, or the whole path."
    )
    for folder in ("here", "there"):
        file = database(tmp_path / folder / "data/pets.sqlite")
        (task,) = load_tasks(path)
        assert task.source == Source.of(file)
        assert json.loads(task.to_json())["database"]["path"] == str(file)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": 5}, "the field 'path' must be str, is int"),
        ({"digest": "0"}, "the field 'path' is missing"),
        ("data/pets.sqlite", "the field 'database' must be dict, is str"),
        (
            {"path": "data/pets.sqlite", "file": 1},
            "unknown field of a database 'file'; allowed: path, digest",
        ),
    ],
)
def test_databases_of_the_own_format_that_cannot_be_right(tmp_path: Path, given: Any, message: str) -> None:
    database(tmp_path / "data/pets.sqlite")
    with pytest.raises(TaskError, match=rf"tasks\.jsonl, line 1: {message}"):
        load_tasks(as_lines(tmp_path / "tasks.jsonl", OWN | {"database": given}))


@pytest.mark.parametrize("change", ["INSERT INTO pets VALUES ('Kit', 1, 1)", "CREATE TABLE more (a)"])
def test_a_database_that_is_another_by_now(layouts: dict[str, Path], tmp_path: Path, change: str) -> None:
    convert(layouts["spider"], tmp_path / "tasks.jsonl")
    database(tmp_path / "database/pets/pets.sqlite", change)
    with pytest.raises(
        TaskError, match=r"tasks\.jsonl, line 1: the database '.*pets\.sqlite' is another one than when"
    ):
        load_tasks(tmp_path / "tasks.jsonl")
    assert load_tasks(layouts["spider"])[0].question == SPIDER["question"]  # which has no digest


# --- a format of one's own ------------------------------------------------------------------------


class Beside:
    """Entries that name a file; `beside` says where it lies."""

    name = "beside"

    def __init__(self, path: Path | None = None):
        self.path = path

    def beside(self, path: Path) -> Beside:
        return Beside(path)

    def matches(self, entry: dict[str, Any]) -> bool:
        return "file" in entry

    def read(self, entry: dict[str, Any], default_id: str) -> Task:
        assert self.path is not None
        source = Source.of(self.path.parent / entry["file"])
        return Task(
            default_id,
            "How many?",
            source.tables(),
            "SELECT",
            Gold(sql="SELECT 1"),
            grader="strict",
            source=source,
            dialect="sqlite",
        )


@pytest.mark.parametrize("named", [Beside(), f"{__name__}.Beside"])
def test_a_format_of_ones_own_that_names_files(tmp_path: Path, named: Any) -> None:
    file = database(tmp_path / "mine.sqlite")
    (task,) = load_tasks(as_lines(tmp_path / "mine.jsonl", {"file": "mine.sqlite"}), format=named)
    assert task.source == Source.of(file)
    with pytest.raises(TaskError, match=r"line 1: the database '.*/other\.sqlite' cannot be read"):
        load_tasks(as_lines(tmp_path / "mine.jsonl", {"file": "other.sqlite"}), format=named)


def test_every_format_is_told_by_its_fields(layouts: dict[str, Path], command: Callable[..., Any]) -> None:
    for name, path in layouts.items():
        code, output = command("convert", path, path.with_name("out.jsonl"))
        assert (code, output) == (0, f"{path.with_name('out.jsonl')}: 2 tasks in the format own\n"), name


# What a task file can name.


def source_task(path: str, **more: str) -> Task:
    line = {
        "id": "1",
        "question": "?",
        "database": {"path": path},
        "sql": "SELECT 1",
        "grader": "strict",
        **more,
    }
    return Task.from_json(json.dumps(line))


@pytest.mark.parametrize(
    "path", ["/dev/zero", "~nosuch/x.sqlite", "/tmp/a\0b", "x" * 300, "/", "/no/such/file"]
)
def test_what_is_no_file_is_one_error(path: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"Give the path of a SQLite file|the folder '/' holds no tables"):
        source_task(path)
    (tmp_path / "tasks.jsonl").write_text(
        json.dumps(
            {"id": "1", "question": "?", "database": {"path": path}, "sql": "SELECT 1", "grader": "strict"}
        )
        + "\n"
    )
    with pytest.raises(TaskError, match=r"tasks\.jsonl, line 1: "):
        load_tasks(tmp_path / "tasks.jsonl")


def test_odd_databases_are_shown_and_played(tmp_path: Path, sqlite_database: Database) -> None:
    """A table named by a keyword, a view without an end, one of nothing, a text index, a cell beyond all bounds."""
    path = tmp_path / "odd.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            'CREATE TABLE "order" (id INTEGER PRIMARY KEY, "group" TEXT); INSERT INTO "order" VALUES (1, \'a\');'
            "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n;"
            "CREATE TABLE gone (x); CREATE VIEW broken AS SELECT x FROM gone; DROP TABLE gone;"
            "CREATE TABLE large (cell BLOB); INSERT INTO large VALUES (zeroblob(2000000));"
            "CREATE VIRTUAL TABLE texts USING fts5(body);"
        )
        connection.commit()
    found = source_task(str(path), schema="full", sql='SELECT "group" FROM "order"')
    assert [table.name for table in found.tables] == ["order", "endless", "large", "texts"]
    shown = found.prompt()
    assert "/* The first rows of order:\n1, 'a' */" in shown
    assert "CREATE VIEW endless" in shown and "rows of endless" not in shown
    assert "CREATE TABLE large (cell BLOB);\nCREATE VIRTUAL" in shown
    (validation,) = validate([found], sqlite_database)
    assert validation.problem is None


def test_a_database_that_is_being_written_is_refused(tmp_path: Path) -> None:
    """Also after it has been read before."""
    path = tmp_path / "busy.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.commit()
        source_task(str(path))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        with pytest.raises(TaskError, match=r"'-wal' or '-journal' file lies beside it. Close the program"):
            source_task(str(path))
    source_task(str(path))


def test_tasks_of_one_file_stay_in_one_half(tmp_path: Path) -> None:
    """Although the files share a table of the same name and columns."""
    tasks = []
    for name in ("a", "b", "c", "d"):
        with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as connection:
            connection.executescript(f"CREATE TABLE country (id, name); CREATE TABLE t_{name} (x)")
        tasks += [
            replace(
                source_task(str(tmp_path / f"{name}.sqlite"), sql=f"SELECT {n} FROM t_{name}"),
                id=f"{name}{n}",
                question=f"{name} {n}?",
            )
            for n in range(4)
        ]
    parted = split_tasks(tasks, 0.25, seed=0)
    assert not parted.shares_tables
    assert {task.id[0] for task in parted.train}.isdisjoint(task.id[0] for task in parted.test)


def test_an_answer_of_rows_beside_sql_is_as_it_was(tmp_path: Path) -> None:
    line = {
        "id": "1",
        "question": "?",
        "tables": [{"name": "t", "columns": [{"name": "a"}], "rows": [["x"]]}],
    }
    found = Task.from_json(
        json.dumps(line | {"sql": "SELECT a FROM t", "grader": "strict", "answer": [["x"]]})
    )
    assert found.gold.answer == (("x",),)
    assert Task.from_json(found.to_json()) == found
    assert hash(found)
