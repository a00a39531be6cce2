"""Level plain: requests in people's words, AgentBench's labels, gold that is right on real databases."""

from __future__ import annotations

import random
import re

import pytest

from trl_dbbench.data.generate import LEVELS, generate_tasks, try_once
from trl_dbbench.data.generate.plain import PLANS, Draft, draft, literal_text, make_plain
from trl_dbbench.data.generate.tables import Item, Source
from trl_dbbench.database import Database
from trl_dbbench.episode.validation import validate
from trl_dbbench.tasks import Column, Table, Task


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return generate_tasks(150, seed=4, level="plain")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "local"])
def test_every_gold_is_right(tasks: list[Task], kind: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(f"{kind}_database")
    assert [(v.task.gold.sql, v.problem) for v in validate(tasks, database) if v.problem] == []


def test_a_question_has_a_label_as_agentbench_and_a_change_the_tables(tasks: list[Task]) -> None:
    assert {task.operation for task in tasks} == {"SELECT", "INSERT", "UPDATE"}
    for task in tasks:
        assert task.grader is None  # the protocol's, which is AgentBench's
        if task.is_question:
            assert task.gold.answer is not None and len(task.gold.answer) == 1
            assert isinstance(task.gold.answer[0], str)
        else:
            assert task.gold.answer is None and task.gold.state_md5


def test_the_request_names_each_value_of_its_sql(tasks: list[Task]) -> None:
    for task in tasks:
        asked = task.question.lower()
        for value in re.findall(r"'((?:[^']|'')*)'", task.gold.sql or ""):
            assert value.replace("''", "'").lower() in asked, (task.question, task.gold.sql)


def test_tables_are_named_as_on_web_pages(tasks: list[Task]) -> None:
    names = [column.name for task in tasks for column in task.tables[0].columns]
    assert sum(" " in name for name in names) > len(names) / 4
    assert any(sign in name for name in names for sign in "(#/£%")
    assert len({task.tables[0].name for task in tasks}) > len(tasks) / 2  # to be copied, not learned by heart
    assert sum(name[0].isupper() for name in names) > len(names) / 2
    days = [cell for task in tasks for row in task.tables[0].rows for cell in row if isinstance(cell, str)]
    assert any(re.fullmatch(r"[A-Z][a-z]+ \d{1,2}, 20\d\d", day) for day in days)


def test_every_plan_yields_a_task(sqlite_database: Database) -> None:
    rng, level = random.Random(6), LEVELS["plain"]
    for plan in PLANS:
        drafts = (try_once(rng, level, plan, "train", sqlite_database) for _ in range(30))
        task = next(filter(None, drafts), None)
        assert task is not None and set(task.skills) == plan.skills, plan


def test_every_form_has_many_wordings() -> None:
    rng = random.Random(1)
    for plan in PLANS:
        questions = set()
        for _ in range(60):
            source = make_plain(rng)
            made = draft(rng, source, plan)
            if made is not None:
                question = made[0].lower()
                for item in sorted(source.items, key=lambda item: -len(item.label)):
                    question = question.replace(item.label.lower(), "_")
                questions.add(" ".join(question.split()[:3]))
        assert len(questions) >= 4, plan


def test_a_condition_is_of_one_row_and_its_words_say_it() -> None:
    rng = random.Random(3)
    source = make_plain(rng)
    shown = source.of("category")[0]
    found = Draft(rng, source).where(1, shown)
    assert found is not None
    sql, words, items, values = found
    assert sql == f" WHERE {items[0].sql} = {literal_text(values[0])}"
    assert words.endswith(f" {values[0]}")


def test_the_request_names_the_column_of_a_value_that_stands_in_two() -> None:
    """Not `Change the Product to lamp for 2.`: Nr 2 is a row, and Quantity 2 is another."""
    columns = {"Nr": (1, 2, 3, 4), "Product": ("tent", "rope", "lamp", "sled"), "Quantity": (3, 1, 4, 2)}
    roles = {"Nr": "id", "Product": "key", "Quantity": "count"}
    items = tuple(
        Item(name, roles[name], lambda rng: rng.choice(["stove", 9]), False, cells, as_written=True)
        for name, cells in columns.items()
    )
    table = Table("Orders", tuple(map(Column, columns)), tuple(zip(*columns.values(), strict=True)))
    rng = random.Random(2)
    made = [draft(rng, Source(table, "orders", items), plan) for plan in PLANS * 100]
    numbers = [
        (question.lower(), found[1].lower())
        for question, sql in filter(None, made)
        if (found := re.search(r"WHERE `(Nr|Quantity)` = '\d'", sql))
    ]
    assert len(numbers) > 50
    assert [question for question, column in numbers if column not in question] == []
