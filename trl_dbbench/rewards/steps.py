"""Rewards for single turns that a database can verify; they need no model.

```yaml
reward_funcs: [outcome, state_progress, answer_seen]
reward_weights: [1.0, 0.5, 0.5]
```

Each returns a list per episode, with a value or `None` for each turn, or `None` instead of a list if it does
not apply to the episode.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from trl_dbbench.database import Database, State
from trl_dbbench.episode.protocol import CUT, Answer, Invalid, Reply
from trl_dbbench.episode.table_states import states_along
from trl_dbbench.episode.types import Episode, Status, Turn
from trl_dbbench.grading.states import cell_text, without_dates
from trl_dbbench.rewards.named import DatabaseReward, named

StepValues = list[list[float | None] | None]


@named("executes", steps=True)
def executes(episode: Sequence[Episode], **kwargs: object) -> StepValues:
    """Return 1 for a statement that ran, 0 for one that failed or a turn that could not be read.

    Answers get `None`. Useless statements are rewarded too, so give it a small weight.
    """
    return [
        None if e.status == Status.ENVIRONMENT_FAULT else [_executed(turn) for turn in e.turns]
        for e in episode
    ]


def _executed(turn: Turn) -> float | None:
    if isinstance(turn.action, Answer | Reply):
        return None
    return float(not isinstance(turn.action, Invalid) and turn.result is not None and not turn.result.error)


@named("answer_seen", steps=True)
def answer_seen(episode: Sequence[Episode], **kwargs: object) -> StepValues:
    """Return, for a question, the share of the gold answer's cells that a statement was the first to show.

    Cells are compared as numbers if both are, else as text. Cells that the observation cuts off do not count.
    An episode's shares add up to at most 1.
    """
    return [_seen(e) for e in episode]


def _seen(episode: Episode) -> list[float | None] | None:
    task = episode.task
    rows = (row if isinstance(row, tuple | list) else [row] for row in task.gold.answer or ())
    wanted = {_comparable(cell) for row in rows for cell in without_dates(row)}
    if episode.status == Status.ENVIRONMENT_FAULT or not task.is_question or not wanted:
        return None
    missing, values = set(wanted), list[float | None]()
    for turn, said in zip(episode.turns, episode.said, strict=True):
        # a program also reads the cells that the observation cuts off
        seen = _shown(turn if said else replace(turn, observation=None))
        found = missing & {_comparable(cell) for cell in without_dates([*seen])}
        missing -= found
        values.append(len(found) / len(wanted))
    return values


def _shown(turn: Turn) -> Iterator[Any]:
    """Yield the cells of a turn's result that its observation shows, which may be cut."""
    rows, text = (turn.result.rows if turn.result else None) or [], turn.observation or ""
    room, place = len(text) - len(CUT) if text.endswith(CUT) else math.inf, 0
    for row in rows:
        place += 2  # as Python prints rows: `[(1, 'Ann'), (2, 'Bo')]`
        for cell in row:
            place += len(repr(cell))
            if place > room:
                return
            yield cell
            place += 2
        place += len(row) == 1  # `(1,)`


def _comparable(cell: Any) -> float | str:
    with suppress(TypeError, ValueError, OverflowError):
        if math.isfinite(number := float(cell)):
            return number
    return str(cell).strip()  # also Nan, which may be a name


@named("state_progress", steps=True)
class StateProgress(DatabaseReward):
    """Reward for how much closer to the gold state a turn brings the tables, for tasks that change them.

    The potential of a state is the number of rows it shares with the gold state, over the number of rows in
    either. A turn's reward is the potential after it minus the potential before it, as in potential-based
    shaping (Ng et al., 1999, "Policy invariance under reward transformations"). The potential at the end is
    not subtracted, so a change that is partly right is rewarded. Statements are executed again on
    a fresh sandbox.
    """

    __name__ = "state_progress"

    def _value(self, episode: Episode, database: Database) -> list[float | None] | None:
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
    """Return the share of rows in both states among the rows in either, 0 to 1; 1 if both are empty."""
    now, wanted = _rows(state), _rows(gold)
    together = (now | wanted).total()
    return (now & wanted).total() / together if together else 1.0


def _rows(state: State) -> Counter[tuple]:
    """Count each row, by table and columns."""
    return Counter(
        (name, tuple(column.lower() for column in table.columns), *map(cell_text, row))
        for name, table in state.items()
        for row in table.rows
    )
