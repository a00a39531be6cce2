"""What several samples of a task say of a model, and what paired tasks say of two models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import comb

import numpy as np


def pass_at_k(n: int, right: int, k: int) -> float:
    """The probability that at least one of `k` samples is right, estimated from `n` of which `right` are.

    M. Chen et al., "Evaluating Large Language Models Trained on Code" (2021): 1 - C(n - right, k) / C(n, k),
    the share of all choices of k samples that hold a right one. It is unbiased; 1 - (1 - right / n)^k is not.

    Raises:
        ValueError: if there are fewer samples than `k`, or `right` is no count of them.
    """
    if not (1 <= k <= n and 0 <= right <= n):
        raise ValueError(f"pass@{k} cannot be estimated from {right} right of {n} samples")
    return 1 - comb(n - right, k) / comb(n, k)


def majority(votes: Sequence[tuple[Hashable, bool]]) -> float:
    """How right the largest group of samples is, 0 to 1.

    X. Wang et al., "Self-Consistency Improves Chain of Thought Reasoning" (2023), with what the samples came
    to in the place of their words. Where several groups are largest, each counts alike: the expected value of
    a draw among them.

    Args:
        votes: for each sample what it came to, `None` if to nothing, and whether it was right. Samples that
            came to nothing have no vote; where none has one, the majority is wrong.
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
    """How right the sample with the highest score is, 0 to 1.

    Where several have it, each counts alike: the expected value of a draw among them.

    Args:
        scored: for each sample its score, and whether it was right; at least one.
    """
    highest = max(score for score, _ in scored)
    best = [right for score, right in scored if score == highest]
    return sum(best) / len(best)


def mcnemar(wins: int, losses: int) -> float:
    """The two-sided p of McNemar's exact test: how likely such a split is, or a more uneven one, if both are
    equally good.

    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947), with the binomial distribution in the place of its approximation: tasks on which
    both did the same say nothing, the others are tosses of a fair coin.

    Args:
        wins, losses: tasks that only the one, or only the other did right.
    """
    n = wins + losses
    tail = sum(comb(n, i) for i in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**n)


def paired_interval(
    differences: Sequence[float], *, seed: int = 0, resamples: int = 10_000
) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of a mean of differences, task by task.

    B. Efron and R. Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13. Tasks are drawn with
    replacement. As many of them have the same difference, how often each value is drawn is sampled instead
    of each task: the same distribution, in less memory.

    Args:
        differences: of two models' values on the same task; at least one.
        seed: the same one gives the same interval.
    """
    values, counts = np.unique(np.asarray(differences, dtype=float), return_counts=True)
    n = len(differences)
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=resamples)
    low, high = np.quantile(drawn @ values / n, [0.025, 0.975])
    return float(low), float(high)
