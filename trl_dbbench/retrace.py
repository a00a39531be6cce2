"""The tables along an episode: its statements executed again, with a look at the tables after each change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trl_dbbench.database import Database, State
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.loop import repeat
from trl_dbbench.rollout import Episode, Status

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 8


def states_along(episode: Episode, database: Database) -> list[State]:
    """The tables before each of the K turns and after the last: K + 1 states, the same object where a turn
    changed nothing.

    Raises:
        EnvironmentFault: if the database fails, or the tables may not become what they were.
    """
    with database.sandbox(episode.task) as sandbox:
        states = [sandbox.state()]
        for turn in episode.turns:
            again = repeat(turn, sandbox, database.dialect)
            states.append(sandbox.state() if again else states[-1])
        return states


def of_each(
    episodes: Sequence[Episode], database: Database, what_for: str, look: Callable[[Episode, Database], T]
) -> list[T | None]:
    """What `look` finds of each episode, side by side; `None` for those whose environment failed, or fails
    now, which is noted in them.

    Args:
        what_for: whoever asks, for the note.
    """

    def one(episode: Episode) -> T | None:
        if episode.status == Status.ENVIRONMENT_FAULT:
            return None
        try:
            return look(episode, database)
        except EnvironmentFault as fault:
            # with what else it was given, the episode would be worth less, or more, than its equals
            logger.warning("%s of task %s: %s", what_for, episode.task.id, fault)
            episode.fail(f"{what_for}: {fault}")
            return None

    with ThreadPoolExecutor(max_workers=THREADS) as pool:
        return list(pool.map(one, episodes))
