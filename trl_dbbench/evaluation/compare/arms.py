"""An arm of a comparison: what one model did, task by task."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trl_dbbench.episode.types import Status
from trl_dbbench.evaluation.compare.statistics import best_of, majority, pass_at_k
from trl_dbbench.runs.records import EpisodeRecord, is_void, said_in
from trl_dbbench.tasks import Task

GREEDY = "greedy"

MAX_LITERAL_CHARACTERS = 10_000


@dataclass(frozen=True)
class Sampling:
    """How the samples of an arm were drawn: so many of each task, see `rollout.Sampling`.

    `scorer` names the reward that chooses the best of them, if there is one.
    """

    n: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    scorer: str | None = None

    def __str__(self) -> str:
        parts = [f"{self.n} samples a task", f"temperature {self.temperature:g}"]
        parts += [f"top_p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"top_k {self.top_k}"] if self.top_k else []
        parts += [f"seed {self.seed}"] + ([f"the best by {self.scorer}"] if self.scorer else [])
        return ", ".join(parts)


@dataclass(frozen=True)
class Arm:
    """What one model did.

    Args:
        name: tells it from others.
        greedy: one episode of each task.
        samples: `sampling.n` episodes of each task, if any were drawn.
        gold: what the tasks ask for, by `key_of`: `sql` and `answer`, as far as known.
        model, adapter: what played.
    """

    name: str
    greedy: Sequence[EpisodeRecord]
    samples: Sequence[EpisodeRecord] = ()
    sampling: Sampling | None = None
    gold: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: str | None = None
    adapter: str | None = None

    @property
    def keys(self) -> list[str]:
        """The tasks that it has played, in their order."""
        return list(dict.fromkeys(map(key_of, self.greedy)))

    def only(self, keys: Collection[str]) -> Arm:
        """What it did on these tasks."""
        greedy, samples = (
            [episode for episode in episodes if key_of(episode) in keys]
            for episodes in (self.greedy, self.samples)
        )
        return replace(self, greedy=greedy, samples=samples)

    def values(self, void_wrong: bool = False) -> dict[str, dict[str, float]]:
        """measure -> task -> how right, 0 to 1.

        `greedy`; and with samples `pass@1`, `pass@2`, `pass@4` and so on up to `pass@n`, `majority@n`, and
        `best-of-n` where a reward has scored them. Void episodes, whose environment failed, say nothing: a
        task that has too few others is not in that measure.

        Args:
            void_wrong: whether void episodes count as wrong instead. Like others that came to nothing they
                have no vote in a majority, and no score.
        """
        counted = list if void_wrong else _sound
        found: dict[str, dict[str, float]] = {
            GREEDY: {key_of(episode): float(_right(episode)) for episode in counted(self.greedy)}
        }
        if self.sampling is None:
            return found
        n, scorer = self.sampling.n, self.sampling.scorer
        for k in _powers_up_to(n):
            found[f"pass@{k}"] = {}
        for key, episodes in by_task(counted(self.samples)).items():
            rights = [_right(episode) for episode in episodes]
            for k in _powers_up_to(n):
                if k <= len(rights):
                    found[f"pass@{k}"][key] = pass_at_k(len(rights), sum(rights), k)
            votes = [(result_of(episode), _right(episode)) for episode in episodes]
            found.setdefault(f"majority@{n}", {})[key] = majority(votes)
            scored = [(score_of(episode, scorer), _right(episode)) for episode in _sound(episodes)]
            if known := [(score, right) for score, right in scored if score is not None]:
                found.setdefault(f"best-of-{n}", {})[key] = best_of(known)
            elif scorer is not None and not scored:
                found.setdefault(f"best-of-{n}", {})[key] = 0.0
        return found


def key_of(record: EpisodeRecord) -> str:
    """What tells a task from others, also in the records of earlier versions."""
    return record.get("task_digest") or f"{record['task_id']} {record['question']}"


def gold_of(tasks: Iterable[Task]) -> dict[str, dict[str, Any]]:
    """What tasks ask for, by `key_of` of their episodes."""
    return {task.digest: {"sql": task.gold.sql, "answer": task.gold.shown} for task in tasks}


def by_task(episodes: Iterable[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """The episodes of each task, in the order of tasks."""
    found: defaultdict[str, list[EpisodeRecord]] = defaultdict(list)
    for episode in episodes:
        found[key_of(episode)].append(episode)
    return dict(found)


def result_of(record: EpisodeRecord) -> Hashable:
    """What an episode came to: its answer, or the digest of the tables that it left; `None` without an end.

    Answers are the same if they are the same Python literal, so `[(3,)]` is `[( 3.0, )]`; others, if their
    words are.
    """
    if record["status"] != Status.ANSWERED or not record["turns"]:
        return None
    verdict = record.get("verdict") or {}
    if (state := verdict.get("state")) is not None:
        return "state", state
    if record["operation"] in ("INSERT", "UPDATE", "DELETE"):
        return "said", said_in(record)[:-1]  # of a version that kept no digest: what it has executed
    text = record["turns"][-1].get("answer", "")
    try:
        if len(text) <= MAX_LITERAL_CHARACTERS:
            return "value", _hashable(ast.literal_eval(text.strip()))
    except Exception:  # SyntaxError, ValueError, RecursionError, MemoryError, ...: all mean "no literal"
        pass
    return "text", " ".join(text.split())


def score_of(record: EpisodeRecord, scorer: str | None) -> float | None:
    """The score of an episode. Of a reward for each turn it is the lowest, as in Math-Shepherd (Wang et al.
    2024): an episode is as good as its worst step."""
    if scorer is None:
        return None
    steps = [turn["rewards"][scorer] for turn in record["turns"] if scorer in turn.get("rewards", {})]
    return min(steps) if steps else record["rewards"].get(scorer)


def _sound(episodes: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    return [episode for episode in episodes if not is_void(episode)]


def _right(episode: EpisodeRecord) -> bool:
    return episode["right"] and not is_void(episode)


def _powers_up_to(n: int) -> list[int]:
    """1, 2, 4, ... and n."""
    return sorted({*(2**i for i in range(n.bit_length())), n})


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    hash(value)  # a set or a dict is taken as text
    return value
