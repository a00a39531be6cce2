"""Faults that are planted in sound tasks, of kinds that files of tasks have.

- `wrong answer`: the gold answer is that of another question. No right answer is rewarded. Of questions only.
- `wrong gold`: gold SQL and answer fit each other, and are for another question, one slip away from the one
  that is asked. That slip is rewarded, and what is right is not.
- `slip`: rows are missing, so that a statement one slip away is right as well. Both are rewarded.
- `tie`: rows tie where the question asks for an order. The gold answer is one of those possible: that of the
  rows as they lie, or of the reverse order, as another server may have them. Right statements are rewarded in
  the first case, and in the second none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from sqlglot import exp

from trl_dbbench.data.audit.examine import Examined, is_empty
from trl_dbbench.data.audit.repair import gold_of
from trl_dbbench.data.audit.slips import slips_of
from trl_dbbench.data.generate.slips import wrong_statements
from trl_dbbench.database import Database
from trl_dbbench.grading.scorers import Result
from trl_dbbench.tasks import Table, Task
from trl_dbbench.utils.sql import only_statement


@dataclass(frozen=True)
class Planting:
    """What a fault is planted with: the database that says what statements end in, all tasks, and chance."""

    database: Database
    tasks: Sequence[Task]
    rng: random.Random

    def examined(self, task: Task) -> Examined:
        return Examined(task, self.database)

    def drawn(self, found: Sequence[Any]) -> list[Any]:
        """In any order."""
        return self.rng.sample(found, len(found))


def with_sql(task: Task, sql: str) -> Task:
    """With another gold SQL, whatever the gold answer is."""
    return replace(task, gold=replace(task.gold, sql=sql))


def fitted(task: Task, database: Database) -> Task:
    """With the gold answer, or the hash of the state, that the gold SQL gives, if it gives any."""
    ending, _ = Examined(task, database).gold
    return task if ending is None else replace(task, gold=gold_of(task, ending))


# --- the kinds: each gives the faulty task, or `None` if the task cannot have such a fault ------------------


def wrong_answer(task: Task, planting: Planting) -> Task | None:
    """Of questions only: what is right of a change is what its gold SQL leaves."""
    examined = planting.examined(task)
    gold, _ = examined.gold
    if not isinstance(gold, Result):
        return None
    for other in planting.drawn(planting.tasks):
        wrong = replace(task, gold=replace(task.gold, answer=other.gold.answer))
        if other.is_question and not planting.examined(wrong).right(gold):
            return wrong
    return None


def wrong_gold(task: Task, planting: Planting) -> Task | None:
    """It does something, as a gold that was looked at once does."""
    examined = planting.examined(task)
    for slip in planting.drawn(slips_of(task)):
        ending, _ = examined.ending(slip)
        if ending is not None and not is_empty(examined, ending) and not examined.right(ending):
            return fitted(with_sql(task, slip), planting.database)
    return None


def slip(task: Task, planting: Planting) -> Task | None:
    """As few rows as possible are missing; the gold still does something, and fits."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    slips = list(wrong_statements(tree)) if tree is not None else []
    for tables in _with_fewer_rows(task, planting):
        fewer = fitted(replace(task, tables=tables), planting.database)
        examined = planting.examined(fewer)
        ending, _ = examined.gold
        if ending is not None and not is_empty(examined, ending) and examined.surviving(slips, 1):
            return fewer
    return None


def tie(task: Task, planting: Planting) -> Task | None:
    """The answer is that of the rows as they lie, or of another order of them, as another server has it."""
    tree = only_statement(task.gold.sql or "", task.dialect)
    term = tree.find(exp.Ordered) if tree is not None else None
    if term is None or not isinstance(term.this, exp.Column):
        return None
    (table,) = task.tables
    place = [column.name for column in table.columns].index(term.this.name)
    for one, other in planting.drawn(list(combinations(range(len(table.rows)), 2))):
        rows = [list(row) for row in table.rows]
        rows[one][place] = rows[other][place]
        orders = planting.drawn([tuple(map(tuple, rows)), tuple(map(tuple, rows[::-1]))])
        this, that = (fitted(_with_rows(task, order), planting.database) for order in orders)
        ending, _ = planting.examined(that).gold
        if ending is not None and not planting.examined(this).right(ending):
            return replace(_with_rows(task, tuple(map(tuple, rows))), gold=this.gold)
    return None


KINDS: dict[str, Callable[[Task, Planting], Task | None]] = {
    "wrong answer": wrong_answer,
    "wrong gold": wrong_gold,
    "slip": slip,
    "tie": tie,
}


def plant(
    tasks: Sequence[Task],
    share: float,
    database: Database,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    seed: int = 0,
) -> tuple[list[Task], dict[str, str]]:
    """The tasks with one fault in some of them, and which: id -> kind.

    A task that is chosen gets a kind that it can have; of these, one is as likely as another. With the same
    seed, the faulty tasks of a smaller share are among those of a larger one, with the same faults.

    Args:
        share: of the tasks that shall be faulty, from 0 to 1.

    Raises:
        ValueError: if not so many tasks can have such a fault.
    """
    order = random.Random(seed).sample(range(len(tasks)), len(tasks))
    wanted, faulty, planted = round(share * len(tasks)), list(tasks), dict[str, str]()
    for index in order:
        if len(planted) == wanted:
            break
        task = tasks[index]
        planting = Planting(database, tasks, random.Random(f"{seed} {task.id}"))
        for kind in planting.drawn(list(kinds)):
            if (wrong := KINDS[kind](task, planting)) is not None:
                faulty[index], planted[task.id] = wrong, kind
                break
    if len(planted) < wanted:
        raise ValueError(
            f"{wanted} tasks were to have a fault ({', '.join(kinds)}) and only {len(planted)} of "
            f"{len(tasks)} can; lower the share or name more kinds."
        )
    return faulty, planted


def _with_rows(task: Task, rows: tuple[tuple[Any, ...], ...]) -> Task:
    return replace(task, tables=(replace(task.tables[0], rows=rows), *task.tables[1:]))


def _with_fewer_rows(task: Task, planting: Planting) -> Iterator[tuple[Table, ...]]:
    """The largest first, of one size in any order; at least one row stays."""
    first, *others = task.tables
    for size in range(len(first.rows) - 1, 0, -1):
        for rows in planting.drawn(list(combinations(first.rows, size))):
            yield (replace(first, rows=rows), *others)
