"""Grading: answers against gold answers, rows and tables against gold rows and tables.

`answers` has the three published graders of answers in words, `scorers` the comparisons of query results,
`scored_sql` the rewriting that some evaluators do first, `rows` and `states` the comparison and the digests
of tables, `statistics` and `calibration` the figures. All are pure functions.
In: an answer or a result, and the gold. Out: right or wrong, or a score from 0 to 1.

`GRADERS` judge texts, `SQL_GRADERS` the results of SQL. A task, a protocol or a setting such as `validate
--grader` names one. Your own grader is a function, named by its dotted path in a setting
(`docs/extending.md`). This one is for answers that are SQL:

```python
def same_number_of_rows(predicted: Result, gold: Result, ordered: bool) -> float:
    return float(len(predicted.rows) == len(gold.rows))


same_number_of_rows.sql = True
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from trl_dbbench.errors import ConfigError
from trl_dbbench.grading.answers import grade_agentbench_fc, grade_agentbench_text, grade_lifelong
from trl_dbbench.grading.scored_sql import for_critic, for_spider, without_distinct
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
from trl_dbbench.grading.states import without_dates
from trl_dbbench.utils.lookup import look_up
from trl_dbbench.utils.sql import sorts_rows

GraderFunction = Callable[[str, Sequence], bool]
"""Your own grader: a function that returns whether an answer is right.

It gets the agent's answer as text (answers from tool calls as `str()` of a list of strings) and the gold
labels. With the attribute `rows = True` it gets the gold rows instead.
"""


@dataclass(frozen=True)
class Grader:
    """A grader of answers in words.

    Args:
        name: its name in `GRADERS`, or the dotted path of a user's own.
        judge: decides whether an answer is right, given the gold answer in this grader's form.
        rows: whether this form, also for answers from tools, is rows (tuples) instead of labels (single
            values).
    """

    name: str
    judge: GraderFunction
    rows: bool = False

    def gold(self, answer: Iterable) -> list:
        """Return a gold answer in this grader's form: rows of one cell, or a flat list of labels."""
        rows = [without_dates(row if isinstance(row, list | tuple) else (row,)) for row in answer]
        return rows if self.rows else [cell for row in rows for cell in row]

    def answer(self, rows: Sequence[Sequence[Any]]) -> str:
        """Return the answer text for rows of the database, with dates as MySQL prints them."""
        rows = list(map(without_dates, rows))
        return str(rows) if self.rows else str([str(cell) for row in rows for cell in row])

    def can_be_right(self, gold: Sequence) -> bool:
        """Return whether the grader accepts the gold answer itself, given in this grader's form."""
        return bool(self.judge(str(list(gold)), list(gold)))


ScorerFunction = Callable[[Result, Result, bool], float]
"""Your own grader of SQL answers: a function with the attribute `sql = True` that returns a score, 0 to 1.

It gets the answer's result, the gold result, and whether the gold SQL sorts its rows.
"""


@dataclass(frozen=True)
class SQLGrader:
    """A grader of SQL answers, which compares their results with those of the gold SQL.

    Args:
        name: its name in `SQL_GRADERS`, or the dotted path of a user's own.
        score: scores a result; an answer with 1 is right.
        rewrite: applied to both statements before they are executed.
        ordered: decides from the gold SQL whether the order of rows counts.
        counts_rows: whether results with different numbers of rows score 0.
    """

    name: str
    score: ScorerFunction
    rewrite: Callable[[str], str] = str
    ordered: Callable[[str], bool] = sorts_rows
    counts_rows: bool = False
    rows: ClassVar[bool] = False

    def best(self, predicted: Result, golds: Sequence[Result], gold_sql: str | None) -> float:
        """Return the score against the most similar gold, 0 to 1. `gold_sql`, before `rewrite`, decides
        whether the order of rows counts; if `None`, it counts only for graders that always require it."""
        return max(self.score(predicted, gold, self.ordered(gold_sql or "")) for gold in golds)

    def right(self, predicted: Result, golds: Sequence[Result], gold_sql: str | None) -> bool:
        """Return whether rewards and accuracy count an answer as right: a score of 1, and no extra columns.

        Spider 2.0 allows extra columns, but a reward that did so would encourage selecting everything.
        """
        narrow = [gold for gold in golds if len(predicted.columns) <= gold.most_columns]
        return bool(narrow) and self.best(predicted, narrow, gold_sql) >= 1


def _unordered(score: Callable[[Result, Result], float]) -> ScorerFunction:
    return lambda predicted, gold, ordered: score(predicted, gold)


def _spider2(predicted: Result, gold: Result, ordered: bool) -> float:
    return spider2(csv_cells(predicted), csv_cells(gold), ignore_order=not ordered)


def _always(value: bool) -> Callable[[str], bool]:
    return lambda sql: value


def _says_order_by(sql: str) -> bool:
    return "order by" in sql.lower()


SQL_GRADERS: dict[str, SQLGrader] = {
    grader.name: grader
    for grader in (
        SQLGrader("strict", strict, counts_rows=True),
        SQLGrader("bird_ex", _unordered(bird_ex)),
        SQLGrader("bird_soft_f1", _unordered(bird_soft_f1)),
        SQLGrader("spider_ts", spider_ts, for_spider, _says_order_by, True),
        SQLGrader(
            "spider_ts_distinct", spider_ts, partial(for_spider, keep_distinct=True), _says_order_by, True
        ),
        SQLGrader("spider2", _spider2, ordered=_always(False), counts_rows=True),
        SQLGrader("spider2_ordered", _spider2, ordered=_always(True), counts_rows=True),
        SQLGrader("critic", critic, for_critic, _always(False)),
        SQLGrader("critic_ordered", critic, for_critic, _always(True)),
        SQLGrader("critic_mysql", _unordered(critic_mysql)),
        SQLGrader("critic_mysql_no_distinct", _unordered(critic_mysql), without_distinct),
    )
}
"""Graders of SQL answers. `spider_ts_distinct` keeps DISTINCT, `critic_mysql_no_distinct` removes it, and
`..._ordered` compares the order of rows."""

GRADERS: dict[str, Grader] = {
    grader.name: grader
    for grader in (
        Grader("agentbench_text", grade_agentbench_text),
        Grader("agentbench_fc", grade_agentbench_fc),
        Grader("lifelong", grade_lifelong, rows=True),
    )
}

DEFAULT_GRADER = "lifelong"
"""Grader of tasks in this library's format that name none."""


def get_grader(name: str) -> Grader | SQLGrader:
    """Return one of `GRADERS` or `SQL_GRADERS`, or a user's own function by its dotted path.

    Only for names from settings and code; raise ConfigError for an unknown one. A name from a task file must
    be looked up in the two tables alone: reading data must never import code.
    """
    found: Any = look_up("grader", name, {**GRADERS, **SQL_GRADERS})
    if isinstance(found, Grader | SQLGrader):
        return found
    if getattr(found, "sql", False):
        return SQLGrader(name, found)
    return Grader(name, found, bool(getattr(found, "rows", False)))


def grade(answer: str, gold: Sequence, grader: str) -> bool:
    """Return whether the named grader calls the answer right; raise ConfigError if there is no such grader,
    or it judges SQL. A text that crashes the original grader is a wrong answer.

    Args:
        answer: the text after `Final Answer:`, or `str()` of a list of strings from a tool call.
        gold: the gold labels, or rows if the grader compares rows.
        grader: a name that `get_grader` knows.
    """
    found = get_grader(grader)
    if isinstance(found, SQLGrader):
        raise ConfigError(f"the grader {grader!r} judges what SQL gives; name one of {', '.join(GRADERS)}.")
    return bool(found.judge(answer, list(gold)))
