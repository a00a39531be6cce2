"""FLOAT on the embedded database as on MySQL: it stores 32 bits and shows six digits.

The double that 0.1 means in 32 bits is 0.10000000149011612. MySQL compares it and computes with it, and shows `0.1`.
"""

from __future__ import annotations

import pytest
from databases import rows_of, table
from databases import task as task_of
from test_parity import lines, verdict

from trl_dbbench.database import Database
from trl_dbbench.mysqlite.values import single, single_text, written

Q = table(
    "q",
    "id INT PRIMARY KEY, f FLOAT, g FLOAT, d DOUBLE, m DECIMAL(8,2), i INT, t TEXT, v VARCHAR(30), e DATE, w DATETIME",
    (1, 0.1, 1.1, 0.1, "0.10", 1, "0.1", "0.1", "2020-01-01", "2020-01-01 00:00:00"),
    (2, 16777216, 1234567.5, 2.5, "2.50", 16777216, "16777200", "x", "2020-02-29", "2020-02-29 12:30:15"),
    (3, 1e-10, 1e20, 1e20, "-3.10", -4, "1e20", "", "2021-07-15", None),
    (4, None, 3.3333333, None, None, None, None, None, None, None),
    (5, -0.30000001, 1e-5, 0.00001, "9.99", 7, "2020-1-1", "2020-01-01", "2019-12-31", "2019-12-31 23:59:59"),
)

SAME = """
    SELECT * FROM q
    SELECT f, g, -f, f+0, f+1, f*1, f*2, f/3, f DIV 2, f % 2, ABS(f), ROUND(f,2), ROUND(f), FLOOR(f), CEIL(f), TRUNCATE(f,3), SIGN(f), f+i, f+m, f*m, f+d FROM q WHERE id<>3
    SELECT SQRT(f) FROM q WHERE f>0
    SELECT MAX(f), MIN(f), SUM(f), AVG(f), STDDEV(f), COUNT(DISTINCT f), SUM(DISTINCT f), GROUP_CONCAT(f ORDER BY f), GROUP_CONCAT(DISTINCT f) FROM q
    SELECT id, f = 0.1, f = '0.1', f = 0.1e0, f = d, f = m, f = t, f = CAST(0.1 AS FLOAT), f IN (0.1, 16777216), f BETWEEN 0.1 AND 0.2, f <=> 0.1, f > 0.1, f <> 0.1, 0.1 < f FROM q
    SELECT IF(1,f,g), IF(1,f,i), IF(1,f,m), IF(1,f,d), IF(1,f,NULL), IF(1,f,'a'), IF(1,f,t), IF(1, f, 1), IF(1,f,1.5), IF(1,f,1e0) FROM q
    SELECT COALESCE(f,g), COALESCE(f,i), COALESCE(f,m), COALESCE(f,d), COALESCE(f,0), COALESCE(f,'x'), IFNULL(f,g), IFNULL(f,0), IFNULL(f,0.5), IFNULL(f,'x'), NULLIF(f,g), NULLIF(f,0.1) FROM q
    SELECT CASE WHEN id>0 THEN f END, CASE WHEN id>0 THEN f ELSE 0 END, CASE WHEN id>0 THEN f ELSE g END, CASE WHEN id>0 THEN f ELSE 'x' END FROM q
    SELECT GREATEST(f,g), LEAST(f,g), GREATEST(f,0), GREATEST(f,0.1), GREATEST(f,d), GREATEST(f,'a'), GREATEST(f,t) FROM q
    SELECT CONCAT(f), CAST(f AS CHAR), CONCAT(g), CONCAT(f+0), CONCAT(d), CONCAT(-f), UPPER(f), LENGTH(f), f LIKE '0.1%', HEX(f), FORMAT(f,3), LEFT(f,3), REPLACE(f,'1','2'), CONCAT_WS(',',f,g), f REGEXP '^0.1$' FROM q
    SELECT CAST(f AS DECIMAL(20,10)), CAST(f AS SIGNED), CAST(f AS DOUBLE), CAST(f AS FLOAT), CAST(f AS DECIMAL(10,2)), CAST(d AS FLOAT), CAST(m AS FLOAT) FROM q WHERE id<>3
    SELECT (SELECT f FROM q WHERE id=1), (SELECT MAX(f) FROM q), (SELECT f)+0 FROM q
    SELECT f FROM q UNION SELECT g FROM q
    SELECT f FROM q UNION SELECT d FROM q
    SELECT f FROM q UNION SELECT i FROM q
    SELECT f FROM q UNION SELECT m FROM q
    SELECT f FROM q UNION SELECT 0.1
    SELECT f FROM q UNION SELECT 1
    SELECT f FROM q UNION SELECT NULL
    SELECT f FROM q WHERE f = 2.5 UNION ALL SELECT 'x'
    SELECT LAG(f) OVER (ORDER BY id), LAG(f,1,0) OVER (ORDER BY id), LEAD(f,1,g) OVER (ORDER BY id), FIRST_VALUE(f) OVER (ORDER BY id), MAX(f) OVER (ORDER BY id), SUM(f) OVER (ORDER BY id), AVG(f) OVER (ORDER BY id) FROM q
    SELECT x.f, x.a, x.b, x.c, x.a+0 FROM (SELECT f, MAX(f) a, SUM(f) b, CONCAT(f) c FROM q GROUP BY f) x
    SELECT IF(1,f,16777217), IF(0,f,16777217), IF(0,f,123456789012), COALESCE(f,LENGTH(t)), COALESCE(f,i+0), COALESCE(f,COUNT(*)), COALESCE(f,ABS(i)), COALESCE(f,f>1), COALESCE(f,SIGN(f)) FROM q GROUP BY id
    SELECT COALESCE(f,IF(1,i,NULL)), COALESCE(f,MAX(i)), COALESCE(f,COALESCE(i,i)), COALESCE(f,(SELECT MAX(i) FROM q)), COALESCE(f,i,id+0), COALESCE(i,id+0,f), COALESCE(f,-1), COALESCE(f,-i), COALESCE(f,ROUND(i)), COALESCE(f,FLOOR(f)),COALESCE(f,TRUE), COALESCE(f,IF(1,i,1)), COALESCE(f,NULLIF(i,1)) FROM q GROUP BY id
    SELECT COALESCE(f,YEAR('2020-01-01')), COALESCE(f,MONTH('2020-01-01')), COALESCE(f,DATEDIFF('2020-01-01','2020-01-02')), COALESCE(f,LOCATE('a','b')), COALESCE(f,i DIV 2), COALESCE(f,CAST(i AS SIGNED)), COALESCE(f,i%2), COALESCE(f,CEIL(i)), COALESCE(f, CEIL(m)) FROM q
    SELECT CONCAT(IF(1,f,g)), CONCAT(CASE WHEN 1 THEN f ELSE g END), CONCAT(IF(id>0,f,1)), CONCAT(CASE WHEN id>0 THEN f ELSE 1 END), CONCAT(IF(id>0,f,i)) FROM q
    SELECT CONCAT(NULLIF(f,g)) FROM q
    SELECT CONCAT(COALESCE(f,g)) FROM q WHERE f = 2.5
    SELECT CONCAT(IF(1,m,d)), CONCAT(IF(1,d,m)), CONCAT(IF(1,i,d)) FROM q
    SELECT GROUP_CONCAT(IF(id=1,m,1)), GROUP_CONCAT(IF(1,m,d)) FROM q
    SELECT GROUP_CONCAT(COALESCE(f,0)), GROUP_CONCAT(IF(id>0,f,g)), GROUP_CONCAT(f+0), COUNT(DISTINCT f, g), COUNT(DISTINCT f) FROM q
    SELECT GROUP_CONCAT(IF(id>0,f,i)) FROM q
    SELECT LENGTH(IF(id>0,f,g)), COALESCE(CONCAT(f),'x'), IF(id>0,IF(id>0,f,g),'x') FROM q
    SELECT id FROM q WHERE f = 0.1
    SELECT id FROM q WHERE d IN (SELECT f FROM q)
    SELECT id FROM q WHERE f IN (SELECT d FROM q)
    SELECT id FROM q WHERE f IN (SELECT m FROM q)
    SELECT id FROM q WHERE f IN (SELECT t FROM q)
    SELECT id FROM q WHERE t IN (SELECT f FROM q)
    SELECT id FROM q WHERE i IN (SELECT f FROM q)
    SELECT id FROM q WHERE (f,id) IN (SELECT d,id FROM q)
    SELECT id FROM q WHERE (f,id) IN ((0.1,1),(16777216,2))
    SELECT a.id,b.id FROM q a JOIN q b ON a.f=b.d
    SELECT a.id,b.id FROM q a JOIN q b ON a.f=b.f
    SELECT a.id,b.id FROM q a JOIN q b ON a.f=b.i
    SELECT a.id,b.id FROM q a JOIN q b USING (f)
    SELECT CASE f WHEN 0.1 THEN 'a' WHEN f THEN 'b' ELSE 'c' END, FIELD(f, 0.1, f), ELT(1,f), FIELD('0.1', f), STRCMP(f,'0.1'), f XOR 0, NOT f, f AND 1 FROM q
    SELECT f, COUNT(*) FROM q GROUP BY f HAVING f > 0.1
    SELECT DISTINCT f FROM q ORDER BY f
    SELECT f*1.0 a FROM q ORDER BY a
    WITH RECURSIVE x AS (SELECT f, 1 n FROM q WHERE id=1 UNION ALL SELECT f+1, n+1 FROM x WHERE n<4) SELECT f,n,f+0 FROM x
    WITH RECURSIVE x AS (SELECT CAST(0.1 AS FLOAT) f, 1 n UNION ALL SELECT f*2, n+1 FROM x WHERE n<4) SELECT f,n,f+0 FROM x
    SELECT CAST(0.1 AS REAL), CAST(16777217 AS FLOAT), CAST(16777217 AS FLOAT)+0, CAST(0.1 AS FLOAT(30)), CAST(0.1 AS FLOAT(10))+0
    SELECT CAST(1e39 AS FLOAT)
    SELECT CAST(0.1 AS FLOAT) = 0.1, 0.1 = CAST(0.1 AS FLOAT), CAST(0.1 AS FLOAT) IN (0.1)
    SELECT CONCAT(1.2345678901234567e-3), CONCAT(1.2345678901234567e-5), CONCAT(1e15), CONCAT(1e14), CONCAT(123456789012345678e0), CONCAT(1e300), CONCAT(-1.5e-7), CONCAT(2e0/3), CONCAT(1e22/3)
    UPDATE q SET v=f, t=f, d=f
    UPDATE q SET m=f WHERE id = 1
    UPDATE q SET i=f
    UPDATE q SET f=f*1.1
    UPDATE q SET f=0.2 WHERE f=0.1
    UPDATE q SET f=0.2 WHERE f>0.1
    UPDATE q SET t=f+0, v=d
    UPDATE q SET t=COALESCE(f,0), v=COALESCE(f,0)
    UPDATE q SET v=CONCAT(f), t=IF(i>0,f,0)
    UPDATE q SET f=t
    UPDATE q SET f='0.7', d=f
    UPDATE q SET f=1e39
    UPDATE q SET g=f
    UPDATE q SET d=f, f=d
    INSERT INTO q (id,f,g) VALUES (9,0.7,'0.7'),(10,-0.1,1e-50)
    INSERT INTO q (id,f) SELECT id+10, d FROM q
    INSERT INTO q (id,d,t,v) SELECT id+10, f, f, f FROM q
    INSERT INTO q (id,v) SELECT id+10, COALESCE(f,0) FROM q
    INSERT INTO q (id,f) VALUES (1,0.7) ON DUPLICATE KEY UPDATE d=VALUES(f), f=VALUES(f)+f, v=f
    REPLACE INTO q (id,f) VALUES (1,0.7)
    DELETE FROM q WHERE f=0.1
    DELETE FROM q WHERE f>0.1
    UPDATE q a JOIN q b ON a.f=b.g SET a.f=0.3
    UPDATE q SET f=(SELECT x FROM (SELECT MAX(g) x FROM q) y)
    SELECT e + INTERVAL f DAY FROM q
    SELECT f = e, f > e FROM q
    SELECT f IN ('0.1', 2), f BETWEEN '0.1' AND 3, f LIKE 0.1 FROM q
    SELECT SUM(f) = 0.1, SUM(f)/COUNT(*), ROUND(AVG(f),2), ROUND(SUM(f),1) FROM q GROUP BY id
    SELECT ROUND(f*100)/100, CAST(f*10 AS DECIMAL(20,3)) FROM q WHERE id<>3
    SELECT MAX(f) FROM q GROUP BY i HAVING MAX(f) > 0.1 ORDER BY MAX(f)
    SELECT RANK() OVER (ORDER BY f DESC), NTH_VALUE(f,2) OVER (ORDER BY id) FROM q
    SELECT VAR_SAMP(f), STD(g) FROM q
    SELECT LPAD(f, 10, '*'), RPAD(f,3,'x'), REVERSE(f), SUBSTRING(f,1,2), TRIM(LEADING '0' FROM f), LOCATE('1',f), INSTR(f,'.'), ASCII(f), SUBSTRING_INDEX(f,'.',1) FROM q
    SELECT LEAST(f,t), IFNULL(f,t), NULLIF(f,t), NULLIF(t,f), COALESCE(t,f) FROM q
    SELECT CONCAT(IFNULL(f,'none')), IFNULL(CONCAT(f),'none') FROM q
    SELECT EXISTS(SELECT 1 FROM q x WHERE x.f=q.d), (SELECT COUNT(*) FROM q x WHERE x.f<=q.f) FROM q
    SELECT f INTERSECT SELECT g FROM q
    SELECT f FROM q INTERSECT SELECT d FROM q
    SELECT f FROM q EXCEPT SELECT d FROM q
    SELECT f FROM q EXCEPT SELECT i FROM q
    SELECT f, COUNT(*) OVER (PARTITION BY f) FROM q
    SELECT f IS TRUE, f IS NOT NULL, ISNULL(f) FROM q
    SELECT id FROM q WHERE f
    SELECT DATE_ADD(e, INTERVAL f MONTH) FROM q WHERE id IN (1,5)
    SELECT id FROM q ORDER BY f LIMIT 2
    SELECT id FROM q ORDER BY -f LIMIT 2
    DELETE FROM q WHERE id = 77 OR NOT f
    SELECT 1 UNION SELECT f FROM q
    SELECT f FROM q UNION SELECT COUNT(*) FROM q
    SELECT COALESCE(1, f), IF(id > 2, 1, f), IF(id > 2, f, 1), GREATEST(1, f), IFNULL(NULL, f), COALESCE(id + 0, f) FROM q
    SELECT i, MAX(g) FROM q WHERE id <> 3 GROUP BY i
    CREATE TABLE n AS SELECT SUM(f) AS s FROM q
"""
NOT_SUPPORTED = """
    SELECT f FROM q UNION ALL SELECT t FROM q
    SELECT f FROM q UNION ALL SELECT 'x'
    SELECT CONCAT(MAX(f)), CONCAT(IF(1,f,g)) FROM q GROUP BY id
    SELECT CONCAT(COALESCE(f,g)) FROM q
    SELECT CONCAT(COALESCE(f,g)) FROM q WHERE f = 16777216
    SELECT CONCAT(a) FROM (SELECT f a FROM q UNION SELECT g FROM q) x
    SELECT CONCAT(f) FROM (SELECT f FROM q) x
    WITH x AS (SELECT f FROM q) SELECT CONCAT(f) FROM x
    CREATE TABLE n AS SELECT f FROM q
    SELECT i, MAX(IF(f > 1, f, 0)) FROM q GROUP BY i
    SELECT i, MAX(x) FROM (SELECT f AS x, i FROM q) y GROUP BY i
    CREATE VIEW n AS SELECT CONCAT(f) AS c FROM q
    CREATE VIEW n AS SELECT f, d FROM q WHERE f > 0.1
"""


@pytest.mark.parametrize("sql", lines(SAME))
def test_the_same_rows_tables_and_kinds_of_errors(
    sqlite_database: Database,
    mysql: Database,
    sql: str,
) -> None:
    found, said = verdict(sqlite_database, mysql, sql, Q)
    assert found == "same", said


@pytest.mark.parametrize("sql", lines(NOT_SUPPORTED))
def test_what_depends_on_the_plan_is_refused(
    sqlite_database: Database,
    mysql: Database,
    sql: str,
) -> None:
    found, said = verdict(sqlite_database, mysql, sql, Q)
    assert found == "not supported", said


# --- without a server ---------------------------------------------------------------------------------------------


def test_a_float_has_32_bits_and_shows_six_digits(sqlite_database: Database) -> None:
    with sqlite_database.sandbox(task_of(Q)) as sandbox:
        assert sandbox.execute("SELECT f FROM q WHERE id < 4").rows == [(0.1,), (16777200.0,), (1e-10,)]
        assert sandbox.execute("SELECT f + 0, f = 0.1 FROM q WHERE id = 1").rows == [(0.10000000149011612, 0)]
        assert sandbox.execute("SELECT CONCAT(f) FROM q WHERE id = 2").rows == [("16777200",)]
        assert rows_of(sandbox)["q"][1][1:3] == (16777200.0, 1234570.0)


def test_real_and_long_floats_have_64_bits(sqlite_database: Database) -> None:
    cells = table("t", "a REAL, b DOUBLE, c FLOAT(30), d FLOAT(24)", (0.1, 0.1, 0.1, 0.1))
    with sqlite_database.sandbox(task_of(cells)) as sandbox:
        shown = sandbox.execute("SELECT a + 0, b + 0, c + 0, d + 0 FROM t").rows
        assert shown == [(0.1, 0.1, 0.1, 0.10000000149011612)]
        assert sandbox.execute("SELECT CAST(0.1 AS REAL) = 0.1").rows == [(1,)]


def test_a_float_with_places_is_shown_and_compared_and_nothing_else(sqlite_database: Database) -> None:
    cells = table("t", "a FLOAT(7,2), b DOUBLE(8,3)", (1.239, 12345.6789), (None, None))
    with sqlite_database.sandbox(task_of(cells)) as sandbox:
        assert sandbox.execute("SELECT a, b FROM t").rows == [(1.24, 12345.679), (None, None)]
        assert sandbox.execute("SELECT b FROM t WHERE a > 1 ORDER BY a").rows == [(12345.679,)]
        for sql in ("SELECT a + 1 FROM t", "UPDATE t SET a = 1", "SELECT MAX(b) FROM t"):
            assert str(sandbox.execute(sql).error).endswith("(embedded database)")


def test_defaults_are_stored_in_32_bits(sqlite_database: Database) -> None:
    cells = table("t", "id INT, f FLOAT DEFAULT '0.1'", (1, None))
    with sqlite_database.sandbox(task_of(cells)) as sandbox:
        sandbox.execute("INSERT INTO t (id) VALUES (2)")
        assert sandbox.execute("SELECT f, f + 0 FROM t WHERE id = 2").rows == [(0.1, 0.10000000149011612)]
        assert sandbox.execute("DESCRIBE t").rows[1][:5] == ("f", "float", "YES", "", "0.1")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.2345678901234567e-4, "0.00012345678901234567"),
        (1.2345678901234567e-5, "1.2345678901234568e-5"),
        (-1.2345678901234567e-4, "-1.2345678901234567e-4"),
        (-1.2345678901234567e-100, "-1.23456789012346e-100"),
        (1e-15, "0.000000000000001"),
        (1e14, "100000000000000"),
        (1e15, "1e15"),
        (1234567890123456.7, "1234567890123456.8"),
        (1234567890123456.0, "1.234567890123456e15"),
        (2 / 3, "0.6666666666666666"),
    ],
)
def test_numbers_as_texts(number: float, text: str) -> None:
    """As MySQL's CONCAT writes them."""
    assert written(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.5e-14, "1.5e-14"),
        (123456e9, "1.23456e14"),
        (-0.0000123456, "-1.23456e-5"),
        (-0.00123456, "-0.00123456"),
        (123456789012, "123457000000"),
        (1234565, "1234560"),
        (1234575, "1234580"),
    ],
)
def test_floats_as_texts(number: float, text: str) -> None:
    """As MySQL's CONCAT writes a column of FLOAT."""
    kept = single(number)
    assert kept is not None and single_text(kept) == text
