"""The embedded database answers as MySQL does, or says that it does not have what a statement needs.

`benchmarks/parity.py` compares 100,000 statements; here are some of each kind, and those that it found to be
answered otherwise once.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from databases import table
from fitted import fitted
from mysql_parity import WRONG, error_class, is_open, one, play, same_rows
from random_sql import Writer, tables
from required import lacking

from trl_dbbench.database import Database, QueryResult
from trl_dbbench.tasks import Gold, Table, Task

P = table(
    "p",
    "id INT PRIMARY KEY, d DATE, dt DATETIME, t VARCHAR(30), m DECIMAL(8,2), f DOUBLE, i INT",
    (1, "2020-01-01", "2020-01-01 00:00:00", "2020-01-01", "1.50", 0.5, 3),
    (2, "2020-2-29", "2020-02-29 12:30:15", "x", "10.00", 2.5, None),
    (3, None, None, "2020-1-2", None, -7.75, 100),
)

SAME = """
    SELECT id FROM p WHERE id NOT IN (SELECT t FROM p)
    SELECT id FROM p WHERE id IN (SELECT t FROM p)
    SELECT id FROM p WHERE 0 IN (SELECT t FROM p) OR i IN (SELECT CONCAT(q.i, 'x') AS n FROM p q WHERE q.i = 3)
    SELECT YEAR(p.d), COUNT(*) FROM p JOIN p q ON q.id = p.id GROUP BY YEAR(q.d)
    SELECT YEAR(d), COUNT(*) FROM p GROUP BY YEAR(p.d)
    SELECT YEAR(p.d) + 1, COUNT(*) FROM p JOIN p q ON q.id = p.id GROUP BY YEAR(p.d)
    SELECT CONCAT(YEAR(d), 'x') FROM p GROUP BY YEAR(d)
    SELECT YEAR(d), SUM(SUM(i)) OVER (ORDER BY YEAR(d)) FROM p GROUP BY YEAR(d)
    SELECT LAG(YEAR(d)) OVER (ORDER BY YEAR(d)) FROM p GROUP BY YEAR(d)
    SELECT RANK() OVER (PARTITION BY YEAR(d) ORDER BY -SUM(i)) FROM p GROUP BY YEAR(d)
    SELECT YEAR(d) + SUM(i) FROM p GROUP BY YEAR(d)
    SELECT YEAR(d) FROM p GROUP BY YEAR(d) ORDER BY YEAR(d) + 1
    SELECT (YEAR(d)) FROM p GROUP BY YEAR(d) ORDER BY YEAR(d)
    SELECT CASE WHEN i > 1 THEN 'a' ELSE 'b' END AS k, COUNT(*) FROM p GROUP BY CASE WHEN i > 1 THEN 'a' ELSE 'b' END
    SELECT i + 1 AS n, n2.c FROM p JOIN (SELECT COUNT(*) AS c FROM p) n2 GROUP BY i + 1, n2.c
    SELECT TIMESTAMPDIFF(DAY, d, '2021-01-01'), COUNT(*) FROM p GROUP BY TIMESTAMPDIFF(DAY, d, '2021-01-01')
    SELECT /*+ MAX_EXECUTION_TIME(1000) */ id FROM p
    SELECT N'x'
    SELECT DATE_SUB(d, INTERVAL -1 MONTH), d - INTERVAL -2 DAY, DATE_SUB(d, INTERVAL - -1 YEAR) FROM p
    SELECT DATE_SUB('2020-03-31', INTERVAL -1 HOUR), SUBDATE('2020-03-31', INTERVAL '-3' WEEK)
    UPDATE p SET d = DATE_SUB(d, INTERVAL -3 MONTH)
    SELECT id FROM p WHERE d = '2020-1-1'
    SELECT id FROM p WHERE d = '20200229' OR d > '2020/3/1'
    SELECT id FROM p WHERE dt > d
    SELECT id FROM p WHERE d = 'spring'
    SELECT CONCAT(m, '|', m * 2, '|', m / 3, '|', SUM(m) OVER ()) FROM p
    SELECT 1/12 * 100, AVG(id < 2) * 100, SUM(id) / 7 * 100, ROUND(1/12, 8) FROM p
    SELECT id / 7 * 100 FROM p WHERE id / 7 * 100 > 14.289
    SELECT ROUND(2.5), ROUND(f), ROUND(-0.5), CAST(2.5 AS SIGNED), CAST(f AS SIGNED) FROM p
    SELECT STDDEV(i), AVG(i), SUM(i), VAR_SAMP(i) FROM p
    SELECT MIN(t), MAX(t), MIN(d), MAX(dt) FROM p
    SELECT IF(id = 1, d, dt), COALESCE(d, 'none'), CASE id WHEN 1 THEN 1 WHEN 2 THEN 2.50 END FROM p
    SELECT d + INTERVAL 1 HOUR, DATE_ADD('2020-01-31', INTERVAL 1 MONTH) + INTERVAL 1 DAY FROM p
    SELECT d FROM p UNION SELECT dt FROM p
    SELECT i FROM p UNION SELECT t FROM p
    SELECT id x FROM p HAVING x > 1
    SELECT id FROM p HAVING t IS NULL
    SELECT t FROM p GROUP BY t HAVING id > 1
    SELECT YEAR(d) AS i, COUNT(*) FROM p GROUP BY i
    SELECT (SELECT COUNT(*) FROM p q WHERE q.i = p.i) c, COUNT(*) FROM p GROUP BY t
    SELECT t, COUNT(*) FROM p GROUP BY id
    SELECT t, COUNT(*) FROM p GROUP BY t HAVING ROUND(SUM(i), id) = 5
    SELECT SUM(id), LAG(i) OVER (ORDER BY i) FROM p
    SELECT SUM(COUNT(*)) FROM p
    SELECT id FROM p WHERE SUM(id) > 1
    SELECT id FROM p WHERE ROW_NUMBER() OVER (ORDER BY id) > 1
    SELECT id FROM p ORDER BY SUM(id)
    SELECT id, SUM(i) OVER (ORDER BY 1) FROM p
    SELECT -4 AS c FROM p ORDER BY -4
    SELECT nope FROM nope WHERE id IN (SELECT id FROM p LIMIT 1)
    SELECT p.id FROM p JOIN p q ON r.id = q.id JOIN p r ON r.id = p.id
    SELECT p.id FROM p, p q JOIN p r ON p.id = r.id
    SELECT p."id" FROM p
    SELECT id FROM p ORDER BY id WHERE id < 3
    SELECT id FROM p WHERE id < 3 JOIN p q ON q.id = p.id
    SELECT id FROM p WHERE id BETWEEN 1
    SELECT CASE WHEN id = 1 2 ELSE 3 END FROM p
    SELECT id FROM p LIMIT 1.5
    SELECT id FROM p LIMIT id
    WITH d (SELECT 1) SELECT 1
    FROM p
    SELECT COUNT_ALL(*) FROM p
    SELECT p.id FROM p SUM(id)
    SELECT POW(10, 400)
    SELECT POW(0, -1)
    INSERT INTO p (id, id) VALUES (7, 8)
    INSERT INTO p (id, i) VALUES (7, 1.5)
    INSERT INTO p (id, i) VALUES (7, 'x')
    INSERT INTO p (id, d) VALUES (7, '2020-1-5')
    INSERT INTO p (id, d) VALUES (7, 'x')
    INSERT INTO p (id, m) VALUES (7, 1.005)
    INSERT INTO p (id, m) VALUES (7, 1234567.5)
    INSERT INTO p (id, t) VALUES (7, 'a text of more than thirty letters')
    INSERT INTO p (id, t) SELECT id + 10, m FROM p
    UPDATE p SET i = m
    UPDATE p SET i = '' + 1
    UPDATE p SET i = t + 1
    UPDATE p SET i = CAST('12.5' AS SIGNED)
    UPDATE p SET m = CAST('x' AS DECIMAL(8,2))
    UPDATE p SET i = 1 / 0
    UPDATE p SET i = 1 MOD 0
    DELETE FROM p WHERE t = 5
    DELETE FROM p WHERE '' <> i
    SELECT id, * FROM p
    SELECT (*) FROM p
    SELECT (ABS id) FROM p
    SELECT DISTINCT AS id FROM p
    SELECT id, MIN(i) OVER (ORDER ORDER BY id) FROM p
    SELECT id, SUM(i) OVER (ORDER BY id ROWS 1 PRECEDING AND CURRENT ROW) FROM p
    SELECT id, FIRST_VALUE(i) OVER (ORDER BY SUM(id)) FROM p
    SELECT id, p.rank(i) OVER (ORDER BY id) FROM p
    SELECT GROUP_CONCAT( ORDER BY id) FROM p
    SELECT GROUP_CONCAT(id SEPARATOR ) '; ' FROM p
    SELECT CAST(m AS DECIMAL(10AND1)) FROM p
    SELECT id FROM p WHERE ( YEAR '2020-01-01') > 1
    SELECT DATE() 'x' FROM p
    SELECT d + + INTERVAL 1 DAY FROM p
    SELECT TIMESTAMPDIFF(id, d, dt) FROM p
    SELECT SUBSTRING(t -3) FROM p
    SELECT id FROM p WHERE id IS NOT NOT NULL
    SELECT id FROM p WHERE i BETWEEN id id AND 7
    SELECT id FROM p WHERE id IN IF (1, 2, 3)
    SELECT id FROM p WHERE id > 1 AND t , 'x'
    SELECT id FROM p WHERE t.date (SELECT 1)
    SELECT q.id FROM p JOIN p 'q' ON q.id = p.id
    SELECT id FROM p WHERE (id, 1) IN (id, 2)
    SELECT id FROM p WHERE SUM(nope) > 1
    SELECT id FROM p GROUP BY SUM(nope)
    SELECT 2, COUNT(*) FROM p GROUP BY 2
    SELECT MINS(IF(d < 'x', 1, 2)) FROM p
    WITH RECURSIVE AS r (SELECT 1 AS n) SELECT n FROM r
    INSERT INTO p (id, i) ( VALUES 5, 4)
    INSERT INTO p (id, i) VALUES (nope)
    UPDATE p SET 'x' = 1
    SELECT id FROM p WHERE 1 = 0 AND SUBSTRING('Zoe', 2) = d
    SELECT id FROM p WHERE d BETWEEN 'x' AND '2021-01-01'
    SELECT d NOT IN ('x') FROM p
    SELECT id FROM p WHERE d BETWEEN '1995-01-01' AND '2021-12-31' '1997-12-31'
    SELECT t, COUNT(*) FROM p GROUP BY (t)
    SELECT t FROM p GROUP BY t HAVING COUNT(*) > 20 AND p.i > 1
    SELECT COUNT(*) / (SELECT COUNT(*) posts WHERE i > 5) FROM p
    SELECT id FROM p WHERE t > DATE '1981-12-%'
    SELECT id AS x FROM p WHERE x = 1
    SELECT id AS i FROM p WHERE i = 3
    SELECT id AS x FROM p WHERE (SELECT x) = 1
    SELECT * FROM (SELECT id AS a FROM p WHERE a = 1) q
    SELECT id FROM p WHERE id IN (SELECT id AS a FROM p WHERE a = 1)
    WITH d AS (SELECT id AS a FROM p) SELECT a AS b FROM d WHERE b = 1
    WITH d AS (SELECT id AS a FROM p) SELECT a AS b FROM d WHERE a = 1
    SELECT id AS a, i AS a FROM p ORDER BY a
    SELECT p.id, q.i FROM p JOIN p q ON p.id = q.id ORDER BY id
    SELECT * FROM p JOIN p q ON p.id = q.id ORDER BY id
    SELECT COUNT(*) FROM (SELECT * FROM p JOIN p q ON q.id = p.id) x
    SELECT COUNT(*) FROM (SELECT * FROM p JOIN p q USING (id)) x
    SELECT COUNT(*) FROM (SELECT MAX(i), MAX(i) FROM p) x
    SELECT id AS a FROM p UNION SELECT i FROM p ORDER BY i
    SELECT id FROM p UNION SELECT i FROM p ORDER BY p.id
    SELECT id FROM p LIMIT 1 UNION SELECT 1
    (SELECT id FROM p ORDER BY id DESC LIMIT 1) UNION ALL (SELECT 1 FROM p LIMIT 1)
    (SELECT 'Ann') UNION (SELECT 'ann')
    (SELECT id FROM p ORDER BY id DESC LIMIT 1)
    SELECT id FROM p OFFSET 1
    SELECT id FROM p FETCH FIRST 1 ROWS ONLY
    SELECT id FROM p WHERE t ILIKE 'x'
    SELECT id::text FROM p
    SELECT CAST(t AS INT) FROM p
    SELECT CAST(t AS VARCHAR(3)), CONVERT(t, INT) FROM p
    SELECT CONVERT(t, CHAR), CONVERT(t USING utf8mb4), CONVERT(m, SIGNED) FROM p
    SELECT COUNT(*) FILTER (WHERE id > 1) FROM p
    SELECT DISTINCT ON (t) id FROM p
    SELECT id FROM p ORDER BY i NULLS FIRST
    SELECT id, RANK() FROM p
    SELECT LAG(i, -1) OVER (ORDER BY id) FROM p
    SELECT MAX(id, i) FROM p
    SELECT CONCAT() FROM p
    SELECT [id] FROM p
    SELECT id FROM p WHERE id == 1
    SELECT id FROM p WHERE id IN ()
    SELECT p.id FROM p LEFT JOIN p q
    SELECT d + INTERVAL '1 day' FROM p
    SELECT ADDDATE(d, 1), SUBDATE(d, 1), ADDDATE(d, INTERVAL 1 DAY) FROM p
    SELECT YEAR(20200131), CAST(m AS DECIMAL(10,1)), CAST(m AS DECIMAL) FROM p
    INSERT INTO p (id) VALUES (1) ON CONFLICT DO NOTHING
    INSERT OR REPLACE INTO p (id) VALUES (1)
    INSERT INTO p (id, f) VALUES (9, '1e400')
    UPDATE p SET i = q.i FROM p q WHERE q.id = p.id
    DELETE FROM p WHERE id = 1 RETURNING id
    SELECT id, SUM(i) OVER (ORDER BY id ROWS UNBOUNDEDS PRECEDING) FROM p
    INSERT INTO p (idSUM(id) i) SELECT id, i FROM p
    SELECT p.id FROM p JOIN p q ON q.id = SUM(id) WHERE p.i = (SELECT MIN(i) FROM p)
    SELECT member.id FROM p member WHERE member.id > 1
    SELECT id member FROM p
    SELECT CAST(id AS DECIMAL(101)) FROM p
    SELECT DISTINCT FROM p
    SELECT p.id FROM p JOIN `` ON id = 1
    SELECT NULL + INTERVAL 4 HOUR, IF(id = 1, d, NULL) + INTERVAL 1 DAY FROM p
    SELECT id FROM p WHERE id > 1 AND t NOT NULL
    SELECT AVG(f) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM p
    SELECT CONCAT(d, ' 12:00:00') = d, d IN (CONCAT(d, ' 12:00:00')) FROM p
    SELECT DATE('2020-12-312020-12-31'), DATE('2020-12-31x')
    SELECT '2019-12-31' + INTERVAL 5 HOUR < 3000, DATE_SUB('2019-12-31', INTERVAL 1 DAY) + 0
    SELECT CONCAT(CASE WHEN id = 1 THEN m ELSE 1 END), CAST(IF(id = 1, m, 1) AS CHAR), CONCAT(IFNULL(m, 1)) FROM p
    WITH q AS (SELECT AVG(id * id) AS b FROM p) SELECT b * 1000 FROM q
    SELECT m * -1, 0 * -m FROM p
    SELECT CONCAT(t, 'a') FROM p EXCEPT SELECT 'XA'
    SELECT a.id, c.id FROM p a LEFT JOIN p b ON b.id = a.i AND 2 IN (7, b.i) RIGHT JOIN p c ON c.id = a.i
    SELECT c.id FROM p a JOIN p b ON b.id = a.i AND 7 = 4 RIGHT JOIN p c ON c.id = b.id
    DELETE FROM p WHERE MOD(NULL, id - 1) = 1
    DELETE FROM p WHERE NULL / 0 > 1
    DELETE FROM p WHERE d > 5
    DELETE FROM p WHERE t OR id > 5
    DELETE FROM p WHERE NOT t
    DELETE FROM p WHERE DATE_SUB('2019-12-31', INTERVAL 5 MONTH) < -1
    UPDATE p SET t = IF(t, 'a', 'b')
    UPDATE p SET f = -t
    UPDATE p SET f = ROUND(t, 1)
    UPDATE p SET f = t DIV 2
    UPDATE p SET f = LOG(0)
    UPDATE p SET i = YEAR(t)
    UPDATE p SET i = EXTRACT(YEAR FROM t)
    UPDATE p SET i = DATEDIFF(t, d)
    UPDATE p SET d = t + INTERVAL 1 DAY
    UPDATE p SET d = DATE_ADD('2019-12-31' '2019-12-31', INTERVAL 4 YEAR)
    UPDATE p SET d = DATE_ADD(d, INTERVAL t DAY)
    UPDATE p SET d = CAST(t AS DATE)
    UPDATE p SET d = STR_TO_DATE('x', '%Y-%m-%d')
    UPDATE p SET d = '2020-01-01x'
    INSERT INTO p (id, f) SELECT 7, AVG(t) FROM p
    SELECT id FROM p WHERE i NOT IS NULL
    SELECT id FROM p WHERE id BETWEEN NOT 1 AND 2
    SELECT id, -NOT 1 FROM p
    SELECT id < < 2, 1 << 3 FROM p
    SELECT id << 2, 1 | 2 FROM p
    SELECT DATE_ADD(d, INTERVAL 9999999 YEAR), d - INTERVAL 2021 YEAR FROM p
    UPDATE p SET d = DATE_ADD(d, INTERVAL 9999999 YEAR)
    DELETE FROM p WHERE DATE_ADD(dt, INTERVAL 9999 YEAR) > d
    DELETE FROM p WHERE DATE_ADD('2020-01-01', INTERVAL 9999 YEAR) > d
    WITH RECURSIVE r AS (SELECT 'a' AS s, 1 AS n UNION ALL SELECT CONCAT(s, 'b'), n + 1 FROM r WHERE n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT CAST('a' AS CHAR(3)) AS s, 1 AS n UNION ALL SELECT CONCAT(s, 'b'), n + 1 FROM r WHERE n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT t AS s, 1 AS n FROM p UNION ALL SELECT CONCAT(s, 'b'), n + 1 FROM r WHERE n < 40) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 0.5 FROM r WHERE n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT id AS n FROM p UNION ALL SELECT n * 3000000000 FROM r WHERE n < 2) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1.5 AS n UNION ALL SELECT n * 1.5 FROM r WHERE n < 5) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT 'x' FROM r WHERE n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 2 UNION ALL SELECT n + 2 FROM r WHERE n < 2) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT SUM(n) FROM r WHERE n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT DISTINCT n + 1 FROM r WHERE n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3 ORDER BY n) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT a.n + 1 FROM r a, r b WHERE a.n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT n + 1 FROM r WHERE n < 3 UNION ALL SELECT 1 AS n) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT n FROM r) SELECT * FROM r
    SELECT 9223372036854775807 + id FROM p
    SELECT i * i * i * i * i * i * i * i * i * i * i FROM p
    SELECT COUNT(*) * 9223372036854775807 FROM p
    SELECT f * 1e308 * 1e308 FROM p
    SELECT 1e18 DIV 0.1
    SELECT CAST(1e30 AS SIGNED)
    INSERT INTO p (id, t) VALUES (9, 'x                                  ')
    SELECT ABS(-9223372036854775807 - 1)
    SELECT id FROM p WHERE i < 99999999999999999999 ORDER BY id LIMIT 1, 18446744073709551615
    DELETE FROM p WHERE d BETWEEN '2019-07-15' AND '2020-01-31'
    DELETE FROM p WHERE d IN ('2020-1-1', '2020-02-01')
    WITH q AS (SELECT COUNT(*) AS b FROM p) SELECT b - ROUND(b, 3), b * 2 - FLOOR(b) FROM q
    SELECT id FROM p WHERE '1,429' NOT IN (SELECT 1 FROM p)
    SELECT id FROM p WHERE t IN (SELECT id FROM p UNION SELECT i FROM p)
    SELECT STR_TO_DATE('2019-12-31', '%Y-%m-%d' '%Y-%m-%d'), STR_TO_DATE('2019-12', '%Y-%m-%d'), STR_TO_DATE('10', '%H:%i')
    SELECT a.id, b.f, COUNT(*) FROM p a JOIN p b ON b.id = a.i GROUP BY a.id
    SELECT a.id, b.f, COUNT(*) FROM p a JOIN p b ON b.id = a.i AND 1 = 1 GROUP BY a.id
    SELECT a.id, b.f, COUNT(*) FROM p a, p b WHERE b.id = a.i AND 1 GROUP BY a.id
    SELECT GREATEST('ann','Ann'), GREATEST('Ann','ann'), LEAST('ann','Ann'), LEAST('Ann','ann'), GREATEST('a','A','á'), LEAST('a','A','á')
    SELECT GREATEST('a','b','B'), LEAST('b','a','A'), GREATEST('b','B','a')
    SELECT GREATEST(t, 'X') FROM p
    SELECT m FROM p UNION SELECT m / 3 FROM p
    SELECT m / 3 FROM p UNION SELECT m FROM p
    SELECT m FROM p UNION SELECT SQRT(m) FROM p
    SELECT SQRT(m) FROM p UNION SELECT m FROM p
    SELECT m FROM p UNION ALL SELECT f FROM p
    SELECT i FROM p UNION ALL SELECT m FROM p
    SELECT d FROM p UNION ALL SELECT dt FROM p
    SELECT dt FROM p UNION ALL SELECT d FROM p
    SELECT d FROM p UNION ALL SELECT t FROM p
    SELECT d FROM p UNION ALL SELECT i FROM p
    SELECT m FROM p UNION ALL SELECT t FROM p
    SELECT i FROM p UNION ALL SELECT t FROM p
    SELECT x FROM (SELECT m AS x FROM p UNION SELECT m / 3 FROM p) y
    SELECT x + 1 FROM (SELECT m AS x FROM p UNION SELECT f FROM p) y
    WITH y AS (SELECT m AS x FROM p UNION SELECT SQRT(m) FROM p) SELECT x FROM y
    SELECT (SELECT MAX(m) FROM p), (SELECT m FROM p WHERE id = 1), MAX(m), MIN(m), SUM(m), ANY_VALUE(m) FROM p
    SELECT DATE_SUB(d, INTERVAL 0 DAY), HEX('ann') FROM p EXCEPT SELECT STR_TO_DATE('2020-02-29', '%Y-%m-%d' '%Y-%m-%d'), LEFT('', 4) FROM p
    SELECT * FROM (SELECT id, t FROM p) AS x (a)
    SELECT * FROM (SELECT id, t FROM p) AS x (a, b)
    SELECT * FROM (SELECT id, t FROM p) AS xSUM(id)
    SELECT a FROM (SELECT id, t FROM p) AS x (a, b) WHERE b > 'a'
    SELECT id FROM (SELECT id, t FROM p) AS x (a, b)
    SELECT id FROM p WHERE d > '2020-01' '-01'
    SELECT 'a' 'b', "a" 'b', 'a''b' FROM p
    SELECT id FROM p NATURAL JOIN (SELECT 1 AS id) x
    SELECT * FROM p NATURAL JOIN (SELECT 1 AS id, 5 AS z) x
    SELECT p.id, x.z FROM p JOIN (SELECT 1 AS id, 5 AS z) x USING (id)
    SELECT id FROM p JOIN (SELECT 1 AS id, 5 AS z) x USING (id) WHERE id > 0
    SELECT id FROM p LEFT JOIN (SELECT 1 AS id, 5 AS z) x USING (id) ORDER BY id
    SELECT id FROM p WHERE (id, i) BETWEEN (1, 1) AND (3, 3)
    SELECT t, RANK() OVER (ORDER BY COUNT(*) DESC) r FROM p GROUP BY t HAVING r = 1
    SELECT DATE_FORMAT(dt, '%Y-%m-%d %H:%i:%s'), DATE_FORMAT(d, '%b %e, %Y'), DATE_FORMAT(d, '%W %j %U %u %y') FROM p
    SELECT WEEK(d, 3), WEEK(d, 2), WEEK(d, 0) FROM p
    WITH a AS (SELECT id FROM p), b AS (SELECT MAX(id) AS x FROM a) SELECT * FROM a, b
    WITH a AS (SELECT id FROM p) SELECT * FROM a UNION SELECT * FROM a
    WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a
    WITH a AS (SELECT 1 AS x), a AS (SELECT 2 AS x) SELECT * FROM a
    WITH a (x, y) AS (SELECT id FROM p) SELECT * FROM a
    WITH a (x) AS (SELECT id FROM p) SELECT id FROM a
    SELECT * FROM p a JOIN p b USING (id)
    SELECT * FROM p a LEFT JOIN p b USING (id) WHERE a.i > 3
    SELECT * FROM p NATURAL JOIN p q
    SELECT x.* FROM (SELECT * FROM p a JOIN p b USING (id)) x
    WITH RECURSIVE a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a
    WITH a AS (SELECT 1 AS x) SELECT * FROM (WITH b AS (SELECT * FROM a) SELECT * FROM b) y
    WITH a AS (SELECT 1 AS x) SELECT * FROM a WHERE x IN (WITH a AS (SELECT 2 AS x) SELECT x FROM a)
    SELECT WEEK('2019-12-31'), WEEK('2019-12-31', 1), WEEK('2019-12-31', 2), WEEK('2019-12-31', 3), WEEK('2019-12-31', 4), WEEK('2019-12-31', 5), WEEK('2019-12-31', 6), WEEK('2019-12-31', 7)
    SELECT WEEK('2021-01-02'), WEEK('2021-01-02', 1), WEEK('2021-01-02', 2), WEEK('2021-01-02', 3), WEEK('2021-01-02', 4), WEEK('2021-01-02', 5), WEEK('2021-01-02', 6), WEEK('2021-01-02', 7)
    SELECT WEEK('2000-01-01'), WEEK('2000-01-01', 1), WEEK('2000-01-01', 2), WEEK('2000-01-01', 3), WEEK('2000-01-01', 4), WEEK('2000-01-01', 5), WEEK('2000-01-01', 6), WEEK('2000-01-01', 7)
    SELECT DATE_FORMAT('2021-01-02', '%U %u %V %v %X %x'), DATE_FORMAT('2018-12-31', '%U %u %V %v %X %x'), DATE_FORMAT('2020-12-28', '%U %u %V %v %X %x')
    SELECT STR_TO_DATE('2020-02', '%Y-%m'), STR_TO_DATE('02-30', '%m-%d'), STR_TO_DATE('10:11', '%H:%i'), STR_TO_DATE('2020-02-30', '%Y-%m-%d')
    SELECT DATE '2016-06-23 10:00:00' FROM p
    SELECT TIMESTAMP '2016-06-23' FROM p
    SELECT id FROM p WHERE nope = 77 AND d > DATE '2016-06-x'
    SELECT id FROM nope WHERE d > DATE '2016-06-x'
    SELECT d <=> 'x' FROM p
    SELECT NULLIF(d, i), NULLIF(t, '2020-01-01'), NULLIF(d, '2020-01-01') FROM p
    SELECT NULLIF(d, 'x') FROM p
    SELECT LOG10(d), RADIANS(d), STDDEV(d), HEX(-1), HEX(m), HEX(d) FROM p
    SELECT t REGEXP '' FROM p
    SELECT NULL REGEXP '' FROM p
    SELECT DATE_FORMAT(d, m), LEAD(d, 1, 'none') OVER (ORDER BY id) FROM p
    SELECT id FROM p WHERE id IN (SELECT id FROM p q WHERE SUM(nope) > 1)
    SELECT COUNT(*) - 5, COUNT(*) OVER () FROM p
    DELETE FROM p WHERE i DIV '2020-01-01'
    DELETE FROM p WHERE '' DIV i
    SELECT HOUR(dt), HOUR('5:6'), MINUTE('99:61:00'), HOUR('x'), HOUR('2020-01-01x'), TIME('10:11') FROM p
    SELECT YEAR('2021-07-152021-07-15'), DAY('2021-07-15 10:11:1213') FROM p
    SELECT YEAR(d) - 9999 FROM p
    SELECT 5 - YEAR(d) FROM p
    SELECT 5 - YEAR(d) FROM p WHERE d IS NULL
    SELECT -1 * YEAR(d) FROM p
    SELECT YEAR(d) - YEAR(dt), YEAR('2021-01-01') - YEAR(d) FROM p
    SELECT YEAR(d) - id * 1.5, YEAR(d) / -1, -YEAR(d), YEAR(d) - '5', YEAR(d) + 0.5 FROM p
    SELECT IFNULL(YEAR(d), 1) - 9999 FROM p
    SELECT COALESCE(YEAR(d), YEAR(dt)) - 9999 FROM p
    SELECT y - 9999 FROM (SELECT YEAR(d) AS y FROM p) x
    SELECT y - 9999 FROM (SELECT YEAR(d) AS y FROM p UNION SELECT 1) x
    SELECT MAX(YEAR(d)) - 9999 FROM p
    SELECT SUM(YEAR(d)) - 9999999, AVG(YEAR(d)) - 99999 FROM p
    SELECT id - ROW_NUMBER() OVER (ORDER BY id) FROM p
    SELECT id - 5 - ROW_NUMBER() OVER (ORDER BY id) FROM p
    SELECT id - RANK() OVER (ORDER BY t) - 1 FROM p
    SELECT LAG(YEAR(d)) OVER (ORDER BY id) - 99999 FROM p
    SELECT CAST(3 AS UNSIGNED) - 5
    SELECT CAST(YEAR(d) AS SIGNED) - 9999 FROM p
    SELECT -7 DIV YEAR(d) FROM p
    SELECT -7 DIV YEAR(d) FROM p WHERE d IS NULL
    SELECT -9999 DIV YEAR(d) FROM p
    SELECT -9999 % YEAR(d), MOD(-9999, YEAR(d)) FROM p
    SELECT YEAR(d) AS y FROM p HAVING y - 99999 < 1
    SELECT id FROM p ORDER BY YEAR(d) - 9999
    SELECT FLOOR(YEAR(d)) - 9999 FROM p
    SELECT ROUND(YEAR(d)) - 9999 FROM p
    SELECT ABS(YEAR(d) - 2025) FROM p
    SELECT EXTRACT(YEAR FROM d) - 9999, MONTH(d) - 50, TIMESTAMPDIFF(YEAR, d, dt) - 5 FROM p
    SELECT YEAR(d) - d FROM p
    SELECT COUNT(*) - 5, COUNT(*) OVER () - 9 FROM p
    SELECT id, (SELECT MAX(p.i + q.id) FROM p q) FROM p
    SELECT id FROM p WHERE LAST_DAY(d) = CONCAT_WS(', ', '', 'Bob')
    UPDATE p SET i = 5 - YEAR(d)
    DELETE FROM p WHERE 5 - YEAR(d) > 0
    SELECT COALESCE(d), COALESCE('a' 'b') FROM p
    SELECT GREATEST(1) FROM p
    SELECT ELT(1) FROM p
    SELECT FIELD(1) FROM p
    SELECT CONCAT_WS('a') FROM p
    SELECT LPAD('a', 2) FROM p
    SELECT ANY_VALUE(id, t) FROM p
    SELECT ROUND(7) AS k0, MAX(2) FROM p GROUP BY ROUND()
    SELECT DATE_ADD(DATE_FORMAT(d, '%Y-%m-01'), INTERVAL 1 MONTH) FROM p
    DELETE FROM p WHERE CASE f WHEN 5 THEN id END = CAST('apple pie' AS SIGNED)
    DELETE FROM p WHERE NULL > 'x' + 1
    DELETE FROM p WHERE 'x' + 1 > NULL
    DELETE FROM p WHERE NULL BETWEEN 'x' + 1 AND 2
    DELETE FROM p WHERE NULL NOT LIKE CONCAT('x' + 1) ESCAPE '|'
    DELETE FROM p WHERE CONCAT(NULL, 'x' + 1)
    DELETE FROM p WHERE NULL DIV ('x' + 1)
    DELETE FROM p WHERE DATE_ADD(NULL, INTERVAL 'x' DAY)
    UPDATE p SET f = i DIV (t + 0)
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 1000) SELECT COUNT(*), MAX(n) FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r LIMIT 10) SELECT r.* FROM r
    WITH RECURSIVE r (a, b) AS (SELECT 1, 2 UNION ALL (SELECT a + 1, b FROM r WHERE a < 3)) SELECT * FROM r JOIN r q ON q.a = r.a
    WITH RECURSIVE s AS (SELECT 2 AS k), r AS (SELECT k AS n FROM s UNION ALL SELECT x.n + 1 FROM r x WHERE x.n < 5) SELECT * FROM r
    SELECT id FROM p WHERE d = 'x' OR nope = 1
    SELECT d = 'x', nope FROM p
    SELECT id FROM p WHERE d = 'x' ORDER BY nope
    SELECT p.id FROM p JOIN p q ON nope = 1 WHERE p.d = 'x'
    DELETE FROM p WHERE CASE WHEN id > 0 THEN 0 WHEN m <> 'x' THEN 1 END
    UPDATE p SET i = 1 WHERE id < 0 AND i = 'x'
    UPDATE p SET i = 1 WHERE IF(id > 0, 1, f = -'x')
    DELETE FROM p WHERE m = ''
    DELETE FROM p WHERE i = ''
    DELETE FROM p WHERE id < 0 AND i + 1 = 'x'
    INSERT INTO p (id, i) SELECT id + 9, m FROM p WHERE id < 0 GROUP BY id, m HAVING m = 'x'
    UPDATE p SET i = 1 WHERE i = 'nan'
    UPDATE p SET i = 1 WHERE i IN ('3', '5') OR m BETWEEN '1' AND '5'
    UPDATE p SET i = 1 WHERE i = '3' AND 1 = 1
    SELECT (SELECT YEAR(p.d)) FROM p GROUP BY YEAR(p.d)
    SELECT (SELECT YEAR(d) FROM DUAL) AS y, COUNT(*) FROM p GROUP BY y ORDER BY (SELECT YEAR(d))
    SELECT (SELECT YEAR(p.d)) + 1 FROM p GROUP BY YEAR(p.d)
    SELECT YEAR(p.d) FROM p GROUP BY (SELECT YEAR(p.d))
    SELECT (10 % p.i) AS k, MAX(id) FROM p GROUP BY k
    SELECT MAX(id) AS m FROM p HAVING m > 1
    SELECT t, MAX(i) AS i FROM p GROUP BY t HAVING i > 3
    SELECT i + 1 AS i, COUNT(*) FROM p GROUP BY id HAVING i > 3
    SELECT EXTRACT(YEAR_MONTH FROM d), EXTRACT(WEEK FROM dt) FROM p
    SELECT id FROM p WHERE (i + 0, id) = ('3', 1) OR (d, id) = ('2020-2-29', 2) OR (dt, id) IN (('2020-01-01', 1))
    SELECT id FROM p WHERE t BETWEEN '2020' AND 3000
    SELECT AVG(COUNT(id)) FROM p WHERE YEARS(d) = 2010
    SELECT `a b `(i) FROM p
    SELECT DAY_OF(d), CAST_SIGNED('5') FROM p
    INSERT INTO p (id, i) VALUES (8, (SELECT COUNT(*) FROM information_schema.tables WHERE table_name = 'nope')), (9, 1 + (SELECT 2))
    INSERT INTO p (id, i) VALUES (8, (SELECT MAX(id) FROM p))
    INSERT INTO p (id, i) VALUES (8, (SELECT MAX(x.id) FROM (SELECT id FROM p) x))
    INSERT INTO p (id, i) VALUES (1, 1) ON DUPLICATE KEY UPDATE i = (SELECT MAX(i) FROM p)
    UPDATE p SET i = 1 WHERE id <= (SELECT MAX(id) FROM p) ORDER BY nope LIMIT 2
    SELECT COUNT(*) FROM p WHERE i = 3 AND id = (SELECT q.id FROM p q WHERE q.id = 1)
    SELECT id FROM p WHERE MONTH(MIN(d)) = (SELECT MONTHMIN(d) FROM p)
    SELECT id FROM p WHERE d = 'x' UNION SELECT nope FROM p
    SELECT p.x.none (i) FROM p
    DELETE FROM p WHERE FIELD('10', 'Pear') >= DATE_ADD('2019-12-31', INTERVAL -1 WEEK)
    UPDATE p SET i = 1 WHERE i / id > 0.5 AND t IS NOT NULL
    UPDATE p SET i = i + 1, f = i
    UPDATE p SET i = NULL, f = IFNULL(i, 7), t = CONCAT(id, f)
    INSERT INTO p (id, i) VALUES (1, 7) ON DUPLICATE KEY UPDATE i = VALUES(i) + 1, f = VALUES(i) + i
    UPDATE p JOIN (SELECT 1 AS id, 5 AS n) q ON q.id = p.id SET p.i = q.n, p.f = p.i
    SELECT id FROM (p) WHERE dt = '2020-1-1'
    UPDATE p JOIN p q ON q.id = p.id SET p.i = 1 WHERE (q.i = 1 || q.i = 'x')
    SELECT id FROM p WHERE YEAR(d) = '2020'
    SELECT id & 3, id | 4 FROM p
    INSERT IGNORE INTO p (id, i) VALUES (9, '7'), (10, 2.5), (1, NULL)
    (SELECT id AS n, d AS s FROM p ORDER BY id LIMIT 2) UNION (SELECT id, i FROM p ORDER BY id LIMIT 2) ORDER BY n, s
    UPDATE p SET i = 1 WHERE (d) != 10
    SELECT id FROM p WHERE (d) BETWEEN ('2020-1-1') AND (('2020-03-01'))
    SELECT id FROM p WHERE id IN ((SELECT i FROM p))
    SELECT id FROM p WHERE (d = 'x') IS NOT TRUE
    SELECT FIELD(d, '2020-1-1', 'x'), FIELD(d, '2020-01-01'), FIELD('2020-1-1', d), FIELD(d, dt), FIELD(d, t) FROM p
    SELECT LEFT(IF(id = 1, 'B', IF(id = 2, 'a', 'c')), 1) AS k, COUNT(*) FROM p GROUP BY 1 ORDER BY 1
    SELECT LEFT(IF(id = 1, 'B', IF(id = 2, 'b', 'c')), 1) AS k, COUNT(*) FROM p GROUP BY 1
    SELECT LEFT(IF(id = 1, 'B', 'a'), 1) AS k FROM p ORDER BY 1
    SELECT CAST('2020-01-01' AS DATETIME) = 20200101, DATE '2020-01-01' = 20200101000000, TIMESTAMP(d) > 20200101 FROM p
    SELECT NULLIF(TIMESTAMP(d), 20200101), d = 20200101000000, dt = 20200101 FROM p
    SELECT t = DATE '2020-01-01', CONCAT(d, ' 12:00:00') = DATE '2020-01-01' FROM p
    SELECT id FROM p UNION SELECT i FROM p UNION SELECT t FROM p
    SELECT MAX(x) FROM (SELECT 1 AS x UNION SELECT 'B' UNION SELECT 'a') y
    SELECT IF(id > 1, id, m) FROM p UNION ALL SELECT t FROM p
    SELECT LEAD(i, id) OVER (ORDER BY id) FROM p
    SELECT (t + 0) / 3, SUM(t) / 7 FROM p GROUP BY id, t
    DELETE FROM p ORDER BY (1), id LIMIT 1
    SELECT FIELD(DATE '2020-01-01', '2020-1-1', 'x'), DATE '2020-01-01' IN ('2020-1-1', 'x')
    SELECT -4 AS c FROM p ORDER BY --4
    SELECT id FROM p ORDER BY - -2 DESC
    SELECT id FROM p ORDER BY -(-9)
    SELECT id FROM p ORDER BY (2)
    SELECT id FROM p ORDER BY (1) DESC
    SELECT id, COUNT(*) FROM p GROUP BY (1)
    SELECT MAX(id) FROM p GROUP BY - -9
    SELECT MAX(id) FROM p GROUP BY -1
    SELECT id, COUNT(*) FROM p GROUP BY - -1
    SELECT SUM(id) OVER (ORDER BY (9)) FROM p
    SELECT SUM(id) OVER (PARTITION BY 1) FROM p
    SELECT SUM(id) OVER (ORDER BY 1.5) FROM p
    SELECT GROUP_CONCAT(id ORDER BY (1) DESC) FROM p
    SELECT GROUP_CONCAT(id ORDER BY (9) DESC) FROM p
    UPDATE p SET t = 'a' ORDER BY - -9 LIMIT 0
    SELECT GROUP_CONCAT(IF(id = 1, m, 1)) FROM p
    SELECT id FROM (SELECT id FROM p WHERE id > 99) x WHERE NOT (SELECT id FROM p)
    SELECT p.id FROM p JOIN p q ON (SELECT id FROM p)
    SELECT p.id FROM p LEFT JOIN p q ON NOT (SELECT id FROM p)
    SELECT id FROM p WHERE NOT (SELECT id FROM p)
    SELECT id FROM p WHERE NOT (SELECT i FROM p UNION SELECT 1)
    SELECT CONCAT(1e-5), CONCAT(1e15), CONCAT(f * 1e20), CAST(f / 1e9 AS CHAR) FROM p
    SELECT CONCAT(-t), CONCAT(-m), CONCAT(-(f * 0)), CONCAT(0 * -1.5e0), CONCAT(0 * -1.5), CONCAT(i * 0 * -1) FROM p
    SELECT CONCAT(ROUND(-0.4e0)), CONCAT(CEIL(-0.4e0)), CONCAT(FLOOR(0.4e0)), CONCAT(TRUNCATE(-0.4e0, 0)), CONCAT(CEIL(-0.4)) FROM p
    SELECT CONCAT(TRUNCATE(-f, -9)), CONCAT(TRUNCATE(-m, -9)), CONCAT(ROUND(-i, -9)), CONCAT(ROUND(t, 1)) FROM p
    UPDATE p SET f = TRUNCATE(-f, -9)
    SELECT a.id, b.id, c.id FROM p a JOIN p b RIGHT JOIN p c ON c.id = a.id
    SELECT a.id, b.id, c.id FROM p a JOIN p b LEFT JOIN p c ON c.id = a.id + 1 AND b.id = 1
    SELECT a.id, b.id, c.id FROM p a, p b RIGHT JOIN p c ON c.id = a.id
    SELECT id FROM p WHERE DATE('2021-07-15') NOT IN (LAST_DAY('2020-02-29'), STR_TO_DATE('2019-12-31', '%Y-%m-%d'))
    SELECT -3 AS k, AVG(DISTINCT 3), COUNT(*) FROM p GROUP BY -3
    SELECT AVG(DISTINCT d), SUM(DISTINCT (d)), SUM(DISTINCT (m)), COUNT(DISTINCT (d)) FROM p
    SELECT id FROM p WHERE id > (SELECT i FROM p)
    SELECT FORMAT(-0.4e0, 0), FORMAT(-0.4, 0), FORMAT(-'0.4', 0), FORMAT(-f, 0), FORMAT(-m, 0) FROM p
    UPDATE p SET t = m * -4 WHERE m <> 0
    SELECT POWER(3, id), EXP(id) > 1, POW(2, i) FROM p
    SELECT POWER(3, 1000)
    SELECT MOD(1, 0.1), 1 MOD 0.1, 5.5 % 0.1, MOD(-5.5, 0.3), MOD(m, 0.1), MOD(id, m), MOD(12345678901234567, 10), MOD(-7, 3) FROM p
    UPDATE p SET t = IF(id > 1, id, m)
    UPDATE p SET t = CASE WHEN id > 2 THEN m ELSE id END
    SELECT m * 3 FROM p UNION SELECT t FROM p
    SELECT -'9007199254740993', CONCAT(-'9007199254740993'), -t, COUNT(*) FROM p GROUP BY t
"""
TWO_MISTAKES = """
    SELECT CONVERT(t USING nope) FROM nope
    SELECT p.id FROM p JOIN p q ON q.nope = SUM(id)
    SELECT nope FROM p WHERE SUM(id) > 1
    DELETE FROM p WHERE EXISTS (SELECT 1 FROM p q WHERE q.id = nope)
    SELECT t, MAX(id) FROM p GROUP BY 0
    SELECT (SELECT COUNT(*) FROM p WHERE i = 1 AND SUM(nope) = 'x') FROM p
    SELECT id FROM p WHERE LAST_DAY(d4s) = CONCAT_WS(', ', '', 'Bob')
    SELECT nope FROM p WHERE d = 'x'
    SELECT id FROM p WHERE nope = 1 AND d = 'x'
    DELETE FROM p WHERE m = 'x' AND nope = 1
    SELECT (SELECT SUM(i) FROM p WHERE id IN (SELECT id FROM p WHERE SUM(nope) = 'x'))
    DELETE FROM p WHERE id IN (SELECT t FROM p)
"""

NOT_SUPPORTED = """
    SELECT CHAR(65, NULL, 256 USING utf8mb4), CHAR(233 USING utf8mb4) FROM p
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 1001) SELECT COUNT(*), MAX(n) FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT * FROM r LIMIT 3
    SELECT CHAR(65 USING nope)
    SELECT CHAR('65' USING utf8mb4), CHAR(0xC3A9 USING utf8mb4), CHAR(0xD83D USING utf8mb4), CHAR(X'41' USING utf8)
    SELECT HEX(0x41), X'41'
    SELECT _utf8mb4'a', _utf8'b'
    UPDATE p SET i = EXTRACT(YEAR FROM 1)
    SELECT EXTRACT(MONTH FROM i) FROM p
    DELETE FROM p WHERE i = 1.5 AND m = 'x'
    DELETE FROM p WHERE id IS NOT NULL OR i = 'x'
    DELETE FROM p WHERE id IN ('x', 5)
    DELETE FROM p WHERE id BETWEEN 'x' AND 5
    DELETE FROM p WHERE i = (SELECT 'x')
    DELETE FROM p WHERE id = (SELECT MAX(id / 0) FROM (SELECT 1 AS id) q)
    DELETE FROM p WHERE MOD(1, 0) = id
    DELETE FROM p WHERE i / id > 1 LIMIT 1
    DELETE FROM p WHERE m = 'x' LIMIT 0
    DELETE FROM p ORDER BY m = 'x'
    DELETE FROM p WHERE GREATEST(i, t) > 5
    DELETE FROM p WHERE COALESCE(dt, '2020-02-29') != DATE(dt)
    UPDATE p SET i = 1 WHERE COALESCE(d, '2019-12-31') >= i
    SELECT COUNT(*) FROM p GROUP BY YEAR(p.d) HAVING (SELECT YEAR(p.d)) > 1
    SELECT i + 1 AS i, COUNT(*) FROM p GROUP BY i HAVING i > 3
    SELECT EXTRACT(DAY_HOUR FROM dt) FROM p
    SELECT id FROM p WHERE i + 0 = '3' COLLATE utf8mb4_bin
    SELECT id FROM p WHERE d BETWEEN 1 AND '2020-12-31'
    SELECT INTERVAL(5, 1, 10)
    DELETE FROM p WHERE COALESCE('2019-12-31', '2020-01-01') <> 3
    SELECT m & 3 FROM p
    SELECT -4 | 1
    UPDATE p SET i = IF(DATEDIFF('2021-07-15', i) > 30, 1, 2)
    INSERT IGNORE INTO p (id, d) VALUES (9, 1 + 2)
    SELECT p.id, p.m + 1 AS id FROM p ORDER BY id
    SELECT p.* FROM p RIGHT JOIN (SELECT 9 AS id) q USING (id)
    SELECT f FROM p UNION ALL SELECT id FROM p UNION ALL SELECT t FROM p
    SELECT CAST(id AS YEAR) FROM p
    SELECT id FROM p WHERE YEAR(d) >= STR_TO_DATE('2020-02-29', '%Y-%m-%d')
    SELECT id FROM p WHERE d < SOME (SELECT t FROM p)
    UPDATE p SET i = 5, i = 6
    DELETE FROM a USING p a JOIN p b ON b.id = a.i
    SELECT COUNT(*) FROM p WHERE id = 77 AND i = (SELECT id FROM p)
    SELECT YEAR(CURRENT_TIMESTAMP) - d FROM p ORDER BY d LIMIT 1
    DELETE IGNORE FROM p WHERE id = 1
    VALUES ROW(1, 2), ROW(3, 4)
    SELECT id FROM p WHERE ROW(id, t) = ROW(1, 'x')
    SELECT UTC_DATE()
    SELECT VALUES(id) FROM p
    SELECT id FROM p FORCE INDEX (PRIMARY)
    DELETE QUICK FROM p WHERE id = 1
    CREATE VIEW v (a) AS SELECT id FROM p WITH CHECK OPTION
    SELECT DATE_SUB(d, INTERVAL 2020 YEAR) FROM p
    SELECT CAST('99999999999999999999' AS SIGNED)
    SELECT 9223372036854775808 + 1
    SELECT 9223372036854775808
    SELECT CONCAT(99999999999999999999), id FROM p
    DELETE FROM p WHERE d BETWEEN '2021-07-152021-07-15' AND d AND 'ann' = t
    UPDATE p SET i = 1 WHERE 'a_b' + 0 IS NULL
    UPDATE p SET i = 1 WHERE t <> d OR '50%' REGEXP '[0-9]+'
    SELECT p.id FROM p LEFT JOIN p q ON q.id = p.i WHERE FIELD(q.t, 'x') < 1
    SELECT id FROM p WHERE '2019-12-31 23:59:59' IN (DATE_SUB('2021-07-15', INTERVAL 6 YEAR), DATE('2019-12-31'))
    SELECT id FROM p WHERE d IN (SELECT dt FROM p)
    DELETE FROM p WHERE NULL IN ('x' + 1, 2)
    INSERT INTO p (p.id, i) VALUES (6, -4)
    SELECT a.id, b.f, COUNT(*) FROM p a JOIN p b ON b.id = a.i AND 'Pear' REGEXP '[0-9]+' GROUP BY a.id
    SELECT a.id, b.f, COUNT(*) FROM p a JOIN p b ON b.id = a.i WHERE 1 = 0 GROUP BY a.id
    SELECT t, f, COUNT(*) FROM p WHERE f = 1 AND 1 = 0 GROUP BY t
    SELECT a.id, b.f, COUNT(*) FROM p a LEFT JOIN p b ON b.id = a.i AND 1 = 0 GROUP BY a.id
    SELECT * FROM p a JOIN p b USING (id, i)
    SELECT * FROM p RIGHT JOIN (SELECT 9 AS id, 5 AS z) x USING (id)
    SELECT id FROM p UNION SELECT i FROM p ORDER BY id + 1
    SELECT DATE '2016-06-23%' FROM p
    SELECT LEFT(t, m) FROM p
    SELECT GREATEST(d, i) FROM p
    SELECT STRCMP(d, '12') FROM p
    SELECT FROM_DAYS(i) FROM p
    SELECT UNIX_TIMESTAMP(t) FROM p
    SELECT TIME(t) FROM p
    SELECT d + INTERVAL 1.5 SECOND FROM p
    INSERT INTO p (id, i) VALUES (9, DEFAULT)
    SELECT EXTRACT(HOUR FROM '2021-07-15' '2021-07-15') FROM p
    SELECT HOUR(101112) FROM p
    SELECT id FROM p WHERE id = (SELECT q.id FROM p q GROUP BY q.id ORDER BY MAX(p.i) DESC LIMIT 1)
    SELECT CHAR(65) FROM p
    SELECT DATE_ADD(IF(id < 2, d, '2020-01-01'), INTERVAL 10 WEEK) FROM p
    DELETE FROM p WHERE NULL <=> ('x' + 1)
    DELETE FROM p WHERE ELT(1, 2, 'x' + 1)
    DELETE FROM p WHERE CASE NULL WHEN 'x' + 1 THEN 1 END
    DELETE FROM p WHERE DATE_ADD(i, INTERVAL 1 DAY) > d
    WITH RECURSIVE r AS (SELECT NULL AS s, 1 AS n UNION ALL SELECT CONCAT(n, 'b'), n + 1 FROM r WHERE n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT '1' AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r
    WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT r.n + 1 FROM p LEFT JOIN r ON r.n = p.id WHERE r.n < 3) SELECT * FROM r
    SELECT CAST(-1 AS UNSIGNED)
    SELECT TIME_TO_SEC('01:00:00')
    SELECT GREATEST(d, t) FROM p
    SELECT id FROM p WHERE id = (SELECT MAX(p.id) FROM p q)
    SELECT * FROM p a JOIN p b ON b.id = a.i AND 7 = 4 RIGHT JOIN p c ON c.id = b.id
    SELECT DISTINCT DISTINCT id FROM p
    SELECT UPPER(NULL) REGEXP 'a' FROM p
    SELECT IF(id, t, 'a') <> d FROM p
    SELECT t, SUM((SELECT AVG(id) FROM p)) FROM p GROUP BY t
    SELECT d IN (CONCAT('2020-01-01', ''), d), '2020-02-29' + INTERVAL 7 HOUR IN (d, '2020-01-01') FROM p
    SELECT (id, 1) FROM p
    SELECT YEAR(i) FROM p
    SELECT CAST(1234.5 AS DECIMAL(5,2))
    SELECT p.id FROM p FULL JOIN p q ON q.id = p.id
    SELECT id FROM p QUALIFY ROW_NUMBER() OVER (ORDER BY id) = 1
    SELECT SUM(i) OVER (ORDER BY id GROUPS 1 PRECEDING) FROM p
    SELECT SUM(DISTINCT i) OVER (ORDER BY id) FROM p
    SELECT id FROM p WHERE id > 1 AND i = (SELECT q.i FROM p q WHERE q.id > p.id)
    SELECT (SELECT MAX(i) FROM p WHERE 1 = 0) - (SELECT id FROM p)
    SELECT FIELD(d, 20200101, 5) FROM p
    SELECT dt IN (20200101, 5) FROM p
    SELECT CASE '2020-1-1' WHEN DATE '2020-01-01' THEN 2 ELSE 3 END
    SELECT t BETWEEN DATE '2019-01-01' AND DATE '2021-01-01' FROM p
    SELECT COALESCE(i, m) FROM p UNION ALL SELECT t FROM p
    SELECT d FROM p UNION SELECT dt FROM p UNION SELECT t FROM p
    SELECT CONCAT(x) FROM (SELECT IF(id > 1, id, m) AS x FROM p) y
    SELECT CHAR('65.6' USING utf8mb4)
    SELECT CHAR(0xD83D USING ucs2)
    SELECT CONVERT(t USING latin1) FROM p
    SELECT CAST(t AS CHAR(3) CHARACTER SET ascii) FROM p
    SELECT _latin1'a'
    SELECT CHAR(65.6 USING utf8mb4)
    SELECT id FROM p WHERE id = 0x1
    SELECT 0x41 + 0
    SELECT b'1'
    SELECT GROUP_CONCAT(id ORDER BY 'x') FROM p
    DELETE FROM p WHERE CAST(t AS DATE) > DATE(t)
    UPDATE p SET id = 1 WHERE DATE(t) <> DATE(t)
    DELETE FROM p WHERE NOT (DATE(t) >= DATE(t))
    SELECT id FROM p WHERE DATE('2021-07-15 08:05:00') NOT IN (LAST_DAY('2020-02-29'), LAST_DAY('2019-12-31'))
    DELETE FROM p WHERE 'x' IN (SELECT q.id FROM (SELECT 1 AS id) q WHERE q.id > 5)
    SELECT p.id FROM p LEFT JOIN p q ON q.id = p.i WHERE ELT(1, 'a', q.t) = 'a'
    SELECT id FROM p WHERE 738351 <= IF(id > 1, d, '2020-01-01')
    SELECT 1 + CASE WHEN id > 1 THEN d ELSE t END FROM p
    SELECT SUM(IF(id > 1, d, t)) FROM p
    SELECT (SELECT AVG(id) FROM p) UNION SELECT t FROM p
    SELECT id FROM p WHERE INSTR(t, NULL) > (SELECT id FROM p)
    DELETE FROM p WHERE NULL > (SELECT 1 UNION SELECT 2)
    UPDATE p SET t = m - m
    SELECT CASE id WHEN 100 THEN 3 END = POWER(3, 1000) FROM p
    DELETE FROM p WHERE d != 0 AND id <=> 99
    UPDATE p SET t = COALESCE(m, 3)
    UPDATE p SET t = IF(id > 1, m * 2, 7)
    SELECT m - m FROM p UNION SELECT t FROM p
    DELETE FROM p WHERE id != t AND t = '2019-12-31'
    DELETE FROM p WHERE (NULL BETWEEN 'a' AND 'b' XOR 1 < 'x')
    SELECT id FROM p WHERE MOD(id, 0) >= (SELECT id FROM p)
    SELECT id FROM p WHERE d <> NULLIF(t, 'a')
    SELECT id FROM p WHERE d = ELT(1, t)
    SELECT id FROM p WHERE dt > LEAST(t, 'a')
    SELECT id FROM p WHERE ELT(4, NULL, NULL) NOT REGEXP '^a'
    SELECT 0 * -1.5e0 UNION SELECT 0e0
    SELECT id FROM p EXCEPT SELECT -0e0
    DELETE FROM p WHERE d > TO_DAYS('2019-12-31')
    INSERT INTO p (id, i) VALUES (7, id)
    UPDATE p SET t = LEFT('abc', t)
    UPDATE p SET i = YEAR(20201301)
"""


DATA = Path(__file__).parents[3] / "shared" / "data" / "scorers" / "mysql_statements.jsonl"


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def verdict(embedded: Database, mysql: Database, sql: str, *tables: Table) -> tuple[str, str]:
    task = Task("parity", "?", tables or (P,), "SELECT", Gold())
    with embedded.sandbox(task) as ours, mysql.sandbox(task) as theirs:
        found, said, _ = one(ours, theirs, sql)
    return found, said


@pytest.mark.parametrize("sql", lines(SAME))
def test_the_same_rows_tables_and_kinds_of_errors(
    sqlite_database: Database, mysql: Database, sql: str
) -> None:
    found, said = verdict(sqlite_database, mysql, sql)
    assert found == "same", said


@pytest.mark.parametrize("sql", lines(NOT_SUPPORTED))
def test_what_it_cannot_answer_it_refuses(sqlite_database: Database, mysql: Database, sql: str) -> None:
    found, said = verdict(sqlite_database, mysql, sql)
    assert found == "not supported", said


@pytest.mark.parametrize("sql", lines(TWO_MISTAKES))
def test_of_two_mistakes_either_is_told(sqlite_database: Database, mysql: Database, sql: str) -> None:
    found, said = verdict(sqlite_database, mysql, sql)
    assert found in ("same", "other error"), said


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_statements(sqlite_database: Database, mysql: Database, seed: int) -> None:
    """See `benchmarks/parity.py` for the shares of many more."""
    rng = random.Random(seed)
    world = tables(rng)
    writer = Writer(rng, world)
    statements = [writer.statement() for _ in range(100)]
    wrong = [each for each in play(mysql, sqlite_database, world, statements) if each[1] in WRONG]
    assert len(wrong) <= 3, wrong


@pytest.mark.slow
def test_what_models_wrote_over_tables_made_to_fit(sqlite_database: Database, mysql: Database) -> None:
    if not DATA.exists():
        lacking("data", f"no {DATA.name} beside the checkout")
    written = map(json.loads, DATA.read_text().splitlines())
    statements = [each["sql"] for each in written if each["db_id"] == "toxicology"]
    world = fitted(statements, random.Random("toxicology"))
    assert {each.name for each in world} >= {"atom", "bond", "connected", "molecule"}
    counted = Counter(found for _, found, _ in play(mysql, sqlite_database, world, statements))
    assert counted.keys() <= {"same", "other error"}  # of a statement with two mistakes
    assert counted.total() == 178


# --- the comparison itself ------------------------------------------------------------------------------------


def rows(*given: tuple) -> QueryResult:
    return QueryResult(list(given))


def test_the_order_counts_where_a_statement_sorts() -> None:
    assert same_rows(rows((1,), (2,)), rows((2,), (1,)), "SELECT i FROM p")
    assert not same_rows(rows((1,), (2,)), rows((2,), (1,)), "SELECT i FROM p ORDER BY i")
    assert not same_rows(rows(("1",)), rows((1,)), "SELECT i FROM p")
    assert not same_rows(rows(), rows((1,)), "SELECT i FROM p")
    assert not same_rows(rows((1,), (2,)), rows((1,)), "SELECT i FROM p")
    assert not same_rows(rows(("a",)), rows(("A",)), "SELECT t FROM p")
    assert same_rows(rows(("a",)), rows(("A",)), "SELECT DISTINCT t FROM p")


def test_ties_are_open_and_nothing_else_is(mysql: Database) -> None:
    sql = "SELECT t FROM p ORDER BY id > 1 LIMIT 2"
    task = Task("parity", "?", (P,), "SELECT", Gold())
    with mysql.sandbox(task) as theirs:
        wanted = theirs.execute(sql)
        assert is_open(theirs, rows(("2020-01-01",), ("x",)), wanted, sql)
        assert is_open(theirs, rows(("2020-01-01",), ("2020-1-2",)), wanted, sql)
        assert not is_open(theirs, rows(("x",), ("2020-01-01",)), wanted, sql)
        assert not is_open(theirs, rows(("2020-01-01",), ("y",)), wanted, sql)
        assert not is_open(theirs, rows(("2020-01-01",)), wanted, sql)


def test_kinds_of_errors() -> None:
    assert error_class(1054) == error_class(1146) == "a name"
    assert error_class(1062) == "1062"
    assert error_class(1064) != error_class(1054)
