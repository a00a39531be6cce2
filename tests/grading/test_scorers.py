"""Scorers of results: verdicts of the published evaluators, and what ours says where they are wrong."""

from __future__ import annotations

import datetime
import gzip
import json
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from required import lacking

from trl_dbbench.grading import SQL_GRADERS, scorers
from trl_dbbench.grading.scored_sql import for_critic, for_spider
from trl_dbbench.grading.scorers import (
    Result,
    bird_ex,
    bird_soft_f1,
    critic,
    critic_mysql,
    csv_cells,
    spider2,
    spider_ts,
    strict,
)
from trl_dbbench.tasks.formats.spider2 import _counting, _places

DATA = Path(__file__).parents[3] / "shared" / "data" / "scorers"


def result(*rows: tuple, columns: int | None = None) -> Result:
    width = columns if columns is not None else len(rows[0])
    return Result([f"c{number}" for number in range(width)], rows)


# --- the published verdicts -----------------------------------------------------------------------


def lines() -> Iterator[dict[str, Any]]:
    if not DATA.is_dir():
        lacking("data", f"{DATA} is missing")
    with (DATA / "verdicts.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def cell(value: Any) -> Any:
    """A cell as Python has it; JSON lacks some types."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "$bytes":
            return bytes.fromhex(inner)
        case "$decimal":
            return Decimal(inner)
        case "$date":
            return datetime.date.fromisoformat(inner)
        case "$datetime":
            return datetime.datetime.fromisoformat(inner)
        case "$time":
            return datetime.time.fromisoformat(inner)
        case "$timedelta_seconds":
            return datetime.timedelta(seconds=inner)
        case "$float":
            return float(inner)
        case "$list":
            return [cell(each) for each in inner]
        case "$json":
            return {name: cell(each) for name, each in inner.items()}
    return inner


def result_of(line: dict[str, Any], side: str) -> Result | None:
    """The rows that were compared; `None` where the statement failed."""
    if f"scored_{side}_error" in line:
        return None
    rows = line.get(f"scored_{side}_rows", line.get(f"{side}_rows"))
    if rows is None:
        return None
    columns = line.get(f"{side}_columns") or [str(n) for n in range(len(rows[0]) if rows else 1)]
    return Result(columns, [tuple(map(cell, row)) for row in rows])


def counting(gold: Result, places: Any) -> Result | None:
    """The gold's columns that count in Spider 2.0, as a task has them; `None` where it has no such."""
    try:
        return _counting(gold, places if isinstance(places, list) or not places else [places])
    except (IndexError, TypeError):
        return None


def ours(line: dict[str, Any]) -> float:
    predicted, gold, options = result_of(line, "pred"), result_of(line, "gold"), line["options"]
    if predicted is None or gold is None:
        return 0.0  # what every evaluator says of a statement that fails
    match line["scorer"]:
        case "bird_ex":
            return bird_ex(predicted, gold)
        case "bird_soft_f1":
            return bird_soft_f1(predicted, gold)
        case "spider_test_suite":
            sql = str(line.get("scored_gold_sql", line["gold_sql"])).lower()
            return spider_ts(predicted, gold, options.get("order_matters", "order by" in sql))
        case "spider2_lite":
            counted = counting(gold, options["condition_cols"])
            return 0.0 if counted is None else spider2(predicted, counted, options["ignore_order"])
        case "bird_critic_mysql" | "bird_critic_postgresql":
            return critic_mysql(predicted, gold)
    return critic(predicted, gold, bool((options["conditions"] or {}).get("order")))


def test_the_published_verdicts() -> None:
    """All lines whose rows suffice, but those of Spider 2.0 that have several golds."""
    checked, wrong = Counter[str](), []
    for line in lines():
        if line["rows_suffice"] and line["verdict"] is not None:
            checked[line["scorer"]] += 1
            if not math.isclose(ours(line), float(line["verdict"]), abs_tol=1e-9):
                wrong.append((line["id"], line["scorer"], line["options"], line["mutation"], line["verdict"]))
    print(checked)
    assert wrong == []
    assert checked.total() > 3_700


# --- the same from the SQL ------------------------------------------------------------------------


def test_statements_as_the_evaluators_have_them() -> None:
    """Each statement that was changed before it was executed, and each that was not."""
    checked = 0
    for line in lines():
        for side in ("gold", "pred"):
            sql, options = line.get(f"{side}_sql"), line["options"]
            if sql is None:
                continue
            if line["scorer"] == "spider_test_suite" and not options["plug_value"]:
                changed = for_spider(sql, options["keep_distinct"])
            elif line["scorer"] in ("bird_critic_sqlite", "livesqlbench_sqlite"):
                changed = for_critic(sql)
            else:
                continue
            assert changed == line.get(f"scored_{side}_sql", sql), line["id"]
            checked += 1
    assert checked > 3_300


@pytest.fixture(scope="module")
def databases() -> Callable[..., sqlite3.Connection]:
    """Gives a new copy of one of the kit's databases."""
    if not DATA.is_dir():
        lacking("data", f"{DATA} is missing")
    made: dict[str, sqlite3.Connection] = {}
    with gzip.open(DATA / "spider_rows.sql.gz", "rt", encoding="utf-8") as file:
        for text in file:
            if text.startswith("-- database: "):
                filled = made[text.removeprefix("-- database: ").strip()] = sqlite3.connect(":memory:")
            else:
                filled.execute(text)

    def copy(name: str) -> sqlite3.Connection:
        made[name].commit()
        connection = sqlite3.connect(":memory:")
        made[name].backup(connection)
        return connection

    return copy


def executed(connection: sqlite3.Connection, sql: str, needs_rows: bool = False) -> Result | None:
    try:
        cursor = connection.execute(sql)
        rows = cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning, UnicodeError):
        return None
    if cursor.description is None:
        return None if needs_rows else Result([], [])
    return Result([column[0] for column in cursor.description], rows)


def from_sql(line: dict[str, Any], copy: Callable[[str], sqlite3.Connection]) -> float:
    """The score as each evaluator comes to it: on which copies the two are executed, and in which order."""
    predicted_sql, gold_sql, options = line["pred_sql"], line["gold_sql"], line["options"]
    mine = copy(line["db_id"])
    match line["scorer"]:
        case "spider_test_suite":
            predicted_sql, gold_sql = (
                for_spider(sql, options["keep_distinct"]) for sql in (predicted_sql, gold_sql)
            )
            other = copy(line["db_id"])
            for connection in (mine, other):
                connection.text_factory = lambda text: text.decode(errors="ignore")
            gold, predicted = executed(mine, gold_sql), executed(other, predicted_sql)
            score = partial(spider_ts, ordered="order by" in gold_sql.lower())
        case "spider2_lite":
            other = copy(line["db_id"])
            gold, predicted = executed(mine, gold_sql, True), executed(other, predicted_sql, True)
            gold, predicted = (each and csv_cells(each) for each in (gold, predicted))
            gold = gold and counting(gold, options["condition_cols"])
            score = partial(spider2, ignore_order=options["ignore_order"])
        case "bird_critic_sqlite" | "livesqlbench_sqlite":
            try:  # first as it is; what changes something is committed before its rows are read
                cursor = mine.execute(predicted_sql)
                mine.commit() if mine.in_transaction else cursor.fetchall()
            except (sqlite3.Error, sqlite3.Warning):
                return 0.0
            predicted, gold = executed(mine, for_critic(predicted_sql)), executed(mine, for_critic(gold_sql))
            score = partial(critic, ordered=bool((options["conditions"] or {}).get("order")))
        case name:
            predicted, gold = executed(mine, predicted_sql), executed(mine, gold_sql)
            score = getattr(scorers, name)
    return 0.0 if predicted is None or gold is None else score(predicted, gold)


@pytest.mark.slow
def test_the_published_verdicts_from_the_sql(databases) -> None:
    """All lines with SQL, but those of several golds, and those in which literals are exchanged."""
    checked, wrong = Counter[str](), []
    for line in lines():
        special = line["options"].get("plug_value") or "extra_gold_sql" in line["options"]
        if line["gold_sql"] is None or line["verdict"] is None or special:
            continue
        checked[line["scorer"]] += 1
        if not math.isclose(found := from_sql(line, databases), float(line["verdict"]), abs_tol=1e-9):
            wrong.append(
                (line["id"], line["scorer"], line["options"], line["mutation"], found, line["verdict"])
            )
    print(checked)
    assert wrong == []
    assert checked.total() > 3_300


def test_several_golds(databases) -> None:
    checked = 0
    for line in lines():
        options = line["options"]
        if "extra_gold_sql" in options:
            copy = databases(line["db_id"])
            statements = (line["pred_sql"], line["gold_sql"], *options["extra_gold_sql"])
            predicted, *golds = (csv_cells(executed(copy, sql)) for sql in statements)
            of_golds = zip(golds, _places(options["condition_cols"] or [], len(golds)), strict=False)
            found = [spider2(predicted, _counting(*each), options["ignore_order"]) for each in of_golds]
            assert max(found) == float(line["verdict"]), line["id"]
            checked += 1
    assert checked == 9


# --- what they cannot judge -----------------------------------------------------------------------


@pytest.mark.timeout(60)
def test_what_crashes_an_evaluator_is_0_or_judged() -> None:
    """No score where the official code ends in an error or does not end; ours gives one at once."""
    for line in lines():
        if line["verdict"] is None:
            assert 0.0 <= ours(line) <= 1.0


def test_a_result_that_was_written_to_csv() -> None:
    """The cells that Spider 2.0 compares are those of the results after their round trip."""
    checked = 0
    for line in lines():
        if line["scorer"] == "spider2_lite" and "scored_gold_rows" in line and "gold_rows" in line:
            rows = [tuple(map(cell, row)) for row in line["gold_rows"]]
            read = csv_cells(Result(line["gold_columns"], rows))
            expected = [tuple(map(cell, row)) for row in line["scored_gold_rows"]]
            assert [list(map(comparable, row)) for row in read.rows] == [
                list(map(comparable, row)) for row in expected
            ], line["id"]
            checked += 1
    assert checked > 200


def comparable(value: Any) -> Any:
    return "nan" if isinstance(value, float) and math.isnan(value) else value


# --- each by example ------------------------------------------------------------------------------


def test_strict_has_none_of_the_oddities() -> None:
    swapped = result(("a", 2), ("b", 1)), result(("a", 1), ("b", 2))
    assert spider2(*swapped) == 1 and strict(*swapped) == 0
    twice = result((1,), (1,)), result((1,))
    assert bird_ex(*twice) == 1 and strict(*twice) == 0
    columns = result((1, "a")), result(("a", 1))
    assert spider_ts(*columns) == 1 and strict(*columns) == 0
    numbers = result((1, 10)), result((1.0, 10))
    assert spider_ts(*numbers) == 0 and strict(*numbers) == 1
    sums = result((0.1 + 0.2,)), result((0.3,))
    assert bird_ex(*sums) == 0 and strict(*sums) == 1
    nothing = result(columns=1), result(columns=1)
    assert critic(*nothing) == 0 and strict(*nothing) == 1
    other = result(columns=1), result(columns=3)
    assert bird_ex(*other) == 1 and strict(*other) == 0
    null = result((None,)), result((0,))
    assert spider2(*null) == 1 and strict(*null) == 0
    text = result(("12",)), result((12,))
    assert strict(*text) == 0


def test_order_counts_where_it_is_asked_for() -> None:
    turned = result((2,), (1,)), result((1,), (2,))
    assert [strict(*turned), spider_ts(*turned), critic(*turned)] == [1, 1, 1]
    assert [score(*turned, ordered=True) for score in (strict, spider_ts, critic)] == [0, 0, 0]


def test_soft_f1_by_hand() -> None:
    """First rows: 1 of 2 cells in common. The second gold row has no partner, and misses one."""
    predicted, gold = result(("a", 9)), result(("a", 1), ("b", 2))
    precision, recall = 0.5 / (0.5 + 0.5), 0.5 / (0.5 + 0.5 + 1)
    assert bird_soft_f1(predicted, gold) == pytest.approx(2 * precision * recall / (precision + recall))


@pytest.mark.timeout(60)
def test_nine_columns_in_another_order_end() -> None:
    """The evaluator tries 9 to the power 9 permutations."""
    rows = [tuple((n * (c + 1)) % 7 for c in range(9)) for n in range(50)]
    turned = [tuple(reversed(row)) for row in rows]
    assert spider_ts(result(*turned), result(*rows)) == 1
    assert spider_ts(result(*[tuple([0] * 12)] * 50), result(*[tuple([0] * 12)] * 50)) == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("width", [6, 12, 40])
def test_columns_that_are_alike_do_not_take_for_ever(width: int) -> None:
    """Any order of the first columns fits; the last two are each like the other's, and do not fit together."""
    ones = [tuple(int(place == row) for place in range(width)) for row in range(width)]
    together = [(*row, n % 2, n % 2) for n, row in enumerate(ones)]
    apart = [(*row, n % 2, 1 - n % 2) for n, row in enumerate(ones)]
    assert spider_ts(result(*together), result(*apart)) == 0
    assert spider_ts(result(*together), result(*[row[::-1] for row in together])) == 1


def test_integers_beyond_floats() -> None:
    assert spider2(result((10**400,)), result((10**400,))) == 1
    assert spider2(result((10**400,)), result((1,))) == 0


def scores(predicted: Result, gold: Result, ordered: bool = False) -> dict[str, float]:
    return {name: grader.score(predicted, gold, ordered) for name, grader in SQL_GRADERS.items()}


def test_all_beside_each_other() -> None:
    found = scores(result((1.001,)), result((1.0,)))
    assert {name for name, score in found.items() if score == 1} == {
        *("spider2", "spider2_ordered", "critic", "critic_ordered")
    }
    assert {*found.values()} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("sql", "scored"),
    [
        ("SELECT ROUND(a, 2) FROM t", "SELECT a FROM t"),
        ("SELECT Round (1, 2)", "SELECT 1"),
        ("SELECT ROUND\t\n( a , 2 )", "SELECT a"),
        ("SELECT 'Round (1, 2)' AS a", "SELECT '1' AS a"),  # in texts,
        ('SELECT "round (a, 1)" FROM t', 'SELECT "a" FROM t'),  # in quoted names,
        ("SELECT 1 -- round (a, 1)", "SELECT 1 -- a"),  # in a comment on the last line
        ("SELECT a_round (b, 1)", "SELECT a_b"),  # and at the end of a word
        ("SELECT ROUND(ROUND(a, 1), (2))", "SELECT a"),
        ("SELECT ROUND(SUM(a) * MAX(b, c), 1)", "SELECT SUM(a) * MAX(b, c)"),
        ("SELECT ROUND(a, ROUND(1, 0)), ROUND(b)", "SELECT a, b"),
        (
            "SELECT ROUND(a), ROUND(b, '('), ROUND(c)",
            "SELECT a, ROUND(b, '('), ROUND(c)",
        ),  # one without an end
        ("SELECT roROUND(und(3), 1)", "SELECT 3"),
        ("SELECT 'a\n \n\nb'\n\nFROM t", "SELECT 'a\nb'\nFROM t"),  # blank lines, in texts, too
    ],
)
def test_what_critic_makes_of_a_statement(sql: str, scored: str) -> None:
    assert for_critic(sql) == scored


def one_call_after_the_other(sql: str) -> str:
    """What the evaluator does with ROUND: the first call is replaced, until there is none or it has no end."""
    while call := re.search(r"round\s*\(", sql, re.IGNORECASE):
        depth, comma, close = 1, None, None
        for place in range(call.end(), len(sql)):
            depth += (sql[place] == "(") - (sql[place] == ")")
            if comma is None and ((depth == 1 and sql[place] == ",") or depth == 0):
                comma = place
            if depth == 0:
                close = place
                break
        if close is None:
            return sql
        sql = sql[: call.start()] + sql[call.end() : comma].strip() + sql[close + 1 :]
    return sql


@given(
    pieces=st.lists(
        st.sampled_from(["ROUND(", "round (", "ro", "und", "(", ")", ")", ",", " ", "a", "'"]), max_size=24
    )
)
@examples(500)
def test_calls_of_round_go_as_one_after_the_other(pieces: list[str]) -> None:
    sql = "".join(pieces).strip()
    assert for_critic(sql) == one_call_after_the_other(sql)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece", ["ROUND(", "ROUND(a, ROUND(b), ", "ro ROUND(", "(round", "round" + " " * 99]
)
def test_many_calls_of_round_end(piece: str) -> None:
    length = 60_000 // len(piece)
    for_critic(piece * length)
    for_critic(piece * length + ")" * length)
    for_critic("ro" * 9_000 + "ROUND(" * 9_000 + "und(" + ", 1)" * 9_000)


def numbers(*cells: Any) -> Result:
    return result(*[(each,) for each in cells])


def test_critic_rounds_numbers_in_lists_and_objects() -> None:
    assert critic(numbers([1.004, [2.001], {"a": 3.004}]), numbers([1.0, [2.0], {"a": 3.0}])) == 1
    assert critic(numbers({"b": [0.1 + 0.2], "a": 1}), numbers({"a": 1, "b": [0.3]})) == 1
    assert critic(numbers((1.004, "x")), numbers((1.0, "x"))) == 1  # a record
    assert critic(numbers((Decimal("1.004"),)), numbers((1.0,))) == 1
    assert critic(numbers([1.01]), numbers([1.0])) == 0
    assert critic(numbers(["1.004"]), numbers(["1.0"])) == 0  # a text
    assert critic(numbers("[1.004]"), numbers("[1.0]")) == 0  # JSON as a text
    assert critic(numbers([True]), numbers([1])) == 0
    assert critic(numbers([math.nan]), numbers([math.nan])) == 1  # as JSON texts they are equal


def test_what_has_no_json_text_is_not_right_even_to_itself() -> None:
    """There the evaluator ends in an error, as it does where a Decimal cannot be rounded to two places."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for each in (
        [Decimal("1.5")],
        [datetime.date(2026, 1, 2)],
        {"a": {"b": b"x"}},
        Decimal("Infinity"),
        Decimal("1" * 60),
        deep,
    ):
        assert critic(numbers(each), numbers(each)) == 0


CELLS = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, math.nan, math.inf]),
    st.sampled_from(["", "a", "NULL", "1"]),
    st.sampled_from([Decimal("1.5"), datetime.date(2026, 1, 2), b"a", [1], {"a": 1}]),
)
RESULTS = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[CELLS] * width), max_size=4).map(
        lambda rows: result(*rows, columns=width)
    )
)


@given(predicted=RESULTS, gold=RESULTS, ordered=st.booleans())
@examples(300)
def test_any_two_results_have_a_score(predicted: Result, gold: Result, ordered: bool) -> None:
    found = scores(predicted, gold, ordered)
    assert all(0 <= score <= 1 for score in found.values())


@given(gold=RESULTS, ordered=st.booleans())
@examples(100)
def test_strict_is_1_for_a_result_itself(gold: Result, ordered: bool) -> None:
    cells = [each for row in gold.rows for each in row]
    if not any(isinstance(each, float) and math.isnan(each) for each in cells):
        assert strict(gold, gold, ordered) == 1
