"""Tables of servers as others have set them up: what is kept of them to the last digit, and what is left out with a note."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from foreign_databases import BLOG, DVDS, ODD, database_on
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.data.generate.imported import usable
from trl_dbbench.database import Database
from trl_dbbench.database.server.tables import ServerTables, read_tables
from trl_dbbench.episode.validation import validate
from trl_dbbench.tasks import Table, load_tasks


@pytest.fixture(scope="module")
def odd(server_database: Database) -> ServerTables:
    with database_on(server_database.url, "odd", ODD):
        return read_tables(server_database.url, "odd")


def named(tables: list[Table], name: str) -> Table:
    return next(table for table in tables if table.name == name)


def column(table: Table, name: str) -> list:
    place = [column.name for column in table.columns].index(name)
    return [row[place] for row in table.rows]


def test_bytes_and_shapes_of_all_types_are_left_out_with_a_note(odd: ServerTables) -> None:
    table = named(odd.tables, "bytes")
    assert [column.name for column in table.columns] == ["id", "name"]
    notes = [note for note in odd.notes if note.startswith("bytes.") and "holds bytes" in note]
    assert [note.partition(":")[0] for note in notes] == [f"bytes.{letter}" for letter in "abcdefghijk"]


def test_fractions_of_times_are_kept(odd: ServerTables) -> None:
    table = named(odd.tables, "laps")
    assert column(table, "lap") == ["00:01:02.345", "-01:00:00.250"]
    assert column(table, "gap") == ["-00:00:00.500000", "838:59:58.999999"]
    assert column(table, "seen") == ["2024-01-02 03:04:05.10", "2024-01-02 03:04:05.00"]
    assert column(table, "at") == ["2024-01-02 00:00:00", None]


def test_numbers_are_kept_to_the_last_bit(odd: ServerTables) -> None:
    table = named(odd.tables, "numbers")
    assert column(table, "f") == [16777216.0, 1234567.5, 0.1, 123456.7]
    assert column(table, "d") == [0.1, 1e300, -1e-300, 2.5]
    assert column(table, "small") == ["-0.0000000001", "1.5000000000", "0.0000000000", "0.0000000000"]
    assert column(table, "big") == [18446744073709551615, 9223372036854775808, 7, 8]


def test_keys_checks_and_triggers_that_are_not_held_are_named(odd: ServerTables) -> None:
    notes = [note for note in odd.notes if note.startswith("pairs")]
    check = next(note for note in notes if note.startswith("pairs: its CHECK "))
    assert "(`amount` > 0)" in check
    assert [note for note in notes if note != check] == [
        "pairs: its unique key ab of several columns (a, b) is not held",
        "pairs: its unique key beginning of a part or an expression (note) is not held",
        "pairs: its trigger pairs_ins is not held",
    ]


def test_a_column_that_no_database_takes_is_left_out_and_the_others_come(odd: ServerTables) -> None:
    tables, notes = usable(odd.tables)
    assert [table.name for table in tables] == ["bytes", "days", "laps", "numbers", "pairs"]
    assert [column.name for column in named(tables, "days").columns] == ["id", "at", "n"]
    assert [column.name for column in named(tables, "numbers").columns] == ["id", "f", "d", "small"]
    assert [re.split(r",| \(This", note)[0] for note in notes] == [
        "days.day: left out",
        "laps.seen: its type DATETIME(2) becomes TEXT",  # the embedded database would cut its fractions off
        "numbers.big: left out",
    ]
    assert column(named(tables, "laps"), "seen") == ["2024-01-02 03:04:05.10", "2024-01-02 03:04:05.00"]
    assert "days.at: its default 0000-00-00 00:00:00 is not held" in odd.notes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "statements", "notes"),
    [
        (
            "dvds",
            DVDS,
            [
                "address.location: left out, its type geometry holds bytes",
                "film_text: its FULLTEXT key idx_title_description is not held",
                "film: its trigger ins_film is not held",
                "language.last_update: its ON UPDATE is not held",
                "film_actor: its primary key of several columns (actor_id, film_id) is not held",
                "dvds: its views are left out: film_list",
            ],
        ),
        (
            "blog",
            BLOG,
            [
                "wp_posts.post_date: its default 0000-00-00 00:00:00 is not held",
                "wp_posts.post_date_gmt: left out, Incorrect datetime value: '0000-00-00 00:00:00'",
            ],
        ),
        ("odd", ODD, ["numbers.big: left out, 1264"]),
    ],
)
def test_a_foreign_database_becomes_tasks_that_are_right_there(
    server_database: Database, tmp_path: Path, name: str, statements: tuple[str, ...], notes: list[str]
) -> None:
    out = tmp_path / "tasks.jsonl"
    with database_on(server_database.url, name, statements):
        options = ["--database", name, "--num-tasks", "40", "--out", str(out)]
        result = CliRunner().invoke(app, ["import", server_database.url, *options])
    assert result.exit_code == 0, result.output
    for note in notes:
        assert f"note: {note}" in result.output
    tasks = load_tasks(out)
    assert [each.problem for each in validate(tasks, server_database) if each.problem] == []


def test_partitions_are_named(server_database: Database) -> None:
    made = (
        "CREATE TABLE parted (id INT, v VARCHAR(3)) PARTITION BY HASH (id) PARTITIONS 3",
        "CREATE TABLE whole (id INT, v VARCHAR(3))",
    )
    with database_on(server_database.url, "parts", made):
        found = read_tables(server_database.url, "parts")
    assert [note for note in found.notes if "partitions" in note] == ["parted: without its partitions"]


def test_what_only_mariadb_has(local_database: Database) -> None:
    made = (
        "CREATE TABLE t (id INT, v VARCHAR(9) COMPRESSED)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "CREATE SEQUENCE numbers",
    )
    with database_on(local_database.url, "compressed", made):
        found = read_tables(local_database.url, "compressed")
    tables, notes = usable(found.tables)
    assert [column.type for column in tables[0].columns] == ["INT", "VARCHAR(9)"] and notes == []
    assert tables[0].rows == ((1, "a"), (2, "b"))
    assert found.notes == ["compressed: its sequences are left out: numbers"]


OLD = (
    "SET SESSION sql_mode = ''",
    """CREATE TABLE old (id INT PRIMARY KEY, kind ENUM('a','b') DEFAULT 'a', signs SET('x','y'), price DECIMAL(6,2) UNSIGNED,
       code VARCHAR(9) COLLATE utf8mb4_bin UNIQUE, shown INT(5) ZEROFILL)""",
    "INSERT INTO old VALUES (1, 'c', 'x,y', 2.50, 'a', 42), (2, 'b', '', 3.25, 'A', 7), (3, 'a', 'y', 9.75, 'b', 1)",
)


def test_what_only_a_server_of_old_takes_becomes_what_any_server_takes(
    server_database: Database, tmp_path: Path
) -> None:
    """An ENUM that holds none of its values, a key whose texts differ by case only, and UNSIGNED fractions."""
    with database_on(server_database.url, "old_one", OLD):
        out = tmp_path / "tasks.jsonl"
        options = ["--database", "old_one", "--num-tasks", "30", "--out", str(out)]
        result = CliRunner().invoke(app, ["import", server_database.url, *options])
    for note in (
        "old.kind: its list of values is not held (it holds '', which is outside its list)",
        "old.price: its UNSIGNED is not held",
        "old.code: its key is not held",
        "old.shown: its ZEROFILL is not held",
    ):
        assert f"note: {note}" in result.output
    tasks = load_tasks(out)
    assert [column.type for column in tasks[0].tables[0].columns] == [
        *("INT NOT NULL PRIMARY KEY", "TEXT", "SET('x','y')", "DECIMAL(6,2)", "VARCHAR(9)", "INT unsigned"),
    ]
    assert [each.problem for each in validate(tasks, server_database) if each.problem] == []


def test_a_table_whose_rows_are_too_large_is_left_out_alone(
    docker_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trl_dbbench.database.server.connections.MAX_ROW_BYTES", 100_000)
    large = (
        "CREATE TABLE docs (id INT PRIMARY KEY, body LONGTEXT)",
        "INSERT INTO docs SELECT 1, REPEAT('x', 200000)",
    )
    after = ("CREATE TABLE words (word TEXT)", "INSERT INTO words VALUES ('one')")
    with database_on(docker_database.url, "large", (*large, *after)):
        read = read_tables(docker_database.url, "large")
    assert [each.name for each in read.tables] == ["words"]
    assert read.notes == ["docs: left out, it cannot be read (it has rows of more than 4,194,304 bytes)"]
