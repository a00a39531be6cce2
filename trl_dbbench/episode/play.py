"""One episode from start to verdict: ask for a turn, execute it, show what came back, repeat, judge.

The consequences of errors are decided here and nowhere else:

```
a statement fails                its error is the observation, and the episode goes on
a turn cannot be read            ends the episode, or tells the agent what was expected (the protocol decides)
a statement ends the server      Status.SERVER_CRASH, without a verdict
the database fails               Status.ENVIRONMENT_FAULT: no verdict, and no mean includes the episode
```

`play` knows nothing of batches, tokens or TRL. It asks a `Dialogue` for turns and a sandbox for rows. An
episode always ends on a turn, because nobody would read an observation after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Protocol

from trl_dbbench.database import Database, QueryResult, Sandbox
from trl_dbbench.database.dialect import Dialect
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import AgentProtocol, Answer, Invalid, Operation
from trl_dbbench.episode.types import Episode, Rules, Start, Status, Turn
from trl_dbbench.errors import EnvironmentFault, ServerCrash, TaskError

logger = logging.getLogger(__name__)


class Dialogue(Protocol):
    """The agent's side of one episode: an engine (`player.TokenDialogue`), an endpoint or a client."""

    async def next_turn(self, number: int) -> Turn | None:
        """Return the turn with that number, counted from 0; `None` if there is no room for one."""

    @property
    def full(self) -> bool:
        """Return whether the episode has no tokens left."""

    def tell(self, turn: Turn) -> bool:
        """Show the turn's observation to the agent; return whether there was room for it."""


async def play(
    start: Start,
    *,
    dialogue: Callable[[Episode], Dialogue],
    protocol: AgentProtocol,
    database: Database,
    judge: Judge,
    rules: Rules,
) -> Episode:
    """Play one task to its end. Nothing that the agent writes or a server does makes it raise.

    Args:
        dialogue: starts the agent's side of an episode, after the turns in `start.past`.
    """
    role = protocol.observation_role
    episode = Episode(start.task, start.prompt_ids, start.sampling, observation_role=role, shots=start.shots)
    async with judged(episode, protocol, database, judge) as opening:
        for turn in start.past:
            await database.in_thread(repeat, turn, await opening, database.dialect)
            # a copy, since rewards and values differ from episode to episode
            episode.turns.append(replace(turn, rewards={}, advantage=None, state=None, value=None))
        episode.status = await _play_turns(episode, dialogue, protocol, database, opening, rules)
    return episode


@asynccontextmanager
async def judged(
    episode: Episode, protocol: AgentProtocol, database: Database, judge: Judge
) -> AsyncIterator[Awaitable[Sandbox]]:
    """Yield an awaitable of the sandbox in which the block plays the episode; then judge the answer.

    The tables are made while the model writes the first turn. A database failure ends the episode.
    """
    with noting_faults(episode):
        opening = database.in_thread(database.sandbox, episode.task)
        try:
            yield opening
            if answer := episode.answer:
                sandbox = await opening
                episode.verdict = await database.in_thread(
                    judge, episode.task, answer, sandbox, protocol.grader, episode.statements
                )
        finally:
            sandbox = await opening
            await database.in_thread(sandbox.close)
            episode.retries = sandbox.retries


async def _play_turns(
    episode: Episode,
    begin: Callable[[Episode], Dialogue],
    protocol: AgentProtocol,
    database: Database,
    opening: Awaitable[Sandbox],
    rules: Rules,
) -> Status:
    dialogue, max_turns = begin(episode), rules.turns(episode.task)
    for number in range(len(episode.turns), max_turns):
        started = time.perf_counter()
        turn = await dialogue.next_turn(number)
        if turn is None:
            return Status.OUT_OF_TOKENS
        episode.turns.append(turn)

        end: Status | None = None
        if turn.cut_off and dialogue.full:
            end = Status.OUT_OF_TOKENS
        elif isinstance(turn.action, Answer):
            end = Status.ANSWERED
        elif isinstance(turn.action, Operation):
            sandbox = await opening
            turn.result = await database.in_thread(sandbox.execute, turn.action.sql)
            turn.observation = protocol.observe(turn.result)
        elif isinstance(turn.action, Invalid) and protocol.invalid_ends_episode:
            end = Status.INVALID_ACTION
        elif isinstance(turn.action, Invalid):
            turn.observation = protocol.observe(turn.action)
        turn.seconds = time.perf_counter() - started

        if end is None and number + 1 < max_turns and not dialogue.tell(turn):
            end = Status.OUT_OF_TOKENS
        if end is not None:
            return end
    return Status.TURN_LIMIT


@contextmanager
def noting_faults(episode: Episode, asked_by: str = "") -> Iterator[None]:
    """Mark an episode as crashed or failed, with a warning, if its server or database fails in the block.

    `asked_by` names the reward or advantage that uses the database after the episode's end.
    """
    prefix = f"{asked_by}: " if asked_by else ""
    where = f"{asked_by} of task" if asked_by else "task"
    try:
        yield
    except ServerCrash as crash:
        logger.warning("%s %s: %s", where, episode.task.id, crash)
        episode.crash()
    except (EnvironmentFault, TaskError) as fault:
        # a TaskError: this server cannot make the task's tables, which is not the agent's fault
        logger.warning("%s %s: %s", where, episode.task.id, fault)
        episode.fail(f"{prefix}{fault}")


# --- turns that are executed again --------------------------------------------------------------------


def executed_again(turn: Turn, sandbox: Sandbox, dialect: Dialect) -> QueryResult | None:
    """Execute a turn's statement again and return its result; `None` if it cannot have changed anything."""
    if not isinstance(turn.action, Operation) or turn.result is None:
        return None
    # a statement that was stopped at a limit was undone, and might end the server this time
    if dialect.only_reads(turn.action.sql) or turn.result.undone:
        return None
    return sandbox.repeat(turn.action.sql, turn.result)


def repeat(turn: Turn, sandbox: Sandbox, dialect: Dialect) -> None:
    """Execute a turn's statement again, unless it only reads.

    Raises:
        EnvironmentFault: if the database fails, or the statement may have another effect this time.
    """
    again, seen = executed_again(turn, sandbox, dialect), turn.result
    if again is None or seen is None or not isinstance(turn.action, Operation):
        return
    same = (again.rows, again.error, again.affected) == (seen.rows, seen.error, seen.affected)
    if not same or (dialect.varies(turn.action.sql) and seen.moment is None):
        raise EnvironmentFault(f"{turn.action.sql[:200]!r} may do something else when it is executed again")
