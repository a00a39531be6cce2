"""The calls of an episode: the model's replies become turns, the messages before them token ids.

A reply that the program sends back is recognised by the ids of its calls or by its text, and keeps its
sampled token ids. The tokens that the next reply follows are those of the rendered messages, so a rewritten
history or a second conversation becomes a separate sequence (see `episode.token_tree`).
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from trl_dbbench.database import QueryResult, Sandbox
from trl_dbbench.episode.chat import ChatFormat, content_of
from trl_dbbench.episode.player import Player
from trl_dbbench.episode.protocol import Operation, Reply
from trl_dbbench.episode.templates import TEMPLATE_ERRORS
from trl_dbbench.episode.token_tree import TokenTree
from trl_dbbench.episode.tool_calls import after_thoughts, tool_call, well_formed
from trl_dbbench.episode.types import Completion, Engine, Episode, Request, Status, Turn

STATEMENTS_PER_CALL = 20
"""Largest number of statements in an episode, for each call of the chat API that it may make."""


class Refused(Exception):
    """A call that cannot be answered; the message is for the program's author."""


class Failed(Exception):
    """A call during which the database or the engine failed, which is not the program's fault."""


@dataclass
class Said:
    """A reply as the program got it, and its turn."""

    turn: Turn
    content: str | None
    calls: dict[str, tuple[str, str]]  # id -> name and arguments
    finish: str
    known: bool = True
    """The reply keeps its sampled ids when the program sends it back."""


class Session:
    """The open episode of a program.

    Args:
        opening: gives its sandbox, once this is created.
        row: its index among the episodes that the engine plays in parallel.
        player: has the chat format, the database and the rules.
    """

    def __init__(
        self, episode: Episode, opening: Awaitable[Sandbox], engine: Engine, row: int, player: Player
    ):
        assert isinstance(player.chat, ChatFormat)
        self.episode, self.chat = episode, player.chat
        self._opening, self._engine, self._row = opening, engine, row
        self._database, self._rules = player.database, player.rules
        self._tree = TokenTree([])
        self._said: list[Said] = []
        self._statements = 0
        self._one = asyncio.Lock()  # one call at a time, as an episode has one row in the engine's cache
        self.closed = False
        self.fault: Exception | None = None
        """The error of the database or the engine, if one has failed."""
        self._open = 0  # number of calls being answered
        self._own, self._since = 0.0, time.monotonic()  # seconds without a call; time when the last one ended
        self.chatting: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Locks by request: one that is sent again waits for the reply to the first."""
        self.unread: dict[str, list[tuple[Said, int]]] = {}
        """Replies, by request, that came after the client had disconnected."""
        self.limit: Status | None = None
        """The limit for which a call was refused, if any."""

    @property
    def own_seconds(self) -> float:
        """Seconds since the start in which no call was being answered."""
        return self._own + (0.0 if self._open else time.monotonic() - self._since)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Let calls be answered one at a time; `own_seconds` stands still meanwhile."""
        self._own = self.own_seconds
        self._open += 1
        try:
            async with self._one:
                yield
        finally:
            self._open, self._since = self._open - 1, time.monotonic()

    async def close(self) -> None:
        """Refuse calls from now on; wait for the one that is being answered."""
        self.closed = True
        async with self._one:
            pass

    # --- SQL --------------------------------------------------------------------------------------

    async def execute(self, sql: str) -> tuple[QueryResult, str]:
        """Execute a statement; return its result, and the protocol's observation of it."""
        async with self._answering():
            most = STATEMENTS_PER_CALL * self.max_calls
            if self.closed or self._statements == most:
                raise Refused("the episode is over" if self.closed else f"{most} statements were executed")
            self._statements += 1
            try:
                sandbox = await self._opening
                result = await self._database.in_thread(sandbox.execute, sql)
            except Exception as error:
                self.fault = self.fault or error
                raise Failed("the database has failed; the episode is over") from error
            text = self.chat.protocol.observe(result)
            turn = Turn(Completion([], []), sql, Operation(sql), result, observation=text)
            self.episode.turns.append(turn)
            return result, text

    # --- replies ----------------------------------------------------------------------------------

    @property
    def max_calls(self) -> int:
        return self._rules.turns(self.episode.task)

    @property
    def calls_left(self) -> int:
        return self.max_calls - len(self._said)

    async def reply(
        self,
        messages: Sequence[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        max_tokens: int | None,
        stop: Sequence[str],
        calls: bool,
    ) -> tuple[Said, int]:
        """Sample the next reply; return it and the number of tokens before it.

        Args:
            calls: parse tool calls; otherwise they stay in the text.
        """
        async with self._answering():
            number = len(self._said)
            if self.closed:
                raise Refused("the episode is over")
            if number == self.max_calls:
                self.limit = Status.TURN_LIMIT
                raise Refused(f"it has had its {number} calls")
            try:
                ids = self.chat.messages_ids(messages, tools, self._replies_in(messages))
            except TEMPLATE_ERRORS as error:
                raise Refused(f"the chat template cannot show these messages: {error}") from None
            room = self._room(ids)
            budget = min(self._rules.max_turn_tokens, room, max_tokens or room)
            if budget < 1:
                self.limit = Status.OUT_OF_TOKENS
                raise Refused("no token is left: max_completion_length or the model's context is reached")
            request = Request(tuple(ids), budget, self.episode.sampling, self._row, number, len(ids) + room)
            try:
                completion = await self._engine.generate(request)
            except Exception as error:
                self.fault = self.fault or error
                raise Failed("the engine has failed; the episode is over") from error
            completion, stopped = _until(completion, stop, self.chat)
            said = self._heard(completion, number, tools if calls else None, stopped)
            self._place(ids, said.turn)
            self._said.append(said)
            return said, len(ids)

    def _room(self, ids: Sequence[int]) -> int:
        """Return how many tokens may follow these ids; new ones among them count as used."""
        new = len(ids) - self._tree.find(ids)[0]
        used = len(self._tree.ids) + new - len(self.episode.prompt_ids) if self._said else 0
        return self._rules.room(used, len(ids))

    def _place(self, ids: list[int], turn: Turn) -> None:
        """Add a turn, and the tokens that it was sampled after, to the episode and its token tree."""
        new, turn.follows = self._tree.read(ids)
        if self._said:
            self.episode.turns[-1].observation_ids = new
        else:
            self.episode.prompt_ids = new
        self._tree.write(turn.completion.ids)
        self.episode.turns.append(turn)

    def _replies_in(self, messages: Sequence[dict[str, Any]]) -> dict[int, Turn]:
        """Return the turns among these messages by the messages' index.

        They are matched from the end, in the order of the turns: of equal replies, the last one counts.
        """
        found: dict[int, Turn] = {}
        before = len(self._said)
        for place, message in reversed(list(enumerate(messages))):
            if message.get("role") != "assistant":
                continue
            calls = {call.get("id"): _written(call) for call in message.get("tool_calls") or ()}
            content = content_of(message) or ""
            for number in reversed(range(before)):
                said = self._said[number]
                if said.known and (calls, content) == (said.calls, said.content or ""):
                    found[place], before = said.turn, number
                    break
        return dict(reversed(found.items()))

    def _heard(
        self,
        completion: Completion,
        number: int,
        tools: list[dict[str, Any]] | None,
        stopped: str | None,
    ) -> Said:
        text = self.chat.text(completion.ids)
        ended = bool(completion.ids) and completion.ids[-1] in self.chat.eos_token_ids
        turn = Turn(completion, text, Reply(text), cut_off=not ended and stopped is None)
        content, calls = after_thoughts(text).strip(), {}
        if stopped is not None:
            content = content.partition(stopped)[0]
        if tools:
            try:
                called = tool_call(content, tools)
            except ValueError:
                called = None  # the program sees what was written
            if called is not None:
                name, arguments = called[0], json.dumps(called[1], ensure_ascii=False)
                calls[f"{number:09d}"] = (well_formed(name), well_formed(arguments))
        finish = "tool_calls" if calls else "length" if turn.cut_off else "stop"
        # cut off before the stop text, it has other tokens than the sampled ones
        return Said(turn, None if calls else content, calls, finish, known=stopped is None)


def _written(call: dict[str, Any]) -> tuple[str, str]:
    """Return a call's name and arguments, in the form of `Said.calls`."""
    function = call["function"]
    arguments = function.get("arguments", "")
    with suppress(ValueError, TypeError, RecursionError):
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
        arguments = json.dumps(read, ensure_ascii=False)
    return function["name"], arguments


def _until(completion: Completion, stop: Sequence[str], chat: ChatFormat) -> tuple[Completion, str | None]:
    """Return a completion up to the token in which the first stop text ends, and that text or `None`."""
    begun = chat.text([])

    def text(count: int) -> str:
        return chat.text(completion.ids[:count]).removeprefix(begun)

    whole = text(len(completion.ids))
    places = {whole.find(end): end for end in reversed(stop) if end and end in whole}
    if not places:
        return completion, None
    first = places[min(places)]
    count = bisect_left(range(len(completion.ids)), True, lo=1, key=lambda count: first in text(count))
    return Completion(completion.ids[:count], completion.logprobs[:count]), first
