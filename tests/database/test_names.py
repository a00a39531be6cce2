"""An agent's database is called `dbbench` on every server, and nothing that it reads differs from run to run."""

from __future__ import annotations

import dataclasses
import re

import pytest
from databases import LIMITS, table, task

from trl_dbbench.database import Database, open_database
from trl_dbbench.database.server.names import Names, sent
from trl_dbbench.tasks import Gold

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))
QUESTION = task(MEDALS)
CHANGE = dataclasses.replace(QUESTION, operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = 2"))

REAL = "dbb_1a2b3c4d_r00000_s0000007"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("USE dbbench", "USE REAL"),
        (
            "SELECT dbbench.medals.gold FROM `dbbench` . medals",
            "SELECT REAL.medals.gold FROM `REAL` . medals",
        ),
        ("SELECT * FROM dbbench/**/.medals -- dbbench.x", "SELECT * FROM REAL/**/.medals -- dbbench.x"),
        ("DROP DATABASE IF EXISTS dbbench", "DROP DATABASE IF EXISTS REAL"),
        ("DROP TABLE IF EXISTS dbbench.medals", "DROP TABLE IF EXISTS REAL.medals"),
        ("SHOW FULL TABLES IN dbbench LIKE '%'", "SHOW FULL TABLES IN REAL LIKE '%'"),
        ("SHOW COLUMNS FROM medals FROM dbbench", "SHOW COLUMNS FROM medals FROM REAL"),
        ("SHOW TABLES WHERE Tables_in_dbbench = 'medals'", "SHOW TABLES WHERE Tables_in_REAL = 'medals'"),
        (
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dbbench'",
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'REAL'",
        ),
        ("SELECT REVERSE(DATABASE())", "SELECT REVERSE(REPLACE(DATABASE(), 'REAL', 'dbbench'))"),
        ("SELECT CURRENT_USER ( )", "SELECT REPLACE(CURRENT_USER ( ), 'REAL', 'agent')"),
    ],
)
def test_where_a_statement_means_its_database(sql: str, expected: str) -> None:
    assert sent(sql, REAL) == expected.replace("REAL", REAL)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'dbbench', \"dbbench.medals\", nation AS dbbench FROM medals",
        "SELECT dbbench.gold FROM medals AS dbbench",
        "SELECT medals.dbbench FROM medals",
        "CREATE TABLE IF NOT EXISTS dbbench (a INT)",
        "SHOW COLUMNS FROM dbbench",
        "SELECT * FROM dbbench_old.medals",
        "CREATE VIEW v AS SELECT DATABASE()",
        "SELECT * FROM information_schema.tables WHERE table_schema = DATABASE()",
        "INSERT INTO medals VALUES ('in the dbbench.medals database()', 1)",
    ],
)
def test_where_it_means_something_else(sql: str) -> None:
    assert sent(sql, REAL) == sql


ESCAPED = REAL.replace("_", r"\_")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (f"1146 (42S02): Table '{REAL}.x' doesn't exist", "1146 (42S02): Table 'dbbench.x' doesn't exist"),
        (REAL.encode() + b"\xff", b"dbbench\xff"),
        (REAL.upper(), "DBBENCH"),
        (f"GRANT SELECT ON `{ESCAPED}`.* TO `{REAL}`@`%`", "GRANT SELECT ON `dbbench`.* TO `agent`@`%`"),
        (f"{REAL}@localhost", "agent@localhost"),
        (
            f"GRANT USAGE ON *.* TO `{REAL}`@`%` IDENTIFIED BY PASSWORD '*94BDCEBE19083CE2A1F959FD02F964C7AF4CFC29'",
            "GRANT USAGE ON *.* TO `agent`@`%` IDENTIFIED BY PASSWORD '<secret>'",
        ),
        (
            r"CREATE USER `x`@`%` IDENTIFIED WITH 'caching_sha2_password' AS '$A$005$\'x''y' REQUIRE NONE",
            "CREATE USER `x`@`%` IDENTIFIED WITH 'caching_sha2_password' AS '<secret>' REQUIRE NONE",
        ),
        ("dbb_ca5ca5ca_r00000_s0000001", "dbb_ca5ca5ca_r00000_s0000001"),
        (None, None),
        (5, 5),
    ],
)
def test_what_is_shown(value, shown) -> None:
    assert Names("dbb_1a2b3c4d_r00000").shown(value) == shown


USES = [
    ("SELECT COUNT(*) FROM dbbench.medals", [(2,)]),
    ("SELECT dbbench.medals.gold FROM `dbbench`.`medals` WHERE gold > 1", [(22,)]),
    ("SHOW TABLES FROM dbbench", [("medals",)]),
    ("SHOW FULL TABLES", [("medals", "BASE TABLE")]),
    ("SELECT table_name FROM information_schema.tables WHERE table_schema = 'dbbench'", [("medals",)]),
    ("SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()", [("medals",)]),
    (
        "SELECT table_schema, column_name FROM information_schema.columns WHERE table_name = 'medals' AND "
        "table_schema = 'dbbench' ORDER BY column_name",
        [("dbbench", "gold"), ("dbbench", "nation")],
    ),
    ("SELECT DATABASE(), LENGTH(SCHEMA()), REVERSE(DATABASE())", [("dbbench", 7, "hcnebbd")]),
    ("SELECT DATABASE() = 'dbbench'", [(1,)]),
]


@pytest.mark.parametrize(("sql", "rows"), USES)
@pytest.mark.parametrize("asked", [QUESTION, CHANGE], ids=["question", "change"])
def test_the_name_can_be_used(database: Database, asked, sql: str, rows: list[tuple]) -> None:
    with database.sandbox(asked) as sandbox:
        result = sandbox.execute(sql)
        assert (result.rows, result.error) == (rows, None)


def test_the_name_can_be_used_for_a_change(database: Database) -> None:
    with database.sandbox(CHANGE) as sandbox:
        assert sandbox.execute("USE dbbench").error is None
        assert sandbox.execute("UPDATE dbbench.medals SET gold = 3 WHERE nation = 'Chad'").affected == 1
        assert sandbox.execute("INSERT INTO `dbbench`.medals VALUES ('Mali', 1)").affected == 1
        assert len(sandbox.state()["medals"].rows) == 3
        error = sandbox.execute("SELECT * FROM dbbench.nothing").error
        assert error == "1146 (42S02): Table 'dbbench.nothing' doesn't exist"


def test_an_error_quotes_what_the_agent_wrote(server_database: Database) -> None:
    with server_database.sandbox(CHANGE) as sandbox:
        error = sandbox.execute(
            "SELECT DATABASE(), gold FROM dbbench.medals WHEREVER dbbench.medals.gold > 1"
        ).error
        assert "near 'dbbench.medals.gold > 1' at line 1" in (error or "")


# Two runs.

CORPUS = [
    *(sql for sql, _ in USES),
    "SELECT * FROM dbbench.nothing",
    "SELECT nothing FROM medals",
    "SELECT * FROM elsewhere.medals",
    "INSERT INTO mysql.user VALUES (1)",
    "USE mysql",
    "USE dbbench",
    "EXPLAIN SELECT * FROM medals WHERE gold > 1",
    "EXPLAIN FORMAT=JSON SELECT * FROM medals WHERE gold > 1",
    "EXPLAIN FORMAT=TREE SELECT * FROM medals WHERE gold > 1",
    "EXPLAIN EXTENDED SELECT * FROM medals WHERE gold > 1",
    "SHOW WARNINGS",
    "SELECT * FROM medals PROCEDURE ANALYSE()",
    "SELECT CAST(DATABASE() AS BINARY), CAST(DATABASE() AS CHAR(5)), HEX(DATABASE()), MD5(SCHEMA())",
    "SELECT LENGTH(DATABASE()), UPPER(DATABASE()), CONCAT('x', DATABASE(), 'y'), LEFT(DATABASE(), 6)",
    "SELECT USER(), CURRENT_USER(), CURRENT_USER, SESSION_USER(), SYSTEM_USER(), HEX(USER()), REVERSE(USER())",
    "SELECT UPPER(table_schema), LENGTH(table_schema), CAST(table_schema AS BINARY) FROM information_schema.tables "
    "WHERE table_name = 'medals'",
    "SELECT * FROM information_schema.schemata ORDER BY schema_name",
    "SELECT * FROM information_schema.schema_privileges",
    "SELECT * FROM information_schema.user_privileges",
    "SHOW DATABASES",
    "SHOW DATABASES LIKE 'dbbench'",
    "SHOW GRANTS",
    "SHOW GRANTS FOR CURRENT_USER()",
    "SHOW CREATE USER CURRENT_USER()",
    "SHOW CREATE DATABASE dbbench",
    "SHOW CREATE TABLE dbbench.medals",
    "SHOW TABLES WHERE Tables_in_dbbench = 'medals'",
    "SHOW OPEN TABLES FROM dbbench",
    "CREATE DATABASE dbbench",
    "CREATE VIEW seen AS SELECT *, DATABASE() FROM dbbench.medals",
    "SHOW CREATE VIEW seen",
    "SELECT definer, view_definition FROM information_schema.views",
    "CREATE PROCEDURE p() SELECT DATABASE(), CURRENT_USER()",
    "CALL p()",
    "SELECT routine_schema, definer FROM information_schema.routines WHERE routine_schema = 'dbbench'",
    "CREATE TEMPORARY TABLE dbbench.medals (a INT)",
    "INSERT INTO medals VALUES (DATABASE())",
    "SELECT * FROM t1",
    "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'my own'",
    "GRANT SELECT ON dbbench.medals TO nobody",
    "SET PASSWORD FOR root@localhost = 'x'",
    "SELECT DATABASE() FROM dbbench.medals WHERE ((nation = 'Chad') AND x",
    "DROP DATABASE dbbench",
    "SELECT DATABASE()",
]


@pytest.mark.parametrize("asked", [QUESTION, CHANGE], ids=["question", "change"])
def test_no_observation_differs_from_run_to_run(server_database: Database, asked) -> None:
    first = observations(server_database.url, asked, slots=0)
    second = observations(server_database.url, asked, slots=11)
    differing = {sql: (first[sql], second[sql]) for sql in CORPUS if first[sql] != second[sql]}
    assert not differing
    real = re.compile(r"dbb_|dbb\\_|6462625f|_bbd", re.IGNORECASE)
    assert not {sql: shown for sql, shown in first.items() if real.search(shown)}


def observations(url: str, asked, slots: int) -> dict[str, str]:
    """What an agent reads in an episode of a run that has made so many slots before."""
    with open_database(url, limits=LIMITS) as database:
        for _ in range(slots):
            with database.sandbox(CHANGE) as sandbox:
                sandbox.execute("BEGIN")
        shown = {}
        with database.fresh_sandbox(asked) as sandbox:
            for sql in CORPUS:
                result = sandbox.execute(sql)
                shown[sql] = f"{result.rows} {result.error}"
        return shown


def test_no_hash_of_a_password_is_shown(server_database: Database) -> None:
    with server_database.sandbox(CHANGE) as sandbox:
        for sql in ("SHOW GRANTS", "SHOW CREATE USER CURRENT_USER()", "SHOW CREATE USER"):
            shown = str(sandbox.execute(sql).rows)
            assert not re.search(r"\*[0-9A-F]{40}|\$A\$", shown), shown
