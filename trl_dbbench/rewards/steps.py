"""Rewards for single turns that a database can verify, without a model.

```yaml
reward_funcs: [outcome, state_progress, answer_seen]
reward_weights: [1.0, 0.5, 0.5]
```

Each returns a list for an episode: a value for each turn, `None` for turns it does not judge; or `None` for
an episode it does not judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from trl_dbbench.database import Database, State
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import Answer, Invalid
from trl_dbbench.episode.table_states import of_each, states_along
from trl_dbbench.episode.types import Episode, Status, Turn
from trl_dbbench.grading.rows import cell_key

StepValues = list[list[float | None] | None]


def executes(episode: Sequence[Episode], **kwargs: object) -> StepValues:
    """1 for a statement that ran, 0 for one that failed and for a turn that could not be read.

    Answers are not judged. Statements are paid whether they help or not, so weigh it lightly.
    """
    return [
        None if e.status == Status.ENVIRONMENT_FAULT else [_executed(turn) for turn in e.turns]
        for e in episode
    ]


def _executed(turn: Turn) -> float | None:
    if isinstance(turn.action, Answer):
        return None
    return float(not isinstance(turn.action, Invalid) and turn.result is not None and not turn.result.error)


def answer_seen(episode: Sequence[Episode], **kwargs: object) -> StepValues:
    """Return for a question: the share of the gold answer's cells that a statement showed for the first time.

    Cells are compared as numbers where both are, else as text. The shares of an episode add up to 1 at most.
    """
    return [_seen(e) for e in episode]


def _seen(episode: Episode) -> list[float | None] | None:
    task = episode.task
    if episode.status == Status.ENVIRONMENT_FAULT or not task.is_question or not task.gold.answer:
        return None
    wanted = {_comparable(cell) for cell in _cells(task.gold.answer)}
    missing, values = set(wanted), list[float | None]()
    for turn in episode.turns:
        rows = (turn.result.rows if turn.result else None) or []
        found = missing & {_comparable(cell) for cell in _cells(rows)}
        missing -= found
        values.append(len(found) / len(wanted))
    return values


def _cells(rows: Sequence[Any]) -> Iterator[Any]:
    for row in rows:
        if isinstance(row, (tuple, list)):
            yield from row
        else:
            yield row


def _comparable(cell: Any) -> float | str:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return str(cell).strip()


class StateProgress:
    """For a change: how much closer to the right tables a turn brought the tables.

    The potential of a state is the share of rows that are as in the gold state: rows that both have, in
    number, divided by those that at least one has. A turn's reward is the potential after it less that before
    it. Such rewards change no optimum (Ng et al., 1999, "Policy invariance under reward transformations").
    Statements are executed again on a fresh sandbox.
    """

    __name__ = "state_progress"

    def __init__(self, database: Database, judge: Judge | None = None):
        self._database = database
        self._judge = judge or Judge(database)

    def __call__(self, episode: Sequence[Episode], **kwargs: object) -> StepValues:
        return of_each(episode, self._database, "the reward state_progress", self._values)

    def _values(self, episode: Episode, database: Database) -> list[float | None] | None:
        task = episode.task
        if task.is_question or task.gold.sql is None:
            return None
        gold = self._judge.gold_state(task).state
        if gold is None:
            return None
        states = states_along(episode, database)
        potentials = [potential(state, gold) for state in states]
        return [after - before for before, after in pairwise(potentials)]


def potential(state: State, gold: State) -> float:
    """Return the share of rows as in the gold state, 0 to 1, over all rows of either; 1 if both have none."""
    now, wanted = _rows(state), _rows(gold)
    together = (now | wanted).total()
    return (now & wanted).total() / together if together else 1.0


def _rows(state: State) -> Counter[tuple]:
    """Count the rows, by table and columns."""
    return Counter(
        (name, tuple(column.lower() for column in table.columns), *map(cell_key, row))
        for name, table in state.items()
        for row in table.rows
    )
