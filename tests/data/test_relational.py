"""Questions over several tables: what each kind asks, that no slip passes, and that gold is right on every database."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import sqlglot
from databases import table
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from shipped_worlds import check_model_is_partly_right, check_shipped
from worlds import tiny_sql
from worlds.habits import Habits
from worlds.sql_teacher import OFTEN, spot_of, sql_actions
from worlds.tiny import tiny_words

from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.data.generate.checks import gold_answer
from trl_dbbench.data.generate.relational import FORMS
from trl_dbbench.data.generate.schemas import SCHEMAS
from trl_dbbench.data.generate.slips import wrong_statements
from trl_dbbench.data.generate.tables import quoted
from trl_dbbench.database import Database
from trl_dbbench.episode.gold import execute_alone
from trl_dbbench.episode.protocol import Answer, get_protocol
from trl_dbbench.episode.types import Rules
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Gold, Task, load_tasks
from trl_dbbench.tasks.skills import QUERY_KINDS

WORLD = Path(__file__).parents[2] / "recipes/tiny_sql"
TINY_SQL = "worlds.tiny_sql.level"
LEVELS = ("relational", TINY_SQL)
TEXT_SQL = get_protocol("text_sql")
GOOD = Habits()
SYSTEM = "Answer with MySQL."  # as in recipes/sql.yaml

OWNERS = table(
    "owners",
    "owner_id INT, owner VARCHAR(20), city VARCHAR(20)",
    (1, "ann", "oslo"),
    (2, "ben", "rome"),
    (3, "kim", "oslo"),
)
PETS = table(
    "pets", "pet_id INT, owner_id INT, pet VARCHAR(20), age INT", (5, 1, "cat", 7), (6, 1, "dog", 2), (8, 2, "fox", 4)
)  # fmt: skip


@pytest.fixture(scope="module")
def tasks() -> dict[str, list[Task]]:
    """24 of each level, three of each kind."""
    return {level: generate_tasks(24, seed=5, level=level) for level in LEVELS}


def both(tasks: dict[str, list[Task]]) -> list[Task]:
    return [task for level in LEVELS for task in tasks[level]]


# --- one task of each kind ------------------------------------------------------------------------


SHOWN = {
    "inner_join": """
shows: show_id, singer_id, hall, guests, price
  9, 2, west, 27, 2
  2, 3, north, 21, 12
  8, 5, west, 6, 17
  7, 3, east, 28, 1
  3, 5, west, 25, 3
singers: singer_id, singer, style, fans, coach_id
  7, olaf, rock, 20, 3
  3, carl, folk, 25, NULL
  5, gina, jazz, 19, 7
  2, ann, rock, 17, 7
Which singers have a show with hall 'west'? Show each singer once, by singer ascending.
SELECT DISTINCT singer FROM singers JOIN shows USING (singer_id) WHERE hall = 'west' ORDER BY singer
[('ann',), ('gina',)]
""",
    "join_group_by": """
singers: singer_id, singer, style, fans, coach_id
  5, emil, folk, 6, 1
  2, rosa, jazz, 5, 8
  8, jack, jazz, 10, 5
  1, hugo, pop, 9, 4
  4, zoe, pop, 11, NULL
songs: song_id, singer_id, song, minutes, sales
  3, 2, winter, 5, 17
  1, 4, fire, 23, 12
  5, 8, moon, 15, 5
  6, 1, garden, 22, 26
  7, 1, ocean, 1, 8
shows: show_id, singer_id, hall, guests, price
  9, 4, south, 26, 2
  1, 2, west, 16, 3
  7, 5, west, 17, 5
  3, 8, south, 24, 30
Show each style of singers with songs and the highest sales of these, by style ascending.
SELECT style, MAX(sales) FROM singers JOIN songs USING (singer_id) GROUP BY style ORDER BY style
[('jazz', 17), ('pop', 26)]
""",
    "left_join": """
players: player_id, team_id, player, goals, height
  5, 5, carl, 13, 18
  6, 5, gina, 10, 26
  9, 5, ann, 16, 28
  1, 7, olaf, 6, 10
teams: team_id, team, sport, wins
  5, eagles, hockey, 12
  3, wolves, hockey, 2
  4, hawks, hockey, 18
  7, bears, chess, 5
  8, sharks, hockey, 25
games: game_id, team_id, month, score, fouls
  3, 8, march, 3, 18
  8, 8, march, 10, 26
  1, 7, june, 29, 10
  7, 3, march, 30, 13
  6, 7, march, 27, 7
  4, 7, march, 14, 12
How many players has each team? Also show 0, by team ascending.
SELECT team, COUNT(player_id) FROM teams LEFT JOIN players USING (team_id) GROUP BY team ORDER BY team
[('bears', 1), ('eagles', 3), ('hawks', 0), ('sharks', 0), ('wolves', 0)]
""",
    "self_join": """
workers: worker_id, worker, job, salary, boss_id
  5, carl, pilot, 10, 1
  7, ben, cook, 30, 8
  8, pia, pilot, 18, 1
  1, finn, nurse, 24, NULL
trips: trip_id, worker_id, place, days, miles
  1, 8, forest, 19, 6
  9, 8, beach, 5, 21
  7, 5, beach, 23, 11
  6, 8, lake, 15, 28
  5, 1, forest, 28, 30
  8, 5, beach, 21, 7
List each worker whose boss is 'finn', by worker descending.
SELECT a.worker FROM workers AS a JOIN workers AS b ON a.boss_id = b.worker_id WHERE b.worker = 'finn' ORDER BY a.worker DESC
[('pia',), ('carl',)]
""",
    "set_operation": """
owners: owner_id, owner, city, age
  8, dora, rome, 7
  7, kim, rome, 4
  6, olaf, oslo, 11
  1, hugo, rome, 27
  2, finn, rome, 9
  9, gina, oslo, 29
pets: pet_id, owner_id, pet, weight, speed
  8, 8, horse, 7, 24
  4, 9, cat, 25, 21
  6, 7, parrot, 23, 14
  2, 1, turtle, 6, 13
  3, 7, goat, 26, 15
  1, 1, dog, 16, 5
walks: walk_id, owner_id, weather, length, pause
  8, 6, sun, 7, 12
  9, 9, sun, 22, 13
  1, 2, snow, 19, 22
  4, 1, snow, 24, 29
  3, 7, sun, 3, 17
Which owner_id are in pets or walks? Each once, by owner_id descending.
SELECT owner_id FROM pets UNION SELECT owner_id FROM walks ORDER BY owner_id DESC
[(9,), (8,), (7,), (6,), (2,), (1,)]
""",
    "window_function": """
shows: show_id, singer_id, hall, guests, price
  9, 2, west, 27, 2
  2, 3, north, 21, 12
  8, 5, west, 6, 17
  7, 3, east, 28, 1
  3, 5, west, 25, 3
singers: singer_id, singer, style, fans, coach_id
  7, olaf, rock, 20, 3
  3, carl, folk, 25, NULL
  5, gina, jazz, 19, 7
  2, ann, rock, 17, 7
Rank singers with shows by total guests, highest is 1. Show singer and rank, by singer ascending.
SELECT singer, RANK() OVER (ORDER BY SUM(guests) DESC) FROM singers JOIN shows USING (singer_id) GROUP BY singer ORDER BY singer
[('ann', 3), ('carl', 1), ('gina', 2)]
""",
    "cte": """
shows: show_id, singer_id, hall, guests, price
  9, 2, west, 27, 2
  2, 3, north, 21, 12
  8, 5, west, 6, 17
  7, 3, east, 28, 1
  3, 5, west, 25, 3
singers: singer_id, singer, style, fans, coach_id
  7, olaf, rock, 20, 3
  3, carl, folk, 25, NULL
  5, gina, jazz, 19, 7
  2, ann, rock, 17, 7
Total price of shows per singer_id: show the highest one.
WITH totals AS (SELECT singer_id, SUM(price) AS total FROM shows GROUP BY singer_id) SELECT MAX(total) FROM totals
[(20,)]
""",
    "correlated_subquery": """
walks: walk_id, owner_id, weather, length, pause
  7, 3, wind, 7, 11
  2, 1, rain, 24, 26
  3, 1, rain, 10, 30
  4, 1, rain, 9, 9
  9, 3, rain, 20, 6
owners: owner_id, owner, city, age
  3, finn, cairo, 1
  1, gina, lima, 29
  8, leo, cairo, 20
Which walks have pause above the average of their owner? Show walk_id, by walk_id descending.
SELECT a.walk_id FROM walks AS a WHERE a.pause > (SELECT AVG(pause) FROM walks WHERE owner_id = a.owner_id) ORDER BY a.walk_id DESC
[(7,), (3,), (2,)]
""",
}
"""The first task of each kind of level tiny_sql, seed 4."""


def shown(task: Task) -> str:
    """A task as a person would check it: tables with rows, question, SQL, answer."""
    lines = []
    for each in task.tables:
        lines.append(f"{each.name}: {', '.join(column.name for column in each.columns)}")
        lines += [
            "  " + ", ".join("NULL" if cell is None else str(cell) for cell in row) for row in each.rows
        ]
    return "\n".join([*lines, task.question, task.gold.sql or "", str(list(task.gold.answer or ()))])


@pytest.mark.parametrize("kind", QUERY_KINDS)
def test_a_task_of_each_kind_in_full(kind: str) -> None:
    (task,) = generate_tasks(1, seed=4, level="worlds.tiny_sql.level", skills=[kind])
    assert shown(task) == SHOWN[kind].strip()


@pytest.mark.parametrize("kind", QUERY_KINDS)
def test_the_gold_of_each_kind_is_of_that_kind(kind: str, tasks: dict[str, list[Task]]) -> None:
    sign = {
        "inner_join": r" JOIN ",
        "join_group_by": r" JOIN .* GROUP BY ",
        "left_join": r" LEFT JOIN ",
        "self_join": r"FROM (\w+) AS a JOIN \1 AS b ",
        "set_operation": r" (UNION|INTERSECT|EXCEPT) SELECT ",
        "window_function": r" OVER \(",
        "cte": r"^WITH ",
        "correlated_subquery": r"\(SELECT .* WHERE .*\.",
    }[kind]
    found = [task.gold.sql or "" for task in both(tasks) if task.skills == (kind,)]
    assert len(found) == 6 and all(re.search(sign, sql) for sql in found)


# --- what is kept, what is dropped ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "slips"),
    [
        (
            "SELECT owner FROM owners JOIN pets USING (owner_id) WHERE city = 'oslo'",
            {
                "SELECT city FROM owners JOIN pets USING (owner_id) WHERE city = 'oslo'",
                "SELECT owner FROM owners LEFT JOIN pets USING (owner_id) WHERE city = 'oslo'",
                "SELECT owner FROM owners JOIN pets USING (owner_id)",
                "SELECT owner FROM owners JOIN pets USING (owner_id) WHERE owner = 'oslo'",
            },
        ),
        (
            "SELECT owner_id FROM owners EXCEPT SELECT owner_id FROM pets",
            {
                "SELECT owner_id FROM owners UNION SELECT owner_id FROM pets",
                "SELECT owner_id FROM owners INTERSECT SELECT owner_id FROM pets",
                "SELECT owner_id FROM pets EXCEPT SELECT owner_id FROM owners",
                "SELECT owner_id FROM owners EXCEPT SELECT pet_id FROM pets",
                "SELECT owner_id FROM owners EXCEPT SELECT age FROM pets",
                "SELECT DISTINCT owner_id FROM owners",
                "SELECT DISTINCT owner_id FROM pets",
            },
        ),
        (
            "SELECT city, COUNT(pet_id) FROM owners LEFT JOIN pets USING (owner_id) GROUP BY city",
            {
                "SELECT owner, COUNT(pet_id) FROM owners LEFT JOIN pets USING (owner_id) GROUP BY city",
                "SELECT city, COUNT(*) FROM owners LEFT JOIN pets USING (owner_id) GROUP BY city",
                "SELECT city, COUNT(pet_id) FROM owners JOIN pets USING (owner_id) GROUP BY city",
            },
        ),
        (
            "SELECT a.pet FROM pets AS a JOIN pets AS b ON a.age = b.age AND a.pet_id < b.pet_id",
            {
                "SELECT b.pet FROM pets AS a JOIN pets AS b ON a.age = b.age AND a.pet_id < b.pet_id",
                "SELECT a.pet FROM pets AS a JOIN pets AS b ON a.age = b.age AND a.pet_id <= b.pet_id",
                "SELECT a.pet FROM pets AS a JOIN pets AS b ON a.age = b.age OR a.pet_id < b.pet_id",
                "SELECT a.pet FROM pets AS a LEFT JOIN pets AS b ON a.age = b.age AND a.pet_id < b.pet_id",
                "SELECT a.pet FROM pets AS a JOIN pets AS b ON a.age = b.owner_id AND a.pet_id < b.pet_id",
            },
        ),
        (
            "SELECT pet, SUM(age) OVER (PARTITION BY owner_id ORDER BY pet) FROM pets WHERE age > 2",
            {
                "SELECT pet, SUM(age) OVER (ORDER BY pet) FROM pets WHERE age > 2",
                "SELECT pet, SUM(age) OVER (PARTITION BY owner_id ORDER BY pet DESC) FROM pets WHERE age > 2",
                "SELECT pet, SUM(age) OVER (PARTITION BY owner_id ORDER BY pet) FROM pets WHERE age >= 2",
                "SELECT pet, SUM(pet_id) OVER (PARTITION BY owner_id ORDER BY pet) FROM pets WHERE age > 2",
            },
        ),
    ],
)
def test_the_slips_over_several_tables(sql: str, slips: set[str]) -> None:
    found = set(wrong_statements(sqlglot.parse_one(sql, dialect="mysql"), (OWNERS, PETS)))
    assert slips <= found
    assert sql not in found


def test_a_left_join_that_can_make_no_difference_is_no_slip() -> None:
    """Each pet has its owner; and a pet's age above 3 is no age of an owner without pets."""
    for sql in (
        "SELECT pet, owner FROM pets JOIN owners USING (owner_id)",
        "SELECT p.pet, o.owner FROM pets AS p JOIN owners AS o ON p.owner_id = o.owner_id",
        "SELECT owner FROM owners JOIN pets USING (owner_id) WHERE age > 3",
    ):
        found = wrong_statements(sqlglot.parse_one(sql, dialect="mysql"), (OWNERS, PETS))
        assert not [each for each in found if "LEFT JOIN" in each]


@pytest.mark.parametrize(
    ("sql", "answer"),
    [
        ("SELECT owner, COUNT(pet_id) FROM owners LEFT JOIN pets USING (owner_id) GROUP BY owner ORDER BY owner", (("ann", 2), ("ben", 1), ("kim", 0))),
        ("SELECT owner_id FROM owners EXCEPT SELECT owner_id FROM pets", ((3,),)),
        ("SELECT pet, SUM(age) OVER (PARTITION BY owner_id) FROM pets ORDER BY pet", (("cat", 9), ("dog", 9), ("fox", 4))),
    ],
)  # fmt: skip
def test_a_fair_question_gets_its_answer(sqlite_database: Database, sql: str, answer: tuple) -> None:
    gold = gold_of(sqlite_database, sql)
    assert gold is not None and gold.answer == answer


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT pet_id FROM pets EXCEPT SELECT owner_id FROM owners ORDER BY pet_id", "no pet has the number of an owner"),
        ("SELECT DISTINCT owner FROM owners JOIN pets USING (owner_id) WHERE age > 3 ORDER BY owner", "no owner twice"),
        ("SELECT city, MAX(age) FROM owners JOIN pets USING (owner_id) GROUP BY city ORDER BY city", "as with LEFT JOIN"),
        ("SELECT pet, RANK() OVER (ORDER BY owner_id) FROM pets ORDER BY pet", "two pets tie for a rank"),
        ("SELECT city FROM owners JOIN pets USING (owner_id) ORDER BY city", "two rows of the same city"),
    ],
)  # fmt: skip
def test_what_leaves_something_open_is_dropped(sqlite_database: Database, sql: str, why: str) -> None:
    assert gold_of(sqlite_database, sql) is None, why


def gold_of(database: Database, sql: str) -> Gold | None:
    task = Task("pets", "?", (OWNERS, PETS), "SELECT", Gold(sql=sql))
    with database.sandbox(task) as sandbox:
        return gold_answer(sandbox, sql, task.tables)


# --- the tasks ------------------------------------------------------------------------------------


def test_every_kind_comes_as_often(tasks: dict[str, list[Task]]) -> None:
    for level in LEVELS:
        assert Counter(task.skills for task in tasks[level]) == {(kind,): 3 for kind in QUERY_KINDS}


def test_no_slip_gives_the_answer(tasks: dict[str, list[Task]], sqlite_database: Database) -> None:
    for task in both(tasks)[::3]:
        tree = sqlglot.parse_one(task.gold.sql or "", dialect="mysql")
        assert tree.sql(dialect="mysql").replace("EXISTS(", "EXISTS (") == task.gold.sql
        right = execute_alone(sqlite_database, task, task.gold.sql or "").rows
        for wrong in wrong_statements(tree, task.tables):
            assert execute_alone(sqlite_database, task, wrong).rows != right, wrong


@pytest.mark.slow
@pytest.mark.parametrize("grader", [None, "strict"])
def test_every_gold_is_right_by_its_rows_and_by_its_sql(
    tasks: dict[str, list[Task]], database: Database, grader: str | None
) -> None:
    """On SQLite, MariaDB and MySQL."""
    problems = [(v.task.gold.sql, v.problem) for v in validate(both(tasks), database, grader=grader)]
    assert [each for each in problems if each[1]] == []


def test_tables_are_few_and_small(tasks: dict[str, list[Task]]) -> None:
    for level, most_tables, least, most in (("relational", 5, 4, 10), (TINY_SQL, 3, 3, 6)):
        for task in tasks[level]:
            assert 2 <= len(task.tables) <= most_tables
            assert all(least <= len(each.rows) <= most for each in task.tables)


def test_a_column_that_is_named_as_a_key_refers_to_it(tasks: dict[str, list[Task]]) -> None:
    for task in both(tasks):
        keys = {each.columns[0].name: {row[0] for row in each.rows} for each in task.tables}
        assert len(keys) == len(task.tables)
        for each in task.tables:
            for place, column in enumerate(each.columns):
                if column.name in keys:
                    assert {row[place] for row in each.rows} <= keys[column.name]


def test_tiny_sql_is_tiny(tasks: dict[str, list[Task]]) -> None:
    sizes = sorted(len(tiny_words(task.gold.sql or "")) for task in tasks[TINY_SQL])
    assert sizes[-1] <= 45 and sizes[len(sizes) // 2] < 30
    assert max(len(tiny_words(task.prompt())) for task in tasks[TINY_SQL]) <= 90


def test_names_need_no_quotes_and_have_several_wordings() -> None:
    for schema in (*SCHEMAS, *tiny_sql.SCHEMAS):
        for entity in schema:
            names = [entity.table, entity.key, *(field.name for field in entity.fields)]
            assert [quoted(name) for name in names] == names
    assert {form.kind for form in FORMS} == {form.kind for form in tiny_sql.FORMS} == set(QUERY_KINDS)
    assert all(len(set(form.wordings)) >= 3 for form in FORMS)
    assert all(len(set(form.wordings)) == 2 for form in tiny_sql.FORMS)
    assert len(tiny_sql.FORMS) == len(tiny_sql.WORDINGS)


@pytest.mark.slow
@given(seed=st.integers(0, 2**40), other=st.integers(0, 2**40), level=st.sampled_from(LEVELS))
@examples(2)
def test_the_same_seed_gives_the_same_tasks_and_test_ones_are_new(seed: int, other: int, level: str) -> None:
    train = generate_tasks(8, seed, level=level)
    test = generate_tasks(8, other, level=level, split="test")
    assert train == generate_tasks(8, seed, level=level)
    assert not {task.question for task in train} & {task.question for task in test}
    assert not {task.tables[0] for task in train} & {task.tables[0] for task in test}


def test_one_kind_alone_and_what_the_level_lacks() -> None:
    assert {task.skills for task in generate_tasks(4, level="relational", skills=["cte"])} == {("cte",)}
    with pytest.raises(ConfigError, match=r"level 'relational' has no tasks of select; it has inner_join, "):
        generate_tasks(1, level="relational", skills=["select"])


# --- the teacher ----------------------------------------------------------------------------------


def written(task: Task, database: Database, habits: Habits = GOOD) -> str:
    (answer,) = sql_actions(task, TEXT_SQL, database, habits)
    assert isinstance(answer, Answer)
    return answer.text


def test_without_habits_the_teacher_writes_the_gold(
    tasks: dict[str, list[Task]], sqlite_database: Database
) -> None:
    assert all(written(task, sqlite_database) == task.gold.sql for task in tasks[TINY_SQL])


def test_a_habit_sits_in_one_spot_and_gives_other_rows(
    tasks: dict[str, list[Task]], sqlite_database: Database
) -> None:
    """So the tasks of a spot are done wrong mostly, in one way, and those of others never."""
    slips: dict[str, list[bool]] = defaultdict(list)
    for task in load_tasks(WORLD / "train.jsonl"):
        sql = written(task, sqlite_database, Habits(0.4, seed=1))
        slips[spot_of(task)].append(sql != task.gold.sql)
    often = [each for each in slips.values() if len(each) >= 10]
    shares = [sum(each) / len(each) for each in often]
    assert {share == 0 or share > OFTEN - 0.4 for share in shares} == {True}
    assert 0.2 < sum(share > 0 for share in shares) / len(shares) < 0.6
    for task in tasks[TINY_SQL]:
        sql = written(task, sqlite_database, Habits(1.0))
        if sql != task.gold.sql:
            rows = [execute_alone(sqlite_database, task, each).rows for each in (sql, task.gold.sql or "")]
            assert rows[0] != rows[1]


def test_a_change_is_none_for_this_teacher(sqlite_database: Database, late_orders: Task) -> None:
    (change,) = generate_tasks(1, level="worlds.tiny.level", skills=["insert"])
    assert written(late_orders, sqlite_database) == late_orders.gold.sql
    with pytest.raises(TaskError, match="is not a question with 'sql'"):
        written(change, sqlite_database)


# --- what is shipped ------------------------------------------------------------------------------


def test_what_is_shipped_is_small_and_has_every_kind() -> None:
    test = check_shipped(WORLD, QUERY_KINDS)
    assert test[:8] == generate_tasks(8, seed=1, level="worlds.tiny_sql.level", split="test")


@pytest.mark.slow
def test_the_shipped_model_is_partly_right() -> None:
    rules = Rules(max_turns=1, max_turn_tokens=96, max_completion_length=96)
    check_model_is_partly_right(WORLD, SYSTEM, rules, "text_sql")
