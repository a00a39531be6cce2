"""What `benchmarks/clean_data.py` plants, what an audit makes of it, and which runs are not run again."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from databases import table
from launching import ROOT

from trl_dbbench.data.audit import audit
from trl_dbbench.database import Database
from trl_dbbench.tasks import Gold, Task, load_tasks

sys.path.append(str(ROOT / "benchmarks"))
import clean_data
from planted import KINDS, Planting, plant

PEOPLE = table(
    "people", "name VARCHAR(20), city VARCHAR(20), age INT", *[("Ann", "Oslo", 30), ("Bo", "Rome", 41)]
)
OLDEST = Task(
    "oldest",
    "Show the name with the highest age.",
    (PEOPLE,),
    "SELECT",
    Gold(answer=(("Bo",),), sql="SELECT name FROM people ORDER BY age DESC LIMIT 1"),
    grader="lifelong",
)
BIRTHDAY = Task(
    "birthday", "'Bo' is 42.", (PEOPLE,), "UPDATE", Gold(sql="UPDATE people SET age = 42 WHERE name = 'Bo'")
)
TASKS = (OLDEST, BIRTHDAY)


def planted(
    kind: str, task: Task, database: Database, seed: int = 0, tasks: Sequence[Task] = TASKS
) -> Task | None:
    return KINDS[kind](task, Planting(database, tasks, random.Random(seed)))


def kinds_found(task: Task, database: Database) -> set[str]:
    (audited,) = audit([task], [database])
    return {finding.kind for finding in audited.findings}


def test_a_wrong_answer_is_that_of_another_question(sqlite_database: Database) -> None:
    other = Task(
        "count",
        "How many people?",
        (PEOPLE,),
        "SELECT",
        Gold(answer=((2,),), sql="SELECT COUNT(*) FROM people"),
        grader="lifelong",
    )
    wrong = planted("wrong answer", OLDEST, sqlite_database, tasks=(*TASKS, other)) or pytest.fail("none")
    assert (wrong.gold.answer, wrong.gold.sql) == (((2,),), OLDEST.gold.sql)
    assert kinds_found(wrong, sqlite_database) == {"mismatch"}
    assert planted("wrong answer", BIRTHDAY, sqlite_database) is None, "a change has no answer"


def test_a_wrong_gold_does_something_else_and_its_answer_fits(sqlite_database: Database) -> None:
    golds = [planted("wrong gold", OLDEST, sqlite_database, seed) for seed in range(20)]
    assert {(task.gold.sql, task.gold.answer) for task in golds if task} == {
        ("SELECT `city` FROM people ORDER BY age DESC LIMIT 1", (("Rome",),)),
        ("SELECT name FROM people ORDER BY age LIMIT 1", (("Ann",),)),
        ("SELECT name FROM people ORDER BY age DESC", (("Bo",), ("Ann",))),
    }
    changed = planted("wrong gold", BIRTHDAY, sqlite_database) or pytest.fail("none")
    assert changed.gold.sql == "UPDATE people SET age = 42"
    assert kinds_found(changed, sqlite_database) == {"not used"}


def test_a_slip_passes_on_fewer_rows(sqlite_database: Database) -> None:
    """With Bo alone it does not matter whom the UPDATE is of."""
    fewer = planted("slip", BIRTHDAY, sqlite_database) or pytest.fail("none")
    assert fewer.tables[0].rows == (("Bo", "Rome", 41),)
    assert kinds_found(fewer, sqlite_database) == {"weak"}


def test_a_tie_has_one_of_the_answers_that_are_possible(sqlite_database: Database) -> None:
    ties = [planted("tie", OLDEST, sqlite_database, seed) or pytest.fail("none") for seed in range(20)]
    assert {row[2] for task in ties for row in task.tables[0].rows} <= {30, 41}
    assert {task.gold.answer for task in ties} == {(("Ann",),), (("Bo",),)}
    # the answer of the rows as they lie is open; another does not even fit
    assert {frozenset(kinds_found(task, sqlite_database)) for task in ties} == {
        frozenset({"open"}),
        frozenset({"mismatch"}),
    }


def test_more_faults_are_those_of_fewer_and_others(sqlite_database: Database) -> None:
    tasks = load_tasks(ROOT / "recipes/tiny/train.jsonl")[:40]
    few, some = plant(tasks, 0.1, sqlite_database)
    many, more = plant(tasks, 0.6, sqlite_database)
    assert (len(some), len(more)) == (4, 24) and some.items() <= more.items()
    for before, task, other in zip(tasks, few, many, strict=True):
        assert (task != before) == (task.id in some) and (other != before) == (task.id in more)
        assert task.id not in some or task == other
    paid = clean_data.what_is_paid(tasks, many, more, sqlite_database)
    counts = Counter(more.values())
    assert (paid["wrong gold, right"], paid["slip, right"]) == (0, counts["slip"])
    assert (paid["wrong gold, slip"], paid["slip, slip"]) == (counts["wrong gold"], counts["slip"])
    assert paid["wrong answer, right"] == 0
    found = list(audit(many, [sqlite_database], repair=True))
    became = clean_data.what_became(more, [each.to_json() for each in found])
    assert not {name for name in became if name.endswith("missed")} - {"wrong gold, missed"}
    with pytest.raises(ValueError, match="0 of 2 can; lower the share or name more kinds"):
        plant([BIRTHDAY] * 2, 1, sqlite_database, kinds=["tie"])


def test_what_became_of_the_faults_is_said() -> None:
    report = [
        {"id": name, "outcome": outcome}
        for name, outcome in zip(
            "abcdef", ("sound", "repaired", "dropped", "dropped", "sound", "repaired"), strict=True
        )
    ]
    became = clean_data.what_became({"a": "wrong gold", "b": "slip", "c": "tie", "f": "wrong gold"}, report)
    assert became == {
        "wrong gold, missed": 2,
        "slip, repaired": 1,
        "tie, dropped": 1,
        "none, dropped": 1,
        "none, sound": 1,
    }
    assert clean_data.said(became) == "1 repaired, 1 dropped, 2 missed; 1 others dropped"


def test_a_finished_run_is_not_run_again_but_for_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Counter[str]()

    def train(folder: str, config: str, seed: int, steps: int, every: int, *options: str) -> None:
        trained[f"{config} {seed} {steps} {' '.join(options)}"] += 1
        path = Path(folder)
        path.mkdir(parents=True)  # an unfinished run of before is gone
        episodes = [{"phase": "eval", "step": step, "right": step == steps} for step in (0, steps)]
        (path / "episodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in episodes))
        (path / "metrics.jsonl").write_text("")

    monkeypatch.setattr(clean_data, "train", train)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("some")
    run = clean_data.Run("clean", tasks, tmp_path / "run", seed=1, steps=4, options=("--learning_rate", "0"))
    run.folder.mkdir()
    for _ in range(2):
        assert (run.finish()["before"], run.finish()["after"]) == (0, 1)
    assert trained == {f"quickstart.yaml 1 4 --tasks {tasks} --learning_rate 0": 1}
    tasks.write_text("others")
    run.finish()
    assert trained.total() == 2


def test_the_table_has_the_mean_of_the_seeds() -> None:
    rows = [("clean", "clean", "none"), ("60 %, faulty", "60 %, faulty", "600")]
    found = {"clean": {2: {"after": 0.5}, 1: {"after": 0.75}}}
    assert clean_data.table(rows, found).splitlines()[2:] == ["| clean | none | 75.0, 50.0 | 62.5 |"]
