"""One episode, written once: generate a turn, parse it, execute it, append what came back, repeat.

`play` knows nothing of batches, ranks or TRL. It asks an engine for the next turn's tokens and a sandbox
for the statement's rows, and keeps what was sampled as it was sampled: the ids that are trained are the
ids that the model chose, observations are appended once, as ids, and masked.

```
prompt ids | turn 1 (mask 1) | observation (mask 0) | turn 2 (mask 1) | ... | last turn (mask 1)
```

An episode always ends on a sampled token: an observation after it would be read by nobody.

`player.Player` holds what an episode is played with, and plays many at once. `runs.records` says what a log
keeps of one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from trl_dbbench.database import Database, QueryResult, Sandbox
from trl_dbbench.database.dialect import Dialect
from trl_dbbench.errors import ConfigError, EnvironmentFault, TaskError
from trl_dbbench.judge import Judge, Verdict
from trl_dbbench.protocol import Action, AgentProtocol, Answer, Invalid, Operation
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
class Start:
    """Where an episode starts: its task, the prompt's ids, and how its tokens are chosen.

    `past` are turns that it goes on from, as another episode of the task has played them. Their changes are
    executed again; copies of the turns stand in the new episode, without rewards. Each must have been read:
    the last one's observation too. `shots` are the ids of earlier episodes that the prompt shows (see
    `few_shot`).
    """

    task: Task
    prompt_ids: list[int]
    sampling: Sampling = Sampling()
    past: Sequence[Turn] = ()
    shots: Sequence[str] = ()


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
    def protocol(self) -> AgentProtocol: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def prompt_ids(self, messages: list[dict[str, Any]]) -> list[int]: ...

    def text(self, ids: Sequence[int]) -> str: ...

    def observation_ids(self, observation: str, *, end: int | None) -> list[int]: ...


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
    cut_off: bool = False
    """Whether the tokens ran out before the agent ended it."""
    seconds: float = 0.0
    """From the request for tokens to the observation."""
    rewards: dict[str, float] = field(default_factory=dict)
    """By reward function, of those that give one for each turn."""
    advantage: float | None = None
    """The mean over its sampled tokens, where the turns of the episode differ in it."""
    state: str | None = None
    """A digest of the tables before the turn, where an advantage has asked for it."""
    value: float | None = None
    """What episodes are worth that go on from before the turn, where an advantage has estimated it."""


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
    token_rewards: list[float] | None = None
    """Length T, of an advantage that gives each token a reward of its own."""
    token_values: list[float] | None = None
    """Length T, what a critic says of the state before each token."""
    branch_tokens: int = 0
    """Sampled in other episodes that went on from this one, to estimate what its turns are worth."""
    advantage: float | None = None
    observation_role: str = "tool"
    """The chat role in which the agent read observations; the protocol's."""
    shots: Sequence[str] = ()
    """The ids of the earlier episodes that its prompt showed."""

    def __repr__(self) -> str:
        end = f"status={self.status!s}, right={self.right}, turns={len(self.turns)}"
        return f"Episode(task={self.task.id!r}, {end})"

    def fail(self, fault: str) -> None:
        """Notes that the environment failed, before or after the episode's end."""
        self.status, self.verdict, self.fault = Status.ENVIRONMENT_FAULT, None, fault

    @property
    def right(self) -> bool:
        """Whether the agent answered and its answer, or the tables it left, are right."""
        return self.verdict is not None and self.verdict.right

    @property
    def truncated(self) -> bool:
        """Whether it did not come to its end: it ran out of tokens, or its last turn was cut off.

        Not where the environment failed, which ends an episode anywhere.
        """
        if self.status == Status.ENVIRONMENT_FAULT or not self.turns:
            return False
        return self.status == Status.OUT_OF_TOKENS or self.turns[-1].cut_off

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
        """The turns and the observations that the agent read, as chat messages in the roles of the protocol.

        Reward functions get them as `completions`, and reward models read them after the prompt.
        """
        messages = []
        for turn in self.turns:
            messages.append({"role": "assistant", "content": turn.text})
            if turn.observation is not None and turn.observation_ids:
                messages.append({"role": self.observation_role, "content": turn.observation})
        return messages or [{"role": "assistant", "content": ""}]


@dataclass(frozen=True)
class Rules:
    """The limits of an episode.

    `max_completion_length` counts all ids after the prompt, observations too; `max_turn_tokens` those of
    one turn; `context` those of prompt and completion together.
    """

    max_turns: int = 3
    max_turn_tokens: int = 512
    max_completion_length: int = 2048
    context: int | None = None

    def check_length(self, length: int, task_id: Callable[[], str]) -> None:
        """Raises ConfigError for a prompt of `length` tokens that leaves the model no room for a turn."""
        if self.context is not None and length >= self.context:
            raise ConfigError(
                f"the prompt of task '{task_id()}' has {length} tokens, the model's context {self.context}. "
                "Leave the task out, shorten its question, or take a model with a longer context."
            )


async def play(
    start: Start, *, row: int, engine: Engine, chat: Chat, database: Database, judge: Judge, rules: Rules
) -> Episode:
    """Plays one task to its end. Never raises for what the agent wrote or what a server did.

    Args:
        row: of the episode among those that the engine plays side by side.
    """
    task = start.task
    role = chat.protocol.observation_role
    episode = Episode(task, start.prompt_ids, start.sampling, observation_role=role, shots=start.shots)
    try:
        # its tables are made while the model writes the first turn
        opening = database.in_thread(database.sandbox, task)
        try:
            await _play_past(episode, start.past, database, opening)
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
        episode.fail(str(fault))
    return episode


async def _play_past(
    episode: Episode, past: Sequence[Turn], database: Database, opening: Awaitable[Sandbox]
) -> None:
    for turn in past:
        await database.in_thread(repeat, turn, await opening, database.dialect)
        # a turn of its own: what it is worth here is not what it is worth there
        episode.turns.append(replace(turn, rewards={}, advantage=None, state=None, value=None))


def repeat(turn: Turn, sandbox: Sandbox, dialect: Dialect) -> bool:
    """Executes a turn's statement again, unless it only reads. Returns whether it has.

    Raises:
        EnvironmentFault: if the database fails, or the tables may not become what they were.
    """
    if not isinstance(turn.action, Operation) or turn.result is None:
        return False
    sql, seen = turn.action.sql, turn.result
    if dialect.only_reads(sql):
        return False
    again = sandbox.execute(sql)
    same = (again.rows, again.error, again.affected) == (seen.rows, seen.error, seen.affected)
    if not same or dialect.varies(sql):
        raise EnvironmentFault(f"{sql[:200]!r} may do something else when it is executed again")
    return True


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
    past = len(episode.turns)
    room = rules.max_completion_length
    if rules.context is not None:
        room = min(room, rules.context - len(ids))
    end = len(ids) + room
    ids += episode.completion_ids

    for number in range(past, rules.max_turns):
        started = time.perf_counter()
        budget = min(rules.max_turn_tokens, end - len(ids))
        completion = await engine.generate(Request(tuple(ids), budget, episode.sampling, row, number))
        ids += completion.ids
        text = chat.text(completion.ids)
        turn_ended = completion.ids[-1] in chat.eos_token_ids
        turn = Turn(completion, text, chat.protocol.parse(text), cut_off=not turn_ended)
        episode.turns.append(turn)

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
        turn_end = completion.ids[-1] if turn_ended else None
        observation_ids = chat.observation_ids(turn.observation, end=turn_end)
        if len(ids) + len(observation_ids) >= end:
            episode.status = Status.OUT_OF_TOKENS
            break
        turn.observation_ids = observation_ids
        ids += observation_ids
    turn.seconds = turn.seconds or time.perf_counter() - started
