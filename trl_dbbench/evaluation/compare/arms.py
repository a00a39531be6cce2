"""An arm of a comparison: one model's episodes, task by task, and statistics over samples and pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import comb
from typing import Any

import numpy as np

from trl_dbbench.episode.types import Status
from trl_dbbench.grading.answers import MISSING, literal
from trl_dbbench.runs.read import renamed, same_task_names
from trl_dbbench.runs.records import EpisodeRecord, is_void, key_of, said_in
from trl_dbbench.tasks import Task


def pass_at_k(n: int, right: int, k: int) -> float:
    """Return pass@k, the probability that one of `k` samples is right, estimated from `right` of `n` samples.

    M. Chen et al., "Evaluating Large Language Models Trained on Code" (2021): 1 - C(n - right, k) / C(n, k),
    the share of all subsets of k samples with a right one. It is unbiased; 1 - (1 - right / n)^k is not.

    Raises:
        ValueError: unless 1 <= `k` <= `n` and 0 <= `right` <= `n`.
    """
    if not (1 <= k <= n and 0 <= right <= n):
        raise ValueError(f"pass@{k} cannot be estimated from {right} right of {n} samples")
    return 1 - comb(n - right, k) / comb(n, k)


def majority(votes: Sequence[tuple[Hashable, bool]]) -> float:
    """Return the share of right samples in the largest group with equal results, 0 to 1.

    X. Wang et al., "Self-Consistency Improves Chain of Thought Reasoning" (2023). If several groups are
    largest, this is the expected value of a random choice among them.

    Args:
        votes: the result of each sample, and whether it is right. Samples with the result `None` do not
            vote; if none votes, the majority is wrong.
    """
    groups: defaultdict[Hashable, list[bool]] = defaultdict(list)
    for result, right in votes:
        if result is not None:
            groups[result].append(right)
    if not groups:
        return 0.0
    size = max(map(len, groups.values()))
    largest = [sum(group) / size for group in groups.values() if len(group) == size]
    return sum(largest) / len(largest)


def best_of(scored: Sequence[tuple[float, bool]]) -> float:
    """Return the accuracy of the sample with the highest score, 0 to 1. If several share it, this is the
    expected value of a random choice among them. Each sample is (score, whether right)."""
    highest = max(score for score, _ in scored)
    best = [right for score, right in scored if score == highest]
    return sum(best) / len(best)


def mcnemar(wins: int, losses: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: the probability of such a split, or a more uneven
    one, if both models are equally good.

    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947), with the binomial distribution instead of its approximation. Tasks on which
    both agree are ignored; the others count as tosses of a fair coin.
    """
    n = wins + losses
    tail = sum(comb(n, i) for i in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**n)


RESAMPLES = 10_000


def paired_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean difference over one or more tasks.

    B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13. Tasks are drawn with
    replacement. Since many tasks share a difference, the count of each distinct value is drawn instead of
    single tasks: the same distribution, in less memory.
    """
    values, counts = np.unique(np.asarray(differences, dtype=float), return_counts=True)
    n = len(differences)
    drawn = np.random.default_rng(0).multinomial(n, counts / n, size=RESAMPLES)
    low, high = np.quantile(drawn @ values / n, [0.025, 0.975])
    return float(low), float(high)


GREEDY = "greedy"


@dataclass(frozen=True)
class Sampling:
    """Settings of an arm's samples; see `episode.types.Sampling`. `scorer` is the reward that selects the
    best one, if any."""

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
    """Episodes played by `model` with `adapter`.

    Args:
        greedy: one episode per task.
        samples: `sampling.n` episodes per task, if any were drawn.
        gold: gold `sql` and `answer` of each task, as far as known, by `key_of`.
        portable_digests: `portable_digest` of tasks over shared databases, as far as known, by `key_of`.
    """

    name: str
    greedy: Sequence[EpisodeRecord]
    samples: Sequence[EpisodeRecord] = ()
    sampling: Sampling | None = None
    gold: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    model: str | None = None
    adapter: str | None = None
    portable_digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """Keys of the played tasks, in order."""
        return list(dict.fromkeys(map(key_of, self.greedy)))

    def to_dict(self) -> dict[str, Any]:
        """Return name, model, adapter and sampling settings for JSON, without episodes."""
        sampling = None if self.sampling is None else vars(self.sampling)
        return {"name": self.name, "model": self.model, "adapter": self.adapter, "sampling": sampling}

    def named_as(self, first: Arm) -> Arm:
        """Return the arm with the other arm's digests of tasks that differ only by the paths of databases."""
        names = same_task_names(first.portable_digests, self.portable_digests)
        return replace(
            self,
            greedy=renamed(self.greedy, names),
            samples=renamed(self.samples, names),
            gold={names.get(key, key): gold for key, gold in self.gold.items()},
            portable_digests={names.get(key, key): value for key, value in self.portable_digests.items()},
        )

    def only(self, keys: Collection[str]) -> Arm:
        """Return the arm restricted to these tasks."""
        greedy, samples = (
            [episode for episode in episodes if key_of(episode) in keys]
            for episodes in (self.greedy, self.samples)
        )
        return replace(self, greedy=greedy, samples=samples)

    def values(self, void_wrong: bool = False) -> dict[str, dict[str, float]]:
        """Return the accuracy of each task, 0 to 1, as measure -> task -> accuracy.

        Measures are `greedy`; with samples also `pass@1`, `pass@2`, `pass@4` ... `pass@n`, `majority@n`, and
        `best-of-n` if a reward scored them. A measure omits tasks with too few non-void episodes.

        Args:
            void_wrong: whether void episodes count as wrong instead, with no vote in a majority and no score.
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


def gold_of(tasks: Iterable[Task]) -> dict[str, dict[str, Any]]:
    """Return the gold SQL and answer of each task, by `key_of` of its episodes."""
    return {task.digest: {"sql": task.gold.sql, "answer": task.gold.shown} for task in tasks}


def portable_digests_of(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the `portable_digest` of tasks over shared databases, by `key_of` of their episodes."""
    return {task.digest: task.portable_digest for task in tasks if task.source is not None}


def by_task(episodes: Iterable[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Group episodes by task, in the order in which tasks first occur."""
    found: defaultdict[str, list[EpisodeRecord]] = defaultdict(list)
    for episode in episodes:
        found[key_of(episode)].append(episode)
    return dict(found)


def result_of(record: EpisodeRecord) -> Hashable:
    """Return an episode's answer or the digest of its final tables; `None` if it ended without an answer.

    Answers in SQL are equal if they give the same rows. Others, and SQL that fails, are equal if they are
    equal Python literals, such as `[(3,)]` and `[( 3.0, )]`, or else if they have the same words.
    """
    if record["status"] != Status.ANSWERED or not record["turns"]:
        return None
    verdict = record.get("verdict") or {}
    for kind in ("state", "result"):
        if (digest := verdict.get(kind)) is not None:
            return kind, digest
    if record["operation"] in ("INSERT", "UPDATE", "DELETE"):
        return "said", said_in(record)[:-1]  # early versions saved no digest: compare the statements
    statements = [turn["sql"] for turn in record["turns"] if "sql" in turn]
    # if the task wants SQL, an empty answer means the last statement
    text = record["turns"][-1].get("answer") or next(reversed(statements), "")
    value = literal(text.strip())
    if value is not MISSING:
        with suppress(TypeError):  # a set or a dict is compared as text
            return "value", _hashable(value)
    return "text", " ".join(text.split())


def score_of(record: EpisodeRecord, scorer: str | None) -> float | None:
    """Return the scorer's value for an episode, or the lowest of its values for turns if it gave any, as in
    Math-Shepherd (Wang et al. 2024)."""
    if scorer is None:
        return None
    steps = [turn["rewards"][scorer] for turn in record["turns"] if scorer in turn.get("rewards", {})]
    return min(steps) if steps else record["rewards"].get(scorer)


def _sound(episodes: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    return [episode for episode in episodes if not is_void(episode)]


def _right(episode: EpisodeRecord) -> bool:
    return episode["right"] and not is_void(episode)


def _powers_up_to(n: int) -> list[int]:
    """Return 1, 2, 4, ... and n."""
    return sorted({*(2**i for i in range(n.bit_length())), n})


def _hashable(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    hash(value)  # raises TypeError for a set or a dict
    return value
