"""Generated tasks: what they hold, that they can be had again, and that every gold is right on real databases."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from worlds.tiny import tiny_vocabulary, tiny_words

from trl_dbbench.cli import app
from trl_dbbench.data.generate import CHUNK, LEVELS, generate_tasks
from trl_dbbench.data.generate.checks import gold_answer, gold_state
from trl_dbbench.data.generate.fresh import FreshTasks
from trl_dbbench.data.generate.slips import wrong_statements
from trl_dbbench.database import Database
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError
from trl_dbbench.mysqlite import values
from trl_dbbench.tasks import Column, Gold, Table, Task, load_tasks
from trl_dbbench.tasks.skills import SKILLS, skills_of

WORLDS = ("worlds.tiny.level", "worlds.multi.level", "worlds.tiny_sql.level")

HUES = Table(
    "hues",
    (Column("name", "VARCHAR(20)"), Column("warm", "INT"), Column("likes", "INT"), Column("mixed", "DATE")),
    (
        ("red", 1, 7, "2024-01-05"),
        ("blue", 0, 9, "2024-02-01"),
        ("teal", 0, 2, "2024-03-09"),
        ("pink", 1, 2, "2024-04-01"),
        ("sky, light", 0, 5, "2024-05-01"),
        ("gray", 0, None, None),
    ),
)


def gold(database: Database, sql: str) -> Gold | None:
    task = Task("hues", "?", (HUES,), "SELECT", Gold())
    with database.sandbox(task) as sandbox:
        return gold_answer(sandbox, sql) if sql.startswith("SELECT") else gold_state(sandbox, sql, HUES)


@pytest.fixture(scope="module")
def tasks(full_tasks: list[Task]) -> list[Task]:
    return full_tasks[:300]


def key(task: Task) -> tuple:
    return task.question, task.tables[0].name, task.tables[0].rows


# --- what is kept, what is dropped ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT COUNT(*) FROM hues WHERE warm = 1", ((2,),)),
        ("SELECT name FROM hues WHERE likes < 9 ORDER BY likes DESC LIMIT 1", (("red",),)),
        ("SELECT ROUND(AVG(likes), 2) FROM hues WHERE warm = 0", ((5.33,),)),
        ("SELECT warm, SUM(likes) FROM hues GROUP BY warm ORDER BY warm", ((0, 16), (1, 9))),
    ],
)
def test_a_fair_question_gets_its_answer(sqlite_database: Database, sql: str, answer: tuple) -> None:
    found = gold(sqlite_database, sql)
    assert found is not None and found.answer == answer


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT name FROM hues WHERE likes > 90", "nothing is found"),
        ("SELECT name FROM hues WHERE warm = 1", "two rows without an order"),
        ("SELECT COUNT(*) FROM hues WHERE warm >= 0", "the WHERE changes nothing"),
        ("SELECT COUNT(*) FROM hues WHERE warm = 1 AND likes < 90", "half of the WHERE changes nothing"),
        ("SELECT name FROM hues WHERE likes < 7 ORDER BY likes LIMIT 1", "two rows tie for the first place"),
        (
            "SELECT name FROM hues WHERE warm = 0 ORDER BY likes DESC LIMIT 1",
            "a NULL is among what is ordered",
        ),
        ("SELECT name FROM hues WHERE warm = 1 ORDER BY likes LIMIT 5", "the LIMIT cuts nothing"),
        ("SELECT name FROM hues WHERE warm = 1 ORDER BY likes, name", "the second column decides nothing"),
        (
            "SELECT warm, COUNT(*) FROM hues GROUP BY warm HAVING COUNT(*) > 1 ORDER BY warm",
            "HAVING keeps all groups",
        ),
        ("SELECT MAX(warm) FROM hues WHERE name = 'red'", "of one value every aggregate is the same"),
        ("SELECT mixed FROM hues WHERE name = 'red'", "a date is an object on MySQL and a text elsewhere"),
        ("SELECT name FROM hues WHERE likes = 5", "the grader would cut the answer at its comma"),
        ("UPDATE hues SET warm = 1 WHERE name = 'red'", "the value is there already"),
        ("UPDATE hues SET warm = 3 WHERE warm >= 0", "the WHERE changes nothing"),
        ("UPDATE hues SET warm = 3, likes = 7 WHERE name = 'red'", "one assignment changes nothing"),
        ("DELETE FROM hues WHERE warm >= 0", "all rows go"),
        ("DELETE FROM hues WHERE likes > 90", "no row goes"),
        ("DELETE FROM hues WHERE likes < 7 ORDER BY likes LIMIT 1", "two rows tie for the first place"),
    ],
)
def test_what_a_wrong_statement_would_answer_as_well_is_dropped(
    sqlite_database: Database, sql: str, why: str
) -> None:
    assert gold(sqlite_database, sql) is None, why


def test_the_slips_that_are_tried() -> None:
    import sqlglot

    tree = sqlglot.parse_one("SELECT MAX(a) FROM t WHERE b = 1 AND c > 2", dialect="mysql")
    assert set(wrong_statements(tree)) == {
        "SELECT MIN(a) FROM t WHERE b = 1 AND c > 2",
        "SELECT MAX(a) FROM t",
        "SELECT MAX(a) FROM t WHERE b = 1",
        "SELECT MAX(a) FROM t WHERE c > 2",
        "SELECT MAX(a) FROM t WHERE b = 1 OR c > 2",
    }


# --- skills ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_skills_read_off_the_gold_are_those_recorded(tasks: list[Task], tiny_tasks: list[Task]) -> None:
    for task in [*tasks, *tiny_tasks]:
        assert task.gold.sql is not None
        assert skills_of(task.gold.sql) == task.skills
    assert {skill for task in tasks for skill in task.skills} == set(SKILLS)


@pytest.mark.parametrize("skill", SKILLS)
def test_one_task_of_each_skill(skill: str) -> None:
    (task,) = generate_tasks(1, seed=3, skills=[skill], single_skill=True)
    print(f"{task.question}\n{task.gold.sql}\n{task.gold.answer}")  # pytest -s -k one_task shows them
    assert skill in task.skills
    assert len(task.skills) <= 5


def test_single_skill_has_no_more_than_it_needs() -> None:
    found = {task.skills for task in generate_tasks(20, skills=["where_single_condition"], single_skill=True)}
    assert found <= {(operation, "where_single_condition") for operation in SKILLS[:4]}
    (limited,) = generate_tasks(1, skills=["limit_and_offset"], single_skill=True)
    assert len(limited.skills) == 3  # a select and an order, without which there is no first row


def test_skills_and_max_skills_bound_what_a_task_has() -> None:
    asked = ["select", "where_multiple_conditions", "order_by_single_column", "column_alias"]
    tasks = generate_tasks(40, skills=asked, max_skills=3)
    assert all(set(task.skills) <= set(asked) and len(task.skills) <= 3 for task in tasks)
    assert any("column_alias" in task.skills for task in tasks)
    assert max(len(task.skills) for task in generate_tasks(40, max_skills=2)) == 2


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"num_tasks": 0}, "at least 1"),
        ({"skills": ["select", "joins"]}, "unknown skill 'joins'; allowed: select, insert"),
        ({"skills": []}, "list of skills is empty"),
        ({"skills": ["limit_only"], "max_skills": 1}, "limit_only cannot be had with 1 skills.*at least 3"),
        ({"skills": ["delete"], "max_skills": 1, "single_skill": True}, "delete cannot be had"),
        ({"max_skills": 0}, "must be at least 1"),
        ({"split": "dev"}, "unknown split 'dev'; allowed: train, test"),
        (
            {"level": "small"},
            "unknown level 'small'; allowed: full, plain, relational, or the dotted path of your own",
        ),
        (
            {"level": "worlds.tiny.level", "skills": ["subquery_nested"]},
            "level 'tiny' has no tasks of subquery_nested",
        ),
        ({"workers": 0}, "number of workers is 0"),
    ],
)
def test_what_cannot_be_had_is_refused(request_: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate_tasks(**{"num_tasks": 1} | request_)


# --- again, and apart -----------------------------------------------------------------------------

SCRIPT = """
import hashlib
from trl_dbbench.data.generate import generate_tasks
text = "".join(task.to_json() for task in generate_tasks(12, seed=4))
print(hashlib.md5(text.encode()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_same_seed_same_bytes(hash_seed: str) -> None:
    here = "".join(task.to_json() for task in generate_tasks(12, seed=4))
    there = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.strip() == hashlib.md5(here.encode()).hexdigest()
    assert here != "".join(task.to_json() for task in generate_tasks(25, seed=5))


@pytest.mark.slow
def test_workers_change_nothing(tiny_tasks: list[Task]) -> None:
    """`tiny_tasks` are made by two."""
    assert len(tiny_tasks) > CHUNK
    assert generate_tasks(len(tiny_tasks), level="worlds.tiny.level") == tiny_tasks


@pytest.mark.slow
@given(seed=st.integers(0, 2**40), other=st.integers(0, 2**40), level=st.sampled_from([*LEVELS, *WORLDS]))
@examples(5)
def test_train_and_test_share_nothing(seed: int, other: int, level: str) -> None:
    train = generate_tasks(8, seed, level=level)
    test = generate_tasks(8, other, level=level, split="test")
    assert not {task.question for task in train} & {task.question for task in test}
    assert not {key(task)[1:] for task in train} & {key(task)[1:] for task in test}


def test_no_task_twice(tasks: list[Task], tiny_tasks: list[Task]) -> None:
    many = [*tasks, *tiny_tasks]
    assert len({key(task) for task in many}) == len({task.id for task in many}) == len(many)


# --- right on real databases ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_busy_machine_makes_the_same_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs hold it for 30 seconds of each statement, and an agent's limit is 5."""
    tasks, limit = generate_tasks(6, seed=2), values.time_limit
    monkeypatch.setattr(values, "time_limit", lambda seconds: limit(seconds - 30))
    assert generate_tasks(6, seed=2) == tasks
    fresh = FreshTasks.of("generate://plain?seed=2")
    assert fresh.task(0).question


@pytest.mark.parametrize("kind", ["sqlite", "local"])
def test_every_gold_is_right(tasks: list[Task], kind: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(f"{kind}_database")
    assert [(v.task.gold.sql, v.problem) for v in validate(tasks, database) if v.problem] == []


def test_tables_look_like_tables(tasks: list[Task]) -> None:
    tables = [task.tables[0] for task in tasks]
    cells = [cell for table in tables for row in table.rows for cell in row]
    texts = [cell for cell in cells if isinstance(cell, str)]
    assert None in cells
    assert any("'" in text for text in texts) and any('"' in text for text in texts)
    assert any(not text.isascii() for text in texts)
    types = {column.type.split("(")[0] for table in tables for column in table.columns}
    assert types >= {"INT", "VARCHAR", "TEXT", "DECIMAL", "DATE", "FLOAT"}


# --- level tiny -----------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**40), split=st.sampled_from(["train", "test"]))
@examples(10)
def test_tiny_tasks_keep_to_their_vocabulary(seed: int, split: str) -> None:
    vocabulary = set(tiny_vocabulary())
    for task in generate_tasks(15, seed, level="worlds.tiny.level", split=split):
        texts = [task.prompt(), task.gold.sql, str(list(task.gold.answer or ())), str(task.tables[0].rows)]
        assert {word for text in texts for word in tiny_words(text or "")} <= vocabulary


def test_tiny_is_tiny(tiny_tasks: list[Task]) -> None:
    assert len(tiny_vocabulary()) <= 600
    for task in tiny_tasks:
        (table,) = task.tables
        assert 3 <= len(table.rows) <= 6 and 3 <= len(table.columns) <= 4
        assert len(tiny_words(task.prompt())) <= 60


# --- the command ----------------------------------------------------------------------------------


def test_the_command_writes_the_whole_file_or_none(tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    arguments = [
        "generate",
        "--num-tasks",
        "5",
        "--seed",
        "2",
        "--level",
        "worlds.tiny.level",
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert load_tasks(out) == generate_tasks(5, seed=2, level="worlds.tiny.level")
    failed = CliRunner().invoke(app, [*arguments[:-1], str(tmp_path / "none.jsonl"), "--skills", "joins"])
    assert isinstance(failed.exception, ConfigError)
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]
