"""A slot's tables, lent again: what an episode did there is nowhere in the next one's sight."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pymysql
import pytest
from databases import LIMITS, rows_of, table, task
from hostile import PREPARED, TRACES

from trl_dbbench.database import Database, Sandbox, open_database
from trl_dbbench.database.dialect import MARIADB
from trl_dbbench.database.server.slots import MAX_ROWS, is_of_rows
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Gold, Table, Task


def change(*tables: Table) -> Task:
    """A task that has its slot from the start."""
    return dataclasses.replace(task(*tables), operation="UPDATE", gold=Gold(sql="DELETE FROM medals"))


MEDALS = table("medals", "nation VARCHAR(20), gold INT", ("Peru", 22), ("Chad", 1), ("Perú", None))
KEYS = table(
    "keys",
    "id INT PRIMARY KEY, word VARCHAR(9) NOT NULL UNIQUE, n DECIMAL(6,2) DEFAULT '1.50'",
    (7, "b", 1),
    (2, "a", 2),
)
EMPTY = table("of_none", "a TEXT, b DOUBLE, c TIMESTAMP NULL")
WIDE = table("wide", ", ".join(f"c{n} TEXT" for n in range(60)), tuple(f"{n}" for n in range(60)))
TASK = change(MEDALS, KEYS, EMPTY, WIDE)

ROWS_CHANGED = [
    ("INSERT INTO medals VALUES ('Togo', 3), ('Mali', 4)",),
    ("UPDATE medals SET nation = CONCAT(nation, '!'), gold = 0", "DELETE FROM medals WHERE gold = 0 LIMIT 1"),
    ("DELETE FROM medals", "INSERT INTO medals VALUES ('Perú', NULL)"),
    ("DELETE FROM dbbench.medals", "DELETE FROM `keys`", "INSERT INTO of_none VALUES ('x', 1, NOW())"),
    ("INSERT INTO `keys` VALUES (2, 'z', 1)", "UPDATE `keys` SET id = id + 9"),
    ("INSERT INTO `keys` (id, word) VALUES (2, 'c') ON DUPLICATE KEY UPDATE word = 'd'",),
    ("UPDATE medals m JOIN `keys` k ON k.id = 7 SET m.gold = k.id, k.word = m.nation",),
    ("DELETE m, k FROM medals m JOIN `keys` k ON TRUE",),
    ("INSERT INTO of_none (a) SELECT REPEAT(c1, 9999) FROM wide", "UPDATE wide SET c59 = REPEAT('x', 60000)"),
    ("INSERT INTO medals VALUES (1)", "UPDATE no_such SET a = 1", "INSERT INTO `keys` VALUES (2, 'a', 1)"),
    ("UPDATE medals SET gold = 'a' + 1", "INSERT IGNORE INTO `keys` VALUES (2, 'a', 1)"),
    ("SHOW COLUMNS FROM medals", "DESCRIBE `keys`", "SHOW CREATE TABLE wide", "SHOW TABLES", "DELETE FROM wide"),
]  # fmt: skip
"""Statements of episodes whose tables the next one has."""

MORE = [
    ("BEGIN", "DELETE FROM medals"),
    ("SET autocommit = 0", "DELETE FROM medals", "INSERT INTO `keys` VALUES (3, 'c', 1)"),
    ("START TRANSACTION", "UPDATE medals SET gold = 9", "SAVEPOINT s", "SELECT * FROM medals FOR UPDATE"),
    ("LOCK TABLES medals WRITE", "DELETE FROM medals"),
    ("CREATE TEMPORARY TABLE medals (a INT)", "CREATE TEMPORARY TABLE made (a INT)"),
    ("SET @a = 5", "SET @n = 6, @x = 7", "SET sql_mode = '', time_zone = '+09:00'", "SET NAMES latin1"),
    ("PREPARE s FROM 'SELECT 5'", "SELECT SQL_CALC_FOUND_ROWS * FROM medals LIMIT 1", "DO LAST_INSERT_ID(77)"),
    ("SELECT 'a' + 1", "HANDLER medals OPEN"),
    ("CREATE TRIGGER t AFTER INSERT ON medals FOR EACH ROW DELETE FROM `keys`", "INSERT INTO medals VALUES ('x', 1)"),
    ("CREATE VIEW made AS SELECT * FROM medals", "CREATE PROCEDURE p() DELETE FROM medals", "CALL p()"),
    ("CREATE INDEX more ON medals (gold)", "ANALYZE TABLE medals"),
    ("RENAME TABLE medals TO made", "CREATE TABLE medals LIKE `keys`"),
    ("ALTER TABLE medals ADD COLUMN id INT AUTO_INCREMENT PRIMARY KEY", "INSERT INTO medals (gold) VALUES (1)"),
    ("ALTER TABLE medals DROP COLUMN gold", "ALTER TABLE medals COMMENT 'x'", "ALTER TABLE `keys` ENGINE = InnoDB"),
    ("TRUNCATE TABLE medals", "DROP TABLE `keys`, of_none"),
    ("DROP DATABASE dbbench",),
    ("SELECT TABLE_NAME, TABLE_ROWS FROM information_schema.TABLES", "DELETE FROM medals"),
    ("DELETE FROM medals", "SHOW TABLE STATUS", "INSERT INTO medals VALUES ('x', 1)"),
    ("INSERT INTO medals SELECT 'x', 1 FROM wide, `keys` a, `keys` b, `keys` c", "EXPLAIN SELECT * FROM medals"),
    ("DELETE FROM medals WHERE SLEEP(9) = 0",),
    ("SET PASSWORD = 'Mine!2345'",),
    ("REPLACE INTO `keys` VALUES (7, 'a', 3)", "DELETE FROM medals"),
    PREPARED,
]  # fmt: skip
"""Those of episodes whose tables it may not have."""

PROBES = (
    "SELECT * FROM medals",
    "SELECT * FROM `keys`",
    "SELECT * FROM of_none",
    "SELECT * FROM wide",
    "SHOW CREATE TABLE medals",
    "DESCRIBE `keys`",
    "INSERT INTO `keys` (id, word) VALUES (3, 'c')",
    "SELECT * FROM `keys` ORDER BY id",
    "UPDATE medals SET gold = gold + 1",
    "SELECT * FROM medals WHERE nation = 'Peru'",
)
"""What an agent sees that only reads and changes rows, in the tables as they were kept."""

MORE_PROBES = (
    "SELECT TABLE_NAME, ENGINE, CREATE_OPTIONS, TABLE_COMMENT, DATA_LENGTH, INDEX_LENGTH, DATA_FREE, AUTO_INCREMENT, "
    "CREATE_TIME > NOW() - INTERVAL 50 SECOND, UPDATE_TIME > NOW() - INTERVAL 50 SECOND "
    "FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'dbbench' ORDER BY 1",
    "SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS ORDER BY 1, 2, 3",
    "SHOW TRIGGERS",
    "SHOW PROCEDURE STATUS WHERE Db = 'dbbench'",
    "SHOW OPEN TABLES FROM dbbench WHERE In_use > 0",
    "SHOW FULL TABLES",
    "SELECT COUNT(*), SUM(gold) FROM medals",
)  # fmt: skip


def found(sandbox: Sandbox, *probes: str) -> list[Any]:
    return [dataclasses.replace(sandbox.execute(sql), seconds=0.0) for sql in probes]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are kept on a busy machine, too."""
    monkeypatch.setattr("trl_dbbench.database.server.slots.MAX_SECONDS", 60)


ALL_PROBES = (*TRACES, *MORE_PROBES, *PROBES)


@pytest.fixture(scope="module")
def slots_of(server_database: Database) -> Iterator[tuple[Database, list[Any], list[Any]]]:
    """A run of its own, and what its first episodes find."""
    with open_database(server_database.url, limits=LIMITS) as database:
        with database.sandbox(TASK) as sandbox, database.sandbox(TASK) as other:
            fresh = found(sandbox, *PROBES), found(other, *ALL_PROBES)
        yield database, *fresh


def check_next(database: Database, rows: list[Any], everything: list[Any]) -> None:
    """Two episodes, of which the first looks at rows, in tables that were kept if any were."""
    with database.sandbox(TASK) as sandbox:
        assert rows_of(sandbox) == {
            "medals": list(MEDALS.rows), "keys": [(2, "a", 2), (7, "b", 1)], "of_none": [], "wide": list(WIDE.rows),
        }  # fmt: skip
        assert found(sandbox, *PROBES) == rows
    with database.sandbox(TASK) as sandbox:
        assert found(sandbox, *ALL_PROBES) == everything


@pytest.mark.parametrize("statements", ROWS_CHANGED, ids=lambda each: each[0][:40])
def test_rows_are_as_the_task_has_them(
    slots_of: tuple[Database, list[Any], list[Any]], statements: tuple[str, ...]
) -> None:
    database, rows, everything = slots_of
    with database.fresh_sandbox(TASK) as sandbox:
        slot = sandbox._slot
        for sql in statements:
            sandbox.execute(sql)
    with database.fresh_sandbox(TASK) as sandbox:
        assert sandbox._slot is slot and slot.kept
        assert found(sandbox, *PROBES) == rows
    check_next(database, rows, everything)


@pytest.mark.parametrize("statements", MORE, ids=lambda each: each[0][:40])
def test_nothing_else_is_left(
    slots_of: tuple[Database, list[Any], list[Any]], statements: tuple[str, ...]
) -> None:
    """By an episode in tables that were kept."""
    database, rows, everything = slots_of
    with database.fresh_sandbox(TASK) as sandbox:
        sandbox.execute("DELETE FROM wide")
    with database.sandbox(TASK) as sandbox:
        for sql in statements:
            sandbox.execute(sql)
    check_next(database, rows, everything)


def test_what_shows_more_than_rows_finds_the_episodes_own(
    slots_of: tuple[Database, list[Any], list[Any]],
) -> None:
    """Tables that are made anew in the middle of an episode have the rows that it has left there."""
    database, *_ = slots_of
    size = "SELECT DATA_LENGTH FROM information_schema.TABLES WHERE TABLE_NAME = 'wide'"
    with database.fresh_sandbox(TASK) as sandbox:
        slot = sandbox._slot
        sandbox.execute("UPDATE wide SET " + ", ".join(f"c{n} = REPEAT('x', 60000)" for n in range(3)))
    with database.fresh_sandbox(TASK) as sandbox:
        assert sandbox._slot is slot and slot.kept
        sandbox.execute("UPDATE medals SET gold = gold + 1 WHERE nation = 'Chad'")
        sandbox.execute("INSERT IGNORE INTO `keys` VALUES (5, NULL, 'many')")
        assert sandbox.execute(size).rows == [(16384,)] and not slot.kept
        assert sandbox.execute("SELECT * FROM medals").rows == [("Peru", 22), ("Chad", 2), ("Perú", None)]
        assert sandbox.execute("SELECT word, n FROM `keys` WHERE id = 5").rows == [("", 0)]


def test_rows_that_do_not_fit_their_columns_are_the_tasks_mistake(server_database: Database) -> None:
    """The driver's complaint about its arguments was taken for a failure of the server, and waited for."""
    short = table("short", "a INT, b INT", (1, 2), (3,))
    for each in (task(short), change(short)):
        with pytest.raises(TaskError, match="Table 'short', row 2 has 1 cells, the table 2 columns"):
            server_database.sandbox(each)


def test_episodes_at_once_have_their_own(slots_of: tuple[Database, list[Any], list[Any]]) -> None:
    database, *_ = slots_of

    def episode(number: int) -> list[tuple]:
        with database.sandbox(TASK) as sandbox:
            sandbox.execute(f"UPDATE medals SET gold = {number}")
            sandbox.execute(f"INSERT INTO of_none (b) VALUES ({number})")
            return [*sandbox.state()["medals"].rows, *sandbox.state()["of_none"].rows]

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(episode, range(40)))
    for number, rows in enumerate(states):
        assert rows == [*((nation, number) for nation, _ in MEDALS.rows), (None, number, None)]


def test_a_connection_serves_one_slot_after_another(server_database: Database) -> None:
    """As an account that has no rights in the database of the one before."""
    other = change(table("other", "a INT", (1,)))
    with open_database(server_database.url, limits=LIMITS) as database:
        with database.fresh_sandbox(TASK) as sandbox, database.fresh_sandbox(other) as more:
            name, number = sandbox._slot.name, sandbox._slot.session.number
            assert more._slot.name != name and more._slot.session.number != number
            more._slot.hang_up()  # or it would have its own connection again
        with database.fresh_sandbox(other) as sandbox:
            assert sandbox._slot.session.number == number
            assert sandbox.execute("SELECT CONNECTION_ID(), DATABASE(), a FROM other").rows == [
                (number, "dbbench", 1)
            ]
            assert "denied" in (sandbox.execute(f"SELECT * FROM {name}.medals").error or "")
            assert sandbox.execute("SELECT SLEEP(60)").limit == "time"
            assert sandbox.execute("SELECT a FROM other").rows == [(1,)]


def test_a_server_whose_connections_stay_with_their_account(
    local_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one behind a proxy that does not know the command: each slot gets a new connection."""

    def unknown(*_: object) -> None:
        raise pymysql.OperationalError(1047, "Unknown command")

    monkeypatch.setattr("trl_dbbench.database.server.connections.BoundedConnection.change_user", unknown)
    with open_database(local_database.url, limits=LIMITS) as database:
        numbers = set()
        for number in range(3):
            with database.sandbox(change(table(f"t{number}", "a INT", (number,)))) as sandbox:
                assert sandbox.execute(f"DELETE FROM t{number}").affected == 1
            with database.fresh_sandbox(TASK) as sandbox:
                numbers.add(sandbox._slot.session.number)
        assert len(numbers) == 3 and database.tenancy.slots._connected == 1


def test_tasks_take_the_slots_of_others_until_these_come_again(
    server_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trl_dbbench.database.server.slots.MAX_SLOTS", 3)
    with open_database(server_database.url, limits=LIMITS) as database:
        slots = []
        for number in (0, 1, 1, 0, 2, 3, 1, 0, 3, 2):
            each = table(f"t{number}", "a INT", (number,))
            with database.fresh_sandbox(change(each)) as sandbox:
                slots.append(int(sandbox._slot.name[-7:]))
                sandbox.execute(f"INSERT INTO t{number} VALUES (7)")
                assert rows_of(sandbox) == {each.name: [(number,), (7,)]}
        first, second, third = sorted(set(slots))
        #                  0      1      1      0       2       3       1      0      3       2
        assert slots == [first, first, first, second, second, second, first, third, second, first]
        with ExitStack() as stack:  # as many as there are episodes
            sandboxes = [stack.enter_context(database.sandbox(TASK)) for _ in range(5)]
            assert all(sandbox.execute("DELETE FROM medals").affected == 3 for sandbox in sandboxes)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        *((kind, True) for kind in ("INT", "int unsigned not null", "VARCHAR(50) DEFAULT 'AUTO_INCREMENT'")),
        *((kind, True) for kind in ("ENUM('a b', ') SERIAL')", "DOUBLE PRECISION", "BIGINT PRIMARY KEY", "")),
        *(
            (kind, False)
            for kind in ("INT AUTO_INCREMENT PRIMARY KEY", "SERIAL", "INT WITH SYSTEM VERSIONING")
        ),
        *((kind, False) for kind in ("TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", "BIGINT SERIAL DEFAULT VALUE")),
    ],
)
def test_tables_of_which_rows_are_not_all_are_not_kept(kind: str, kept: bool) -> None:
    assert (
        is_of_rows((table("t", "a TEXT"), Table("u", (dataclasses.replace(MEDALS.columns[0], type=kind),))))
        is kept
    )


def test_large_tables_are_not_kept() -> None:
    assert is_of_rows((table("t", "a INT", *[(1,)] * MAX_ROWS),))
    assert not is_of_rows((table("t", "a INT", *[(1,)] * MAX_ROWS), table("u", "a INT", (1,))))


@pytest.mark.parametrize(
    "tables",
    [
        (table("ids", "id INT AUTO_INCREMENT PRIMARY KEY, a TEXT", (1, "x"), (2, "y")),),
        (table("ids", "id SERIAL, a TEXT", (1, "x"), (2, "y")), table("more", "a INT")),
    ],
)
def test_the_server_counts_from_the_start(server_database: Database, tables: tuple[Table, ...]) -> None:
    for _ in range(3):
        with server_database.sandbox(change(*tables)) as sandbox:
            sandbox.execute("INSERT INTO ids (a) VALUES ('z')")
            assert sandbox.execute("SELECT id FROM ids WHERE a = 'z'").rows == [(3,)]
            sandbox.execute("DELETE FROM ids WHERE id > 1")


def test_ids_of_zero_stay_zero(server_database: Database) -> None:
    ids = table("ids", "id INT AUTO_INCREMENT PRIMARY KEY, a TEXT", (0, "x"), (1, "y"), (2, "z"))
    for kind in (task, change):
        for _ in range(2):
            with server_database.sandbox(kind(ids)) as sandbox:
                assert sandbox.execute("SELECT id FROM ids ORDER BY id").rows == [(0,), (1,), (2,)]
                sandbox.execute("DELETE FROM ids WHERE id = 0")


def test_a_server_with_old_rows_shows_none(local_database: Database) -> None:
    if local_database.dialect is not MARIADB:
        pytest.skip("MariaDB alone keeps old rows")
    versioned = change(table("old", "a INT WITH SYSTEM VERSIONING", (1,)))
    for _ in range(3):
        with local_database.sandbox(versioned) as sandbox:
            assert sandbox.execute("SELECT a FROM old FOR SYSTEM_TIME ALL").rows == [(1,)]
            sandbox.execute("UPDATE old SET a = 2")
