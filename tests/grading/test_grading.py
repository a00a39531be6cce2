"""The specification of what is right: answers, state hashes, states, intervals."""

from __future__ import annotations

import datetime
import json
import random
import string
from decimal import Decimal
from hashlib import md5
from pathlib import Path

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st

from trl_dbbench.errors import ConfigError
from trl_dbbench.grading import GRADERS, grade
from trl_dbbench.grading.rows import State, TableState, same_rows, same_state
from trl_dbbench.grading.states import row_hash, state_digest, state_hash
from trl_dbbench.grading.statistics import Share, wilson_interval

DATA = Path(__file__).parents[3] / "shared" / "data"

# ------------------------------------------------------------------------------------------ answers


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is missing")
def test_the_760_published_verdicts() -> None:
    lines = (DATA / "grader_verdicts.jsonl").read_text(encoding="utf-8").strip().split("\n")
    assert len(lines) == 760
    wrong = []
    for case in map(json.loads, lines):
        for grader in GRADERS.keys() & case.keys():
            gold = case["rows"] if grader == "lifelong" else case["label"]
            if grade(case["answer"], gold, grader) is not case[grader]:
                wrong.append((grader, case))
    assert wrong == []


@pytest.mark.parametrize(
    ("answer", "labels", "right"),
    [
        ("Oslo", ["Oslo"], True),
        ("['Oslo']", ["Oslo"], True),
        ("'Oslo'", ["Oslo"], False),  # falls into its four letters
        ("'4'", ["4"], True),  # into its one
        ("[('Oslo',)]", ["Oslo"], False),
        ("['Oslo', 'Oslo']", ["Oslo"], True),  # as sets
        ("['b', 'a']", ["a", "b"], True),
        ("a, b", ["a", "b"], False),  # no literal: one string
        ("4", ["4.0"], True),
        ("4.004", ["4.0"], False),
        ("[4, 4]", ["4"], False),  # sets of numbers and texts never meet
        ("[True]", ["1"], True),  # float(True)
        ("None", ["None"], True),
        ("nan", ["nan"], False),
        ("[]", [], True),
        ("set()", [], True),
        ("[['a'], ['b']]", ["a", "b"], False),  # a list is in no set
        ("['a', 'b'][:1]", ["a"], False),  # not run
    ],
)
def test_agentbench_text(answer: str, labels: list, right: bool) -> None:
    assert grade(answer, labels, "agentbench_text") is right


@pytest.mark.parametrize(
    ("answer", "labels", "right"),
    [
        ("['Oslo']", ["Oslo"], True),
        ("'Oslo'", ["Oslo"], True),
        ("[('Oslo',)]", ["Oslo"], True),
        ("[(Oslo,)]", ["Oslo"], True),
        ("[('a',), ('b',)]", ["b", "a"], True),
        ("16,000", ["16000.0"], True),  # no tuple (16, 0): only a text in brackets is a list
        ("['1,234.5', '2']", ["2", "1234.5"], True),
        ("3,729.7%", ["3,729.7"], False),  # a text with a percent sign keeps its commas, the label does not
        ("3,729.7%", ["3,729.7%"], True),
        ("12.5%%", ["12.5%"], False),  # only one is taken off, at the end
        ("March 19, 1998", ["March 19, 1998"], True),
        ("March 19 1998", ["March 19, 1998"], True),  # words lose their commas too
        ("[(March 19, 1998,)]", ["March 19, 1998"], True),  # one row of one cell may be no literal
        ("[('March 19, 1998',)]", ["March 19, 1998"], True),
        ("[March 19, 1998]", ["March 19, 1998"], False),  # while a list is cut at its commas
        ("[(Ann,), (Bo,)]", ["Ann", "Bo"], False),  # and so are two such rows
        ("[Ann, Bo]", ["Bo", "Ann"], True),
        ("[Ann, , 'O, my']", ["O my", "Ann", ""], True),  # a blank is a value
        ("[Ann,,'O, my']", ["O, my", "Ann"], True),  # nothing is none
        ("[Checco D'Angelo]", ["Checco D'Angelo"], False),  # an apostrophe is taken for a quote
        ("[Checco D'Angelo]", ["Checco DAngelo"], True),
        ("[(Checco D'Angelo,)]", ["Checco D'Angelo"], True),
        ("Checco D'Angelo", ["Checco D'Angelo"], True),
        ("['a, b]']", ["a, b]"], True),
        ("['a b]']", ["a, b]"], False),  # with a bracket at an end the commas stay
        ("['[a]']", ["[a]"], True),
        ("[('a', 1), ('b',)]", ["b"], True),  # of rows, only those of one cell count
        (" [('a', 1), ('b',)]", ["b"], False),  # with a blank before them they are items like others
        (" [('a', 1), ('b',)]", ["b", "('a' 1)"], True),
        ("[['a', 'b']]", ["a", "b"], False),
        ("[1], [2]", ["1", "2"], False),  # no list
        ("[]", [], True),
        ("['oslo']", ["Oslo"], False),
        ("['12.5%']", ["12.5"], True),
        ("['1,234,567']", ["1234567"], True),
        ("4.009", ["4"], True),
        ("4.02", ["4"], False),
        ("['4', '4']", ["4"], False),  # numbers match one to one
        ("['2', '1']", ["1", "2.005"], True),
        ("['1.005', '1']", ["1", "1.014"], False),  # in turn, not as fits best
        ("['a', 'a']", ["a"], True),  # texts as sets
        ("[Decimal('4')]", ["4"], False),
        ("", ["none"], True),
        ("['NULL']", ["0"], True),  # nothing is 0
        ("['-inf']", ["0"], True),
        ("['-']", ["0"], False),
        ("none%", ["none"], False),
        ("[]", ["none"], False),
        (str(["it's", 'say "hi"']), ["it's", 'say "hi'], True),  # str() of the list of a tool call
    ],
)
def test_agentbench_fc(answer: str, labels: list, right: bool) -> None:
    assert grade(answer, labels, "agentbench_fc") is right


@pytest.mark.parametrize(
    ("answer", "rows", "right"),
    [
        ("[(1, 'Ann'), (2, 'Bo')]", [[1, "Ann"], [2, "Bo"]], True),
        ("[(2, 'Bo'), (1, 'Ann')]", [[1, "Ann"], [2, "Bo"]], False),  # in order
        ("[(1, 'Ann'), (2, 'Bo')]", [[1, "Ann"]], False),
        ("[[1, 'Ann']]", [[1, "Ann"]], False),  # tuples only
        ("They are (1, Ann) and (2, 'Bo').", [[1, "Ann"], [2, "Bo"]], True),
        ("1, Ann", [[1, "Ann"]], True),  # without parentheses it is one tuple
        ("[(Decimal('1.50'),)]", [[1.5]], True),
        ("[(Decimal('1.50'),)]", [[Decimal("1.5")]], True),
        ("[('1',)]", [[1]], False),
        ("[(1,)]", [["1"]], True),
        ("[(1000000.5,)]", [[1000000]], True),  # within 1e-6 of the number
        ("[(1.00001,)]", [[1]], False),
        ("[(None, True)]", [[None, True]], True),
        ("[('None',)]", [[None]], False),
        ("[('a, b',)]", [["a, b"]], False),  # cut at every comma: never right
        ("[]", [], True),
        ("No rows: []", [], True),
        ("", [], True),
        (" ", [], True),
        ("", [["x"]], False),
        ("I do not know", [], False),
        ("[(1,)]", [], False),
        ("(", [["("]], True),
    ],
)
def test_lifelong(answer: str, rows: list, right: bool) -> None:
    assert grade(answer, rows, "lifelong") is right


def test_an_unknown_grader_is_named_with_those_allowed() -> None:
    with pytest.raises(ConfigError, match=r"'exact'.*agentbench_text, agentbench_fc, lifelong"):
        grade("1", ["1"], "exact")


HOSTILE = [
    "[" * 100_000,
    "(" * 60 + "x y" + ")" * 60,
    "-" * 100_000 + "1",
    "1+" * 40_000 + "1",
    "9" * 100_000,
    "[" + "9" * 4_301 + "]",
    "0x" + "f" * 90_000,
    "[0x" + "f" * 90_000 + "]",
    "[{1: 0x" + "f" * 9_000 + "}, 2]",
    "{[], {}}",
    "{[1]: 2}",
    "\0",
    "'\0'",
    "'\ud800'",
    "\ud800",
    "'\\x'",
    "'\\N{x}'",
    "[(Decimal('NaN'),)]",
    "[(Decimal('sNaN'),)]",
    "(Decimal('1e999999999'),)",
    "1e400",
    "[1e400, -1e400]",
    "1j",
    "b'1'",
    "...",
    "(" * 50_000 + ")" * 50_000,
    "()" * 50_000,
    "'," * 50_000,
    "[" + "'a'," * 200_000 + "]",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: ascii(answer[:20]))
def test_hostile_answers_are_wrong_at_once(answer: str, grader: str) -> None:
    for gold in (["x"], [1.5], [10**400], ["1", "2"], [["x", 1]], [[Decimal("sNaN")]]):
        assert grade(answer, gold, grader) is False


@pytest.mark.parametrize("grader", GRADERS)
@pytest.mark.parametrize(
    "code",
    [
        "__import__('os').system('touch {path}')",
        "[__import__('os').system('touch {path}')]",
        "[(open('{path}', 'w'),)]",
        "(lambda: open('{path}', 'w'))()",
        "[x for x in [open('{path}', 'w')]]",
        "f\"{{open('{path}', 'w')}}\"",
        "(Decimal('1') if open('{path}', 'w') else 1,)",
    ],
)
def test_no_answer_is_run(code: str, grader: str, tmp_path: Path) -> None:
    path = tmp_path / "written"
    assert grade(code.format(path=path), ["0"], grader) is False
    assert not path.exists()


PIECES = [
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "'",
    '"',
    "\\",
    "%",
    " ",
    "\n",
    "Decimal(",
    "None",
    "nan",
    "inf",
    "-",
]
PIECES += ["1", "0.5", "1e9", "0x1", "j", "b'", "r'", "f'", ":", "*", "é", "\0", "٣", "_"]
texts = st.text() | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
golds = st.lists(texts | st.integers() | st.floats() | st.none()) | st.lists(
    st.lists(texts | st.integers() | st.floats() | st.decimals() | st.booleans() | st.none())
)


@given(answer=texts, gold=golds, grader=st.sampled_from(list(GRADERS)))
@examples(400)
def test_no_answer_makes_a_grader_raise(answer: str, gold: list, grader: str) -> None:
    assert grade(answer, gold, grader) in (True, False)


words = st.text(string.ascii_letters + string.digits + " .:-éß", min_size=1)
cells = words | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none()
cells |= st.decimals(allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(cells, min_size=1, max_size=4).map(tuple), max_size=5))
@example([])
@example([(10**400,), (True,), (None,)])
def test_what_the_database_shows_is_right(rows: list[tuple]) -> None:
    assert grade(str(rows), rows, "lifelong")


@given(st.lists(words, min_size=1))
def test_a_list_of_the_labels_is_right(labels: list[str]) -> None:
    assert grade(str(labels), labels, "agentbench_fc")


# ------------------------------------------------------------------------------------- state hashes


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((1, "Ann", None, "x"), "1,Ann,x"),
        ((None, None), ""),
        (("", None, ""), ","),
        ((3.0, 85.5, -0.1), "3,85.5,-0.1"),
        ((1e14, 1e15, 1.5e22), "100000000000000,1e15,1.5e22"),
        ((1e-5, 1.25e-15, 1e-16), "0.00001,0.00000000000000125,1e-16"),
        ((0.30000000000000004,), "0.30000000000000004"),
        ((Decimal("1.50"), Decimal("1E+3")), "1.50,1000"),
        ((True, False), "1,0"),
        (("Zoë".encode(),), "Zoë"),
        ((datetime.date(2020, 1, 2),), "2020-01-02"),
        ((datetime.datetime(2020, 1, 2, 3, 4, 5),), "2020-01-02 03:04:05"),
        ((datetime.datetime(2020, 1, 2, 3, 4, 5, 600),), "2020-01-02 03:04:05.000600"),
        ((datetime.timedelta(hours=100, minutes=2, seconds=3),), "100:02:03"),
        ((-datetime.timedelta(minutes=30, milliseconds=500),), "-00:30:00.500000"),
    ],
)
def test_row_hash_is_of_the_cells_as_mysql_prints_them(row: tuple, text: str) -> None:
    assert row_hash(row) == md5(text.encode()).hexdigest()[:5]


def test_state_hash_by_hand() -> None:
    # md5("1,Ann") = 153c2..., md5("2,Bo") = 22b28...
    assert [row_hash((1, "Ann")), row_hash((2, "Bo"))] == ["153c2", "22b28"]
    assert state_hash([(2, "Bo"), (1, "Ann")]) == md5(b"153c2,22b28").hexdigest()
    assert state_hash([]) is None


def test_state_hash_does_not_see_past_1024_bytes() -> None:
    rows = sorted(((i,) for i in range(400)), key=row_hash)
    assert state_hash(rows[:171]) != state_hash(rows[:170])
    assert state_hash(rows[:172]) == state_hash(rows)


@given(st.lists(st.tuples(cells, cells)), st.randoms(use_true_random=False))
def test_state_hash_does_not_depend_on_the_order_of_rows(rows: list[tuple], rng: random.Random) -> None:
    assert state_hash(rows) == state_hash(rng.sample(rows, len(rows)))


# ------------------------------------------------------------------------------------------- states


def state(**tables: list) -> State:
    """Tables by name, each with columns `a` and `b` and these rows."""
    return {name: TableState(("a", "b"), rows) for name, rows in tables.items()}


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([(1, "x"), (2, "y")], [(2, "y"), (1, "x")], True),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], False),  # a multiset
        ([(None,)], [("None",)], False),
        ([(None,)], [("NULL",)], False),
        ([(None,)], [("",)], False),
        ([(None,)], [(0,)], False),
        ([("1",)], [(1,)], False),
        ([("a",)], [("A",)], False),
        ([("a", None)], [(None, "a")], False),
        ([(1, True)], [(Decimal("1.0"), 1.0)], True),
        ([(0.1 + 0.2,)], [(0.3,)], True),
        ([(0.1 + 0.2,)], [(Decimal("0.3"),)], True),
        ([(1.0,)], [(1.00001,)], False),
        ([(10**12,)], [(10**12 + 1,)], False),  # integers are exact
        ([(Decimal("1.0000000001"),)], [(Decimal("1.0000000002"),)], False),  # decimals too
        ([(0.3, "x"), (0.1 + 0.2, "y")], [(0.3, "y"), (0.1 + 0.2, "x")], True),
        ([(0.3, 1), (0.1 + 0.2, 2)], [(0.3, 2), (0.1 + 0.2, 3)], False),
        ([(10**400, float("inf"))], [(1, float("inf"))], False),
        ([(float("nan"),)], [(float("nan"),)], True),
        ([(b"x",)], [("x",)], False),
        ([(datetime.date(2020, 1, 2),)], [(datetime.datetime(2020, 1, 2),)], False),
        ([(1,)], [(1, None)], False),
        ([], [], True),
        ([[1, "x"]], [(1, "x")], True),
    ],
)
def test_same_rows(a: list, b: list, same: bool) -> None:
    assert same_rows(a, b) is same
    assert same_rows(b, a) is same
    assert same_state(state(t=a), state(t=b)) is same
    if len(a) == 1:
        assert same_rows(a, b, ordered=True) is same


def test_same_rows_in_order() -> None:
    assert same_rows([(0.3,), (2,)], [(0.1 + 0.2,), (2.0,)], ordered=True)
    assert not same_rows([(1,), (2,)], [(2,), (1,)], ordered=True)
    assert not same_rows([(1,)], [(1,), (1,)], ordered=True)


def test_same_state_wants_the_same_tables() -> None:
    assert same_state({}, {})
    assert not same_state(state(t=[]), {})
    assert not same_state(state(t=[]), state(T=[]))
    assert same_state(state(t=[(1,)], u=[]), state(u=[], t=[(1,)]))
    assert not same_state(state(t=[(1,)], u=[]), state(t=[], u=[(1,)]))


@pytest.mark.parametrize(
    ("columns", "same"),
    [
        (["nation", "gold"], True),
        (["Nation", "GOLD"], True),  # every statement that names the one names the other
        (["country", "gold"], False),
        (["gold", "nation"], False),
        (["nation", "gold", "silver"], False),
        (["nation"], False),
        (["nation", "gold "], False),
    ],
)
@pytest.mark.parametrize("rows", [[], [("Chad", "Chad")]], ids=["empty", "one row"])
def test_same_state_wants_the_same_columns(columns: list[str], same: bool, rows: list) -> None:
    """Even where the rows do not tell."""
    one, other = {"medals": TableState(["nation", "gold"], rows)}, {"medals": TableState(columns, rows)}
    assert same_state(one, other) is same
    assert (state_digest(one) == state_digest(other)) is same
    assert state_digest(one)[:16] == state_digest(other)[:16], "that of the rows alone, as of version 0.1"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"t": [(1, "a"), (None, 2)], "u": []}, {"u": [], "t": [(None, 2), (1, "a")]}, True),
        ({"t": [(1,)]}, {"t": [(1,), (1,)]}, False),
        ({"t": []}, {}, False),
        ({"t": [(1,), (2,)]}, {"t": [(1, 2)]}, False),
        ({"t": [(1, 10**18)]}, {"t": [(1.0, Decimal(10**18))]}, True),
        ({"t": [(Decimal("2.50"), 100)]}, {"t": [(2.5, Decimal("1E+2"))]}, True),
        ({"t": [(10**18,)]}, {"t": [(10**18 + 1,)]}, False),
        ({"t": [(0.1 + 0.2, -0.0)]}, {"t": [(0.3, 0)]}, True),
        ({"t": [(0.3,)]}, {"t": [(0.3001,)]}, False),
        ({"t": [("1",)]}, {"t": [(1,)]}, False),
        ({"t": [(None,)]}, {"t": [("None",)]}, False),
        ({"t": [("a', 'b",)]}, {"t": [("a", "b")]}, False),
        ({"t": [(datetime.date(2024, 1, 2),)]}, {"t": [("2024-01-02",)]}, False),
        ({"t": [(b"a", "\ud83c")]}, {"t": [(bytearray(b"a"), "\ud83c")]}, True),
    ],
)
def test_a_states_digest_tells_apart_what_same_state_does(one: dict, other: dict, equal: bool) -> None:
    one, other = state(**one), state(**other)
    assert (state_digest(one) == state_digest(other)) is equal is same_state(one, other)


def test_a_states_digest_begins_with_that_of_version_01() -> None:
    """Saved in runs of that version, which `replay` still compares with."""
    assert state_digest(state(t=[(1, "a"), (None, 2.5)], u=[]))[:16] == "e2419ef2b6b82bed"


@given(st.lists(st.tuples(cells, cells), min_size=1), st.randoms(use_true_random=False), st.data())
def test_a_state_is_a_multiset(rows: list[tuple], rng: random.Random, data: st.DataObject) -> None:
    mixed = rng.sample(rows, len(rows))
    assert same_state(state(t=rows), state(t=mixed))
    assert state_digest(state(t=rows)) == state_digest(state(t=mixed))
    extra = data.draw(st.sampled_from(rows))
    assert not same_state(state(t=rows), state(t=[*rows, extra]))
    assert not same_state(state(t=rows), state(t=[*rows[1:], (*rows[0][:-1], "another, longer text")])) or (
        rows[0][-1] == "another, longer text"
    )


@pytest.mark.timeout(60)
def test_large_tables_of_almost_equal_floats_take_no_time() -> None:
    rng = random.Random(0)
    a = [(rng.random(), "x", rng.random()) for _ in range(20_000)]
    b = [(x * (1 + 1e-12), text, y * (1 - 1e-12)) for x, text, y in a]
    rng.shuffle(b)
    assert same_rows(a, b)
    assert not same_rows(a, [*b[1:], (b[0][0], "y", b[0][2])])


# ---------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("right", "judged", "counts"),
    [(5, 20, "5 of 20"), (1 / 3, 5, "0.3333 of 5"), (12_345.67, 20_000, "12346 of 20000")],
    ids=["whole", "an estimate", "an estimate of many tasks"],
)
def test_counts_of_a_share(right: float, judged: int, counts: str) -> None:
    assert Share(right, judged).counts == counts


def test_wilson_interval() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson_interval(1, 10, z=2.576) == pytest.approx((0.0119, 0.5073), abs=1e-4)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_holds_the_share_and_stays_in_bounds(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert low < high
