"""Audits: what is found about tasks, and that a repair tells slips from the gold."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from databases import table
from launching import ROOT
from required import LONG, lacking
from sqlglot import exp

from trl_dbbench.data.audit import audit
from trl_dbbench.data.audit.examine import Examined, examine, not_named, not_used
from trl_dbbench.data.audit.repair import repaired
from trl_dbbench.data.audit.slips import slips_of
from trl_dbbench.data.generate import generate_tasks
from trl_dbbench.data.generate.slips import wrong_statements
from trl_dbbench.database import Database
from trl_dbbench.episode.validation import validate
from trl_dbbench.tasks import Column, Gold, Source, Table, Task, load_tasks
from trl_dbbench.utils.sql import only_statement

sys.path.append(str(ROOT / "benchmarks"))
from planted import fitted, with_sql

AGENTBENCH = ROOT.parent / "shared" / "data" / "agentbench"

PEOPLE = table(
    "people",
    "name VARCHAR(20), city VARCHAR(20), age INT",
    ("Ann", "Oslo", 30),
    ("Bo", "Rome", 41),
    ("Cy", "Oslo", 52),
    ("Di", "Rome", 63),
)


def question(text: str, sql: str, *answer: tuple, tables=(PEOPLE,), grader: str = "lifelong") -> Task:
    gold = Gold(answer=None if grader == "strict" else answer, sql=sql)
    return Task("q", text, tables, "SELECT", gold, grader=grader)


def change(text: str, sql: str, operation: str = "UPDATE", tables=(PEOPLE,)) -> Task:
    return Task("c", text, tables, operation, Gold(sql=sql))


def found(task: Task, *databases: Database) -> list[tuple[str, str]]:
    return [(finding.kind, finding.text) for finding in examine(task, databases)]


# --- what is found -----------------------------------------------------------------------------------------

COPY = (
    'For every row where the city is "Rome", insert a copy whose age is 9 and whose other cells are the same.'
)


@pytest.mark.parametrize(
    ("sql", "kinds"),
    [
        ("INSERT INTO people (name, age) SELECT name, 9 FROM people WHERE city = 'Rome'", ["not copied"]),
        (
            "INSERT INTO people (name, city, age) SELECT name, NULL, 9 FROM people WHERE city = 'Rome'",
            ["not copied"],
        ),
        ("INSERT INTO people (name, city, age) SELECT name, city, 9 FROM people WHERE city = 'Rome'", []),
        ("INSERT INTO people SELECT name, city, 9 FROM people WHERE city = 'Rome'", []),
    ],
)
def test_a_copy_that_lacks_cells_is_a_doubt(sqlite_database: Database, sql: str, kinds: list[str]) -> None:
    findings = examine(change(COPY, sql, "INSERT"), [sqlite_database])
    assert [(each.kind, each.text, each.is_fault) for each in findings] == [
        (kind, "left empty in the copies: city", False) for kind in kinds
    ]


def test_the_word_same_does_not_make_a_sound_insert_faulty(sqlite_database: Database) -> None:
    sql = "INSERT INTO people (name, city) SELECT 'Flo', city FROM people WHERE name = 'Bo'"
    (audited,) = audit(
        [change("Add Flo of the same city as Bo.", sql, "INSERT")], [sqlite_database], repair=True
    )
    assert (audited.outcome, [each.kind for each in audited.findings]) == ("sound", ["not copied"])


def test_a_sound_question_and_a_sound_change(database: Database) -> None:
    """Each slip ends elsewhere: another column, no WHERE, `>=` for `>` with Cy at 52."""
    asked = question("Who is older than 52?", "SELECT name FROM people WHERE age > 52", ("Di",))
    assert found(asked, database) == []
    assert found(change("Ann is 31 now.", "UPDATE people SET age = 31 WHERE name = 'Ann'"), database) == []


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (question("Who?", "SELECT nobody FROM people", ("Ann",)), "fails"),
        (change("Do it.", "UPDATE persons SET age = 31"), "fails"),
        (question("Who is older than 99?", "SELECT name FROM people WHERE age > 99", ("Ann",)), "empty"),
        (question("How old is Ed?", "SELECT MAX(age) FROM people WHERE name = 'Ed'", (None,)), "empty"),
        (change("Ann is 30.", "UPDATE people SET age = 30 WHERE name = 'Ann'"), "empty"),
        (question("How many?", "SELECT COUNT(*) FROM people", (5,)), "mismatch"),
        (question("Who is the first?", "SELECT name FROM people LIMIT 1", ("Ann",)), "open"),
        (change("Delete one of Oslo.", "DELETE FROM people WHERE city = 'Oslo' LIMIT 1", "DELETE"), "open"),
        (question("Draw.", "SELECT name FROM people ORDER BY RAND() LIMIT 1", ("Ann",)), "unstable"),
        (question("What day is it?", "SELECT CURDATE()", ("2026-11-22",)), "unstable"),
        (question("What time is it?", "SELECT NOW()", ("2026-11-22 10:00:00",)), "unstable"),
        (change("Ann is now.", "UPDATE people SET city = NOW() WHERE name = 'Ann'"), "unstable"),
    ],
    ids=lambda value: value.gold.sql if isinstance(value, Task) else value,
)
def test_faults_of_the_gold_sql(database: Database, task: Task, kind: str) -> None:
    assert kind in [name for name, _ in found(task, database)]


@pytest.mark.parametrize(
    ("sql", "changes"),
    [
        ("SELECT date('now', '-1 day')", True),
        ("SELECT CAST(strftime('%Y', 'NOW') AS INT) - 1", True),
        ("SELECT strftime('%Y', 'now', '-1 year') - 1", True),
        ("SELECT julianday()", True),
        ("SELECT hex(randomblob(4))", True),
        ("SELECT date('2024-01-01', '-1 day')", False),
        ("SELECT strftime('%Y', '2024-01-01')", False),
        ("SELECT 'now' AS n WHERE upper('now') = 'NOW'", False),
    ],
)
def test_sqlites_own_times_depend_on_the_present(sqlite_database: Database, sql: str, changes: bool) -> None:
    task = replace(question("When?", sql), gold=Gold(sql=sql), grader="strict", dialect="sqlite")
    kinds = [name for name, _ in found(task, sqlite_database)]
    assert ("unstable" in kinds) is changes


def test_a_published_state_that_the_gold_sql_does_not_leave(sqlite_database: Database) -> None:
    task = change("Ann is 31 now.", "UPDATE people SET age = 31 WHERE name = 'Ann'")
    task = replace(task, gold=replace(task.gold, state_md5="0" * 32))
    assert ("mismatch", f"it leaves another state than {'0' * 32}") in found(task, sqlite_database)


def test_slips_that_are_right_as_well(database: Database) -> None:
    """Nobody of Oslo is below 30, and Bo is the only one whom `city` would have told from the others."""
    asked = question(
        "Who of Oslo is at least 30?",
        "SELECT name FROM people WHERE city = 'Oslo' AND age >= 30 ORDER BY name",
        *[("Ann",), ("Cy",)],
    )
    slips = [finding.slip for finding in examine(asked, [database])]
    assert "SELECT name FROM people WHERE city = 'Oslo' ORDER BY name" in slips
    assert "SELECT name FROM people WHERE age >= 30 ORDER BY name" not in slips
    changed = change("Cy of Oslo is 53.", "UPDATE people SET age = 53 WHERE name = 'Cy' AND city = 'Oslo'")
    assert found(changed, database) == [
        ("weak", "also right: UPDATE people SET age = 53 WHERE name = 'Cy'"),
    ]


def test_the_gold_sql_is_tried_on_all_databases(sqlite_database: Database, local_database: Database) -> None:
    """The emulation refuses a function that it does not have; MariaDB executes it."""
    asked = question(
        "What is the checksum of Ann?", "SELECT CRC32(name) FROM people WHERE name = 'Ann'", (3748476051,)
    )
    ((kind, said),) = found(asked, sqlite_database)
    assert kind == "fails"
    assert said.endswith("yet support 'CRC32()' (embedded database)")
    assert found(asked, local_database, sqlite_database)[0] == found(asked, sqlite_database)[0]


def test_questions_without_gold_sql_are_not_examined(sqlite_database: Database) -> None:
    task = Task("q", "Who?", (PEOPLE,), "SELECT", Gold(answer=("Ann",)), grader=None)
    assert found(task, sqlite_database) == [("not examined", "there is no gold SQL")]


def test_answers_that_are_sql(sqlite_database: Database) -> None:
    task = question("Which cities?", "SELECT DISTINCT city FROM people", grader="strict")
    assert found(task, sqlite_database) == []
    weak = question("Whose ages?", "SELECT DISTINCT age FROM people", grader="strict")
    assert found(weak, sqlite_database) == [("weak", "also right: SELECT age FROM people")]


def test_statements_are_executed_as_the_grader_has_them(sqlite_database: Database) -> None:
    """Spider's evaluator leaves out DISTINCT: then Ann of Oslo, whom `>=` adds, makes one row more."""
    task = question(
        "Which cities over 30?", "SELECT DISTINCT city FROM people WHERE age > 30", grader="strict"
    )
    boundary = "also right: SELECT DISTINCT city FROM people WHERE age >= 30"
    assert boundary in [text for _, text in found(task, sqlite_database)]
    spiders = [text for _, text in found(replace(task, grader="spider_ts"), sqlite_database)]
    assert boundary not in spiders
    assert "also right: SELECT city FROM people WHERE age > 30" not in spiders, "to it that is the gold SQL"


@pytest.mark.parametrize(
    ("text", "sql", "not_said", "not_asked"),
    [
        ("Who lives in Rome?", "SELECT name FROM people WHERE city = 'Oslo'", ["oslo"], ["rome"]),
        (
            "Who of Rome is at least 30?",
            "SELECT name FROM people WHERE city = 'Oslo' AND age >= 30",
            ["oslo"],
            ["rome"],
        ),
        ("Who is over 40?", "SELECT name FROM people WHERE age > 41", ["41"], ["40"]),
        ("Who is over 1,000?", "SELECT name FROM people WHERE age > 1000", [], []),
        ("Who has 3 points in 1e?", "SELECT name FROM people WHERE 1e = 3", [], []),
        ("Who starts with 'A'?", "SELECT name FROM people WHERE name LIKE 'A%'", [], []),
        ("Who of rome is the oldest?", "SELECT name FROM people ORDER BY age DESC LIMIT 1", [], ["rome"]),
        ("Ann O'Neil joins", "INSERT INTO people (name) VALUES ('Ann O''Neil')", [], []),
        ("Add 2 people: Flo, Gus.", "INSERT INTO people (name) VALUES ('Flo'), ('Gus')", [], []),
        ("Who came on March 1, 2020?", "SELECT name FROM people WHERE day = '2020-03-01'", [], []),
        ("Which name is of the highest age?", "SELECT city FROM people ORDER BY age DESC", [], ["name"]),
        ("What do the people have by age?", "SELECT * FROM people", [], []),
        ("How many have an age?", "SELECT COUNT(*) FROM people", [], ["age"]),
        ("Add a city and name: Flo.", "INSERT INTO people (name) VALUES ('Flo')", [], []),
    ],
)
def test_doubts_about_the_wording(text: str, sql: str, not_said: list[str], not_asked: list[str]) -> None:
    task = replace(question(text, sql), operation=(only_statement(sql) or exp.Select()).key.upper())
    assert (not_named(task), not_used(task)) == (not_said, not_asked)


def test_a_column_whose_name_is_part_of_another_is_not_asked_for() -> None:
    stadiums = table("team stadiums", "stadium VARCHAR(20), stadium_capacity INT, team VARCHAR(20)")
    sql = "SELECT stadium_capacity FROM `team stadiums` WHERE stadium_capacity > 9"
    asked = question(
        "Which stadium capacity above 9 has a team of the team stadiums?", sql, tables=(stadiums,)
    )
    assert not_used(asked) == ["team"]


def test_the_slips_of_a_statement() -> None:
    sql = "SELECT p.name FROM people AS p JOIN pets ON pets.owner = p.name WHERE p.age BETWEEN 30 AND 40"
    pets = table("pets", "owner VARCHAR(20), kind VARCHAR(20)", ("Ann", "cat"))
    assert slips_of(question("?", sql, tables=(PEOPLE, pets))) == [
        "SELECT p.name FROM people AS p JOIN pets ON pets.owner = p.name",
        "SELECT p.`city` FROM people AS p JOIN pets ON pets.owner = p.name WHERE p.age BETWEEN 30 AND 40",
        "SELECT p.name FROM people AS p LEFT JOIN pets ON pets.owner = p.name WHERE p.age BETWEEN 30 AND 40",
        "SELECT p.name FROM people AS p JOIN pets ON pets.owner = p.name WHERE (p.age > 30 AND p.age < 40)",
        "SELECT p.name FROM people AS p JOIN pets ON pets.`kind` = p.name WHERE p.age BETWEEN 30 AND 40",
        "SELECT p.name FROM people AS p JOIN pets ON pets.owner = p.`city` WHERE p.age BETWEEN 30 AND 40",
    ]
    assert slips_of(question("?", "no SQL at all")) == []


def test_a_columns_kind_is_that_of_its_type_not_of_words_in_it() -> None:
    """`interested` has INT in it, and `declined` DEC."""
    columns = (Column("name", "VARCHAR(20)"), Column("reply", "ENUM('interested','declined')"))
    leads = Table("leads", columns, (("Ann", "declined"),))
    sql = "SELECT name FROM leads WHERE reply = 'declined'"
    assert "SELECT `reply` FROM leads WHERE reply = 'declined'" in slips_of(
        question("?", sql, tables=(leads,))
    )


PETS = table(
    "pets",
    "id INT PRIMARY KEY, nr INT UNIQUE, kind TEXT NOT NULL, age INT",
    *((1, None, "cat", 3), (2, None, "dog", 3), (3, 7, "cat", None)),
)


@pytest.mark.parametrize(
    ("sql", "slip", "shows"),
    [
        ("SELECT COUNT(id) FROM pets", "SELECT COUNT(DISTINCT id) FROM pets", False),
        ("SELECT COUNT(DISTINCT ID) FROM pets", "SELECT COUNT(ID) FROM pets", False),
        (
            "SELECT kind, COUNT(id) FROM pets GROUP BY kind",
            "SELECT kind, COUNT(DISTINCT id) FROM pets GROUP BY kind",
            False,
        ),
        ("SELECT COUNT(age) FROM pets", "SELECT COUNT(DISTINCT age) FROM pets", True),
        ("SELECT DISTINCT id, kind FROM pets", "SELECT id, kind FROM pets", False),
        ("SELECT DISTINCT * FROM pets", "SELECT * FROM pets", False),
        ("SELECT DISTINCT kind FROM pets", "SELECT kind FROM pets", True),
        ("SELECT DISTINCT nr FROM pets", "SELECT nr FROM pets", True),  # two are NULL
        ("SELECT MAX(age) FROM pets LIMIT 1", "SELECT MAX(age) FROM pets", False),
        ("SELECT MAX(age) FROM pets GROUP BY kind LIMIT 1", "SELECT MAX(age) FROM pets GROUP BY kind", True),
        ("SELECT MAX(age) OVER () FROM pets LIMIT 1", "SELECT MAX(age) OVER () FROM pets", True),
        ("SELECT age FROM pets WHERE kind IS NOT NULL", "SELECT age FROM pets", False),
        (
            "SELECT id FROM pets WHERE age > 2 AND kind IS NOT NULL",
            "SELECT id FROM pets WHERE age > 2",
            False,
        ),
        (
            "SELECT id FROM pets WHERE age > 2 AND kind IS NOT NULL",
            "SELECT id FROM pets WHERE NOT kind IS NULL",
            True,
        ),
        ("SELECT id FROM pets WHERE age IS NOT NULL", "SELECT id FROM pets", True),
        (
            "SELECT COUNT(pets.id) FROM pets JOIN people ON city = kind",
            "SELECT COUNT(DISTINCT pets.id) FROM pets JOIN people ON city = kind",
            True,
        ),
    ],
)
def test_a_slip_that_no_rows_could_show_is_none(sql: str, slip: str, shows: bool) -> None:
    assert (slip in slips_of(question("?", sql, tables=(PETS, PEOPLE)))) == shows


# --- repairs -----------------------------------------------------------------------------------------------


def test_a_repair_adds_the_row_that_the_slip_gets_wrong(
    sqlite_database: Database, database: Database
) -> None:
    """Someone else called Cy, or a Cy elsewhere: then `WHERE name = 'Cy'` alone changes too much."""
    weak = change("Cy of Oslo is 53.", "UPDATE people SET age = 53 WHERE name = 'Cy' AND city = 'Oslo'")
    better, changes = repaired(weak, [sqlite_database, database]) or pytest.fail("no repair was found")
    assert better.id == "c-repaired" and better.question == weak.question and better.gold.sql == weak.gold.sql
    assert changes and better.tables != weak.tables
    assert not [finding for finding in examine(better, [database]) if finding.is_fault]
    assert next(iter(validate([better], database))).problem is None


def test_a_repaired_questions_answer_is_that_of_its_gold_sql(sqlite_database: Database) -> None:
    weak = question("Whose ages?", "SELECT DISTINCT age FROM people ORDER BY age", (30,), (41,), (52,), (63,))
    better, changes = repaired(weak, [sqlite_database]) or pytest.fail("no repair was found")
    ages = sorted({row[2] for row in better.tables[0].rows})
    assert better.gold.answer == tuple((age,) for age in ages)
    assert len(better.tables[0].rows) > len(ages), "two have the same age now"
    assert str(changes[0]).startswith("people: ")


def test_a_repaired_answer_has_dates_and_times_as_text(sqlite_database: Database) -> None:
    """As tasks hold them: a date is no JSON."""
    dated = table(
        "people",
        "name TEXT, born DATE, wakes TIME, age INT",
        *(("Ann", "2000-01-02", "06:30:00", 30), ("Bo", "1999-05-06", "07:00:00", 25)),
        ("Cy", "1990-03-04", "08:00:00", 41),
    )
    sql = "SELECT born, wakes FROM people WHERE age >= 30 AND name = 'Ann'"
    answer = ("2000-01-02", "06:30:00")
    weak = question(
        "When was Ann, who is at least 30, born, and when does she wake?", sql, answer, tables=(dated,)
    )
    better, _ = repaired(weak, [sqlite_database]) or pytest.fail("no repair was found")
    assert better.gold.answer == (answer,) and Task.from_json(better.to_json()) == better


def test_a_repair_keeps_keys(sqlite_database: Database) -> None:
    keyed = table("people", "id INT PRIMARY KEY, name VARCHAR(20), age INT", (1, "Ann", 30), (2, "Bo", 41))
    sql = "SELECT name FROM people WHERE age < 41 AND name <> 'Bo'"
    weak = question("Who but Bo is below 41?", sql, ("Ann",), tables=(keyed,))
    better, _ = repaired(weak, [sqlite_database]) or pytest.fail("no repair was found")
    assert [row[0] for row in better.tables[0].rows] == list(range(1, len(better.tables[0].rows) + 1))


def test_a_repair_puts_no_text_into_a_column_that_cannot_hold_it(sqlite_database: Database) -> None:
    """The repair tries 2024, from the gold SQL, as a day. A DATE column refuses it, and the repair goes on."""
    dated = table("visits", "day DATE, cost INT", ("2024-01-05", 30), ("2023-06-01", 41), ("2024-03-01", 200))
    sql = "SELECT day FROM visits WHERE YEAR(day) = 2024 AND cost < 100"
    weak = question("Which days of 2024 cost less than 100?", sql, ("2024-01-05",), tables=(dated,))
    (audited,) = audit([weak], [sqlite_database], repair=True)
    assert audited.outcome in ("repaired", "dropped")


def test_what_lies_in_a_file_is_not_repaired(sqlite_database: Database, tmp_path: Path) -> None:
    path = tmp_path / "people.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE people (name TEXT, age INT); INSERT INTO people VALUES ('Ann', 30)"
    )
    connection.close()
    source = Source.of(path)
    gold = Gold(sql="SELECT name FROM people WHERE age > 20")
    task = Task("q", "?", source.tables(), "SELECT", gold, (), "strict", source, "sqlite")
    assert ("weak", "also right: SELECT name FROM people") in found(task, sqlite_database)
    assert [each.outcome for each in audit([task], [sqlite_database], repair=True)] == ["dropped"]


def rewarded(task: Task, database: Database) -> list[str]:
    """The slips of its gold SQL that are right as well."""
    tree = only_statement(task.gold.sql or "")
    assert tree is not None
    return Examined(task, database).surviving(list(wrong_statements(tree)))


@pytest.fixture(scope="module")
def rewarding(sqlite_database: Database) -> dict[Task, list[str]]:
    """AgentBench's changes that reward slips, and these."""
    if not AGENTBENCH.is_dir():
        lacking("data", "the published tasks are not beside the project")
    files = [AGENTBENCH / "dev.jsonl", AGENTBENCH / "standard_part.jsonl"]
    changes = [task for file in files for task in load_tasks(file) if not task.is_question]
    return {task: slips for task in changes if (slips := rewarded(task, sqlite_database))}


@pytest.fixture(scope="module")
def mended(rewarding: dict[Task, list[str]], sqlite_database: Database) -> list[Task]:
    """What an audit makes of them."""
    audited = list(audit(list(rewarding), [sqlite_database], repair=True))
    assert {each.outcome for each in audited} <= {"repaired", "dropped"}
    return [each.kept for each in audited if each.kept is not None]


@pytest.mark.slow
def test_the_slips_that_agentbench_rewards(
    rewarding: dict[Task, list[str]], mended: list[Task], sqlite_database: Database
) -> None:
    """13 of 173 slips in nine of its changes; in repaired tasks none."""
    assert (sum(map(len, rewarding.values())), len(rewarding)) == (13, 9)
    assert len(mended) >= 6
    assert [rewarded(task, sqlite_database) for task in mended] == [[]] * len(mended)


@pytest.mark.slow
def test_repaired_tasks_of_agentbench_validate_everywhere(mended: list[Task], database: Database) -> None:
    assert [each.problem for each in validate(mended, database)] == [None] * len(mended)


# --- faults that were planted ------------------------------------------------------------------------------


def _other_value(task: Task, rng: random.Random) -> Task | None:
    """Another of the table's values in the place of one that the question names; the gold answer fits it."""
    tree = only_statement(task.gold.sql or "")
    assert tree is not None
    texts = [each for each in tree.find_all(exp.Literal) if each.is_string and len(each.name) > 3]
    cells = [cell for row in task.tables[0].rows for cell in row if isinstance(cell, str) and len(cell) > 3]
    fresh = [cell for cell in cells if cell.casefold() not in task.question.casefold()]
    if not texts or not fresh:
        return None
    rng.choice(texts).replace(exp.Literal.string(rng.choice(fresh)))
    return with_sql(task, tree.sql(dialect="mysql"))


def _no_condition(task: Task, rng: random.Random) -> Task | None:
    """Without its WHERE, which names a value; the gold answer fits that."""
    tree = only_statement(task.gold.sql or "")
    assert tree is not None
    where = tree.args.get("where")
    values = [] if where is None else [each for each in where.find_all(exp.Literal) if len(each.name) > 3]
    if not values:
        return None
    where.pop()
    return with_sql(task, tree.sql(dialect="mysql"))


def _other_answer(task: Task, rng: random.Random) -> Task | None:
    if task.gold.answer is None:
        return replace(task, gold=replace(task.gold, state_md5="0" * 32))
    return replace(task, gold=replace(task.gold, answer=(*task.gold.answer, ("something else",))))


def _other_column(task: Task, rng: random.Random) -> Task | None:
    tree = only_statement(task.gold.sql or "")
    assert tree is not None
    columns = list(tree.find_all(exp.Column))
    if not columns:
        return None
    rng.choice(columns).this.replace(exp.to_identifier("no_such_column"))
    return with_sql(task, tree.sql(dialect="mysql"))


def _nobody(task: Task, rng: random.Random) -> Task | None:
    tree = only_statement(task.gold.sql or "")
    if not isinstance(tree, exp.Select | exp.Delete | exp.Update) or tree.args.get("group"):
        return None
    if isinstance(tree, exp.Select) and tree.find(exp.AggFunc):
        return None
    return with_sql(task, tree.where("1 = 2").sql(dialect="mysql"))


def _by_chance(task: Task, rng: random.Random) -> Task | None:
    tree = only_statement(task.gold.sql or "")
    if not isinstance(tree, exp.Select) or tree.args.get("group") or tree.find(exp.AggFunc):
        return None
    return with_sql(task, tree.order_by("RAND()", append=False).limit(1).sql(dialect="mysql"))


def _any_row(task: Task, rng: random.Random) -> Task | None:
    """The first row of a table that has no first row."""
    tree = only_statement(task.gold.sql or "")
    if not isinstance(tree, exp.Select) or len(set(task.tables[0].rows)) < 3 or not task.is_question:
        return None
    return with_sql(task, f"SELECT * FROM `{task.tables[0].name}` LIMIT 1")


FAULTS = (_other_value, _no_condition, _other_answer, _other_column, _nobody, _by_chance, _any_row)


@pytest.mark.parametrize("count", [pytest.param(100, marks=pytest.mark.slow), pytest.param(1000, marks=LONG)])
def test_planted_faults_are_found_and_sound_tasks_left_alone(count: int, sqlite_database: Database) -> None:
    """One fault in each task: at least 99 % are found. Without it at most 1 % have a finding but `weak`."""
    tasks = generate_tasks(count, seed=11, workers=2)
    alarms = [
        each.task.id for each in audit(tasks, [sqlite_database]) if {f.kind for f in each.findings} - {"weak"}
    ]
    assert len(alarms) <= count / 100, alarms
    rng = random.Random(0)
    planted: list[tuple[str, Task]] = []
    for task in tasks:
        for fault in rng.sample(FAULTS, len(FAULTS)):
            faulty: Callable = fault
            if (wrong := faulty(task, rng)) is not None:
                if fault not in (_other_answer, _other_column):
                    wrong = fitted(wrong, sqlite_database)
                planted.append((fault.__name__, wrong))
                break
    assert len(planted) == count
    audited = audit([task for _, task in planted], [sqlite_database])
    missed = [
        (name, each.task.question, each.task.gold.sql)
        for (name, _), each in zip(planted, audited, strict=True)
        if not {finding.kind for finding in each.findings} - {"weak"}
    ]
    assert len(missed) <= count / 100, missed


def test_doubtful_tasks_are_dropped_where_that_is_asked_for(sqlite_database: Database) -> None:
    doubtful = change("Bo is 31 now.", "UPDATE people SET age = 31 WHERE name = 'Ann'")
    unexamined = Task("q", "Who?", (PEOPLE,), "SELECT", Gold(answer=("Ann",)), grader=None)
    outcomes = {
        drop: [
            each.outcome
            for each in audit([doubtful, unexamined], [sqlite_database], repair=True, drop_doubtful=drop)
        ]
        for drop in (False, True)
    }
    assert outcomes == {False: ["sound", "sound"], True: ["dropped", "sound"]}


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_says_what_it_found_and_writes_what_is_sound(
    tmp_path: Path, command: Callable[..., tuple[int | str | None, str]]
) -> None:
    sound = replace(
        question("Who is older than 52?", "SELECT name FROM people WHERE age > 52", ("Di",)), id="a"
    )
    broken = replace(question("Who <b>is</b> it?", "SELECT nobody FROM people", ("Ann",)), id="b")
    weak = replace(
        change("Cy of Oslo is 53.", "UPDATE people SET age = 53 WHERE name = 'Cy' AND city = 'Oslo'"), id="c"
    )
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(task.to_json() + "\n" for task in (sound, broken, weak)))
    status, said = command("audit", path)
    assert status == 1
    assert "b: fails: SQLite: " in said and "c: weak: also right: " in said
    assert said.endswith("1 sound, 2 faulty\n")
    fixed, page, report = (tmp_path / name for name in ("fixed.jsonl", "audit.html", "audit.json"))
    status, said = command("audit", path, "--fix", fixed, "--report", page, "--json", report)
    assert status == 0
    assert "c: repaired: people: " in said and f"{fixed}: 2 of 3 tasks\n" in said
    assert [task.id for task in load_tasks(fixed)] == ["a", "c-repaired"]
    entries = {entry["id"]: entry for entry in json.loads(report.read_text())}
    assert [entries[name]["outcome"] for name in "abc"] == ["sound", "dropped", "repaired"]
    assert entries["c"]["changes"][0]["table"] == "people"
    assert "Who &lt;b&gt;is&lt;/b&gt; it?" in page.read_text() and "<b>is" not in page.read_text()
    error, _ = command("audit", path, "--drop-doubtful")
    assert error == "error: --drop-doubtful goes with --fix, which is not given."
