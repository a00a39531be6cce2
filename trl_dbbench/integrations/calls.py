"""An episode driven by an external client: another trainer's tool loop, or an agent over MCP.

`episode.play` waits for the next turn; a caller hands one over and waits for its result.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.play import play
from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.types import Completion, Episode, Rules, Start, Status, Turn
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.integrations.endpoints.messages import Call

OVER = {
    Status.ANSWERED: "The answer is recorded. The session is over.",
    Status.TURN_LIMIT: "No call is left. The session is over.",
    Status.OUT_OF_TOKENS: "The session is over.",
    Status.SERVER_CRASH: "A statement has ended the database server. The session is over.",
    Status.ENVIRONMENT_FAULT: "The database has failed. The session is over.",
}
"""Replies to calls after the end of an episode, for trainers that let the model go on calling."""


class Refused(Exception):
    """A refused call; its text is for the agent. It does not count as a turn."""


def written(tool: str, /, **arguments: Any) -> str:
    """Return the text of a turn that makes this call, in the protocols `tools` and `tools_sql`."""
    return Call("", tool, json.dumps(arguments, ensure_ascii=False)).text()


class Calls:
    """Calls of one episode, as an `episode.play.Dialogue`. For one event loop.

    Concurrent calls become turns in the order in which they arrive.

    Args:
        idle_seconds: time without a call after which the episode ends; `None` for no limit.
    """

    full = False  # there is no limit on tokens

    def __init__(self, protocol: AgentProtocol, idle_seconds: float | None = None) -> None:
        self._protocol = protocol
        self._idle_seconds = idle_seconds
        self._calls: asyncio.Queue[str | None] = asyncio.Queue()
        self._replies: deque[asyncio.Future[Turn | Episode]] = deque()
        self._left = False
        self._fault: str | None = None

    def call(self, text: str) -> asyncio.Future[Turn | Episode]:
        """Hand over the next turn. The future gives the turn with its observation, or the episode if the turn
        ended it."""
        reply: asyncio.Future[Turn | Episode] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self._calls.put_nowait(text)
        return reply

    def leave(self, fault: str | None = None) -> None:
        """End the episode before its next turn; a `fault` makes it an environment fault."""
        self._left, self._fault = True, fault
        self._calls.put_nowait(None)

    async def play(self, start: Start, database: Database, judge: Judge, rules: Rules) -> Episode:
        """Play a task with `episode.play`; calls that still wait at its end are left to `end` or `refuse`."""
        return await play(
            start,
            dialogue=lambda episode: self,
            protocol=self._protocol,
            database=database,
            judge=judge,
            rules=rules,
        )

    async def next_turn(self, number: int) -> Turn | None:
        try:
            async with asyncio.timeout(self._idle_seconds):
                text = await self._calls.get()
        except TimeoutError:
            return None
        if self._fault is not None:
            raise EnvironmentFault(self._fault)
        if text is None or self._left:
            return None
        return Turn(Completion([], []), text, self._protocol.parse(text))

    def tell(self, turn: Turn) -> bool:
        reply = self._replies.popleft()
        if not reply.done():  # otherwise the client has cancelled the call
            reply.set_result(turn)
        return True

    def end(self, episode: Episode, late: str) -> None:
        """Answer all waiting calls: the first with the episode, which it may have ended, and refuse the
        others with the text `late`."""
        if self._replies and not (first := self._replies.popleft()).done():
            first.set_result(episode)
        self.refuse(Refused(late))

    def refuse(self, why: Refused) -> None:
        """Refuse all waiting calls."""
        while self._replies:
            if not (reply := self._replies.popleft()).done():
                reply.set_exception(why)


async def play_calls(start: Start, calls: Calls, database: Database, judge: Judge, rules: Rules) -> Episode:
    """Play a task whose turns are these calls; answer all waiting calls at its end.

    Raises:
        Exception: an error that is neither the agent's nor the database's, such as a bug in a grader. Waiting
            calls are refused first.
    """
    try:
        episode = await calls.play(start, database, judge, rules)
    except BaseException as error:
        calls.refuse(Refused(f"The episode failed: {error!r}"))  # or they would wait forever
        raise
    calls.end(episode, late="")
    return episode
