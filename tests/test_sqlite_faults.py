"""Whose fault it is when a statement fails in the embedded database: the agent's, whatever it wrote, unless the
emulation itself is wrong."""

from __future__ import annotations

import logging
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from databases import task
from hostile import TABLES, items
from required import LONG
from sqlglot import exp

from trl_dbbench.database import Database, open_database
from trl_dbbench.database.sandbox import State
from trl_dbbench.database.sqlite import guard, rules
from trl_dbbench.database.sqlite.sandbox import SQLiteSandbox
from trl_dbbench.database.sqlite.statements import look
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.tasks import Task

QUESTION = task(*TABLES)


# --- the emulation's mistakes -----------------------------------------------------------------------------


def test_a_mistake_in_the_translation_is_a_fault(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was the agent's syntax error: an episode was judged wrong, and no log said why."""

    def broken_rule(node: exp.Expr) -> exp.Expr:
        raise AttributeError("'NoneType' object has no attribute 'name'")

    monkeypatch.setitem(rules._RULES, exp.Xor, broken_rule)
    with (
        sqlite_database.fresh_sandbox(QUESTION) as sandbox,
        caplog.at_level(logging.ERROR, "trl_dbbench.database"),
        pytest.raises(EnvironmentFault, match="has no attribute 'name'"),
    ):
        sandbox.execute("SELECT 1 XOR 0 AS this_one_only")
    assert "The emulation of MySQL failed on 'SELECT 1 XOR 0 AS this_one_only'" in caplog.text
    assert "in broken_rule" in caplog.text


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("no len()"), AssertionError(), IndexError()])
def test_a_mistake_in_a_function_is_a_fault(
    sqlite_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """A TypeError passed for a wrong number of arguments, and the others for unknown errors."""

    def broken_function(value: object) -> None:
        raise error

    monkeypatch.setitem(guard._FUNCTIONS, "UPPER", broken_function)
    with sqlite_database.fresh_sandbox(QUESTION) as sandbox, pytest.raises(EnvironmentFault):
        sandbox.execute("SELECT UPPER(nation) FROM medals")
    assert "in broken_function" in caplog.text


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


@pytest.mark.fuzz
@pytest.mark.timeout(300)
def test_nothing_that_an_agent_writes_is_the_emulations_fault(
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


# --- threads ----------------------------------------------------------------------------------------------


def test_threads_share_no_tree() -> None:
    sql = "SELECT nation FROM medals WHERE gold > 1 ORDER BY nation"
    trees = [look(sql).tree, look(sql).tree]
    thread = threading.Thread(target=lambda: trees.append(look(sql).tree))
    thread.start()
    thread.join()
    assert trees[0] is trees[1] is not trees[2]
    assert trees[0] == trees[2]


@pytest.mark.parametrize(
    "times",
    [
        pytest.param(2, marks=pytest.mark.short),
        pytest.param(6, marks=pytest.mark.slow),
        pytest.param(40, marks=LONG),
    ],
)
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
