"""What one statement of an agent may cost in the embedded database: seconds of each call, memory, temporary files."""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from databases import LIMITS, table, task
from hypothesis import given
from hypothesis import strategies as st

from trl_dbbench.database import Database
from trl_dbbench.database.embedded.sandbox import SQLiteSandbox
from trl_dbbench.mysqlite import collation
from trl_dbbench.mysqlite.collation import MAX_CACHED_KEYS, sort_key
from trl_dbbench.mysqlite.errors import StatementError
from trl_dbbench.mysqlite.functions import COERCIONS, DOUBTFUL, STORAGE, GroupConcat, functions
from trl_dbbench.mysqlite.guard import MAX_SPILLED_BYTES
from trl_dbbench.mysqlite.values import MAX_TEXT_CHARACTERS

ORDERS = table("orders", "id INT, note VARCHAR(40)", *((n, f"note {n}") for n in range(300)))
LONG = table("longs", "id INT, note LONGTEXT", *((n, f"{n} " + "x" * 100_000) for n in range(60)))


def in_time(run: Callable[[], Any]) -> Any:
    """What the call returns, which may compute for as long as the time limit and a second."""
    start = time.process_time()
    result = run()
    seconds = time.process_time() - start
    assert seconds < LIMITS.seconds + 1, f"held its turn for {seconds:.1f} s"
    return result


# --- seconds ----------------------------------------------------------------------------------------------

BYTES = MAX_TEXT_CHARACTERS
TEXTS = {
    "a character that becomes 18": "\ufdfa" * (BYTES // 3),
    "accents out of order": "a" + "\u0315\u0316" * (BYTES // 4),
    "items": "b," * (BYTES // 2),
    "blanks": " " * (BYTES - 1) + "x",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted(functions()))
def test_no_call_of_a_function_holds_its_turn(sqlite_database: Database, name: str) -> None:
    """With as long texts as there can be, and as many of them as the function takes."""
    with sqlite_database.fresh_sandbox(task(ORDERS)) as sandbox:
        assert isinstance(sandbox, SQLiteSandbox)
        most = sandbox._connection._raw.getlimit(sqlite3.SQLITE_LIMIT_FUNCTION_ARG)
        for text in TEXTS.values():
            for count in (1, 2, 3, most):
                arguments: list[Any] = [text[: -1 - n] for n in range(count)]
                if name.removeprefix(DOUBTFUL) in {
                    *COERCIONS,
                    *STORAGE,
                    "CAST_DECIMAL",
                }:  # what follows the value is ours
                    ours = "a" if name.endswith("STORE_MEMBER") else 2  # a member, a length
                    arguments[1:] = [ours] * (count - 1)
                call = f"SELECT my_{name}({', '.join('?' * count)}) IS NULL"

                def run(call: str = call, arguments: list[Any] = arguments) -> None:
                    try:
                        with sandbox._connection._guard.statement(LIMITS.seconds):
                            sandbox._connection._raw.execute(call, arguments).fetchall()
                    except sqlite3.Error:
                        pass  # refused, or stopped

                in_time(run)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT FIND_IN_SET(REPEAT('a', 20000), REPEAT('b,', 20000))",
        "SELECT GREATEST(" + ", ".join([r"REPEAT('ﷺ', 43690)"] * 120) + ")",
        "SELECT REPEAT('ﷺ', 43690) IN (" + ", ".join(["REPEAT('ﷺ', 43689)"] * 120) + ")",
        "SELECT CASE REPEAT('ﷺ', 43690) " + "WHEN REPEAT('ﷺ', 43689) THEN 1 " * 120 + "END",
        "SELECT COUNT(*) FROM longs a, longs b, longs c WHERE a.note = CONCAT(b.note, c.note)",
        "SELECT a.id FROM longs a, longs b, longs c ORDER BY CONCAT(a.note, b.id + c.id)",
        "SELECT COUNT(DISTINCT a.note, b.note) FROM orders a, orders b, orders c",
        "SELECT a.note, b.note FROM orders a, orders b, orders c ORDER BY b.note, c.note",
        "SELECT 'a' REGEXP '((((a{99}){99}){99}){99}){99}'",
        "SELECT 'a' REGEXP '(?x) ((((a {99} ) {99}) {99}\n) #\n{99} )'",
        "SELECT STR_TO_DATE(REPEAT('a', 100000), '" + "%W" * 1000 + "')",
        "SELECT REGEXP_REPLACE(REPEAT('a', 100000), '(x*)', REPEAT('$1', 60000))",
        "SELECT note FROM orders WHERE note LIKE REPEAT('%ﷺ', 1000)",
    ],
    ids=lambda sql: sql[:50],
)
def test_no_statement_holds_its_turn(sqlite_database: Database, sql: str) -> None:
    with sqlite_database.sandbox(task(ORDERS, LONG)) as sandbox:
        in_time(lambda: sandbox.execute(sql))


def test_a_call_that_is_stopped_is_a_statement_out_of_time(sqlite_database: Database) -> None:
    """Also where the function that was called last is not the one that took the time."""
    sql = (
        "SELECT COUNT(*) FROM orders a, orders b WHERE GREATEST("
        + ", ".join(["REPEAT(a.note, 9000)"] * 100)
        + ") > b.note"
    )
    with sqlite_database.sandbox(task(ORDERS)) as sandbox:
        result = in_time(lambda: sandbox.execute(sql))
        assert (result.error_code, result.limit) == (3024, "time")
        assert sandbox.execute("SELECT COUNT(*) FROM orders").rows == [(300,)]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^[0-9]{4}-[0-9]{2}-[0-9]{2}$", "2020-01-31"),
        ("^([0-9]{1,3}\\\\.){3}[0-9]{1,3}$", "192.168.0.1"),
        ("^([A-Z]{2}[0-9]{2} ?){8}$", "AB12 " * 8),
        ("x{999}", "x" * 999),
    ],
)
def test_counted_repeats_of_a_pattern(sqlite_database: Database, pattern: str, text: str) -> None:
    with sqlite_database.sandbox(task(ORDERS)) as sandbox:
        assert sandbox.execute(f"SELECT '{text}' REGEXP '{pattern}'").rows == [(1,)]


# --- the collation's keys ---------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("éßﬃﷺΐ각①\u0301\u0327\u0345")))
def test_a_text_weighs_what_its_characters_weigh(text: str) -> None:
    assert sort_key(text) == "".join(map(sort_key, text))


def test_a_key_is_computed_once_for_all_that_a_text_is_compared_with(
    sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    original = collation._sort_key
    monkeypatch.setattr(collation, "_sort_key", lambda text: (computed.append(text), original(text))[1])
    needle = "n" * 200  # longer than the keys that are cached
    options = ", ".join(f"'{number:0200}'" for number in range(50))
    with sqlite_database.sandbox(task(ORDERS)) as sandbox:
        assert sandbox.execute(f"SELECT '{needle}' IN ({options}) FROM orders LIMIT 1").rows == [(0,)]
        assert sandbox.execute(f"SELECT FIND_IN_SET('{needle}', REPEAT('{'x' * 150},', 9))").rows == [(0,)]
    assert computed.count(needle) == 2


def test_the_cache_of_keys_stays_small() -> None:
    largest = "\ufdfa" * collation.MAX_CACHED_KEY_CHARACTERS
    assert MAX_CACHED_KEYS * (sys.getsizeof(largest) + sys.getsizeof(sort_key(largest))) < 80 * 2**20


# --- memory and temporary files ---------------------------------------------------------------------------

IO = Path("/proc/thread-self/io")


def written() -> int:
    return int(re.findall(r"wchar: (\d+)", IO.read_text())[0])


@pytest.mark.skipif(not IO.exists(), reason="this system does not tell how much a thread has written")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a.note FROM longs a, longs b, longs c ORDER BY a.id + b.id + c.id",
        "WITH q AS (SELECT a.note, b.id FROM longs a, longs b, longs c) SELECT COUNT(*) FROM q x, q y",
        "SELECT COUNT(*) FROM (SELECT DISTINCT CONCAT(a.note, b.id, c.id) FROM longs a, longs b, longs c) AS q",
        "SELECT a.note, b.id FROM longs a, longs b, longs c UNION SELECT a.note, c.id FROM longs a, longs b, longs c",
        "SELECT a.note, ROW_NUMBER() OVER (ORDER BY b.id + c.id) FROM longs a, longs b, longs c",
        "SELECT a.note, MAX(b.id) FROM longs a, longs b, longs c GROUP BY a.note, b.id, c.id",
    ],
    ids=["sort", "cte", "distinct", "union", "window", "group"],
)
def test_what_a_statement_spills_is_bounded(sqlite_database: Database, sql: str) -> None:
    with sqlite_database.sandbox(task(ORDERS, LONG)) as sandbox:
        before = written()
        result = in_time(lambda: sandbox.execute(sql))
        # what is sorted may be merged after the last look; without a bound it was 440 to 660 MB in a second
        assert written() - before < 3 * (MAX_SPILLED_BYTES + 4 * 60 * 100_000)
        assert result.error_code in (1114, 3024)  # the table '/tmp/#sql' is full, or it took too long
        assert sandbox.execute("SELECT COUNT(*) FROM longs").rows == [(60,)]


def test_a_sort_that_spills_a_little_is_done(sqlite_database: Database) -> None:
    sql = "SELECT a.id, b.id FROM orders a, orders b ORDER BY a.id + b.id DESC, a.id LIMIT 2"
    with sqlite_database.sandbox(task(ORDERS)) as sandbox:
        assert sandbox.execute(sql).rows == [(299, 299), (298, 299)]


def test_group_concat_holds_a_bounded_number_of_rows() -> None:
    """Empty texts have no characters, but each of them takes memory."""
    group = GroupConcat()
    with pytest.raises(StatementError, match="Out of sort memory"):
        for _ in range(1_000_000):
            group.step("", 0, "+", "", "")
    assert len(group.rows) < 200_000
