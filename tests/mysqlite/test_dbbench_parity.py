"""DB-Bench's own columns and statements on the embedded database: it answers as MySQL 9 does, or refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlglot
from databases import table
from mysql_parity import WRONG, one, play
from required import lacking
from sqlglot.errors import SqlglotError

from trl_dbbench.data.generate.slips import wrong_statements
from trl_dbbench.database import Database
from trl_dbbench.database.sandbox import Limits
from trl_dbbench.mysqlite.collation import lower, sort_key, unknown_letters, upper
from trl_dbbench.tasks import Gold, Task, load_tasks

DATA = Path(__file__).parents[3] / "shared" / "data" / "agentbench"
VALUES = (
    ("1", "x"),
    ("12", "2-0"),
    ("0", "Replay"),
    ("1.5", "1,429"),
    ("7", ""),
    ("5", "120 hp"),
    ("-3", "?"),
)
NUMBERS_IN_CHANGES = """
    UPDATE t SET b = 'q' WHERE a = 1
    UPDATE t SET b = 'q' WHERE a IN (1, 2)
    UPDATE t SET b = 'q' WHERE a IN (1, 'x')
    UPDATE t SET b = 'q' WHERE a BETWEEN 1 AND 2
    UPDATE t SET b = 'q' WHERE NOT a
    UPDATE t SET b = 'q' WHERE IF(a, 1, 0)
    UPDATE t SET b = 'q' WHERE a > 5 AND i = 1
    UPDATE t SET b = 'q' WHERE COALESCE(a, 'z') = 1
    UPDATE t SET b = 'q' WHERE CONCAT(a) = 1
    UPDATE t SET b = 'q' WHERE REPLACE(a, ',', '') > 5
    UPDATE t SET b = 'q' WHERE CAST(a AS SIGNED) > 5
    UPDATE t SET b = 'q' WHERE CAST(a AS DECIMAL(10,2)) > 5
    UPDATE t SET b = 'q' WHERE CAST(a AS DOUBLE) > 5
    UPDATE t SET b = 'q' WHERE i IN (SELECT a FROM z)
    UPDATE t SET b = 'q' WHERE i < (SELECT MAX(a) FROM z)
    UPDATE t SET b = 'q' WHERE i < (SELECT AVG(a) FROM z)
    UPDATE t SET b = 'q' ORDER BY a + 0 LIMIT 1
    UPDATE t SET b = a + 1
    UPDATE t SET b = a / 2
    UPDATE t SET b = a DIV 2
    UPDATE t SET b = ROUND(a, 1)
    UPDATE t SET b = CASE WHEN a > 1 THEN 'p' ELSE 'n' END
    UPDATE t SET b = CASE WHEN i = 1 THEN a ELSE '0' END + 1
    UPDATE t SET b = YEAR(a)
    DELETE FROM t WHERE a > 1
    DELETE FROM t WHERE a > 1 LIMIT 1
    DELETE t FROM t JOIN z ON t.i = z.a
    INSERT INTO t (b) SELECT SUM(a) FROM z
    INSERT INTO t (b) SELECT MAX(a) + 1 FROM z
    INSERT INTO t (b) SELECT SUM(s) FROM (SELECT DISTINCT CONCAT(a) AS s FROM z) q
"""
SILENT = ("UPDATE t SET b = 'q' WHERE a = 1", "UPDATE t SET b = a + 1", "DELETE FROM t WHERE a > 1 LIMIT 1")
LETTERS = """
    SELECT a FROM t ORDER BY a, i
    SELECT i FROM t WHERE a = 'Lukasz' OR a = 'STRASSE' OR a = 'νικος'
    SELECT i FROM t WHERE a LIKE 'O%' OR a LIKE '_sa' OR a LIKE 'strasse' OR a LIKE '%Σ'
    SELECT UPPER(a), LOWER(a), LOCATE('a', a), LOCATE('ss', a), INSTR(a, 'o') FROM t
    SELECT COUNT(DISTINCT a), MIN(a), MAX(a) FROM t
    SELECT a < 'p', a > 'z', STRCMP(a, 'đ'), FIELD(a, 'lukasz', 'aesa') FROM t
    SELECT REPLACE(a, 'ø', 'o'), TRIM('ß' FROM a), SUBSTRING_INDEX(a, 'ø', 1), REVERSE(a) FROM t
    SELECT 'x' LIKE '', '' LIKE '', a LIKE '' FROM t
    SELECT j FROM t WHERE j IS NULL OR i > 0
    INSERT INTO t (j) VALUES ('{"bb": 1.50, "a": "ö", "c": [1, {}, null, true]}')
    INSERT INTO t (j) VALUES ('{')
"""
REFUSED = (
    "SELECT JSON_EXTRACT(j, '$.status') FROM t",
    "SELECT j->>'$.status' FROM t",
    "SELECT COUNT(*) FROM t WHERE JSON_EXTRACT(j, '$.n') IS NULL",
    "SELECT i FROM t WHERE j = 'x'",
    "SELECT DISTINCT j FROM t",
    "SELECT a REGEXP 'strasse' FROM t",
    "SELECT i FROM t WHERE a = 'ก'",
)
WORDS = (
    "Øyvind",
    "Adam",
    "Łukasz",
    "Đorđe",
    "Æsa",
    "straße",
    "Þór",
    "\u0131\u011fd\u0131r",
    "ΝΊΚΟΣ",
    "Жанна",
    "ﬁn",
    "e\u0301",
    "ŋ",
    "ж",
)


def texts(type: str, values: tuple[str, ...]) -> tuple:
    """Two tables with these values in columns of a type."""
    rows = [(value, value, n) for n, value in enumerate(values, 1)]
    return tuple(table(name, f"a {type}, b {type}, i INT", *rows) for name in "tz")


def statements(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("type", ["TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "VARCHAR(40)", "CHAR(40)"])
def test_texts_are_numbers_in_changes_as_on_mysql(
    sqlite_database: Database, docker_database: Database, type: str
) -> None:
    for values in VALUES:
        played = list(
            play(docker_database, sqlite_database, texts(type, values), statements(NUMBERS_IN_CHANGES))
        )
        assert not [each for each in played if each[1] in WRONG], values
        assert sum(verdict == "same" for _, verdict, _ in played) >= len(played) - 8


@pytest.mark.parametrize("sql", SILENT)
def test_text_is_read_as_a_number_without_an_error_and_varchar_is_not(
    sqlite_database: Database, sql: str
) -> None:
    for type, error in (
        ("TEXT", None),
        ("VARCHAR(40)", "1292 (22007): Truncated incorrect DOUBLE value: 'x'"),
    ):
        with sqlite_database.sandbox(Task("t", "?", texts(type, ("1", "x")), "SELECT", Gold())) as sandbox:
            if "LIMIT" not in sql or error is None:
                assert sandbox.execute(sql).error == error


def with_letters() -> tuple:
    rows = [(word, n, '{"status": "open", "n": null}' if n == 1 else None) for n, word in enumerate(WORDS, 1)]
    return (table("t", "a VARCHAR(30), i INT, j JSON", *rows),)


@pytest.mark.parametrize("sql", statements(LETTERS))
def test_letters_and_json_are_as_on_mysql(
    sqlite_database: Database, docker_database: Database, sql: str
) -> None:
    task = Task("letters", "?", with_letters(), "SELECT", Gold())
    with sqlite_database.sandbox(task) as ours, docker_database.sandbox(task) as theirs:
        verdict, said, _ = one(ours, theirs, sql)
    assert verdict == "same", said


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_not_certified_is_refused(sqlite_database: Database, sql: str) -> None:
    with sqlite_database.sandbox(Task("letters", "?", with_letters(), "SELECT", Gold())) as sandbox:
        assert (sandbox.execute(sql).error or "").endswith("(embedded database)")


def test_letters_that_are_not_certified_are_named(
    sqlite_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("Łukasz", "กานดา", "กานดา"):
        with sqlite_database.sandbox(
            Task(name, "?", (table("t", "a TEXT", (name,)),), "SELECT", Gold())
        ) as sandbox:
            assert sandbox.execute("SELECT a FROM t").rows == [(name,)]
            assert sandbox.execute("INSERT INTO t VALUES ('ก')").error is None
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Task 'กานดา' has letters that the embedded database compares by their codes, and MySQL may not: ก ด น า. If"
    )


def certified() -> list[str]:
    """Every character of the first plane whose weight is known."""
    return [
        char for code in range(0x10000) if not 0xD800 <= code < 0xE000 and is_certified(char := chr(code))
    ]


def is_certified(char: str) -> bool:
    return not unknown_letters([char])


def test_the_order_and_the_case_of_letters_are_those_of_mysql(docker_database: Database) -> None:
    chars = certified()
    assert {*"aøłđßæþð\u0131ħŋœжςéёğ中가あ"} <= {*chars}
    columns = "n INT, c VARCHAR(4)"
    told = []
    for start in range(0, len(chars), 500):
        rows = list(enumerate(chars[start : start + 500]))
        with docker_database.sandbox(
            Task("letters", "?", (table("t", columns, *rows),), "SELECT", Gold())
        ) as sandbox:
            sql = "SELECT HEX(WEIGHT_STRING(c)), HEX(UPPER(c)), HEX(LOWER(c)) FROM t ORDER BY n"
            told += sandbox.execute(sql, Limits(rows=500, characters=100_000)).rows or []
    wrong = [
        char
        for char, (_, up, low) in zip(chars, told, strict=True)
        if (upper(char).encode().hex(), lower(char).encode().hex()) != (up.lower(), low.lower())
    ]
    assert wrong == []
    by_ours = sorted(range(len(chars)), key=lambda place: sort_key(chars[place]))
    ours, theirs = [sort_key(chars[place]) for place in by_ours], [told[place][0] for place in by_ours]
    assert theirs == sorted(theirs)
    assert all((a == b) == (x == y) for a, b, x, y in zip(ours, ours[1:], theirs, theirs[1:], strict=False))


@pytest.fixture(autouse=True)
def version_9(request: pytest.FixtureRequest) -> None:
    """Leaves out what asks another MySQL: older ones read TEXT with an error."""
    if "docker_database" not in request.fixturenames:
        return
    task = Task("version", "?", texts("TEXT", ()), "SELECT", Gold())
    with request.getfixturevalue("docker_database").sandbox(task) as theirs:
        ((version,),) = theirs.execute("SELECT VERSION()").rows
    if not version.startswith("9."):
        pytest.skip(f"the embedded database answers as MySQL 9 does, and this is {version}")


def published() -> Iterator[tuple[Task, str]]:
    """AgentBench's tasks, and the gold SQL of each."""
    for name in ("dev.jsonl", "standard_part.jsonl"):
        for task in load_tasks(DATA / name):
            if task.gold.sql:
                yield task, task.gold.sql


def slips(sql: str) -> list[str]:
    try:
        return list(wrong_statements(sqlglot.parse_one(sql, dialect="mysql")))
    except SqlglotError:
        return []


@pytest.mark.slow
def test_agentbench_gold_and_slips_of_it_are_as_on_mysql(
    sqlite_database: Database, docker_database: Database
) -> None:
    if not DATA.exists():
        lacking("data", f"no {DATA.name} beside the checkout")
    wrong, refused = [], []
    for task, sql in published():
        for (written, verdict, said), is_gold in zip(
            play(docker_database, sqlite_database, task.tables, [sql, *slips(sql)]),
            [True, *[False] * 99],
            strict=False,
        ):
            if verdict in WRONG:
                wrong.append((written, verdict, said))
            if verdict == "not supported" and is_gold:
                refused.append((written, said))
    assert (wrong, refused) == ([], [])
