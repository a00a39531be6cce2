"""The embedded database refuses what MySQL on Linux refuses for its names, with the same error.

The small cases are the specification; where there is a MySQL server, each is run on it as well. So are Spider's
gold statements: many of them name a table in another case than its own, which SQLite would run.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from databases import table, task
from required import lacking

from trl_dbbench.database import Database, Limits, QueryResult, Sandbox, open_database
from trl_dbbench.grading.rows import same_rows
from trl_dbbench.mysqlite.names import RESERVED
from trl_dbbench.tasks import Column, Table

BOTH = pytest.mark.parametrize("database", ["sqlite", "docker"], indirect=True)

PEOPLE = table("people", "id INT, name VARCHAR(20), Town INT", (1, "Ann", 1), (2, "Bob", 2))
TOWNS = table("Towns", "id INT, name VARCHAR(20), rank INT", (1, "Aix", 5), (2, "Ulm", 4))

CASES = """
SELECT COUNT(*) FROM people                                              |
SELECT NAME FROM people WHERE ID = 1 AND people.Name = 'Ann'             |
SELECT COUNT(*) FROM People                                              | 1146
SELECT COUNT(*) FROM `towns`                                             | 1146
SELECT 1 FROM people JOIN towns ON people.Town = towns.id                | 1146
SELECT 1 FROM people WHERE Town IN (SELECT id FROM TOWNS)                | 1146
SELECT nope FROM People                                                  | 1146
SELECT 1 FROM people UNION SELECT 1 FROM PEOPLE                          | 1146
INSERT INTO People VALUES (3, 'Cy', 1)                                   | 1146
INSERT INTO people SELECT id, name, rank FROM Towns                      | 1064
INSERT INTO people SELECT id, name, `rank` FROM Towns                    |
INSERT INTO people SELECT id, name, `rank` FROM towns                    | 1146
UPDATE People SET id = 1                                                 | 1146
UPDATE people SET id = (SELECT MAX(id) FROM towns)                       | 1146
DELETE FROM People                                                       | 1146
DELETE p FROM people p JOIN Towns t ON p.Town = t.id                     |
DELETE P FROM people p JOIN Towns t ON p.Town = t.id                     | 1109
TRUNCATE TABLE People                                                    | 1146
ALTER TABLE People ADD COLUMN a INT                                      | 1146
DROP TABLE People                                                        | 1051
DROP TABLE IF EXISTS People                                              |
DROP TABLE people, towns                                                 | 1051
DESCRIBE People                                                          | 1146
SHOW COLUMNS FROM People                                                 | 1146
SHOW CREATE TABLE People                                                 | 1146
RENAME TABLE People TO persons                                           | 1146
CREATE TABLE copy AS SELECT * FROM People                                | 1146
CREATE VIEW v AS SELECT * FROM People                                    | 1146
CREATE INDEX i ON People (id)                                            | 1146
SELECT COUNT(*) FROM INFORMATION_SCHEMA.Tables WHERE table_name = 'x'    |
SELECT T1.name FROM people AS T1                                         |
SELECT t1.name FROM people AS T1                                         | 1054
SELECT People.name FROM people                                           | 1054
SELECT people.name FROM people AS p                                      | 1054
SELECT name FROM people AS T1 WHERE t1.id = 1                            | 1054
SELECT T1.name FROM people AS T1 JOIN Towns AS T2 ON T1.Town = t2.id     | 1054
SELECT COUNT(*) FROM people AS T1 GROUP BY t1.name                       | 1054
SELECT name FROM people AS T1 ORDER BY t1.name                           | 1054
SELECT t1.* FROM people AS T1                                            | 1051
SELECT name FROM people AS T1 WHERE EXISTS (SELECT 1 FROM Towns AS T2 WHERE T2.id = T1.Town) |
SELECT name FROM people AS T1 WHERE EXISTS (SELECT 1 FROM Towns AS T2 WHERE T2.id = t1.Town) | 1054
SELECT a.name FROM (SELECT name FROM people) AS A                        | 1054
UPDATE people AS P SET p.id = 1                                          | 1054
UPDATE people AS P SET P.id = 1 WHERE p.id = 2                           | 1054
DELETE FROM people WHERE People.id = 1                                   | 1054
SELECT NAME AS n FROM people GROUP BY N ORDER BY N                       |
WITH Part AS (SELECT id FROM people) SELECT id FROM Part                 |
WITH Part AS (SELECT id FROM people) SELECT id FROM part                 | 1146
SELECT id FROM (SELECT id FROM people)                                   | 1248
SELECT COUNT(*) FROM people JOIN (SELECT id FROM Towns) ON 1             | 1248
SELECT id FROM (SELECT id FROM people UNION SELECT id FROM Towns)        | 1248
SELECT id FROM ((SELECT id FROM people)) AS a                            |
SELECT COUNT(*) FROM (people, Towns)                                     |
SELECT COUNT(*) FROM (people JOIN Towns ON people.Town = Towns.id)       |
SELECT 1 FROM show                                                       | 1064
SELECT 1 FROM `show`                                                     | 1146
SELECT rank FROM Towns                                                   | 1064
SELECT Towns.rank, `rank` FROM Towns                                     |
SELECT 1 AS rank                                                         | 1064
SELECT 1 AS 'rank', 2 AS `order`                                         |
SELECT 1 FROM people AS groups                                           | 1064
SELECT show.id FROM people AS `show`                                     |
CREATE TABLE t (id INT, lead INT)                                        | 1064
INSERT INTO Towns (id, rank) VALUES (3, 3)                               | 1064
WITH rows AS (SELECT 1) SELECT 1                                         | 1064
SELECT 1 FROM DUAL                                                       |
SELECT status, value, year, date, position, level FROM (SELECT 1 AS status, 2 AS value, 3 AS year, 4 AS date, 5 AS position, 6 AS level) AS t |
SELECT DISTINCT name FROM people ORDER BY id                             | 3065
SELECT DISTINCT name FROM people ORDER BY name, id                       | 3065
SELECT DISTINCT name FROM people ORDER BY LENGTH(name), UPPER(people.name) |
SELECT DISTINCT name FROM people ORDER BY id + LENGTH(name)              | 3065
SELECT DISTINCT id + 1 FROM people ORDER BY id + 1                       |
SELECT DISTINCT id + 1 FROM people ORDER BY id                           | 3065
SELECT DISTINCT id AS n FROM people ORDER BY n, 1                        |
SELECT DISTINCT * FROM people ORDER BY Town                              |
SELECT DISTINCT p.name FROM people p JOIN Towns t ON p.Town = t.id ORDER BY t.name | 3065
SELECT DISTINCT name FROM people GROUP BY name ORDER BY COUNT(*), MAX(id) |
SELECT DISTINCT name FROM people GROUP BY name, id ORDER BY id           | 3065
SELECT DISTINCT name FROM people ORDER BY (SELECT MAX(id) FROM Towns)    |
SELECT DISTINCT p.name AS id FROM people p ORDER BY p.id                 | 3065
SELECT DISTINCT p.* FROM people p JOIN Towns t ON t.id = p.id ORDER BY p.Town |
SELECT DISTINCT p.* FROM people p JOIN Towns t ON t.id = p.id ORDER BY t.name | 3065
SELECT name FROM people WHERE Town IN (SELECT DISTINCT id FROM Towns ORDER BY name) |
SELECT COUNT(*) FROM (SELECT DISTINCT id FROM Towns ORDER BY name) t     | 3065
SELECT DISTINCT name, COUNT(*) FROM people GROUP BY name ORDER BY COUNT(*) |
SELECT name FROM people GROUP BY Town                                    | 1055
SELECT id FROM people UNION SELECT name FROM people GROUP BY Town        | 1055
SELECT name FROM people GROUP BY Town INTERSECT SELECT name FROM Towns   | 1055
SELECT name FROM people EXCEPT SELECT name FROM Towns GROUP BY id        | 1055
SELECT id FROM (SELECT id, name FROM people GROUP BY id) AS t            | 1055
SELECT id FROM people WHERE name IN (SELECT name FROM Towns GROUP BY id) |
SELECT id FROM people WHERE name IN (SELECT name FROM Towns GROUP BY id HAVING COUNT(*) > 0) | 1055
SELECT id FROM people WHERE EXISTS (SELECT name FROM Towns GROUP BY id)  |
SELECT id FROM people WHERE name = (SELECT name FROM Towns GROUP BY id LIMIT 1) | 1055
SELECT id FROM people WHERE id IN (SELECT id FROM Towns LIMIT 1)         | 1235
SELECT id FROM people WHERE id >= ALL (SELECT id FROM Towns LIMIT 1)     | 1235
SELECT Town FROM people GROUP BY Town ORDER BY name                      | 1055
SELECT Town, COUNT(*) AS n FROM people GROUP BY Town ORDER BY n DESC, 1, MAX(name) |
SELECT COUNT(*) FROM people ORDER BY name                                |
SELECT p.name, t.name FROM people p JOIN Towns t ON p.Town = t.id GROUP BY p.name | 1055
SELECT p.Town, t.id FROM people p JOIN Towns t ON p.Town = t.id GROUP BY p.Town |
SELECT p.Town, t.id FROM people p, Towns t WHERE p.Town = t.id GROUP BY t.id |
SELECT p.Town, t.id FROM people p LEFT JOIN Towns t ON p.Town = t.id GROUP BY p.Town |
SELECT p.Town, t.id FROM people p LEFT JOIN Towns t ON p.Town = t.id GROUP BY t.id | 1055
SELECT p.id FROM people p JOIN Towns t ON p.Town = t.id GROUP BY t.id    | 1055
SELECT name, COUNT(*) FROM people WHERE name = 'Ann' AND id > 0          |
SELECT name, COUNT(*) FROM people WHERE name IN ('Ann')                  |
SELECT name, COUNT(*) FROM people WHERE name = 'Ann' OR id = 1           | 1140
SELECT name, COUNT(*) FROM people WHERE NOT (name = 'Ann')               | 1140
SELECT name, COUNT(*) FROM people WHERE name = (SELECT MAX(name) FROM Towns) | 1140
SELECT id, COUNT(*) FROM people WHERE id = 1 + 0 GROUP BY Town           |
SELECT name, (SELECT COUNT(*) + p.id FROM Towns) FROM people p           |
SELECT name, (SELECT CONCAT(t.name, COUNT(*)) FROM Towns t WHERE t.id = p.Town) FROM people p | 1140
SELECT COUNT (*) FROM people                                             | 1064
SELECT COUNT (DISTINCT id) FROM people                                   | 1064
SELECT MAX (id) FROM people                                              | 1630
SELECT NOW () IS NULL                                                    | 1630
SELECT CAST (id AS CHAR) FROM people                                     | 1064
SELECT LENGTH (name), IF (id, 1, 2), LEFT (name, 1), 'MAX (id)', "SUM (1)" FROM people |
CREATE TABLE count (id INT)                                              |
SELECT 1 IN (SELECT 1), `count`.`max` FROM (SELECT 1 AS `max`) AS `count` |
SELECT 1 = (SELECT id FROM people)                                       | 1242
SELECT name FROM people WHERE id = (SELECT id FROM Towns)                | 1242
SELECT name, (SELECT name FROM Towns) FROM people                        | 1242
SELECT (SELECT id FROM people UNION SELECT 5)                            | 1242
SELECT id FROM people WHERE (id, name) = (SELECT id, name FROM Towns)    | 1242
SELECT id FROM people ORDER BY (SELECT id FROM Towns)                    | 1242
SELECT CASE (SELECT id FROM people) WHEN 1 THEN 2 END                    | 1242
SELECT 3 IN ((SELECT id FROM people), 4)                                 | 1242
UPDATE people SET id = (SELECT id FROM Towns)                            | 1242
DELETE FROM people WHERE id < (SELECT id FROM Towns)                     | 1242
INSERT INTO people VALUES ((SELECT id FROM Towns), 'x', 1)               | 1242
SELECT (SELECT id, name FROM Towns)                                      | 1241
SELECT (SELECT name FROM Towns WHERE id = Town), (SELECT id FROM Towns WHERE id > 5) FROM people |
SELECT (SELECT id FROM Towns LIMIT 1), (SELECT MAX(id) FROM Towns), 1 IN (SELECT id FROM Towns) |
SELECT name FROM people WHERE id = ANY (SELECT id FROM Towns) AND EXISTS (SELECT id FROM Towns) |
"""


def cases() -> list:
    pairs = [line.rpartition("|")[::2] for line in CASES.strip().splitlines()]
    return [pytest.param(sql.strip(), int(code or 0) or None, id=sql.strip()[:70]) for sql, code in pairs]


@BOTH
@pytest.mark.parametrize(("sql", "code"), cases())
def test_names(database: Database, sql: str, code: int | None) -> None:
    with database.sandbox(task(PEOPLE, TOWNS)) as sandbox:
        result = sandbox.execute(sql)
        assert result.error_code == code, result.error


@BOTH
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nope FROM people GROUP BY name",
        "SELECT nope, COUNT(*) FROM people",
        "SELECT DISTINCT name FROM people ORDER BY nope",
    ],
)
def test_of_two_mistakes_either_is_told(database: Database, sql: str) -> None:
    with database.sandbox(task(PEOPLE, TOWNS)) as sandbox:
        assert sandbox.execute(sql).error_code in (1054, 1055, 1140, 3065)


def test_reserved_words_are_mysqls(docker_database: Database) -> None:
    query = "SELECT LOWER(word) FROM information_schema.keywords WHERE reserved = 1 LIMIT {}, 100"
    with docker_database.sandbox(task(PEOPLE)) as sandbox:
        words = [row for first in (0, 100, 200) for row in sandbox.execute(query.format(first)).rows or []]
    came_or_went = {"external", "library", "manual", "parallel"}  # between MySQL 8.4 and 9.7
    assert {word for (word,) in words} ^ RESERVED <= came_or_went


def transaction(sandbox: Sandbox, statements: str) -> list[int]:
    """The ids that are left in `people`. Statements that end in `!` fail."""
    for sql in statements.split("; "):
        assert (sandbox.execute(sql.rstrip("!")).error is not None) == sql.endswith("!"), sql
    return sorted(row[0] for row in sandbox.state()["people"].rows)


@BOTH
@pytest.mark.parametrize(
    ("statements", "left"),
    [
        ("SET autocommit = 0; DELETE FROM people; ROLLBACK", [1, 2]),
        ("SET autocommit = OFF; DELETE FROM people; ROLLBACK", [1, 2]),
        ("SET @@session.autocommit = 0, @x = 1; DELETE FROM people; ROLLBACK", [1, 2]),
        ("SET autocommit = 0; DELETE FROM people WHERE id = 1; COMMIT; DELETE FROM people; ROLLBACK", [2]),
        ("SET autocommit = 0; DELETE FROM people WHERE id = 1; SET autocommit = 1; ROLLBACK", [2]),
        ("SET autocommit = 0; SET autocommit = 1; DELETE FROM people; ROLLBACK", []),
        ("SET autocommit = 0; DELETE FROM people", []),
        ("BEGIN; DELETE FROM people; SET autocommit = 1; ROLLBACK", [1, 2]),
        ("BEGIN; DELETE FROM people; CREATE TABLE t (id INT); ROLLBACK", []),
        ("BEGIN; DELETE FROM people; DROP TABLE Towns; ROLLBACK", []),
        ("BEGIN; DELETE FROM people; TRUNCATE TABLE Towns; ROLLBACK", []),
        ("BEGIN; DELETE FROM people; ALTER TABLE Towns ADD COLUMN x INT; ROLLBACK", []),
        ("BEGIN; DELETE FROM people; CREATE TEMPORARY TABLE t (id INT); ROLLBACK", [1, 2]),
        ("BEGIN; DELETE FROM people; BEGIN; ROLLBACK", []),
        ("BEGIN; DELETE FROM people; TRUNCATE nope!; ROLLBACK", []),
        ("BEGIN; DELETE FROM people; ALTER TABLE nope ADD COLUMN x INT!; ROLLBACK", []),
        ("BEGIN; DELETE FROM people; CREATE VIEW v AS SELECT * FROM nope!; ROLLBACK", []),
        ("BEGIN; DELETE FROM people; SELECT * FROM nope!; ROLLBACK", [1, 2]),
        ("SET autocommit = 0, nope = 1!; DELETE FROM people; ROLLBACK", []),
        ("SET autocommit = 2!; SET autocommit = 'x'!; SET autocommit = NULL!; DELETE FROM people", []),
        ("SET autocommit = 'off'; DELETE FROM people; ROLLBACK", [1, 2]),
    ],
)
def test_transactions(database: Database, statements: str, left: list[int]) -> None:
    with database.sandbox(task(PEOPLE, TOWNS)) as sandbox:
        assert transaction(sandbox, statements) == left


@BOTH
def test_a_temporary_table_is_a_table_of_its_own(database: Database) -> None:
    with database.sandbox(task(PEOPLE)) as sandbox:
        sandbox.execute("CREATE TEMPORARY TABLE people (a INT)")
        assert [row[0] for row in sandbox.execute("DESCRIBE people").rows or []] == ["a"]
        assert sandbox.execute("SELECT * FROM people").rows == []
        assert sandbox.execute("DROP TABLE people").error is None
        assert len(sandbox.execute("SELECT * FROM people").rows or []) == 2
        assert sandbox.execute("DROP TEMPORARY TABLE people").error_code == 1051
        assert sandbox.execute("CREATE TEMPORARY TABLE mine (a INT)").error is None
        assert sandbox.execute("DROP TABLE mine").error is None


# --- Spider's statements ------------------------------------------------------------------------------

SPIDER = Path(__file__).parents[3] / "shared" / "data" / "scorers"


@pytest.fixture(scope="module")
def spider() -> dict[str, tuple[tuple[Table, ...], list[str]]]:
    """By the name of a database: its tables with their rows, without keys, and the gold statements on them."""
    if not SPIDER.is_dir():
        lacking("data", "no Spider data beside the checkout")
    statements: dict[str, list[str]] = defaultdict(list)
    for line in (SPIDER / "spider_dev.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["query"] not in statements[entry["db_id"]]:
            statements[entry["db_id"]].append(entry["query"])
    with gzip.open(SPIDER / "spider_rows.sql.gz", "rt", encoding="utf-8") as file:
        scripts = dict(part.split("\n", 1) for part in file.read().split("-- database: ")[1:])
    return {name: (tables_of(script), statements[name]) for name, script in scripts.items()}


def tables_of(script: str) -> tuple[Table, ...]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return tuple(
            Table(
                name,
                tuple(Column(row[1], row[2]) for row in connection.execute(f'PRAGMA table_info("{name}")')),
                tuple(connection.execute(f'SELECT * FROM "{name}"')),
            )
            for name in names
        )


@pytest.fixture
def patient_databases(docker_database: Database) -> Iterator[tuple[Database, Database]]:
    """SQLite and MySQL, with so much time and room that a busy machine makes no difference."""
    limits = Limits(seconds=60, characters=10**6)
    with (
        open_database("sqlite", limits=limits) as sqlite,
        open_database(docker_database.url, limits=limits) as mysql,
    ):
        yield sqlite, mysql


def test_spiders_statements(
    spider: dict[str, tuple[tuple[Table, ...], list[str]]], patient_databases: tuple[Database, Database]
) -> None:
    """Either both refuse a statement, with the same error, or both run it, and give the same rows.

    Rows are compared unless LIMIT picks among equals, or an average is taken of a date (which SQLite holds as
    a text).
    """
    sqlite, mysql = patient_databases
    codes: Counter[int | None] = Counter()
    wrong = []
    for tables, statements in spider.values():
        with sqlite.sandbox(task(*tables)) as embedded, mysql.sandbox(task(*tables)) as server:
            for sql in statements:
                ours, mysqls = embedded.execute(sql), server.execute(sql)
                codes[mysqls.error_code] += 1
                comparable = not re.search(r"\bLIMIT\b|avg\(transcript_date\)", sql, re.IGNORECASE)
                if ours.error_code != mysqls.error_code:
                    wrong.append(f"{sql}\n  SQLite: {ours.error}\n  MySQL: {mysqls.error}")
                elif comparable and not same_rows(plain(ours), plain(mysqls)):
                    wrong.append(f"{sql}\n  SQLite: {ours.rows}\n  MySQL: {mysqls.rows}")
    assert codes == {None: 363, 1146: 147, 1055: 46, 1140: 2, 1054: 2, 1064: 2, 3065: 1, 1248: 1}
    assert wrong == [], "\n".join(wrong)


def plain(result: QueryResult) -> list[tuple[Any, ...]]:
    """Computed DECIMALs and dates are plain numbers and texts in SQLite, and an average has more digits."""
    return [tuple(map(plain_cell, row)) for row in result.rows or []]


def plain_cell(cell: Any) -> Any:
    if cell is None or isinstance(cell, str):
        return cell
    return round(float(cell), 4) if isinstance(cell, int | float | Decimal) else str(cell)
