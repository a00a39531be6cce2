"""Records of episodes, as in logs, reports, evaluations and replays; one per line of `episodes.jsonl`.
`episode_record` makes one from a played `Episode`; `checked_record` checks one that was read back."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict, cast

from trl_dbbench.episode.protocol import Action, Answer, Invalid, Operation, Reply
from trl_dbbench.episode.types import Episode, Status, Turn
from trl_dbbench.grading.statistics import Share
from trl_dbbench.utils.console import printable

EPISODES_FILE = "episodes.jsonl"
TASKS_FILE = "tasks.jsonl"
METRICS_FILE = "metrics.jsonl"
SHOTS_FILE = "shots.jsonl"
"""File of every earlier episode that prompts showed, each once; it can serve as a few-shot memory."""

MAX_REASON_CHARACTERS = 120
"""Most characters of a fault that are compared when void episodes are counted by reason."""

FAILING_LIMITS = frozenset({"time", "server", "emulation", "size"})
"""Limits that make a statement fail; the others shorten its result (`QueryResult.limit`)."""

Phase = Literal["train", "greedy", "eval"]

PHASES: dict[str, str] = {"eval": "held-out", "greedy": "greedy", "train": "sampled"}
"""Phase in `episodes.jsonl` -> its name in reports and messages."""

OF_TRAINING_TASKS: tuple[Phase, ...] = ("train", "greedy")
"""Phases that play training tasks."""


class TurnRecord(TypedDict):
    """One turn; its action determines which of `sql`, `answer` and `reason` it has."""

    text: str
    action: Literal["operation", "answer", "invalid"]
    sql: NotRequired[str]
    answer: NotRequired[str]
    reason: NotRequired[str]
    observation: str | None
    limit: str | None
    """The limit that the statement hit (see `QueryResult`)."""
    error_code: NotRequired[int | None]
    """The server's error number."""
    affected: int | None
    tokens: int
    observation_tokens: int
    seconds: float
    sql_seconds: float | None
    rewards: NotRequired[dict[str, float]]
    """Step rewards, by the name of the reward function."""
    advantage: NotRequired[float]
    """Mean over the turn's tokens, if the episode's turns differ."""
    state: NotRequired[str]
    """Digest of the tables before the turn, if the advantage uses it."""
    value: NotRequired[float]
    """Estimated return at the start of the turn, if the advantage uses it."""
    ids: NotRequired[list[int]]
    """Sampled token ids, in the records of `trl-dbbench sample`."""
    logprobs: NotRequired[list[float] | None]
    """Log-probabilities of `ids`, in nats; `None` if the engine did not return them."""
    observation_ids: NotRequired[list[int]]
    """Token ids between this turn and the next."""
    follows: NotRequired[int]
    """Index of the token that the turn, or the observation before it, follows; absent if that is the last."""


class EpisodeRecord(TypedDict):
    """One episode."""

    phase: Phase
    step: int
    """Number of updates before the episode: 3 if it is for the update from step 3 to 4."""
    policy_step: NotRequired[int]
    """Number of updates of the weights that played it, if played ahead of training (`rollouts_ahead`)."""
    task_id: str
    task_digest: NotRequired[str]
    question: str
    operation: str
    skills: list[str]
    greedy: NotRequired[bool]
    status: str
    """A value of `episode.types.Status`."""
    truncated: NotRequired[bool]
    """See `Episode.truncated`."""
    right: bool
    verdict: NotRequired[dict[str, Any] | None]
    fault: NotRequired[str | None]
    output: NotRequired[str]
    """Last part of the output of the program that played it (`harness`)."""
    retries: int
    rewards: dict[str, float | None]
    advantage: NotRequired[float | None]
    """Mean over the sampled tokens, as used by the update."""
    branch_tokens: NotRequired[int]
    """Tokens sampled in continuations of this episode, if any."""
    left_out: NotRequired[bool]
    """True if dynamic sampling replaced the episode, so that no update used it."""
    seed: NotRequired[int]
    prompt_tokens: NotRequired[int]
    shots: NotRequired[list[str]]
    """Ids of the earlier episodes in the prompt, in order; the episodes are in `shots.jsonl`."""
    endpoint: NotRequired[str]
    """Model and address, if an endpoint played it; then only token counts are known, not tokens."""
    shown: NotRequired[Sequence[Any]]
    """The episodes in `shots` (`few_shot.Example`). Not logged; `conversations.saved_episodes` adds them."""
    prompt_ids: NotRequired[list[int]]
    """Token ids of the prompt, in the records of `trl-dbbench sample`."""
    turns: list[TurnRecord]


def episode_record(episode: Episode, phase: Phase, step: int) -> EpisodeRecord:
    """Return the record of a played episode."""
    record = {
        "phase": phase,
        "step": step,
        "task_id": episode.task.id,
        "task_digest": episode.task.digest,
        "question": episode.task.question,
        "operation": episode.task.operation,
        "skills": list(episode.task.skills),
        "greedy": episode.sampling.greedy,
        "status": str(episode.status),
        "truncated": episode.truncated,
        "right": episode.right,
        "verdict": None if episode.verdict is None else vars(episode.verdict),
        "fault": episode.fault,
        "retries": episode.retries,
        "rewards": episode.rewards,
        "advantage": episode.advantage,
        "seed": episode.sampling.seed,
        "prompt_tokens": episode.prompt_tokens,
        "turns": [turn_record(turn) for turn in episode.turns],
    }
    optional = {name: getattr(episode, name) for name in ("output", "endpoint", "policy_step")}
    optional |= {"branch_tokens": episode.branch_tokens or None, "shots": [*episode.shots] or None}
    known = {name: value for name, value in optional.items() if value is not None}
    return cast(EpisodeRecord, record | known)


def record_with_ids(episode: Episode, phase: Phase, step: int) -> EpisodeRecord:
    """Return the record of a played episode with all its token ids."""
    record = episode_record(episode, phase, step)
    record["prompt_ids"] = episode.prompt_ids
    for kept, turn in zip(record["turns"], episode.turns, strict=True):
        logprobs = turn.completion.logprobs
        kept["ids"] = turn.completion.ids
        kept["logprobs"] = None if any(map(math.isnan, logprobs)) else logprobs
        kept["observation_ids"] = turn.observation_ids
        if turn.follows is not None:
            kept["follows"] = turn.follows
    return record


def worth_learning(record: EpisodeRecord) -> bool:
    """Return whether an episode is right and was not cut off: it should teach a model to end its turns."""
    return record["right"] and not record.get("truncated", False)


def said_in(record: EpisodeRecord) -> tuple[str, ...]:
    """Return the agent's actions, turn by turn: episodes of a task with equal actions are duplicates.

    Thoughts and layout count only in unreadable turns. An episode that was cut off differs from one that was
    not.
    """
    actions = [(action_in(turn), turn["text"]) for turn in record["turns"]]
    said = [text if isinstance(action, Invalid) else repr(action) for action, text in actions]
    if said and record.get("truncated"):
        said[-1] += " (cut off)"
    return tuple(said)


def turn_record(turn: Turn) -> TurnRecord:
    """Return the record of a played turn."""
    action: dict[str, Any] = {"action": type(turn.action).__name__.lower()}
    match turn.action:
        case Operation(sql):
            action["sql"] = sql
        case Answer(text):
            action["answer"] = text
        case Invalid(reason):
            action["reason"] = reason
        case Reply():
            pass
    record = {
        "text": turn.text,
        **action,
        "observation": turn.observation,
        "limit": turn.result.limit if turn.result else None,
        "error_code": turn.result.error_code if turn.result else None,
        "affected": turn.result.affected if turn.result else None,
        "tokens": turn.tokens,
        "observation_tokens": len(turn.observation_ids),
        "seconds": round(turn.seconds, 4),
        "sql_seconds": round(turn.result.seconds, 4) if turn.result else None,
    }
    if turn.rewards:
        record["rewards"] = turn.rewards
    for name in ("advantage", "state", "value"):
        if (value := getattr(turn, name)) is not None:
            record[name] = value
    return cast(TurnRecord, record)


def failed_statement(turn: TurnRecord) -> bool:
    """Return whether the turn's statement ended in an error."""
    return turn.get("error_code") is not None or turn.get("limit") in FAILING_LIMITS


def action_in(record: TurnRecord) -> Action | Reply:
    """Return the action of a turn."""
    if "sql" in record:
        return Operation(record["sql"])
    if "answer" in record:
        return Answer(record["answer"])
    if record.get("action") == "reply":
        return Reply(record["text"])
    return Invalid(record.get("reason", ""))


def checked_record(raw: Any) -> EpisodeRecord:
    """Check and complete a record from a log; raise ValueError if a required field is missing."""
    if not isinstance(raw, dict):
        raise ValueError("not an object")
    needed: dict[str, type] = {"phase": str, "step": int, "task_id": str, "status": str, "turns": list}
    for key, kind in needed.items():
        if not isinstance(raw.get(key), kind):
            raise ValueError(f"no usable '{key}'")
    if raw["phase"] not in PHASES:
        raise ValueError(f"unknown phase {raw['phase']!r}")
    if not all(isinstance(turn, dict) for turn in raw["turns"]):
        raise ValueError("a turn is not an object")
    rewards = raw.get("rewards")
    checked = raw | {
        "right": raw.get("right") is True,
        "question": raw["question"] if isinstance(raw.get("question"), str) else "",
        "operation": str(raw.get("operation", "")),
        "skills": [str(skill) for skill in raw.get("skills") or ()],
        "rewards": rewards if isinstance(rewards, dict) else {},
    }
    return cast(EpisodeRecord, checked)


def check_turns(record: EpisodeRecord) -> None:
    """Raise ValueError if a turn lacks its text or its numbers of tokens."""
    for turn in record["turns"]:
        for key, kind, least in (("text", str, ""), ("tokens", int, 0), ("observation_tokens", int, 0)):
            value = turn.get(key)
            if not isinstance(value, kind) or value < least:  # type: ignore[operator]
                raise ValueError(f"a turn without usable '{key}'")


def groups_of(operation: str, skills: Iterable[str]) -> list[str]:
    """Return the groups of a task with this operation and these skills."""
    return [f"operation/{operation}", *(f"skill/{skill}" for skill in skills)]


def place_of_group(group: str) -> tuple[int, str]:
    """Return a key to sort groups by: overall, then operations, then skills."""
    return ("overall", "operation", "skill").index(group.partition("/")[0]), group


def is_scored(record: EpisodeRecord) -> bool:
    """Return whether a reward function has given the episode a value."""
    return any(value is not None for value in record["rewards"].values())


def total_reward(record: EpisodeRecord, weights: Sequence[float]) -> float:
    """Return the weighted sum of the episode's rewards, without those that are `None`."""
    parts = zip(record["rewards"].values(), weights, strict=True)
    return sum(value * weight for value, weight in parts if value is not None)


def is_void(record: EpisodeRecord) -> bool:
    """Return whether the environment failed, so that the episode is not judged."""
    return record["status"] == Status.ENVIRONMENT_FAULT


def key_of(record: EpisodeRecord) -> str:
    """Return a key of the episode's task."""
    return record.get("task_digest") or f"{record['task_id']} {record['question']}"


def whole_steps(tasks: Mapping[int, Iterable[str]]) -> list[int]:
    """Return, in order, the steps of evaluations with the same tasks as the last one that was not cut short.

    An evaluation that was cut short has only some of another's tasks. A run may resume with other tasks.

    Args:
        tasks: the tasks of each held-out evaluation, by step.
    """
    played = {step: {*of} for step, of in sorted(tasks.items())}
    whole = [of for of in played.values() if not any(of < other for other in played.values())]
    return [step for step, of in played.items() if of == whole[-1]]


def share(episodes: Iterable[EpisodeRecord]) -> Share:
    """Count right, judged and void episodes."""
    episodes = list(episodes)
    judged = [episode["right"] for episode in episodes if not is_void(episode)]
    return Share(sum(judged), len(judged), len(episodes) - len(judged))


def void_reasons(episodes: Iterable[EpisodeRecord], status: str = Status.ENVIRONMENT_FAULT) -> Counter[str]:
    """Count void episodes, or episodes of another status, by reason: the first clause of their fault."""
    return Counter(_reason(episode.get("fault")) for episode in episodes if episode["status"] == status)


def _reason(fault: Any) -> str:
    # an agent may influence the text
    clause = re.split(r"[;\n]", str(fault or "no reason recorded"), maxsplit=1)[0][:MAX_REASON_CHARACTERS]
    return printable(clause)


def commonest(reasons: Counter[str]) -> str:
    """Return the most frequent reason, as in `2003: cannot connect (12 of 15)`; empty without reasons."""
    ((reason, count),) = reasons.most_common(1) or [("", 0)]
    return f"{reason} ({count:,} of {reasons.total():,})" if count else ""


class Accuracy:
    """Counts of right and of void episodes: overall, per operation and per skill.

    Args:
        counts: group -> [right, judged].
        void: group -> void episodes, which are not among the judged ones.
    """

    def __init__(
        self, counts: Mapping[str, Sequence[int]] | None = None, void: Mapping[str, int] | None = None
    ):
        copied = {group: [*both] for group, both in (counts or {}).items()}
        self.counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0], copied)
        self.void: Counter[str] = Counter(void or {})

    def add(self, episodes: Iterable[EpisodeRecord]) -> Accuracy:
        """Count episodes and return this object."""
        for episode in episodes:
            for group in ("overall", *groups_of(episode["operation"], episode["skills"])):
                if is_void(episode):
                    self.void[group] += 1
                else:
                    self.counts[group][0] += bool(episode["right"])
                    self.counts[group][1] += 1
        return self

    def share(self, group: str = "overall") -> Share:
        """Return the share of right episodes in a group."""
        right, judged = self.counts.get(group, (0, 0))
        return Share(right, judged, self.void[group])

    def rate(self, group: str = "overall") -> float | None:
        """Return the rate of right episodes, 0 to 1; `None` if none was judged."""
        found = self.share(group)
        return found.rate if found.judged else None

    def describe(self, group: str = "overall") -> str:
        """Return a text such as `31/48 = 64.6 % [50.4, 76.6]`, with the 95 % Wilson interval in brackets.

        With void episodes: `5/5 = 100.0 % [56.6, 100.0] (15 void, 25.0 % with those counted wrong)`.
        """
        found = self.share(group)
        return f"{found.right}/{found.judged} = {found}"

    def table(self) -> list[tuple[str, str]]:
        """Return (group, description) of every group: overall, then operations, then skills."""
        groups = sorted({*self.counts, *self.void}, key=place_of_group)
        return [(group, self.describe(group)) for group in groups]

    def metrics(self) -> dict[str, float]:
        """Return `accuracy` with `_low`, `_high` and `_void_wrong`, `void`, and rates by operation and skill.

        For groups with void episodes, `void_wrong/...` counts these as wrong.
        """
        overall = self.share()
        low, high = overall.interval
        total = overall.judged + overall.void
        others = {*self.counts, *self.void} - {"overall"}
        return {
            "accuracy": overall.rate,
            "accuracy_low": low,
            "accuracy_high": high,
            "accuracy_void_wrong": overall.void_wrong,
            "void": overall.void / total if total else 0.0,
            **{group: self.share(group).rate for group in self.counts if group in others},
            **{f"void_wrong/{group}": self.share(group).void_wrong for group in self.void if group in others},
        }
