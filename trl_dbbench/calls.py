"""An episode whose turns are calls that come when somebody else likes: of another trainer's tool loop, or of
an agent's client.

`loop.play` asks for a turn and waits; whoever calls hands one over, and waits for what comes of it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from trl_dbbench.endpoints.messages import Call
from trl_dbbench.errors import EnvironmentFault
from trl_dbbench.protocol import AgentProtocol
from trl_dbbench.rollout import Completion, Episode, Turn


class Refused(Exception):
    """A call that cannot be carried out; its text is for the agent. It is no turn of any episode."""


def written(tool: str, **arguments: Any) -> str:
    """The turn that means this call, as the protocols `tools` and `tools_sql` read it."""
    return Call("", tool, json.dumps(arguments, ensure_ascii=False)).text()


class Calls:
    """The calls of an episode; see `dialogue.Dialogue`. For one event loop.

    Calls that come at once are turns in the order of their coming.

    Args:
        idle_seconds: an episode that is not called for so long has ended; `None` is for ever.
    """

    full = False  # nobody counts tokens

    def __init__(self, protocol: AgentProtocol, idle_seconds: float | None = None) -> None:
        self._protocol = protocol
        self._idle_seconds = idle_seconds
        self._calls: asyncio.Queue[str | None] = asyncio.Queue()
        self._replies: deque[asyncio.Future[Turn | Episode]] = deque()
        self._left = False
        self._fault: str | None = None

    def call(self, text: str) -> asyncio.Future[Turn | Episode]:
        """Hands over the next turn.

        Returns:
            The turn with its observation, or the episode if the turn has ended it.
        """
        reply: asyncio.Future[Turn | Episode] = asyncio.get_running_loop().create_future()
        self._replies.append(reply)
        self._calls.put_nowait(text)
        return reply

    def leave(self, fault: str | None = None) -> None:
        """Ends the episode before its next turn.

        Args:
            fault: why that is not the agent's doing, if it is not.
        """
        self._left, self._fault = True, fault
        self._calls.put_nowait(None)

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
        if not reply.done():  # else the client has taken the call back
            reply.set_result(turn)
        return True

    def end(self, episode: Episode, late: str) -> None:
        """Answers all calls that wait. The first one has ended the episode, if it has ended by a call.

        Args:
            late: what is said to the others.
        """
        if self._replies and not (first := self._replies.popleft()).done():
            first.set_result(episode)
        self.refuse(Refused(late))

    def refuse(self, why: Refused) -> None:
        """Refuses all calls that wait."""
        while self._replies:
            if not (reply := self._replies.popleft()).done():
                reply.set_exception(why)
