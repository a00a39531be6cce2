"""Benchmarks of SQL answers: entries that cannot be tasks, the native format with databases, and a user's own format."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from spider2_layout import spider2
from text2sql_entries import (
    BIRD,
    CRITIC,
    CRITIC_MYSQL,
    OWN,
    SPIDER,
    SPIDER2,
    as_lines,
    as_list,
    database,
    without,
)

from trl_dbbench.data.convert import convert
from trl_dbbench.database import Database
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Column, Gold, Source, Table, Task, load_tasks
from trl_dbbench.tasks.formats import FORMATS, READ_ONLY
from trl_dbbench.tasks.formats.base import Loss
from trl_dbbench.tasks.split import split_tasks


@pytest.mark.parametrize(
    ("name", "entry", "message"),
    [
        (
            "dev.json",
            SPIDER | {"query": " "},
            r"entry 1: the gold SQL 'query' is missing or empty\. Test sets are published",
        ),
        (
            "dev.json",
            BIRD | {"SQL": ""},
            r"entry 1: the gold SQL 'SQL' is missing or empty\. .* take the entry out\.$",
        ),
        ("dev.json", BIRD | {"SQL": None}, r"entry 1: the gold SQL 'SQL' is missing or empty\."),
        (
            "test.json",
            {key: value for key, value in SPIDER.items() if key != "query"},
            r"entry 1: the gold SQL 'query' is missing or empty\. Test sets are published without it: take a file",
        ),
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
    folders = ("database", "test_database", "databases")
    looked = f"{path}, entry 1: there is no database 'pet': pet/pet.sqlite was looked for in " + ", ".join(
        f"{home}/{name}" for home in (path.parent, tmp_path) for name in folders
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


# --- the native format, and others ----------------------------------------------------------------


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
    assert Loss("t", "schema", f"is not kept by the format {target}") in convert(path, out, target).losses


def test_benchmarks_are_only_read(layouts: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the task format 'bird' can only be read: it has no 'suffix'"):
        convert(layouts["bird"], tmp_path / "out.json", "bird")


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
