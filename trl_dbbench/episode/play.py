"""One episode, written once: ask for a turn, execute what it means, tell what came back, repeat.

`play` knows nothing of batches, ranks or TRL, nor of tokens: it asks a `Dialogue` for the next turn and a
sandbox for the statement's rows. An episode always ends on a turn: an observation after it would be read by
nobody.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from trl_dbbench.database import Database, QueryResult, Sandbox
from trl_dbbench.database.dialect import Dialect
from trl_dbbench.episode.dialogue import Dialogue
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.protocol import AgentProtocol, Answer, Invalid, Operation
from trl_dbbench.episode.types import Episode, Rules, Start, Status, Turn
from trl_dbbench.errors import EnvironmentFault, ServerCrash, TaskError

logger = logging.getLogger(__name__)


async def play(
    start: Start,
    *,
    dialogue: Callable[[Episode], Dialogue],
    protocol: AgentProtocol,
    database: Database,
    judge: Judge,
    rules: Rules,
) -> Episode:
    """Plays one task to its end. Never raises for what the agent wrote or what a server did.

    Args:
        dialogue: begins the talk of an episode, after the turns that it goes on from.
        protocol: what agent and database talk in.
    """
    task = start.task
    role = protocol.observation_role
    episode = Episode(task, start.prompt_ids, start.sampling, observation_role=role, shots=start.shots)
    try:
        # its tables are made while the model writes the first turn
        opening = database.in_thread(database.sandbox, task)
        try:
            await _play_past(episode, start.past, database, opening)
            await _play_turns(episode, dialogue(episode), protocol, database, opening, rules)
            if answer := episode.answer:
                sandbox = await opening
                episode.verdict = await database.in_thread(
                    judge, task, answer, sandbox, protocol.grader, episode.statements
                )
        finally:
            sandbox = await opening
            await database.in_thread(sandbox.close)
            episode.retries = sandbox.retries
    except ServerCrash as crash:
        logger.warning("task %s: %s", task.id, crash)
        episode.crash()
    except (EnvironmentFault, TaskError) as fault:
        # a TaskError here: this server cannot make the task's tables, which is no fault of the agent
        logger.warning("task %s: %s", task.id, fault)
        episode.fail(str(fault))
    return episode


async def _play_past(
    episode: Episode, past: Sequence[Turn], database: Database, opening: Awaitable[Sandbox]
) -> None:
    for turn in past:
        await database.in_thread(repeat, turn, await opening, database.dialect)
        # a turn of its own: what it is worth here is not what it is worth there
        episode.turns.append(replace(turn, rewards={}, advantage=None, state=None, value=None))


def executed_again(turn: Turn, sandbox: Sandbox, dialect: Dialect) -> QueryResult | None:
    """What a turn's statement gives when it is executed again; `None` if it changed nothing.

    Raises:
        EnvironmentFault: if the database fails.
    """
    if not isinstance(turn.action, Operation) or turn.result is None:
        return None
    # what was stopped at a limit was undone, and may have ended the server
    if dialect.only_reads(turn.action.sql) or turn.result.undone:
        return None
    return sandbox.repeat(turn.action.sql, turn.result)


def repeat(turn: Turn, sandbox: Sandbox, dialect: Dialect) -> None:
    """Executes a turn's statement again, unless it only reads.

    Raises:
        EnvironmentFault: if the database fails, or the tables may not become what they were.
    """
    again, seen = executed_again(turn, sandbox, dialect), turn.result
    if again is None or seen is None or not isinstance(turn.action, Operation):
        return
    same = (again.rows, again.error, again.affected) == (seen.rows, seen.error, seen.affected)
    if not same or (dialect.varies(turn.action.sql) and seen.moment is None):
        raise EnvironmentFault(f"{turn.action.sql[:200]!r} may do something else when it is executed again")


async def _play_turns(
    episode: Episode,
    dialogue: Dialogue,
    protocol: AgentProtocol,
    database: Database,
    opening: Awaitable[Sandbox],
    rules: Rules,
) -> None:
    max_turns = rules.turns(episode.task)
    for number in range(len(episode.turns), max_turns):
        started = time.perf_counter()
        turn = await dialogue.next_turn(number)
        if turn is None:
            episode.status = Status.OUT_OF_TOKENS
            return
        episode.turns.append(turn)

        if turn.cut_off and dialogue.full:
            episode.status = Status.OUT_OF_TOKENS
            break
        if isinstance(turn.action, Answer):
            episode.status = Status.ANSWERED
            break
        if isinstance(turn.action, Invalid):
            if protocol.invalid_ends_episode:
                episode.status = Status.INVALID_ACTION
                break
            turn.observation = protocol.observe(turn.action)
        else:
            sandbox = await opening
            turn.result = await database.in_thread(sandbox.execute, turn.action.sql)
            turn.observation = protocol.observe(turn.result)
        turn.seconds = time.perf_counter() - started

        if number + 1 == max_turns:
            episode.status = Status.TURN_LIMIT
            break
        if not dialogue.tell(turn):
            episode.status = Status.OUT_OF_TOKENS
            break
    last = episode.turns[-1]
    last.seconds = last.seconds or time.perf_counter() - started
