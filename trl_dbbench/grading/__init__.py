"""What is right: answers against gold answers, rows and tables against gold rows and tables.

| module | |
|---|---|
| `answers` | the three published graders of answers |
| `rows` | rows and tables compared cell by cell, for rewards and verdicts |
| `scorers` | results of statements compared as published evaluators do, and strictly |
| `scored_sql` | what some of those evaluators make of a statement first |
| `states` | the published hash of a table, and a digest of all tables |
| `statistics` | a share with Wilson's interval, and with what it leaves out |

All of it is pure functions. A grader judges an answer's text (`GRADERS`), or what an answer gives that is SQL
(`SQL_GRADERS`: the scorers, with what their evaluators make of the statements first). It is named in a
task, a protocol, or a setting such as `trl-dbbench validate --grader`; one of your own is a function, named
by its dotted path in a setting:

```python
def close_enough(answer: str, gold: Sequence) -> bool:
    return answer.strip().lower() == str(gold[0]).lower()


def same_number_of_rows(predicted: Result, gold: Result, ordered: bool) -> float:
    return float(len(predicted.rows) == len(gold.rows))


same_number_of_rows.sql = True
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

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
from trl_dbbench.utils.lookup import look_up
from trl_dbbench.utils.sql import sorts_rows


class GraderFunction(Protocol):
    """A grader of your own: whether the answer is right.

    It gets what the agent committed, a text (a list of strings from tool calls as `str()` prints it), and the
    gold answer's labels. A function that has the attribute `rows = True` gets the gold answer's rows instead.
    """

    def __call__(self, answer: str, gold: Sequence, /) -> bool: ...


@dataclass(frozen=True)
class Grader:
    """One way to judge answers.

    Args:
        name: its name in `GRADERS`, or the dotted path of a user's own.
        judge: whether the answer is right, given the gold answer in this grader's form.
        rows: the form of gold answers and of the answers that tools commit: rows, which are tuples, or else
            labels, which are single values.
    """

    name: str
    judge: GraderFunction
    rows: bool = False

    def gold(self, answer: Iterable) -> list:
        """A gold answer in this grader's form: labels become rows of one cell, rows a list of their cells."""
        rows = [tuple(row) if isinstance(row, list | tuple) else (row,) for row in answer]
        return rows if self.rows else [cell for row in rows for cell in row]

    def answer(self, rows: Sequence[Sequence[Any]]) -> str:
        """The answer of an agent that passes on the rows it got from the database."""
        return str(list(rows)) if self.rows else str([str(cell) for row in rows for cell in row])

    def can_be_right(self, gold: Sequence) -> bool:
        """Whether the gold answer itself, which has this grader's form, is right."""
        return bool(self.judge(str(list(gold)), list(gold)))


class ScorerFunction(Protocol):
    """A grader of your own for answers that are SQL: how right a result is, from 0 to 1. It has `sql = True`.

    `ordered` says whether the gold SQL sorts its rows.
    """

    def __call__(self, predicted: Result, gold: Result, ordered: bool, /) -> float: ...


@dataclass(frozen=True)
class SQLGrader:
    """One way to judge answers that are SQL: by what they give, beside what the gold SQL gives.

    Args:
        name: its name in `SQL_GRADERS`, or the dotted path of a user's own.
        score: how right a result is; an answer with 1 is right.
        rewrite: what is made of both statements before they are executed.
        ordered: whether the order of rows counts, by the gold SQL.
        counts_rows: whether the score is 0 where the numbers of rows differ.
    """

    name: str
    score: ScorerFunction
    rewrite: Callable[[str], str] = str
    ordered: Callable[[str], bool] = sorts_rows
    counts_rows: bool = False
    rows: ClassVar[bool] = False

    def value(self, predicted: Result, gold: Result, gold_sql: str) -> float:
        """How right a result is, 0 to 1.

        Args:
            gold_sql: as it is, before `rewrite`; it says whether the order of rows counts.
        """
        return self.score(predicted, gold, self.ordered(gold_sql))

    def best(self, predicted: Result, golds: Sequence[Result], gold_sql: str | None) -> float:
        """How right a result is beside that of the golds which it is most like, 0 to 1.

        Args:
            gold_sql: without one the order of rows counts only for graders that always mind it.
        """
        return max(self.value(predicted, gold, gold_sql or "") for gold in golds)

    def right(self, predicted: Result, golds: Sequence[Result], gold_sql: str | None) -> bool:
        """Whether an answer is right to rewards and accuracy: its score is 1, and it has no more columns than
        the gold.

        Spider 2.0's rule, by which more columns are free, is for figures. As a reward it would pay one
        statement that selects all that may be asked for.

        Args:
            gold_sql: as for `best`.
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
"""For answers that are SQL. `spider_ts_distinct` leaves DISTINCT where it is (`keep_distinct`), which
`critic_mysql_no_distinct` takes out; `..._ordered` minds the order of rows."""

GRADERS: dict[str, Grader] = {
    grader.name: grader
    for grader in (
        Grader("agentbench_text", grade_agentbench_text),
        Grader("agentbench_fc", grade_agentbench_fc),
        Grader("lifelong", grade_lifelong, rows=True),
    )
}

DEFAULT_GRADER = "lifelong"
"""Judges tasks of the own format that name no grader."""


def get_grader(name: str) -> Grader | SQLGrader:
    """One of `GRADERS` or `SQL_GRADERS`, or a user's own function by its dotted path.

    Only for names that come from settings and code. One that comes from a task file must be looked up in
    `GRADERS` and `SQL_GRADERS` alone: reading data must never import code.

    Raises:
        ConfigError: if there is no such grader.
    """
    found: Any = look_up("grader", name, {**GRADERS, **SQL_GRADERS})
    if isinstance(found, Grader | SQLGrader):
        return found
    return (
        SQLGrader(name, found)
        if getattr(found, "sql", False)
        else Grader(name, found, bool(getattr(found, "rows", False)))
    )


def grade(answer: str, gold: Sequence, grader: str) -> bool:
    """Whether the named grader calls the answer right.

    Args:
        answer: what the agent committed: the text after `Final Answer:`, or, where answers come as a list of
            strings, `str()` of that list.
        gold: the labels or, for a grader of rows, the rows.
        grader: a name that `get_grader` knows.

    Raises:
        ConfigError: if there is no such grader, or it judges SQL. Nothing in `answer` makes one of `GRADERS`
            raise: a text on which the original would crash is a wrong answer.
    """
    found = get_grader(grader)
    if isinstance(found, SQLGrader):
        raise ConfigError(f"the grader {grader!r} judges what SQL gives; name one of {', '.join(GRADERS)}.")
    return bool(found.judge(answer, list(gold)))
