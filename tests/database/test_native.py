"""Tasks in SQLite's own dialect: the agent's SQL runs as it is, on a file that many share or on tables of the task."""

from __future__ import annotations

import dataclasses
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from databases import LIMITS, rows_of, table, task
from hostile import items
from hostile_statements import GRAMMAR

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox, open_database
from trl_dbbench.database.embedded.native_guard import MAX_SEARCHES, OwnFunctions
from trl_dbbench.errors import EnvironmentFault, TaskError
from trl_dbbench.tasks import Column, Source, Table, Task

GRACE = 2.0
"""Seconds beyond the time limit: a statement is stopped between two calls of functions."""

SECRET = "kestrel-8841"

SCHEMA = """
CREATE TABLE medals (nation TEXT, gold INT);
INSERT INTO medals VALUES ('Chad', 1), ('Peru', 22), ('Perú', NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT);
WITH RECURSIVE n(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < 299)
INSERT INTO orders SELECT id, 'note ' || id FROM n;
CREATE TABLE latin (name TEXT);
INSERT INTO latin VALUES (CAST(x'4dfc6c6c6572' AS TEXT));
CREATE TABLE photos (id INT, photo BLOB, caption TEXT);
INSERT INTO photos VALUES (1, zeroblob(200000), replace(hex(zeroblob(50000)), '00', 'ab') || '!');
CREATE VIEW winners AS SELECT nation FROM medals WHERE gold > 1;
"""

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made(tmp_path / "shop.sqlite", SCHEMA)


@pytest.fixture
def shared(path: Path) -> Task:
    return in_file(path)


@pytest.fixture
def sandbox(sqlite_database: Database, shared: Task) -> Iterator[Sandbox]:
    with sqlite_database.sandbox(shared) as sandbox:
        yield sandbox


def made(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def in_file(path: Path) -> Task:
    source = Source.of(path)
    return dataclasses.replace(task(*source.tables()), source=source, dialect="sqlite")


def own(*tables: Table) -> Task:
    return dataclasses.replace(task(*tables), dialect="sqlite")


def done(sandbox: Sandbox, sql: str) -> QueryResult:
    result = sandbox.execute(sql)
    assert result.error is None, (sql, result)
    return result


def error(sandbox: Sandbox, sql: str) -> tuple[str | None, int | None]:
    result = sandbox.execute(sql)
    assert result.rows is None
    return result.error, result.error_code


def in_time(sandbox: Sandbox, sql: str) -> QueryResult:
    start = time.process_time()
    result = sandbox.execute(sql)
    assert time.process_time() - start < LIMITS.seconds + GRACE
    return result


# --- a file -----------------------------------------------------------------------------------------------


def test_sqlite_is_what_runs(sandbox: Sandbox) -> None:
    result = done(
        sandbox, "SELECT nation || '!' AS cry, gold / 2, \"gold\" FROM medals ORDER BY gold IS NULL, gold"
    )
    assert result.rows == [("Chad!", 0, 1), ("Peru!", 11, 22), ("Perú!", None, None)]
    assert result.columns == ("cry", "gold / 2", "gold")
    assert done(sandbox, "SELECT nation FROM winners").rows == [("Peru",)]
    assert done(sandbox, "SELECT 'peru' = 'PERU', 'a' = 'á', typeof(1.0), 1 = '1'").rows == [
        (0, 0, "real", 0)
    ]
    assert done(sandbox, "SELECT group_concat(gold, '; ') FROM medals").rows == [("1; 22",)]


def test_nothing_is_written_to_a_file_or_beside_it(
    sqlite_database: Database, path: Path, shared: Task
) -> None:
    before = path.read_bytes()
    with sqlite_database.sandbox(shared) as writer, sqlite_database.sandbox(shared) as reader:
        assert done(writer, "UPDATE medals SET gold = gold + 1").affected == 3
        assert done(writer, "DELETE FROM orders").affected == 300
        done(writer, "DROP TABLE photos")
        done(writer, "CREATE TABLE mine (a INT)")
        assert done(writer, "SELECT SUM(gold) FROM medals").rows == [(25,)]
        assert done(reader, "SELECT SUM(gold) FROM medals").rows == [(23,)]
        assert sorted(writer.state()) == ["latin", "medals", "mine", "orders"]
        assert sorted(reader.state()) == ["latin", "medals", "orders", "photos"]
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_a_file_in_the_mode_of_a_log_is_read_and_copied(sqlite_database: Database, tmp_path: Path) -> None:
    path = made(tmp_path / "log.sqlite", "PRAGMA journal_mode = wal; " + SCHEMA)
    with sqlite_database.sandbox(in_file(path)) as sandbox:
        assert done(sandbox, "SELECT COUNT(*) FROM medals").rows == [(3,)]
        assert done(sandbox, "DELETE FROM medals WHERE gold > 1").affected == 1
        assert done(sandbox, "SELECT COUNT(*) FROM medals").rows == [(2,)]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_that_is_not_there_any_more(sqlite_database: Database, path: Path, shared: Task) -> None:
    path.unlink()
    with pytest.raises(
        TaskError, match=r"the database '.*shop.sqlite' cannot be read: unable to open database file"
    ):
        sqlite_database.sandbox(shared)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(TaskError, match="file is not a database"):
        sqlite_database.sandbox(shared)


def test_many_read_one_file(sqlite_database: Database, shared: Task) -> None:
    def episode(number: int) -> Any:
        with sqlite_database.sandbox(shared) as sandbox:
            if number % 4 == 0:
                done(sandbox, f"INSERT INTO medals VALUES ('x', {number})")
            return done(sandbox, "SELECT COUNT(*), MAX(gold) FROM medals").rows

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(episode, range(64)))
    assert found == [[(4, max(22, number))] if number % 4 == 0 else [(3, 22)] for number in range(64)]


# --- the session before the first write -------------------------------------------------------------------


def test_a_transaction_begun_before_the_first_write(sandbox: Sandbox) -> None:
    done(sandbox, "BEGIN")
    done(sandbox, "SELECT * FROM medals")
    done(sandbox, "SAVEPOINT here")
    done(sandbox, "DELETE FROM medals")
    assert done(sandbox, "SELECT COUNT(*) FROM medals").rows == [(0,)]
    done(sandbox, "ROLLBACK TO here")
    done(sandbox, "UPDATE medals SET gold = 7 WHERE nation = 'Chad'")
    assert rows_of(sandbox)["medals"][0] == ("Chad", 7)
    done(sandbox, "ROLLBACK")
    assert rows_of(sandbox)["medals"][0] == ("Chad", 1)


def test_a_temporary_table_made_before_the_first_write(sandbox: Sandbox) -> None:
    done(sandbox, "CREATE TEMP TABLE rich AS SELECT nation FROM medals WHERE gold > 1")
    assert done(sandbox, "INSERT INTO rich VALUES ('Oslo') RETURNING nation").rows == [("Oslo",)]
    assert done(sandbox, "DELETE FROM medals WHERE nation IN (SELECT nation FROM rich)").affected == 1
    assert done(sandbox, "SELECT * FROM rich").rows == [("Peru",), ("Oslo",)]
    assert "rich" not in sandbox.state()


def test_a_transaction_that_a_limit_ended_before_the_first_write(sandbox: Sandbox) -> None:
    done(sandbox, "BEGIN")
    done(sandbox, "CREATE TEMP TABLE made (i INT)")
    result = sandbox.execute(NUMBERS + "INSERT INTO made SELECT i FROM n WHERE i < 0")
    assert result.limit == "time" and (result.error or "").endswith("; the transaction was rolled back")
    done(sandbox, "DELETE FROM medals")
    assert error(sandbox, "SELECT * FROM made") == ("no such table: made", 1)
    assert error(sandbox, "COMMIT") == ("cannot commit - no transaction is active", 1)


@pytest.mark.parametrize(
    ("sql", "changed"),
    [
        ("SELECT * FROM medals", False),
        ("PRAGMA table_info(medals)", False),
        ("EXPLAIN QUERY PLAN SELECT 1", False),
        ("SELECT nothing", False),
        ("INSERT INTO nowhere VALUES (1)", False),
        ("BEGIN", True),
        ("CREATE TEMP TABLE t (a INT)", True),
        ("UPDATE medals SET gold = 1", True),
        ("INSERT INTO medals VALUES ('x', 1) RETURNING gold", True),
        ("ALTER TABLE medals ADD COLUMN silver INT CHECK (silver > 0)", True),
    ],
)
def test_what_changes_something(sqlite_database: Database, shared: Task, sql: str, changed: bool) -> None:
    with sqlite_database.fresh_sandbox(shared) as sandbox:
        sandbox.execute(sql)
        assert sandbox.changed is changed


# --- tables of the task -----------------------------------------------------------------------------------


def test_tables_of_the_task(sqlite_database: Database) -> None:
    stock = table(
        "the stock", "id INTEGER PRIMARY KEY, name TEXT, price NUMERIC", (1, "x", "2.50"), (2, None, True)
    )
    stock = dataclasses.replace(stock, columns=(*stock.columns[:2], Column('the "price"', "NUMERIC")))
    with sqlite_database.sandbox(own(stock)) as sandbox:
        assert done(sandbox, "SELECT * FROM 'the stock' WHERE id = 1").rows == [(1, "x", 2.5)]
        assert done(sandbox, "INSERT INTO [the stock] (name) VALUES (3)").affected == 1
        (found,) = sandbox.state().values()
        assert (found.columns, found.rows[1:]) == (
            ("id", "name", 'the "price"'),
            [(2, None, 1), (3, "3", None)],
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (table("t", "a TEXT)"), "its tables cannot be made"),
        (table("t", "a INT", (2**70,)), "too large"),
        (table("t", "a INT", (1, 2)), "row 1 has 2 cells"),
        (table("sqlite_t", "a INT"), "reserved for internal use"),
    ],
)
def test_tables_that_cannot_be_made(sqlite_database: Database, wrong: Table, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        sqlite_database.sandbox(own(wrong))


def test_a_server_refuses_sqlite(local_database: Database, shared: Task) -> None:
    with pytest.raises(TaskError, match=r"dialect sqlite, and this database is .* Set database: sqlite"):
        local_database.sandbox(shared)


# --- what an agent may look at ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "row"),
    [
        ("PRAGMA table_info(medals)", (1, "gold", "INT", 0, None, 0)),
        ("PRAGMA main.table_xinfo('medals')", (1, "gold", "INT", 0, None, 0, 0)),
        ("SELECT name, type FROM pragma_table_info('medals')", ("gold", "INT")),
        ("SELECT name FROM sqlite_master WHERE type = 'view'", ("winners",)),
        ("SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c", ("medals", "gold")),
        ("PRAGMA table_list", ("main", "winners", "view", 1, 0, 0)),
        ("EXPLAIN QUERY PLAN SELECT * FROM orders WHERE id = 1", (2, 0, 0, "SEARCH orders USING INTEGER PRIMARY KEY (rowid=?)")),
    ],
)  # fmt: skip
def test_looking_around(sandbox: Sandbox, sql: str, row: tuple) -> None:
    assert row in (done(sandbox, sql).rows or [])


@pytest.mark.parametrize("sql", ["PRAGMA index_list(orders)", "PRAGMA index_info(i)", "PRAGMA index_xinfo(i)", "PRAGMA foreign_key_list(orders)"])  # fmt: skip
def test_looking_at_what_there_is_not(sandbox: Sandbox, sql: str) -> None:
    assert done(sandbox, sql).rows == []


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH ':memory:' AS x",
        "ATTACH DATABASE '/tmp/hostile_out' AS x",
        "DETACH main",
        "PRAGMA user_version",
        "PRAGMA user_version = 1",
        "PRAGMA writable_schema = 1",
        "PRAGMA journal_mode = WAL",
        "PRAGMA temp_store_directory = '/tmp'",
        "PRAGMA database_list",
        "PRAGMA quick_check(orders)",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT json_patch('{}', '{}')",
        "VACUUM",
        "VACUUM INTO '/tmp/hostile_out'",
        "CREATE VIRTUAL TABLE v USING fts5(a)",
        "CREATE TRIGGER t AFTER INSERT ON medals BEGIN SELECT 1; END",
        "CREATE TEMP TRIGGER t AFTER INSERT ON medals BEGIN SELECT 1; END",
    ],
)
def test_what_an_agent_may_not_do(sandbox: Sandbox, sql: str) -> None:
    text, _ = error(sandbox, sql)
    assert text is not None and ("authoriz" in text)
    done(sandbox, "DELETE FROM orders")  # nor on a copy
    text, _ = error(sandbox, sql)
    assert text is not None and ("authoriz" in text)
    assert not Path("/tmp/hostile_out").exists()


# --- indexes of texts and of boxes ------------------------------------------------------------------------

INDEXED = """
CREATE TABLE medals (nation TEXT, gold INT);
INSERT INTO medals VALUES ('Chad', 1);
CREATE VIRTUAL TABLE five USING fts5(title, body);
INSERT INTO five VALUES ('first', 'hello world'), ('second', 'good bye');
CREATE VIRTUAL TABLE four USING fts4(body);
INSERT INTO four VALUES ('hello there');
CREATE VIRTUAL TABLE three USING fts3(body);
INSERT INTO three VALUES ('hello again');
CREATE VIRTUAL TABLE boxes USING rtree(id, low, high);
INSERT INTO boxes VALUES (1, 0, 1), (2, 5, 6);
CREATE VIRTUAL TABLE words USING fts5vocab('five', 'row');
CREATE VIRTUAL TABLE of_medals USING fts5(nation, content='medals', content_rowid='rowid');
INSERT INTO of_medals(of_medals) VALUES ('rebuild');
CREATE VIRTUAL TABLE bare USING fts5(body, content='');
INSERT INTO bare (rowid, body) VALUES (7, 'nothing is kept');
"""


@pytest.fixture
def indexed(sqlite_database: Database, tmp_path: Path) -> Iterator[Sandbox]:
    with sqlite_database.sandbox(in_file(made(tmp_path / "indexed.sqlite", INDEXED))) as sandbox:
        yield sandbox


FOUND = [
    ("SELECT * FROM five", [("first", "hello world"), ("second", "good bye")]),
    ("SELECT title FROM five WHERE five MATCH 'hello' ORDER BY rank", [("first",)]),
    ("SELECT highlight(five, 1, '<', '>') FROM five('bye')", [("good <bye>",)]),
    ("SELECT bm25(five) < 0, snippet(five, 1, '', '', '', 9) FROM five('bye')", [(1, "good bye")]),
    ("SELECT body FROM four WHERE four MATCH 'there'", [("hello there",)]),
    ("SELECT offsets(three) FROM three WHERE body MATCH 'again'", [("0 0 6 5",)]),
    ("SELECT id FROM boxes WHERE low > 1", [(2,)]),
    ("SELECT term FROM words WHERE term < 'c'", [("bye",)]),
    ("SELECT nation FROM of_medals('chad')", [("Chad",)]),
    ("SELECT rowid FROM bare('kept')", [(7,)]),
]


@pytest.mark.parametrize("first", ["SELECT 1", "DELETE FROM medals WHERE gold > 1"], ids=["file", "copy"])
def test_indexes_of_the_file_are_read(indexed: Sandbox, first: str) -> None:
    done(indexed, first)
    for sql, rows in FOUND:
        assert done(indexed, sql).rows == rows, sql


def test_indexes_of_the_file_are_written_in_the_copy(indexed: Sandbox, tmp_path: Path) -> None:
    file = (tmp_path / "indexed.sqlite").read_bytes()
    done(indexed, "INSERT INTO five VALUES ('third', 'something new')")
    done(indexed, "UPDATE five SET body = 'hello you' WHERE five MATCH 'bye'")
    done(indexed, "DELETE FROM five WHERE title = 'first'")
    assert done(indexed, "SELECT title FROM five('hello OR new')").rows == [("second",), ("third",)]
    done(indexed, "INSERT INTO four VALUES ('one more')")
    done(indexed, "INSERT INTO boxes VALUES (3, 7, 8)")
    assert rows_of(indexed)["boxes"] == [(1, 0.0, 1.0), (2, 5.0, 6.0), (3, 7.0, 8.0)]
    assert (tmp_path / "indexed.sqlite").read_bytes() == file


def test_how_an_index_keeps_its_rows_is_not_in_the_state(sqlite_database: Database, tmp_path: Path) -> None:
    """The same rows, written in one statement or in two: the index has one piece or two."""
    shared = in_file(made(tmp_path / "indexed.sqlite", INDEXED))
    one = ["INSERT INTO five VALUES ('a', 'x'), ('b', 'y')"]
    two = ["INSERT INTO five VALUES ('a', 'x')", "INSERT INTO five VALUES ('b', 'y')"]
    states = []
    for statements in (one, two):
        with sqlite_database.sandbox(shared) as sandbox:
            assert [done(sandbox, sql).affected for sql in statements]
            states.append(sandbox.state())
    assert states[0] == states[1]
    assert set(states[0]) == {*("medals", "five", "four", "three"), *("boxes", "words", "of_medals", "bare")}
    assert states[0]["five"].rows[2:] == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("sql", ["PRAGMA page_size = 8192", "PRAGMA data_version = 2", "DROP TABLE five"])
def test_what_an_index_asks_is_only_read(indexed: Sandbox, sql: str) -> None:
    done(indexed, "DELETE FROM medals")
    text, _ = error(indexed, sql)
    assert text is not None and "authoriz" in text


def test_a_search_is_stopped_in_time(sqlite_database: Database, tmp_path: Path) -> None:
    """SQLite looks at the clock within one call of the index, too."""
    many = (
        "CREATE VIRTUAL TABLE t USING fts5(body); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n "
        "WHERE i < 60000) INSERT INTO t SELECT 'a' || i || ' a' || (i * 7) || ' a' || (i * 13) FROM n;"
    )
    with sqlite_database.sandbox(in_file(made(tmp_path / "t.sqlite", many))) as sandbox:
        words = "substr(replace(hex(zeroblob(3000)), '00', ' OR a*'), 5)"
        assert in_time(sandbox, f"SELECT COUNT(*) FROM t WHERE t MATCH {words}").limit == "time"


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "text", "code"),
    [
        ("SELECT x FROM medals", "no such column: x", 1),
        ("SELECT * FROM nowhere", "no such table: nowhere", 1),
        ("SELEC 1", 'near "SELEC": syntax error', 1),
        ("SELECT foo(1)", "no such function: foo", 1),
        ("INSERT INTO orders VALUES (1, 'x')", "UNIQUE constraint failed: orders.id", 1555),
        ("SELECT 1; SELECT 2", "You can only execute one statement at a time.", 1),
        ("", "there is no statement in this text", 1),
        (" ;\n-- SELECT 1", "there is no statement in this text", 1),
        ("/* SELECT 1", "there is no statement in this text", 1),
        ("SELECT '\0'", "the query contains a null character", 1),
        ("SELECT '\ud800'", "not a character: '\\ud800'", 1),
        ("SELECT '" + "x" * 70_000 + "'", "the statement is too long (70009 characters)", 18),
        ("SELECT 'a' LIKE 'b' ESCAPE 'cc'", "ESCAPE expression must be a single character", 1),
        ("SELECT zeroblob(1000000000)", "string or blob too big", 18),
        ("COMMIT", "cannot commit - no transaction is active", 1),
    ],
)
def test_errors_are_those_of_sqlite(sandbox: Sandbox, sql: str, text: str, code: int) -> None:
    assert error(sandbox, sql) == (text, code)


@pytest.mark.parametrize(
    "sql", ["-- first\nSELECT 1", "/* ; */ SELECT 1;", "\ufeffSELECT 1", "SELECT 1 -- ; SELECT 2"]
)
def test_comments_beside_a_statement(sandbox: Sandbox, sql: str) -> None:
    assert done(sandbox, sql).rows == [(1,)]


def test_text_that_is_not_utf8(sandbox: Sandbox) -> None:
    assert done(sandbox, "SELECT name, name LIKE 'm%', name GLOB '*r' FROM latin").rows == [
        ("M\ufffdller", 1, 1)
    ]
    assert done(sandbox, "UPDATE latin SET name = upper(name)").affected == 1
    assert sandbox.state()["latin"].rows == [("M\ufffdLLER",)]


def test_values_come_as_sqlite_has_them(sandbox: Sandbox) -> None:
    result = done(
        sandbox,
        "SELECT 1, 1.5, 'x', x'00ff', NULL, 9e999, 9e999 - 9e999, date('2020-01-31', '+1 month'), true",
    )
    assert result.rows == [(1, 1.5, "x", b"\x00\xff", None, float("inf"), None, "2020-03-02", 1)]


# --- limits -----------------------------------------------------------------------------------------------


def test_too_many_rows_and_too_much_text(sandbox: Sandbox) -> None:
    result = done(sandbox, "SELECT id FROM orders")
    assert (result.rows, result.limit) == ([(n,) for n in range(100)], "rows")
    result = done(sandbox, "SELECT caption FROM photos")
    assert (result.rows, result.limit) == ([("ab" * 2_500,)], "text")
    result = done(sandbox, "SELECT photo FROM photos")
    assert (result.rows, result.limit) == ([(bytes(5_000),)], "text")
    assert sandbox.state()["photos"].rows == [(1, bytes(200_000), "ab" * 50_000 + "!")]


def test_limits_of_one_statement(sandbox: Sandbox) -> None:
    result = sandbox.execute("SELECT id FROM orders", Limits(rows=1_000))
    assert (len(result.rows or []), result.limit) == (300, None)
    result = sandbox.execute("SELECT caption FROM photos", Limits(characters=200_000))
    assert (result.rows, result.limit) == ([("ab" * 50_000 + "!",)], None)


PRODUCT = "orders a, orders b, orders c, orders d"
EXPONENTIAL = "%a" * 60 + "b"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "sql",
    [
        NUMBERS + "SELECT COUNT(*) FROM n",
        NUMBERS + "DELETE FROM medals WHERE gold = (SELECT COUNT(*) FROM n)",
        f"SELECT COUNT(*) FROM {PRODUCT}",
        f"UPDATE medals SET gold = (SELECT SUM(a.id) FROM {PRODUCT})",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE hex(zeroblob(16000)) LIKE '%{'0' * 200}' || TOTAL || '%'",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE hex(zeroblob(16000)) GLOB '*{'[0-9]' * 40}' || TOTAL || 'x*'",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE hex(zeroblob(200000)) LIKE '%{'0' * 200}' || TOTAL || '%'",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE instr(hex(zeroblob(16000)), hex(zeroblob(8000)) || TOTAL)",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE instr(hex(zeroblob(500000)), hex(zeroblob(3000)) || TOTAL)",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE replace(hex(zeroblob(400000)), '00', TOTAL % 9) = 'x'",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE trim(hex(zeroblob(500000)), TOTAL || '0') = '1'",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE json_extract('[1' || hex(zeroblob(500000 + TOTAL)) || ']', '$[9]')",
        f"SELECT COUNT(*) FROM {PRODUCT} WHERE upper(printf('%*d', 1000000 + TOTAL, 1)) = 'x'",
    ],
    ids=lambda sql: sql[-60:],
)
def test_what_takes_too_long(sandbox: Sandbox, sql: str) -> None:
    result = in_time(sandbox, sql.replace("TOTAL", "(a.id + b.id + c.id + d.id)"))
    assert (result.limit, result.error_code, result.rows) == ("time", 9, None)
    assert result.error == "the statement was stopped: it exceeded the time limit of 1 s"
    assert rows_of(sandbox)["medals"] == [("Chad", 1), ("Peru", 22), ("Perú", None)]


def test_a_list_without_end_is_stopped_by_one_bound_or_the_other(sandbox: Sandbox) -> None:
    """Its rows go to a temporary file, which is full after about the second that the statement has."""
    result = in_time(sandbox, NUMBERS + "DELETE FROM medals WHERE gold IN (SELECT i FROM n)")
    assert (result.limit, result.error_code, result.rows) in [("time", 9, None), ("server", 13, None)]
    assert (result.error or "").startswith("the statement was stopped: ")
    assert rows_of(sandbox)["medals"] == [("Chad", 1), ("Peru", 22), ("Perú", None)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT a.note FROM {PRODUCT} ORDER BY a.note || d.note",
        f"SELECT DISTINCT a.note || b.note || c.note FROM {PRODUCT}",
        "SELECT a.note, row_number() OVER (ORDER BY b.id + c.id) FROM orders a, orders b, orders c",
        f"SELECT group_concat(a.note) FROM {PRODUCT}",
        f"SELECT '{'a' * 60_000}' LIKE '{EXPONENTIAL}'",
        "SELECT hex(zeroblob(500000)) LIKE '%0%0%0%0%0%0%0%0%1'",
        "SELECT hex(zeroblob(500000)) GLOB '*0*0*0*0*0*0*0*0*1'",
        "SELECT trim(hex(zeroblob(16000)), replace(hex(zeroblob(7000)), '0', 'b') || '0') FROM orders",
        "SELECT " + " + ".join(["instr(hex(zeroblob(16000)), hex(zeroblob(8000)) || '1')"] * MAX_SEARCHES),
        "SELECT " + " + ".join(["length(upper(hex(zeroblob(500000))))"] * 500),
        "SELECT " + ", ".join(["hex(zeroblob(500000))"] * 190),
        f"CREATE TABLE r AS {NUMBERS} SELECT i, hex(randomblob(1000)) FROM n",
        "INSERT INTO orders SELECT NULL, hex(randomblob(1000)) FROM orders a, orders b",
        "SELECT 1" + " + 1" * 6_000,
        "SELECT printf('%.1000000000c', 'x')",
        "SELECT printf('%-05.' || '2000000000' || 'llc', 'x')",
        "SELECT format('%.*c', 2000000000, 'x')",
        "SELECT printf('%2000000000c', 'x')",
        "SELECT printf('%.99999999f %.99999999e', 1, 2)",
        "SELECT printf('%,.999999999d', 1)",
        "SELECT printf('%.2000000000s %.2000000000q', 'x', 'y')",
    ],
    ids=lambda sql: sql[:60],
)
def test_no_statement_holds_its_turn(sandbox: Sandbox, sql: str) -> None:
    in_time(sandbox, sql)
    assert done(sandbox, "SELECT COUNT(*) FROM orders").rows == [(300,)]


def test_too_many_searches_and_parts(sandbox: Sandbox) -> None:
    likes = " OR ".join([f"note LIKE '%{n}%'" for n in range(MAX_SEARCHES + 1)])
    assert error(sandbox, f"SELECT * FROM orders WHERE {likes}")[0] == (
        "too many calls of LIKE, GLOB, instr and replace: at most 40 in a statement"
    )
    done(sandbox, "CREATE VIEW v0 AS SELECT id FROM orders")
    twice = "CREATE VIEW v{} AS SELECT a.id FROM v{} a JOIN v{} b ON a.id = b.id"
    results = [sandbox.execute(twice.format(n + 1, n, n)) for n in range(20)]
    assert "the statement has too many parts" in [result.error for result in results]


def test_a_database_that_grows_too_large(sandbox: Sandbox) -> None:
    done(sandbox, "CREATE TABLE grown (a TEXT)")
    results = [
        sandbox.execute("INSERT INTO grown SELECT hex(randomblob(5000)) FROM orders LIMIT 200")
        for _ in range(6)
    ]
    assert (results[0].affected, results[-1].error) == (200, "database or disk is full")
    assert len(sandbox.state()["grown"].rows) in (600, 800)


# --- LIKE, GLOB and others over large texts ---------------------------------------------------------------


def test_a_search_that_would_take_seconds(sandbox: Sandbox) -> None:
    """Nothing interrupts a call: it is not begun."""
    zeros = "hex(zeroblob(500000))"
    for call in (
        f"instr({zeros}, hex(zeroblob(200000)) || '1')",
        f"replace({zeros}, hex(zeroblob(200000)) || '1', '')",
        f"trim({zeros}, hex(zeroblob(500)))",
        f"{zeros} LIKE hex(zeroblob(500))",
    ):
        start = time.monotonic()
        assert error(sandbox, f"SELECT {call}") == ("string or blob too big", 18)
        assert time.monotonic() - start < 0.5
    assert done(sandbox, f"SELECT instr({zeros} || '1', hex(zeroblob(1000)) || '1')").rows == [(998_001,)]
    assert done(sandbox, f"SELECT {zeros} LIKE '%' || hex(zeroblob(100))").rows == [(1,)]
    assert error(sandbox, "SELECT hex(zeroblob(20000)) LIKE '%' || hex(zeroblob(1500))")[0] == (
        "LIKE or GLOB pattern too complex"
    )


@pytest.mark.parametrize("name", ["trim", "ltrim", "rtrim"])
def test_what_is_trimmed_is_what_sqlite_trims(name: str) -> None:
    ours, plain = OwnFunctions().named(name), sqlite3.connect(":memory:")
    for value in (None, 3, -2.5, 1e20, b"a1a", "", " é a ", "a\0a", "aaa"):
        for characters in (None, "", "a", " é", "a\0", 3, b"a"):
            (expected,) = plain.execute(f"SELECT {name}(?, ?)", (value, characters)).fetchone()
            assert ours(value, characters) == expected


def test_printf(sandbox: Sandbox) -> None:
    sql = "SELECT printf('%05.2f|%-4s|%,d|%.3c|%%|%Q', 1.25, 'ab', 1234567, 'x', 'it''s'), printf(NULL), format('%d%%', '7x')"
    assert done(sandbox, sql).rows == [("01.25|ab  |1,234,567|xxx|%|'it''s'", None, "7%")]
    assert error(sandbox, "SELECT printf('%.1000000000c', 'x')") == ("string or blob too big", 18)


def test_functions_over_large_texts(sandbox: Sandbox) -> None:
    sql = "SELECT caption LIKE '%AB!', caption GLOB '*B!', instr(caption, '!'), length(replace(caption, 'ab', 'c')) FROM photos"
    assert done(sandbox, sql).rows == [(1, 0, 100_001, 50_001)]
    assert done(sandbox, "SELECT trim(caption, 'ba') FROM photos").rows == [("!",)]
    assert done(sandbox, "UPDATE photos SET id = 2 WHERE caption LIKE '%b!'").affected == 1
    assert error(sandbox, "SELECT replace(caption, 'a', caption) FROM photos") == (
        "string or blob too big",
        18,
    )
    assert done(sandbox, "SELECT nation FROM medals WHERE nation LIKE 'per%'").rows == [("Peru",), ("Perú",)]


# --- hostile agents ---------------------------------------------------------------------------------------

NATIVE: list[tuple[str, ...]] = [
    ("ATTACH '{secret}' AS s", "SELECT * FROM s.secrets"),
    ("ATTACH 'file:{secret}?mode=ro' AS s", "SELECT * FROM s.secrets"),
    ("SELECT readfile('{secret}')",),
    ("SELECT writefile('/tmp/hostile_out', 'x')",),
    ("SELECT * FROM fsdir('/')",),
    ("SELECT load_extension('{secret}')",),
    ("VACUUM INTO '/tmp/hostile_out'",),
    ("VACUUM main INTO '/tmp/hostile_out'",),
    ("CREATE VIRTUAL TABLE v USING csv(filename='{secret}')",),
    ("PRAGMA temp_store_directory = '/tmp/hostile_out'",),
    ("PRAGMA writable_schema = 1", "DELETE FROM sqlite_master"),
    ("PRAGMA hard_heap_limit = 1", "SELECT 1"),
    ("UPDATE sqlite_master SET sql = 'x'",),
    ("DROP TABLE sqlite_master",),
    ("CREATE TABLE sqlite_stat1 (tbl, idx, stat)", "ANALYZE", "DELETE FROM sqlite_stat1"),
    ("BEGIN EXCLUSIVE", "DELETE FROM medals", "SELECT * FROM medals"),
    ("BEGIN", "BEGIN", "SAVEPOINT a", "RELEASE a", "COMMIT", "ROLLBACK"),
    ("CREATE TEMP TABLE medals (a)", "INSERT INTO medals VALUES (1)", "DELETE FROM main.medals"),
    ("WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT MAX(s) FROM t",),
    ("SELECT printf('%.999999999d', 1), printf('%999999999s', 'x'), char(1, 2, 1114112)",),
    ("SELECT " + "(" * 5_000 + "1" + ")" * 5_000,),
    ("SELECT json_extract('" + "[" * 30_000 + "', '$')",),
    ("SELECT * FROM json_tree('" + "[" * 900 + "1" + "]" * 900 + "') a, orders b, orders c ORDER BY a.fullkey",),
    (" UNION ALL ".join(["SELECT 1"] * 600),),
    ("SELECT abs(-9223372036854775808), 9223372036854775807 + 1, 1 / 0, 1 % 0, -9223372036854775808 / -1",),
]  # fmt: skip


def attacks() -> list[tuple[str, ...]]:
    grammar = [(each,) if isinstance(each, str) else each for group in GRAMMAR.values() for each in group]
    return [*NATIVE, *(statements for _, statements in items()), *grammar]


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_hostile_statements(tmp_path: Path) -> None:
    held(tmp_path, attacks())


@pytest.mark.timeout(600)
def test_some_hostile_statements(tmp_path: Path) -> None:
    """SQLite's own, and every fifth of MySQL's."""
    held(tmp_path, [*NATIVE, *attacks()[len(NATIVE) :: 5]])


def held(folder: Path, attacks: list[tuple[str, ...]]) -> None:
    """Runs them four at a time, on one file; beside it lies another one with a secret."""
    path = made(folder / "shop.sqlite", SCHEMA)
    secret = made(
        folder / "secret.sqlite", f"CREATE TABLE secrets (word); INSERT INTO secrets VALUES ('{SECRET}')"
    )
    files = {file: file.read_bytes() for file in (path, secret)}
    names = {"{secret}": str(secret), "{other}": "secret", "{slot}": "secret", "{pristine}": "secret"}
    with open_database("sqlite", limits=LIMITS) as database, ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda statements: attack(database, in_file(path), names, statements), attacks)
        wrong = [line for each in found for line in each]
    assert not wrong, "\n".join([f"{len(wrong)} violations", *wrong])
    assert {file: file.read_bytes() for file in folder.iterdir()} == files
    assert not Path("/tmp/hostile_out").exists() and not Path("hostile_out").exists()


def attack(database: Database, task: Task, names: dict[str, str], statements: tuple[str, ...]) -> list[str]:
    wrong = []
    shown = "; ".join(sql if len(sql) < 90 else f"{sql[:90]}..." for sql in statements[:4])
    try:
        with database.sandbox(task) as sandbox:
            for sql in statements:
                for place, name in names.items():
                    sql = sql.replace(place, name)
                begin = time.thread_time()
                result = sandbox.execute(sql)
                if (seconds := time.thread_time() - begin) > LIMITS.seconds + GRACE:
                    wrong.append(f"{shown}: held its turn for {seconds:.1f} s")
                seen = f"{result.rows} {result.error}"
                if SECRET in seen:
                    wrong.append(f"{shown}: saw {seen[:200]}")
                if len(seen) > 10 * LIMITS.characters:
                    wrong.append(f"{shown}: was shown {len(seen)} characters")
            sandbox.state()
        with database.sandbox(task) as sandbox:
            if done(sandbox, "SELECT nation FROM winners").rows != [("Peru",)]:
                wrong.append(f"{shown}: the next episode saw something else")
    except Exception as error:
        wrong.append(f"{shown}: raised {error!r}")
    return wrong


def test_a_broken_file_is_a_fault(sqlite_database: Database, path: Path) -> None:
    task = in_file(path)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with sqlite_database.fresh_sandbox(task) as sandbox:
        for _ in range(2):
            with pytest.raises(EnvironmentFault, match="SQLite failed"):
                sandbox.execute("SELECT * FROM orders")
