"""One episode, written once: generate a turn, parse it, execute it, append what came back, repeat.

`play` knows nothing of batches, ranks or TRL. It asks an engine for the next turn's tokens and a sandbox
for the statement's rows, and keeps what was sampled as it was sampled: the ids that are trained are the
ids that the model chose, observations are appended once, as ids, and masked.

```
prompt ids | turn 1 (mask 1) | observation (mask 0) | turn 2 (mask 1) | ... | last turn (mask 1)
```

An episode always ends on a sampled token, so that TRL does not take it for truncated.

`play_all` runs many at once: the episodes on an event loop in a thread of its own, where statements wait
for the database, the model in the caller's thread, where its contexts (autocast, gathered parameters,
CUDA streams) hold.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from anyio.from_thread import start_blocking_portal

from trl_dbbench.chat import ChatFormat
from trl_dbbench.database import Database, QueryResult, Sandbox
from trl_dbbench.errors import ConfigError, EnvironmentFault, TaskError
from trl_dbbench.judge import Judge, Verdict
from trl_dbbench.protocol import Action, Answer, Invalid, Operation, TextProtocol, ToolsProtocol
from trl_dbbench.tasks import Task

logger = logging.getLogger(__name__)


class Status(StrEnum):
    """How an episode ended."""

    ANSWERED = "answered"
    TURN_LIMIT = "turn_limit"
    INVALID_ACTION = "invalid_action"
    OUT_OF_TOKENS = "out_of_tokens"
    ENVIRONMENT_FAULT = "environment_fault"


@dataclass(frozen=True)
class Sampling:
    """How one episode's tokens are chosen.

    The policy's own distribution is the softmax of the raw logits / `temperature`; `top_p` and `top_k`
    only restrict what is drawn from it. Every episode draws from its own stream of random numbers, so
    what an episode samples depends neither on its neighbours in the batch nor on the global generators.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    greedy: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """What an episode asks of an engine: the next turn after `ids`, at most `max_new_tokens` long.

    `row` and `turn` order a batch and pick the random numbers of the turn.
    """

    ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling
    row: int
    turn: int

    @property
    def seed(self) -> int:
        """Of the turn's random numbers: 1000003, a prime, keeps the turns of neighbouring seeds apart."""
        return self.sampling.seed * 1_000_003 + self.turn


@dataclass(frozen=True)
class Completion:
    """A sampled turn: `ids` with the token that ended it, if one did, and the log-probability of each id.

    `logprobs` are of the policy's own distribution (see `Sampling`), in nats, computed in fp32; NaN where the
    engine does not know them.
    """

    ids: list[int]
    logprobs: list[float]


class Engine(Protocol):
    """Where tokens come from."""

    async def generate(self, request: Request) -> Completion: ...

    def serve(self, episodes: Sequence[Future]) -> None:
        """Answers requests, in the caller's thread, until all these episodes are done."""


class Chat(Protocol):
    """What an episode asks of a chat format: `chat.ChatFormat`, or what `replay` puts in its place."""

    @property
    def protocol(self) -> TextProtocol | ToolsProtocol: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def text(self, ids: Sequence[int]) -> str: ...

    def observation_ids(self, observation: str, *, turn_ended: bool) -> list[int]: ...


@dataclass
class Turn:
    """One turn: what was sampled, what it meant, what the database said."""

    completion: Completion
    text: str
    action: Action
    result: QueryResult | None = None
    observation: str | None = None
    observation_ids: list[int] = field(default_factory=list)
    """Empty where no further turn follows: then nobody reads the observation."""
    seconds: float = 0.0
    """From the request for tokens to the observation."""


@dataclass(repr=False)
class Episode:
    """A played task. Reward functions get it as `episode`."""

    task: Task
    prompt_ids: list[int]
    sampling: Sampling
    turns: list[Turn] = field(default_factory=list)
    status: Status = Status.ENVIRONMENT_FAULT
    verdict: Verdict | None = None
    """`None` where there is nothing to judge: the agent gave no answer, or the environment failed."""
    fault: str | None = None
    retries: int = 0
    """How often the database failed and the episode went on."""
    rewards: dict[str, float | None] = field(default_factory=dict)
    advantage: float | None = None

    def __repr__(self) -> str:
        return f"Episode(task={self.task.id!r}, status={self.status!s}, right={self.right}, turns={len(self.turns)})"

    @property
    def right(self) -> bool:
        """Whether the agent answered and its answer, or the tables it left, are right."""
        return self.verdict is not None and self.verdict.right

    @property
    def answer(self) -> Answer | None:
        action = self.turns[-1].action if self.turns else None
        return action if isinstance(action, Answer) and self.status == Status.ANSWERED else None

    @property
    def statements(self) -> list[str]:
        """The SQL that was executed, turn by turn."""
        return [turn.action.sql for turn in self.turns if isinstance(turn.action, Operation)]

    @property
    def completion_ids(self) -> list[int]:
        """All ids after the prompt: sampled turns and the observations between them. Length T."""
        return [id for turn in self.turns for id in (*turn.completion.ids, *turn.observation_ids)]

    @property
    def mask(self) -> list[int]:
        """1 on sampled ids, 0 on observations. Length T."""
        return [
            bit
            for turn in self.turns
            for bit in ([1] * len(turn.completion.ids) + [0] * len(turn.observation_ids))
        ]

    @property
    def logprobs(self) -> list[float]:
        """The sampled ids' log-probabilities, 0.0 on observations. Length T."""
        return [
            lp
            for turn in self.turns
            for lp in (*turn.completion.logprobs, *[0.0] * len(turn.observation_ids))
        ]

    def messages(self) -> list[dict[str, str]]:
        """The turns as chat messages, for TRL's completion tables."""
        messages = []
        for turn in self.turns:
            messages.append({"role": "assistant", "content": turn.text})
            if turn.observation is not None:
                messages.append({"role": "tool", "content": turn.observation})
        return messages or [{"role": "assistant", "content": ""}]

    def to_dict(self) -> dict[str, Any]:
        """The episode as `episodes.jsonl` keeps it."""
        return {
            "task_id": self.task.id,
            "task_digest": self.task.digest,
            "question": self.task.question,
            "operation": self.task.operation,
            "skills": list(self.task.skills),
            "greedy": self.sampling.greedy,
            "status": str(self.status),
            "right": self.right,
            "verdict": None if self.verdict is None else vars(self.verdict),
            "fault": self.fault,
            "retries": self.retries,
            "rewards": self.rewards,
            "advantage": self.advantage,
            "seed": self.sampling.seed,
            "prompt_tokens": len(self.prompt_ids),
            "turns": [_turn_to_dict(turn) for turn in self.turns],
        }


def _turn_to_dict(turn: Turn) -> dict[str, Any]:
    action: dict[str, Any] = {"action": type(turn.action).__name__.lower()}
    match turn.action:
        case Operation(sql):
            action["sql"] = sql
        case Answer(text):
            action["answer"] = text
        case Invalid(reason):
            action["reason"] = reason
    return {
        "text": turn.text,
        **action,
        "observation": turn.observation,
        "limit": turn.result.limit if turn.result else None,
        "affected": turn.result.affected if turn.result else None,
        "tokens": len(turn.completion.ids),
        "observation_tokens": len(turn.observation_ids),
        "seconds": round(turn.seconds, 4),
        "sql_seconds": round(turn.result.seconds, 4) if turn.result else None,
    }


@dataclass(frozen=True)
class Rules:
    """The limits of an episode.

    `max_completion_length` counts all ids after the prompt, observations too; `max_turn_tokens` those of
    one turn; `context` those of prompt and completion together.
    """

    max_turns: int
    max_turn_tokens: int
    max_completion_length: int
    context: int | None = None

    def check_prompt(self, task_id: str, length: int) -> None:
        """Raises ConfigError for a prompt of `length` tokens that leaves the model no room for a turn."""
        if self.context is not None and length >= self.context:
            raise ConfigError(
                f"the prompt of task '{task_id}' has {length} tokens, the model's context {self.context}. Leave the "
                "task out, shorten its question, or take a model with a longer context."
            )


async def play(
    task: Task,
    prompt_ids: list[int],
    *,
    row: int,
    engine: Engine,
    chat: Chat,
    database: Database,
    judge: Judge,
    rules: Rules,
    sampling: Sampling,
) -> Episode:
    """Plays one task to its end. Never raises for what the agent wrote or what a server did."""
    episode = Episode(task, prompt_ids, sampling)
    try:
        # its tables are made while the model writes the first turn
        opening = database.in_thread(database.sandbox, task)
        try:
            await _play_turns(episode, row, engine, chat, database, opening, rules)
            if answer := episode.answer:
                sandbox = await opening
                episode.verdict = await database.in_thread(judge, task, answer, sandbox, chat.protocol.grader)
        finally:
            sandbox = await opening
            await database.in_thread(sandbox.close)
            episode.retries = sandbox.retries
    except (EnvironmentFault, TaskError) as fault:
        # a TaskError here: this server cannot make the task's tables, which is no fault of the agent
        logger.warning("task %s: %s", task.id, fault)
        episode.status, episode.verdict, episode.fault = Status.ENVIRONMENT_FAULT, None, str(fault)
    return episode


async def _play_turns(
    episode: Episode,
    row: int,
    engine: Engine,
    chat: Chat,
    database: Database,
    opening: Awaitable[Sandbox],
    rules: Rules,
) -> None:
    ids = list(episode.prompt_ids)
    room = rules.max_completion_length
    if rules.context is not None:
        room = min(room, rules.context - len(ids))
    end = len(ids) + room

    for number in range(rules.max_turns):
        started = time.perf_counter()
        budget = min(rules.max_turn_tokens, end - len(ids))
        completion = await engine.generate(Request(tuple(ids), budget, episode.sampling, row, number))
        ids += completion.ids
        text = chat.text(completion.ids)
        turn = Turn(completion, text, chat.protocol.parse(text))
        episode.turns.append(turn)

        turn_ended = completion.ids[-1] in chat.eos_token_ids
        if not turn_ended and len(ids) >= end:
            episode.status = Status.OUT_OF_TOKENS
            break
        if isinstance(turn.action, Answer):
            episode.status = Status.ANSWERED
            break
        if isinstance(turn.action, Invalid):
            if chat.protocol.invalid_ends_episode:
                episode.status = Status.INVALID_ACTION
                break
            turn.observation = chat.protocol.observe(turn.action)
        else:
            sandbox = await opening
            turn.result = await database.in_thread(sandbox.execute, turn.action.sql)
            turn.observation = chat.protocol.observe(turn.result)
        turn.seconds = time.perf_counter() - started

        if number + 1 == rules.max_turns:
            episode.status = Status.TURN_LIMIT
            break
        observation_ids = chat.observation_ids(turn.observation, turn_ended=turn_ended)
        if len(ids) + len(observation_ids) >= end:
            episode.status = Status.OUT_OF_TOKENS
            break
        turn.observation_ids = observation_ids
        ids += observation_ids
    turn.seconds = turn.seconds or time.perf_counter() - started


def play_all(
    tasks: Sequence[Task],
    prompts: Sequence[list[int]],
    samplings: Sequence[Sampling],
    *,
    engine: Engine,
    chat: ChatFormat,
    database: Database,
    judge: Judge,
    rules: Rules,
) -> list[Episode]:
    """Plays many tasks at once; episode i is that of `tasks[i]`, after `prompts[i]`, by `samplings[i]`.

    May be called where an event loop runs already (notebooks).
    """

    async def one(row: int) -> Episode:
        return await play(
            tasks[row],
            prompts[row],
            row=row,
            engine=engine,
            chat=chat,
            database=database,
            judge=judge,
            rules=rules,
            sampling=samplings[row],
        )

    with start_blocking_portal() as portal:
        loop = portal.call(asyncio.get_running_loop)
        # not portal.start_task_soon, which waits for the loop each time
        futures = [asyncio.run_coroutine_threadsafe(one(row), loop) for row in range(len(tasks))]
        try:
            engine.serve(futures)
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
