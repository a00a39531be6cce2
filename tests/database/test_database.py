"""What a sandbox promises, on each kind of database: SQL in, rows and states out."""

from __future__ import annotations

import dataclasses
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pymysql
import pytest
from databases import DOCKER_IMAGE, LIMITS, connect_arguments, opened, owned, rows_of, table, task
from sqlalchemy import make_url

from trl_dbbench.database import Database, Limits, open_database
from trl_dbbench.database.dialect import MARIADB, SQLITE
from trl_dbbench.database.error_numbers import TIME_LIMITS, is_environment_fault, message
from trl_dbbench.database.server.start import FAST, Server
from trl_dbbench.errors import DatabaseError, EnvironmentFault, TaskError
from trl_dbbench.grading.states import state_hash
from trl_dbbench.tasks import Column, Gold, Table, Task

MEDALS = table("medals", "nation, gold", ("Chad", "1"), ("Peru", "22"), ("Perú", None))
PERUS = [("Peru", "22"), ("Perú", None)]
CHANGE = dataclasses.replace(task(MEDALS), operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = '2'"))


def digits(places: int = 6) -> str:
    """A query of 10^places rows, made of ten."""
    ten = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    return f"SELECT a.d FROM {', '.join(f'({ten}) AS {name}' for name in 'abcdef'[:places])}"


# Statements and states.


def test_rows(database: Database) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        result = sandbox.execute("SELECT nation, gold FROM medals WHERE gold = '22'")
        assert (result.rows, result.error, result.limit, result.affected) == (
            [("Peru", "22")],
            None,
            None,
            None,
        )
        assert sandbox.execute("SELECT 1 FROM medals WHERE gold = 'none'").rows == []


def test_change_and_state(database: Database) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        result = sandbox.execute("UPDATE medals SET gold = '2' WHERE nation = 'chad'")
        assert (result.rows, result.error, result.affected) == (None, None, 1)
        assert sorted(sandbox.state()["medals"].rows, key=str) == sorted([("Chad", "2"), *PERUS], key=str)


def test_comparisons_ignore_case_and_accents(docker_database: Database, sqlite_database: Database) -> None:
    for database in (docker_database, sqlite_database):
        with database.sandbox(task(MEDALS)) as sandbox:
            assert sandbox.execute("SELECT nation, gold FROM medals WHERE nation = 'PERU'").rows == PERUS


def test_types_of_a_table(database: Database) -> None:
    shop = table(
        "shop",
        "id INT PRIMARY KEY, name VARCHAR(50) NOT NULL, price FLOAT",
        (1, "pen", 1.5),
        (2, "ink", None),
    )
    with database.sandbox(task(shop)) as sandbox:
        assert sandbox.execute("SELECT id + 1, price * 2 FROM shop WHERE id = 1").rows == [(2, 3.0)]
        assert rows_of(sandbox) == {"shop": [(1, "pen", 1.5), (2, "ink", None)]}


@pytest.mark.parametrize(
    "name", ["100% `real` \"quoted\" 'x'", "naïve Ω", "select", "a.b", "H / A #1 (%s) :p"]
)
def test_names_are_quoted(database: Database, name: str) -> None:
    odd = Table(name, (Column(name), Column("b%s")), (("x", "100%"),))
    with database.sandbox(task(odd)) as sandbox:
        quoted = "`" + name.replace("`", "``") + "`"
        assert sandbox.execute(f"SELECT {quoted}, `b%s` FROM {quoted}").rows == [("x", "100%")]
        assert rows_of(sandbox) == {name: [("x", "100%")]}


def test_state_follows_the_tables(database: Database) -> None:
    """A dropped table is absent, a new one present."""
    with database.sandbox(task(MEDALS, table("gone", "a"))) as sandbox:
        assert sandbox.state().keys() == {"medals", "gone"}
        assert sandbox.execute("DROP TABLE gone").error is None
        assert sandbox.execute("CREATE TABLE made (a INT, b VARCHAR(9))").error is None
        assert sandbox.execute("INSERT INTO made VALUES (1, 'x')").affected == 1
        assert sandbox.state()["made"].rows == [(1, "x")]
        assert sandbox.state().keys() == {"medals", "made"}


def test_state_shows_what_is_not_committed(database: Database) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        sandbox.execute("BEGIN")
        sandbox.execute("DELETE FROM medals")
        assert rows_of(sandbox) == {"medals": []}
        sandbox.execute("ROLLBACK")
        assert len(sandbox.state()["medals"].rows) == 3


def test_state_in_spite_of_session_settings(server_database: Database) -> None:
    with server_database.sandbox(task(MEDALS)) as sandbox:
        sandbox.execute("SET SESSION sql_select_limit = 1")
        sandbox.execute("SET NAMES latin1")
        sandbox.execute("LOCK TABLES medals READ")
        assert ("Perú", None) in sandbox.state()["medals"].rows and len(sandbox.state()["medals"].rows) == 3


# Sandboxes are apart.


def test_sandboxes_do_not_see_each_other(database: Database) -> None:
    with database.sandbox(task(MEDALS)) as one, database.sandbox(task(MEDALS)) as other:
        one.execute("DELETE FROM medals")
        assert rows_of(one) == {"medals": []}
        assert len(other.state()["medals"].rows) == 3


def test_nothing_of_a_session_reaches_the_next(database: Database) -> None:
    for first in (
        "SET @x = 5",
        "SET SESSION sql_mode = ''",
        "BEGIN",
        "LOCK TABLES medals WRITE",
        "SELECT @x := 5",
    ):
        with database.sandbox(task(MEDALS)) as sandbox:
            sandbox.execute(first)
        with database.sandbox(task(MEDALS)) as sandbox:
            assert sandbox.execute("SELECT @x").rows == [(None,)]
            assert len(sandbox.execute("SELECT * FROM medals").rows or []) == 3


def test_an_agent_reaches_its_own_database_only(server_database: Database) -> None:
    with (
        server_database.fresh_sandbox(task(MEDALS)) as other,
        server_database.sandbox(task(MEDALS)) as sandbox,
    ):
        assert other.execute("SELECT DATABASE()").rows == [("dbbench",)], "the same in every run"
        name = other._slot.name
        for sql in (
            f"SELECT * FROM `{name}`.medals",
            f"DROP DATABASE `{name}`",
            "SELECT User FROM mysql.user",
        ):
            assert "denied" in (sandbox.execute(sql).error or ""), sql
        for sql in ("USE mysql", "CREATE USER a", "SHUTDOWN", "KILL 1", "SET GLOBAL max_connections = 1"):
            assert "denied" in (sandbox.execute(sql).error or ""), sql
        assert ("dbbench",) in sandbox.execute("SHOW DATABASES").rows
        assert (name,) not in sandbox.execute("SHOW DATABASES").rows
        assert len(other.state()["medals"].rows) == 3


# Reading needs nothing of one's own.


READS = [
    "SELECT * FROM medals",
    "WITH t AS (SELECT * FROM medals) SELECT COUNT(*) FROM t",
    "(SELECT 1) UNION (SELECT 2)",
    "SHOW TABLES",
    "SHOW COLUMNS FROM medals",
    "DESCRIBE medals",
    "SELECT no_such_column FROM medals",
]


def test_episodes_that_only_read_share_the_tables(server_database: Database) -> None:
    with ExitStack() as stack:
        sandboxes = [stack.enter_context(server_database.sandbox(task(MEDALS))) for _ in range(8)]
        before = owned(server_database.url)
        for sandbox in sandboxes:
            for sql in READS:
                result = sandbox.execute(sql)
                assert result.rows or "Unknown column" in (result.error or "")
            assert len(sandbox.state()["medals"].rows) == 3
        assert owned(server_database.url) <= before


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM medals",
        "WITH t AS (SELECT 'Perú' AS n) UPDATE medals SET gold = NULL WHERE nation IN (SELECT n FROM t)",
        "SELECT @x := 1",
        "SELECT * FROM medals FOR UPDATE",
        "SELECT DATABASE ()",
        "SELECT table_name FROM information_schema.tables WHERE table_schema LIKE 'dbb%'",
        "SELECT /*!40000 CONNECTION_ID() */",
        "BEGIN",
    ],
)
def test_what_might_do_more_gets_tables_of_its_own(server_database: Database, sql: str) -> None:
    if sql.startswith("WITH") and server_database.dialect is MARIADB:
        pytest.skip("MariaDB 10.11 knows no WITH before UPDATE")
    fresh = server_database.fresh_sandbox
    with fresh(task(MEDALS)) as reader, fresh(task(MEDALS)) as sandbox:
        first = sandbox.execute("SELECT * FROM medals").rows
        sandbox.execute(sql)
        assert sandbox._slot is not None and reader._slot is None
        sandbox.execute("DELETE FROM medals")
        assert sandbox.execute("SELECT * FROM medals").rows == [] != first
        assert reader.execute("SELECT * FROM medals").rows == first


def test_a_change_has_its_tables_from_the_start(server_database: Database) -> None:
    change = dataclasses.replace(
        task(MEDALS), operation="UPDATE", gold=Gold(sql="UPDATE medals SET gold = '1'")
    )
    with server_database.fresh_sandbox(change) as sandbox:
        assert sandbox._slot is not None


def test_readers_whose_connections_the_server_closed_are_replaced(local_database: Database) -> None:
    with local_database.sandbox(task(MEDALS)) as sandbox:
        rows = sandbox.execute("SELECT * FROM medals").rows
        with pymysql.connect(**connect_arguments(local_database.url)) as admin, admin.cursor() as cursor:
            for session in local_database.tenancy.readers._idle:
                with suppress(pymysql.OperationalError):  # gone already
                    cursor.execute(f"KILL {session.number}")
        assert sandbox.execute("SELECT * FROM medals").rows == rows


def test_unused_pristine_tables_go(server_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl_dbbench.database.server.pristine.MAX_DATABASES", 2)
    with open_database(server_database.url) as database:
        for number in range(5):
            with database.sandbox(task(table(f"t{number}", "a"))) as sandbox:
                assert sandbox.execute(f"SELECT * FROM t{number}").rows == []
        mine = [name for name in owned(database.url) if name.startswith(f"{database.tenancy.owner}_t")]
    assert len(mine) == 2


def test_impossible_pristine_tables_are_tried_again(server_database: Database) -> None:
    for _ in range(2):
        with pytest.raises(TaskError, match="is there twice"):
            server_database.sandbox(task(table("twice", "a, a")))


def test_many_threads(database: Database) -> None:
    many_threads(database)


class SlowCount(itertools.count):
    """Lets other threads go on while it counts."""

    def __next__(self) -> int:
        time.sleep(0.02)
        return super().__next__()


def test_threads_name_their_slots_at_once(server_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl_dbbench.database.server.database.itertools", SimpleNamespace(count=SlowCount))
    with open_database(server_database.url) as database:
        many_threads(database)


def many_threads(database: Database) -> None:
    def episode(number: int) -> list[tuple]:
        with database.sandbox(task(MEDALS)) as sandbox:
            sandbox.execute(f"UPDATE medals SET gold = '{number}'")
            return sandbox.state()["medals"].rows

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(episode, range(24)))
    assert [{row[1] for row in rows} for rows in states] == [{str(number)} for number in range(24)]


def test_close_can_be_repeated(database: Database) -> None:
    sandbox = database.sandbox(task(MEDALS))
    sandbox.close()
    sandbox.close()
    with pytest.raises(DatabaseError, match="closed"):
        sandbox.execute("SELECT 1")


# Limits.


def test_time_limit(database: Database) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        start = time.monotonic()
        result = sandbox.execute(f"SELECT COUNT(*) FROM ({digits()}) AS x, ({digits()}) AS y")
        assert time.monotonic() - start < LIMITS.seconds + 5
        assert (result.rows, result.limit, result.error_code) == (None, "time", 3024)
        assert "time limit of 1 s" in (result.error or "")
        assert sandbox.execute("SELECT COUNT(*) FROM medals").rows == [(3,)]


def test_time_limit_of_a_change(database: Database) -> None:
    """Servers have a time limit of their own for SELECT; a change has to be killed."""
    with database.sandbox(task(MEDALS)) as sandbox:
        change = f"DELETE FROM medals WHERE (SELECT COUNT(*) FROM ({digits()}) AS x, ({digits()}) AS y) = 1"
        assert sandbox.execute(change).limit == "time"
        assert len(sandbox.state()["medals"].rows) == 3


def test_time_limit_of_sleep(server_database: Database) -> None:
    with server_database.sandbox(task(MEDALS)) as sandbox:
        assert sandbox.execute("SELECT SLEEP(60)").limit == "time"
        assert sandbox.execute("SELECT 1").rows == [(1,)]


def test_row_limit(database: Database) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        result = sandbox.execute(
            digits(4)
        )  # more would take a second on a busy machine, which is the other limit
        assert (len(result.rows or []), result.limit) == (LIMITS.rows, "rows")
        assert (result.error, result.error_code) == (None, None)
        assert sandbox.execute("SELECT 1").rows == [(1,)]


def test_text_limit(database: Database) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        result = sandbox.execute("SELECT REPEAT('ab', 2000) FROM medals")
        assert result.limit == "text"
        assert [len(row[0]) for row in result.rows or []] == [4000, 1000]
        assert sandbox.execute("SELECT 1").rows == [(1,)]


# Whatever an agent writes.


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELEC 1", "1064 (42000): You have an error in your SQL syntax"),
        ("SELECT nope FROM medals", "1054 (42S22): Unknown column 'nope'"),
        ("SELECT * FROM nope", "1146 (42S02): Table 'dbbench.nope' doesn't exist"),
        ("INSERT INTO medals VALUES ('x')", "1136 (21S01): Column count doesn't match value count at row 1"),
        ("CREATE TABLE medals (a INT)", "1050 (42S01): Table 'medals' already exists"),
        ("SELECT 1; SELECT 2", "1064 (42000)"),
        ("DELETE FROM medals; DROP TABLE medals", "1064 (42000)"),
        ("", "1065 (42000): Query was empty"),
        ("   ;", "1065 (42000): Query was empty"),
        ("SELECT 'unclosed", "1064 (42000)"),
        ("SELECT `unclosed", "1064 (42000)"),
        ("DELIMITER //", "1064 (42000)"),
        ("SELECT * FROM medals WHERE nation = ?", "1064 (42000)"),
        ("SELECT * FROM medals WHERE nation = :name", "1064 (42000)"),
        ("SELECT '\ud83d'", "1300 (HY000): Invalid utf8mb4 character string"),
        ("SELECT '" + "x" * 2_000_000 + "'", "1153 (08S01)"),
        ("I think the answer is 42.", "1064 (42000)"),
        ("DELETE medals", "1064 (42000)"),
        ("DELETE LIMIT nation", "1064 (42000)"),
        ("```sql\nSELECT 1\n```", "1064 (42000)"),
    ],
)
def test_refused(database: Database, sql: str, error: str) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        result = sandbox.execute(sql)
        assert result.rows is None and result.limit is None
        assert (result.error or "").startswith(error)
        assert result.error_code == int(error.partition(" ")[0])
        assert len(sandbox.state()["medals"].rows) == 3
        assert sandbox.execute("SELECT COUNT(*) FROM medals").rows == [(3,)]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT 1;", [(1,)]),
        ("  SELECT 1 -- so be it", [(1,)]),
        ("/* first */ SELECT 1 # last", [(1,)]),
        ("SELECT '100%', '%s', ':name', '?'", [("100%", "%s", ":name", "?")]),
        ("SELECT 'a;b', \"it's\", 'it''s', 'tab\\t'", [("a;b", "it's", "it's", "tab\t")]),
        ("SELECT '😀 Ω é'", [("😀 Ω é",)]),
        ("SELECT 'a\0b'", [("a\0b",)]),
        ("SELECT nation FROM medals WHERE nation LIKE 'ch%'", [("Chad",)]),
        ("SELECT LENGTH('" + "x" * 20_000 + "')", [(20_000,)]),
        ("SHOW TABLES", [("medals",)]),
        ("SELECT @never_set", [(None,)]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_taken_as_written(database: Database, sql: str, rows: list[tuple]) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        result = sandbox.execute(sql)
        assert (result.rows, result.error) == (rows, None)


@pytest.mark.parametrize(
    "sql",
    [
        "-- only a comment",
        "/* only a comment */",
        "/*!50000 SELECT 1 */",
        "DROP DATABASE mysql",
        "USE mysql",
        "COMMIT",
        "ROLLBACK",
        "START TRANSACTION READ ONLY",
        "SET autocommit = 0",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE medals",
        "SELECT * FROM medals INTO OUTFILE '/tmp/x'",
        "SELECT LOAD_FILE('/etc/passwd')",
        "ATTACH DATABASE '/tmp/x' AS y",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x')",
        "CALL nothing()",
        "EXPLAIN SELECT 1",
        "PREPARE s FROM 'SELECT 1'",
        "SELECT " + "(" * 3000 + "1" + ")" * 3000,
        "SELECT " + "1+" * 3000 + "1",
        "SELECT REPEAT('x', 1000000000)",
        "SELECT REPLACE(REPEAT('a', 1000000), 'a', REPEAT('b', 1000000))",
        "SELECT 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab' REGEXP '(a+)+$'",
        "SELECT 1 REGEXP '('",
        "SELECT CAST(0xff AS CHAR)",
        "SELECT 9223372036854775807 + 1",
        "SELECT POW(10, 400)",
        "SELECT DATE_ADD('9999-12-31', INTERVAL 1 DAY)",
        "\0",
        "\x01\x02\x1b[31m",
        "\ufeffSELECT 1",
    ],
    ids=lambda value: repr(value)[:40],
)
def test_never_breaks(database: Database, sql: str) -> None:
    with database.sandbox(task(MEDALS)) as sandbox:
        result = sandbox.execute(sql)
        assert result.rows is not None or result.error is not None or result.affected is not None
        assert (result.error or "").partition(" ")[0] == str(result.error_code or "")
        assert len(sandbox.state()["medals"].rows) == 3


def test_an_agent_may_drop_its_database(server_database: Database) -> None:
    with server_database.fresh_sandbox(task(MEDALS)) as sandbox:
        sandbox.execute("BEGIN")
        assert sandbox.execute(f"DROP DATABASE `{sandbox._slot.name}`").error is None
        assert sandbox.state() == {}


def test_an_agent_may_change_its_password(server_database: Database) -> None:
    with server_database.sandbox(task(MEDALS)) as sandbox:
        sandbox.execute("SET PASSWORD = 'Mine!2345'")
        assert sandbox.execute("SELECT SLEEP(60)").limit == "time"
    with server_database.sandbox(task(MEDALS)) as sandbox:
        assert sandbox.execute("SELECT 1").rows == [(1,)]


# Whose the error is.


@pytest.mark.parametrize(
    "code", [2006, 2013, 2003, 2002, 2055, 1040, 1053, 1205, 1213, 1021, 1114, 1041, 1135, 1203, 1226]
)
def test_environment_faults(code: int) -> None:
    assert is_environment_fault(code) and code not in TIME_LIMITS


@pytest.mark.parametrize("code", [3024, 1969])
def test_time_limits(code: int) -> None:
    assert code in TIME_LIMITS and not is_environment_fault(code)


@pytest.mark.parametrize("code", [1064, 1054, 1146, 1062, 1048, 1136, 1366, 1406, 1142, 1044, 1055])
def test_agents_errors(code: int) -> None:
    assert code not in TIME_LIMITS and not is_environment_fault(code)


def test_a_lost_connection_is_a_fault_and_is_replaced(local_database: Database) -> None:
    fresh = local_database.fresh_sandbox
    with fresh(task(MEDALS)) as sandbox, fresh(task(MEDALS)) as idle:
        ((number,),) = sandbox.execute("SELECT CONNECTION_ID()").rows or []
        ((other,),) = idle.execute("SELECT CONNECTION_ID()").rows or []
        idle.close()
        with pymysql.connect(**connect_arguments(local_database.url)) as admin, admin.cursor() as cursor:
            cursor.execute(f"KILL {number}")
            cursor.execute(f"KILL {other}")
        with pytest.raises(EnvironmentFault):
            sandbox.execute("SELECT 1")
        with pytest.raises(EnvironmentFault):
            sandbox.state()
    with local_database.sandbox(task(MEDALS)) as sandbox:
        assert len(sandbox.state()["medals"].rows) == 3


@pytest.mark.parametrize(
    "kind", ["TEXT); DROP TABLE x; --", "TEXT, b TEXT", "INT DEFAULT (SELECT 1)", "", "VARCHAR('a"]
)
def test_a_column_type_is_checked(database: Database, kind: str) -> None:
    with pytest.raises(TaskError, match="is not a column type"):
        database.sandbox(task(Table("t", (Column("a", kind),))))


@pytest.mark.parametrize(
    "kind", ["BIGINT UNSIGNED NOT NULL", "DECIMAL(10, 2)", "ENUM('a', 'b')", "DOUBLE PRECISION"]
)
def test_column_types(database: Database, kind: str) -> None:
    with database.sandbox(task(Table("t", (Column("a", kind),)))) as sandbox:
        assert rows_of(sandbox) == {"t": []}


def test_an_impossible_table_is_the_tasks_fault(database: Database) -> None:
    with pytest.raises(TaskError, match="row 1 has 1 cells"):
        database.sandbox(task(Table("t", (Column("a"), Column("b")), (("x",),))))
    with pytest.raises(TaskError, match="is there twice"):
        database.sandbox(task(table("t", "a, a")))
    with pytest.raises(TaskError, match="has no columns"):
        database.sandbox(task(Table("t", ())))


HUGE = 2**63


@pytest.mark.parametrize(
    ("kind", "kept"), [("TEXT", str(HUGE)), ("VARCHAR(30)", str(HUGE)), ("DOUBLE", float(HUGE))]
)
def test_an_integer_beyond_64_bits_is_what_its_column_makes_of_it(
    database: Database, kind: str, kept
) -> None:
    with database.sandbox(task(Table("t", (Column("a", kind),), ((HUGE,), (-HUGE - 1,))))) as sandbox:
        assert sandbox.execute("SELECT a FROM t").rows[0] == (kept,)


@pytest.mark.parametrize("cell", [HUGE, -HUGE - 1, 10**30])
def test_an_integer_that_its_column_cannot_hold_is_the_tasks_fault(database: Database, cell: int) -> None:
    with pytest.raises(TaskError, match=r"tables cannot be made: .*1264.* Out of range value"):
        database.sandbox(task(Table("t", (Column("a", "BIGINT"),), ((cell,),))))


# Published changes.

DATA = Path(__file__).parents[3] / "shared" / "data" / "agentbench"


def published_changes() -> list[tuple[Task, str]]:
    changes = []
    for file in sorted(DATA.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            if entry["type"][0] not in ("INSERT", "UPDATE", "DELETE"):
                continue
            given = entry["table"] if isinstance(entry["table"], list) else [entry["table"]]
            tables = tuple(
                Table(
                    each["table_name"],
                    tuple(Column(column["name"]) for column in each["table_info"]["columns"]),
                    tuple(tuple(map(str, row)) for row in each["table_info"]["rows"]),
                )
                for each in given
            )
            gold = Gold(sql=entry["label"][0])
            changes.append(
                (Task(str(len(changes)), "?", tables, entry["type"][0], gold), entry["answer_md5"])
            )
    return changes


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is missing")
def test_gold_sql_makes_the_published_states(database: Database) -> None:
    wrong = []
    for change, published in published_changes():
        with database.sandbox(change) as sandbox:
            sandbox.execute(change.gold.sql or "")
            if str([(state_hash(sandbox.state()[change.tables[0].name].rows),)]) != published:
                wrong.append(change.gold.sql)
    assert len(wrong) <= (3 if database.dialect is MARIADB else 1), wrong


# Opening and closing.


def test_describe(database: Database) -> None:
    assert {"mysql": "MySQL ", "mariadb": "MariaDB ", "sqlite": "SQLite "}[
        database.dialect.name
    ] in database.describe()


def test_a_url_shares_the_server_and_leaves_nothing(server_database: Database) -> None:
    before = owned(server_database.url)
    with open_database(server_database.url) as shared:
        sandbox = shared.sandbox(task(MEDALS))
        shared.sandbox(task(MEDALS)).execute("BEGIN")
        assert sandbox.execute("SELECT COUNT(*) FROM medals").rows == [(3,)]
        made = sorted(name.rpartition("_")[2][0] for name in owned(server_database.url) - before)
        assert made == ["s", "s", "s", "t"], (
            "the slot that BEGIN needed, the readers' account, the probe, the pristine tables"
        )
        assert "***" in shared.describe() or "unix_socket" in shared.describe()
    # less, if slots of earlier tests are only being removed: that is done beside
    assert owned(server_database.url) <= before
    sandbox.close()


def test_what_a_killed_run_left_is_removed(local_database: Database) -> None:
    """And what a living one has is not."""
    with local_database.sandbox(task(MEDALS)) as living:
        with pymysql.connect(**connect_arguments(local_database.url)) as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE dbb_00c0ffee_r1_s7")
            cursor.execute("CREATE USER 'dbb_00c0ffee_r1_s7'@'%' IDENTIFIED BY 'x'")
            cursor.execute("CREATE DATABASE dbb_mine")
        with open_database(local_database.url):
            left = owned(local_database.url)
        assert "dbb_00c0ffee_r1_s7" not in left
        assert "dbb_mine" in left
        assert len(living.state()["medals"].rows) == 3
        with pymysql.connect(**connect_arguments(local_database.url)) as admin, admin.cursor() as cursor:
            cursor.execute("DROP DATABASE dbb_mine")


def test_root_starts_a_private_server_whoever_the_environment_names(
    local_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "nobody-of-this-name")
    with open_database("local") as database:
        assert database.describe() == local_database.describe()


def test_a_private_server_needs_no_plain_temporary_directory(
    local_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(suffix=" +") as odd, monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", odd)
        with open_database("local") as database:
            assert database.describe() == local_database.describe()


def test_a_private_server_ends_with_its_process(tmp_path: Path) -> None:
    """Even if that process is killed, and even if the thread that opened it has ended."""
    with opened("local"):
        pass
    program = textwrap.dedent(
        """
        import threading, time
        from trl_dbbench.database import open_database
        manager = open_database("local")
        thread = threading.Thread(target=lambda: print(manager.__enter__().url, flush=True))
        thread.start(); thread.join(); time.sleep(1)
        print(manager.gen is not None, flush=True)
        time.sleep(60)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    process.stdout.readline()
    folder = Path(str(make_url(url).query["unix_socket"])).parent
    pymysql.connect(**connect_arguments(url)).close()
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()


def test_auto_says_what_it_chose(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("PATH", "/nowhere")
    caplog.set_level("INFO", "trl_dbbench.database")
    with open_database() as database:
        assert (database.url, database.dialect) == ("sqlite", SQLITE)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "trl_dbbench.database"]
    assert '"auto" chose "sqlite"' in line and "It answers as MySQL 9.7 does or refuses" in line


def test_auto_passes_over_docker(monkeypatch: pytest.MonkeyPatch, local_database: Database) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with open_database("auto") as database:
        assert "private server" in database.describe()


def refusal(spec: str, **options: str) -> str:
    """The message with which a database is refused; it has no traceback from the depths."""
    with pytest.raises(DatabaseError) as caught, open_database(spec, **options):  # type: ignore[arg-type]
        pass
    assert caught.value.__cause__ is None and (
        caught.value.__suppress_context__ or caught.value.__context__ is None
    )
    return str(caught.value)


@pytest.mark.parametrize("spec", ["mysql", "", "postgresql://x/y", "AUTO", "sqlite:///x.db"])
def test_unknown(spec: str) -> None:
    message = refusal(spec)
    assert repr(spec) in message and '"docker", "local", "sqlite"' in message


def test_no_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    message = refusal("docker")
    assert "Docker does not answer" in message and '"local"' in message


def test_no_image(docker_database: Database) -> None:
    message = refusal("docker", docker_image="trl-dbbench/no-such-image:0")
    assert "'trl-dbbench/no-such-image:0'" in message and "docker pull" in message


def test_no_server_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "Neither mysqld nor mariadbd is on the PATH" in refusal("local")


def test_refused_port() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    message = refusal(f"mysql+pymysql://me:secret@127.0.0.1:{port}/")
    assert "no MySQL server answers there" in message and "secret" not in message


def test_silent_port() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        message = refusal(f"mysql+pymysql://me:secret@127.0.0.1:{silent.getsockname()[1]}/")
    assert "no MySQL server answers there within 8 s" in message
    assert time.monotonic() - start < 15


def test_wrong_password(server_database: Database) -> None:
    url = (
        make_url(server_database.url)
        .set(username="nobody", password="secret")
        .render_as_string(hide_password=False)
    )
    message = refusal(url)
    assert "refuses this account" in message and "secret" not in message


def test_too_few_rights(server_database: Database) -> None:
    with pymysql.connect(**connect_arguments(server_database.url)) as admin, admin.cursor() as cursor:
        cursor.execute("CREATE USER weak@'%' IDENTIFIED BY 'secret', weak@localhost IDENTIFIED BY 'secret'")
        try:
            url = make_url(server_database.url).set(username="weak", password="secret")
            message = refusal(url.render_as_string(hide_password=False))
        finally:
            cursor.execute("DROP USER weak@'%', weak@localhost")
    assert "may not create databases" in message and "GRANT ALL" in message


def test_without_rights_to_make_accounts(server_database: Database, caplog: pytest.LogCaptureFixture) -> None:
    """One warning; the agent then uses the given account."""
    with pymysql.connect(**connect_arguments(server_database.url)) as admin, admin.cursor() as cursor:
        cursor.execute(
            "CREATE USER medium@'%' IDENTIFIED BY 'secret', medium@localhost IDENTIFIED BY 'secret'"
        )
        cursor.execute(r"GRANT ALL ON `dbb\_%`.* TO medium@'%', medium@localhost")
        try:
            url = make_url(server_database.url).set(username="medium", password="secret")
            with open_database(url.render_as_string(hide_password=False), limits=LIMITS) as database:
                for _ in range(2):
                    with database.sandbox(task(MEDALS)) as sandbox:
                        assert sandbox.execute("SELECT COUNT(*) FROM medals").rows == [(3,)]
                        assert sandbox.execute("SELECT SLEEP(60)").limit == "time"
        finally:
            cursor.execute("DROP USER medium@'%', medium@localhost")
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_accounts_go_though_the_given_account_may_not_list_them(
    server_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It has the rights of docs/databases.md, and cannot read `mysql.user`."""
    with pymysql.connect(**connect_arguments(server_database.url)) as admin, admin.cursor() as cursor:
        users = "able@'%', able@localhost"
        cursor.execute("CREATE USER able@'%' IDENTIFIED BY 'secret', able@localhost IDENTIFIED BY 'secret'")
        cursor.execute(rf"GRANT ALL ON `dbb\_%`.* TO {users} WITH GRANT OPTION")
        cursor.execute(f"GRANT CREATE USER ON *.* TO {users}")
        try:
            before = owned(server_database.url)
            url = make_url(server_database.url).set(username="able", password="secret")
            with open_database(url.render_as_string(hide_password=False), limits=LIMITS) as database:
                with database.sandbox(task(MEDALS)) as sandbox:
                    assert sandbox.execute("SELECT COUNT(*) FROM medals").rows == [(3,)]
                    assert sandbox.execute("DELETE FROM medals").affected == 3
                assert owned(server_database.url) > before
            assert owned(server_database.url) <= before
        finally:
            cursor.execute(f"DROP USER {users}")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_server_that_is_not_strict(server: Server) -> None:
    """Tables are what the task says, or are refused; an agent's session is as the server has it."""
    sql = {name: f"SET GLOBAL sql_mode = '{name}'" for name in ("", "NO_ZERO_DATE")}
    with pymysql.connect(**connect_arguments(server.url)) as admin, admin.cursor() as cursor:
        for modes in sql.values():
            cursor.execute(modes)
            with open_database(server.url, limits=LIMITS) as database:
                long = dataclasses.replace(CHANGE, tables=(table("t", "a VARCHAR(3)", ("abcdef",)),))
                for kind in (long, dataclasses.replace(long, operation="SELECT")):
                    with pytest.raises(TaskError, match="Data too long for column 'a'"):
                        database.sandbox(kind)
                zero = dataclasses.replace(CHANGE, tables=(table("t", "a INT AUTO_INCREMENT KEY", (0,)),))
                with database.sandbox(zero) as sandbox:
                    assert sandbox.execute("SELECT a FROM t").rows == [(0,)]
                    assert sandbox.execute("INSERT INTO t VALUES (0)").affected == 1
                    assert sandbox.execute("SELECT a FROM t ORDER BY a").rows == [(0,), (1,)]


@pytest.mark.parametrize(
    "setting",
    [
        "autocommit = 0",
        "default_storage_engine = MyISAM",
        "sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        "sql_require_primary_key = ON",
        "sql_generate_invisible_primary_key = ON",
        "wait_timeout = 1",
    ],
)
def test_a_server_with_settings_of_its_own(server_database: Database, setting: str) -> None:
    """Tables are filled, kept and removed as on any other; no episode begins anew, and no failure is suspected."""
    before = owned(server_database.url)
    name = setting.split()[0]
    with pymysql.connect(**connect_arguments(server_database.url)) as admin, admin.cursor() as cursor:
        if not cursor.execute(f"SHOW GLOBAL VARIABLES LIKE '{name}'"):
            pytest.skip(f"this server has no {name}")
        cursor.execute(f"SELECT @@GLOBAL.{name}")
        ((old,),) = cursor.fetchall()
        cursor.execute(f"SET GLOBAL {setting}")
        try:
            with open_database(server_database.url, limits=LIMITS) as database:
                for kind in (task(MEDALS), CHANGE):
                    with database.sandbox(kind) as sandbox:
                        for _ in range(2):
                            assert sandbox.execute("SELECT * FROM medals").rows == list(MEDALS.rows)
                            assert sandbox.execute("BEGIN").error is None
                            assert sandbox.execute("DELETE FROM medals").affected == 3
                            assert sandbox.execute("ROLLBACK").error is None
                            time.sleep(2 if name == "wait_timeout" else 0)
                        assert rows_of(sandbox) == {"medals": list(MEDALS.rows)}
                        assert sandbox.retries == 0
                with database.fresh_sandbox(CHANGE) as sandbox:
                    assert sandbox.failing(time.monotonic()) is None
        finally:
            cursor.execute(f"SET GLOBAL {name} = %s", (old,))
    assert owned(server_database.url) <= before


def test_a_table_of_many_texts(server_database: Database) -> None:
    """InnoDB's strict mode has no more than 197 of them, however short they are."""
    wide = table("wide", ", ".join(f"c{n} TEXT" for n in range(400)), tuple(map(str, range(400))))
    for kind in (task(wide), dataclasses.replace(CHANGE, tables=(wide,))):
        with server_database.sandbox(kind) as sandbox:
            assert sandbox.execute("SELECT c0, c399 FROM wide").rows == [("0", "399")]


def test_a_server_that_takes_no_writes_for_a_while(server: Server) -> None:
    """As one that has become a replica. The agent's statement waits, and is not said to be denied."""
    with (
        pymysql.connect(**connect_arguments(server.url)) as admin,
        admin.cursor() as cursor,
        open_database(server.url, limits=LIMITS, patience=30) as database,
        database.sandbox(CHANGE) as sandbox,
    ):
        cursor.execute("SET GLOBAL read_only = ON")
        threading.Timer(2.0, cursor.execute, ["SET GLOBAL read_only = OFF"]).start()
        result = sandbox.execute("DELETE FROM medals")
        assert (result.error, result.affected) == (None, 3)
        assert sandbox.retries > 0


def test_a_server_that_takes_no_writes_from_the_beginning(server: Server) -> None:
    """It is not waited for: nobody knows whether it ever will."""
    with pymysql.connect(**connect_arguments(server.url)) as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL read_only = ON")
        with (
            pytest.raises(DatabaseError, match=r"in read-only mode .* Name a server that takes changes"),
            open_database(server.url, limits=LIMITS),
        ):
            pass
        assert owned(server.url) == set()


def test_a_server_that_puts_its_clock_where_a_time_is_null(server_database: Database) -> None:
    """As MySQL 5.7 and MariaDB 10.6 do by default, and again with each change of a row."""
    times = table("times", "n INT, at TIMESTAMP, due TIMESTAMP DEFAULT NULL", (1, None, None))
    with pymysql.connect(**connect_arguments(server_database.url)) as admin, admin.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.explicit_defaults_for_timestamp")
        (old,) = cursor.fetchone()
        cursor.execute("SET GLOBAL explicit_defaults_for_timestamp = OFF")
        try:
            with (
                open_database(server_database.url, limits=LIMITS) as database,
                database.sandbox(dataclasses.replace(CHANGE, tables=(times,))) as sandbox,
            ):
                assert sandbox.execute("UPDATE times SET n = 2").affected == 1
                assert rows_of(sandbox) == {"times": [(2, None, None)]}
        finally:
            cursor.execute("SET GLOBAL explicit_defaults_for_timestamp = %s", (old,))


def test_a_server_with_a_password_policy(server: Server) -> None:
    """Capitals, digits and signs, as validate_password and simple_password_check ask for."""
    with pymysql.connect(**connect_arguments(server.url)) as admin, admin.cursor() as cursor:
        cursor.execute("INSTALL SONAME 'simple_password_check'")
        for _ in range(3):
            with open_database(server.url, limits=LIMITS, require_accounts=True) as database:
                boxes = [database.sandbox(CHANGE) for _ in range(4)]
                assert [box.execute("SELECT 1").rows for box in boxes] == [[(1,)]] * 4
                for box in boxes:
                    box.close()


def test_a_server_that_gives_names_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr("trl_dbbench.database.server.local.FAST", (*FAST, "--lower-case-table-names=1"))
    items = table("Items", "Id INT", (1,), (2,))
    with opened("local") as database:
        for kind in (task(items), dataclasses.replace(CHANGE, tables=(items,))):
            with database.sandbox(kind) as sandbox:
                assert sandbox.execute("SELECT COUNT(*) FROM Items").rows == [(2,)]
                assert [*sandbox.state()] == ["Items"]


def test_a_server_with_partial_revokes(docker_database: Database) -> None:
    """Names in GRANT are no patterns there, as on managed servers."""
    with pymysql.connect(**connect_arguments(docker_database.url)) as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL partial_revokes = ON")
        try:
            with (
                open_database(docker_database.url, limits=LIMITS) as database,
                database.sandbox(task(MEDALS)) as sandbox,
            ):
                assert sandbox.execute("SELECT COUNT(*) FROM medals").rows == [(3,)]
                assert sandbox.execute("DELETE FROM medals").affected == 3
                assert (sandbox.execute("SELECT User FROM mysql.user").error or "").startswith("1142 (42000)")
        finally:
            cursor.execute("SET GLOBAL partial_revokes = OFF")


def test_column_names_are_shown_without_the_real_database(server_database: Database) -> None:
    with server_database.sandbox(task(MEDALS)) as sandbox:
        assert sandbox.execute("SHOW TABLES").columns == ("Tables_in_dbbench",)


def test_the_sqlstate_of_an_error_is_the_servers(server_database: Database) -> None:
    with server_database.sandbox(dataclasses.replace(task(MEDALS), operation="UPDATE")) as sandbox:
        states = {
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'": "1644 (45000): no",
            "SELECT nope FROM medals": "1054 (42S22): ",
            "CREATE TABLE t (`a ` INT)": "1166 (42000): ",
        }
        for sql, said in states.items():
            assert (sandbox.execute(sql).error or "").startswith(said)


def test_the_sqlstates_of_the_embedded_database_are_mysqls() -> None:
    states = {1038: "HY001", 1056: "42000", 1138: "22004", 3020: "2201E", 3140: "22032", 3819: "HY000"}
    assert all(message(code, "x") == f"{code} ({state}): x" for code, state in states.items())


def test_a_closed_database_says_so() -> None:
    with open_database("sqlite") as database:
        pass
    with (
        pytest.raises(DatabaseError, match="The database is closed"),
        database.sandbox(task(MEDALS)),
    ):
        pass


def test_limits_are_the_callers() -> None:
    with (
        open_database("sqlite", limits=Limits(rows=2)) as database,
        database.sandbox(task(MEDALS)) as sandbox,
    ):
        assert len(sandbox.execute("SELECT * FROM medals").rows or []) == 2


def test_docker_image_is_a_setting(docker_database: Database) -> None:
    assert DOCKER_IMAGE in docker_database.describe()
