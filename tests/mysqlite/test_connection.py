"""`mysqlite` by itself: tables or a file with limits; a statement gives rows or MySQL's error."""

from __future__ import annotations

import subprocess
import sys
from datetime import date

import pytest

from trl_dbbench.database.sandbox import SHOWN_DATABASE
from trl_dbbench.mysqlite import (
    TIME_LIMIT,
    Column,
    Connection,
    Limits,
    StatementError,
    Table,
    errors,
)

ORDERS = Table(
    "orders", [Column("id", "INT"), Column("paid", "DATE")], [(1, "2026-1-5"), (2, None), (3, None)]
)


def test_rows_have_pythons_types_and_columns_names() -> None:
    result = Connection([ORDERS]).execute(
        "SELECT id, paid + INTERVAL 1 MONTH AS due FROM orders WHERE id < 3"
    )
    assert result.rows == [(1, date(2026, 2, 5)), (2, None)]
    assert result.columns == ("id", "due") and result.limit is None and result.affected is None


def test_changes_last_and_are_counted() -> None:
    shop = Connection([ORDERS])
    assert shop.execute("UPDATE orders SET paid = '2026-02-01' WHERE paid IS NULL").affected == 2
    assert shop.changed
    assert shop.execute("SELECT COUNT(paid) FROM orders").rows == [(3,)]
    assert not shop.changed
    assert shop.table_names() == ["orders"]
    assert shop.table("orders", 1) == (("id", "paid"), [(1, date(2026, 1, 5))])


@pytest.mark.parametrize(
    ("sql", "code", "text"),
    [
        ("SELECT nope FROM orders", 1054, "Unknown column 'nope' in 'field list'"),
        ("SELECT id FROM nope", 1146, "Table 'dbbench.nope' doesn't exist"),
        ("SELEC 1", 1064, "You have an error in your SQL syntax"),
        ("SELECT MD5('x')", 1235, "This version of MySQL doesn't yet support 'MD5()' (embedded database)"),
        ("SELECT '\ud800'", 1300, "Invalid utf8mb4 character string"),
        (
            "INSERT INTO orders VALUES (4, 'soon')",
            1292,
            "Incorrect date value: 'soon' for column 'paid' at row 1",
        ),
    ],
)
def test_what_mysql_refuses_has_its_number_and_message(sql: str, code: int, text: str) -> None:
    with pytest.raises(StatementError) as refused:
        Connection([ORDERS]).execute(sql)
    assert refused.value.code == code and refused.value.text.startswith(text)


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT SUM(a), max( b ) FROM t", ("SUM(a)", "max( b )")),
        ("SELECT a+1 FROM t", ("a+1",)),
        ("SELECT DISTINCT upper(b) FROM t", ("upper(b)",)),
        ("SELECT SQL_NO_CACHE upper(b) FROM t", ("upper(b)",)),
        ("SELECT `all`, sql_text FROM (SELECT 1 AS `all`, 2 AS sql_text) q", ("all", "sql_text")),
        ("SELECT A, t.b, `a` AS `x y` FROM t", ("A", "b", "x y")),
        ("SELECT 1.50, 'it''s', NULL, (1), (a), (a+1), - 1 FROM t", ("1.50", "it's", "NULL", "1", "a", "(a+1)", "- 1")),
        ("SELECT a\n+ 1, /* c */ a+2 /* d */ FROM t", ("a\n+ 1", "a+2")),
        ("(SELECT a + 1 FROM t)", ("a + 1",)),
        ("TABLE t", ("a", "b")),
        ("SELECT *, a*2 FROM t", ("a", "b", "a*2")),
        ("SELECT t.*, u.* FROM t JOIN t u ON t.a = u.a", ("a", "b", "a", "b")),
        ("WITH w AS (SELECT SUM(a) s FROM t) SELECT s, s+1 FROM w", ("s", "s+1")),
        ("SELECT EXTRACT(YEAR FROM '2024-01-02'), IF(a,2,3) x FROM t LIMIT 1", ("EXTRACT(YEAR FROM '2024-01-02')", "x")),
        ("SELECT COUNT(*) FROM t UNION ALL SELECT 2", ("COUNT(*)",)),
        ("SHOW TABLES", ("Tables_in_dbbench",)),
        ("SHOW FULL TABLES LIKE 'x%'", ("Tables_in_dbbench (x%)", "Table_type")),
        ("SHOW DATABASES", ("Database",)),
        ("DESCRIBE t", ("Field", "Type", "Null", "Key", "Default", "Extra")),
        ("SHOW COLUMNS FROM t LIKE 'a'", ("Field", "Type", "Null", "Key", "Default", "Extra")),
        ("SHOW CREATE TABLE t", ("Table", "Create Table")),
    ],
)  # fmt: skip
def test_columns_have_the_names_that_mysql_gives_them(sql: str, names: tuple[str, ...]) -> None:
    """Whatever an expression has become for SQLite."""
    table = Table("t", [Column("a", "INT"), Column("b", "VARCHAR(9)")], [(1, "x")])
    assert Connection([table]).execute(sql).columns == names


def test_limits_cut_rows() -> None:
    result = Connection([ORDERS], Limits(rows=2)).execute("SELECT id FROM orders ORDER BY id")
    assert result.rows == [(1,), (2,)] and result.limit == "rows"


def test_limits_end_statements() -> None:
    shop = Connection([ORDERS], Limits(seconds=0.3))
    with pytest.raises(StatementError) as late:
        shop.execute("SELECT COUNT(*) FROM " + ", ".join(f"orders o{n}" for n in range(30)))
    assert late.value.code == TIME_LIMIT


def test_a_statement_that_hit_its_limit_ends_nothing_else() -> None:
    shop = Connection([ORDERS], Limits(seconds=1.0))
    with pytest.raises(StatementError):
        shop.execute("SELECT COUNT(*) FROM " + ", ".join(f"orders o{n}" for n in range(30)))
    assert shop.execute("SELECT 1").rows == [(1,)]


def test_a_table_that_mysql_would_not_make_is_refused() -> None:
    with pytest.raises(StatementError) as refused:
        Connection([Table("t", [Column("a", "INT")], [("x",)])])
    assert refused.value.code == 1366


@pytest.mark.parametrize("type", ["TEXT", "VARCHAR(9)", "CHAR(9)"])
def test_numbers_in_a_column_of_texts_are_written_as_by_mysql(type: str) -> None:
    rows = [(1.0,), (1e5,), (1e20,), (0.1,), (7,), (True,)]
    found = Connection([Table("t", [Column("a", type)], rows)]).execute("SELECT a FROM t").rows
    assert found == [("1",), ("100000",), ("1e20",), ("0.1",), ("7",), ("1",)]


def test_its_database_has_the_name_that_agents_are_shown() -> None:
    assert errors.SHOWN_DATABASE == SHOWN_DATABASE


COMPILED = "from sqlglot.parsers.mysql import MySQLParser; MySQLParser.parse = str.split; import trl_dbbench.mysqlite"
"""`str.split` is of the kind that methods of a compiled class are of."""


def test_a_compiled_sqlglot_is_named_with_the_remedy() -> None:
    """Its parser refuses all that extends it, which would read as an error in every statement's syntax."""
    ended = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith("cannot be extended: pip uninstall sqlglotc\n")
