"""What is right: answers against gold answers, rows and tables against gold rows and tables.

| module | |
|---|---|
| `answers` | the three published graders of answers |
| `rows` | rows and tables compared cell by cell, for rewards and verdicts |
| `scorers` | results of statements compared as published evaluators do, and strictly |
| `scored_sql` | what some of those evaluators make of a statement first |
| `states` | the published hash of a table, and a digest of all tables |
| `statistics` | Wilson's interval |

All of it is pure functions. A grader is named in a task, a protocol, or a setting such as `trl-dbbench
validate --grader`; one of your own is a function, named by its dotted path in a setting:

```python
def close_enough(answer: str, gold: Sequence) -> bool:
    return answer.strip().lower() == str(gold[0]).lower()
```
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trl_dbbench.grading.answers import grade_agentbench_fc, grade_agentbench_text, grade_lifelong
from trl_dbbench.lookup import look_up


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


def get_grader(name: str) -> Grader:
    """One of `GRADERS`, or a user's own function by its dotted path.

    Only for names that come from settings and code. One that comes from a task file must be looked up in
    `GRADERS` alone: reading data must never import code.

    Raises:
        ConfigError: if there is no such grader.
    """
    found: Any = look_up("grader", name, GRADERS)
    return found if isinstance(found, Grader) else Grader(name, found, bool(getattr(found, "rows", False)))


def grade(answer: str, gold: Sequence, grader: str) -> bool:
    """Whether the named grader calls the answer right.

    Args:
        answer: what the agent committed: the text after `Final Answer:`, or, where answers come as a list of
            strings, `str()` of that list.
        gold: the labels or, for a grader of rows, the rows.
        grader: a name that `get_grader` knows.

    Raises:
        ConfigError: if there is no such grader. Nothing in `answer` makes one of `GRADERS` raise: a text on
            which the original would crash is a wrong answer.
    """
    return bool(get_grader(grader).judge(answer, list(gold)))
