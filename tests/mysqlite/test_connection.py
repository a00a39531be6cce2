"""`mysqlite` by itself: tables or a file with limits; a statement gives rows or MySQL's error."""

from __future__ import annotations

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


def test_its_database_has_the_name_that_agents_are_shown() -> None:
    assert errors.SHOWN_DATABASE == SHOWN_DATABASE
