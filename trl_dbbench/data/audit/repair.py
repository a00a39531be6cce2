"""Find rows on which a gold statement and the slips that pass for it give different results.

As in distilled test suites (Zhong et al., 2020, "Semantic Evaluation for Text-to-SQL with Distilled Test
Suites"), new rows are close to existing ones: one or two cells get another value of their column, a value
that the gold SQL compares with, or a neighbour of such a value. Here the rows are added to the task's own
tables, and its gold answer becomes the result of its gold SQL on them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, product, zip_longest
from typing import Any

from sqlglot import exp

from trl_dbbench.data.audit.examine import Ending, Examined, examine
from trl_dbbench.data.audit.slips import keys_of, slips_of
from trl_dbbench.data.generate.checks import plain
from trl_dbbench.database import Database
from trl_dbbench.errors import TaskError
from trl_dbbench.grading import GRADERS, Grader, SQLGrader
from trl_dbbench.grading.scorers import Result
from trl_dbbench.grading.states import state_hash, without_dates
from trl_dbbench.tasks import Gold, Table, Task
from trl_dbbench.utils.sql import only_statement

MAX_TRIES = 200
"""Largest number of candidates tried for each change to the tables."""

MAX_CHANGES = 4
"""Largest number of changes to the tables of one task."""

MAX_BASES = 12
"""Largest number of a table's rows that new rows are derived from."""

SUFFIX = "-repaired"
"""Suffix of a repaired task's id."""

Cells = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """A row that was added to a table or, if `place` is given, replaced the row at this index."""

    table: str
    row: Cells
    place: int | None = None

    def __str__(self) -> str:
        what = "one more row" if self.place is None else f"row {self.place + 1} is now"
        return f"{self.table}: {what} {self.row}"


def repaired(
    task: Task, databases: Sequence[Database], grader: Grader | SQLGrader | None = None
) -> tuple[Task, list[Change]] | None:
    """Return the task with tables on which no slip passes, and their changes; `None` if none are found.

    On all databases the repaired task has no faults. Cells stay unique in declared keys, in columns named id,
    and in a first column whose cells all differ. If this leaves no solution, the first column may repeat.
    """
    if task.source is not None or task.gold.sql is None:
        return None
    by_looks = any(keys_of(table, True) != keys_of(table, False) for table in task.tables)
    for strictly in (True, False) if by_looks else (True,):
        found = _search(Examined(task, databases[0], grader), strictly)
        if found is None:
            continue
        better, changes = found
        # executed as written: a grader may have rewritten it during the search
        ending, _ = Examined(better, databases[0]).gold
        if ending is not None:
            better = replace(better, id=f"{task.id}{SUFFIX}", gold=gold_of(better, ending))
            if not any(finding.is_fault for finding in examine(better, databases, grader)):
                return better, changes
    return None


def _search(examined: Examined, strictly: bool) -> tuple[Task, list[Change]] | None:
    """Change the tables greedily: each change is the candidate after which the fewest slips are right."""
    changes: list[Change] = []
    rng = random.Random(examined.task.id)
    slips = slips_of(examined.task)
    left = examined.surviving(slips)
    while left and len(changes) < MAX_CHANGES:
        best: tuple[int, Examined, Change] | None = None
        for change in islice(_changes(examined.task, rng, strictly), MAX_TRIES):
            candidate = _with_change(examined, change)
            if candidate is None:
                continue
            fewest = len(left) if best is None else best[0]
            count = len(candidate.surviving(left, fewest))
            if count < fewest:
                best = count, candidate, change
            if not count:
                break
        if best is None:
            return None
        _, examined, change = best
        changes.append(change)
        left = examined.surviving(slips)  # the change may let other slips pass
    return None if left else (examined.task, changes)


def _with_change(examined: Examined, change: Change) -> Examined | None:
    """Return the changed task with new gold; `None` if a column refuses the row or the gold gives nothing."""
    task = examined.task
    tables = tuple(_changed(table, change) if table.name == change.table else table for table in task.tables)
    changed = replace(examined, task=replace(task, tables=tables))
    try:
        ending, _ = changed.gold
    except TaskError:
        return None
    if ending is None or (isinstance(ending, Result) and ending.says_nothing):
        return None
    changed.task = replace(changed.task, gold=gold_of(changed.task, ending))
    return changed


def gold_of(task: Task, ending: Ending) -> Gold:
    """Return the task's gold; its answer or published hash, if it has one, is replaced by this result."""
    gold = task.gold
    if not isinstance(ending, Result):
        if gold.state_md5 is None:
            return gold
        return replace(gold, state_md5=state_hash(ending[task.tables[0].name].rows) or "")
    if gold.answer is None:
        return gold
    rows = [tuple(map(plain, without_dates(row))) for row in ending.rows]
    of_rows = task.grader in GRADERS and GRADERS[task.grader].rows
    return replace(gold, answer=tuple(rows) if of_rows else tuple(str(cell) for row in rows for cell in row))


def _changed(table: Table, change: Change) -> Table:
    place = len(table.rows) if change.place is None else change.place
    return replace(table, rows=(*table.rows[:place], change.row, *table.rows[place + 1 :]))


# --- candidates --------------------------------------------------------------------------------------------


def _changes(task: Task, rng: random.Random, strictly: bool) -> Iterator[Change]:
    """Yield candidates of each kind in turn: copies of rows with up to two new cells, and cells in place."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    if tree is None:
        return
    named = {column.name.lower() for column in tree.find_all(exp.Column)}
    used = {table.name.lower() for table in tree.find_all(exp.Table)}
    said = _literals(tree)
    literals = [text for texts in said.values() for text in texts]
    kinds: list[Iterator[Change]] = []
    for table in task.tables:
        if table.name.lower() not in used or not table.rows:
            continue
        keys = keys_of(table, strictly)
        pools = {
            place: _pool(table, place, said.get(column.name.lower(), []), rng)
            for place, column in enumerate(table.columns)
            if place not in keys and (column.name.lower() in named or not named)
        }
        bases = _bases(table, literals, rng)
        kinds += [_rows(table, bases, pools, keys, count, rng) for count in (1, 2)]
        kinds += [_cells(table, bases, pools, rng), _rows(table, bases, pools, keys, 0, rng)]
    for changes in zip_longest(*kinds):
        yield from (change for change in changes if change is not None)


def _literals(tree: exp.Expr) -> dict[str, list[str]]:
    """Return the literals that each column is compared with or set to; keys are names in lower case."""
    found: dict[str, list[str]] = {}
    for literal in tree.find_all(exp.Literal):
        place = literal.find_ancestor(exp.Predicate, exp.In, exp.Between)
        for column in place.find_all(exp.Column) if place is not None else ():
            found.setdefault(column.name.lower(), []).append(literal.name)
    return found


def _bases(table: Table, literals: Sequence[str], rng: random.Random) -> list[int]:
    """Return the indices of up to `MAX_BASES` rows; rows with a literal of the gold SQL come first."""
    places = rng.sample(range(len(table.rows)), len(table.rows))
    places.sort(key=lambda place: not any(str(cell) in literals for cell in table.rows[place]))
    return places[:MAX_BASES]


def _cells(
    table: Table, bases: Sequence[int], pools: dict[int, list], rng: random.Random
) -> Iterator[Change]:
    found = [
        Change(table.name, _with(table.rows[place], {column: value}), place)
        for place, (column, pool) in product(bases, pools.items())
        for value in pool
        if value != table.rows[place][column]
    ]
    yield from rng.sample(found, len(found))


def _rows(
    table: Table, bases: Sequence[int], pools: dict[int, list], keys: set[int], count: int, rng: random.Random
) -> Iterator[Change]:
    fresh = {place: _fresh(table, place) for place in keys}
    found = [
        _with(table.rows[base], fresh | dict(zip(chosen, values, strict=True)))
        for base in bases
        for chosen in combinations(pools, count)
        for values in product(*(pools[column] for column in chosen))
    ]
    rng.shuffle(found)
    yield from (Change(table.name, row) for row in dict.fromkeys(found))


def _with(row: Cells, cells: dict[int, Any]) -> Cells:
    return tuple(cells.get(place, cell) for place, cell in enumerate(row))


def _pool(table: Table, place: int, literals: Sequence[str], rng: random.Random) -> list[Any]:
    """Return values for a cell: some of its column, those that the gold SQL compares with, and neighbours."""
    cells = [row[place] for row in table.rows]
    distinct = list(dict.fromkeys(cells))
    pool: list[Any] = rng.sample(distinct, min(4, len(distinct)))
    if numbers := _numbers(cells):
        step = 1 if all(isinstance(number, int) for number in numbers) else 0.25
        near = [
            number + by for number in map(_number, literals) if number is not None for by in (0, -step, step)
        ]
        pool += [number if step < 1 else int(number) for number in near if step < 1 or number.is_integer()]
        pool += [max(numbers) + 1]
    elif all(isinstance(cell, str) for cell in cells if cell is not None):
        pool += [literal for literal in literals if literal and "%" not in literal][:4]
    return list(dict.fromkeys(pool))


def _fresh(table: Table, place: int) -> Any:
    """Return a value that a column does not have yet."""
    cells = [row[place] for row in table.rows]
    if numbers := _numbers(cells):
        return max(numbers) + 1
    texts, number = [str(cell) for cell in cells if cell is not None], 2
    if texts and all(text.isdecimal() for text in texts):
        return str(max(map(int, texts)) + 1)
    start = texts[-1] if texts else "row"
    while f"{start} {number}" in texts:
        number += 1
    return f"{start} {number}"


def _numbers(cells: Sequence[Any]) -> list[float]:
    """Return the cells that are not NULL if all of these are numbers, else an empty list."""
    found = [cell for cell in cells if cell is not None]
    are = all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in found)
    return found if are else []


def _number(literal: str) -> float | None:
    try:
        return float(literal)
    except ValueError:
        return None
