"""The data of an episode: its start, turns, end and limits, and the engine that it needs.

`play` plays one episode, `player.Player` many. `runs.records` is an episode's form in a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from trl_dbbench.database import QueryResult
from trl_dbbench.episode.judge import Verdict
from trl_dbbench.episode.protocol import Action, Answer, Operation, Reply
from trl_dbbench.errors import ConfigError
from trl_dbbench.tasks import Task
from trl_dbbench.utils.settings import check_number, check_numbers


class Status(StrEnum):
    """Reason for an episode's end."""

    ANSWERED = "answered"
    TURN_LIMIT = "turn_limit"
    INVALID_ACTION = "invalid_action"
    OUT_OF_TOKENS = "out_of_tokens"
    SERVER_CRASH = "server_crash"
    """A statement of the agent ended the database server."""
    ENVIRONMENT_FAULT = "environment_fault"
    HARNESS_FAULT = "harness_fault"
    """The program that plays the episode failed: an exception, an exit code, its time limit, or no answer."""


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of one episode.

    The policy's distribution is the softmax of the raw logits / `temperature`; `top_p` and `top_k` only
    restrict the draw. Every episode has its own stream of random numbers, independent of its neighbours in
    the batch and of the global generators.

    Raises:
        ConfigError: if a value is out of range. For the most likely tokens, set `greedy`, not a temperature
            of 0.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    greedy: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "top_k"):
            check_number(name, getattr(self, name))


@dataclass(frozen=True)
class Start:
    """Start of an episode: its task, the prompt's ids, and the sampling settings.

    Args:
        past: turns of another episode of the task to continue from. Their changes are executed again; the
            new episode gets copies without rewards. The agent must have read every observation in them.
        shots: ids of the earlier episodes that the prompt shows (see `runs.few_shot`).
        messages: the prompt as chat messages.
    """

    task: Task
    prompt_ids: list[int]
    sampling: Sampling = Sampling()
    past: Sequence[Turn] = ()
    shots: Sequence[str] = ()
    messages: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True)
class Request:
    """A request for the next turn after `ids`, at most `max_new_tokens` long.

    `row` and `turn` order a batch; `turn` also picks the random numbers. `limit` is the most tokens that the
    episode can have at its end, prompt included; without it this turn counts as the last.
    """

    ids: Sequence[int]
    max_new_tokens: int
    sampling: Sampling
    row: int
    turn: int
    limit: int | None = None

    @property
    def seed(self) -> int:
        """The turn's random seed. The prime 1000003 keeps the turns of neighbouring seeds apart."""
        return self.sampling.seed * 1_000_003 + self.turn


@dataclass(frozen=True)
class Completion:
    """A sampled turn: `ids`, including an end token if there is one, and the log-probability of each id.

    `logprobs` are those of the policy's distribution (see `Sampling`), in nats, fp32; NaN if unknown.
    """

    ids: list[int]
    logprobs: list[float]


class Engine(Protocol):
    """A source of sampled tokens."""

    async def generate(self, request: Request) -> Completion: ...

    def serve(self, episodes: Sequence[Future]) -> None:
        """Answer requests, in the caller's thread, until all these episodes are done."""


@dataclass(frozen=True)
class Usage:
    """An endpoint's token counts of a turn: `read` before it, and `written` in it, thoughts included."""

    read: int = 0
    written: int = 0


@dataclass
class Turn:
    """One turn: the sampled tokens, their meaning, and the database's reply."""

    completion: Completion
    """Empty if an endpoint wrote the turn."""
    text: str
    action: Action | Reply
    result: QueryResult | None = None
    observation: str | None = None
    observation_ids: list[int] = field(default_factory=list)
    """Empty if no turn follows: then nobody reads the observation."""
    follows: int | None = None
    """Place, counted from the prompt's first id, of the token that the observation before this turn follows,
    or the turn itself if that is empty; `None` if it is the last token before. See `token_tree`."""
    cut_off: bool = False
    """True if the token limit ended the turn, not the agent."""
    seconds: float = 0.0
    """Seconds from the request for tokens to the observation."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Step rewards, by the name of the reward function."""
    advantage: float | None = None
    """Mean over the turn's sampled tokens; only set if the episode's turns differ."""
    state: str | None = None
    """Digest of the tables before the turn; only set by advantages that need it."""
    value: float | None = None
    """Estimated return at the start of the turn; only set by advantages that need it."""
    usage: Usage | None = None
    """The endpoint's token counts."""

    @property
    def tokens(self) -> int:
        """Number of sampled tokens; 0 if an endpoint did not say."""
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
    """`None` if the agent gave no answer or the environment failed."""
    fault: str | None = None
    output: str | None = None
    """End of the output of the program that played the episode."""
    retries: int = 0
    """Database failures that the episode survived."""
    rewards: dict[str, float | None] = field(default_factory=dict)
    token_rewards: list[float] | None = None
    """Length T; set by advantages with a reward per token."""
    token_values: list[float] | None = None
    """Length T; a critic's value before each token."""
    branch_tokens: int = 0
    """Tokens sampled in continuations of this episode, which estimate the values of its turns."""
    advantage: float | None = None
    observation_role: str = "tool"
    """The protocol's chat role for observations."""
    shots: Sequence[str] = ()
    """Ids of the earlier episodes that the prompt showed."""
    endpoint: str | None = None
    """Model and address, if an endpoint played the episode: it has texts but no token ids."""
    policy_step: int | None = None
    """Number of updates that the playing weights had, if the episode was played ahead of its training."""

    def __repr__(self) -> str:
        end = f"status={self.status!s}, right={self.right}, turns={len(self.turns)}"
        return f"Episode(task={self.task.id!r}, {end})"

    def fail(self, fault: str) -> None:
        """Mark the episode as failed by its environment, before or after its end."""
        self.status, self.verdict, self.fault = Status.ENVIRONMENT_FAULT, None, fault

    def crash(self) -> None:
        """Mark the episode as one whose statement ended the database server."""
        self.status, self.verdict = Status.SERVER_CRASH, None

    @property
    def right(self) -> bool:
        """Return whether the agent answered and its answer, or the tables it left, are right."""
        return self.verdict is not None and self.verdict.right

    @property
    def truncated(self) -> bool:
        """Return whether tokens ran out before the episode's end. False if the environment failed."""
        if self.status == Status.ENVIRONMENT_FAULT or not self.turns:
            return False
        return self.status == Status.OUT_OF_TOKENS or self.turns[-1].cut_off

    @property
    def answer(self) -> Answer | None:
        action = self.turns[-1].action if self.turns else None
        return action if isinstance(action, Answer) and self.status == Status.ANSWERED else None

    @property
    def statements(self) -> list[str]:
        """The executed SQL, turn by turn."""
        return [
            turn.action.sql
            for turn in self.turns
            if isinstance(turn.action, Operation) and turn.result is not None
        ]

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens in the prompt; 0 if an endpoint did not say."""
        usage = self.turns[0].usage if self.turns else None
        return usage.read if usage else len(self.prompt_ids)

    @property
    def completion_ids(self) -> list[int]:
        """All ids after the prompt: sampled turns and the observations between them. Length T.

        Raises ConfigError if an endpoint played the episode.
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
    def follows(self) -> list[int] | None:
        """The place of the token before each completion id, counted from the prompt's first; length T.

        `None` if each id follows the one before it. `token_tree.NOTHING` for an id that follows none.
        """
        if all(turn.follows is None for turn in self.turns):
            return None
        places: list[int] = []
        start, new = len(self.prompt_ids), 0  # `new`: ids added before the turn
        for turn in self.turns:
            for count in (new, len(turn.completion.ids)):
                places += range(start + len(places) - 1, start + len(places) - 1 + count)
            first = len(places) - new - len(turn.completion.ids)
            if turn.follows is not None and first < len(places):
                places[first] = turn.follows
            new = len(turn.observation_ids)
        return [*places, *range(start + len(places) - 1, start + len(places) - 1 + new)]

    @property
    def logprobs(self) -> list[float]:
        """The sampled ids' log-probabilities, 0.0 on observations. Length T."""
        return [
            lp
            for turn in self.turns
            for lp in (*turn.completion.logprobs, *[0.0] * len(turn.observation_ids))
        ]

    @property
    def said(self) -> list[bool]:
        """Return for each turn whether the model wrote it. A program's own SQL and answer have no tokens."""
        by_program = any(isinstance(turn.action, Reply) for turn in self.turns)
        return [bool(turn.completion.ids) or not by_program for turn in self.turns]

    def messages(self) -> list[dict[str, str]]:
        """Return the turns and the observations that the agent read, as chat messages.

        Reward functions get them as `completions`; reward models read them after the prompt.
        """
        messages = []
        for turn, said in zip(self.turns, self.said, strict=True):
            if said:
                messages.append({"role": "assistant", "content": turn.text})
            read = turn.observation_ids or turn is not self.turns[-1]
            if turn.observation is not None and read:
                messages.append({"role": self.observation_role, "content": turn.observation})
        return messages or [{"role": "assistant", "content": ""}]


@dataclass(frozen=True)
class Rules:
    """The limits of an episode, in turns and tokens.

    `max_completion_length` bounds all ids after the prompt, observations included; `max_turn_tokens` one
    turn; `context` prompt and completion together. Beyond `compaction_tokens`, prompt included, the oldest
    turns are left out of what the agent reads (`compaction="drop"`), or the agent sums up all turns before it
    continues ("summary").

    Raises:
        ConfigError: if a limit is out of range.
    """

    max_turns: int = 3
    max_turn_tokens: int = 512
    max_completion_length: int = 2048
    context: int | None = None
    compaction_tokens: int | None = None
    compaction: str = "drop"

    def __post_init__(self) -> None:
        check_numbers(self, Rules)

    def turns(self, task: Task) -> int:
        """Return the turn limit of a task: its own `max_turns` if it has one."""
        return task.max_turns or self.max_turns

    def room(self, used: int, read: int) -> int:
        """Return the tokens left, with `used` ids after the prompt and `read` ids before the next turn."""
        left = self.max_completion_length - used
        return left if self.context is None else min(left, self.context - read)

    def check_length(self, length: int, task: Task) -> None:
        """Raise ConfigError if the task's prompt of `length` tokens leaves the model no room for a turn."""
        if self.context is not None and length >= self.context:
            raise ConfigError(
                f"the prompt of task '{task.id}' has {length} tokens, the model's context {self.context}. "
                "Leave the task out, shorten its question, or take a model with a longer context."
            )


def no_ids(task_id: str, endpoint: str) -> ConfigError:
    """Return the error to raise if token ids are needed of an episode that an endpoint played."""
    return ConfigError(
        f"the episode of task '{task_id}' was played by the endpoint of {endpoint}, which gives texts and no "
        "token ids or log-probabilities: nothing can be trained on it."
    )


def check_harness(episodes: Sequence[Episode]) -> None:
    """Raise ConfigError if a program failed in each of a run's first episodes, before it did anything."""
    if all(each.status == Status.HARNESS_FAULT and not each.turns for each in episodes):
        printed = " ".join(str(episodes[0].output)[-500:].split())
        raise ConfigError(
            f"the harness failed in each of the first {len(episodes)} episodes before it called the model: "
            f"{episodes[0].fault}. The end of what it printed: {printed}"
        )
