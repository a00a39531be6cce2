"""Play episodes with the user's own program."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from trl_dbbench.episode.play import judged
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import given_answer
from trl_dbbench.episode.types import Completion, Engine, Episode, Start, Status, Turn
from trl_dbbench.harness.endpoint import Endpoint
from trl_dbbench.harness.program import End, Programs
from trl_dbbench.harness.session import Session
from trl_dbbench.harness.task import DEFAULT_SECONDS, HarnessTask
from trl_dbbench.utils.settings import check_number

POLL_SECONDS = 0.25
"""Seconds between two checks of a program's time limit."""


@dataclass(frozen=True)
class HarnessPlayer(Player):
    """A player that runs a program for each episode, in a process of its own.

    Args:
        harness: the dotted path of a function that takes a `HarnessTask` and returns the answer, or
            `file.py:name`, or a command line.
        seconds: time limit of a program; see `DEFAULT_SECONDS`.
    """

    harness: str = ""
    seconds: float = DEFAULT_SECONDS
    _started: dict[str, Programs] = field(default_factory=dict, repr=False, compare=False)
    """The programs by harness. `dataclasses.replace` keeps them, so the user's module is imported once."""
    _served: dict[asyncio.AbstractEventLoop, Endpoint] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_number("harness_seconds", self.seconds)
        if self.harness not in self._started:
            self._started[self.harness] = Programs(self.harness)

    @property
    def programs(self) -> Programs:
        return self._started[self.harness]

    @property
    def rewrites(self) -> bool:
        return True

    async def play(self, start: Start, engine: Engine, row: int = 0) -> Episode:
        """Run the program of one episode to its end, then judge the episode.

        A failure of the program becomes `Status.HARNESS_FAULT`. Nothing that it does makes this raise.
        """
        protocol, role = self.chat.protocol, self.chat.protocol.observation_role
        episode = Episode(
            start.task, start.prompt_ids, start.sampling, observation_role=role, shots=start.shots
        )
        async with (
            self._serving() as endpoint,
            judged(episode, protocol, self.database, self.judge) as opening,
        ):
            session = Session(episode, opening, engine, row, self)
            try:
                with endpoint.session(session) as key:
                    end = await self._run(session, self._told(start, endpoint, key))
                await session.close()
            finally:
                session.closed = True
            if session.fault is not None:
                raise session.fault
            episode.output = end.output
            _note_end(session, end)
        return episode

    async def _run(self, session: Session, told: dict[str, Any]) -> End:
        """Run the program until it ends or its time is up; time that it waits for replies does not count."""
        running = self.programs.start(told)
        try:
            while (end := await running.end(min(POLL_SECONDS, self.seconds))) is None:
                if session.fault is not None:
                    running.stop("the database or the engine has failed")
                elif session.own_seconds > self.seconds:
                    running.stop(f"it did not end within {self.seconds:g} s of its own (harness_seconds)")
        except BaseException:
            running.stop("the rollout was ended")
            raise
        return end

    def _told(self, start: Start, endpoint: Endpoint, key: str) -> dict[str, Any]:
        task, protocol = start.task, self.chat.protocol
        return asdict(
            HarnessTask(
                question=task.question,
                tables=[table.name for table in task.tables],
                messages=list(start.messages) or protocol.messages(task),
                base_url=f"{endpoint.url}/v1",
                api_key=key,
                sql_url=f"{endpoint.url}/sql",
                database_url=endpoint.databases.url(key),
                max_calls=self.rules.turns(task),
                tools=protocol.tools or [],
            )
        )

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[Endpoint]:
        """Yield the event loop's endpoint, which is open while at least one episode is playing."""
        loop = asyncio.get_running_loop()
        endpoint = self._served.get(loop) or self._served.setdefault(loop, Endpoint())
        endpoint.episodes += 1
        try:
            await asyncio.shield(endpoint.started)
            yield endpoint
        finally:
            endpoint.episodes -= 1
            if endpoint.episodes == 0:
                del self._served[loop]
                await endpoint.close()


def _note_end(session: Session, end: End) -> None:
    """Record how the program ended, and its answer as the last turn.

    A program that fails because no call or token is left gets the status of that limit.
    """
    episode, fault, limit = session.episode, end.fault, session.limit
    if fault is None and end.answer is None and episode.task.is_question:
        fault = "it gave no answer"
        limit = limit or (None if session.calls_left else Status.TURN_LIMIT)
    if fault is not None:
        episode.status, episode.fault = limit or Status.HARNESS_FAULT, fault
        return
    text = json.dumps(end.answer, ensure_ascii=False)  # read by a replay
    episode.status = Status.ANSWERED
    episode.turns.append(Turn(Completion([], []), text, given_answer(end.answer)))
