"""What MySQL's grammar has and what it refuses, of the statements that the parser reads alike."""

from __future__ import annotations

import pytest
from databases import table

from trl_dbbench.database import Database, Sandbox
from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.mysqlite.statements import look
from trl_dbbench.tasks import Gold, Task

P = table(
    "p", "id INT PRIMARY KEY, i INT, d DATE, t VARCHAR(30)", (1, 3, "2020-01-01", "x"), (2, None, None, "y")
)

GRAMMATICAL = """
    SELECT t LIKE 'b' 'c', t LIKE -1, t LIKE 'a' = 1, id IN (1) = 1, id = 1 IN (1), id IS NULL = 1 FROM p
    SELECT id BETWEEN 1 AND 2 BETWEEN 3 AND 4, id BETWEEN 1 AND id IN (2), NOT NOT id IS NULL FROM p
    SELECT 1 = ! 1, 1 + ! 1, - ! 1, ! id IS NULL, 1 XOR NOT 2, 1 | 2 & 3 ^ 4 << 1, ~1, - - 1, BINARY t FROM p
    SELECT id <> ALL (SELECT 1), id = ANY ((SELECT 1)), id IN ((SELECT 1), 2), EXISTS ((SELECT 1)) FROM p
    SELECT ((SELECT 1) + 1), ((SELECT 1)), (SELECT 1 UNION SELECT 2 LIMIT 1), ((SELECT 1) UNION (SELECT 1)) FROM p
    SELECT INTERVAL 1 DAY + d, d - INTERVAL 1 + 1 DAY, DATE_ADD(d, INTERVAL (1) DAY), ADDDATE(d, 1) FROM p
    SELECT TRIM(BOTH FROM t), TRIM('x' FROM t), SUBSTRING(t FROM 1 FOR 2), POSITION('a' IN t), MID(t, 1, 2) FROM p
    SELECT CAST(t AS SIGNED INTEGER), CAST(t AS CHAR(3) CHARACTER SET utf8mb4), CONVERT(t USING utf8mb4) FROM p
    SELECT 1 'a', 2 AS 'b', 3 "c", i count, i AS sum, d date, d year FROM p
    SELECT p.*, 1, dbbench.p.* FROM p
    SELECT COUNT(*), COUNT(DISTINCT id, i), SUM(ALL id), GROUP_CONCAT(id, i ORDER BY id DESC SEPARATOR 'x') FROM p
    SELECT LAG(id, 1, 0) OVER (ORDER BY id), SUM(id) OVER w FROM p WINDOW w AS (PARTITION BY i ORDER BY id)
    SELECT SUM(id) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING) FROM p
    SELECT 1 FROM p a JOIN p b LEFT JOIN p c ON c.id = b.id
    SELECT 1 FROM p a LEFT JOIN p b JOIN p c ON b.id = c.id ON a.id = b.id
    SELECT 1 FROM (p a, p b) LEFT JOIN p c ON c.id = a.id
    SELECT 1 FROM ((SELECT 1)) a
    SELECT id FROM p FOR UPDATE
    (SELECT 1 AS n) UNION ((SELECT 2 LIMIT 1) LIMIT 1) ORDER BY n LIMIT 1
    WITH a (x) AS (SELECT 1), b AS (SELECT 2 AS y) SELECT * FROM a, b
    INSERT INTO p (id, i) VALUES (5, DEFAULT), (6, 1) ON DUPLICATE KEY UPDATE i = VALUES(i)
    INSERT INTO p SET id = 5, i = 1;
    UPDATE p a SET a.i = DEFAULT WHERE id = 1 ORDER BY id LIMIT 1
    DELETE a FROM p a JOIN p b ON a.id = b.id
    SELECT /*+ MAX_EXECUTION_TIME(1000) */ id FROM p
    SELECT N'x'
    CREATE TABLE g (a INT, b INT AS ((a + 1)), c INT GENERATED ALWAYS AS (a) STORED)
"""

UNGRAMMATICAL = """
    SELECT '{"a": 1}' -> '$.a'
    SELECT i NOT IS NULL FROM p
    SELECT id FROM p WHERE i NOT IS TRUE
    SELECT id IS TRUE = 1 FROM p
    SELECT id = NOT 1 FROM p
    SELECT id > NOT 1 FROM p
    SELECT id + NOT 1 FROM p
    SELECT - NOT 1 FROM p
    SELECT id DIV NOT 1 FROM p
    SELECT id FROM p WHERE id BETWEEN NOT 1 AND 2
    SELECT id FROM p WHERE id BETWEEN 1 AND NOT 2
    SELECT id FROM p WHERE id BETWEEN 1 = 1 AND 2
    SELECT id IN (1) IN (2) FROM p
    SELECT id IN (SELECT 1) + 1 FROM p
    SELECT t LIKE 'b' + 1 FROM p
    SELECT t REGEXP 'a' REGEXP 'b' FROM p
    SELECT id <=> ANY (SELECT 1) FROM p
    SELECT id > > 1 FROM p
    SELECT INTERVAL 1 DAY FROM p
    SELECT INTERVAL 1 DAY - d FROM p
    SELECT DATE_ADD(d, 1) FROM p
    SELECT TRIM(LEADING t) FROM p
    SELECT IF(id, 1) FROM p
    SELECT IF(id, 'a' 'b') FROM p
    SELECT YEAR() FROM p
    SELECT LAG(id, SUM(id)) OVER (ORDER BY id) FROM p
    SELECT SUM(id) OVER (ORDER BY id ROWS 1 FOLLOWING) FROM p
    SELECT SUM(DISTINCT id, i) FROM p
    SELECT name('x') FROM p
    SELECT p.* x FROM p
    SELECT 1 FROM p a LEFT JOIN p b JOIN p c ON 1
    SELECT 1 FROM p a NATURAL JOIN p b ON 1
    SELECT 1 FROM ((SELECT 1) a) b
    SELECT 1 FROM (p) a
    SELECT 1 FROM SUM(id) a
    WITH SUM(id) AS (SELECT 1) SELECT 1
    SELECT 1 FROM p GROUP BY id ASC
    SELECT id FROM p WHERE i < 3.5id
    DELETE FROM p WHERE id = 1 GROUP BY id
    UPDATE p SET i = 1, WHERE id = 1
    INSERT INTO p (id, i) VALUES (5, 1) WHERE id = 1
"""

BROKEN = r"""
    SELECT t FROM p ( id = 1 ORDER BY i ASC     | ( id = 1 ORDER BY i ASC
    SELECT t FROM p WHERE (id = 1 ORDER BY i    | ORDER BY i
    SELECT t FROM p WHERE id IN (1, 2           |
    SELECT t FROM p WHERE id = 1) AND i = 2     | ) AND i = 2
    SELECT COUNT( FROM p                        | FROM p
    SELECT COUNT(* FROM p                       | FROM p
    SELECT SUM(id AS s FROM p                   | AS s FROM p
    SELECT t FROM (SELECT t FROM p              |
    SELECT t FROM p INNER                       |
    SELECT t FROM                               |
    SELECT t\nFROM p\nWHERE id id = 1           | id = 1' at line 3
    SELECT t FROM p WHERE t = 'a                | 'a
    SELECT t FROM p WHERE t = 'O'Neil'          | Neil'
    SELECT t FROM p WHERE\nt = 'a\nORDER BY id | 'a\nORDER BY id' at line 2
    SELECT `t FROM p                            | `t FROM p
    INSERT INTO p (id, i VALUES (5, 1)          | VALUES (5, 1)
    INSERT INTO p (id, i) VALUES (5, 1          |
    UPDATE p SET (i = 1 WHERE id = 1            | (i = 1 WHERE id = 1
    DELETE FROM p WHERE id IN (1, 2             |
    CREATE TABLE q (a INT, b TEXT               |
    CREATE TABLE q (a INT))                     | )
    CREATE TABLE q (a INT,)                     | )
    CREATE VIEW v AS SELECT (1                  |
    SELEC 1                                     | SELEC 1
    I think (so                                 | I think (so
"""
"""Statements that break off, or whose brackets or quotes do not match, and where MySQL notices: `near '...'`."""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def broken() -> list[list[str]]:
    return [[part.strip().replace("\\n", "\n") for part in line.split("|")] for line in lines(BROKEN)]


def near(error: str | None) -> str:
    """Return an error's text after "near", with its line if that is not the first."""
    assert error is not None
    return error.partition(" near '")[2].removesuffix("' at line 1")


@pytest.fixture
def mysql(docker_database: Database) -> Sandbox:
    with docker_database.sandbox(Task("syntax", "?", (P,), "SELECT", Gold())) as sandbox:
        yield sandbox


@pytest.mark.parametrize("sql", lines(GRAMMATICAL))
def test_what_is_of_the_grammar_is_read(sql: str) -> None:
    look(sql)


@pytest.mark.parametrize("sql", lines(UNGRAMMATICAL))
def test_what_is_not_is_refused(sql: str) -> None:
    with pytest.raises(StatementError) as refused:
        look(sql)
    assert refused.value.code == 1064


@pytest.mark.parametrize(("sql", "place"), broken())
def test_where_a_broken_statement_is_broken(sql: str, place: str) -> None:
    with pytest.raises(StatementError) as refused:
        look(sql)
    assert refused.value.code == 1064
    assert near(refused.value.text) == place


def test_80_bytes_of_the_place_are_shown() -> None:
    with pytest.raises(StatementError) as refused:
        look(f"SELECT 1 a b {'Ł' * 50}")
    assert near(refused.value.text) == f"b {'Ł' * 39}"


def test_mysql_names_the_same_places(mysql: Sandbox) -> None:
    assert [near(mysql.execute(sql).error) for sql, _ in broken()] == [place for _, place in broken()]
    assert near(mysql.execute(f"SELECT 1 a b {'Ł' * 50}").error) == f"b {'Ł' * 39}"


def test_mysql_reads_them_alike(mysql: Sandbox) -> None:
    """Of the one kind none is a mistake of syntax to MySQL, of the other each is one."""
    for sql in lines(GRAMMATICAL):
        assert mysql.execute(sql).error_code != 1064, sql
    for sql in lines(UNGRAMMATICAL):
        assert mysql.execute(sql).error_code == 1064, sql
