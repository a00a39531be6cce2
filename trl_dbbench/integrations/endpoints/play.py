"""Episodes whose agent is behind an endpoint."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from anyio.from_thread import start_blocking_portal

from trl_dbbench.database import Database
from trl_dbbench.episode.judge import Judge
from trl_dbbench.episode.play import play
from trl_dbbench.episode.player import DEFAULT_RULES
from trl_dbbench.episode.prompts import Opening
from trl_dbbench.episode.protocol import AgentProtocol
from trl_dbbench.episode.types import Episode, Rules, Sampling, Start, Turn
from trl_dbbench.integrations.endpoints.http import Endpoint, TooLong
from trl_dbbench.integrations.endpoints.messages import Message, Reply
from trl_dbbench.tasks import Task

GREEDILY = Sampling(greedy=True)

Keep = Callable[[int, Episode], None]
"""Is told every episode when it has ended, with its place among those that were to be played."""


class MessageDialogue:
    """An episode's talk with an endpoint; see `dialogue.Dialogue`.

    `max_completion_length` holds for what the endpoint counts: the tokens that its prompts have grown by, and
    those of the last turn. What it does not count is not limited.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        messages: list[Message],
        protocol: AgentProtocol,
        rules: Rules,
        episode: Episode,
    ):
        self._endpoint = endpoint
        self._messages = messages
        self._protocol = protocol
        self._rules = rules
        self._sampling = episode.sampling
        self._reply = Reply("")
        self._prompt_tokens: int | None = None
        self._used = 0

    async def next_turn(self, number: int) -> Turn | None:
        budget = min(self._rules.max_turn_tokens, self._rules.max_completion_length - self._used)
        try:
            self._reply = await self._endpoint.reply(
                self._messages, self._protocol.tools, budget, self._sampling
            )
        except TooLong:
            return None
        if usage := self._reply.usage:
            if self._prompt_tokens is None:
                self._prompt_tokens = usage.read
            self._used = max(0, usage.read - self._prompt_tokens) + usage.written
        self._messages.append(self._reply.message(self._protocol))
        return self._reply.turn(self._protocol)

    @property
    def full(self) -> bool:
        if self._reply.squeezed and self._reply.finish == "length":
            return True  # no more is left of the model's context
        return self._used >= self._rules.max_completion_length

    def tell(self, turn: Turn) -> bool:
        assert turn.observation is not None
        self._messages += self._reply.observed(turn.observation, self._protocol)
        return not self.full


@dataclass(frozen=True)
class EndpointPlayer:
    """What episodes of an endpoint are played with; `player.Player` is for models whose tokens are ours.

    Args:
        judge: says whether an episode ended right.
        rules: their `context` is not used; the endpoint says itself what does not fit.
        system_prompt: replaces the protocol's own.
        concurrency: episodes that run side by side, each with one request at a time.
    """

    endpoint: Endpoint
    protocol: AgentProtocol
    database: Database
    judge: Judge
    rules: Rules = DEFAULT_RULES
    system_prompt: Opening | None = None
    concurrency: int = 8

    def play_all(self, tasks: Sequence[tuple[Task, Sampling]], keep: Keep) -> None:
        """Plays every task, and ends early when the endpoint or the database has given up.

        Args:
            tasks: each with how its tokens are chosen; one may come several times.
            keep: is called in a thread of its own.

        Raises:
            TaskError, ConfigError: if a task's episodes could not be judged; before anything is asked.
        """
        for task in {id(task): task for task, _ in tasks}.values():
            self.judge.check_task(task, self.protocol)
        with start_blocking_portal() as portal:
            portal.call(self._play_all, deque(enumerate(tasks)), keep)

    async def play(self, task: Task, sampling: Sampling) -> Episode:
        """Plays one episode, within `Endpoint.connected`; see `loop.play`."""
        messages: list[Message] = [*self.protocol.messages(task, self.system_prompt)]
        episode = await play(
            Start(task, [], sampling),
            dialogue=partial(MessageDialogue, self.endpoint, messages, self.protocol, self.rules),
            protocol=self.protocol,
            database=self.database,
            judge=self.judge,
            rules=self.rules,
        )
        episode.endpoint = str(self.endpoint)
        return episode

    async def _play_all(self, waiting: deque[tuple[int, tuple[Task, Sampling]]], keep: Keep) -> None:
        async def work() -> None:
            while waiting and self.endpoint.gave_up is None and self.database.gave_up is None:
                place, (task, sampling) = waiting.popleft()
                keep(place, await self.play(task, sampling))

        async with self.endpoint.connected():
            await asyncio.gather(*(work() for _ in range(self.concurrency)))
