"""The tables along an episode: its statements executed again, with a look at the tables after each change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trl_dbbench.database import Database, State
from trl_dbbench.episode.play import executed_again
from trl_dbbench.episode.types import Episode, Status
from trl_dbbench.errors import EnvironmentFault, ServerCrash

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 8


def states_along(episode: Episode, database: Database) -> list[State]:
    """The tables before each of the K turns and after the last: K + 1 states, the same object where a turn
    changed nothing.

    The turns are executed again. Results that differ this time, such as of UUID(), count: an agent that could
    leave an episode without these states could leave it without its rewards.

    Raises:
        EnvironmentFault: if the database fails.
    """
    with database.sandbox(episode.task) as sandbox:
        states = [sandbox.state()]
        for turn in episode.turns:
            again = executed_again(turn, sandbox, database.dialect)
            states.append(states[-1] if again is None else sandbox.state())
        return states


def of_each(
    episodes: Sequence[Episode],
    database: Database,
    what_for: str,
    look: Callable[[Episode, Database], T | None],
    crashed: T | None = None,
) -> list[T | None]:
    """What `look` finds of each episode, side by side; `None` for those whose environment failed, or fails
    now, which is noted in them.

    Args:
        what_for: the reward or credit that asks, for the note.
        crashed: of episodes that ended the server, whose statements are not executed again.
    """

    def one(episode: Episode) -> T | None:
        if episode.status == Status.ENVIRONMENT_FAULT:
            return None
        if episode.status == Status.SERVER_CRASH:
            return crashed
        try:
            return look(episode, database)
        except ServerCrash as crash:
            logger.warning("%s of task %s: %s", what_for, episode.task.id, crash)
            episode.crash()
            return crashed
        except EnvironmentFault as fault:
            # with what else it was given, the episode would be worth less, or more, than its equals
            logger.warning("%s of task %s: %s", what_for, episode.task.id, fault)
            episode.fail(f"{what_for}: {fault}")
            return None

    with ThreadPoolExecutor(max_workers=THREADS) as pool:
        return list(pool.map(one, episodes))
