"""What an episode is: where it starts, its turns, how it ended; and what it asks of engines and chat formats.

`loop` plays one, `player.Player` plays many. `runs.records` says what a log keeps of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from trl_dbbench.database import QueryResult
from trl_dbbench.episode.judge import Verdict
from trl_dbbench.episode.protocol import Action, AgentProtocol, Answer, Operation
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks import Task


class Status(StrEnum):
    """How an episode ended."""

    ANSWERED = "answered"
    TURN_LIMIT = "turn_limit"
    INVALID_ACTION = "invalid_action"
    OUT_OF_TOKENS = "out_of_tokens"
    SERVER_CRASH = "server_crash"
    """The agent's own statement has ended the database server."""
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


@dataclass(frozen=True)
class Usage:
    """The tokens of a turn, as an endpoint counts them: those `read` (all before the turn), those `written`,
    thoughts included."""

    read: int = 0
    written: int = 0


@dataclass
class Turn:
    """One turn: what was sampled, what it meant, what the database said."""

    completion: Completion
    """Without ids, where an endpoint gave the turn."""
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
    usage: Usage | None = None
    """What an endpoint counted."""

    @property
    def tokens(self) -> int:
        """How many were sampled; 0 where an endpoint did not say."""
        return self.usage.written if self.usage else len(self.completion.ids)


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
    endpoint: str | None = None
    """Which model played it and where, if an endpoint did: then there are texts, and no token ids."""
    policy_step: int | None = None
    """Updates of the weights that played it, where it was played ahead of its training."""

    def __repr__(self) -> str:
        end = f"status={self.status!s}, right={self.right}, turns={len(self.turns)}"
        return f"Episode(task={self.task.id!r}, {end})"

    def fail(self, fault: str) -> None:
        """Notes that the environment failed, before or after the episode's end."""
        self.status, self.verdict, self.fault = Status.ENVIRONMENT_FAULT, None, fault

    def crash(self) -> None:
        """Notes that a statement of the episode has ended the database server."""
        self.status, self.verdict = Status.SERVER_CRASH, None

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
    def prompt_tokens(self) -> int:
        """How many the prompt has; 0 where an endpoint did not say."""
        usage = self.turns[0].usage if self.turns else None
        return usage.read if usage else len(self.prompt_ids)

    @property
    def completion_ids(self) -> list[int]:
        """All ids after the prompt: sampled turns and the observations between them. Length T.

        Raises:
            ConfigError: if an endpoint played it, which gives none.
        """
        if self.endpoint is not None:
            raise no_ids(self.task.id, self.endpoint)
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
            read = turn.observation_ids or turn is not self.turns[-1]
            if turn.observation is not None and read:
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

    def turns(self, task: Task) -> int:
        """Return the turns that an episode of the task may have: its own `max_turns`, or these."""
        return task.max_turns or self.max_turns

    def check_length(self, length: int, task_id: Callable[[], str]) -> None:
        """Raises ConfigError for a prompt of `length` tokens that leaves the model no room for a turn."""
        if self.context is not None and length >= self.context:
            raise ConfigError(
                f"the prompt of task '{task_id()}' has {length} tokens, the model's context {self.context}. "
                "Leave the task out, shorten its question, or take a model with a longer context."
            )


def no_ids(task_id: str, endpoint: str) -> ConfigError:
    """The error for an episode of which token ids are wanted, and an endpoint played it."""
    return ConfigError(
        f"the episode of task '{task_id}' was played by the endpoint of {endpoint}, which gives texts and no "
        "token ids or log-probabilities: nothing can be trained on it."
    )
