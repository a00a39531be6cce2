"""From one format to another: what a target can hold comes back equal, what it cannot is named."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from any_tasks import MD5, any_tasks
from datasets import load_dataset
from examples import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from required import lacking
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.data.convert import Conversion, convert
from trl_dbbench.database import Database
from trl_dbbench.episode.protocol import get_protocol
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.grading.states import state_hash
from trl_dbbench.tasks import Column, Gold, Table, Task, load_tasks
from trl_dbbench.tasks.skills import skills_of

AGENTBENCH = Path(__file__).parents[3] / "shared" / "data" / "agentbench"

PETS = Table("pets", (Column("name"), Column("kind")), (("Rex", "dog"), ("Tom", "cat"), ("Ada", "dog")))
PRICES = Table(
    "prices",
    (Column("item"), Column("price", "INT"), Column("sold", "BOOL")),
    (("a", 9, True), ("b", 10, False)),
)


def question(*, id: str = "q", table: Table = PETS, sql: str | None = None, **fields: Any) -> Task:
    answer = fields.pop("answer", ("Tom",))
    return Task(id, "Which?", (table,), "SELECT", Gold(answer, sql), **({"grader": None} | fields))


def change(sql: str, *, id: str = "c", table: Table = PETS, md5: str | None = None, **fields: Any) -> Task:
    operation = sql.split()[0].upper()
    return Task(
        id, "Do it.", (table,), operation, Gold(None, sql, md5), skills_of(sql), **({"grader": None} | fields)
    )


@pytest.fixture
def to(tmp_path: Path):
    """Writes tasks as own, converts them, and reads the result."""
    endings = {"own": "jsonl", "agentbench": "jsonl", "lifelong": "json", "verl": "parquet"}

    def run(format: str, *tasks: Task, **options: Any) -> tuple[list[Task], Conversion]:
        source, target = tmp_path / "in.jsonl", tmp_path / f"{format}.{endings[format]}"
        source.write_text("".join(f"{task.to_json()}\n" for task in tasks), "utf-8")
        conversion = convert(source, target, format, **options)
        return load_tasks(target), conversion

    return run


# --- what comes back ------------------------------------------------------------------------------

RELAXED = examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
many = st.lists(any_tasks(), min_size=1, max_size=3, unique_by=lambda task: task.id)


@RELAXED
@given(many)
@pytest.mark.parametrize("format", ["own", "verl"])
def test_own_and_verl_hold_everything(to, format: str, tasks: list[Task]):
    again, conversion = to(format, *tasks)
    assert [task.to_json() for task in again] == [task.to_json() for task in tasks]
    assert (conversion.losses, conversion.skipped) == ([], [])


@RELAXED
@given(many)
def test_lifelong_holds_single_tables_judged_its_own_way(to, tasks: list[Task]):
    held = [
        replace(
            task,
            tables=task.tables[:1],
            grader="lifelong",
            gold=replace(task.gold, answer=tuple((cell,) for cell in task.gold.answer))
            if task.is_question and task.grader != "lifelong"
            else task.gold
            if task.is_question
            else Gold(sql=SQL[task.operation], state_md5=task.gold.state_md5 or ""),
        )
        for task in tasks
    ]
    again, conversion = to("lifelong", *held)
    assert [task.to_json() for task in again] == [task.to_json() for task in held]
    assert conversion.losses == []


SQL = {
    "INSERT": "INSERT INTO t VALUES (1)",
    "UPDATE": "UPDATE t SET a = 1 WHERE b = 2",
    "DELETE": "DELETE FROM t WHERE a = 1",
}


@RELAXED
@given(many)
def test_agentbench_holds_texts_judged_its_own_way(to, tasks: list[Task]):
    held = []
    for task in tasks:
        texts = tuple(
            Table(
                table.name,
                tuple(Column(column.name) for column in table.columns),
                tuple(tuple(str(cell) for cell in row) for row in table.rows),
            )
            for table in task.tables
        )
        gold = Gold(("one", "2")) if task.is_question else Gold(None, SQL[task.operation], MD5)
        held.append(replace(task, tables=texts, gold=gold, skills=skills_of(gold.sql or ""), grader=None))
    again, conversion = to("agentbench", *held)
    assert [task.to_json() for task in again] == [task.to_json() for task in held]
    assert conversion.losses == []


@RELAXED
@given(many, st.sampled_from(["agentbench", "lifelong"]))
def test_whatever_comes_back_different_was_named(to, tasks: list[Task], format: str):
    try:
        again, conversion = to(format, *tasks, skip=True)
    except TaskError as error:
        assert f"the format {format} cannot hold" in str(error)
        return
    left_out = {loss.task for loss in conversion.skipped}
    before = [task for task in tasks if task.id not in left_out]
    assert [task.id for task in again] == [task.id for task in before]
    named = {(loss.task, loss.field) for loss in conversion.losses}
    for old, new in zip(before, again, strict=True):
        for field in ("question", "operation", "tables", "skills", "grader"):
            assert repr(getattr(old, field)) == repr(getattr(new, field)) or (old.id, field) in named
        for field in ("answer", "sql"):
            assert (
                repr(getattr(old.gold, field)) == repr(getattr(new.gold, field)) or (old.id, field) in named
            )


@pytest.fixture(scope="module")
def agentbench() -> list[Path]:
    missing = [name for name in ("dev.jsonl", "standard_part.jsonl") if not (AGENTBENCH / name).exists()]
    if missing:
        lacking("data", f"no {' and '.join(missing)} beside the checkout")
    return [AGENTBENCH / "dev.jsonl", AGENTBENCH / "standard_part.jsonl"]


def there_and_back(path: Path, folder: Path) -> Iterator[tuple[Task, Task]]:
    convert(path, folder / "own.jsonl")
    convert(folder / "own.jsonl", folder / "again.jsonl", "agentbench")
    assert load_tasks(folder / "own.jsonl") == load_tasks(path)
    return zip(load_tasks(path), load_tasks(folder / "again.jsonl"), strict=True)


def test_published_tasks_come_back_equal(agentbench: list[Path], tmp_path: Path):
    for path in agentbench:
        for task, again in there_and_back(path, tmp_path):
            assert replace(again, skills=task.skills) == task
            assert again.skills == task.skills or task.is_question


def test_published_tasks_come_back_with_their_skills(agentbench: list[Path], tmp_path: Path):
    for path in agentbench:
        for task, again in there_and_back(path, tmp_path):
            assert again == task


def test_published_tasks_as_lifelong_and_verl(
    agentbench: list[Path], tmp_path: Path, sqlite_database: Database
):
    """Whatever of them is written is right to its new grader and hash."""
    for path in agentbench:
        conversion = convert(path, tmp_path / "out.json", skip=True)
        assert {loss.field for loss in conversion.skipped} <= {"answer"}
        problems = [v for v in validate(load_tasks(tmp_path / "out.json"), sqlite_database) if v.problem]
        assert len(problems) <= 1  # a published hash that is wrong
        convert(path, tmp_path / "out.parquet")
        assert load_tasks(tmp_path / "out.parquet") == load_tasks(path)


# --- what a target cannot hold --------------------------------------------------------------------


def test_cells_become_text_in_agentbench_and_the_hash_follows(to):
    task = change("UPDATE prices SET price = 11 WHERE price > 9", table=PRICES, md5=MD5)
    (again,), conversion = to("agentbench", task)

    assert again.tables[0].rows == (("a", "9", "1"), ("b", "10", "0"))
    assert {column.type for column in again.tables[0].columns} == {"TEXT"}
    assert again.gold.state_md5 == state_hash([("a", "9", "1"), ("b", "11", "0")])
    assert list(conversion.warnings()) == [
        "task 'c', tables: columns become TEXT and cells text, as the benchmark makes every table",
        "task 'c', state_md5: computed anew, for cells that are text",
    ]


@pytest.mark.parametrize("format", ["agentbench", "lifelong"])
def test_a_change_without_a_hash_gets_one(to, format: str):
    (again,), _ = to(format, change("DELETE FROM pets WHERE kind = 'dog'"))
    assert again.gold.state_md5 == state_hash([("Tom", "cat")])
    (emptied,), _ = to(format, change("DELETE FROM pets"))
    assert emptied.gold.state_md5 == ""


@pytest.mark.parametrize(
    ("sql", "labels", "direct"),
    [
        ("SELECT price FROM fares WHERE line = '007'", ("2.50",), (2.5,)),
        ("SELECT ROUND(price) FROM fares WHERE line = '8'", ("4",), (4,)),
        ("SELECT line FROM fares WHERE price < 3", ("007",), ("007",)),
        ("SELECT COUNT(*) FROM fares", ("2",), (2,)),
    ],
)
def test_what_the_database_gives_is_right_to_lifelongs_grader(to, sqlite_database, sql, labels, direct):
    fares = Table(
        "fares", (Column("line"), Column("price", "DECIMAL(8,2)")), (("007", "2.50"), ("8", "4.00"))
    )
    (again,), _ = to("lifelong", question(table=fares, sql=sql, answer=labels))
    assert again.gold.answer == tuple((cell,) for cell in direct)
    assert next(iter(validate([again], sqlite_database))).problem is None


@pytest.mark.parametrize(
    ("sql", "answer", "labels"),
    [
        ("SELECT price FROM fares", ((2.5,), (4,)), ("2.50", "4.00")),
        ("SELECT seats FROM fares", ((3,), (5,)), ("3", "5")),
        ("SELECT AVG(price) FROM fares WHERE seats > 1", ((3.25,),), ("3.25",)),
        (None, ((3,), (5,)), ("3", "5")),
    ],
)
def test_what_the_database_gives_is_right_to_agentbenchs_graders(to, sqlite_database, sql, answer, labels):
    """The grader of the text protocol compares several values as they are written."""
    columns = (Column("price", "DECIMAL(8,2)"), Column("seats", "INT"))
    fares = Table("fares", columns, (("2.50", 3), ("4.00", 5)))
    (again,), _ = to("agentbench", question(table=fares, sql=sql, answer=answer, grader="lifelong"))
    assert again.gold.answer == labels
    as_asked = replace(again, gold=replace(again.gold, sql=sql), grader="agentbench_text")
    assert next(iter(validate([as_asked], sqlite_database))).problem is None


def test_a_question_with_rows_and_sql_in_agentbench(to):
    sql = "SELECT name FROM pets"
    task = question(sql=sql, answer=(("Rex",), ("Tom",), ("Ada",)), grader="lifelong", skills=("select",))
    (again,), conversion = to("agentbench", task)
    assert again.gold == Gold(("Rex", "Tom", "Ada"))
    assert [(loss.task, loss.field) for loss in conversion.losses] == [
        ("q", "answer"),
        ("q", "sql"),
        ("q", "grader"),
    ]
    assert conversion.losses[2].text == "lifelong becomes the protocol's own"


TWO_TABLES = replace(question(), tables=(PETS, PRICES))
NULL = replace(question(), tables=(Table("t", (Column("a"), Column("b")), (("x", "y"), ("x", None))),))


@pytest.mark.parametrize(
    ("format", "task", "message"),
    [
        ("lifelong", TWO_TABLES, "task 'q', tables: it has 2 tables; LifelongAgentBench's tasks have one"),
        ("lifelong", question(answer=("Oslo, Rome",)), r"answer: \['Oslo, Rome'\] could never be right"),
        (
            "lifelong",  # whose rows have an order
            question(sql="SELECT name FROM pets WHERE kind = 'dog'", answer=("Ada", "Rex")),
            r"to the grader lifelong \['Ada', 'Rex'\] is not what the gold SQL gives: \[\('Rex',\), ",
        ),
        ("lifelong", change("DELETE FROM nothing"), "sql: the gold SQL fails: .*nothing"),
        ("agentbench", NULL, "tables: table 't', row 2, column 'b' is NULL; AgentBench's cells are text"),
        ("agentbench", question(answer=()), "answer: it is empty"),
        ("agentbench", question(answer=((1, 2),), grader="lifelong"), "answer: its rows have 2 cells"),
        ("agentbench", question(answer=((None,),), grader="lifelong"), "answer: it holds NULL"),
        (
            "agentbench",  # as texts, '9' comes after '10'
            question(
                table=PRICES,
                sql="SELECT item FROM prices ORDER BY price LIMIT 1",
                answer=(("a",),),
                grader="lifelong",
            ),
            r"tables: with all cells as text the gold SQL gives \[\('b',\)\], the answer is \['a'\]",
        ),
        (
            "agentbench",
            change("DELETE FROM prices ORDER BY price LIMIT 1", table=PRICES),
            "tables: with all cells as text the gold SQL makes other rows",
        ),
    ],
)
def test_what_would_be_another_task_is_an_error(to, tmp_path: Path, format: str, task: Task, message: str):
    fine = question(id="fine")
    with pytest.raises(TaskError, match=f"the format {format} cannot hold 1 of 2 tasks.*\n.*{message}"):
        to(format, task, fine)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]  # nothing half-written

    again, conversion = to(format, task, fine, skip=True)
    assert [task.id for task in again] == ["fine"]
    assert [loss.task for loss in conversion.skipped] == [task.id]
    with pytest.raises(TaskError, match="cannot hold 1 of 1 tasks:"):
        to(format, task, skip=True)


def test_warnings_name_the_first_tasks_and_count_the_rest(to):
    tasks = [question(id=f"q{number}", grader="agentbench_fc") for number in range(8)]
    _, conversion = to("agentbench", *tasks)
    assert list(conversion.warnings()) == [
        "tasks 'q0', 'q1', 'q2', 'q3', 'q4' and 3 more, grader: agentbench_fc becomes the protocol's own"
    ]


# --- verl -----------------------------------------------------------------------------------------


def test_verl_finds_the_columns_and_types_it_reads(to, tmp_path: Path):
    ask = question(sql="SELECT 1", answer=((1, "a"),), grader="lifelong", skills=("select",))
    to("verl", ask, change("DELETE FROM pets", md5=""), split="test", protocol="tools")

    schema = pyarrow.parquet.read_schema(tmp_path / "verl.parquet")
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        "data_source": "string",
        "prompt": "list<element: struct<role: string, content: string>>",
        "ability": "string",
        "reward_model": "struct<style: string, ground_truth: string>",
        "extra_info": "struct<split: string, index: int64, id: string, operation: string, "
        "skills: list<element: string>, task: string, protocol: string, tools_kwargs: struct<task: string>>",
    }
    # as verl's RLHFDataset opens it
    rows = load_dataset(
        "parquet", data_files=str(tmp_path / "verl.parquet"), cache_dir=str(tmp_path / "cache")
    )["train"]
    assert rows[0]["prompt"] == get_protocol("tools").messages(ask)
    assert rows[0]["reward_model"]["style"] == "rule"
    assert json.loads(rows[0]["reward_model"]["ground_truth"]) == {
        "answer": [[1, "a"]],
        "sql": "SELECT 1",
        "state_md5": None,
        "grader": "lifelong",
    }
    assert [row["extra_info"]["index"] for row in rows] == [0, 1]
    assert rows[1]["extra_info"]["tools_kwargs"] == {"task": rows[1]["extra_info"]["task"]}
    assert rows[1]["extra_info"] | {"task": "", "tools_kwargs": {}} == {
        "split": "test",
        "index": 1,
        "id": "c",
        "operation": "DELETE",
        "skills": ["delete"],
        "task": "",
        "protocol": "tools",
        "tools_kwargs": {},
    }
    assert set(rows["data_source"]) == {"trl_dbbench"}


@pytest.mark.parametrize("extra", [{}, {"extra_info": {"index": 0}}])
def test_verl_files_of_others_hold_no_tables(tmp_path: Path, extra: dict):
    row = {
        "data_source": "gsm8k",
        "prompt": [],
        "reward_model": {"style": "rule", "ground_truth": "1"},
    } | extra
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "other.parquet")
    with pytest.raises(TaskError, match=r"other\.parquet, row 1: has no 'extra_info\.task'"):
        convert(tmp_path / "other.parquet", tmp_path / "out.jsonl")


# --- CSV ------------------------------------------------------------------------------------------

ORDERS = """id,item,price,day,zip,note
1,lamp,9.5,2024-01-02,01234,
2,"chair, red",20,2024-02-03,00050,late
3,desk,,2024-03-04,99999,
"""
QUESTIONS = """question,sql,answer
How many orders?,SELECT COUNT(*) FROM orders,
What did the chair cost?,,20
Which items have no price?,SELECT item FROM orders WHERE price IS NULL,desk
Delete the late ones.,DELETE FROM orders WHERE note = 'late',
"""


@pytest.fixture
def from_csv(tmp_path: Path):
    def run(
        questions: str = QUESTIONS, name: str = "questions.csv", **tables: str
    ) -> tuple[list[Task], list[str]]:
        (tmp_path / name).write_text(questions, "utf-8")
        for table, text in (tables or {"orders": ORDERS}).items():
            (tmp_path / f"{table}.csv").write_text(text, "utf-8")
        files = [tmp_path / f"{table}.csv" for table in tables or ["orders"]]
        conversion = convert(tmp_path / name, tmp_path / "tasks.jsonl", tables=files)
        return load_tasks(tmp_path / "tasks.jsonl"), list(conversion.warnings())

    return run


def test_csv_files_become_tasks(from_csv, sqlite_database: Database):
    tasks, warnings = from_csv()
    (orders,) = tasks[0].tables
    assert [(column.name, column.type) for column in orders.columns] == [
        ("id", "INT"),
        ("item", "TEXT"),
        ("price", "DOUBLE"),
        ("day", "DATE"),
        ("zip", "TEXT"),
        ("note", "TEXT"),
    ]
    assert orders.rows[1:] == (
        (2, "chair, red", 20.0, "2024-02-03", "00050", "late"),
        (3, "desk", None, "2024-03-04", "99999", None),
    )
    assert [task.id for task in tasks] == ["1", "2", "3", "4"]
    assert [task.gold.answer for task in tasks] == [((3,),), ((20,),), (("desk",),), None]
    assert [task.operation for task in tasks] == ["SELECT"] * 3 + ["DELETE"]
    assert tasks[2].skills == ("select", "where_single_condition")
    assert warnings == []
    assert [v.problem for v in validate(tasks, sqlite_database)] == [None] * 4


def test_types_in_the_header_win(from_csv):
    header = 'id:BIGINT,"price:DECIMAL(10,2)",paid:BOOL,at:DATETIME,ratio 2:1,code:TEXT\n'
    (task, *_), _ = from_csv("question,answer\nHow?,1\n", t=header + "7,1.50,true,2024-01-02 03:04:05,x,12\n")
    (table,) = task.tables
    assert [(column.name, column.type) for column in table.columns] == [
        ("id", "BIGINT"),
        ("price", "DECIMAL(10,2)"),
        ("paid", "BOOL"),
        ("at", "DATETIME"),
        ("ratio 2:1", "TEXT"),
        ("code", "TEXT"),
    ]
    assert table.rows == ((7, "1.50", 1, "2024-01-02 03:04:05", "x", "12"),)


@pytest.mark.parametrize(
    ("cells", "type"),
    [
        (["1", "-2", "0"], "INT"),
        (["2147483647", "-2147483648"], "INT"),
        (["2147483648"], "BIGINT"),
        (["9223372036854775808"], "TEXT"),
        (["1" * 30], "TEXT"),
        (["1" * 30, "1.5"], "TEXT"),
        (["1", "2.5"], "DOUBLE"),
        ([".5", "-3.25", "3."], "DECIMAL(10,2)"),
        (["0.5", "-1e-05", "3"], "DOUBLE"),
        (["1E5"], "TEXT"),
        (["1.10"], "DECIMAL(10,2)"),
        (["0.5", "9007199254740993"], "TEXT"),
        (["9007199254740993"], "BIGINT"),
        (["3", "NA", ""], "INT"),
        (["DE", "NA"], "TEXT"),
        (["2024-01-02 03:04:05"], "DATETIME"),
        (["2024-01-02 03:04:05.25", "2024-01-02T03:04:05"], "DATETIME(2)"),
        (["31.12.2024", "1.2.2024"], "DATE"),
        (["31.12.2024 7:05"], "DATETIME"),
        (["32.12.2024"], "TEXT"),
        (["1e999"], "TEXT"),
        (["007"], "TEXT"),
        (["+49 30 1"], "TEXT"),
        (["+1"], "TEXT"),
        (["nan"], "TEXT"),
        (["1,000"], "TEXT"),
        (["2024-02-29"], "DATE"),
        (["2023-02-29"], "TEXT"),
        (["20240229"], "INT"),
        (["2024-01-01", "5"], "TEXT"),
        (["٣"], "TEXT"),
        (["", ""], "TEXT"),
        (["", "4"], "INT"),
    ],
)
def test_inferred_types(from_csv, cells: list[str], type: str):
    rows = "".join(f'"{cell}","x"\n' for cell in cells)
    (task,), _ = from_csv("question,answer\nHow?,1\n", t="a,b\n" + rows)
    (table,) = task.tables
    assert table.columns[0].type == type
    if type == "TEXT":
        assert [row[0] for row in table.rows] == [cell or None for cell in cells]


def test_questions_as_jsonl_over_several_tables(from_csv):
    lines = [
        {"id": "joined", "question": "Who?", "sql": "SELECT a.n FROM a JOIN b ON a.id = b.id"},
        {"id": "one", "question": "All?", "answer": [[1, "x"], [2, "y"]], "tables": ["a"]},
        {"id": "text", "question": "Where?", "answer": "[unknown]", "tables": "b"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    tasks, _ = from_csv(text, "questions.jsonl", a="id,n\n1,x\n2,y\n", b="id\n2\n")
    assert [[table.name for table in task.tables] for task in tasks] == [["a", "b"], ["a"], ["b"]]
    assert [task.gold.answer for task in tasks] == [(("y",),), ((1, "x"), (2, "y")), (("[unknown]",),)]


def test_an_answer_with_a_comma_gets_a_grader_that_takes_it(from_csv, sqlite_database: Database):
    tasks, _ = from_csv("question,sql\nWhich?,SELECT item FROM orders WHERE id = 2\n")
    assert (tasks[0].gold.answer, tasks[0].grader) == (("chair, red",), None)
    assert [v.problem for v in validate(tasks, sqlite_database)] == [None]


def test_answers_that_disagree_with_their_sql_are_named(from_csv):
    _, warnings = from_csv(
        "id,question,sql,answer\na,How many?,SELECT COUNT(*) FROM orders,4\nb,Which?,SELECT id FROM orders LIMIT 0,\n"
    )
    assert warnings == [
        "task 'a', answer: the SQL gives [(3,)], the answer says [(4,)]",
        "task 'b', answer: the SQL gives no rows, so the answer is an empty list",
    ]


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ("question,anwser\nHow?,1\n", "line 2: unknown field 'anwser'; allowed: question, answer, sql"),
        ("question,answer\n,1\n", "line 2: the field 'question' is missing"),
        ("question,answer\nHow?,\n", "line 2: needs an 'answer' or the 'sql' that gives it"),
        ("question,sql\nHow?,SELEC 1\n", "line 2: 'sql' is not one statement of SELECT"),
        ("question,sql\nHow?,SELECT nothing FROM orders\n", "line 2: the gold SQL fails: .*nothing"),
        ("question,sql,operation\nHow?,DELETE FROM orders,select\n", "said to be SELECT, the SQL is DELETE"),
        ("question,operation\nHow?,drop\n", "line 2: unknown operation 'drop'; allowed: SELECT"),
        ("question,operation\nHow?,delete\n", "DELETE needs its gold solution 'sql'"),
        ("question,sql,answer\nHow?,DELETE FROM orders,3\n", "takes no 'answer'"),
        ("question,answer,tables\nHow?,1,order\n", "there is no table 'order'; given are: orders"),
        ("id,question,answer\na,How?,1\na,What?,1\n", "line 3: the id 'a' stands at line 2 already"),
        ('question,sql\nWhich?,"SELECT id, item FROM orders"\n', "could never be right"),
        ("question,answer\n", "holds no questions"),
        ("", "is empty; its first line must name the columns"),
        ("question,answer\nHow?\n", "line 2: has 1 cells, the header 2 columns"),
        ('question,answer\n"How?,1\n', "not CSV"),
        ("question,Question\nHow?,1\n", "the column 'question' is there twice"),
        (
            "question,\nHow?,1\n",
            "line 2: needs an 'answer' or the 'sql' that gives it",
        ),  # the nameless is left out
    ],
)
def test_questions_that_cannot_be_used(from_csv, tmp_path: Path, questions: str, message: str):
    with pytest.raises(TaskError, match=f"questions.csv.*{message}"):
        from_csv(questions)
    assert not (tmp_path / "tasks.jsonl").exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("a:INT\nx\n", r"t\.csv, line 2, column 'a': 'x' is not of type INT"),
        ("a:ITN\n1\n", "unknown type 'ITN' of the column 'a'; allowed: INT, .*'a:ITN:TEXT'"),
        ("a:DATE\n2023-02-29\n", "'2023-02-29' is not of type DATE"),
        ("a:INT,A:TEXT\n1,2\n", "the column 'a' is there twice"),
        ("a,b\n1\n", "line 2: has 1 cells, the header 2 columns"),
        ("", "is empty"),
    ],
)
def test_tables_that_cannot_be_used(from_csv, table: str, message: str):
    with pytest.raises(TaskError, match=message):
        from_csv(t=table)


def test_files_that_are_no_text(from_csv, tmp_path: Path):
    (tmp_path / "latin.csv").write_bytes(b"name\nJos\x81\n")
    (tmp_path / "q.csv").write_text("question,answer\nHow?,1\n")
    with pytest.raises(TaskError, match=r"latin\.csv cannot be read as UTF-8 text, nor as cp1252"):
        convert(tmp_path / "q.csv", tmp_path / "t.jsonl", tables=[tmp_path / "latin.csv"])
    with pytest.raises(TaskError, match=r"there is no file '.*gone\.csv'"):
        convert(tmp_path / "q.csv", tmp_path / "t.jsonl", tables=[tmp_path / "gone.csv"])
    with pytest.raises(TaskError, match=r"tables are read from \.csv or \.tsv"):
        convert(tmp_path / "q.csv", tmp_path / "t.jsonl", tables=[tmp_path / "a.xlsx"])


# --- files and the command ------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.jsonl").write_text(question().to_json() + "\n")
    return tmp_path / "own.jsonl"


@pytest.mark.parametrize(
    ("out", "format", "message"),
    [
        ("out.txt", None, "says no format; name one with --to"),
        (
            "out.jsonl",
            "agent",
            "unknown task format 'agent'; allowed: own, agentbench, lifelong, verl, spider, bird, critic, spider2, or the dotted path",
        ),
        (
            "out.jsonl",
            "lifelong",
            r"'.*out\.jsonl' is not a name for the format lifelong.*Call it '.*out\.json'",
        ),
        ("no/out.jsonl", None, "it must be a file in a folder that is there"),
        ("own.jsonl", None, "is the file to read; write to another"),
    ],
)
def test_targets_that_cannot_be_written(own: Path, out: str, format: str | None, message: str):
    with pytest.raises(ConfigError, match=message):
        convert(own, own.parent / out, format)


def test_a_protocol_for_tasks_without_prompts(own: Path):
    with pytest.raises(
        ConfigError, match="--protocol has no effect: tasks in the format own have no prompts"
    ):
        convert(own, own.parent / "out.jsonl", protocol="tools")


def test_a_table_of_the_folder_that_is_read_is_not_replaced(own: Path):
    (folder := own.parent / "folder").mkdir()
    convert(own, folder / "test.parquet", split="test")
    with pytest.raises(ConfigError, match=r"test\.parquet' is the file to read; write to another"):
        convert(folder, folder / "test.parquet", split="test")


def test_questions_without_tables_are_asked_for_them(tmp_path: Path):
    with pytest.raises(ConfigError, match="name the CSV files of the tables that it asks of with --tables"):
        convert(tmp_path / "questions.csv", tmp_path / "tasks.jsonl")


def test_a_file_is_replaced_whole_or_not_at_all(own: Path, tmp_path: Path):
    target = tmp_path / "out.jsonl"
    target.write_text("before")
    with pytest.raises(TaskError):
        convert(tmp_path / "gone.jsonl", target)
    assert target.read_text() == "before"
    convert(own, target)
    assert load_tasks(target) == load_tasks(own)
    assert {path.name for path in tmp_path.iterdir()} == {"own.jsonl", "out.jsonl"}
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(own.stat().st_mode)


def test_the_command(tmp_path: Path):
    (tmp_path / "orders.csv").write_text(ORDERS)
    (tmp_path / "questions.csv").write_text(QUESTIONS)
    files = {name: str(tmp_path / name) for name in ("questions.csv", "tasks.jsonl", "orders.csv")}
    command = ["convert", files["questions.csv"], files["tasks.jsonl"], "--tables", files["orders.csv"]]
    run = CliRunner().invoke(app, command)
    assert (run.exit_code, run.stderr) == (0, "")
    assert run.stdout == f"{tmp_path}/tasks.jsonl: 4 tasks in the format own\n"

    (tmp_path / "OLD.CSV").write_text(QUESTIONS)
    with pytest.raises(ConfigError, match="is a table of questions; name the CSV files of the tables"):
        convert(tmp_path / "OLD.CSV", tmp_path / "no.jsonl")

    target = tmp_path / "tasks.json"
    run = CliRunner().invoke(app, ["convert", str(tmp_path / "tasks.jsonl"), str(target)])
    assert run.stdout == f"{target}: 4 tasks in the format lifelong\n"
    run = CliRunner().invoke(
        app,
        ["convert", str(target), str(tmp_path / "ab.jsonl"), "--to", "agentbench", "--skip"],
    )
    assert isinstance(run.exception, TaskError)  # every order but one lacks a note
