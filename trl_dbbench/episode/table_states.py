"""Tables along an episode: its statements are executed again, and the tables read after each change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from trl_dbbench.database import Database, State
from trl_dbbench.episode.play import executed_again, noting_faults
from trl_dbbench.episode.types import Episode, Status

T = TypeVar("T")

THREADS = 8
"""Number of episodes looked at in parallel."""


def states_along(episode: Episode, database: Database) -> list[State]:
    """Return the tables before each of the K turns and after the last.

    These are K + 1 states; a turn that changed nothing repeats the object before it. Results that differ this
    time, such as those of UUID(), do not raise: otherwise an agent could avoid its rewards by making them
    differ.
    """
    with database.sandbox(episode.task) as sandbox:
        states = [sandbox.state()]
        for turn in episode.turns:
            again = executed_again(turn, sandbox, database.dialect)
            states.append(states[-1] if again is None else sandbox.state())
        return states


def for_each_episode(
    episodes: Sequence[Episode],
    database: Database,
    asked_by: str,
    look: Callable[[Episode, Database], T | None],
    crashed: T | None = None,
) -> list[T | None]:
    """Return what `look` returns for each episode, computed in parallel.

    The value is `None` for an episode whose environment failed. An episode whose environment fails now is
    marked as failed: with only some of its rewards it could not be compared with the others.

    Args:
        asked_by: the reward or advantage, for the warning.
        crashed: the value of episodes that ended the server; their statements are not executed again.
    """

    def one(episode: Episode) -> T | None:
        if episode.status not in (Status.ENVIRONMENT_FAULT, Status.SERVER_CRASH):
            with noting_faults(episode, asked_by):
                return look(episode, database)
        return crashed if episode.status == Status.SERVER_CRASH else None

    with ThreadPoolExecutor(max_workers=THREADS) as pool:
        return list(pool.map(one, episodes))
