"""Tables whose rows are in several files, as Hugging Face, Spark and Dask write them."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trl_dbbench.data.generate.imported import import_from
from trl_dbbench.errors import TaskError
from trl_dbbench.tasks import Source
from trl_dbbench.tasks.csv_tables import read_csv_tables


def write(path: Path, ids: list[int], column: str = "id") -> str:
    """A file with these numbers and a text for each."""
    path.parent.mkdir(exist_ok=True)
    texts = [f"v{each}" for each in ids]
    if path.suffix == ".parquet":
        pq.write_table(pa.table({column: ids, "v": texts}), path)
    else:
        rows = (f"{number},{text}\n" for number, text in zip(ids, texts, strict=True))
        path.write_text(f"{column},v\n" + "".join(rows))
    return str(path)


PARTS = [
    ("orders", "train-00000-of-00002.parquet", "train-00001-of-00002.parquet", "train"),
    ("orders", "train-00000-of-00002.csv", "train-00001-of-00002.csv", "train"),
    (
        "orders",
        "part-00000-7c2b6f6e-c000.snappy.parquet",
        "part-00001-7c2b6f6e-c000.snappy.parquet",
        "orders",
    ),
    ("orders", "part-00000.snappy.parquet", "part-00001.snappy.parquet", "orders"),
    ("orders", "part-9.parquet", "part-10.parquet", "orders"),
    ("orders.csv", "part-00000.csv", "part-00001.csv", "orders"),
    ("orders.parquet", "part.9.parquet", "part.10.parquet", "orders"),
]


@pytest.mark.parametrize(("folder", "first", "second", "name"), PARTS)
def test_the_parts_of_a_table_are_one_table(
    tmp_path: Path, folder: str, first: str, second: str, name: str
) -> None:
    home = tmp_path / folder
    files = [write(home / first, [1, 2]), write(home / second, [3])]
    write(home / "pets.csv", [7])
    rows = ((1, "v1"), (2, "v2"), (3, "v3"))
    for sources in ([str(home)], files):
        tables = {table.name: table.rows for table in import_from(sources).tables}
        assert tables == {name: rows} | ({"pets": ((7, "v7"),)} if sources == [str(home)] else {})
    shared = Source.of(home)
    assert {table.name for table in shared.tables()} == {name, "pets"}
    assert "1, 'v1'\n2, 'v2'\n3, 'v3'" in shared.opened.described("sqlite")
    if first.endswith(".csv"):
        assert read_csv_tables(files)[name].rows == rows


def test_parts_with_other_columns_are_refused(tmp_path: Path) -> None:
    for suffix, kinds in (("csv", ("", "")), ("parquet", (" int64", " string"))):
        home = tmp_path / suffix
        write(home / f"part-00000.{suffix}", [1])
        write(home / f"part-00001.{suffix}", [2], column="nr")
        other, first = f"nr{kinds[0]}, v{kinds[1]}", f"id{kinds[0]}, v{kinds[1]}"
        message = (
            rf"part-00001.{suffix}' has the columns {other}, and '.*part-00000.{suffix}' {first}: parts of"
        )
        with pytest.raises(TaskError, match=message):
            import_from([str(home)])
        with pytest.raises(TaskError, match=message):
            Source.of(home).tables()


def test_a_cell_that_is_wrong_is_named_by_its_part(tmp_path: Path) -> None:
    first = write(tmp_path / "t-00000-of-00002.csv", [1, 2], "id:INT")
    second = tmp_path / "t-00001-of-00002.csv"
    second.write_text("id:INT,v\nx,v3\n")
    with pytest.raises(TaskError, match=r"t-00001-of-00002.csv, line 2, column 'id': 'x' is not of type INT"):
        read_csv_tables([first, second])


@pytest.mark.parametrize("name", ["t.csv", "t-00000-of-00001.csv", "part-0.parquet"])
def test_a_file_that_is_given_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    file = write(tmp_path / name, [1])
    for again in (file, f"../{name}"):
        with pytest.raises(TaskError, match=f"the file '{again}' is given twice; leave one out"):
            import_from([file, again])


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (
            [0, 2],
            r"train-00000-of-00003\.{0}' is one of 3 .* 'train', and train-00001-of-00003\.{0} is missing",
        ),
        ([1], r"train-00001-of-00003\.{0}' is .*, and train-00000-of-00003\.{0} and 1 more are missing"),
        ([1, 3], r"train-00001-of-00003\.{0}' is .*, and train-00002-of-00003\.{0} is missing"),
        ([0, 1, 2], ""),
        ([1, 2, 3], ""),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_parts_of_which_one_is_missing_are_refused(
    tmp_path: Path, suffix: str, there: list[int], missing: str
) -> None:
    home = tmp_path / "home"
    files = [write(home / f"train-{number:05}-of-00003.{suffix}", [number]) for number in there]
    reads: list[Callable[[], object]] = [
        lambda: [row[0] for row in import_from(files).tables[0].rows],
        lambda: [row[0] for row in import_from([str(home)]).tables[0].rows],
        lambda: Source.of(home).opened.described("sqlite").count("'v"),
    ]
    for read, rows in zip(reads, (there, there, 3), strict=True):
        if missing:
            with pytest.raises(TaskError, match=missing.format(suffix) + ". Give all of them, in one folder"):
                read()
        else:
            assert read() == rows
    if not missing:
        write(home / f"train-00000-of-00001.{suffix}", [9])
        with pytest.raises(TaskError, match=r"train-.*-of-0000.* are two tables of one name"):
            Source.of(home)


def test_equal_parts_in_two_folders_are_tables_named_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder's conversion is kept by what its files hold, and by the names of its tables."""
    for name in ("a", "b"):
        file = write(tmp_path / name / "part-00000.csv", [1])
        assert [table.name for table in Source.of(tmp_path / name).tables()] == [name]
        (tmp_path / name / "sub").mkdir()
        monkeypatch.chdir(tmp_path / name / "sub")
        assert [*read_csv_tables(["../part-00000.csv"])] == [*read_csv_tables([file])] == [name]


def test_parts_are_opened_one_at_a_time(tmp_path: Path) -> None:
    for number in range(45):
        write(tmp_path / "home" / f"part.{number}.parquet", [number])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 20, limits[1]))
    try:
        (table,) = import_from([str(tmp_path / "home")]).tables
        assert [row[0] for row in table.rows] == [*range(45)]
        assert [table.name for table in Source.of(tmp_path / "home").tables()] == ["home"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_error_of_a_parquet_file_names_the_part(tmp_path: Path) -> None:
    first, second = tmp_path / "home" / "part.0.parquet", tmp_path / "home" / "part.1.parquet"
    first.parent.mkdir()
    for value, message in (
        (1, rf"{second} is not a readable parquet file"),
        (2**64 - 1, rf"{second}, column 'id' holds 18446744073709551615, a number of more than 64 bits"),
    ):
        for path, cell in ((first, 1), (second, value)):
            pq.write_table(pa.table({"id": pa.array([cell], pa.uint64()), "v": ["v"]}), path)
        if value == 1:
            content = bytearray(second.read_bytes())
            content[4:60] = b"\xff" * 56  # a page of the column
            second.write_bytes(content)
            assert any(message in note for note in import_from([str(first.parent)]).notes)
        with pytest.raises(TaskError, match=message):
            Source.of(first.parent).tables()


def test_a_table_and_parts_of_its_name_are_two_tables(tmp_path: Path) -> None:
    write(tmp_path / "t.csv", [1])
    write(tmp_path / "t-00000-of-00001.parquet", [1])
    with pytest.raises(TaskError, match="are two tables of one name"):
        import_from([str(tmp_path)])
