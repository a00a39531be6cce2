"""Whose fault it is when a statement fails in the embedded database: the agent's, whatever it wrote, or nobody's,
unless a probe of ours fails as well."""

from __future__ import annotations

import dataclasses
import logging
import random
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from databases import table, task
from fakes import play_script
from hostile import TABLES, items
from required import LONG
from sqlglot import exp
from transformers import PreTrainedTokenizerBase

from trl_dbbench.database import Database, Limits, QueryResult, open_database
from trl_dbbench.database.embedded import mistakes
from trl_dbbench.database.embedded.sandbox import SQLiteSandbox
from trl_dbbench.database.sandbox import State, TableState
from trl_dbbench.episode.types import Status
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.evaluation.evaluate import Evaluation
from trl_dbbench.mysqlite import guard, rules, tables
from trl_dbbench.mysqlite.statements import look
from trl_dbbench.runs.metrics import episode_metrics
from trl_dbbench.runs.records import episode_record
from trl_dbbench.tasks import Source, Task
from trl_dbbench.training.alarms import alarm_metrics

QUESTION = task(*TABLES)


# --- the emulation's mistakes -----------------------------------------------------------------------------

REFUSED = "1235 (42000): This statement cannot be executed here"


def broken_rule(node: exp.Expr) -> exp.Expr:
    raise AttributeError("'NoneType' object has no attribute 'name'")


@pytest.fixture
def broken_xor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The translation fails at XOR."""
    monkeypatch.setitem(rules._RULES, exp.Xor, broken_rule)
    monkeypatch.setattr(mistakes, "_met", set())


def test_a_mistake_in_the_translation_is_an_answer(
    sqlite_database: Database, broken_xor: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It was a fault: whoever wrote such a statement got rid of a wrong episode. The log says why, once."""
    with (
        sqlite_database.sandbox(QUESTION) as sandbox,
        caplog.at_level(logging.ERROR, "trl_dbbench.database"),
    ):
        sandbox.execute("UPDATE medals SET gold = 5")
        for name in ("this_one_only", "another"):
            result = sandbox.execute(f"SELECT 1 XOR 0 AS {name}")
            assert (result.error, result.error_code, result.limit) == (REFUSED, 1235, "emulation")
        assert sandbox.execute("SELECT DISTINCT gold FROM medals").rows == [(5,)]
        assert [row[1] for row in sandbox.state()["medals"].rows] == [5, 5, 5]
        assert sandbox.retries == 0
    assert "The emulation of MySQL failed on 'SELECT 1 XOR 0 AS this_one_only'" in caplog.text
    assert caplog.text.count("in broken_rule") == 1 and "another" not in caplog.text


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("no len()"), AssertionError(), IndexError()])
def test_a_mistake_in_a_function_is_an_answer(
    sqlite_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """And what the statement did until then is undone."""

    def broken_function(value: object) -> object:
        if value == "Peru":
            raise error
        return value

    monkeypatch.setitem(guard._FUNCTIONS, "UPPER", broken_function)
    monkeypatch.setattr(mistakes, "_met", set())
    with sqlite_database.fresh_sandbox(QUESTION) as sandbox:
        before = sandbox.state()
        assert sandbox.execute("UPDATE medals SET nation = UPPER(nation), gold = 7").error == REFUSED
        assert sandbox.state() == before
        assert sandbox.execute("UPDATE medals SET gold = 7 WHERE gold = 1").affected == 1
    assert "in broken_function" in caplog.text


def test_a_statement_that_was_half_done_is_undone(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ALTER TABLE is several statements of SQLite's. The tables are made again, and no retry is counted."""

    def broken_alter(tree: exp.Alter) -> Iterator[str]:
        yield "ALTER TABLE medals ADD COLUMN a INT"
        raise AttributeError("no attribute 'db'")

    monkeypatch.setattr(tables, "alter", broken_alter)
    with sqlite_database.sandbox(QUESTION) as sandbox:
        sandbox.execute("SELECT RAND()")  # gives something else when it is repeated
        sandbox.execute("UPDATE medals SET gold = 9")
        sandbox.execute("BEGIN")
        sandbox.execute("DELETE FROM medals WHERE nation = 'Chad'")
        assert sandbox.execute("ALTER TABLE medals ADD COLUMN a INT, ADD COLUMN b INT").error == REFUSED
        assert sandbox.state()["medals"] == TableState(("nation", "gold"), [("Peru", 9), ("Perú", 9)])
        assert sandbox.retries == 0


def test_a_mistake_is_counted_and_its_episode_too(
    sqlite_database: Database, broken_xor: None, late_orders: Task, tokenizer: PreTrainedTokenizerBase
) -> None:
    turns = ["Action: Operation\n```sql\nSELECT 1 XOR 0\n```", "Action: Answer\nFinal Answer: [(7,)]"]
    episode = play_script(late_orders, turns, tokenizer, sqlite_database)
    assert (episode.status, episode.right) == (Status.ANSWERED, False)
    record = episode_record(episode, "train", 0)
    metrics = episode_metrics([record])
    assert metrics["database/emulation_mistakes"] == [1]
    assert metrics["accuracy"] == [0.0]
    assert alarm_metrics([record], 1, [1.0], sqlite_database.dialect)["error/limit_emulation"] == [1.0]
    evaluation = Evaluation([episode])
    assert evaluation.to_dict()["emulation_mistakes"] == 1
    assert re.search(r"^database/emulation_mistakes +1$", str(evaluation), re.MULTILINE)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT CAST(gold AS DECIMAL(5.2)) FROM medals", "1064"),
        ("CREATE TABLE t (a DECIMAL(5.2))", "1064"),
        ("ALTER TABLE DATE(medals) RENAME TO x", "1064"),
        ("SELECT CAST(gold AS CHAR(1.5)) FROM medals", "1064"),
        ("SELECT 0.999999999999999999999999999999", None),
        ("TRUNCATE ${x}", "1064"),
        ("SELECT JSON_EXTRACT(0.5, 0x8000000000000000)", "1235"),
        ("SELECT GROUP_CONCAT(gold SEPARATOR x'') FROM medals", "1235"),
        ("CREATE TABLE u (a INT, KEY k (a${x}))", "1235"),
        ("CREATE TABLE u (a INT, 'ff' AS KEY k (a))", "1064"),
    ],
)
def test_what_was_a_mistake(sqlite_database: Database, sql: str, error: str | None) -> None:
    with sqlite_database.fresh_sandbox(QUESTION) as sandbox:
        result = sandbox.execute(sql)
        assert result.limit is None
        assert (result.error or "")[:4] == (error or "")


# --- the environment's failures ---------------------------------------------------------------------------

SPILL = (
    "SELECT COUNT(*) FROM (SELECT DISTINCT a.note AS p, b.note AS q, a.note AS r, b.note AS s, a.note AS u, "
    "b.note AS v, a.note AS w, b.note AS x FROM orders a, orders b) AS t"
)
"""6 MB and more."""


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_no_room_for_temporary_files_is_a_fault(dialect: str) -> None:
    """For a probe there is none either: the agent is not told of a full table."""
    script = f"""
import dataclasses, resource, signal
from databases import task
from hostile import TABLES
from trl_dbbench.database import Limits, open_database
from trl_dbbench.errors import EnvironmentFault
question = dataclasses.replace(task(*TABLES), dialect={dialect!r})
with open_database("sqlite", limits=Limits(seconds=20)) as database, database.fresh_sandbox(question) as sandbox:
    assert sandbox.execute({SPILL!r}).rows == [(90_000,)]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        print("answered", sandbox.execute({SPILL!r}))
    except EnvironmentFault as fault:
        print("fault", fault)
"""
    folder = str(Path(__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.stdout.startswith("fault SQLite failed"), ran.stdout + ran.stderr


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_tables_are_read_after_a_statement_that_ran_out_of_time(dialect: str) -> None:
    """The statement's time was that of the reading, too: a fault after each of them, for tables of some size."""
    rows = table("orders", "id INT, note VARCHAR(40)", *((n, "x") for n in range(3000)))
    question = dataclasses.replace(task(rows), dialect=dialect)
    with (
        open_database("sqlite", limits=Limits(seconds=0.2)) as database,
        database.fresh_sandbox(question) as sandbox,
    ):
        for number in range(400):  # names to look through, too
            while sandbox.execute(f"CREATE TABLE t{number} (a INT)").limit == "time":  # on a busy machine
                pass
        product = "SELECT COUNT(*) FROM orders a, orders b, orders c WHERE a.id + b.id + c.id < 0"
        assert sandbox.execute(product).limit == "time"
        state = sandbox.state()
        assert len(state["orders"].rows) == 3000 and len(state) == 401


# --- the agent's mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("CREATE NOTHING x", "1064"),
        ("CREATE VIEW v AS SELECT ", "1064"),
        ("DELETE medals", "1064"),
        ("UPDATE medals", "1064"),
        ("ALTER TABLE medals DROP COLUMN", "1064"),
        ("CREATE TABLE t (a DECIMAL(10, ten))", "1064"),
        ("SELECT * FROM dbbench..medals", "1064"),
        ("HANDLER medals OPEN", "1064"),
        ("SELECT *", "1096"),
        ("CALL nothing()", "1235"),
        ("SELECT my_GROUP_CONCAT(1, 2, 3)", "1305 (42000): FUNCTION dbbench.MY_GROUP_CONCAT does not exist"),
        ("CREATE TABLE t (a TEXT DEFAULT (my_REPEAT('x', 3)))", "1305"),
        ("SELECT UPPER('a', 'b')", "1582 (42000): Incorrect parameter count in the call to native function"),
        ("SELECT LN(8, 2)", "1582"),
        ("SELECT FIND_IN_SET('a')", "1582"),
    ],
)
def test_mistakes_of_the_agent(sqlite_database: Database, sql: str, error: str) -> None:
    with sqlite_database.fresh_sandbox(QUESTION) as sandbox:
        assert (sandbox.execute(sql).error or "").startswith(error)
        assert len(sandbox.state()["medals"].rows) == 3


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT REGEXP_LIKE('a', 'A', 1)", [(1,)]),
        ("SELECT FROM_UNIXTIME(4611686018427387904)", [(None,)]),
        ("SELECT CAST('abc' AS CHAR(2))", [("ab",)]),
    ],
)
def test_arguments_of_any_kind(sqlite_database: Database, sql: str, rows: list[tuple]) -> None:
    with sqlite_database.fresh_sandbox(QUESTION) as sandbox:
        assert sandbox.execute(sql).rows == rows


@pytest.mark.parametrize("database", ["sqlite", "docker"], indirect=True)
@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("RENAME TABLE medals TO `gold medals`", {"gold medals", "orders"}),
        ("RENAME TABLE medals TO m, orders TO medals, m TO orders", {"medals", "orders"}),
        ("RENAME TABLE nothing TO m", {"medals", "orders"}),
        ("RENAME TABLE medals m", {"medals", "orders"}),
    ],
)
def test_rename_table(database: Database, sql: str, tables: set[str]) -> None:
    """RENAME was a syntax error, as all that sqlglot does not parse."""
    with database.sandbox(QUESTION) as sandbox:
        error = sandbox.execute(sql).error
        assert (error or "None")[:4] == {"nothing TO": "1146", "medals m": "1064"}.get(
            (re.findall("nothing TO|medals m$", sql) or [""])[0], "None"
        )
        assert set(sandbox.state()) == tables


@pytest.mark.slow
@pytest.mark.fuzz
@pytest.mark.timeout(300)
def test_nothing_that_an_agent_writes_is_a_fault(
    sqlite_database: Database, request: pytest.FixtureRequest
) -> None:
    """Statements that were cut, mixed and spliced."""
    chance = random.Random(f"faults {request.config.getoption('--hypothesis-seed') or ''}")
    whole = [sql for _, item in items() for sql in item if sql.strip() and len(sql) < 300]
    parts = [re.findall(r"'[^']*'|`[^`]*`|\w+|\s+|[^\w\s]", sql) for sql in whole]
    words = sorted({word for each in parts for word in each})
    faults = []
    sandbox = sqlite_database.fresh_sandbox(QUESTION)
    for number in range(2_000):
        tokens = list(chance.choice(parts))
        for _ in range(chance.choice([1, 1, 2, 3, 5])):
            place, other = chance.randrange(len(tokens) + 1), chance.choice(parts)
            start = chance.randrange(len(other))
            tokens[place : place + chance.randrange(3)] = chance.choice(
                [[], [f" {chance.choice(words)} "], other[start : start + chance.randrange(8)]]
            )
        sql = "".join(tokens)
        try:
            sandbox.execute(sql)
        except EnvironmentFault as fault:
            faults.append(f"{fault}: {sql}")
        if number % 50 == 49 or faults:
            sandbox.close()
            sandbox = sqlite_database.fresh_sandbox(QUESTION)
    sandbox.close()
    assert not faults, "\n".join(faults)


# --- SQLite's own dialect ---------------------------------------------------------------------------------

VIRTUAL = """
CREATE TABLE medals (nation TEXT, gold INT);
INSERT INTO medals VALUES ('Chad', 1), ('Peru', 22);
CREATE VIRTUAL TABLE words USING fts5(word);
INSERT INTO words VALUES ('one'), ('two three');
CREATE VIRTUAL TABLE boxes USING rtree(id, low, high);
INSERT INTO boxes VALUES (1, 0, 5), (2, 3, 9);
"""


@pytest.fixture
def virtual_tables(tmp_path: Path) -> Task:
    path = tmp_path / "virtual.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(VIRTUAL)
    connection.close()
    return dataclasses.replace(task(), source=Source.of(path), dialect="sqlite")


@pytest.mark.parametrize(
    "overwrite",
    [
        "UPDATE words_data SET block = x'00'",
        "UPDATE words_data SET block = zeroblob(2000)",
        "DELETE FROM words_data",
        "DELETE FROM words_config",
        "UPDATE words_docsize SET sz = x'ff'",
        "DELETE FROM words_content",
        "UPDATE boxes_node SET data = x'00'",
        "UPDATE boxes_node SET data = randomblob(length(data))",
        "DELETE FROM boxes_node",
        "DELETE FROM boxes_rowid",
        "INSERT INTO boxes_parent VALUES (1, 1), (2, 1)",
    ],
)
def test_who_overwrites_what_a_virtual_table_is_made_of_reads_errors(
    sqlite_database: Database, virtual_tables: Task, overwrite: str
) -> None:
    """`database disk image is malformed` was a fault, in the statement and in the state of the tables."""
    with sqlite_database.sandbox(virtual_tables) as sandbox:
        for sql in (
            "SELECT random()",
            overwrite,
            "SELECT * FROM words WHERE words MATCH 'two'",
            "SELECT count(*) FROM words",
            "INSERT INTO words VALUES ('four')",
            "INSERT INTO words (words) VALUES ('integrity-check')",
            "DELETE FROM words",
            "SELECT * FROM boxes WHERE low < 4",
            "INSERT INTO boxes VALUES (3, 1, 1)",
            "DELETE FROM boxes",
        ):
            assert isinstance(sandbox.execute(sql), QueryResult)
        assert sandbox.execute("UPDATE medals SET gold = gold + 1").affected == 2
        assert sandbox.state()["medals"].rows == [("Chad", 2), ("Peru", 23)]
        assert sandbox.retries == 0


def test_what_cannot_be_repeated_on_a_copy_is_no_fault(
    sqlite_database: Database, virtual_tables: Task
) -> None:
    """The first change of a file's table goes to a copy of it, on which temporary tables are made again."""
    with sqlite_database.sandbox(virtual_tables) as sandbox:
        sandbox.execute("CREATE TEMP TABLE seen (x)")
        for _ in range(20):
            sandbox.execute(
                "INSERT INTO seen SELECT json(CASE WHEN random() % 2 THEN '1' ELSE 'no JSON' END)"
            )
        assert sandbox.execute("UPDATE medals SET gold = 7").affected == 2
        assert 0 < sandbox.execute("SELECT count(*) FROM seen").rows[0][0] < 20
        assert sandbox.state()["medals"].rows == [("Chad", 7), ("Peru", 7)]
        assert sandbox.retries == 0


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        ("(id * 2)", [(1, 2), (2, 4)]),
        ("(hex(zeroblob(500000000)))", None),
        ("(json('[' || id))", None),
        ("(abs(-9223372036854775808))", None),
    ],
)
def test_a_column_that_is_computed_when_it_is_read(
    sqlite_database: Database, column: str, rows: list[tuple] | None
) -> None:
    """One that no statement could read is none of the state's: 1 GB of text was, where memory allowed it."""
    ids = dataclasses.replace(task(table("ids", "id INT", (1,), (2,)), table("n", "n INT")), dialect="sqlite")
    with sqlite_database.sandbox(ids) as sandbox:
        sandbox.execute(f"ALTER TABLE ids ADD COLUMN made AS {column}")
        state = sandbox.state()
        assert (state["ids"].rows if "ids" in state else None) == rows
        assert "n" in state
        assert sandbox.execute("SELECT id FROM ids").rows == [(1,), (2,)]
        assert sandbox.retries == 0


# --- threads ----------------------------------------------------------------------------------------------


def test_threads_share_no_tree() -> None:
    sql = "SELECT nation FROM medals WHERE gold > 1 ORDER BY nation"
    trees = [look(sql).tree, look(sql).tree]
    thread = threading.Thread(target=lambda: trees.append(look(sql).tree))
    thread.start()
    thread.join()
    assert trees[0] is trees[1] is not trees[2]
    assert trees[0] == trees[2]


@pytest.mark.parametrize("times", [2, pytest.param(40, marks=LONG)])
def test_gold_statements_in_many_threads(full_tasks: list[Task], times: int) -> None:
    """They give the rows and tables that they give one after the other, and change no tree."""
    tasks = [each for each in full_tasks if each.gold.sql][:200]

    def outcome(each: Task, database: Database) -> tuple[object, State]:
        assert each.gold.sql is not None
        with database.sandbox(each) as sandbox:
            assert isinstance(sandbox._ready(), SQLiteSandbox)
            result = sandbox.execute(each.gold.sql)
            return (result.rows, result.error, result.affected), sandbox.state()

    with open_database("sqlite") as database:
        alone = [outcome(each, database) for each in tasks]
        assert [result for result, _ in alone if result[1]] == []
        order = list(range(len(tasks))) * times
        random.Random(1).shuffle(order)
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda place: outcome(tasks[place], database), order))
    wrong = [
        (tasks[place].gold.sql, alone[place], found)
        for place, found in zip(order, together, strict=True)
        if found != alone[place]
    ]
    assert not wrong, f"{len(wrong)} of {len(order)}: {wrong[:3]}"
