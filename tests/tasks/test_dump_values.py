"""Rows of a dump as `import` takes them: with a server's values, or with a note that names the column."""

from __future__ import annotations

from pathlib import Path

import pytest

from trl_dbbench.data.generate.imported import Imported, import_from

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
        ("varchar(9)", r"'a\%b\_c\\d'", r"a\%b\_c\d"),
        ("varchar(9)", r"'it\'s ''x'''", "it's 'x'"),
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
        "CREATE TABLE t (id int, a int DEFAULT 5, v varchar(9) DEFAULT 'it''s', w int, at datetime DEFAULT now());"
        "INSERT INTO t (id) VALUES (1); INSERT INTO t VALUES (2, DEFAULT, 'x', DEFAULT, '2020-01-01 00:00:00');",
    )
    assert found.tables[0].rows == ((1, 5, "it's", None), (2, 5, "x", None))
    assert "t.at: left out, the dump leaves values of it to its default now" in found.notes


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


def test_rows_of_another_width_leave_out_their_table_only(tmp_path: Path) -> None:
    found = imported(
        tmp_path, f"CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1,2,3),(2,3,4); {SECOND}"
    )
    assert [table.name for table in found.tables] == ["other"]
    assert found.notes == ["t: left out, a row of it has 3 values for 2 columns"]


@pytest.mark.parametrize("value", ["NOW()", "ST_GeomFromText('POINT(1 1)')", "1 + 1", "(SELECT 1)", "@a"])
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
