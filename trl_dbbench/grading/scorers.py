"""Scores for the rows of a statement, by the rules of published evaluators and by our own.

| scorer | from | rows | columns | cells |
|---|---|---|---|---|
| `strict` | ours | bags; in order if asked | in order | type and value; floats within 1e-9 of each other |
| `bird_ex` | BIRD | sets | in order | `==` of Python |
| `bird_soft_f1` | BIRD | pairs, in order, without repeats | any order | `==`; the share of equal ones |
| `spider_ts` | Spider's test suites | bags; in order if asked | any order | `==` |
| `spider2` | Spider 2.0 | columns one by one | those of the gold, any order | within 0.01; NULL is 0 |
| `critic` | BIRD-CRITIC, LiveSQLBench on SQLite | sets; in order if asked | in order | to two places, days |
| `critic_mysql` | BIRD-CRITIC on MySQL | sets | in order | days as text |

Each scores two results from 0 to 1 as the evaluator's code does, oddities included: 1,000 and 1,000.0 may
differ (`spider_ts`), an empty result equals another (`bird_ex`) or never does (`critic`), and swapped cells
may be right (`spider2`). `strict` has none of these. If the evaluator's comparison raises, the score is 0, as
for a statement that failed.

`scored_sql` has the rewriting that some evaluators do before they execute a statement.
"""

from __future__ import annotations

import datetime
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

from trl_dbbench.grading.rows import same_rows

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Result:
    """A query's result: column names, and rows in order. `width` is the full number of columns of a gold
    result of which only some count, as in Spider 2.0; 0 if all count."""

    columns: Sequence[str]
    rows: Sequence[Row]
    width: int = 0

    @property
    def most_columns(self) -> int:
        """Most columns of a right answer, if this is the gold."""
        return max(len(self.columns), self.width)

    @property
    def says_nothing(self) -> bool:
        """Return whether there are no rows, or only NULLs; wrong statements often give those too."""
        return all(cell is None for row in self.rows for cell in row)


def strict(predicted: Result, gold: Result, ordered: bool = False) -> float:
    """Return 1 if both have the same rows, `ordered` or not, and as many columns; see `rows.same_rows`."""
    if len(predicted.columns) != len(gold.columns) or len(predicted.rows) != len(gold.rows):
        return 0.0
    return float(same_rows(predicted.rows, gold.rows, ordered))


def bird_ex(predicted: Result, gold: Result) -> float:
    """Return BIRD's execution accuracy, which ignores the order of rows and repeated rows."""
    try:
        return float({*predicted.rows} == {*gold.rows})
    except TypeError:  # a cell that is a list or an object
        return 0.0


def bird_soft_f1(predicted: Result, gold: Result) -> float:
    """Return BIRD's soft F1: rows are paired in order, and cells found in the partner row are counted.

    A gold row without a partner counts as one missing cell, a predicted row as one extra cell. The counts of
    a pair are divided by the gold row's number of cells.
    """
    try:
        ours, theirs = list(dict.fromkeys(predicted.rows)), list(dict.fromkeys(gold.rows))
    except TypeError:
        return 0.0
    if not ours and not theirs:
        return 1.0
    if not ours or not theirs:
        return 0.0
    found = extra = missing = 0.0
    for row, other in zip(ours, theirs, strict=False):
        width = len(other) or 1
        found += sum(cell in other for cell in row) / width
        extra += sum(cell not in other for cell in row) / width
        missing += sum(cell not in row for cell in other) / width
    extra += max(0, len(ours) - len(theirs))
    missing += max(0, len(theirs) - len(ours))
    precision = found / (found + extra) if found + extra else 0.0
    recall = found / (found + missing) if found + missing else 0.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def spider_ts(predicted: Result, gold: Result, ordered: bool = False) -> float:
    """Return 1 if some order of columns makes the rows equal, as on one database of Spider's test suites.

    The evaluator first compares rows with cells sorted by text and type, so `(1, 10)` differs from
    `(1.0, 10)`.

    Args:
        ordered: whether the order of rows counts; for Spider, if the gold SQL contains `order by`.
    """
    ours, theirs = predicted.rows, gold.rows
    if not ours and not theirs:
        return 1.0
    if len(ours) != len(theirs) or len(ours[0]) != len(theirs[0]):
        return 0.0
    try:
        ours_sorted, theirs_sorted = (
            [tuple(sorted(row, key=lambda cell: f"{cell}{type(cell)}")) for row in each]
            for each in (ours, theirs)
        )
        if ordered:
            if ours_sorted != theirs_sorted:
                return 0.0
            return float(Counter(zip(*ours, strict=True)) == Counter(zip(*theirs, strict=True)))
        if {*ours_sorted} != {*theirs_sorted}:
            return 0.0
        return float(_permuted(ours, theirs))
    except TypeError:  # a cell that is a list or an object
        return 0.0


MAX_BAGS = 20_000
MAX_BAG_ROWS = 4_000_000
"""Most multisets of rows, and most rows in them, compared to find an order of columns. If many similar
columns need more, the results count as different. Two multisets per column are always tried."""


def _permuted(ours: Sequence[Row], theirs: Sequence[Row]) -> bool:
    """Return whether some order of columns turns one multiset of rows into the other.

    Columns are placed one by one, those with the fewest candidates first, while the multisets are equal.
    """
    columns, wanted = ([*zip(*rows, strict=True)] for rows in (ours, theirs))
    own_bags, bags = ([frozenset(Counter(column).items()) for column in each] for each in (columns, wanted))
    places: dict[frozenset, list[int]] = {}
    for number, bag in enumerate(own_bags):
        places.setdefault(bag, []).append(number)
    if Counter(own_bags) != Counter(bags):
        return False
    order = sorted(range(len(wanted)), key=lambda number: len(places[bags[number]]))
    steps = [Counter(zip(*(wanted[each] for each in order[: n + 1]), strict=True)) for n in range(len(order))]
    compared = 0
    most = max(2 * len(order), min(MAX_BAGS, MAX_BAG_ROWS // len(ours)))
    pending: list[tuple[int, ...]] = [()]
    while pending and compared < most:
        chosen = pending.pop()
        if len(chosen) == len(order):
            return True
        tried = set()
        for number in reversed(places[bags[order[len(chosen)]]]):
            if number in chosen or columns[number] in tried:
                continue
            tried.add(columns[number])
            compared += 1
            rows = zip(*(columns[each] for each in (*chosen, number)), strict=True)
            if Counter(rows) == steps[len(chosen)]:
                pending.append((*chosen, number))
    return False


def spider2(predicted: Result, gold: Result, ignore_order: bool = True) -> float:
    """Return 1 if every gold column equals some predicted column, as Spider 2.0 does.

    Numbers are equal within 0.01 or a relative 1e-9, and NULL is 0. Spider 2.0 first writes both results to
    CSV and reads them again; see `csv_cells`.

    Args:
        ignore_order: whether to sort each column by itself first.
    """
    ours, theirs = _columns(predicted), _columns(gold)
    if theirs and len(predicted.rows) != len(gold.rows):
        return 0.0
    arranged = partial(sorted, key=_as_text) if ignore_order else list
    arranged_ours = cache(lambda place: arranged(ours[place]))
    return float(
        all(
            any(all(map(_close_cells, column, arranged_ours(place))) for place in range(len(ours)))
            for column in map(arranged, theirs)
        )
    )


def _columns(result: Result) -> list[list[Any]]:
    cells: list[list[Any]] = [[row[place] for row in result.rows] for place in range(len(result.columns))]
    kinds = {type(cell) for column in cells for cell in column}
    if float in kinds and kinds <= {int, float, bool}:
        # Spider 2.0 converts a table of numbers to floats, which changes their order as texts
        cells = [[float(cell) for cell in column] for column in cells]
    return [[0 if _is_null(cell) else cell for cell in column] for column in cells]


def _is_null(cell: Any) -> bool:
    return cell is None or (isinstance(cell, float | Decimal) and cell != cell)


def _as_text(cell: Any) -> tuple[str, bool]:
    return str(cell), isinstance(cell, int | float)


def _close_cells(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        try:
            return math.isclose(one, other, abs_tol=0.01)
        except OverflowError:  # an integer too large for a float
            return one == other
    return bool(one == other)


def critic(predicted: Result, gold: Result, ordered: bool = False) -> float:
    """Return 1 if rows are equal, as BIRD-CRITIC and LiveSQLBench compare by default on SQLite.

    Times are cut to days and numbers rounded to two places, also in lists and objects, which become JSON
    text. Nothing is right if the gold is empty.

    Args:
        ordered: whether order and repetition of rows count (`conditions: {order: true}`).
    """
    return _same(_two_places, predicted, gold, ordered)


def critic_mysql(predicted: Result, gold: Result) -> float:
    """Return 1 if rows are equal, as BIRD-CRITIC compares by default on MySQL and PostgreSQL.

    Times are cut to days. Nothing is right if the gold is empty.
    """
    return _same(_day, predicted, gold, ordered=False)


MOST_ROWS = 10_000
"""Most rows that `critic` and `critic_mysql` compare."""


def _same(of_cell: Callable[[Any], Any], predicted: Result, gold: Result, ordered: bool) -> float:
    if not predicted.rows or not gold.rows:
        return 0.0
    try:
        ours, theirs = (
            [tuple(map(of_cell, row)) for row in each.rows[:MOST_ROWS]] for each in (predicted, gold)
        )
        return float(ours == theirs if ordered else {*ours} == {*theirs})
    except (TypeError, InvalidOperation, RecursionError):
        return 0.0  # a list or object, not JSON, or a number that cannot be rounded


def _day(cell: Any) -> Any:
    return cell.strftime("%Y-%m-%d") if isinstance(cell, datetime.date) else cell


def _two_places(cell: Any) -> Any:
    """Return a cell as the evaluator compares it. Dates and Decimals in lists have no JSON text."""
    rounded = _rounded(cell)
    return json.dumps(rounded, sort_keys=True) if isinstance(rounded, list | dict) else _day(rounded)


def _rounded(cell: Any) -> Any:
    """Round numbers to two places, also in lists and objects."""
    if isinstance(cell, Decimal):
        return cell.quantize(Decimal("0.01"), ROUND_HALF_UP)
    if isinstance(cell, float):
        return round(cell, 2)
    if isinstance(cell, list | tuple):
        return type(cell)(map(_rounded, cell))
    if isinstance(cell, dict):
        return {name: _rounded(each) for name, each in cell.items()}
    return cell


def csv_cells(result: Result) -> Result:
    """Return the result as pandas reads it back after writing it to CSV; the text `NA` becomes NaN."""
    import pandas  # slow to import, and rarely needed

    if not result.columns:
        return result
    written = pandas.DataFrame([*result.rows], columns=[*result.columns]).to_csv(index=False)
    return read_csv(io.StringIO(written))


def read_csv(file: Path | IO[str]) -> Result:
    """Read a CSV file with pandas, as Spider 2.0 reads its golds; ValueError if it is not CSV."""
    import pandas

    read = pandas.read_csv(file)
    rows = list(zip(*(read.iloc[:, place].tolist() for place in range(read.shape[1])), strict=True))
    return Result([*map(str, read.columns)], rows)
