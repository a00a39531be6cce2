"""Databases that lie beside the tasks, on a server: SQLite files, dumps of MySQL's, folders of CSV and parquet files."""

from __future__ import annotations

import dataclasses
import io
import json
import sqlite3
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pymysql
import pytest
from databases import connect_arguments, opened, rows_of, task

from trl_dbbench.database import Database, QueryResult, Sandbox
from trl_dbbench.database.server.tenancy import ADMIN_CONNECTIONS
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Gold, Source, Task, load_tasks
from trl_dbbench.tasks.sources import folder as folders
from trl_dbbench.tasks.sources.dump_text import Rows, read_dump

SHOP = """
CREATE TABLE owners (
  id INTEGER PRIMARY KEY, Name TEXT NOT NULL DEFAULT 'nobody', code VARCHAR(8) UNIQUE, born DATE, paid DECIMAL(8,2));
CREATE TABLE pets (
  name TEXT, owner INT REFERENCES owners (id) ON DELETE CASCADE, weight REAL, PRIMARY KEY (name, owner));
CREATE TABLE prices (good TEXT, price REAL);
CREATE INDEX by_weight ON pets (weight);
CREATE VIEW heavy AS SELECT owners.Name || '''s ' || pets.name AS pet FROM pets JOIN owners ON owner = id WHERE weight > 10;
CREATE VIEW heavier AS SELECT pet FROM heavy WHERE pet <> '';
INSERT INTO owners VALUES (1, 'Ann', 'A', '2000-01-31', 2.5), (2, 'Bö 😀', NULL, NULL, 3);
INSERT INTO pets VALUES ('Rex', 1, 20.5), ('Tom', 2, 4);
INSERT INTO prices VALUES ('nut', 0.1), ('100%', 1e300);
"""


@pytest.fixture
def shop(tmp_path: Path) -> Task:
    return over(made(tmp_path / "shop.sqlite", SHOP))


@pytest.fixture
def sandbox(server_database: Database, shop: Task) -> Iterator[Sandbox]:
    with server_database.sandbox(shop) as sandbox:
        yield sandbox


def made(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def over(path: Path, dialect: str = "mysql", name: str | None = None) -> Task:
    source = Source.of(path, name=name)
    return dataclasses.replace(task(*source.tables()), source=source, dialect=dialect)


def change(asked: Task, sql: str) -> Task:
    return dataclasses.replace(asked, operation="UPDATE", gold=Gold(sql=sql))


def done(sandbox: Sandbox, sql: str) -> QueryResult:
    result = sandbox.execute(sql)
    assert result.error is None, (sql, result)
    return result


def rows(sandbox: Sandbox, sql: str) -> list[tuple]:
    found = done(sandbox, sql).rows
    assert found is not None
    return found


def tables_on_server(database: Database, kind: str) -> dict[str, set[str]]:
    """Of this database's pristine databases (`_t`) or slots (`_s`): those with one of the shop's tables."""
    found: dict[str, set[str]] = {}
    with pymysql.connect(**connect_arguments(database.url)) as admin, admin.cursor() as cursor:
        cursor.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema REGEXP %s",
            (f"^dbb_.*{kind}[0-9]+$",),
        )
        for schema, name in cursor.fetchall():
            found.setdefault(schema, set()).add(name)
    return {schema: names for schema, names in found.items() if names & {"owners", "pets", "prices", "heavy"}}


# --- a SQLite file on a server ----------------------------------------------------------------------------


def test_rows_are_those_of_the_file(sandbox: Sandbox) -> None:
    assert rows(sandbox, "SELECT * FROM owners ORDER BY id") == [
        (1, "Ann", "A", date(2000, 1, 31), Decimal("2.50")),
        (2, "Bö 😀", None, None, Decimal("3.00")),
    ]
    assert rows(sandbox, "SELECT name, owner, weight FROM pets WHERE weight > 5") == [("Rex", 1, 20.5)]
    assert rows(sandbox, "SELECT * FROM prices ORDER BY price") == [("nut", 0.1), ("100%", 1e300)]
    assert rows(sandbox, "SELECT pet FROM heavier") == [("Ann's Rex",)]
    assert rows(sandbox, "SHOW TABLES") == [("heavier",), ("heavy",), ("owners",), ("pets",), ("prices",)]


def test_types_keys_and_defaults_are_those_of_the_file(sandbox: Sandbox) -> None:
    described = {
        name: [
            (row[0], row[1].replace("int(11)", "int"), *row[2:4]) for row in rows(sandbox, f"DESCRIBE {name}")
        ]
        for name in ("owners", "pets", "prices")
    }
    assert described == {
        "owners": [
            ("id", "int", "NO", "PRI"),
            ("Name", "text", "NO", ""),
            ("code", "varchar(8)", "YES", "UNI"),
            ("born", "date", "YES", ""),
            ("paid", "decimal(8,2)", "YES", ""),
        ],
        "pets": [("name", "varchar(255)", "NO", "PRI"), ("owner", "int", "NO", "PRI"), ("weight", "double", "YES", "MUL")],
        "prices": [("good", "text", "YES", ""), ("price", "double", "YES", "")],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("INSERT INTO owners (id) VALUES (1)", 1062),
        ("INSERT INTO owners (code) VALUES ('A')", 1062),
        ("INSERT INTO owners (Name) VALUES (NULL)", 1048),
        ("INSERT INTO pets VALUES ('Rex', 1, 2)", 1062),
        ("INSERT INTO pets VALUES ('Ada', 7, 2)", 1452),
        ("UPDATE owners SET id = 9 WHERE id = 1", 1451),
        ("DELETE FROM nowhere", 1146),
    ],
)
def test_keys_hold(sandbox: Sandbox, sql: str, code: int) -> None:
    assert sandbox.execute(sql).error_code == code
    done(sandbox, "INSERT INTO owners (born) VALUES ('2020-02-29')")
    assert rows(sandbox, "SELECT id, Name FROM owners WHERE born = '2020-02-29'")[0][1] == "nobody"


def test_what_a_change_touches_goes_with_it(server_database: Database, shop: Task) -> None:
    with server_database.sandbox(shop) as writer, server_database.sandbox(shop) as reader:
        assert done(writer, "DELETE FROM owners WHERE id = 1").affected == 1
        assert rows(writer, "SELECT name FROM pets") == [("Tom",)]
        assert rows(writer, "SELECT COUNT(*) FROM heavy") == [(0,)]
        assert {name: len(found) for name, found in rows_of(writer).items()} == {
            "owners": 1,
            "pets": 1,
            "prices": 2,
        }
        assert rows(reader, "SELECT COUNT(*) FROM pets JOIN owners ON owner = id") == [(2,)]
        assert {name: len(found) for name, found in rows_of(reader).items()} == {
            "owners": 2,
            "pets": 2,
            "prices": 2,
        }


@pytest.mark.parametrize(
    ("statements", "copied"),
    [
        (["SELECT * FROM heavy", "SHOW TABLES", "DESCRIBE pets"], set()),
        (["UPDATE prices SET price = 2"], {"prices"}),
        (["UPDATE prices SET price = 2", "SELECT * FROM pets", "SELECT COUNT(*) FROM heavy"], {"prices"}),
        (["UPDATE prices SET price = 2", "SELECT * FROM pets JOIN prices"], {"prices", "pets"}),
        (["INSERT INTO pets VALUES ('Ada', 2, 1)"], {"pets", "owners"}),
        (["UPDATE `owners` SET Name = 'x'"], {"pets", "owners"}),
        (["UPDATE prices SET price = 2", "SELECT * FROM heavier, prices"], {"prices", "pets", "owners", "heavy", "heavier"}),
        (["BEGIN"], {"prices", "pets", "owners", "heavy", "heavier"}),
        (["CREATE TABLE mine (a INT)"], {"prices", "pets", "owners", "heavy", "heavier", "mine"}),
    ],
)  # fmt: skip
def test_only_what_statements_touch_is_copied(
    server_database: Database, shop: Task, statements: list[str], copied: set[str]
) -> None:
    before = tables_on_server(server_database, "_s")
    with server_database.sandbox(shop) as sandbox:
        for sql in statements:
            done(sandbox, sql)
        slots = tables_on_server(server_database, "_s")
        assert [names for slot, names in slots.items() if slot not in before] == ([copied] if copied else [])


def test_keys_that_a_copy_is_made_with(server_database: Database, tmp_path: Path) -> None:
    """One that a foreign key refers to must be there before it, though the referring table comes first; of two
    FULLTEXT keys InnoDB adds only one to a table."""
    cards = made(
        tmp_path / "cards.sqlite",
        "CREATE TABLE sets (id INTEGER PRIMARY KEY, code VARCHAR(9) UNIQUE);"
        "CREATE TABLE set_names (id INTEGER PRIMARY KEY, code VARCHAR(9) REFERENCES sets (code));"
        "INSERT INTO sets VALUES (1, 'A'); INSERT INTO set_names VALUES (1, 'A');",
    )
    with server_database.sandbox(over(cards)) as sandbox:
        assert done(sandbox, "INSERT INTO sets VALUES (2, 'B')").affected == 1
        assert done(sandbox, "INSERT INTO set_names VALUES (2, 'B')").affected == 1
        refused = sandbox.execute("INSERT INTO set_names VALUES (3, 'C')")
        assert (refused.error or "").startswith("1452 (23000)")
    posts = tmp_path / "posts.sql"
    posts.write_text(
        "CREATE TABLE `posts` (`id` int PRIMARY KEY, `a` text, `b` text, FULLTEXT KEY `x` (`a`), "
        "FULLTEXT KEY `y` (`b`));\nINSERT INTO `posts` VALUES (1, 'one', 'two');\n"
    )
    with server_database.sandbox(over(posts)) as sandbox:
        assert done(sandbox, "UPDATE posts SET a = 'z'").affected == 1
        assert rows(sandbox, "SELECT id FROM posts WHERE MATCH (b) AGAINST ('two')") == [(1,)]


def test_rows_beyond_those_that_a_state_holds_count(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trl_dbbench.database.sandbox.MAX_STATE_ROWS", 3)
    numbers = made(
        tmp_path / "n.sqlite",
        "CREATE TABLE numbers (n INTEGER PRIMARY KEY, name TEXT);"
        "INSERT INTO numbers VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e');",
    )
    asked = change(over(numbers, sorted(database.task_dialects)[-1]), "INSERT INTO numbers VALUES (6, 'f')")
    judge = Judge(database)
    for statements, right in {
        (): False,
        ("INSERT INTO numbers VALUES (6, 'f')",): True,
        ("INSERT INTO numbers VALUES (6, 'F')",): False,
        ("DELETE FROM numbers WHERE n = 4", "INSERT INTO numbers VALUES (6, 'f'), (4, 'd')"): True,
    }.items():
        with database.sandbox(asked) as sandbox:
            for sql in statements:
                done(sandbox, sql)
            assert judge(asked, Answer(""), sandbox, "agentbench_text").right is right, statements


def test_a_partial_copy_shows_nowhere(sandbox: Sandbox) -> None:
    everything = [("heavier",), ("heavy",), ("owners",), ("pets",), ("prices",)]
    done(sandbox, "UPDATE prices SET price = 2")
    assert rows(sandbox, "SHOW TABLES") == everything
    assert rows(sandbox, "SHOW TABLES WHERE Tables_in_dbbench <> 'prices'") == everything[:-1]
    assert rows(sandbox, "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = 'dbbench'") == [
        (5,)
    ]
    assert rows(sandbox, "SELECT price FROM prices") == [(2.0,), (2.0,)]


def test_information_that_a_change_reads(sandbox: Sandbox) -> None:
    done(
        sandbox,
        "INSERT INTO prices SELECT table_name, 7 FROM information_schema.tables WHERE table_schema = 'dbbench'",
    )
    assert rows(sandbox, "SELECT COUNT(*) FROM prices WHERE price = 7") == [(5,)]


def test_sessions_and_code(sandbox: Sandbox) -> None:
    for sql in ("BEGIN", "DELETE FROM pets", "ROLLBACK"):
        done(sandbox, sql)
    assert rows(sandbox, "SELECT COUNT(*) FROM pets") == [(2,)]
    done(sandbox, "SET @name = 'Rex'")
    assert rows(sandbox, "SELECT weight FROM pets WHERE name = @name") == [(20.5,)]
    done(sandbox, "CREATE PROCEDURE clear() DELETE FROM pets")
    done(sandbox, "CALL clear()")
    assert rows_of(sandbox)["pets"] == []
    done(sandbox, "DROP TABLE pets, owners")
    assert sorted(rows_of(sandbox)) == ["prices"]
    assert sandbox.execute("SELECT * FROM pets").error_code == 1146


def test_changes_are_judged_by_all_tables(server_database: Database, shop: Task) -> None:
    asked = change(shop, "UPDATE prices SET price = 2 WHERE good = 'nut'")
    for sql, right in (
        (asked.gold.sql, True),
        ("UPDATE prices SET price = 2", False),
        ("DELETE FROM owners", False),
    ):
        with server_database.sandbox(asked) as sandbox:
            done(sandbox, str(sql))
            assert Judge(server_database)(asked, Answer(""), sandbox, "agentbench_text").right is right


def test_tasks_of_one_source_share_it(server_database: Database, shop: Task) -> None:
    before = tables_on_server(server_database, "_t")
    tasks = [dataclasses.replace(shop, id=str(number)) for number in range(24)]

    def episode(asked: Task) -> list[tuple]:
        with server_database.sandbox(asked) as sandbox:
            if int(asked.id) % 3 == 0:
                done(sandbox, f"UPDATE owners SET Name = '{asked.id}' WHERE id = 1")
            return rows(sandbox, "SELECT Name FROM owners WHERE id = 1")

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(episode, tasks))
    assert found == [[(asked.id if int(asked.id) % 3 == 0 else "Ann",)] for asked in tasks]
    after = tables_on_server(server_database, "_t")
    assert len(after) == len(before) + 1


def test_more_sources_at_a_time_than_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl_dbbench.database.server.tenancy.ADMIN_SECONDS", 5)
    count = ADMIN_CONNECTIONS + 4
    databases = (
        f"CREATE DATABASE d{n}; USE d{n}; CREATE TABLE t (a int); INSERT INTO t VALUES ({n});\n"
        for n in range(count)
    )
    path = dump(tmp_path / "many.sql", "".join(databases))
    with opened("local") as database, ThreadPoolExecutor(count) as pool:

        def episode(number: int) -> list[tuple]:
            with database.sandbox(over(path, name=f"d{number}")) as sandbox:
                return rows(sandbox, "SELECT a FROM t")

        assert list(pool.map(episode, range(count))) == [[(number,)] for number in range(count)]
        kept = database.tenancy.pristine._kept.values()  # type: ignore[attr-defined]
        assert all(each.loaded.bytes > 0 for each in kept)  # each found a connection to ask for it


def test_sources_that_nobody_uses_make_room(
    local_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = over(made(tmp_path / "first.sqlite", SHOP))
    second = over(made(tmp_path / "second.sqlite", SHOP + "DELETE FROM prices;"))
    with local_database.sandbox(first), local_database.sandbox(second):
        there = len(tables_on_server(local_database, "_t"))
        monkeypatch.setattr("trl_dbbench.database.server.pristine.MAX_SOURCE_BYTES", 0)
    assert len(tables_on_server(local_database, "_t")) <= there - 2
    with local_database.sandbox(first) as sandbox:
        assert rows(sandbox, "SELECT COUNT(*) FROM prices") == [(2,)]


def test_a_server_that_is_lost_gets_the_source_again(tmp_path: Path) -> None:
    shop = over(made(tmp_path / "shop.sqlite", SHOP))
    with opened("local") as database, database.sandbox(shop) as sandbox:
        done(sandbox, "UPDATE prices SET price = 2 WHERE good = 'nut'")
        database._server.kill()  # type: ignore[attr-defined]
        assert rows(sandbox, "SELECT COUNT(*) FROM pets") == [(2,)]
        assert rows(sandbox, "SELECT price FROM prices WHERE good = 'nut'") == [(2.0,)]
        assert sandbox.retries > 0


def test_the_emulation_refuses_it(sqlite_database: Database, shop: Task) -> None:
    with pytest.raises(
        TaskError, match=r"of MySQL's dialect over the database '.*shop.sqlite', which needs a server"
    ):
        sqlite_database.sandbox(shop)
    native = dataclasses.replace(shop, dialect="sqlite")
    with sqlite_database.sandbox(native) as sandbox:
        assert rows(sandbox, "SELECT pet FROM heavier") == [("Ann's Rex",)]


# --- what is converted ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "values", "type"),
    [
        ("INTEGER", "1, -2147483648, NULL", "INT"),
        ("INTEGER", "2147483648", "BIGINT"),
        ("INT", "1, 'n/a'", "TEXT"),
        ("INT", "1, 1.5", "DOUBLE"),
        ("INT", "9223372036854775807, 1.5", "TEXT"),
        ("BIGINT", "1", "BIGINT"),
        ("BOOLEAN", "0, 1", "INT"),
        ("", "1, 2", "INT"),
        ("", "'a'", "TEXT"),
        ("REAL", "1, 2.5", "DOUBLE"),
        ("NUMERIC", "1, 2.5", "DOUBLE"),
        ("NUMERIC", "1, 2", "INT"),
        ("DECIMAL(5,2)", "1, 2.25", "DECIMAL(5,2)"),
        ("DECIMAL(5,2)", "2.125", "DOUBLE"),
        ("DEC2(5,2)", "12.345", "DOUBLE"),  # its letters name a decimal
        ("DECIMAL(5,2)", "1000", "INT"),
        ("DECIMAL(5,10)", "0", "INT"),  # more places than digits
        ("VARCHAR(3)", "'äöü'", "VARCHAR(3)"),
        ("VARCHAR(3)", "'long'", "TEXT"),
        ("varchar(5000)", "'x'", "TEXT"),
        ("TEXT", "printf('%.*c', 70000, 'x')", "MEDIUMTEXT"),
        ("DATE", "'2020-02-29', NULL", "DATE"),
        ("DATE", "'2021-02-29'", "TEXT"),
        ("DATE", "'0000-00-00'", "TEXT"),
        ("DATE", "2020", "INT"),
        ("TEXT", "'2020-02-29'", "TEXT"),
        ("DATETIME", "'2020-02-29 12:00:00'", "DATETIME"),
        ("timestamp", "'2020-02-29 12:00:00.250'", "DATETIME(3)"),
        ("DATETIME", "'2020-02-29 12:00:00.000000'", "DATETIME"),  # as SQLAlchemy writes it
        ("DATETIME", "'2020-02-29 12:00:00.000000', '2020-02-29 12:00:00.500000'", "DATETIME(6)"),
        ("DATETIME", "'2020-02-29 25:00:00'", "TEXT"),
        ("DATETIME", "'2020-02-29'", "DATE"),
        ("TIME", "'12:30:00'", "TIME"),
        ("BLOB", "x'00ff'", "LONGBLOB"),
        ("TEXT", "'a', x'ff'", "LONGBLOB"),
        ("INT", "NULL", "INT"),
        ("DATETIME", "NULL", "DATETIME"),
        ("VARCHAR(9)", "NULL", "VARCHAR(9)"),
        ("DECIMAL(5,2)", "NULL", "DECIMAL(5,2)"),
        ("", "NULL", "TEXT"),
    ],
)
def test_a_type_is_the_declared_one_where_all_values_fit(
    tmp_path: Path, declared: str, values: str, type: str
) -> None:
    cells = "), (".join(values.split(", ")) if "printf" not in values else values
    path = made(tmp_path / "t.sqlite", f"CREATE TABLE t (c {declared}); INSERT INTO t VALUES ({cells})")
    assert Source.of(path).described("mysql").startswith(f"CREATE TABLE `t` (\n  `c` {type}\n)")


def test_every_value_arrives(server_database: Database, tmp_path: Path) -> None:
    path = made(
        tmp_path / "t.sqlite",
        "CREATE TABLE t (n INTEGER PRIMARY KEY, a INT, b, c DATETIME, d DOUBLE, `e %s``` BLOB);"
        "INSERT INTO t VALUES (0, 1, 'it''s \\ \"x\"', '2020-02-29 12:00:00.5', 0.1, x'00ff27'),"
        "(-1, 'n/a', 1.5, NULL, 1e-300, 'text'), (9000000000, NULL, x'', NULL, -0.0, NULL)",
    )
    with server_database.sandbox(over(path)) as sandbox:
        assert rows(sandbox, "SELECT * FROM t ORDER BY n") == [
            (-1, "n/a", b"1.5", None, 1e-300, b"text"),
            (0, "1", b'it\'s \\ "x"', datetime(2020, 2, 29, 12, 0, 0, 500_000), 0.1, b"\x00\xff'"),
            (9_000_000_000, None, b"", None, 0.0, None),
        ]


def test_what_has_no_counterpart_is_told(
    server_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(
        tmp_path / "odd.sqlite",
        "CREATE TABLE words (word TEXT PRIMARY KEY, n INT DEFAULT (1 + 1), CHECK (n > 0));"
        "CREATE TABLE uses (word TEXT REFERENCES words, of INT REFERENCES gone (id), n INT REFERENCES uses (of));"
        "CREATE UNIQUE INDEX some ON uses (n) WHERE n > 0;"
        "CREATE VIEW strange AS SELECT * FROM uses WHERE word GLOB 'a*';"
        "CREATE VIEW broken AS SELECT * FROM gone;"
        "INSERT INTO words VALUES ('a', 1), ('A', 2); INSERT INTO uses VALUES ('a', 1, 5)",
    )
    with server_database.sandbox(over(path)) as sandbox:
        assert rows(sandbox, "SELECT COUNT(*) FROM words") == [(2,)]
        assert rows(sandbox, "SHOW TABLES") == [("uses",), ("words",)]
    (told,) = [each.getMessage() for each in caplog.records if "odd.sqlite" in each.getMessage()]
    for part in (
        "words.n: the default 1 + 1;",
        "words: its CHECK constraints;",
        "words: the primary key (word) (1062",
        "uses: the foreign key (of) to gone, no table",
        "uses: the foreign key (word) to words (",
        "uses: the index some, which is partial",
        "the view strange (",
    ):
        assert part in told, told


def test_wide_rows_and_defaults_that_do_not_fit(local_database: Database, tmp_path: Path) -> None:
    """SQLite checks neither."""
    wide = ", ".join(f"c{n} VARCHAR(255) DEFAULT 'x'" for n in range(70))
    strange = "a VARCHAR(1) DEFAULT 'abc', b INT DEFAULT 99999999999, c INT DEFAULT -1"
    both = over(
        made(
            tmp_path / "w.sqlite",
            f"CREATE TABLE w (id INTEGER PRIMARY KEY, {wide});"
            f"INSERT INTO w (id) VALUES (1); CREATE TABLE d (k INT, {strange}); INSERT INTO d (k) VALUES (1)",
        )
    )
    with local_database.sandbox(both) as sandbox:
        assert sandbox.execute("SELECT c0, c69 FROM w").rows == [("x", "x")]
        assert sandbox.execute("INSERT INTO d (k) VALUES (2)").affected == 1


def test_what_no_server_holds_is_refused_once(
    local_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infinite = over(made(tmp_path / "t.sqlite", "CREATE TABLE t (a REAL); INSERT INTO t VALUES (9e999)"))
    with pytest.raises(
        TaskError, match="table 't', column 'a' holds an infinite number, which MySQL has not"
    ):
        local_database.sandbox(infinite)
    large = over(
        made(tmp_path / "l.sqlite", "CREATE TABLE t (a BLOB); INSERT INTO t VALUES (zeroblob(1000000))")
    )
    message = r"l\.sqlite' cannot be loaded: a row takes 2,000,0.* bytes, the server takes up to 327,680.*INSERT INTO `t`"
    with pytest.raises(TaskError, match=message):
        local_database.sandbox(large)
    monkeypatch.delattr("trl_dbbench.database.server.sources.SourceLoader.load")
    with pytest.raises(TaskError, match=message):
        local_database.sandbox(large)


def test_a_prompt_names_generated_columns(tmp_path: Path) -> None:
    path = made(
        tmp_path / "g.sqlite",
        "CREATE TABLE t (a INT, b INT GENERATED ALWAYS AS (a * 2), c INT AS (a) STORED)",
    )
    for dialect in ("sqlite", "mysql"):
        (table,) = Source.of(path).tables(dialect)
        assert [(each.name, each.type) for each in table.columns] == [
            ("a", "INT"),
            ("b", "INT"),
            ("c", "INT"),
        ]


@pytest.mark.parametrize("suffix", [".sqlite", ".sql"])
def test_views_are_parsed_once_for_all_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"v{suffix}"
    script = "CREATE TABLE t (a INT); CREATE VIEW v AS SELECT a FROM t; CREATE VIEW w AS SELECT a FROM gone;"
    if suffix == ".sql":
        path.write_text(script)
    else:
        made(path, script)
    source = Source.of(path)
    first = source.tables("mysql")
    assert [table.name for table in first] == ["t", "v"]
    monkeypatch.setattr("trl_dbbench.tasks.sources.base.only_statement", lambda *_: pytest.fail("again"))
    assert source.tables("mysql") == first


def test_a_view_shows_nothing_that_its_reader_may_not_see(
    server_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = made(tmp_path / "v.sqlite", "CREATE TABLE t (a INT); CREATE VIEW v AS SELECT 1 AS a")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute(
            "UPDATE sqlite_master SET sql = 'CREATE VIEW v AS SELECT u.a FROM main.t AS u' WHERE name = 'v'"
        )
    with server_database.sandbox(over(path)) as sandbox:
        assert rows(sandbox, "SHOW TABLES") == [("t",)]
    assert "the view v, which reads from the database main" in caplog.text


# --- dumps ------------------------------------------------------------------------------------------------

DUMP = r"""-- MySQL dump 10.13  Distrib 8.4.0, for Linux (x86_64)
/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;
/*!40103 SET TIME_ZONE='+00:00' */;
/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */;
SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '9f40fd81-e72c-11f1-ac29-0242ac110003:1-4';

DROP TABLE IF EXISTS `first`;
/*!50001 DROP VIEW IF EXISTS `first`*/;
/*!50001 CREATE VIEW `first` AS SELECT 
 1 AS `name`*/;

--
-- Table structure; for table `owners`
--
DROP TABLE IF EXISTS `owners`;
CREATE TABLE `owners` (
  `id` int NOT NULL AUTO_INCREMENT,
  `name` varchar(40) NOT NULL DEFAULT 'x',
  `bits` bit(3) DEFAULT b'101',
  `price` decimal(8,2) DEFAULT '-1.50',
  `twice` int GENERATED ALWAYS AS ((length(`name`) * 2)) STORED,
  `note` text COMMENT 'a; `b` -- c',
  `kind` enum('a','it''s') DEFAULT NULL,
  PRIMARY KEY (`id`),
  UNIQUE KEY `u` (`name`)
) ENGINE=InnoDB AUTO_INCREMENT=7 DEFAULT CHARSET=utf8mb4 COMMENT='an owner; of pets';
LOCK TABLES `owners` WRITE;
/*!40000 ALTER TABLE `owners` DISABLE KEYS */;
INSERT INTO `owners` (`id`, `name`, `bits`, `price`, `note`, `kind`) VALUES (0,'Ann; -- \'x\'',b'101',-1.50,'l1\nl2','a'),
(2,'Bö 😀 `',NULL,1e2,'/* c */ # ''quoted''','it''s'),(3,'q\\',b'11',NULL,'(1,2),(3',NULL);
/*!40000 ALTER TABLE `owners` ENABLE KEYS */;
UNLOCK TABLES;
# a comment; with an 'apostrophe
CREATE TABLE `pets` (`name` text, `owner` int, `data` blob, `at` timestamp NULL, KEY `o` (`owner`),
  CONSTRAINT `f` FOREIGN KEY (`owner`) REFERENCES `owners` (`id`) ON DELETE CASCADE) ENGINE=MyISAM;
INSERT INTO `pets` VALUES ('Rex',0,0x00FF27,'2020-01-02 03:04:05'),('Tom',NULL,NULL,NULL);
DELIMITER ;;
/*!50003 CREATE*/ /*!50017 DEFINER=`root`@`%`*/ /*!50003 TRIGGER `t` BEFORE INSERT ON `pets` FOR EACH ROW SET NEW.name = 'evil;' */;;
CREATE PROCEDURE `p`() BEGIN DELETE FROM pets; SELECT 'x;;'; END ;;
DELIMITER ;
ALTER TABLE `pets` ADD UNIQUE KEY `v` (`name`(20));
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`root`@`%` SQL SECURITY DEFINER */
/*!50001 VIEW `first` AS select `second`.`name` AS `name` from `second` */;
/*!50001 CREATE VIEW `second` AS select `p`.`name` AS `name` from (`pets` `p` join `owners` `o` on((`p`.`owner` = `o`.`id`))) */;
-- Dump completed
"""


def dump(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_dump_on_a_server(
    server_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with server_database.sandbox(over(dump(tmp_path / "shop.sql", DUMP))) as sandbox:
        assert rows(sandbox, "SHOW TABLES") == [("first",), ("owners",), ("pets",), ("second",)]
        assert rows(
            sandbox, "SELECT id, name, bits + 0, price, twice, note, kind FROM owners ORDER BY id"
        ) == [
            (0, "Ann; -- 'x'", 5, Decimal("-1.50"), 22, "l1\nl2", "a"),
            (2, "Bö 😀 `", None, Decimal("100.00"), 20, "/* c */ # 'quoted'", "it's"),
            (3, "q\\", 3, None, 4, "(1,2),(3", None),
        ]
        assert rows(sandbox, "SELECT * FROM pets WHERE owner = 0") == [
            ("Rex", 0, b"\x00\xff'", datetime(2020, 1, 2, 3, 4, 5))
        ]
        assert rows(sandbox, "SELECT * FROM first") == [("Rex",)]
        done(sandbox, "INSERT INTO owners (name) VALUES ('new')")
        assert rows(sandbox, "SELECT id, twice FROM owners WHERE name = 'new'") == [(7, 6)]
        assert sandbox.execute("INSERT INTO pets (name) VALUES ('Rex')").error_code == 1062
        assert sandbox.execute("INSERT INTO pets (owner) VALUES (9)").error_code == 1452
        done(sandbox, "DELETE FROM owners WHERE id = 0")
        assert rows(sandbox, "SELECT name FROM pets") == [("Tom",)]
    for left_out in ("1 statements CREATE TRIGGER", "1 statements CREATE PROCEDURE"):
        assert left_out in caplog.text


def test_what_a_prompt_says_of_a_dump(tmp_path: Path) -> None:
    asked = over(dump(tmp_path / "shop.sql", DUMP))
    assert [(each.name, len(each.columns)) for each in asked.tables] == [("first", 1), ("owners", 7), ("pets", 4), ("second", 1)]  # fmt: skip
    assert [(each.name, each.type) for each in asked.tables[1].columns][1:5] == [
        ("name", "varchar(40)"),
        ("bits", "bit(3)"),
        ("price", "decimal(8,2)"),
        ("twice", "int"),
    ]
    shown = dataclasses.replace(asked, schema="full").prompt()
    assert "  `kind` enum('a','it''s') DEFAULT NULL,\n  PRIMARY KEY (`id`)," in shown
    assert "/* The first rows of pets:\n'Rex', 0, 0x00FF27, '2020-01-02 03:04:05'\n'Tom', NULL" in shown


BOTH = """CREATE DATABASE `zoo`; USE `zoo`; CREATE TABLE t (a int); INSERT INTO t VALUES (1);
CREATE DATABASE `shop`; USE `shop`; CREATE TABLE t (b int); INSERT INTO t VALUES (2);"""


def test_a_dump_of_several_databases(local_database: Database, tmp_path: Path) -> None:
    path = dump(tmp_path / "both.sql", BOTH)
    for name, column, cell in (("zoo", "a", 1), ("shop", "b", 2)):
        with local_database.sandbox(over(path, name=name)) as sandbox:
            assert rows(sandbox, f"SELECT {column} FROM t") == [(cell,)]
    for wrong, message in ((None, "several databases; say which one with 'name': zoo, shop"), ("zo", "unknown database 'zo'")):  # fmt: skip
        with pytest.raises(TaskError, match=message):
            over(path, name=wrong)
    alone = dump(tmp_path / "alone.sql", "CREATE TABLE t (a int);")
    with pytest.raises(TaskError, match="does not say its name; leave 'name'"):
        over(alone, name="shop")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (LOAD_FILE('/etc/passwd'))",
        "INSERT INTO t VALUES ((SELECT authentication_string FROM mysql.user LIMIT 1))",
        "INSERT INTO t VALUES (1 + SLEEP(100))",
        "INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE a = 2",
        "INSERT INTO t SELECT User FROM mysql.user",
        "INSERT INTO mysql.user VALUES ('me')",
        "INSERT INTO `mysql`.`user` VALUES ('me')",
        "REPLACE INTO mysql.user VALUES ('me')",
        "CREATE TABLE u AS SELECT * FROM mysql.user",
        "CREATE TABLE u (a int) AS SELECT * FROM mysql.user",
        "CREATE TABLE u (a int) SELECT * FROM mysql.user",
        "CREATE TABLE u LIKE mysql.user",
        "CREATE TABLE mysql.u (a int)",
        "CREATE TABLE u (a int, FOREIGN KEY (a) REFERENCES mysql.user (a))",
        "CREATE TABLE u (a text DEFAULT (LOAD_FILE('/etc/passwd')))",
        "CREATE TABLE u (a text DEFAULT (`load_file` ('/etc/passwd')))",
        "ALTER TABLE t RENAME TO mysql.t",
        "ALTER TABLE mysql.user ADD x INT",
        "ALTER TABLE t ADD x INT, DISCARD TABLESPACE",
        "ALTER TABLE t ADD x text DEFAULT (SLEEP(100))",
        "DROP TABLE mysql.user",
        "LOAD DATA INFILE '/etc/passwd' INTO TABLE t",
        "SELECT * FROM t INTO OUTFILE '/tmp/hostile_out'",
        "CREATE VIEW v AS SELECT 1 INTO OUTFILE '/tmp/hostile_out'",
        "CREATE VIEW mysql.v AS SELECT 1",
        "UPDATE t SET a = 1",
        "DELETE FROM t WHERE a = 1",
        "DELETE FROM mysql.user",
        "TRUNCATE mysql.user",
        "/*!50000 LOAD DATA INFILE '/etc/passwd' INTO TABLE t */",
    ],
)
def test_a_dump_is_no_code(tmp_path: Path, sql: str) -> None:
    path = dump(tmp_path / "evil.sql", f"CREATE TABLE t (a text);\n{sql};\n")
    with pytest.raises(
        TaskError, match=r"evil\.sql' cannot be read: .*(is not executed|something else than values)"
    ):
        list(Source.of(path).opened.steps())


def test_what_a_dump_may_say_in_vain(server_database: Database, tmp_path: Path) -> None:
    path = dump(
        tmp_path / "vain.sql",
        "CREATE USER me IDENTIFIED BY 'x'; GRANT ALL ON *.* TO me; SET GLOBAL max_connections = 1;\n"
        "CREATE EVENT e ON SCHEDULE EVERY 1 SECOND DO DELETE FROM t; DROP DATABASE mysql; FLUSH PRIVILEGES;\n"
        "CREATE TABLE t (a text) ENGINE=FEDERATED CONNECTION='mysql://x' DATA DIRECTORY='/tmp/hostile_out';\n"
        "CREATE VIEW users AS SELECT User FROM mysql.user; INSERT INTO t VALUES ('1');",
    )
    with server_database.sandbox(over(path)) as sandbox:
        assert rows(sandbox, "SELECT * FROM t") == [("1",)]
        assert sandbox.execute("SELECT * FROM users").error is not None
    assert not Path("/tmp/hostile_out").exists()


@pytest.mark.slow
def test_a_large_dump_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "large.sql"
    with path.open("w") as file:
        file.write("CREATE TABLE t (a int, b text);\nINSERT INTO t VALUES ")
        text = r"it\\ \'s " * 10
        for number in range(200_000):
            file.write(f"{',' if number else ''}({number},'{text}')")
        file.write(";\n")
    source = Source.of(path)
    tracemalloc.start()
    found = sum(len(step.sql) for step in source.opened.steps() if not isinstance(step, str))
    (_, peak), size = tracemalloc.get_traced_memory(), path.stat().st_size
    tracemalloc.stop()
    assert found > size - 1000 and size > 20e6
    assert peak < 16e6


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 1000])
def test_statements_do_not_depend_on_the_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    def read() -> list[Any]:
        found: list[Any] = []
        for each in read_dump(io.StringIO(DUMP)):
            if (
                isinstance(each, Rows)
                and found
                and isinstance(found[-1], Rows)
                and found[-1].table == each.table
            ):
                found[-1].rows.extend(each.rows)
            else:
                found.append(each)
        return found

    whole = read()
    assert len(whole) == 22 and sum(len(each.rows) for each in whole if isinstance(each, Rows)) == 5
    monkeypatch.setattr("trl_dbbench.tasks.sources.dump_text.PIECE", piece)
    assert read() == whole


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no tables"),
        ("SET NAMES latin1; CREATE TABLE t (a int);", "its texts are latin1"),
        ("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2", "something else than values"),
        ("CREATE TABLE t (a int DEFAULT 'x", "the dump is cut off"),
    ],
)
def test_what_is_no_dump(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TaskError, match=f"the dump '.*none.sql' cannot be read: .*{message}"):
        over(dump(tmp_path / "none.sql", text))


def test_a_dump_has_no_place_in_sqlite(sqlite_database: Database, tmp_path: Path) -> None:
    path = dump(tmp_path / "shop.sql", DUMP)
    with pytest.raises(TaskError, match=r"shop\.sql', which needs a server\. Set database: docker, local"):
        sqlite_database.sandbox(over(path))
    entry = {
        "id": "1",
        "question": "?",
        "database": {"path": str(path)},
        "sql": "SELECT 1",
        "grader": "strict",
    }
    assert Task.from_entry(entry).dialect == "mysql"
    with pytest.raises(TaskError, match="is a dump of MySQL's, the task's dialect is sqlite; leave it out"):
        Task.from_entry(entry | {"dialect": "sqlite"})


# --- folders ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "shop"
    path.mkdir()
    (path / "owners.csv").write_text('id,name,"price:DECIMAL(8,2)"\n1,Ann,2.50\n2,,\n')
    pets = pyarrow.table(
        {
            "owner": pyarrow.array([1, 2], pyarrow.int64()),
            "tame": [True, None],
            "weight": [20.5, None],
            "seen": [datetime(2020, 1, 2, 3, 4, 5), None],
            "born": [date(2019, 2, 3), None],
            "data": [b"\x00\xff", None],
            "cost": [Decimal("1.25"), None],
            "kind": pyarrow.array(["dog", "cat"]).dictionary_encode(),
        }
    )
    pyarrow.parquet.write_table(pets, path / "pets.parquet")
    return path


def test_a_folder_in_both_dialects(
    server_database: Database, sqlite_database: Database, folder: Path
) -> None:
    with server_database.sandbox(over(folder)) as sandbox:
        assert rows(sandbox, "SELECT * FROM owners") == [(1, "Ann", Decimal("2.50")), (2, None, None)]
        assert rows(sandbox, "SELECT * FROM pets WHERE owner = 1") == [
            (1, 1, 20.5, datetime(2020, 1, 2, 3, 4, 5), date(2019, 2, 3), b"\x00\xff", Decimal("1.25"), "dog")
        ]
    with sqlite_database.sandbox(over(folder, "sqlite")) as sandbox:
        assert rows(sandbox, "SELECT * FROM owners") == [(1, "Ann", 2.5), (2, None, None)]
        assert rows(sandbox, "SELECT * FROM pets WHERE owner = 1") == [
            (1, 1, 20.5, "2020-01-02 03:04:05", "2019-02-03", b"\x00\xff", 1.25, "dog")
        ]


def test_a_folder_that_macos_packed(folder: Path) -> None:
    """Its archives hold a file of metadata beside each."""
    first = Source.of(folder)
    for file in [*folder.iterdir()]:
        (folder / f"._{file.name}").write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X")
    assert (Source.of(folder), Source.of(folder).tables()) == (first, first.tables())


def test_a_folder_is_converted_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Source.of(folder)
    first.tables()
    (kept,) = folders.cache_folder().glob("*.sqlite")
    assert kept.name.startswith(first.digest)
    with monkeypatch.context() as patch:
        patch.delattr(folders, "_convert")
        assert folders.Folder(folder, first.digest).tables() == first.tables()
    (folder / "owners.csv").write_text("id,name\n1,Ann\n")
    second = Source.of(folder)
    assert second.digest != first.digest
    assert [len(table.columns) for table in second.tables()] == [2, 8]
    with pytest.raises(TaskError, match="is another one than when the task was written"):
        Source.of(folder, first.digest)


def test_processes_that_convert_at_the_same_time(folder: Path) -> None:
    digest = Source.of(folder).digest
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: folders.Folder(folder, digest).tables(), range(8)))
    assert len(set(found)) == 1
    assert len(list(folders.cache_folder().glob("*.sqlite"))) == 1


def test_what_is_no_folder_of_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = tmp_path / "tables"
    home.mkdir()
    with pytest.raises(TaskError, match=r"holds no tables: no \.csv, \.tsv or \.parquet file"):
        Source.of(home)
    (home / "a.csv").write_text("x\n1\n")
    (home / "A.tsv").write_text("x\n1\n")
    with pytest.raises(TaskError, match="two tables of one name"):
        Source.of(home)
    (home / "A.tsv").unlink()
    pyarrow.parquet.write_table(pyarrow.table({"x": [[1, 2]]}), home / "b.parquet")
    with pytest.raises(
        TaskError, match=r"b\.parquet: the column 'x' has the type list<.*>; a table has numbers"
    ):
        Source.of(home).tables()
    (home / "b.parquet").write_bytes(b"nothing")
    with pytest.raises(TaskError, match=r"b\.parquet is not a readable parquet file"):
        Source.of(home).tables()
    (home / "b.parquet").unlink()
    (home / "a.csv").write_text("x:INT PRIMARY KEY,\"k:ENUM('a)','b')\"\n1,a)\n1,b\n")
    with pytest.raises(
        TaskError, match=r"a\.csv: its table cannot be made: UNIQUE constraint failed: a\.x\.$"
    ):
        Source.of(home).tables()
    (home / "a.csv").write_text("x:INT PRIMARY KEY,\"k:ENUM('a)','b')\"\n1,a)\n2,b\n")
    assert Source.of(home).tables()[0].columns[1].name == "k"
    (home / "shop@orders@@0.tsv").write_text("Ann\t7\nBob\t9\n")  # the first row would name the columns
    (home / "@.json").write_text("{}")
    with pytest.raises(TaskError, match="is a dump of MySQL Shell, whose files do not name their columns"):
        Source.of(home)


# --- lines of task files ----------------------------------------------------------------------------------


def test_lines_of_the_own_format(tmp_path: Path, folder: Path) -> None:
    dump(tmp_path / "both.sql", BOTH)
    made(tmp_path / "shop.sqlite", SHOP)
    asked = {"question": "?", "sql": "SELECT 1", "grader": "strict"}
    lines = [
        {"id": "1", "database": {"path": "both.sql", "name": "zoo"}, **asked},
        {"id": "2", "database": {"path": "shop.sqlite"}, "dialect": "mysql", **asked},
        {"id": "3", "database": {"path": "shop"}, **asked},
    ]
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    tasks = load_tasks(file)
    assert [(each.dialect, each.tables[0].name) for each in tasks] == [("mysql", "t"), ("mysql", "owners"), ("sqlite", "owners")]  # fmt: skip
    assert [Task.from_json(each.to_json()) for each in tasks] == tasks
    assert json.loads(tasks[0].to_json())["database"]["name"] == "zoo"
    with pytest.raises(TaskError, match="is not a dump of MySQL's: leave 'name' out"):
        Source.of(tmp_path / "shop.sqlite", name="zoo")


# --- what a prompt says is there --------------------------------------------------------------------------


LEFTOVERS = """
CREATE TABLE `t` (`a` int);
CREATE TABLE `old_t` (`a` int);
CREATE TABLE `x` (`a` int);
CREATE TABLE `y` (`a` int);
CREATE TABLE `stands_in` (`a` int);
INSERT INTO `t` VALUES (1);
CREATE VIEW `elsewhere` AS SELECT a FROM shop.t;
CREATE VIEW `of_dropped` AS SELECT a FROM old_t;
CREATE VIEW `of_lost` AS SELECT a FROM of_dropped;
CREATE FUNCTION `twice`(n INT) RETURNS INT DETERMINISTIC RETURN 2 * n;
CREATE VIEW `calls` AS SELECT twice(a) AS b FROM t;
CREATE VIEW `gone` AS SELECT a FROM t;
CREATE VIEW `kept` AS SELECT a FROM t;
DROP TABLE old_t;
DROP TABLE IF EXISTS `x`, `y`;
DROP VIEW gone;
DROP TABLE `stands_in`;
CREATE VIEW `stands_in` AS SELECT * FROM t;
"""


def test_a_prompt_lists_what_is_left_of_a_dump(tmp_path: Path) -> None:
    (tmp_path / "shop.sql").write_text(LEFTOVERS)
    source = Source.of(tmp_path / "shop.sql")
    assert [table.name for table in source.tables()] == ["t", "kept", "stands_in"]
    shown = source.described("mysql")
    assert "old_t" not in shown and "`elsewhere`" not in shown and "`gone`" not in shown
    notes = [step for step in source.opened.steps() if isinstance(step, str)]
    assert "the view elsewhere, which reads from the database shop" in notes
    assert "the view of_lost, which reads of_dropped, which is not there" in notes
    assert "the view calls, which calls twice, which is not there" in notes


def test_a_prompt_lists_what_is_on_the_server(server_database: Database, tmp_path: Path) -> None:
    """What is listed can be read, and SHOW TABLES has nothing else."""
    (tmp_path / "shop.sql").write_text(LEFTOVERS)
    source = Source.of(tmp_path / "shop.sql")
    here = dataclasses.replace(task(), source=source, tables=source.tables(), dialect="mysql")
    with server_database.sandbox(here) as sandbox:
        found = sandbox.execute("SHOW TABLES").rows
        assert sorted(name for (name,) in found or []) == ["kept", "stands_in", "t"]
        for name in ("t", "kept", "stands_in"):
            assert sandbox.execute(f"SELECT a FROM {name}").rows == [(1,)]


def test_a_table_left_out_takes_its_views_along(tmp_path: Path) -> None:
    (tmp_path / "shop.sql").write_text(LEFTOVERS + "CREATE TABLE `other` (`b` int);")
    source = Source.of(tmp_path / "shop.sql", only=("other", "kept"))
    assert [table.name for table in source.tables()] == ["other"]


def test_views_of_a_sqlite_file_that_no_server_has_are_not_told(tmp_path: Path) -> None:
    file = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(file)) as made:
        made.executescript(
            "CREATE TABLE t (a INT); CREATE VIEW names AS SELECT name FROM sqlite_master;"
            "CREATE VIEW more AS SELECT name FROM names; CREATE VIEW kept AS SELECT a FROM t;"
        )
    lines = [{"id": "q", "question": "?", "database": {"path": str(file)}, "sql": "SELECT a FROM t"}]
    for dialect, wanted in (("sqlite", ["t", "names", "more", "kept"]), ("mysql", ["t", "kept"])):
        entry = {**lines[0], "grader": "strict", "dialect": dialect}
        (read,) = load_tasks(jsonl_of(tmp_path, entry))
        assert [table.name for table in read.tables] == wanted
        assert all(name in read.prompt() for name in wanted)
        assert dialect == "sqlite" or "more" not in read.prompt()


def jsonl_of(folder: Path, entry: dict[str, Any]) -> Path:
    (folder / "tasks.jsonl").write_text(json.dumps(entry))
    return folder / "tasks.jsonl"
