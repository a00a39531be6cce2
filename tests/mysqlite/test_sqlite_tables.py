"""Tables, their types, keys and defaults, as MySQL has them, or refused; and what changes them as a whole.

Each case runs several statements; the last one gives rows or the number of an error. Where there is a MySQL server,
cases that are answered run on it too.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from databases import opened, table, task

from trl_dbbench.database import Database, Limits, Sandbox
from trl_dbbench.errors import TaskError

BOTH = pytest.mark.parametrize("database", ["sqlite", "docker"], indirect=True)

SIZES = "CREATE TABLE t (id INT, e ENUM('small','large'), s SET('b','a')); "
FILLED = SIZES + "INSERT INTO t VALUES (1, 'LARGE', 'a,b'), (2, 'small ', ''), (3, NULL, 'a'); "
KEYED = (
    "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, n INT NOT NULL DEFAULT 5, v VARCHAR(5) NOT NULL); "
)
KEYED += "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'); "
UNIQUE = "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(5) NOT NULL UNIQUE); "
UNIQUE += "INSERT INTO t (v) VALUES ('a'), ('b'); "
PAID = "CREATE TABLE t (id INT, d DATE, p DECIMAL(8,2), v VARCHAR(9)); "
KEYS = "CREATE TABLE t (a INT UNIQUE, b INT NOT NULL UNIQUE, c INT, d INT, UNIQUE (c, d)); "
TEMPORARY = "CREATE TEMPORARY TABLE m (x INT); INSERT INTO m VALUES (1); "
TIMED = "CREATE TABLE t (id INT, c TIME DEFAULT '9:30'); INSERT INTO t VALUES (1, '8:5'), (2, '10:0:0'), (3, '-1:00'); "
PAID += "INSERT INTO t VALUES (1, '2020-01-05', 1.5, 'a'), (2, '2021-02-03', 2, 'b'); "

ANSWERED = f"""
{FILLED} SELECT * FROM t ORDER BY id | [(1, "large", "b,a"), (2, "small", ""), (3, None, "a")]
{FILLED} SELECT id FROM t WHERE e = 'LARGE' OR s IN ('a', 'x') ORDER BY id | [(1,), (3,)]
{FILLED} SELECT id FROM t WHERE e <> 'large' AND e LIKE 's%' AND e IS NOT NULL | [(2,)]
{FILLED} SELECT COUNT(e), COUNT(DISTINCT e) FROM t | [(2, 2)]
{FILLED} SELECT e, COUNT(*) AS n FROM t WHERE id < 3 GROUP BY e HAVING e = 'small' | [("small", 1)]
{FILLED} UPDATE t SET e = 'bogus' | 1265
{SIZES} INSERT INTO t VALUES (1, '', 'a') | 1265
{SIZES} INSERT INTO t VALUES (1, 'small', 'c') | 1265
CREATE TABLE t (e ENUM('a','b') DEFAULT 'B'); DESCRIBE t | [("e", "enum('a','b')", "YES", "", "b", "")]
CREATE TABLE t (e ENUM('a','b') DEFAULT 'c') | 1067
CREATE TABLE t (y YEAR); INSERT INTO t VALUES (2020), ('1999'); SELECT y FROM t ORDER BY y | [(1999,), (2020,)]
CREATE TABLE t (y YEAR); INSERT INTO t VALUES (1900) | 1264
CREATE TABLE t (c CHAR(3)); INSERT INTO t VALUES ('a  '); SELECT CONCAT(c, '|'), c = 'a' FROM t | [("a|", 1)]
CREATE TABLE t (c CHAR); INSERT INTO t VALUES ('ab') | 1406
CREATE TABLE t (x INT, y INT, PRIMARY KEY (x, y)); INSERT INTO t VALUES (1, NULL) | 1048
CREATE TABLE t (x TEXT PRIMARY KEY) | 1170
CREATE TABLE t (x TEXT, KEY (x)) | 1170
CREATE TABLE t (d DATE DEFAULT '2020-1-5', i INT DEFAULT '7', x INT); INSERT INTO t (x) VALUES (1); SELECT d, i FROM t | [(date(2020, 1, 5), 7)]
{TIMED} SELECT id, CAST(c AS CHAR) FROM t ORDER BY id | [(1, "08:05:00"), (2, "10:00:00"), (3, "-01:00:00")]
{TIMED} INSERT INTO t (id) VALUES (4); UPDATE t SET c = '0:0:1' WHERE id = 1; SELECT c FROM t WHERE id IN (1, 4) ORDER BY id | [(timedelta(seconds=1),), (timedelta(hours=9.5),)]
{TIMED} SELECT id FROM t WHERE c = '8:05' OR c IN ('10:0', '12:00') OR c BETWEEN '9:59' AND '10:00:01' ORDER BY id | [(1,), (2,)]
{TIMED} SELECT id FROM t WHERE c > '9:30' | [(2,)]
{TIMED} INSERT INTO t VALUES (4, 'noon') | 1292
CREATE TABLE t (v VARCHAR(2) DEFAULT 'abcdef') | 1067
CREATE TABLE t (i INT DEFAULT 'abc') | 1067
CREATE TABLE t (d DATE DEFAULT CURRENT_TIMESTAMP) | 1067
CREATE TABLE t (x INT, a DATETIME DEFAULT NOW()); INSERT INTO t (x) VALUES (1); SELECT ABS(TIMESTAMPDIFF(HOUR, a, NOW())) FROM t | [(0,)]
CREATE TABLE t (a TIMESTAMP DEFAULT CURRENT_TIMESTAMP); DESCRIBE t | [("a", "timestamp", "YES", "", "CURRENT_TIMESTAMP", "DEFAULT_GENERATED")]
{KEYED} INSERT INTO t (id, v) VALUES (0, 'c'), (NULL, 'd'), ('0', 'e'); SELECT id FROM t WHERE id > 2 ORDER BY id | [(3,), (4,), (5,)]
{KEYED} INSERT INTO t SELECT 0, n, v FROM t WHERE id = 1; SELECT MAX(id) FROM t | [(3,)]
{KEYED} TRUNCATE t; INSERT INTO t (v) VALUES ('z'); SELECT * FROM t | [(1, 5, "z")]
{KEYED} REPLACE INTO t VALUES (1, NULL, 'x') | 1048
{KEYED} REPLACE INTO t SELECT id, NULL, v FROM t | 1048
{KEYED} REPLACE INTO t (id, v) VALUES (1, 'x'); SELECT * FROM t WHERE id = 1 | [(1, 5, "x")]
{KEYED} INSERT IGNORE INTO t VALUES (1, 4, 'x'), (7, 4, 'y'); SELECT id, v FROM t ORDER BY id | [(1, "a"), (2, "b"), (7, "y")]
{UNIQUE} INSERT INTO t (v) VALUES ('a'); INSERT INTO t (v) VALUES ('d'), ('a'); INSERT INTO t (v) VALUES ('e'); SELECT MAX(id) FROM t | [(6,)]
{UNIQUE} INSERT INTO t (v) VALUES (NULL); INSERT INTO t VALUES (2, 'd'); INSERT INTO t (v) VALUES ('e'); SELECT MAX(id) FROM t | [(3,)]
{UNIQUE} INSERT IGNORE INTO t (v) VALUES ('a'); INSERT INTO t (v) VALUES ('e'); SELECT MAX(id) FROM t | [(4,)]
{KEYED} BEGIN; INSERT INTO t (v) VALUES ('z'); COMMIT; ROLLBACK; INSERT INTO t (v) VALUES ('z'); SELECT MAX(id) FROM t | [(4,)]
{KEYED} BEGIN; DELETE FROM t WHERE id = 2; ROLLBACK; INSERT INTO t (v) VALUES ('z'); SELECT MAX(id) FROM t | [(3,)]
{KEYED} BEGIN; CREATE TEMPORARY TABLE m AS SELECT id FROM t; ROLLBACK; SELECT COUNT(*) FROM m | [(0,)]
BEGIN; CREATE TEMPORARY TABLE m (a INT UNIQUE); INSERT INTO m VALUES (1); ROLLBACK; INSERT INTO m VALUES (1); SELECT * FROM m | [(1,)]
{PAID} CREATE TABLE c AS SELECT * FROM t WHERE d > '2020-1-6'; SELECT * FROM c | [(2, date(2021, 2, 3), Decimal("2.00"), "b")]
{PAID} CREATE TABLE c AS SELECT v, AVG(p) AS m, MAX(d) AS l FROM t GROUP BY v; SELECT CONCAT(m), l + INTERVAL 1 DAY FROM c ORDER BY v | [("1.500000", date(2020, 1, 6)), ("2.000000", date(2021, 2, 4))]
{PAID} CREATE TABLE c AS SELECT d FROM t; INSERT INTO c VALUES ('x') | 1292
{PAID} CREATE TABLE c SELECT id FROM t; SELECT COUNT(*) FROM c | [(2,)]
{PAID} CREATE TABLE c AS SELECT v, p FROM t GROUP BY v | 1055
{PAID} CREATE VIEW w AS SELECT id, d, p FROM t; SELECT CONCAT(p), d FROM w WHERE d = '2020-1-5' | [("1.50", date(2020, 1, 5))]
{PAID} CREATE VIEW w (x, y) AS SELECT id, p FROM t WHERE d < '2020-1-6'; SELECT CONCAT(y) FROM w | [("1.50",)]
{PAID} CREATE VIEW w AS SELECT AVG(id) AS m FROM t; SELECT m * 1000 FROM w | [(1500,)]
{PAID} CREATE VIEW w AS SELECT nope FROM t | 1054
{PAID} CREATE VIEW w SELECT id FROM t | 1064
{PAID} CREATE VIEW w (x) (SELECT id FROM t) | 1064
CREATE TABLE t (a DECIMAL(5, 10)) | 1427
CREATE TABLE t (a FLOAT(3, 5)) | 1427
{PAID} ALTER TABLE t ADD COLUMN x DECIMAL(2, 4) | 1427
{PAID} CREATE VIEW w AS SELECT id FROM t; SHOW FULL TABLES | [("t", "BASE TABLE"), ("w", "VIEW")]
{PAID} CREATE VIEW w AS SELECT id FROM t; SELECT TABLE_NAME, TABLE_TYPE FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY 1 | [("t", "BASE TABLE"), ("w", "VIEW")]
{PAID} CREATE VIEW w AS SELECT id, id FROM t | 1060
{PAID} CREATE VIEW w (a, A) AS SELECT id, d FROM t | 1060
{PAID} CREATE VIEW w AS SELECT @x FROM t | 1351
{PAID} CREATE TEMPORARY TABLE m AS SELECT id FROM t; CREATE VIEW w AS SELECT id FROM m | 1352
{PAID} CREATE VIEW w AS SELECT id FROM t; CREATE TEMPORARY TABLE t (x INT); DROP TABLE t; SELECT * FROM w ORDER BY id | [(1,), (2,)]
{PAID} CREATE VIEW w AS SELECT id FROM t; CREATE VIEW z AS SELECT id FROM w; DROP VIEW z, w; DROP TABLE t; SHOW TABLES | []
{PAID} CREATE TEMPORARY TABLE m (x INT); INSERT INTO m SELECT id FROM t; SELECT m.x, a.id, b.id FROM m JOIN t a ON a.id = m.x JOIN t b ON b.id = m.x ORDER BY 1 | [(1, 1, 1), (2, 2, 2)]
{PAID} DROP TABLE t, t | 1066
{PAID} DROP VIEW t | 1347
{PAID} ALTER TABLE t DROP COLUMN nope | 1091
{PAID} ALTER TABLE t RENAME COLUMN nope TO x | 1054
{PAID} ALTER TABLE t DROP COLUMN v, ADD COLUMN v INT; SELECT id, v FROM t WHERE id = 1 | [(1, None)]
{PAID} CREATE INDEX i ON t (nope) | 1072
{KEYED} INSERT INTO t (n) VALUES (1) | 1364
{KEYED} INSERT INTO t (n) SELECT id FROM t | 1364
{KEYED} INSERT INTO t (n, v) VALUES (1, NULL) | 1048
DROP TABLE IF EXISTS t; SHOW TABLES | []
{KEYS} DESCRIBE t | [("a", "int", "YES", "UNI", None, ""), ("b", "int", "NO", "PRI", None, ""), ("c", "int", "YES", "MUL", None, ""), ("d", "int", "YES", "", None, "")]
{KEYS} CREATE INDEX i ON t (d); SELECT COLUMN_KEY FROM information_schema.columns WHERE COLUMN_NAME = 'd' | [("MUL",)]
CREATE TABLE t (v VARCHAR(5) DEFAULT 'it''s', w VARCHAR(5) DEFAULT '', m TIMESTAMP, x TEXT); SHOW CREATE TABLE t | [("t", "CREATE TABLE `t` (\\n  `v` varchar(5) DEFAULT 'it''s',\\n  `w` varchar(5) DEFAULT '',\\n  `m` timestamp NULL DEFAULT NULL,\\n  `x` text\\n) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci")]
CREATE TEMPORARY TABLE m (x INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(3)); DESCRIBE m | [("x", "int", "NO", "PRI", None, "auto_increment"), ("v", "varchar(3)", "YES", "", None, "NULL")]
{PAID} RENAME TABLE t TO u, nope TO x; SHOW TABLES | [("t",)]
{PAID} ALTER TABLE t ADD COLUMN q INT, DROP COLUMN nope; SELECT * FROM t WHERE id = 2 | [(2, date(2021, 2, 3), Decimal("2.00"), "b")]
SELECT MAKEDATE(2020, 0), MAKEDATE(20, 1), INSERT('Quadratic', 3, -1, 'What') | [(None, date(2020, 1, 1), "QuWhat")]
SELECT DECIMAL_MOD(1, 2) | 1305
SELECT ONE_ROW(1, 0) | 1305
"""

REFUSED = f"""
{FILLED} SELECT id FROM t ORDER BY e
{FILLED} SELECT id, e FROM t ORDER BY 2
{FILLED} SELECT id, s AS x FROM t ORDER BY x
{FILLED} SELECT MAX(e) FROM t
{FILLED} SELECT id FROM t WHERE e < 'medium'
{FILLED} SELECT id FROM t WHERE e = 2
{FILLED} SELECT e + 0 FROM t
{FILLED} SELECT a.id FROM t a JOIN t b ON a.e = b.e
{FILLED} INSERT INTO t (id) SELECT e FROM t
{SIZES} INSERT INTO t (e) VALUES (2)
{TIMED} INSERT INTO t VALUES (4, '1 2:03:04')
{TIMED} INSERT INTO t VALUES (4, '930')
{TIMED} INSERT INTO t VALUES (4, '2024-01-31 10:20:30')
{TIMED} UPDATE t SET c = '24:61:00'
{TIMED} UPDATE t SET c = '839:00:00'
{TIMED} INSERT INTO t VALUES (4, '10:00 PM')
{TIMED} INSERT INTO t VALUES (4, '2024-01-31')
{TIMED} INSERT INTO t VALUES (4, 12.6)
{TIMED} SELECT id FROM t WHERE c > 9
{TIMED} SELECT id FROM t WHERE c > 'noon'
{SIZES} INSERT IGNORE INTO t (e) VALUES ('bogus')
CREATE TABLE t (y YEAR); INSERT INTO t VALUES (24)
CREATE TABLE t (y YEAR); SELECT y FROM t WHERE y = 20
CREATE TABLE t (b BLOB); INSERT INTO t VALUES ('a')
CREATE TABLE t (b BLOB); SELECT b FROM t WHERE b = 'a'
CREATE TABLE t (b BIT(1))
CREATE TABLE t (x INT CHECK (x > 0))
CREATE TABLE t (x INT, CONSTRAINT c CHECK (x > 0))
CREATE TABLE t (x INT REFERENCES u (x))
CREATE TABLE t (x INT, FOREIGN KEY (x) REFERENCES u (x))
CREATE TABLE t (x INT, y INT AS (x + 1))
CREATE TABLE t (x TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)
CREATE TABLE t (x INT PRIMARY KEY AUTO_INCREMENT) AUTO_INCREMENT=100
CREATE TABLE t (x INT) COLLATE=utf8mb4_bin
CREATE TABLE t (x VARCHAR(9), UNIQUE KEY k (x(3)))
{KEYED} CREATE UNIQUE INDEX i ON t (v(3))
{KEYED} UPDATE t SET id = id + 1 ORDER BY id DESC
{UNIQUE} INSERT IGNORE INTO t (v) VALUES ('a'), ('c')
{UNIQUE} INSERT INTO t (v) VALUES ('a'), ('c') ON DUPLICATE KEY UPDATE v = 'd'
{UNIQUE} INSERT INTO t (v) VALUES ('c'), ('longer'); INSERT INTO t (v) VALUES ('c')
{UNIQUE} INSERT INTO t VALUES (10, 'c'), (NULL, 'd'); INSERT INTO t (v) VALUES ('e')
{UNIQUE} INSERT INTO t (v) SELECT id FROM t; INSERT INTO t (v) VALUES ('e')
{KEYED} BEGIN; INSERT INTO t (v) VALUES ('z'); ROLLBACK; INSERT INTO t (v) VALUES ('z')
{KEYED} ALTER TABLE t AUTO_INCREMENT = 100
{KEYED} ALTER TABLE t ADD COLUMN x INT, COMMENT = 'x'
{KEYED} INSERT IGNORE INTO t VALUES (7, NULL, 'x')
{PAID} CREATE TABLE c AS SELECT id FROM t; DESCRIBE c
{PAID} CREATE TABLE c AS SELECT COUNT(*) FROM t
{PAID} CREATE TABLE c SELECT id FROM t USE INDEX (PRIMARY)
{PAID} CREATE TABLE c (SELECT id FROM t USE INDEX (PRIMARY))
CREATE TABLE c SELECT 1 AS a INTO @x
{PAID} CREATE TABLE c AS SELECT CONCAT(v, 'x') AS x FROM t; INSERT INTO c VALUES ('abcdefghijkl')
{PAID} CREATE VIEW w AS SELECT id FROM t; DESCRIBE w
{PAID} CREATE VIEW w AS SELECT * FROM t; ALTER TABLE t ADD COLUMN x INT
{PAID} CREATE VIEW w AS SELECT * FROM t; DROP TABLE t
{PAID} CREATE VIEW w AS SELECT * FROM t; CREATE VIEW z AS SELECT * FROM w; DROP VIEW w
{PAID} CREATE TEMPORARY VIEW w AS SELECT * FROM t
{PAID} CREATE TEMPORARY TABLE t AS SELECT id FROM t
{PAID} CREATE TABLE T (x INT)
{PAID} CREATE VIEW T AS SELECT 1 AS x
{PAID} CREATE TEMPORARY TABLE T (x INT)
{PAID} RENAME TABLE t TO T
{PAID} ALTER TABLE t RENAME TO T
{TEMPORARY} SELECT * FROM m a JOIN m b ON a.x = b.x
{TEMPORARY} SELECT x FROM m UNION ALL SELECT x FROM m
{TEMPORARY} WITH c AS (SELECT x FROM m) SELECT a.x FROM c a JOIN c b ON a.x = b.x
{TEMPORARY} INSERT INTO m SELECT x + 1 FROM m
{TEMPORARY} RENAME TABLE m TO n
CREATE VIEW w AS SELECT table_name FROM information_schema.tables
{PAID} SHOW FULL COLUMNS FROM t
{KEYS} SHOW CREATE TABLE t
CREATE TABLE t (a INT, b INT, PRIMARY KEY (b, a)); SHOW CREATE TABLE t
CREATE TABLE t (a INT, KEY (a))
{PAID} SHOW TABLES WHERE Tables_in_dbbench = 't'
{PAID} SHOW INDEX FROM t
{PAID} SHOW FIELDS FROM t
{PAID} SHOW KEYS FROM t
SHOW VARIABLES
SHOW STATUS
SET @x = 5; SET @y = 6; SELECT @x
SET sql_mode = ''
SET NAMES utf8mb4 COLLATE utf8mb4_bin
SET TRANSACTION READ ONLY
SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY
START TRANSACTION READ ONLY
BEGIN; SET TRANSACTION ISOLATION LEVEL SERIALIZABLE
BEGIN; COMMIT AND CHAIN
BEGIN; ROLLBACK AND CHAIN
CREATE TEMPORARY TABLE t (a INT); BEGIN; DROP TEMPORARY TABLE t
SELECT @@sql_mode
SELECT @@autocommit
SELECT RAND(1)
SELECT FORMAT(1234.5, 2, 'de_DE')
SELECT REGEXP_REPLACE('abc', 'b', 'x', 1)
SELECT REGEXP_SUBSTR('abc', 'b', 1)
SELECT * FROM information_schema.key_column_usage
SELECT /*!50000 1,*/ 2
DO 1
SAVEPOINT a
COMMIT RELEASE
START TRANSACTION WITH CONSISTENT SNAPSHOT
SELECT 1 INTO @x
CREATE PROCEDURE p() SELECT 1
CREATE FUNCTION f() RETURNS INT RETURN 1
CREATE TRIGGER r BEFORE INSERT ON u FOR EACH ROW SET NEW.x = 1
{PAID} ALTER TABLE t ADD COLUMN (p INT, q INT)
{PAID} ALTER TABLE t CONVERT TO CHARACTER SET latin1
USE information_schema
UPDATE information_schema.tables SET table_name = 'x'
DELETE FROM information_schema.tables
INSERT INTO information_schema.tables (table_name) VALUES ('x')
LOCK TABLES t READ
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT n FROM r LIMIT 1
"""


def played(sandbox: Sandbox, statements: str) -> Any:
    """The rows of the last statement, or the number of its error."""
    result = None
    for sql in statements.split(";"):
        while (result := sandbox.execute(sql.strip())).limit == "time":  # on a busy machine
            pass
    assert result is not None
    return result.error_code or [
        tuple(float(cell) if isinstance(cell, Decimal) else cell for cell in row) for row in result.rows or []
    ]


def answered() -> list[tuple[str, Any]]:
    pairs = [line.rpartition(" | ")[::2] for line in ANSWERED.strip().splitlines()]
    names = {"date": date, "datetime": datetime, "timedelta": timedelta, "Decimal": lambda text: float(text)}
    return [(sql, eval(rows, names)) for sql, rows in pairs]


@BOTH
@pytest.mark.parametrize(("statements", "wanted"), answered())
def test_what_is_answered(database: Database, statements: str, wanted: Any) -> None:
    with database.sandbox(task(table("other", "a INT"))) as sandbox:
        sandbox.execute("DROP TABLE other")
        assert played(sandbox, statements) == wanted


@pytest.mark.parametrize("statements", REFUSED.strip().splitlines())
def test_what_is_refused(sqlite_database: Database, statements: str) -> None:
    with sqlite_database.sandbox(task(table("u", "x INT"))) as sandbox:
        assert played(sandbox, statements) == 1235


def test_the_cells_of_a_task_are_in_the_range_of_their_column(sqlite_database: Database) -> None:
    for column, cell in (("n TINYINT", 300), ("e ENUM('a','b')", "c")):
        with pytest.raises(TaskError), sqlite_database.sandbox(task(table("t", column, (cell,)))) as sandbox:
            sandbox.execute("SELECT 1")


def test_a_table_of_a_task_may_have_what_an_agents_may_not(sqlite_database: Database) -> None:
    made = table(
        "t",
        "id BIGINT AUTO_INCREMENT PRIMARY KEY, y YEAR, b BLOB, e SET('b') NOT NULL",
        (2**40, 2020, "x", "B"),
    )
    with sqlite_database.sandbox(task(made)) as sandbox:
        assert sandbox.execute("SELECT * FROM t WHERE y > 2000").rows == [(2**40, 2020, b"x", "b")]


def test_a_change_that_runs_out_of_time_ends_no_transaction() -> None:
    """SQLite rolls the whole transaction back, MySQL the statement: the tables are made again."""
    numbers = table("n", "a INT", *((n,) for n in range(300)))
    slow = "UPDATE n SET a = 1 WHERE a < (SELECT COUNT(*) FROM (SELECT x.a FROM n x, n y, n z WHERE x.a + y.a < z.a) q)"
    with opened("sqlite", Limits(seconds=0.3)) as database, database.sandbox(task(numbers)) as sandbox:
        for sql in ("BEGIN", "DELETE FROM n WHERE a >= 290"):
            assert sandbox.execute(sql).error is None
        assert sandbox.execute(slow).limit == "time"
        assert sandbox.execute("SELECT COUNT(*) FROM n").rows == [(290,)]
        assert sandbox.execute("ROLLBACK").error is None
        assert sandbox.execute("SELECT COUNT(*) FROM n").rows == [(300,)]
