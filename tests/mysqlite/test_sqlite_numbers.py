"""Numbers that SQLite cannot hold: refused with the column's name, in tables and in statements. No other value."""

from __future__ import annotations

import dataclasses
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from databases import table, task

from trl_dbbench.database import Database
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Source
from trl_dbbench.tasks.table import Column, Table

TOO_LONG = "up to 15 digits. Play it on a server .* or give the column the type TEXT"


@pytest.mark.parametrize(
    ("columns", "cells", "message"),
    [
        ("x DECIMAL(38,2)", ["12345678901234567890123456789012345.12"], TOO_LONG),
        ("x DECIMAL(20,2)", ["12345678901234567.01", "12345678901234567.02"], TOO_LONG),
        ("x DECIMAL(20,0)", [12345678901234567], TOO_LONG),
        ("x DECIMAL(65)", [2**70], TOO_LONG),
        ("x NUMERIC(30,20)", ["0.12345678901234567"], TOO_LONG),
        (
            "x BIGINT UNSIGNED",
            [2**64 - 1],
            "integers of 64 bits; give the column the type TEXT, or play it on",
        ),
    ],
)
def test_a_table_whose_numbers_would_change_is_refused(
    sqlite_database: Database, columns: str, cells: list[Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message) as error:
        sqlite_database.sandbox(task(table("t", columns, *((cell,) for cell in cells)))).close()
    assert "column 'x'" in str(error.value)


@pytest.mark.parametrize("cell", ["nan", "NaN", "Infinity"])
def test_a_decimal_that_is_no_number_is_refused(sqlite_database: Database, cell: str) -> None:
    """As pandas writes a missing one."""
    with pytest.raises(TaskError, match="tables cannot be made"):
        sqlite_database.sandbox(task(table("t", "x DECIMAL(5,2)", (cell,)))).close()


def test_numbers_of_fifteen_digits_come_back(sqlite_database: Database) -> None:
    cells = ["1234567890123.45", "0.10", -5, 10**17, True, 0.1 + 0.2, None]
    with sqlite_database.sandbox(
        task(table("t", "x DECIMAL(38,2)", *((cell,) for cell in cells)))
    ) as sandbox:
        wanted = ["1234567890123.45", "0.10", "-5.00", "100000000000000000.00", "1.00", "0.30"]
        assert sandbox.execute("SELECT x FROM t").rows == [*((Decimal(each),) for each in wanted), (None,)]
        assert sandbox.execute("SELECT COUNT(DISTINCT x) FROM t").rows == [(6,)]


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        ("x DECIMAL(38,2)", "12345678901234567.01"),
        ("x DECIMAL(38,2)", "'99999999999999999999'"),
        ("x BIGINT UNSIGNED", "18446744073709551615"),
        ("x BIGINT UNSIGNED", "'18446744073709551615'"),
    ],
)
def test_a_statement_that_would_store_another_number_is_refused(
    sqlite_database: Database, columns: str, value: str
) -> None:
    with sqlite_database.sandbox(task(table("t", columns, (1,)))) as sandbox:
        result = sandbox.execute(f"INSERT INTO t VALUES ({value})")
        assert result.error_code == 1235, "in words of its own, not as MySQL's"
        assert sandbox.execute("SELECT COUNT(*) FROM t").rows == [(1,)]


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT 9223372036854775807, -9223372036854775808", [(2**63 - 1, -(2**63))]),
        ("SELECT x FROM t WHERE x < 9223372036854775808 LIMIT 18446744073709551615", [(1,)]),
        ("SELECT x FROM t WHERE x BETWEEN -9223372036854775809 AND (99999999999999999999)", [(1,)]),
        ("SELECT 9223372036854775808", None),
        ("SELECT CONCAT(99999999999999999999)", None),
        ("SELECT -9223372036854775809", None),
        (f"SELECT x + 9{'9' * 5000} FROM t", None),
    ],
)
def test_a_number_beyond_64_bits_is_compared_and_never_shown(
    sqlite_database: Database, sql: str, rows: list[tuple] | None
) -> None:
    with sqlite_database.sandbox(task(table("t", "x BIGINT", (1,)))) as sandbox:
        result = sandbox.execute(sql)
        assert result.rows == rows
        assert rows or "whole numbers above 9223372036854775807' (embedded" in str(result.error)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("UPDATE t SET x = 9223372036854775808", [("9223372036854775808",)]),
        ("INSERT INTO t VALUES (99999999999999999999)", [("a",), ("99999999999999999999",)]),
        ("DELETE FROM t WHERE x = 99999999999999999999 LIMIT 18446744073709551615", [("a",)]),
        ("UPDATE t SET x = CONCAT(99999999999999999999, 'a')", None),
    ],
)
def test_a_number_beyond_64_bits_is_written_with_all_its_digits(
    sqlite_database: Database, sql: str, rows: list[tuple] | None
) -> None:
    with sqlite_database.sandbox(task(table("t", "x TEXT", ("a",)))) as sandbox:
        result = sandbox.execute(sql)
        assert sandbox.execute("SELECT x FROM t").rows == (rows or [("a",)])
        assert rows or "whole numbers above 9223372036854775807' (embedded" in str(result.error)


@pytest.mark.parametrize(
    ("sql", "on_a_server", "embedded"),
    [
        ("SELECT 1e400", "1367 .*Illegal double '1e400' value", "1367 .*Illegal double '1e400' value"),
        ("INSERT INTO t VALUES (-1E+309)", "1367 .*Illegal double '1E\\+309' value", "1367 .*'1E\\+309'"),
        ("SELECT x FROM t WHERE x < 1.5e308 OR '1e400' = 'a'", [(1e308,), (1.1e308,)], None),
        ("SELECT '1e400' + 0", [(1.7976931348623157e308,)], "1235 .*beyond the range of DOUBLE"),
        ("SELECT SUM(x) FROM t", [(0.0,)], "1235 .*beyond the range of DOUBLE"),
    ],
)
def test_no_number_is_infinite(
    local_database: Database, sqlite_database: Database, sql: str, on_a_server: Any, embedded: str | None
) -> None:
    for database, wanted in ((local_database, on_a_server), (sqlite_database, embedded or on_a_server)):
        with database.sandbox(task(table("t", "x DOUBLE", (1e308,), (1.1e308,)))) as sandbox:
            result = sandbox.execute(sql)
            if isinstance(wanted, str):
                assert result.error is not None and re.match(wanted, result.error)
            else:
                assert result.rows == wanted


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_columns_that_differ_in_capitals_are_one_name(sqlite_database: Database, dialect: str) -> None:
    twice = Table("t", (Column("A", "INT"), Column("a", "INT")), ((1, 2),))
    with pytest.raises(TaskError, match="the column 'A' is there twice; MySQL and SQLite ignore case"):
        sqlite_database.sandbox(dataclasses.replace(task(twice), dialect=dialect)).close()


def test_an_integer_beyond_64_bits_names_its_column_on_sqlite_itself(sqlite_database: Database) -> None:
    wide = dataclasses.replace(task(table("t", "x INT", (2**64,))), dialect="sqlite")
    with pytest.raises(TaskError, match="table 't', column 'x' holds 18446744073709551616, too large"):
        sqlite_database.sandbox(wide).close()


# --- parquet --------------------------------------------------------------------------------------


def parquet(folder: Path, arrays: list[pyarrow.Array], names: list[str]) -> Source:
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, names=names), folder / "t.parquet")
    return Source.of(folder)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            pyarrow.array([1, 2**64 - 1], pyarrow.uint64()),
            "column 'x' holds 18446744073709551615, a number of more than 64 bits, which SQLite",
        ),
        (
            pyarrow.array([Decimal("12345678901234567890.12"), Decimal("1.10")], pyarrow.decimal128(38, 2)),
            "column 'x' holds 12345678901234567890.12, a number of more than 15 digits, which SQLite",
        ),
        (
            pyarrow.array([Decimal(2**70)], pyarrow.decimal128(38, 0)),
            "column 'x' holds 1180591620717411303424",
        ),
    ],
)
def test_a_parquet_column_that_sqlite_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: pyarrow.Array, message: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(TaskError, match=message) as error:
        parquet(tmp_path / "wide", [array], ["x"]).tables()
    assert "Free some space" not in str(error.value)


def test_parquet_numbers_that_it_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arrays = [
        pyarrow.array([Decimal("1.10"), Decimal("1234567890123.45")], pyarrow.decimal128(38, 2)),
        pyarrow.array([Decimal(2**62 + 1), Decimal(-1)], pyarrow.decimal128(38, 0)),
        pyarrow.array([2**63 - 1, None], pyarrow.uint64()),
    ]
    source = parquet(tmp_path / "held", arrays, ["x", "y", "z"])
    with source.file.connect() as connection:
        found = connection.execute("SELECT x, y, z FROM t").fetchall()
    assert found == [(1.1, 2**62 + 1, 2**63 - 1), (1234567890123.45, -1, None)]


@pytest.mark.parametrize("names", [["A", "a"], ["a", "a"]])
def test_parquet_columns_of_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(TaskError, match=rf"t\.parquet: the column '{names[0]}' is there twice") as error:
        parquet(tmp_path / "twice", [pyarrow.array([1]), pyarrow.array([2])], names).tables()
    assert "Free some space" not in str(error.value)
