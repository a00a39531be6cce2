"""Spider: its entries, its whole dev file, gold SQL on MySQL, and its test suites."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from required import lacking
from sqlglot import exp
from text2sql_entries import (
    KIT,
    OWN,
    PETS,
    PETS_TABLES,
    SPIDER,
    as_lines,
    as_list,
    database,
    without,
)

from trl_dbbench.data.audit import examine
from trl_dbbench.data.convert import convert
from trl_dbbench.data.score_predictions import score_all
from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Gold, Source, Task, load_tasks


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
    folder = tmp_path / "database" / "pets"
    folder.mkdir(parents=True)
    (folder / "._pets_v1.sqlite").write_bytes(b"macOS packs such files")
    task = with_suite(tmp_path)
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
