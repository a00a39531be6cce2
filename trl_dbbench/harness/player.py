"""Plays episodes by a program of the user's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from trl_dbbench.episode.chat import ChatFormat
from trl_dbbench.episode.play import noting_faults
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import Answer, given_answer
from trl_dbbench.episode.types import Completion, Engine, Episode, Start, Status, Turn
from trl_dbbench.errors import ConfigError
from trl_dbbench.harness.endpoint import Endpoint
from trl_dbbench.harness.program import End, Programs
from trl_dbbench.harness.session import Session
from trl_dbbench.harness.task import HarnessTask


@dataclass
class _Served:
    """What the episodes of an event loop share."""

    endpoint: Endpoint
    programs: Programs
    episodes: int = 0


@dataclass(frozen=True)
class HarnessPlayer(Player):
    """Plays each episode by a program, in a process of its own.

    Args:
        harness: the dotted path of a function that takes a `HarnessTask` and returns the answer, or
            `file.py:name`, or a command line.
        seconds: time limit of a program.
    """

    harness: str = ""
    seconds: float = 300.0
    _served: dict[asyncio.AbstractEventLoop, _Served] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.harness:
            raise ConfigError("harness is empty; name a function, such as my_agent:run, or a command line.")
        if self.seconds <= 0:
            raise ConfigError(f"harness_seconds must be above 0, is {self.seconds}.")

    @classmethod
    def like(cls, player: Player, harness: str, seconds: float) -> HarnessPlayer:
        """Return a player with the same settings."""
        return cls(player.chat, player.database, player.judge, player.rules, harness, seconds)

    @property
    def rewrites(self) -> bool:
        return True

    async def play(self, start: Start, engine: Engine, row: int = 0) -> Episode:
        """Run the program of one episode to its end, then judge.

        What goes wrong with the program is `Status.HARNESS_FAULT`. Nothing that it does makes this raise.

        Raises:
            ConfigError: if the harness cannot be imported.
        """
        assert isinstance(self.chat, ChatFormat)
        task, protocol = start.task, self.chat.protocol
        episode = Episode(
            *(task, start.prompt_ids, start.sampling),
            observation_role=protocol.observation_role,
            shots=start.shots,
        )
        async with self._serving() as served:
            with noting_faults(episode):
                opening = self.database.in_thread(self.database.sandbox, task)
                session = Session(
                    episode,
                    opening,
                    engine=engine,
                    row=row,
                    chat=self.chat,
                    database=self.database,
                    rules=self.rules,
                )
                try:
                    with served.endpoint.session(session) as key:
                        end = await served.programs.run(self._told(start, served.endpoint.url, key))
                    await session.close()
                    if session.fault is not None:
                        raise session.fault
                    episode.output = end.output
                    answer = self._answer(episode, end)
                    if answer is not None:
                        episode.verdict = await self.database.in_thread(
                            self.judge, task, answer, await opening, protocol.grader, episode.statements
                        )
                finally:
                    await session.close()
                    sandbox = await opening
                    await self.database.in_thread(sandbox.close)
                    episode.retries = sandbox.retries
        return episode

    def _answer(self, episode: Episode, end: End) -> Answer | None:
        """Note how the program ended; return its answer."""
        if end.fault is None and end.answer is None and episode.task.is_question:
            end = End(None, "it gave no answer", end.output)
        if end.fault is not None:
            episode.status, episode.fault = Status.HARNESS_FAULT, end.fault
            return None
        answer = given_answer(end.answer)
        episode.status = Status.ANSWERED
        text = json.dumps(end.answer, ensure_ascii=False)  # which a replay reads
        episode.turns.append(Turn(Completion([], []), text, answer))
        return answer

    def _told(self, start: Start, url: str, key: str) -> dict[str, Any]:
        task, protocol = start.task, self.chat.protocol
        return asdict(
            HarnessTask(
                question=task.question,
                tables=[table.name for table in task.tables],
                messages=list(start.messages) or protocol.messages(task),
                base_url=f"{url}/v1",
                api_key=key,
                sql_url=f"{url}/sql",
                max_calls=self.rules.turns(task),
                tools=protocol.tools or [],
            )
        )

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[_Served]:
        """Give what the loop's episodes share: there from the first one that is playing to the last."""
        loop = asyncio.get_running_loop()
        served = self._served.get(loop)
        if served is None:
            served = self._served[loop] = _Served(Endpoint(), Programs(self.harness, self.seconds))
        served.episodes += 1
        try:
            yield served
        finally:
            served.episodes -= 1
            if served.episodes == 0:
                del self._served[loop]
                await served.programs.close()
                await served.endpoint.close()
