"""The embedded database answers as MySQL does. Each case runs on both, so that MySQL itself is the judge."""

from __future__ import annotations

import re
import time
from datetime import date
from decimal import Decimal

import pytest
from databases import table, task

from trl_dbbench.database import Database
from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.mysqlite.patterns import MAX_REGEX_SECONDS, in_regex_time
from trl_dbbench.mysqlite.values import sort_key

PEOPLE = table(
    "people list",
    "id INT, Name, price DECIMAL(10,2), born DATE, n VARCHAR(20)",
    (1, "Ann", "1.50", "2020-01-02", "10"),
    (2, "bob", "2.25", "2021-03-04", "9"),
    (3, "Zoë", None, None, "1,429"),
    (4, "ann", "10.00", "2020-12-31", "abc"),
)
KEYED = table("keyed", "id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(50) NOT NULL", (1, "x"), (2, "y"))
BOTH = pytest.mark.parametrize("database", ["sqlite", "docker"], indirect=True)

READS = r"""
SELECT Name FROM p WHERE name = 'ANN'                                   | [('Ann',), ('ann',)]
SELECT Name FROM p WHERE name = "zoe"                                   | [('Zoë',)]
SELECT Name FROM p WHERE name LIKE 'ZO_'                                | [('Zoë',)]
SELECT Name FROM p WHERE name NOT LIKE '%n%' ORDER BY id                | [('bob',), ('Zoë',)]
SELECT id FROM p WHERE name LIKE BINARY 'A%'                            | [(1,)]
SELECT DISTINCT name FROM p                                             | [('Ann',), ('bob',), ('Zoë',)]
SELECT DISTINCT LOWER(name) FROM p ORDER BY 1                           | [('ann',), ('bob',), ('zoë',)]
SELECT UPPER(name) AS u, COUNT(*) AS c FROM p GROUP BY u HAVING c > 1   | [('ANN', 2)]
SELECT COUNT(DISTINCT name), COUNT(DISTINCT name, n) FROM p             | [(3, 4)]
SELECT name FROM p WHERE UPPER(name) IN ('ann', 'ZOE') ORDER BY id      | [('Ann',), ('Zoë',), ('ann',)]
SELECT id FROM p WHERE name IN (SELECT 'ANN')                           | [(1,), (4,)]
SELECT id FROM p WHERE BINARY name = 'ann'                              | [(4,)]
SELECT id FROM p WHERE name COLLATE utf8mb4_bin = 'ann'                 | [(4,)]
SELECT id FROM p ORDER BY name DESC, id                                 | [(3,), (2,), (1,), (4,)]
SELECT 'a' = 'á', 'a ' = 'a', 'ß' = 'ss', 'a' < 'B', '_' < '1', '1' < 'a' | [(1, 0, 1, 1, 1, 1)]
SELECT '1' = 1, '01' = 1, 'abc' = 0, '1,429' = 1, '10' < '9', '10' < 9  | [(1, 1, 1, 1, 1, 0)]
SELECT n FROM p WHERE n > 9 ORDER BY id                                 | [('10',)]
SELECT n FROM p WHERE n > '9'                                           | [('abc',)]
SELECT n FROM p ORDER BY n + 0 DESC, id                                 | [('10',), ('9',), ('1,429',), ('abc',)]
SELECT n FROM p ORDER BY CAST(n AS UNSIGNED), id                        | [('abc',), ('1,429',), ('9',), ('10',)]
SELECT MAX(n), MIN(name) FROM p                                         | [('abc', 'Ann')]
SELECT 7 DIV 2, 7 % 2, -7 % 3, 7 MOD 4, 1 / 0, 5 % 0                    | [(3, 1, -1, 3, None, None)]
SELECT 7 / 2, 1 / 3, 2 * 3.5                                            | [(3.5, 0.3333, 7)]
SELECT 'a' || 'b', 1 || 0, 1 && 0, NOT 1, 3 XOR 0, !0                   | [(0, 1, 0, 0, 1, 1)]
SELECT 1 <=> NULL, NULL <=> NULL, NULL = NULL, 1 <> NULL                | [(0, 1, None, None)]
SELECT id FROM p WHERE id NOT IN (1, NULL)                              | []
SELECT id FROM p WHERE price BETWEEN 2 AND 20                           | [(2,), (4,)]
SELECT id FROM p WHERE (id, name) = (4, 'ann')                          | [(4,)]
SELECT id >= ALL (SELECT id FROM p), id = ANY (SELECT 2) FROM p         | [(0, 0), (0, 1), (0, 0), (1, 0)]
SELECT CASE name WHEN 'ANN' THEN 1 ELSE 0 END FROM p                    | [(1,), (0,), (0,), (1,)]
SELECT CASE price WHEN 2.25 THEN 'a' WHEN NULL THEN 'b' WHEN '1.50' THEN 'c' END FROM p | [('c',), ('a',), (None,), (None,)]
SELECT 'aXbXc' LIKE '%x%X_', 'abab' LIKE '%ab', 'ba' LIKE '%a%b%', '' LIKE '%', 'a%b' LIKE 'a\%b', 'axb' LIKE 'a\%b' | [(1, 1, 0, 1, 1, 0)]
SELECT GROUP_CONCAT(DISTINCT s) FROM (SELECT 'b' AS s UNION ALL SELECT 'a' UNION ALL SELECT 'B') t | [('a,b',)]
SELECT ROUND(STDDEV(id), 3), ROUND(VAR_SAMP(id), 3) FROM p              | [(1.118, 1.667)]
SELECT TRIM('ab' FROM 'ababxab'), TRIM(LEADING 'a' FROM 'aaba'), TRIM(BOTH 'a' FROM 'aaa') | [('x', 'ba', '')]
SELECT REGEXP_REPLACE('abcabc', 'b', '-'), REGEXP_REPLACE('abc', '(b)(c)', '$2$1'), REGEXP_SUBSTR('abc', 'b.') | [('a-ca-c', 'acb', 'bc')]
SELECT n FROM (SELECT 1 AS n UNION ALL SELECT NULL UNION ALL SELECT 2) s ORDER BY n      | [(None,), (1,), (2,)]
SELECT n FROM (SELECT 1 AS n UNION ALL SELECT NULL UNION ALL SELECT 2) s ORDER BY n DESC | [(2,), (1,), (None,)]
SELECT IF(id > 2, 'hi', 'lo'), NULLIF(id, 1), IFNULL(born, 'none') FROM p WHERE id = 3 | [('hi', 3, 'none')]
SELECT CONCAT('a', 1, 'b'), CONCAT('a', NULL), CONCAT_WS('-', 'a', NULL, 2) | [('a1b', None, 'a-2')]
SELECT SUBSTRING_INDEX('a,b,c', ',', 2), SUBSTRING_INDEX('a,b,c', ',', -1) | [('a,b', 'c')]
SELECT SUBSTRING('abcdef', 2, 3), SUBSTR('abc', -2), MID('abc', 2, 1), SUBSTRING('abc' FROM 2) | [('bcd', 'bc', 'b', 'bc')]
SELECT LEFT('abc', 2), RIGHT('abc', 2), REVERSE('abc'), REPEAT('ab', 2) | [('ab', 'bc', 'cba', 'abab')]
SELECT LOCATE('B', 'abc'), INSTR('abc', 'c'), POSITION('z' IN 'abc')    | [(2, 3, 0)]
SELECT REPLACE('abcb', 'b', 'x'), REPLACE('ABC', 'b', 'x')              | [('axcx', 'ABC')]
SELECT LENGTH('Zoë'), CHAR_LENGTH('Zoë'), LPAD('5', 3, '0'), RPAD('a', 3, 'xy') | [(4, 3, '005', 'axy')]
SELECT TRIM('  x '), TRIM(LEADING '0' FROM '0070'), LTRIM(' a'), RTRIM('a ') | [('x', '70', 'a', 'a')]
SELECT UPPER('é'), LCASE('ÀB'), HEX('a'), ASCII('a'), CHAR_LENGTH(SPACE(3)) | [('É', 'àb', '61', 97, 3)]
SELECT FIELD('b', 'a', 'b'), ELT(2, 'x', 'y'), FIND_IN_SET('b', 'a,b'), STRCMP('a', 'B') | [(2, 'y', 2, -1)]
SELECT name FROM p WHERE name REGEXP '^a' AND id > 1                    | [('ann',)]
SELECT 'abc' RLIKE 'B', 'abc' NOT REGEXP '[0-9]', REGEXP_REPLACE('a1b2', '[0-9]', '#') | [(1, 1, 'a#b#')]
SELECT ROUND(2.5), ROUND(2.345, 2), ROUND(-1.5), FLOOR(-1.5), CEIL(1.2), TRUNCATE(1.999, 2) | [(3, 2.35, -2, -2, 2, 1.99)]
SELECT ABS(-3), SIGN(-2), MOD(10, 3), POW(2, 3), SQRT(9), SQRT(-1), GREATEST(1, 5, 3), LEAST('b', 'a') | [(3, -1, 1, 8, 3, None, 5, 'a')]
SELECT FORMAT(1234567.891, 2), FORMAT(0.5, 0)                           | [('1,234,567.89', '1')]
SELECT CAST('12abc' AS SIGNED), CAST('3.7' AS SIGNED), CAST(3.7 AS SIGNED), CAST(5 AS CHAR), CAST('1.239' AS DECIMAL(10,2)) | [(12, 3, 4, '5', 1.24)]
SELECT CONVERT('7', SIGNED), CAST('2020-01-31 10:11:12' AS DATE) = '2020-01-31' | [(7, 1)]
SELECT YEAR(born), MONTH(born), DAY(born), DATE_FORMAT(born, '%M %e, %Y') FROM p WHERE id = 1 | [(2020, 1, 2, 'January 2, 2020')]
SELECT CONCAT(STR_TO_DATE('August 3, 2004', '%M %e, %Y')), CONCAT(STR_TO_DATE('x', '%Y')) | [('2004-08-03', None)]
SELECT DATEDIFF('2020-03-01', '2020-02-01'), TIMESTAMPDIFF(YEAR, '2000-05-05', '2020-05-04') | [(29, 19)]
SELECT CONCAT(DATE_ADD('2020-01-31', INTERVAL 1 MONTH)), CONCAT('2020-01-01' - INTERVAL 1 DAY) | [('2020-02-29', '2019-12-31')]
SELECT DAYNAME('2020-01-01'), MONTHNAME('2020-01-01'), QUARTER('2020-05-01'), EXTRACT(YEAR FROM '2020-02-03') | [('Wednesday', 'January', 2, 2020)]
SELECT id FROM p WHERE born >= '2020-06-01' ORDER BY born DESC          | [(2,), (4,)]
SELECT GROUP_CONCAT(name ORDER BY id DESC SEPARATOR '; ') FROM p        | [('ann; Zoë; bob; Ann',)]
SELECT GROUP_CONCAT(DISTINCT name ORDER BY name) FROM p WHERE id < 4    | [('Ann,bob,Zoë',)]
SELECT AVG(id), SUM(n), SUM(price), COUNT(price) FROM p                 | [(2.5, 20, 13.75, 3)]
SELECT name FROM p LIMIT 1, 2                                           | [('bob',), ('Zoë',)]
SELECT id, ROW_NUMBER() OVER (ORDER BY name DESC, id) AS r FROM p ORDER BY id | [(1, 3), (2, 2), (3, 1), (4, 4)]
WITH q AS (SELECT id FROM p WHERE id > 2) SELECT COUNT(*) FROM q        | [(2,)]
SELECT id FROM p WHERE id < 2 UNION SELECT id FROM p WHERE id > 3 ORDER BY id DESC | [(4,), (1,)]
SELECT a.id FROM p a LEFT JOIN p b ON a.name = b.name AND a.id <> b.id WHERE b.id IS NULL | [(2,), (3,)]
SELECT MAX(id) FROM p HAVING MAX(id) > 100                              | []
SELECT EXISTS (SELECT 1 FROM p WHERE name = 'BOB'), 1 FROM DUAL         | [(1, 1)]
SELECT 'a\nb', 'it''s', "say \"x\"", 'a' 'b', '\%'                      | [('a\nb', "it's", 'say "x"', 'ab', '\\%')]
SELECT PRICE, born FROM p WHERE ID = 1                                  | [(Decimal('1.50'), date(2020, 1, 2))]
SELECT COLUMN_NAME FROM information_schema.columns WHERE table_name = 'people list' AND data_type = 'int' | [('id',)]
SHOW TABLES LIKE 'peo%'                                                 | [('people list',)]
SHOW COLUMNS FROM keyed | [('id', 'int', 'NO', 'PRI', None, 'auto_increment'), ('v', 'varchar(50)', 'NO', '', None, '')]
DESCRIBE p | [('id', 'int', 'YES', '', None, ''), ('Name', 'text', 'YES', '', None, ''), ('price', 'decimal(10,2)', 'YES', '', None, ''), ('born', 'date', 'YES', '', None, ''), ('n', 'varchar(20)', 'YES', '', None, '')]
"""


NAMES = {"Decimal": Decimal, "date": date}


def cases(text: str) -> list:
    pairs = [line.rpartition(" | ")[::2] for line in text.strip().splitlines()]
    return [
        pytest.param(re.sub(r"\bp\b", "`people list`", sql).strip(), eval(rows, NAMES), id=sql.strip()[:60])
        for sql, rows in pairs
    ]


def plain(rows: list[tuple] | None) -> list[tuple] | None:
    """Computed DECIMALs are plain numbers in SQLite."""
    return rows and [
        tuple(float(cell) if isinstance(cell, Decimal) else cell for cell in row) for row in rows
    ]


@BOTH
@pytest.mark.parametrize(("sql", "rows"), cases(READS))
def test_reads(database: Database, sql: str, rows: list[tuple]) -> None:
    with database.sandbox(task(PEOPLE, KEYED)) as sandbox:
        result = sandbox.execute(sql)
        assert result.error is None
        assert plain(result.rows) == plain(rows)


@BOTH
@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("INSERT INTO keyed (v) VALUES ('z')", [(1, "x"), (2, "y"), (3, "z")]),
        ("INSERT INTO keyed SET v = 'z'", [(1, "x"), (2, "y"), (3, "z")]),
        ("INSERT INTO keyed SELECT id + 10, v FROM keyed WHERE v = 'X'", [(1, "x"), (2, "y"), (11, "x")]),
        ("INSERT IGNORE INTO keyed VALUES (1, 'q'), (5, 'r')", [(1, "x"), (2, "y"), (5, "r")]),
        (
            "INSERT INTO keyed VALUES (1, 'q') ON DUPLICATE KEY UPDATE v = CONCAT(v, VALUES(v))",
            [(1, "xq"), (2, "y")],
        ),
        ("REPLACE INTO keyed (id, v) VALUES (2, 'new')", [(1, "x"), (2, "new")]),
        ("UPDATE keyed SET v = UPPER(v), id = id + 5 WHERE v = 'Y'", [(1, "x"), (7, "Y")]),
        ("UPDATE keyed SET v = 'top' ORDER BY id DESC LIMIT 1", [(1, "x"), (2, "top")]),
        ("UPDATE keyed AS k SET k.v = 'a' WHERE k.id = 1", [(1, "a"), (2, "y")]),
        (
            "UPDATE keyed SET v = 'x' WHERE id = (SELECT * FROM (SELECT MAX(id) FROM keyed) AS q)",
            [(1, "x"), (2, "x")],
        ),
        ("UPDATE keyed k JOIN `people list` p ON k.id = p.id SET k.v = p.name", [(1, "Ann"), (2, "bob")]),
        ("DELETE FROM keyed ORDER BY id LIMIT 1", [(2, "y")]),
        ("DELETE k FROM keyed k JOIN `people list` p ON k.id = p.id WHERE p.name = 'BOB'", [(1, "x")]),
        ("DELETE FROM keyed WHERE v <> 'X' OR v IS NULL", [(1, "x")]),
        ("TRUNCATE TABLE keyed", []),
        ("ALTER TABLE keyed ADD COLUMN extra INT DEFAULT 7", [(1, "x", 7), (2, "y", 7)]),
        ("ALTER TABLE keyed DROP COLUMN v", [(1,), (2,)]),
        ("ALTER TABLE keyed RENAME COLUMN v TO w", [(1, "x"), (2, "y")]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_changes(database: Database, sql: str, rows: list[tuple]) -> None:
    with database.sandbox(task(PEOPLE, KEYED)) as sandbox:
        assert sandbox.execute(sql).error is None
        assert sorted(sandbox.state()["keyed"].rows) == rows


@BOTH
@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT FOO(1)", "1305 (42000): FUNCTION dbbench.FOO does not exist"),
        ("INSERT INTO keyed VALUES (1, 'q')", "1062 (23000): Duplicate entry"),
        ("INSERT INTO keyed (v) VALUES (NULL)", "1048 (23000): Column 'v' cannot be null"),
        ("INSERT INTO keyed (nope) VALUES (1)", "1054 (42S22): Unknown column 'nope' in 'field list'"),
        ("DROP TABLE nope", "1051 (42S02): Unknown table 'dbbench.nope'"),
        ("SELECT id FROM keyed WHERE MAX(id) = 1", "1111 (HY000): Invalid use of group function"),
        ("SELECT (SELECT id, v FROM keyed)", "1241 (21000): Operand should contain 1 column(s)"),
        (
            "SELECT 1 UNION SELECT 1, 2",
            "1222 (21000): The used SELECT statements have a different number of columns",
        ),
        ("SELECT id FROM keyed a JOIN keyed b ON a.id = b.id", "1052 (23000): Column 'id' in"),
        (
            "UPDATE keyed SET v = 1 WHERE id = (SELECT MAX(id) FROM keyed)",
            "1093 (HY000): You can't specify target",
        ),
    ],
)
def test_errors(database: Database, sql: str, error: str) -> None:
    with database.sandbox(task(KEYED)) as sandbox:
        assert (sandbox.execute(sql).error or "").startswith(error)


@BOTH
@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SELECT name, n FROM `people list` GROUP BY name", "1055"),
        ("SELECT name, MAX(id) FROM `people list`", "1140"),
        ("SELECT *, COUNT(*) FROM `people list`", "1140"),
        ("INSERT INTO `people list` (id) VALUES ('abc')", "1366"),
        ("SELECT name, UPPER(name), 1, COUNT(*) FROM `people list` GROUP BY name", None),
        ("SELECT LEFT(name, 1) AS l, COUNT(*) FROM `people list` GROUP BY l", None),
        ("SELECT name, COUNT(*) FROM `people list` WHERE name = 'Ann'", None),
        (
            "SELECT a.name, COUNT(*) FROM `people list` a GROUP BY 1 HAVING COUNT(*) > 0 ORDER BY COUNT(*)",
            None,
        ),
        ("SELECT id, (SELECT COUNT(*) FROM `people list`) FROM `people list`", None),
    ],
)
def test_groups(database: Database, sql: str, error: str | None) -> None:
    with database.sandbox(task(PEOPLE)) as sandbox:
        assert (sandbox.execute(sql).error or "None")[:4] == str(error)


def test_a_name_that_does_not_exist_is_no_text(sqlite_database: Database) -> None:
    """SQLite would read "nope" as a text."""
    with sqlite_database.sandbox(task(KEYED)) as sandbox:
        assert "Unknown column 'nope'" in (sandbox.execute("SELECT `nope` FROM keyed").error or "")
        assert sandbox.execute('SELECT "nope" FROM keyed').rows == [("nope",), ("nope",)]


@pytest.mark.parametrize("pair", [("Ann", "ANN"), ("Zoë", "zoe"), ("straße", "STRASSE"), ("①", "1")])
def test_equal_texts(pair: tuple[str, str]) -> None:
    assert sort_key(pair[0]) == sort_key(pair[1])


def test_order_of_texts() -> None:
    texts = [" ", "_", "-", ":", "(", "#", "0", "9", "a", "B", "é", "z", "Ω"]  # as MySQL orders them
    assert sorted(set(texts), key=sort_key) == texts


def test_a_match_that_waited_for_another_thread_is_tried_again() -> None:
    """`regex` counts the other threads' time, too: one that held Python's lock for long made LIKE fail."""
    attempts = []

    def match() -> str:
        attempts.append("waited")
        if len(attempts) < 3:
            raise TimeoutError
        return "matched"

    assert in_regex_time(match) == "matched"
    assert attempts == ["waited"] * 3


def test_a_match_that_computes_for_long_is_not() -> None:
    attempts = []

    def match() -> None:
        attempts.append("computed")
        start = time.thread_time()
        while time.thread_time() - start < MAX_REGEX_SECONDS:
            pass
        raise TimeoutError

    with pytest.raises(StatementError, match="Timeout exceeded in regular expression match"):
        in_regex_time(match)
    assert attempts == ["computed"]
