"""Parts of a task file: by skill, and two halves that share nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from databases import table
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks import Gold, Table, Task, load_tasks
from trl_dbbench.tasks.skills import skills_of
from trl_dbbench.tasks.split import select_tasks, skill_counts, split_tasks

RECIPES = Path(__file__).parents[2] / "recipes"
PETS = table("pets", "name TEXT, age INT", ("Rex", 3))


def task(number: int, sql: str, question: str | None = None, of: Table = PETS) -> Task:
    return Task(
        f"t{number}", question or f"Question {number}?", (of,), "SELECT", Gold((), sql), skills_of(sql)
    )


SEVERAL = [
    task(1, "SELECT name FROM pets"),
    task(2, "SELECT age FROM pets"),
    task(3, "SELECT age FROM pets WHERE age > 3"),
    task(4, "SELECT age FROM pets LIMIT 1"),
]


def ids(tasks: list[Task]) -> list[str]:
    return [each.id for each in tasks]


def test_tasks_are_counted_for_each_of_their_skills() -> None:
    counts = skill_counts([*SEVERAL, task(5, "not SQL")])
    assert counts["operation"] == {"SELECT": 5}
    assert counts["skill"] == {"select": 4, "where_single_condition": 1, "limit_only": 1, "(none)": 1}


def test_tasks_of_one_skill_and_skills_with_enough_tasks() -> None:
    assert ids(select_tasks(SEVERAL, single=True)) == ["t1", "t2"]
    assert ids(select_tasks(SEVERAL, min_tasks=3)) == ["t1", "t2", "t3", "t4"]  # all have select
    with pytest.raises(ConfigError, match=r"no task is left of 4: the most frequent is select \(2\)"):
        select_tasks(SEVERAL, single=True, min_tasks=3)
    with pytest.raises(ConfigError, match="none has exactly one skill"):
        select_tasks(SEVERAL[2:], single=True)


def test_the_commands(tmp_path: Path) -> None:
    source, single = RECIPES / "tiny/train.jsonl", tmp_path / "single.jsonl"
    result = CliRunner().invoke(app, ["skills", str(source), "--single", "--out", str(single)])
    assert result.exit_code == 0, result.output
    assert f"{single}: {len(load_tasks(single))} tasks" in result.output
    assert {len(each.skills) for each in load_tasks(single)} == {1}
    halves = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    command = ["split", str(source), "--out-train", str(halves[0]), "--out-test", str(halves[1])]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "No table, no question and no gold SQL is in both files." in result.output
    assert len(load_tasks(halves[0])) + len(load_tasks(halves[1])) == len(load_tasks(source))


# --- two halves -------------------------------------------------------------------------------------


def shares(tasks: list[Task], counts: dict, all_counts: dict) -> list[float]:
    return [
        counts[kind][name] / count
        for kind in all_counts
        for name, count in all_counts[kind].items()
        if count > 20
    ]


@pytest.mark.parametrize("test_size", [0.1, 0.3])
def test_halves_share_no_table_question_or_statement_and_are_alike(test_size: float) -> None:
    tasks = load_tasks(RECIPES / "tiny/train.jsonl")
    halves = split_tasks(tasks, test_size)
    assert not halves.shares_tables
    tables, questions = (
        [{f(t) for t in half} for half in (halves.train, halves.test)] for f in (tables_of, question)
    )
    assert tables[0].isdisjoint(tables[1])
    assert questions[0].isdisjoint(questions[1])
    assert len(halves.test) == pytest.approx(test_size * len(tasks), rel=0.1)
    parts = shares(halves.test, skill_counts(halves.test), skill_counts(tasks))
    assert all(test_size * 0.7 < part < test_size * 1.3 for part in parts), parts


def tables_of(task: Task) -> tuple:
    return task.tables


def question(task: Task) -> tuple:
    return task.question, task.gold.sql


def test_a_split_is_a_function_of_the_seed() -> None:
    tasks = load_tasks(RECIPES / "tiny/train.jsonl")[:200]
    assert split_tasks(tasks, seed=1) == split_tasks(tasks, seed=1)
    assert split_tasks(tasks, seed=1).test != split_tasks(tasks, seed=2).test


def test_tied_tasks_stay_together_through_others() -> None:
    other = table("cats", "name TEXT, age INT", ("Tom", 4))
    tied = [
        task(1, "SELECT name FROM pets"),
        task(2, "select p.name AS n from pets AS p"),  # the same statement
        task(3, "SELECT MAX(age) FROM pets", question="How old?"),
        task(4, "SELECT MIN(age) FROM pets", question="how  OLD?"),  # the same question
        task(5, "SELECT name FROM cats", of=other),
        task(6, "SELECT age FROM cats", of=other),
    ]
    for seed in range(20):
        halves = split_tasks(tied, 0.7, seed)
        assert not halves.shares_tables
        assert (ids(halves.train), ids(halves.test)) == (["t5", "t6"], ["t1", "t2", "t3", "t4"])
        pets = split_tasks(tied[:4], 0.5, seed)  # all of one table, which they then share
        assert pets.shares_tables
        assert {tuple(ids(pets.train)), tuple(ids(pets.test))} == {("t1", "t2"), ("t3", "t4")}


def test_what_cannot_be_split() -> None:
    with pytest.raises(ConfigError, match="all are tied by their questions or gold SQL"):
        split_tasks([task(n, "SELECT name FROM pets") for n in range(3)])
    with pytest.raises(ConfigError, match=r"the test size is 10; it must be a share above 0 and below 1"):
        split_tasks(SEVERAL, 10)
