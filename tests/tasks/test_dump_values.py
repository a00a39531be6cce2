"""Rows of a dump as `import` takes them: with a server's values, or with a note that names the column."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trl_dbbench.data.generate.imported import Imported, import_from
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Gold, Task
from trl_dbbench.tasks.source import Source
from trl_dbbench.tasks.sources.dump import Dump, dump_tables
from trl_dbbench.tasks.sources.dump_statements import table_made
from trl_dbbench.tasks.sources.dump_text import words_of

SECOND = "CREATE TABLE other (id int, n varchar(3)); INSERT INTO other VALUES (1,'a'),(2,'b');"


def imported(tmp_path: Path, text: str | bytes) -> Imported:
    path = tmp_path / "d.sql"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_from([str(path)])


@pytest.mark.parametrize(
    ("column", "written", "cell"),
    [
        ("varchar(9)", "X'C3A9'", "é"),
        ("varchar(9)", "0x4142", "AB"),
        ("int", "0x10", 16),
        ("tinyint", "b'101'", 5),
        ("varchar(9)", "UNHEX('C3A9')", "é"),  # as Adminer writes bytes and bits
        ("bool", "CONV('101', 2, 10) + 0", 5),
        ("varchar(9)", r"'a\%b\_c\\d'", r"a\%b\_c\d"),
        ("varchar(9)", r"'it\'s ''x'''", "it's 'x'"),
        ("date", "'2024/1/31'", "2024-01-31"),
        ("datetime", "'2024/1/31'", "2024-01-31 00:00:00"),
        ("datetime", "'2024-01-31'", "2024-01-31 00:00:00"),
        ("datetime", "'1968-12-8'", "1968-12-08 00:00:00"),  # as in scripts written by hand
        ("datetime", "'1952-2-19 8:30:00'", "1952-02-19 08:30:00"),
        ("date", "'1996-7-4'", "1996-07-04"),
        ("timestamp", "'2024/1/31 9:05'", "2024-01-31 09:05:00"),
        ("varchar(9)", "'2024/1/31'", "2024/1/31"),
    ],
)
def test_values_as_a_server_reads_them(tmp_path: Path, column: str, written: str, cell: object) -> None:
    found = imported(
        tmp_path, f"CREATE TABLE t (id int, v {column}); INSERT INTO t VALUES (1,{written}),(2,NULL);"
    )
    assert found.tables[0].rows == ((1, cell), (2, None))


def test_columns_that_an_insert_leaves_out_have_their_defaults(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        "CREATE TABLE t (id int, a int DEFAULT 5, v varchar(9) DEFAULT 'it''s', w int, on_ bool DEFAULT true,"
        "p decimal(4,2) DEFAULT -4.50, at datetime DEFAULT now());"
        "INSERT INTO t (id) VALUES (1);"
        "INSERT INTO t VALUES (2, DEFAULT, 'x', DEFAULT, FALSE, DEFAULT, '2020-01-01 00:00:00');",
    )
    assert found.tables[0].rows == ((1, 5, "it's", None, 1, "-4.50"), (2, 5, "x", None, 0, "-4.50"))
    assert "t.at: left out, the dump leaves values of it to its default now()" in found.notes


@pytest.mark.parametrize(
    ("type", "written", "cell"),
    [
        ("DATETIME", "2024-12-31 23:59:59.5", "2025-01-01 00:00:00"),
        ("DATETIME", "2024-12-31T10:00:00.4999", "2024-12-31 10:00:00"),
        ("TIMESTAMP", "2024-12-31 10:00:00.000", "2024-12-31 10:00:00"),
        ("TIME", "-099:59:59.51", "-100:00:00"),
        ("TIME(1)", "10:00:00.25", "10:00:00.3"),
        ("TIME", "-00:00:00.4", "00:00:00"),
        ("TIME(1)", "-00:00:00.06", "-00:00:00.1"),
        ("TIME(1)", "838:59:59.96", "838:59:59.0"),
        ("TIME", "-838:59:59.5", "-838:59:59"),
        ("DATETIME(1)", "2020-02-28 23:59:59.96", "2020-02-29 00:00:00.0"),
    ],
)
def test_fractions_beyond_a_columns_size_are_rounded_as_by_mysql(
    tmp_path: Path, type: str, written: str, cell: str
) -> None:
    """https://dev.mysql.com/doc/refman/9.4/en/fractional-seconds.html"""
    found = imported(
        tmp_path, f"CREATE TABLE t (id int, v {type}); INSERT INTO t VALUES (1,'{written}'),(2,NULL);"
    )
    assert found.tables[0].rows == ((1, cell), (2, None))
    assert [column.type for column in found.tables[0].columns] == ["INT", type]
    assert f"t.v: fractions are rounded as by MySQL: '{written}' is '{cell}'" in found.notes


@pytest.mark.parametrize(
    ("written", "row", "left_out"),
    [
        ("0000-00-00 00:00:00.000000", (1, "0000-00-00 00:00:00"), "Incorrect datetime value: '0000-00-00 "),
        ("2020-00-10 23:59:58.500", (1, "2020-00-10 23:59:59"), "Incorrect datetime value: '2020-00-10 "),
        ("2020-01-00 23:59:59.5", (1,), "its values are not all of its type datetime"),
    ],
)
def test_zero_dates_with_fractions_are_dates_that_have_no_next_day(
    tmp_path: Path, written: str, row: tuple[object, ...], left_out: str
) -> None:
    """The dump's table has them, and `import` then says that its tasks cannot."""
    found = imported(tmp_path, f"CREATE TABLE t (id int, d datetime); INSERT INTO t VALUES (1,'{written}');")
    dump = Source.of(tmp_path / "d.sql").opened
    assert isinstance(dump, Dump) and dump_tables(dump, 10, seed=0)[0][0].rows == (row,)
    assert found.tables[0].rows == ((1,),)
    assert found.notes[-1].startswith(f"t.d: left out, {left_out}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Create table If Not Exists t (id int)\nTruncate table t\ninsert into t values (1)",
            "a statement with CREATE TABLE has TRUNCATE TABLE within it: end each statement with a semicolon",
        ),
        (
            "TRUNCATE TABLE t\nINSERT INTO t VALUES (1)",
            "with TRUNCATE TABLE has INSERT INTO within it: end each statement with a semicolon",
        ),
        (
            "INSERT INTO t VALUES (1);",
            r"no tables and no CREATE TABLE; join the files with both: cat schema\.sql",
        ),
    ],
)
def test_scripts_that_lack_semicolons_or_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.sql").write_text(text)
    with pytest.raises(TaskError, match=message):
        Source.of(tmp_path / "d.sql").tables()


def test_columns_added_in_parentheses_or_where_they_are_not_there(tmp_path: Path) -> None:
    (table,) = imported(
        tmp_path,
        "CREATE OR REPLACE TABLE t (id SERIAL PRIMARY KEY, n INT SERIAL DEFAULT VALUE);"
        "ALTER TABLE t ADD (a INT DEFAULT 5, b VARCHAR(3));"
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS c INT, ADD COLUMN IF NOT EXISTS B INT;"
        "INSERT INTO t (n) VALUES (3),(4); INSERT INTO t VALUES (9,8,7,'x',6);",
    ).tables
    assert table.rows == ((1, 3, 5, None, None), (2, 4, 5, None, None), (9, 8, 7, "x", 6))
    assert [f"{column.name} {column.type}" for column in table.columns] == [
        "id BIGINT unsigned NOT NULL AUTO_INCREMENT PRIMARY KEY",
        "n INT NOT NULL UNIQUE",
        "a INT DEFAULT '5'",
        "b VARCHAR(3)",
        "c INT",
    ]


def test_a_column_may_be_named_serial(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        "CREATE TABLE t (serial INT, y INT AS (serial + 1), z INT CHECK (serial > 0));"
        "INSERT INTO t VALUES (1,2,3),(1,2,3);",
    )
    (table,) = found.tables
    assert [f"{column.name} {column.type}" for column in table.columns] == ["serial INT", "y INT", "z INT"]
    assert table.rows == ((1, 2, 3), (1, 2, 3))
    assert found.notes == [
        "t.y: generated by an expression, becomes a column of plain values",
        "t: its CHECK (serial > 0) is not held",
    ]


def test_rows_that_an_insert_gives_no_number_have_the_next_one(tmp_path: Path) -> None:
    text = (
        "CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, n varchar(3)){0};"
        "INSERT INTO t (n) VALUES ('a'),('b');"
        "INSERT INTO t VALUES (NULL,'c'),('10','d'),(DEFAULT,'e');"
    )
    assert imported(tmp_path, text.format("")).tables[0].rows == (
        (1, "a"),
        (2, "b"),
        (3, "c"),
        (10, "d"),
        (11, "e"),
    )
    later = imported(tmp_path, text.format(" AUTO_INCREMENT=100"))
    assert [row[0] for row in later.tables[0].rows] == [100, 101, 102, 10, 103]
    drawn = import_from([str(tmp_path / "d.sql")], sample=2).tables[0].rows
    assert set(drawn) < set(later.tables[0].rows), "a sample keeps the numbers of the whole table"


@pytest.mark.parametrize(
    ("written", "type"),
    [
        ("NVARCHAR(160) NOT NULL", "VARCHAR(160) NOT NULL"),  # as Chinook's scripts have it
        ("CHARACTER VARYING(9) DEFAULT 'x'", "VARCHAR(9) DEFAULT 'x'"),
        ("character(3)", "CHAR(3)"),
        ("NCHAR(3)", "CHAR(3)"),
        ("INT8 UNSIGNED", "BIGINT unsigned"),
        ("FLOAT8", "DOUBLE"),
        ("DOUBLE PRECISION", "DOUBLE"),
    ],
)
def test_types_by_names_that_only_scripts_have(tmp_path: Path, written: str, type: str) -> None:
    found = imported(tmp_path, f"CREATE TABLE t (id int, v {written}); INSERT INTO t VALUES (1,'5'),(2,'6');")
    assert found.tables[0].columns[1].type == type and found.notes == []


def test_generated_columns_that_have_no_values_in_a_dump_are_left_out(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        "CREATE TABLE t (id int, a int, b int GENERATED ALWAYS AS (`a` * 2) STORED); INSERT INTO t (id, a) VALUES (1,2),(2,3);"
        "CREATE TABLE u (id int, v int, s timestamp(6) GENERATED ALWAYS AS ROW START, e timestamp(6) GENERATED ALWAYS AS ROW END,"
        "PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING; INSERT INTO u (id, v) VALUES (1,2),(2,3);",
    )
    assert [[column.name for column in table.columns] for table in found.tables] == [["id", "a"], ["id", "v"]]
    for column in ("t.b", "u.s", "u.e"):
        assert f"{column}: left out, it is generated, and the dump has no values of it" in found.notes


@pytest.mark.parametrize(
    "more",
    [
        "GENERATED ALWAYS AS (case when a is not null then a + 1 end) STORED",
        "DEFAULT NULL CHECK (b is not null or cast(a as unsigned) > 0)",
    ],
)
def test_conditions_in_brackets_do_not_make_a_column_not_null(tmp_path: Path, more: str) -> None:
    found = imported(
        tmp_path, f"CREATE TABLE t (a int NOT NULL, b int {more}); INSERT INTO t VALUES (1,NULL);"
    )
    assert [column.type for column in found.tables[0].columns] == ["INT NOT NULL", "INT"]
    assert found.tables[0].rows == ((1, None),)


def test_texts_of_other_encodings_are_left_out_with_a_note(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        "CREATE TABLE t (id int, v varchar(9), w int); INSERT INTO t VALUES (1,'é',3),(2,'b',4);".encode(
            "latin-1"
        ),
    )
    assert found.tables[0].rows == ((1, 3), (2, 4))
    assert found.notes == [
        "t.v: left out, its texts are no UTF-8. Write the dump with --default-character-set=utf8mb4"
    ]


def test_geometry_written_as_text_leaves_out_its_column_only(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        "CREATE TABLE t (id int, p point, n text);"
        "INSERT INTO t VALUES (1, ST_GeomFromText('POINT(1 2)'), 'a'), (2, GeomFromText('POINT(3 4)', 4326), 'b)');"
        "CREATE TABLE other (id int, n text); INSERT INTO other VALUES (1, ST_GeomFromText('POINT(1 2)')), (2, 'b');",
    )
    assert [table.rows for table in found.tables] == [((1, "a"), (2, "b)")), ((1,), (2,))]
    assert found.notes == [
        "t.p: left out, its type point holds bytes",
        "other.n: left out, its value ST_GeomFromText('POINT(1 2)') is not of its type text",
    ]


def test_rows_of_another_width_leave_out_their_table_only(tmp_path: Path) -> None:
    found = imported(
        tmp_path, f"CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1,2,3),(2,3,4); {SECOND}"
    )
    assert [table.name for table in found.tables] == ["other"]
    assert found.notes == ["t: left out, a row of it has 3 values for 2 columns"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t SELECT * FROM other",
        "INSERT INTO t SET id = 3",
        "UPDATE `t` SET v = 5 WHERE id IN (SELECT id FROM other)",
        "DELETE FROM t WHERE id = 1",
    ],
)
def test_statements_that_are_not_executed_leave_out_their_table_only(tmp_path: Path, sql: str) -> None:
    text = "CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1,2),(2,3);"
    found = imported(tmp_path, f"{text} {SECOND} {sql};")
    assert [table.name for table in found.tables] == ["other"]
    assert len(found.notes) == 1 and found.notes[0].startswith("t: left out, it has '")
    with pytest.raises(TaskError, match="which is not executed"):
        imported(tmp_path, f"{text} CREATE TABLE u LIKE t;")
    both = imported(tmp_path, f"{text} {SECOND} CREATE TABLE u (a int, b int); UPDATE t, other SET t.v = 1;")
    assert [table.name for table in both.tables] == ["u"]


@pytest.mark.parametrize("value", ["NOW()", "ST_Point(1, 1)", "1 + 1", "(SELECT 1)", "@a"])
def test_rows_with_expressions_leave_out_their_table_only(tmp_path: Path, value: str) -> None:
    found = imported(
        tmp_path,
        f"CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1,'a;'),(2,{value}),(3,'b;'); {SECOND}",
    )
    assert [table.name for table in found.tables] == ["other"]
    (note,) = found.notes
    assert note.startswith("t: left out, an INSERT into t has something else than values at ")


def test_rows_that_replace_others_and_rows_that_are_ignored(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(9)); REPLACE INTO t VALUES (1,'a'),(2,'b'); REPLACE INTO t VALUES (1,'c');"
        "INSERT IGNORE INTO t VALUES (2,'z'),(3,'d');"
        "CREATE TABLE u (a int, b int, v int, PRIMARY KEY (a, b)); REPLACE INTO u VALUES (1,1,1),(1,2,2),(1,1,3);",
    )
    assert [set(table.rows) for table in found.tables] == [
        {(1, "c"), (2, "b"), (3, "d")},
        {(1, 2, 2), (1, 1, 3)},
    ]


def test_what_is_left_out_has_its_name(tmp_path: Path) -> None:
    found = imported(
        tmp_path,
        f"{SECOND}\nDELIMITER ;;\n/*!50003 CREATE*/ /*!50017 DEFINER=`root`@`localhost`*/ /*!50003 TRIGGER tr BEFORE INSERT ON other "
        "FOR EACH ROW SET NEW.n = 'x;' */;;\nCREATE DEFINER=`r`@`%` PROCEDURE `do it`() BEGIN SELECT 1; END;;\nDELIMITER ;\n",
    )
    assert found.notes == ["its trigger tr is not held", "left out: procedure do it"]


def test_names_in_other_letters_are_the_same_columns(tmp_path: Path) -> None:
    """MySQL ignores case in column names; a server on Windows also in those of tables."""
    found = imported(
        tmp_path,
        "CREATE TABLE emp (emp_id INT, name VARCHAR(20), salary DECIMAL(8,2) DEFAULT 0, PRIMARY KEY (EMP_ID));"
        "INSERT INTO emp (Emp_ID, Name, Salary) VALUES (1,'Ann',10.50); INSERT INTO EMP VALUES (2,'Bob',20);"
        "ALTER TABLE emp MODIFY EMP_ID INT AUTO_INCREMENT;",
    )
    (table,) = found.tables
    assert table.columns[0].type == "INT AUTO_INCREMENT PRIMARY KEY"
    assert table.rows == ((1, "Ann", "10.50"), (2, "Bob", "20"))
    assert not found.notes


def test_values_of_a_column_that_is_not_there_leave_out_their_table_only(tmp_path: Path) -> None:
    found = imported(tmp_path, f"CREATE TABLE t (a int); INSERT INTO t (b) VALUES (1),(2); {SECOND}")
    assert [table.name for table in found.tables] == ["other"]
    assert "t: left out, its rows have values for a column b, which it lacks" in found.notes


def test_a_column_may_be_named_period(tmp_path: Path) -> None:
    found = imported(
        tmp_path, "CREATE TABLE t (id int, period varchar(9)); INSERT INTO t VALUES (1,'May'),(2,'June');"
    )
    assert found.tables[0].rows == ((1, "May"), (2, "June"))


def test_what_a_server_would_refuse_is_not_held(tmp_path: Path) -> None:
    """MySQL's errors 1101, 1170, 1071 and 1075: a task with such a table could be played nowhere but here."""
    found = imported(
        tmp_path,
        "CREATE TABLE t (id int NOT NULL AUTO_INCREMENT, d int NOT NULL, s text DEFAULT 'active', u text UNIQUE,"
        "v varchar(1000) CHARACTER SET latin1 UNIQUE, w varchar(768) UNIQUE, PRIMARY KEY (id, d));"
        "INSERT INTO t VALUES (1,1,'a','b','c','d'),(2,1,'e','f','g','h');",
    )
    types = {column.name: column.type for column in found.tables[0].columns}
    assert types["id"] == "INT NOT NULL" and types["s"] == types["u"] == "TEXT"
    assert "UNIQUE" not in types["v"] and types["w"].endswith("UNIQUE")
    for note in (
        "t.id: its AUTO_INCREMENT is not held, which needs a primary key of the column alone",
        "t.s: its default active is not held",
        "t.u: its UNIQUE is not held: MySQL has no key of a whole TEXT",
        "t.v: its UNIQUE is not held: MySQL has no key of texts of 1,000 characters",
    ):
        assert note in found.notes


def test_what_a_script_says_as_it_goes_is_no_part_of_it(tmp_path: Path) -> None:
    """As MySQL's own employees database does."""
    found = imported(
        tmp_path, f"SELECT 'CREATING DATABASE STRUCTURE' as 'INFO'; {SECOND} SELECT * FROM other;"
    )
    assert [table.name for table in found.tables] == ["other"] and found.notes == []
    with pytest.raises(TaskError, match="'SELECT 1 INTO OUTFILE"):
        imported(tmp_path, f"{SECOND} SELECT 1 INTO OUTFILE '/tmp/x';")


def test_a_dump_of_mariadb_with_a_sequence(tmp_path: Path) -> None:
    found = imported(
        tmp_path, f"CREATE SEQUENCE `s` start with 1 increment by 1; SELECT SETVAL(`s`, 1, 0); {SECOND}"
    )
    assert [table.name for table in found.tables] == ["other"] and "left out: sequence s" in found.notes


@pytest.mark.parametrize("first", ["PRAGMA foreign_keys=OFF;", "BEGIN TRANSACTION;"])
def test_a_dump_of_sqlite_is_refused(tmp_path: Path, first: str) -> None:
    """A backslash is a backslash there, and in MySQL the beginning of an escape."""
    with pytest.raises(TaskError, match="as SQLite's dumps have"):
        imported(tmp_path, f"{first} CREATE TABLE t (a int, b text); INSERT INTO t VALUES (1,'C:\\new');")


SQL_SERVER = """SET ANSI_NULLS ON
GO
CREATE TABLE [dbo].[orders]([id] [int] IDENTITY(1,1) NOT NULL, [name] [nvarchar](50) NULL) ON [PRIMARY]
GO
INSERT [dbo].[orders] ([id], [name]) VALUES (1, N'it''s')
GO
"""


@pytest.mark.parametrize(
    ("dump", "whose"),
    [
        (f"USE [shop]\nGO\n{SQL_SERVER}", "of SQL Server"),
        (SQL_SERVER, "of SQL Server"),
        ("create table dbo.orders (id int)\nGO\n", "of SQL Server"),
        ("CREATE TABLE orders (id INT IDENTITY(1,1) PRIMARY KEY, n NVARCHAR(9));", "of SQL Server"),
        ("SET IDENTITY_INSERT orders ON;\nINSERT INTO orders VALUES (1);", "of SQL Server"),
        ("CREATE TABLE orders (id INT)\nGO\nINSERT INTO orders VALUES (1)\nGO\n", "of SQL Server"),
        ("SET x = 0; SELECT pg_catalog.set_config('search_path', '', false);", "of PostgreSQL"),
        ("CREATE TABLE t (a integer);\nCOPY t (a) FROM stdin;\n1\n\\.\n", "of PostgreSQL"),
        ('CREATE TABLE "SHOP"."ORDERS" ("ID" NUMBER(*,0));', "and Oracle"),
    ],
)
def test_a_dump_of_another_server_is_named_with_the_remedy(tmp_path: Path, dump: str, whose: str) -> None:
    with pytest.raises(TaskError, match=f"{whose}.* as a CSV file with a header"):
        imported(tmp_path, dump)


def test_a_value_that_is_no_number_leaves_out_its_column(tmp_path: Path) -> None:
    found = imported(
        tmp_path, "CREATE TABLE t (a int, b int, x double); INSERT INTO t VALUES (1,2,''),(2,3,1.5);"
    )
    assert [column.name for column in found.tables[0].columns] == ["a", "b"]
    assert "t.x: left out, its value '' is not of its type double" in found.notes


def test_columns_with_a_cast_in_their_default_keep_their_values(tmp_path: Path) -> None:
    """`AS` makes a generated column only where an expression follows it."""
    (tmp_path / "d.sql").write_text(
        "CREATE TABLE o (id int, day date DEFAULT (cast(now() as date)), n varchar(5) CHECK (cast(n as char) <> 'q'),"
        "twice int GENERATED ALWAYS AS (id * 2) STORED, thrice int AS (id * 3));"
    )
    words = words_of((tmp_path / "d.sql").read_text())
    generated = {column.name: column.generated for column in table_made(words).columns}
    assert generated == {"id": False, "day": False, "n": False, "twice": True, "thrice": True}


def test_a_prompt_shows_cells_under_their_columns_and_keys_that_come_late(tmp_path: Path) -> None:
    """As mysqldump writes tables with generated columns, and phpMyAdmin all keys."""
    (tmp_path / "d.sql").write_text(
        "CREATE TABLE `o` (`id` int NOT NULL, `price` int, `gross` int GENERATED ALWAYS AS (`price` * 2) STORED, `who` int);"
        "INSERT INTO `o` (`who`, `price`, `id`) VALUES (7, 10, 1);"
        "ALTER TABLE `o` ADD PRIMARY KEY (`id`), ADD KEY `w` (`who`);"
        "ALTER TABLE `o` MODIFY `id` int NOT NULL AUTO_INCREMENT, AUTO_INCREMENT=2;"
        "ALTER TABLE `o` ADD CONSTRAINT `f` FOREIGN KEY (`who`) REFERENCES `p` (`id`);"
    )
    source = Source.of(tmp_path / "d.sql")
    prompt = replace(
        Task("t", "?", source.tables(), "SELECT", Gold(sql="SELECT 1"), source=source), schema="full"
    ).prompt()
    assert "1, 10, DEFAULT, 7" in prompt
    for line in (
        "`id` int NOT NULL AUTO_INCREMENT,",
        "PRIMARY KEY (`id`),",
        "KEY `w` (`who`),",
        "CONSTRAINT `f` FOREIGN KEY (`who`) REFERENCES `p` (`id`)",
    ):
        assert line in prompt


def test_what_one_of_the_servers_does_not_know_is_left_out() -> None:
    words = words_of(
        "CREATE TABLE `t` (`g` point NOT NULL /*!80003 SRID 4326 */, `v` varchar(9) /*M!100301 COMPRESSED*/ DEFAULT NULL,"
        "`compressed` int, compressed2 int, v2 int GENERATED ALWAYS AS (compressed2 + 1) PERSISTENT, visible int CHECK (visible > 0),"
        "UNIQUE INDEX `u` (`v` ASC) VISIBLE, CONSTRAINT `c` CHECK ((`compressed` > 0)) /*!80016 NOT ENFORCED */)"
    )
    made = table_made(words).sql
    assert "VISIBLE" not in made and "PERSISTENT" not in made and "ENFORCED" not in made
    assert "visible int CHECK (visible > 0),\n  UNIQUE INDEX `u` (`v` ASC)\n)" in made
    assert "SRID" not in made and "COMPRESSED" not in made and "`compressed` int" in made


def test_a_decimal_point_names_no_database(tmp_path: Path) -> None:
    """An ALTER of another database's table is refused: `db.t`."""
    text = (
        "CREATE TABLE t (id int, p decimal(4,2)); INSERT INTO t VALUES (1,1.50);"
        "ALTER TABLE t MODIFY p decimal(4,2) DEFAULT 4.99;"
        "ALTER TABLE t AUTO_INCREMENT = 5;"
        "CREATE INDEX i ON t (p);"
    )
    found = imported(tmp_path, text + SECOND)
    assert found.tables[0].rows == ((1, "1.50"),)
    for named in ("other.t", "`1`.t", "other.1"):
        with pytest.raises(TaskError, match="ALTER TABLE"):
            imported(tmp_path, text + f"ALTER TABLE {named} ADD KEY k (id);" + SECOND)


def test_rows_of_a_table_that_the_dump_does_not_make_are_told(tmp_path: Path) -> None:
    found = imported(tmp_path, f"INSERT INTO `gone` VALUES (1),(2); {SECOND}")
    assert [table.name for table in found.tables] == ["other"]
    told = "gone: left out, the dump has rows of it and no CREATE TABLE; join the files with both: cat schema.sql "
    assert f"{told}data.sql > all.sql" in found.notes


def test_what_mysqldump_says_beside_the_dump_is_no_part_of_it(tmp_path: Path) -> None:
    """As `mysqldump ... > dump.sql 2>&1` leaves it."""
    said = "mysqldump: [Warning] Using a password on the command line interface can be insecure.\n"
    found = imported(tmp_path, f"{said}-- MySQL dump 10.13\n{SECOND}")
    assert [table.name for table in found.tables] == ["other"] and found.notes == []


def test_a_collation_in_quotes_is_kept() -> None:
    """As HeidiSQL writes it."""
    made = table_made(words_of("CREATE TABLE `t` (`a` varchar(9)) COLLATE='utf8mb4_bin' ENGINE=InnoDB"))
    assert made.sql.endswith(") COLLATE=utf8mb4_bin")
