"""Dumps as servers and other programs write them: partitions, versions, comments in rows, UTF-16, gzip."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from trl_dbbench.data.generate.imported import import_from
from trl_dbbench.database import Database
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Gold, Source, Task

PARTITIONS = """CREATE TABLE `m` (`id` int NOT NULL, `y` int NOT NULL, PRIMARY KEY (`id`,`y`)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4
/*!50100 PARTITION BY RANGE (`y`)
(PARTITION p0 VALUES LESS THAN (2020) ENGINE = InnoDB, PARTITION p1 VALUES LESS THAN MAXVALUE ENGINE = InnoDB) */;
INSERT INTO `m` VALUES (1,2019),(2,2024);
CREATE TABLE `l` (`k` varchar(3) NOT NULL) ENGINE=InnoDB
 PARTITION BY LIST  COLUMNS(`k`)
(PARTITION `a` VALUES IN ('x','y') ENGINE = InnoDB);
INSERT INTO `l` VALUES ('x');
"""

VERSIONED = """CREATE TABLE `t` (`a` int(11) DEFAULT NULL, `b` int) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 WITH SYSTEM VERSIONING;
INSERT INTO `t` VALUES (1,2);
CREATE TABLE `u` (`a` int(11) WITHOUT SYSTEM VERSIONING, `from` timestamp(6) GENERATED ALWAYS AS ROW START,
  `to` timestamp(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (`from`, `to`)) WITH SYSTEM VERSIONING;
INSERT INTO `u` (`a`) VALUES (3);
"""

COMMENTS = """CREATE TABLE t (a int, b varchar(20)); -- first
INSERT INTO t VALUES (1 /* one */, 'x -- y'), -- the next
  # and the next
  (/*!50000 2 */, /*!50003 'a /* b */' */), (3, 'c') /* the last */;
"""

TWICE = """CREATE TABLE IF NOT EXISTS t (a int); INSERT INTO t VALUES (1);
CREATE TABLE IF NOT EXISTS t (b text, c int); INSERT INTO t VALUES (2);
CREATE TABLE old (a int); DROP TABLE IF EXISTS old; CREATE TABLE gone (a int); DROP TABLE gone;
CREATE VIEW elsewhere AS SELECT a FROM shop.t; CREATE VIEW of_it AS SELECT a FROM elsewhere;
CREATE VIEW fine AS SELECT a FROM t; CREATE TABLE IF NOT EXISTS old (n int);
"""

OF_MARIADB = """CREATE TABLE t (a int); INSERT INTO t VALUES (0);
CREATE OR REPLACE TABLE t (id SERIAL, n varchar(3)); INSERT INTO t (n) VALUES ('a'),('b');
ALTER TABLE t ADD COLUMN IF NOT EXISTS n int, ADD COLUMN IF NOT EXISTS x int DEFAULT 5, ADD KEY IF NOT EXISTS k (n);
ALTER TABLE t ADD IF NOT EXISTS x text;
ALTER TABLE t ADD (y int, z varchar(3) NOT NULL DEFAULT 'z');
INSERT INTO t VALUES (7,'c',6,1,'q');
"""

ZEROS = """CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, n varchar(3));
INSERT INTO t VALUES (0,'a'),('0','b'),(7,'c'),(0,'d');
/*!40101 SET @OLD_SQL_MODE=@@SQL_MODE, SQL_MODE='NO_AUTO_VALUE_ON_ZERO' */;
CREATE TABLE u (id int AUTO_INCREMENT PRIMARY KEY, n varchar(3)); INSERT INTO u VALUES (0,'a'),(NULL,'b');
/*!40101 SET SQL_MODE=@OLD_SQL_MODE */;
"""

BODIES = """CREATE TABLE t (a int); INSERT INTO t VALUES (1);
CREATE TRIGGER one BEFORE INSERT ON t FOR EACH ROW SET NEW.a = IF(NEW.a > 3, 3, NEW.a);
CREATE TRIGGER two BEFORE INSERT ON t FOR EACH ROW IF NEW.a > 3 THEN SET NEW.a = 3; END IF;
CREATE DEFINER=`root`@`%` TRIGGER three BEFORE UPDATE ON t FOR EACH ROW
BEGIN
  IF NEW.a > 3 THEN SET NEW.a = CASE WHEN OLD.a THEN 1 ELSE 2 END; ELSEIF NEW.a < 0 THEN BEGIN END; END IF;
  INSERT INTO t VALUES (77); -- END;
END;
CREATE PROCEDURE p(IN n int)
BEGIN
  DECLARE end_ int DEFAULT 0;
  again: LOOP
    WHILE n > 1 DO SET n = n - 1; END WHILE;
    REPEAT SET n = n + 1; UNTIL n > 5 END REPEAT;
    CASE n WHEN 1 THEN DELETE FROM t; ELSE DROP TABLE IF EXISTS u; END CASE;
    LEAVE again;
  END LOOP again;
  SELECT REPEAT('x', 3), IF(n, 1, 2) INTO @a, @b;
END;
CREATE TABLE u (b int); INSERT INTO u VALUES (2);
"""
"""As SQLyog and editors save triggers and procedures, without DELIMITER."""


def over(path: Path) -> Task:
    source = Source.of(path)
    return Task("t", "?", source.tables(), "SELECT", Gold(sql="SELECT 1"), grader="strict", source=source)


@pytest.mark.parametrize(
    ("text", "tables", "notes"),
    [
        (
            PARTITIONS,
            {"m": [(1, 2019), (2, 2024)], "l": [("x",)]},
            ["m: its partitions", "l: its partitions"],
        ),
        (
            VERSIONED,
            {"t": [(1, 2)], "u": [(3, None, None)]},
            ["t: its system versioning", "u: its system versioning"],
        ),
        (COMMENTS, {"t": [(1, "x -- y"), (2, "a /* b */"), (3, "c")]}, []),
        (
            TWICE,
            {"t": [(1,), (2,)], "fine": [(1,), (2,)], "old": []},
            ["t: a second CREATE TABLE IF NOT EXISTS is skipped"],
        ),
        (
            ZEROS,
            {"t": [(1, "a"), (2, "b"), (7, "c"), (8, "d")], "u": [(0, "a"), (1, "b")]},
            [],
        ),
        (
            BODIES,
            {"t": [(1,)], "u": [(2,)]},
            ["3 statements CREATE TRIGGER", "1 statements CREATE PROCEDURE"],
        ),
        (
            OF_MARIADB,
            {"t": [(1, "a", 5, None, "z"), (2, "b", 5, None, "z"), (7, "c", 6, 1, "q")]},
            [],
        ),
    ],
)
def test_a_dump_is_made_and_what_is_lost_is_said(
    local_database: Database, tmp_path: Path, caplog, text: str, tables: dict[str, list], notes: list[str]
) -> None:
    (tmp_path / "d.sql").write_text(text)
    task = over(tmp_path / "d.sql")
    assert {table.name for table in task.tables} == set(tables)
    with local_database.sandbox(task) as sandbox:
        for name, rows in tables.items():
            assert sandbox.execute(f"SELECT * FROM `{name}`").rows == rows
    for note in notes:
        assert note in caplog.text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-8"])
@pytest.mark.parametrize("packed", [False, True])
def test_utf_16_and_gzip(local_database: Database, tmp_path: Path, encoding: str, packed: bool) -> None:
    path = tmp_path / ("d.sql.gz" if packed else "d.sql")
    content = "CREATE TABLE t (a text);\r\nINSERT INTO t VALUES ('Öl 😀'),('x');\r\n".encode(encoding)
    path.write_bytes(gzip.compress(content) if packed else content)
    with local_database.sandbox(over(path)) as sandbox:
        assert sandbox.execute("SELECT a FROM t").rows == [("Öl 😀",), ("x",)]


def test_a_file_that_only_claims_to_be_packed(tmp_path: Path) -> None:
    (tmp_path / "d.sql.gz").write_text("CREATE TABLE t (a text);")
    with pytest.raises(TaskError, match=r"d\.sql\.gz' cannot be read: it cannot be unpacked"):
        Source.of(tmp_path / "d.sql.gz").tables()
    (tmp_path / "e.sql.gz").write_bytes(gzip.compress(b"CREATE TABLE t (a text);" * 1000)[:-30])
    with pytest.raises(TaskError, match=r"e\.sql\.gz' cannot be read: it cannot be unpacked"):
        Source.of(tmp_path / "e.sql.gz").tables()


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("TRIGGER g BEFORE INSERT ON u FOR EACH ROW SET NEW.b = CASE WHEN NEW.b > 1 THEN IF(NEW.b > 5, 1, 2) ELSE IF(1, 2, 3) END;", "its trigger g is not held"),
        ("FUNCTION f(x INT) RETURNS TEXT RETURN CASE x WHEN 1 THEN REPEAT('a', 3) ELSE CASE WHEN x THEN 'b' END END;", "left out: function f"),
        ("PROCEDURE p() BEGIN FOR i IN 1..10 DO SELECT (1) FOR UPDATE; END FOR; DELETE FROM u; INSERT INTO u VALUES (99); END;", "left out: procedure p"),
        ("PROCEDURE p(n INT) CASE n WHEN 1 THEN DELETE FROM u; ELSE DROP TABLE u; END CASE;", "left out: procedure p"),
        ("PROCEDURE p() BEGIN BEGIN END; INSERT INTO v (begin, end) VALUES (1, @end); DELETE FROM u; END;", "left out: procedure p"),
        ("TRIGGER g BEFORE INSERT ON u FOR EACH ROW BEGIN SET NEW.end = 3; DELETE FROM u; END;", "its trigger g is not held"),
        ("DEFINER = `the root` @ `localhost` PROCEDURE p() BEGIN SELECT 1; DELETE FROM u; END;", "left out: procedure p"),
        ("OR REPLACE DEFINER=root@my-host.example FUNCTION f() RETURNS INT BEGIN DELETE FROM u; DELETE FROM u; END;", "left out: function f"),
        ("DEFINER=CURRENT_USER() EVENT e ON SCHEDULE EVERY 1 DAY DO BEGIN SELECT 1; DELETE FROM u; END;", "left out: event e"),
        ("/* x */ TRIGGER g BEFORE INSERT ON u FOR EACH ROW BEGIN SELECT 1; DELETE FROM u; END;", "its trigger g is not held"),
    ],
)  # fmt: skip
def test_no_statement_of_a_body_is_executed_and_what_follows_is_read(
    tmp_path: Path, code: str, what: str
) -> None:
    (tmp_path / "d.sql").write_text(
        f"CREATE TABLE u (b int); INSERT INTO u VALUES (7);\nCREATE {code}\nINSERT INTO u VALUES (8);"
    )
    found = import_from([str(tmp_path / "d.sql")])
    assert [table.rows for table in found.tables] == [((7,), (8,))]
    assert found.notes == [what]


def test_a_body_without_its_end_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "d.sql").write_text(BODIES.replace("END IF;", "", 1))
    with pytest.raises(
        TaskError, match=r"the body of 'CREATE TRIGGER two .* has no END: the dump is cut off"
    ):
        import_from([str(tmp_path / "d.sql")])


def test_a_zero_that_becomes_the_next_number_is_imported_so(tmp_path: Path) -> None:
    (tmp_path / "d.sql").write_text(ZEROS)
    tables = {table.name: table.rows for table in import_from([str(tmp_path / "d.sql")]).tables}
    assert tables == {"t": ((1, "a"), (2, "b"), (7, "c"), (8, "d")), "u": ((0, "a"), (1, "b"))}


def test_a_set_may_set_the_mode_and_the_time_zone(tmp_path: Path) -> None:
    (tmp_path / "d.sql").write_text(
        "SET SQL_MODE='NO_AUTO_VALUE_ON_ZERO', TIME_ZONE='+00:00';\nCREATE TABLE t (a int);"
    )
    steps = [getattr(step, "sql", "") for step in Source.of(tmp_path / "d.sql").opened.steps()]
    assert steps[2:4] == [
        "SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, ',NO_AUTO_VALUE_ON_ZERO')",
        "SET SESSION time_zone = '+00:00'",
    ]


def test_what_is_not_on_the_server_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "d.sql").write_text(TWICE)
    prompt = over(tmp_path / "d.sql").prompt()
    assert "The table is named t and has these columns: a" in prompt
    assert "The table is named old and has these columns: n" in prompt
    assert not any(name in prompt for name in ("gone", "elsewhere", "of_it"))


OF_TWO = """/*!40103 SET TIME_ZONE='+00:00' */;
CREATE DATABASE `zoo`; USE `zoo`; CREATE TABLE `t` (a int);
CREATE DATABASE `my shop`; USE `my shop`; CREATE TABLE `t` (id int, at timestamp NULL);
INSERT INTO `t` VALUES (1,'2024-01-01 12:00:00');
"""


@pytest.mark.parametrize("name", [None, "my shop"])
def test_times_of_a_dump_are_in_utc_whichever_of_its_databases_is_taken(
    local_database: Database, tmp_path: Path, name: str | None
) -> None:
    """mysqldump sets the time zone before the first USE."""
    text = OF_TWO if name else OF_TWO.replace("CREATE TABLE `t` (a int);", "")
    (tmp_path / "d.sql").write_text(text)
    source = Source.of(tmp_path / "d.sql", name=name)
    assert "SET SESSION time_zone = '+00:00'" in [getattr(step, "sql", "") for step in source.opened.steps()]
    task = Task("t", "?", source.tables(), "SELECT", Gold(sql="SELECT 1"), grader="strict", source=source)
    with local_database.sandbox(task) as sandbox:
        assert sandbox.execute("SELECT UNIX_TIMESTAMP(at) FROM t").rows == [(1704110400,)]


WORKBENCH = """CREATE SCHEMA IF NOT EXISTS `my shop` DEFAULT CHARACTER SET utf8mb4; USE `my shop` ;
CREATE TABLE IF NOT EXISTS `my shop`.`customers` (`id` INT NOT NULL, `name` VARCHAR(9) DEFAULT 'my shop.x', PRIMARY KEY (`id`));
CREATE TABLE IF NOT EXISTS `my shop`.`orders` (`id` INT NOT NULL PRIMARY KEY, `customer` INT,
  CONSTRAINT `c` FOREIGN KEY (`customer`) REFERENCES `my shop`.`customers` (`id`) ON DELETE CASCADE);
INSERT INTO `my shop`.`customers` (`id`) VALUES (1); INSERT INTO `my shop` . `orders` VALUES (5, 1);
CREATE VIEW `my shop`.`both` AS SELECT o.id, c.name FROM `my shop`.`orders` o JOIN `my shop`.customers c ON c.id = o.customer;
"""


def test_names_with_the_database_in_use(local_database: Database, tmp_path: Path) -> None:
    """As MySQL Workbench writes them."""
    (tmp_path / "d.sql").write_text(WORKBENCH)
    with local_database.sandbox(over(tmp_path / "d.sql")) as sandbox:
        assert sandbox.execute("SELECT * FROM `both`").rows == [(5, "my shop.x")]
        assert sandbox.execute("DELETE FROM customers").affected == 1
        assert sandbox.execute("SELECT * FROM orders").rows == []
    assert [table.rows for table in import_from([str(tmp_path / "d.sql")]).tables] == [
        ((1, "my shop.x"),),
        ((5, 1),),
    ]
    for other in ("shop", "`my shop2`"):
        (tmp_path / "d.sql").write_text(f"{WORKBENCH} INSERT INTO {other}.orders VALUES (6, 1);")
        with pytest.raises(TaskError, match="which is not executed"):
            import_from([str(tmp_path / "d.sql")])


def test_names_with_a_database_that_no_use_names(tmp_path: Path) -> None:
    """As DataGrip and DBeaver write them."""
    text = (
        "SET @@GLOBAL.GTID_PURGED='';\n"
        "create table shop.users (id int auto_increment primary key, name varchar(20) not null);\n"
        "INSERT INTO shop.users (id, name) VALUES (1, 'Ann'), (2, 'Bob');"
        "create view shop.names as select u.name from shop.users u;"
    )
    (tmp_path / "d.sql").write_text(text)
    found = import_from([str(tmp_path / "d.sql")])
    assert found.tables[0].rows == ((1, "Ann"), (2, "Bob"))
    *_, last = Source.of(tmp_path / "d.sql").opened.steps()
    assert "from users u" in getattr(last, "sql", "")
    assert Source.of(tmp_path / "d.sql", name="shop").tables()
    (tmp_path / "d.sql").write_text(text.replace("table shop.users", "table users"))  # DBeaver's DDL
    assert import_from([str(tmp_path / "d.sql")]).tables[0].rows == ((1, "Ann"), (2, "Bob"))
    for other in ("INSERT INTO mysql.user VALUES (1);", "create table zoo.pets (id int);"):
        (tmp_path / "d.sql").write_text(f"{text} {other}")
        with pytest.raises(TaskError, match="which is not executed"):
            import_from([str(tmp_path / "d.sql")])
    (tmp_path / "d.sql").write_text("CREATE TABLE mysql.user (a int);")
    with pytest.raises(TaskError, match="which is not executed"):
        import_from([str(tmp_path / "d.sql")])


def test_a_table_may_have_the_name_of_its_database(tmp_path: Path) -> None:
    """Before a column the name is the table's: without it, the column would be ambiguous."""
    (tmp_path / "d.sql").write_text(
        "USE `emp`; CREATE TABLE `emp` (`id` int, `boss` int); CREATE TABLE `emp`.`pay` (`id` int, `sum` int);"
        "CREATE VIEW `v` AS select `emp`.`id` AS `id` from (`emp` join `pay` on((`emp`.`id` = `pay`.`id`)));"
        "CREATE VIEW `w` AS select `emp`.`emp`.`id` AS `id` from `emp`.`emp`;"
    )
    *_, first, second = (getattr(each, "sql", "") for each in Source.of(tmp_path / "d.sql").opened.steps())
    assert "select `emp`.`id` AS `id` from (`emp` join `pay` on((`emp`.`id` = `pay`.`id`)))" in first
    assert "select `emp`.`id` AS `id` from `emp`" in second


@pytest.mark.parametrize("end", ["", "\n", " -- the last\n", "/* the last */"])
def test_the_end_of_a_dump_ends_its_last_statement(
    local_database: Database, tmp_path: Path, end: str
) -> None:
    """As mysql's client reads it."""
    (tmp_path / "d.sql").write_text(
        f"CREATE TABLE t (a int, b text);\nINSERT INTO t VALUES (1,'x'),(2,'y'){end}"
    )
    with local_database.sandbox(over(tmp_path / "d.sql")) as sandbox:
        assert sandbox.execute("SELECT * FROM t").rows == [(1, "x"), (2, "y")]


def test_a_dump_that_ends_between_two_rows_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "d.sql").write_text("CREATE TABLE t (a int);\nINSERT INTO t VALUES (1),\n")
    with pytest.raises(TaskError, match="an INSERT into t has no end: the dump is cut off"):
        list(Source.of(tmp_path / "d.sql").opened.steps())


@pytest.mark.parametrize("emptied", ["DELETE FROM `t`", "TRUNCATE `t`", "TRUNCATE TABLE t"])
def test_a_table_that_is_emptied_before_its_rows_come(
    local_database: Database, tmp_path: Path, emptied: str
) -> None:
    """As HeidiSQL's and Adminer's exports have it."""
    (tmp_path / "d.sql").write_text(
        f"CREATE TABLE `t` (a int);\nINSERT INTO t VALUES (7);\n{emptied};\nINSERT INTO t VALUES (1),(2);"
    )
    task = over(tmp_path / "d.sql")
    with local_database.sandbox(task) as sandbox:
        assert sandbox.execute("SELECT a FROM t").rows == [(1,), (2,)]
    assert "The first rows of t:\n1\n2 */" in replace(task, schema="full").prompt()
    assert import_from([str(tmp_path / "d.sql")]).tables[0].rows == ((1,), (2,))


@pytest.mark.parametrize(
    ("altered", "rows"),
    [
        ("ADD COLUMN title text AFTER NAME, ADD n int", "(1,'Ann','Dr','5',NULL)"),
        ("ADD n int, ADD `title` varchar(9) NOT NULL AFTER `name`", "(1,'Ann','Dr','5',NULL)"),
        ("ADD title text FIRST, ADD n int, MODIFY phone text AFTER title", "('Dr','5',1,'Ann',NULL)"),
    ],
)
def test_a_column_has_the_place_that_it_is_added_at(
    local_database: Database, tmp_path: Path, altered: str, rows: str
) -> None:
    (tmp_path / "d.sql").write_text(
        "CREATE TABLE staff (id int, name text, phone text, KEY (id));\n"
        f"ALTER TABLE staff {altered};\nINSERT INTO staff VALUES {rows};"
    )
    (table,) = import_from([str(tmp_path / "d.sql")]).tables
    row = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert row == {"id": 1, "name": "Ann", "title": "Dr", "phone": "5", "n": None}
    task = over(tmp_path / "d.sql")
    assert "AFTER" not in replace(task, schema="full").prompt()
    with local_database.sandbox(task) as sandbox:
        assert sandbox.execute("SELECT * FROM staff").rows == list(table.rows)


@pytest.mark.parametrize(
    ("altered", "sent"),
    [
        ("ADD KEY IF NOT EXISTS I (b), ADD UNIQUE KEY IF NOT EXISTS `u` (b)", None),
        ("ADD CONSTRAINT IF NOT EXISTS c CHECK (a > 1), ADD INDEX IF NOT EXISTS a (a)", "ADD INDEX a (a)"),
        ("ADD COLUMN IF NOT EXISTS (b INT, A INT, x DECIMAL(5,2))", "ADD COLUMN ( x DECIMAL(5,2))"),
        ("ADD IF NOT EXISTS (a INT, b INT)", None),
        (
            "ADD COLUMN IF NOT EXISTS x INT, ADD IF NOT EXISTS X INT, ADD IF NOT EXISTS (x INT, y INT)",
            "ADD COLUMN x INT, ADD ( y INT)",
        ),
        ("ADD y INT, ADD COLUMN IF NOT EXISTS y INT, ADD KEY (a)", "ADD y INT, ADD KEY (a)"),
    ],
)
def test_what_a_table_has_is_not_added_again(
    local_database: Database, tmp_path: Path, altered: str, sent: str | None
) -> None:
    """MySQL does not know IF NOT EXISTS there."""
    (tmp_path / "d.sql").write_text(
        "CREATE TABLE t (a int, b int, UNIQUE KEY u (a), CONSTRAINT c CHECK (a > 0));\n"
        f"ALTER TABLE t ADD KEY `i` USING BTREE (a);\nALTER TABLE t {altered};"
    )
    steps = [getattr(step, "sql", "") for step in Source.of(tmp_path / "d.sql").opened.steps()]
    assert [step for step in steps if step.startswith("ALTER")][1:] == (
        [f"ALTER TABLE `t` {sent}"] if sent else []
    )
    with local_database.sandbox(over(tmp_path / "d.sql")) as sandbox:
        assert sandbox.execute("SELECT a FROM t").rows == []


@pytest.mark.parametrize(
    "part",
    ["DROP COLUMN phone", "CHANGE phone mail text", "ALTER phone SET DEFAULT 1", "RENAME COLUMN phone TO p"],
)
@pytest.mark.parametrize("first", ["ADD COLUMN mail text", "AUTO_INCREMENT = 5"])
def test_what_is_not_carried_out_is_refused_behind_another_part(
    tmp_path: Path, first: str, part: str
) -> None:
    (tmp_path / "d.sql").write_text(f"CREATE TABLE staff (phone text);\nALTER TABLE staff {first}, {part};")
    with pytest.raises(TaskError, match=r"it has 'ALTER TABLE staff .*', which is not executed"):
        Source.of(tmp_path / "d.sql").tables()


def test_a_statement_may_name_a_table_in_other_letters(local_database: Database, tmp_path: Path) -> None:
    """As a server on Windows writes it and reads it."""
    (tmp_path / "d.sql").write_text(
        "CREATE TABLE emp (a int);\nINSERT INTO emp VALUES (7);\nDELETE FROM Emp;\n"
        "INSERT INTO emp VALUES (8);\nTRUNCATE TABLE `EMP`;\nALTER TABLE EMP ADD b int;\n"
        "INSERT INTO emp VALUES (1,2);\nCREATE TABLE gone (a int);\nDROP TABLE Gone;"
    )
    found = import_from([str(tmp_path / "d.sql")])
    assert {table.name: table.rows for table in found.tables} == {"emp": ((1, 2),)}
    task, source = over(tmp_path / "d.sql"), Source.of(tmp_path / "d.sql", only=["emp"])
    for each in (task, replace(task, tables=source.tables(), source=source)):
        with local_database.sandbox(each) as sandbox:
            assert sandbox.execute("SELECT * FROM emp").rows == [(1, 2)]


def test_a_table_whose_name_differs_in_letters_is_another(tmp_path: Path) -> None:
    """As mysqldump writes them on Linux: before each table it drops one of that name, if there is one."""
    (tmp_path / "d.sql").write_text(
        "".join(f"DROP TABLE IF EXISTS `{t}`;\nCREATE TABLE `{t}` (a int);\n" for t in ("emp", "Emp"))
    )
    assert [table.name for table in Source.of(tmp_path / "d.sql").tables()] == ["emp", "Emp"]


@pytest.mark.parametrize(
    "cut",
    [
        *("DROP TABLE;", "DROP VIEW ;", "ALTER TABLE t ADD UNIQUE KEY k ();"),
        *("ALTER TABLE t ADD COLUMN IF NOT EXISTS;", "ALTER TABLE t ADD COLUMN IF NOT EXISTS ();"),
    ],
)
def test_a_statement_without_its_names_stops_nothing(tmp_path: Path, cut: str) -> None:
    """It was an IndexError."""
    path = tmp_path / "t.sql"
    path.write_text(f"CREATE TABLE t (a int, b int); {cut} INSERT INTO t VALUES (1, 2), (3, 4);")
    (table,) = import_from([str(path)]).tables
    assert table.rows == ((1, 2), (3, 4))
