"""The agent's database is called `dbbench`: the embedded database answers as a MySQL of that name does.

The answers are those of MySQL 9.7 with a database that is really called so.
"""

from __future__ import annotations

import pytest
from databases import rows_of, table, task

from trl_dbbench.database import Database

MEDALS = table("medals", "nation TEXT, gold INT", ("Chad", 1), ("Peru", 22))


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT DATABASE(), SCHEMA()", [("dbbench", "dbbench")]),
        ("SELECT gold FROM dbbench.medals", [(1,), (22,)]),
        ("SELECT dbbench.medals.gold FROM `dbbench`.medals", [(1,), (22,)]),
        ("SELECT dbbench.medals.* FROM medals WHERE dbbench.medals.gold > 1", [("Peru", 22)]),
        ("SELECT m.gold FROM dbbench.medals AS m", [(1,), (22,)]),
        ("WITH q AS (SELECT * FROM dbbench.medals) SELECT COUNT(*) FROM q", [(2,)]),
        ("SHOW TABLES FROM dbbench", [("medals",)]),
        ("SHOW COLUMNS FROM dbbench.medals LIKE 'g%'", [("gold", "int", "YES", "", None, "")]),
        ("SHOW COLUMNS FROM medals FROM dbbench LIKE 'g%'", [("gold", "int", "YES", "", None, "")]),
        ("SHOW DATABASES", [("dbbench",), ("information_schema",), ("performance_schema",)]),
        ("SELECT table_name FROM information_schema.tables WHERE table_schema = 'dbbench'", [("medals",)]),
        (
            "SELECT information_schema.tables.table_name FROM information_schema.tables "
            "WHERE tables.table_schema = DATABASE()",
            [("medals",)],
        ),
        ("SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'd%'", [("dbbench",)]),
    ],
)
def test_the_name_can_be_read(sqlite_database: Database, sql: str, rows: list[tuple]) -> None:
    with sqlite_database.sandbox(task(MEDALS)) as sandbox:
        result = sandbox.execute(sql)
        assert (result.rows, result.error) == (rows, None)


@pytest.mark.parametrize(
    ("sql", "state"),
    [
        ("USE dbbench", {"medals": [("Chad", 1), ("Peru", 22)]}),
        (
            "INSERT INTO dbbench.medals VALUES ('Mali', 3)",
            {"medals": [("Chad", 1), ("Peru", 22), ("Mali", 3)]},
        ),
        ("UPDATE dbbench.medals SET dbbench.medals.gold = 7", {"medals": [("Chad", 7), ("Peru", 7)]}),
        ("DELETE FROM dbbench.medals WHERE dbbench.medals.gold = 22", {"medals": [("Chad", 1)]}),
        ("DELETE dbbench.medals FROM dbbench.medals WHERE gold = 22", {"medals": [("Chad", 1)]}),
        ("TRUNCATE TABLE dbbench.medals", {"medals": []}),
        ("DROP TABLE dbbench.medals", {}),
        ("ALTER TABLE dbbench.medals RENAME TO dbbench.m", {"m": [("Chad", 1), ("Peru", 22)]}),
        ("RENAME TABLE dbbench.medals TO dbbench.m", {"m": [("Chad", 1), ("Peru", 22)]}),
        ("DROP TABLE IF EXISTS nope.medals", {"medals": [("Chad", 1), ("Peru", 22)]}),
    ],
)
def test_the_name_can_be_written_to(
    sqlite_database: Database, sql: str, state: dict[str, list[tuple]]
) -> None:
    with sqlite_database.sandbox(task(MEDALS)) as sandbox:
        assert sandbox.execute(sql).error is None
        assert rows_of(sandbox) == state


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("USE nope", "1049 (42000): Unknown database 'nope'"),
        ("USE DBBENCH", "1049 (42000): Unknown database 'DBBENCH'"),
        ("SELECT gold FROM DBBENCH.medals", "1049 (42000): Unknown database 'DBBENCH'"),
        ("SELECT gold FROM nope.medals", "1049 (42000): Unknown database 'nope'"),
        (
            "SELECT nope.medals.gold FROM medals",
            "1054 (42S22): Unknown column 'nope.medals.gold' in 'field list'",
        ),
        ("TRUNCATE TABLE nope.medals", "1146 (42S02): Table 'nope.medals' doesn't exist"),
        ("DROP TABLE nope.medals", "1051 (42S02): Unknown table 'nope.medals'"),
        ("ALTER TABLE medals RENAME TO nope.m", "1049 (42000): Unknown database 'nope'"),
        ("DESCRIBE nope.medals", "1049 (42000): Unknown database 'nope'"),
        ("SHOW COLUMNS FROM medals FROM nope", "1049 (42000): Unknown database 'nope'"),
        ("SHOW CREATE TABLE nope.medals", "1049 (42000): Unknown database 'nope'"),
        ("SHOW TABLES FROM nope", "1049 (42000): Unknown database 'nope'"),
        (
            "SELECT * FROM information_schema.nothing",
            "1235 (42000): This version of MySQL doesn't yet support 'this table of information_schema' (embedded database)",
        ),
    ],
)
def test_other_names_do_not_exist(sqlite_database: Database, sql: str, error: str) -> None:
    """TRUNCATE and DROP of another database's table emptied the agent's own, DESCRIBE and SHOW told of it."""
    with sqlite_database.sandbox(task(MEDALS)) as sandbox:
        assert sandbox.execute(sql).error == error
        assert rows_of(sandbox) == {"medals": list(MEDALS.rows)}
