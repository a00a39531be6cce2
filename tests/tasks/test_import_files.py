"""`import` of files: dumps, SQLite files, CSV files; and what its options do."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from foreign_databases import BLOG, DVDS, ODD, database_on
from sqlalchemy import make_url
from typer.testing import CliRunner

from trl_dbbench.cli import app
from trl_dbbench.data.generate.imported import import_from, usable
from trl_dbbench.database import Database
from trl_dbbench.database.server.tables import read_tables
from trl_dbbench.episode.validation import validate
from trl_dbbench.errors import ConfigError, TaskError
from trl_dbbench.tasks import Column, Gold, Source, Table, Task, load_tasks
from trl_dbbench.tasks.sources.dump_text import unescaped

PHP_MY_ADMIN = """SET NAMES utf8mb4;
CREATE TABLE `pets` (`id` int(11) NOT NULL, `name` varchar(20) NOT NULL DEFAULT 'it\\'s', `price` decimal(4,2) DEFAULT 4.99,
  `w` float, `born` date DEFAULT NULL, `ok` tinyint(1) UNSIGNED ZEROFILL, `raw` varbinary(9), `at` datetime DEFAULT current_timestamp());
INSERT INTO `pets` (`id`, `name`, `price`, `w`, `born`, `ok`, `raw`, `at`) VALUES
(1, 'Rex', 9.90, 0.5, '2020-01-02', 1, 0xFF00, '2024-01-02 03:04:05'), (2, 'O\\'Hara "x"', -1.10, NULL, NULL, 0, NULL, NULL),
(3, _utf8mb4 'Tom', '3.00', 1e-3, '2021-05-06', TRUE, '', NULL);
ALTER TABLE `pets` ADD PRIMARY KEY (`id`), ADD UNIQUE KEY `n` (`name`), ADD KEY `p` (`price`,`w`);
ALTER TABLE `pets` MODIFY `id` int(11) NOT NULL AUTO_INCREMENT, AUTO_INCREMENT=4;
"""


AS_DUMPED = tuple(statement for statement in ODD if " numbers " not in statement)
"""Without FLOAT: mariadb-dump itself writes six of its digits."""


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["import", *map(str, arguments)])
    if isinstance(result.exception, ConfigError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def dumped(database: Database, name: str, path: Path) -> Path:
    """What mariadb-dump writes of a database on the server."""
    url = make_url(database.url)
    command = [
        shutil.which("mariadb-dump") or "mariadb-dump",
        "-u",
        url.username or "root",
        "--triggers",
        "--routines",
    ]
    with path.open("wb") as file:
        subprocess.run([*command, "-S", url.query["unix_socket"], name], stdout=file, check=True)
    return path


def tasks_of(path: Path, database: Database) -> list[Task]:
    tasks = load_tasks(path)
    assert [each.problem for each in validate(tasks, database) if each.problem] == []
    return tasks


@pytest.mark.slow
@pytest.mark.parametrize(("name", "statements"), [("dvds", DVDS), ("blog", BLOG), ("odd", AS_DUMPED)])
def test_a_dump_gives_what_its_server_gives(
    local_database: Database, tmp_path: Path, name: str, statements: tuple[str, ...]
) -> None:
    with database_on(local_database.url, name, statements):
        there = read_tables(local_database.url, name)
        path = dumped(local_database, name, tmp_path / f"{name}.sql")
    found = import_from([str(path)])
    served, _ = usable(there.tables)
    assert [table.name for table in found.tables] == [table.name for table in served]
    for ours, theirs in zip(found.tables, served, strict=True):
        assert [(each.name, each.type) for each in ours.columns] == [
            (each.name, each.type) for each in theirs.columns
        ]
        assert sorted(map(repr, ours.rows)) == sorted(map(repr, theirs.rows))
    out = tmp_path / "t.jsonl"
    run(path, "--num-tasks", 40, "--out", out)
    tasks_of(out, local_database)


def test_a_dump_whose_keys_come_last(tmp_path: Path, local_database: Database) -> None:
    (tmp_path / "shop.sql").write_text(PHP_MY_ADMIN)
    found = import_from([str(tmp_path / "shop.sql")])
    (pets,) = found.tables
    assert pets.columns == (
        Column("id", "INT NOT NULL AUTO_INCREMENT PRIMARY KEY"),
        Column("name", "VARCHAR(20) NOT NULL UNIQUE"),
        Column("price", "DECIMAL(4,2) DEFAULT '4.99'"),
        Column("w", "FLOAT"),
        Column("born", "DATE"),
        Column("ok", "TINYINT unsigned"),
        Column("at", "DATETIME"),
    )
    assert pets.rows == (
        (1, "Rex", "9.90", 0.5, "2020-01-02", 1, "2024-01-02 03:04:05"),
        (2, 'O\'Hara "x"', "-1.10", None, None, 0, None),
        (3, "Tom", "3.00", 0.001, "2021-05-06", 1, None),
    )
    assert found.notes == [
        "pets.name: its default it's is not held",
        "pets.ok: its ZEROFILL is not held",
        "pets.raw: left out, its type varbinary(9) holds bytes",
        "pets.at: its default current_timestamp() is not held",
    ]


def test_a_sqlite_file(tmp_path: Path, local_database: Database) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.executescript(
            "CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT NOT NULL, price DECIMAL(6,2), at DATETIME, raw BLOB, "
            "code VARCHAR(5) UNIQUE DEFAULT 'x');"
            "INSERT INTO pets VALUES (1, 'Rex', 9.5, '2024-01-02 03:04:05.000000', x'ff', 'a'), (2, 'Tom', 7, NULL, NULL, 'b'),"
            "(3, 'Ida', 7.25, NULL, NULL, 'c');"
            "CREATE TABLE far (id INTEGER PRIMARY KEY, x REAL); INSERT INTO far VALUES (1, 9e999);"
            "CREATE VIEW names AS SELECT name FROM pets; CREATE VIEW gone AS SELECT n FROM nowhere;"
            "CREATE TRIGGER of_pets AFTER INSERT ON pets BEGIN SELECT 1; END;"
            "CREATE TABLE odd (id INT CHECK (id > 0), n TEXT, m TEXT DEFAULT (lower('A')));"
            "INSERT INTO odd VALUES (1, CAST(x'ff41' AS TEXT), 'a');"
            "CREATE VIRTUAL TABLE unread USING fts4(body, content=''); INSERT INTO unread (docid, body) VALUES (1, 'x');"
        )
    connection.close()
    found = import_from([str(tmp_path / "shop.db")])
    pets, far, odd = found.tables
    assert [column.name for column in far.columns] == ["id"]
    assert odd.rows == ((1, "a"),)
    assert [(column.name, column.type) for column in pets.columns] == [
        ("id", "INT NOT NULL AUTO_INCREMENT PRIMARY KEY"),
        ("name", "TEXT NOT NULL"),
        ("price", "DECIMAL(6,2)"),
        ("at", "DATETIME"),
        ("code", "VARCHAR(5) DEFAULT 'x' UNIQUE"),
    ]
    assert pets.rows[0] == (1, "Rex", 9.5, "2024-01-02 03:04:05", "a")
    said = "\n".join(found.notes)
    for note in (
        "pets.raw: left out, its type longblob holds bytes",
        "far.x: left out, it holds an infinite number",
        "odd.n: left out, its texts are no UTF-8",
        "odd: its CHECK constraints, not held",
        "odd.m: the default lower('A'), not held",
        "unread: left out, it cannot be read (",
        "pets: its trigger of_pets is not held",
        "views are left out: names, gone",
    ):
        assert note in said
    run(tmp_path / "shop.db", "--num-tasks", 30, "--out", tmp_path / "t.jsonl")
    tasks_of(tmp_path / "t.jsonl", local_database)


def test_a_sqlite_file_in_utf_16(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.executescript(
            "PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (id INT, n TEXT);"
            "INSERT INTO t VALUES (1, 'é'), (2, '日本');"
        )
    connection.close()
    found = import_from([str(tmp_path / "t.db")])
    assert found.tables[0].rows == ((1, "é"), (2, "日本")) and found.notes == []


@pytest.mark.parametrize(
    ("name", "remedy"), [("t.xlsx", "Save its sheet"), ("t.csv.gz", "Unpack it"), ("t.txt", "Save it as one")]
)
def test_a_file_of_another_kind_is_refused_with_what_to_do(tmp_path: Path, name: str, remedy: str) -> None:
    (tmp_path / name).write_bytes(b"PK\3\4 and so on")
    with pytest.raises(TaskError, match=rf"{name}' is not an SQLite file\. Tables are read .*\. {remedy}"):
        import_from([str(tmp_path / name)])


def test_what_was_read_is_told_and_can_be_told(tmp_path: Path) -> None:
    rows = "".join(f"{n};0{n}000;{n},50;{n}.1.2024\n" for n in range(1, 9))
    (tmp_path / "kunden.csv").write_text("nr;plz;umsatz;tag\n" + rows)
    (tmp_path / "one.csv").write_text("name\nx\n")
    out = tmp_path / "t.jsonl"
    said = run(
        tmp_path / "kunden.csv", tmp_path / "one.csv", "--type", "nr=TEXT", "--out", out, "--num-tasks", 20
    )
    for line in (
        "kunden.csv: cells are separated by semicolons",
        "note: kunden.umsatz: decimal commas are read as points: '1,50' is 1.50",
        "kunden, 8 rows: nr TEXT, plz TEXT, umsatz DECIMAL(10,2), tag DATE",
        "note: one gives no tasks: a table needs two rows and two columns",
    ):
        assert line in said


def test_the_quoted_names_of_sqlites_dumps(tmp_path: Path) -> None:
    dump = 'CREATE TABLE IF NOT EXISTS "users" ("id" integer, "name" text);\nINSERT INTO users VALUES(1,\'Ann\');\n'
    (tmp_path / "d.sql").write_text(dump)
    with pytest.raises(
        TaskError, match=r'the table "users" is named in double quotes.*give the \.sqlite file'
    ):
        import_from([str(tmp_path / "d.sql")])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--out", "o.jsonl", "--test-out", "./o.jsonl"), "o.jsonl' would be written twice; name two files"),
        (("--out", "t.csv"), "t.csv' is the file to read; write to another"),
        (
            ("--out", "o.jsonl", "--test-out", "p.jsonl", "--test-size", "10"),
            "the test size is 10.0; it must be a share",
        ),
    ],
)
def test_what_could_not_be_written_is_refused_before_a_task_is_drafted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("id,name\n1,Ann\n2,Bo\n")
    with pytest.raises(ConfigError, match=re.escape(error)):
        run("t.csv", *options)
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_file_that_is_there_is_replaced_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x\n1,a\n2,b\n3,c\n")
    out = tmp_path / "t.jsonl"
    out.write_text("mine\n")
    with pytest.raises(ConfigError, match="is there already; --force replaces it"):
        run(tmp_path / "a.csv", "--out", out)
    with pytest.raises(ConfigError, match="is there already"):
        run(tmp_path / "a.csv", "--out", tmp_path / "new.jsonl", "--test-out", out)
    assert out.read_text() == "mine\n" and not (tmp_path / "new.jsonl").exists()
    run(tmp_path / "a.csv", "--out", out, "--force", "--num-tasks", 5)
    assert len(load_tasks(out)) == 5


def test_difficulty_is_the_most_skills_of_a_task(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x,n\n" + "".join(f"{n},{'ab'[n % 2]},{n * n}\n" for n in range(12)))
    for most in (1, 2):
        run(tmp_path / "a.csv", "--out", tmp_path / f"{most}.jsonl", "--difficulty", most, "--num-tasks", 30)
        sizes = {len(task.skills) for task in load_tasks(tmp_path / f"{most}.jsonl")}
        assert max(sizes) == most


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.csv", "--type", "id"], "is not NAME=TYPE"),
        (["a.csv", "--type", "ix=TEXT"], "unknown column 'ix'; allowed: a.id, a.x, id, x"),
        (["a.csv", "--delimiter", ";;"], "must be one character"),
        (["a.csv", "--encoding", "klingon"], "no encoding 'klingon'"),
        (["d.sql", "--delimiter", ";"], "are for CSV files"),
        (["d.sql", "--tables", "pats"], "nearest: pets"),
        (["a.csv", "--tables", "a"], "for a server or a dump"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "a.csv").write_text("id,x\n1,a\n2,b\n3,c\n")
    (tmp_path / "d.sql").write_text(PHP_MY_ADMIN)
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / arguments[0], *arguments[1:], "--out", tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    "written", ["_utf8mb4'it''s'", "_UTF8MB4'it''s'", "_Latin1 'it''s'", "N'it''s'", "n'it''s'"]
)
def test_an_introducer_is_no_part_of_a_text(written: str) -> None:
    assert unescaped(written) == "it's"


def test_texts_of_one_byte_a_character_fit_a_row_of_other_servers(
    local_database: Database, tmp_path: Path
) -> None:
    """Tasks are played in utf8mb4. There a row has room for 16,383 characters; more are MySQL's errors 1074 and 1118."""
    many = ", ".join(f"c{n} varchar(255) DEFAULT ''" for n in range(80))
    rows = ", ".join(f"({n}, {', '.join([repr(f'v{n}')] * 80)})" for n in range(4))
    path = tmp_path / "old.sql"
    path.write_text(
        f"CREATE TABLE many (id int PRIMARY KEY, {many}) DEFAULT CHARSET=latin1; INSERT INTO many VALUES {rows};"
        "CREATE TABLE long_ (id int PRIMARY KEY, a varchar(20000) NOT NULL) DEFAULT CHARSET=latin1;"
        "INSERT INTO long_ VALUES (1,'x'),(2,'y'),(3,'x');"
    )
    found = import_from([str(path)])
    types = {table.name: [column.type for column in table.columns] for table in found.tables}
    assert types["long_"] == ["INT PRIMARY KEY", "TEXT NOT NULL"]
    assert types["many"].count("TEXT") == 22 and types["many"].count("VARCHAR(255) DEFAULT ''") == 58
    assert "long_.a: VARCHAR(20000) NOT NULL becomes TEXT, as a row would be too long" in found.notes
    for table in found.tables:
        with local_database.sandbox(Task("t", "?", (table,), "SELECT", Gold(answer=((1,),)))) as sandbox:
            assert sandbox.execute(f"SELECT COUNT(*) FROM {table.name}").rows == [(len(table.rows),)]


def test_many_short_texts_fit_a_page(local_database: Database, tmp_path: Path) -> None:
    """InnoDB keeps texts of up to 255 bytes with their row, which has 8,126: MySQL's error 1118 again."""
    path = tmp_path / "wide.sqlite"
    names = [f"c{n}" for n in range(60)]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            f"CREATE TABLE t (id INTEGER PRIMARY KEY, {' VARCHAR(50), '.join(names)} VARCHAR(50))"
        )
        connection.execute("INSERT INTO t (id, c0) VALUES (1, 'x'), (2, 'y')")
        connection.commit()
    (table,) = import_from([str(path)]).tables
    source = Source.of(path)
    for task in (
        Task("t", "?", (table,), "SELECT", Gold(answer=((1,),))),
        Task(
            "t", "?", source.tables("mysql"), "SELECT", Gold(sql="SELECT 1"), grader="strict", source=source
        ),
    ):
        with local_database.sandbox(task) as sandbox:
            assert sandbox.execute("SELECT c0 FROM t").rows == [("x",), ("y",)]


def test_a_value_of_a_list_may_have_parentheses() -> None:
    """The column was left out: its list ended at the first of them."""
    size, kind = Column("size", "ENUM('small (s) size','big')"), Column("kind", "enum('a','b')")
    sold = Table("sold", (Column("id", "INT"), size, kind), ((1, "big", "a"), (2, "small (s) size", "b")))
    assert usable([sold]) == ([sold], [])
    other = Table("sold", sold.columns, ((1, "big", "x"), (2, "other", "b")))
    assert usable([other]) == (
        [Table("sold", (Column("id", "INT"), Column("size"), Column("kind")), other.rows)],
        [
            "sold.size: its list of values is not held (it holds 'other', which is outside its list)",
            "sold.kind: its list of values is not held (it holds 'x', which is outside its list)",
        ],
    )
