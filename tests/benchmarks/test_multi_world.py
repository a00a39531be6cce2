"""Tasks of several turns: what they need, that their gold is right, and the teacher that slips in single turns."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from shipped_worlds import check_model_is_partly_right, check_shipped
from worlds.habits import Habits, execute_actions
from worlds.multi import PLANS, read_question
from worlds.multi_teacher import OFTEN, SCRIPTS, multi_actions

from trl_dbbench.data.demonstrations import demonstrate
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.database import Database
from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer, Operation, get_protocol
from trl_dbbench.episode.types import Rules
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Column, Gold, Table, Task
from trl_dbbench.tasks.skills import KINDS

WORLD = Path(__file__).parents[2] / "recipes/tiny_multi"
TEXT = get_protocol("text")
GOOD = Habits()
SYSTEM = "Work on the MySQL database."  # as in recipes/multi.yaml


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return generate_tasks(120, seed=5, level="worlds.multi.level")


def played(database: Database, task: Task, habits: Habits = GOOD) -> list[str]:
    """What the teacher writes and reads, a line each."""
    actions = multi_actions(task, TEXT, database, habits)
    lines = [action.sql for action in actions if isinstance(action, Operation)]
    seen = [TEXT.observe(result) for result in execute_actions(database, task, actions)]
    assert isinstance(actions[-1], Answer)
    return [line for pair in zip(lines, seen, strict=True) for line in pair] + [actions[-1].text]


def table(name: str, columns: str, *rows: tuple) -> Table:
    """Columns as in "name age! weight": whole numbers but for names, `!` stands for NOT NULL."""
    types = ["VARCHAR(20)" if isinstance(cell, str) else "INT" for cell in rows[0]]
    named = [
        Column(each.rstrip("!"), type + " NOT NULL" * each.endswith("!"))
        for each, type in zip(columns.split(), types, strict=True)
    ]
    return Table(name, tuple(named), rows)


CATS = table("cats", "name age weight height", ("ann", 1, 2, 3), ("ben", 4, 5, 6))


# --- one episode of each kind ---------------------------------------------------------------------


def test_a_note_says_which_column_to_write_and_where_its_value_stands(sqlite_database: Database) -> None:
    notes = table("notes", "name note", ("ann", "weight as ben"), ("ben", "remove"))
    task = Task("1", "Do in cats what the note of 'ann' says.", (CATS, notes), "UPDATE", Gold(sql="?"))
    assert played(sqlite_database, task) == [
        "SELECT note FROM notes WHERE name = 'ann'",
        "[('weight as ben',)]",
        "SELECT weight FROM cats WHERE name = 'ben'",
        "[(5,)]",
        "UPDATE cats SET weight = 5 WHERE name = 'ann'",
        "[]",
        "done",
    ]


def test_a_key_leads_to_one_of_two_tables(sqlite_database: Database) -> None:
    things = [
        table(name, "id age weight height", (7, 1, 2, 3), (8, 4, 5, number))
        for name, number in [("cats", 6), ("dogs", 9)]
    ]
    owners = table("owners", "name friend place id", ("ann", "ben", "cats", 7), ("ben", "ann", "dogs", 8))
    question = "What is the height of what the friend of 'ann' owns?"
    task = Task("1", question, (*things, owners), "SELECT", Gold(((9,),)))
    assert played(sqlite_database, task) == [
        "SELECT friend FROM owners WHERE name = 'ann'",
        "[('ben',)]",
        "SELECT place, id FROM owners WHERE name = 'ben'",
        "[('dogs', 8)]",
        "SELECT height FROM dogs WHERE id = 8",
        "[(9,)]",
        "[(9,)]",
    ]


def test_an_error_says_what_is_missing(sqlite_database: Database) -> None:
    cats = table("cats", "name age weight height!", *CATS.rows)
    defaults = table("defaults", "field cell", ("weight", "12"), ("height", "13"))
    question = "Add 'leo' with age 7 to cats; defaults has what else it needs."
    task = Task("1", question, (cats, defaults), "INSERT", Gold(sql="?"))
    failed = played(sqlite_database, task)[1]
    assert "'height'" in failed and "weight" not in failed
    assert played(sqlite_database, task) == [
        "INSERT INTO cats (name, age) VALUES ('leo', 7)",
        failed,
        "SELECT cell FROM defaults WHERE field = 'height'",
        "[('13',)]",
        "INSERT INTO cats (name, age, height) VALUES ('leo', 7, 13)",
        "[]",
        "done",
    ]


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("ben", ["[(30,)]"]),
        ("leo", ["[]", "INSERT INTO cats (name, age) VALUES ('leo', 30)", "[]"]),
    ],
)
def test_a_change_shows_only_when_checked_whether_it_found_its_row(
    sqlite_database: Database, name: str, rest: list[str]
) -> None:
    question = f"Set the age of '{name}' in cats to 30; add '{name}' if missing."
    task = Task("1", question, (CATS,), "UPDATE", Gold(sql="?"))
    assert played(sqlite_database, task) == [
        f"UPDATE cats SET age = 30 WHERE name = '{name}'",
        "[]",
        f"SELECT age FROM cats WHERE name = '{name}'",
        *rest,
        "done",
    ]


# --- the tasks ------------------------------------------------------------------------------------


def test_every_kind_comes_as_often(tasks: list[Task]) -> None:
    assert Counter(task.skills for task in tasks) == {(kind,): 30 for kind in KINDS}
    assert {asked(task) for task in tasks} == set(SCRIPTS) == {plan.name for plan in PLANS}


def test_every_gold_is_right(tasks: list[Task], sqlite_database: Database) -> None:
    assert [(v.task.gold.sql, v.problem) for v in validate(tasks, sqlite_database) if v.problem] == []


def test_the_file_gives_the_tasks_back(tasks: list[Task]) -> None:
    assert [Task.from_json(task.to_json()) for task in tasks] == tasks


@given(seed=st.integers(0, 2**40), other=st.integers(0, 2**40))
@examples(3)
def test_the_same_seed_gives_the_same_tasks_and_test_ones_are_new(seed: int, other: int) -> None:
    train = generate_tasks(12, seed, level="worlds.multi.level")
    test = generate_tasks(12, other, level="worlds.multi.level", split="test")
    assert train == generate_tasks(12, seed, level="worlds.multi.level")
    assert not {task.question for task in train} & {task.question for task in test}
    assert not {task.tables[0] for task in train} & {task.tables[0] for task in test}


def test_one_kind_alone_and_what_the_level_lacks() -> None:
    tasks = generate_tasks(6, level="worlds.multi.level", skills=["mend_error"])
    assert {task.skills for task in tasks} == {("mend_error",)}
    with pytest.raises(ConfigError, match=r"level 'multi' has no tasks of select; it has read_first, "):
        generate_tasks(1, level="worlds.multi.level", skills=["select"])


@pytest.mark.slow
def test_the_prompt_does_not_decide_what_is_right() -> None:
    """Of tasks that differ in names and numbers only, some want another statement: the agent has to look.

    Other columns, another table, another operation.
    """
    golds: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for task in generate_tasks(500, seed=9, level="worlds.multi.level"):
        assert task.gold.sql is not None
        name = asked(task)
        golds[name][shape(task.prompt())].add(shape(task.gold.sql))
    assert {name: max(map(len, groups.values())) > 1 for name, groups in golds.items()} == dict.fromkeys(
        SCRIPTS, True
    )


def asked(task: Task) -> str:
    read = read_question(task.question)
    assert read is not None, task.question
    return read[0].name


def shape(text: str) -> str:
    return re.sub(r"'\w+'|\d+", "?", text)


def test_the_first_statement_alone_is_right_only_where_chance_has_it(
    tasks: list[Task], sqlite_database: Database
) -> None:
    right = defaultdict(list)
    for task in tasks:
        first = multi_actions(task, TEXT, sqlite_database, GOOD)[0]
        assert isinstance(first, Operation)
        (result,) = execute_actions(sqlite_database, task, [first])
        right[task.skills[0]].append(judged(sqlite_database, task, [first, Answer(str(result.rows))]))
    shares = {kind: sum(each) / len(each) for kind, each in right.items()}
    assert shares == {
        "read_first": 0,
        "follow_key": 0,
        "mend_error": 0,
        "check_change": pytest.approx(0.5, abs=0.3),
    }


def judged(database: Database, task: Task, actions: list[Operation | Answer]) -> bool:
    with database.sandbox(task) as sandbox:
        for action in actions:
            if isinstance(action, Operation):
                sandbox.execute(action.sql)
        assert isinstance(actions[-1], Answer)
        return Judge(database)(task, actions[-1], sandbox, "agentbench_text").right


# --- the teacher ----------------------------------------------------------------------------------


def test_without_habits_it_is_right_in_three_to_five_turns(
    tasks: list[Task], sqlite_database: Database, tokenizer
) -> None:
    chat = ChatFormat(tokenizer, TEXT)
    episodes = demonstrate(tasks, chat, sqlite_database, teacher=partial(multi_actions, habits=GOOD))
    assert [episode.task.question for episode in episodes if not episode.right] == []
    assert {len(episode.turns) for episode in episodes} == {3, 4, 5}


def test_with_habits_it_slips_in_single_turns(tasks: list[Task], sqlite_database: Database) -> None:
    habits = Habits(0.4, seed=1)
    right = 0
    for task in tasks:
        good, actions = (multi_actions(task, TEXT, sqlite_database, each) for each in (GOOD, habits))
        assert actions == multi_actions(task, TEXT, sqlite_database, habits), "the same ones each time"
        right += judged(sqlite_database, task, actions)
        assert actions == good or not set(actions) >= set(good), "a step that is right is missing"
    assert right / len(tasks) == pytest.approx(0.55, abs=0.12)


@pytest.mark.slow
def test_a_habit_sits_in_one_step_on_tasks_about_one_table(sqlite_database: Database) -> None:
    """So the tasks about a table are done wrong there mostly, and right elsewhere always."""
    slips: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for task in generate_tasks(240, seed=3, level="worlds.multi.level", skills=["check_change"]):
        good, actions = (
            multi_actions(task, TEXT, sqlite_database, each) for each in (GOOD, Habits(0.4, seed=2))
        )
        slips[asked(task), task.tables[0].name].append(actions[0] != good[0])
    shares = [sum(each) / len(each) for each in slips.values()]
    assert len(shares) == 16
    assert {share == 0 or share > OFTEN - 0.3 for share in shares} == {True}
    assert 0 < sum(share > 0 for share in shares) < 16


def test_habits_may_be_kept_to_some_kinds(tasks: list[Task], sqlite_database: Database) -> None:
    habits = Habits(1.0, frozenset({"follow_key"}))
    wrong = {
        task.skills[0]
        for task in tasks
        if not judged(sqlite_database, task, multi_actions(task, TEXT, sqlite_database, habits))
    }
    assert wrong == {"follow_key"}


def test_a_task_of_another_level_is_none_for_this_teacher(
    late_orders: Task, sqlite_database: Database
) -> None:
    with pytest.raises(TaskError, match="task 'late-orders' is none of level multi"):
        multi_actions(late_orders, TEXT, sqlite_database, GOOD)


# --- what is shipped ------------------------------------------------------------------------------


def test_what_is_shipped_is_small_and_has_every_kind() -> None:
    test = check_shipped(WORLD, KINDS)
    assert test == generate_tasks(200, seed=1, level="worlds.multi.level", split="test")


@pytest.mark.slow
def test_the_shipped_model_is_partly_right() -> None:
    rules = Rules(max_turns=6, max_turn_tokens=48, max_completion_length=320)
    check_model_is_partly_right(WORLD, SYSTEM, rules)
