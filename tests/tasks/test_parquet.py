"""Parquet files and folders: no value changes without a note that names the column, and one column leaves out only itself."""

from __future__ import annotations

import datetime
import logging
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.data.generate.imported import Imported, import_from
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Source
from trl_dbbench.tasks.source import _opened

NOON = datetime.datetime(2024, 7, 1, 12)


def imported(folder: Path, values: pa.Array) -> Imported:
    pq.write_table(pa.table({"id": pa.array(range(len(values))), "v": values}), folder / "t.parquet")
    return import_from([str(folder)])


@pytest.mark.parametrize(
    ("values", "type", "cells", "notes"),
    [
        (pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)), "DECIMAL(10,2)", ["1.10", None], []),
        (pa.array([0.1, 19.99, None], pa.float32()), "DOUBLE", [0.1, 19.99, None], []),
        (pa.array(["a" * 70_000, "b"]), "MEDIUMTEXT", ["a" * 70_000, "b"], []),
        (
            pa.array([Decimal("12345678901234567890.12"), Decimal("1.10")], pa.decimal128(38, 2)),
            "TEXT",
            ["12345678901234567890.12", "1.10"],
            ["numbers of more than 15 digits are kept as TEXT"],
        ),
        (
            pa.array([Decimal(10**17 + 1), Decimal(2)], pa.decimal128(38, 0)),
            "BIGINT",
            [10**17 + 1, 2],
            [],
        ),
        (
            pa.array([2**64 - 1, 1], pa.uint64()),
            "TEXT",
            ["18446744073709551615", "1"],
            ["numbers of more than 64 bits are kept as TEXT"],
        ),
        (pa.array([1.5, float("nan")]), "DOUBLE", [1.5, None], ["NaN (1 cells) is read as NULL"]),
        (
            pa.array([NOON, None], pa.timestamp("us", "Europe/Berlin")),
            "DATETIME",
            ["2024-07-01 12:00:00", None],
            ["its times of Europe/Berlin are in UTC"],
        ),
        (pa.array([NOON, None], pa.timestamp("s", "UTC")), "DATETIME", ["2024-07-01 12:00:00", None], []),
        (
            pa.array([1704103200123456789, 0], pa.timestamp("ns")),
            "TEXT",
            ["2024-01-01 10:00:00.123456789", "1970-01-01 00:00:00"],
            ["times of more than six digits are kept as TEXT"],
        ),
        (
            pa.array([3723000000789, 0], pa.time64("ns")),
            "TEXT",
            ["01:02:03.000000789", "00:00:00"],
            ["times of more than six digits are kept as TEXT"],
        ),
        (
            pa.array([datetime.time(1, 2, 3, 4), None], pa.time64("us")),
            "TIME(6)",
            ["01:02:03.000004", None],
            [],
        ),
        (pa.array(["a", "b"], pa.string_view()), "TEXT", ["a", "b"], []),
        (pa.array(["a", "a"]).dictionary_encode(), "TEXT", ["a", "a"], []),
        (pa.array([True, None]), "BOOLEAN", [1, None], []),
        (pa.array(["{}", None], pa.json_()), "TEXT", ["{}", None], []),
        (pa.array([bytes(16), None], pa.uuid()), "CHAR(36)", [str(UUID(int=0)), None], []),
        (
            pa.array([Decimal("1.5"), None], pa.decimal256(76, 38)),
            "DECIMAL(65,30)",
            [f"1.5{'0' * 37}", None],
            [],
        ),
        (pa.nulls(2), "TEXT", [None, None], []),
    ],
)
def test_no_value_changes_without_a_note(
    tmp_path: Path, values: pa.Array, type: str, cells: list, notes: list[str]
) -> None:
    found = imported(tmp_path, values)
    assert found.tables[0].columns[1].type == type
    assert [row[1] for row in found.tables[0].rows] == cells
    assert found.notes == [f"t.v: {note}" for note in notes]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (pa.array([[1, 2], [3]]), "it has the type list<element: int64>"),
        (pa.array([{"a": 1}, None]), "it has the type struct<a: int64>"),
        (pa.array([datetime.timedelta(1), None]), "it has the type duration[us]"),
        (pa.array(pd.period_range("2024-01", periods=2, freq="M")), "it has the type pandas.period;"),
        (pa.array([b"\xff", None]), "its type binary holds bytes"),
        (pa.array([float("inf"), 1.0]), "it holds an infinite number"),
        (pa.array([2**60, 0], pa.timestamp("us")), "column 'v' cannot be read: date value out of range"),
    ],
)
def test_one_column_leaves_out_only_itself(tmp_path: Path, values: pa.Array, reason: str) -> None:
    found = imported(tmp_path, values)
    assert [column.name for column in found.tables[0].columns] == ["id"]
    assert found.notes[0].startswith(f"t.v: left out, {reason}")


def test_a_type_that_is_not_loaded_is_not_what_it_is_stored_as(tmp_path: Path) -> None:
    named = {"v": "acme.month", "j": "google:sqlType:json"}
    fields = [pa.field(name, pa.int64()) for name in ("id", "v", "j")]
    fields = [field.with_metadata({"ARROW:extension:name": named.get(field.name, "")}) for field in fields]
    pq.write_table(pa.table([[1, 2], [648, 649], [3, 4]], pa.schema(fields)), tmp_path / "t.parquet")
    found = import_from([str(tmp_path)])
    assert found.tables[0].rows == ((1, 3), (2, 4))
    assert [note.partition(";")[0] for note in found.notes] == ["t.v: left out, it has the type acme.month"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"id": [1], "v": [[1]]}), r"the column 'v' has the type list<element: int64>; .* Leave it"),
        (pa.table({"v": pa.array([2**60], pa.timestamp("us"))}), "column 'v' cannot be read: date value"),
        (pa.table({}), r"t\.parquet has no columns"),
    ],
)
def test_what_a_database_cannot_have_is_an_error_that_names_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: pa.Table, message: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "db").mkdir()
    pq.write_table(table, tmp_path / "db" / "t.parquet")
    with pytest.raises(TaskError, match=message):
        Source.of(tmp_path / "db").tables()


def test_the_notes_of_a_folder_are_told_each_time_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "a.csv").write_text("id;preis\n1;1,50\n2;NA\n")
    pq.write_table(pa.table({"x": [1.0, float("nan")]}), tmp_path / "db" / "b.parquet")
    for _ in range(2):
        caplog.clear()
        _opened.cache_clear()
        with caplog.at_level(logging.WARNING):
            Source.of(tmp_path / "db").tables()
        assert [record.message for record in caplog.records][1:] == [
            "a.preis: 'NA' (1 cells) is read as NULL; decimal commas are read as points: '1,50' is 1.50",
            "b.x: NaN (1 cells) is read as NULL",
        ]


def test_a_folder_is_imported_as_its_files_are(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    lines = "".join(f"{number};0{number % 7}123;{number},50\n" for number in range(20))
    (tmp_path / "db" / "a.csv").write_text(f"id;plz;preis\n{lines}")
    pq.write_table(
        pa.table({"id": range(20), "n": [f"n{i % 4}" for i in range(20)]}), tmp_path / "db/b.parquet"
    )
    for _ in range(2):  # a cache must not swallow the notes
        out = tmp_path / "t.jsonl"
        result = CliRunner().invoke(
            app, ["import", str(tmp_path / "db"), "--num-tasks", "8", "--out", str(out), "--force"]
        )
        assert result.exit_code == 0, result.output
        assert "note: a.preis: decimal commas are read as points: '0,50' is 0.50" in result.output
        assert "a, 20 rows: id INT, plz TEXT, preis DECIMAL(10,2)" in result.output
        assert "b, 20 rows: id BIGINT, n TEXT" in result.output


def test_the_folders_of_a_partitioned_table_are_not_tables(tmp_path: Path) -> None:
    folder = tmp_path / "orders.parquet"
    (folder / "year=2024").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2], "v": ["a", "b"]}), folder / "year=2024" / "0.parquet")
    with pytest.raises(TaskError, match=r"orders.parquet' has parts of one table, such as 'year=2024'"):
        import_from([str(folder)])


def test_pandas_index_is_left_out_as_in_csv(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": [1, 2, 3, 4], "v": ["a", "b", "c", "d"]})
    frame[frame.id != 3].to_parquet(tmp_path / "t.parquet")
    found = import_from([str(tmp_path / "t.parquet")])
    assert [column.name for column in found.tables[0].columns] == ["id", "v"]
    assert (
        "t.__index_level_0__: left out, it is pandas' index, which has no name; name it to keep it"
        in found.notes
    )
