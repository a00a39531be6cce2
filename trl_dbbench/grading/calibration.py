"""How far the probabilities of a model can be believed: accuracy, Brier score and calibration error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trl_dbbench.grading.statistics import wilson_interval

BINS, RESAMPLES = 10, 1_000

Interval = tuple[float, float, float]
"""A value with the ends of its 95 % interval."""


@dataclass(frozen=True)
class Calibration:
    """Of n probabilities about things from so many tasks.

    `accuracy` is the share that is on the right side of 0.5; `brier` the mean of (p - y)², which is q(1 - q)
    for one who says the base rate q each time; `error` the expected calibration error: |mean p - mean y| of
    each tenth of the range of p, weighted by how many there are in it (Guo et al. 2017). Things of the same
    task are not independent: the Wilson interval of the accuracy counts tasks, the two others come from
    drawing tasks again with replacement.
    """

    n: int
    tasks: int
    base_rate: float
    accuracy: Interval
    brier: Interval
    error: Interval

    def __str__(self) -> str:
        parts = [
            f"accuracy {_percent(self.accuracy)}",
            f"Brier {_plain(self.brier)} (base rate alone: {self.base_rate * (1 - self.base_rate):.3f})",
            f"calibration error {_plain(self.error)}",
        ]
        return ", ".join(parts)


def calibration(
    probabilities: Sequence[float], outcomes: Sequence[bool], tasks: Sequence[str], seed: int = 0
) -> Calibration:
    """Compare probabilities with what came out.

    Args:
        probabilities: length N, that the outcome is true.
        tasks: length N, what each is about; equal names are drawn together.

    Raises:
        ValueError: if there is nothing to compare.
    """
    if not len(probabilities):
        raise ValueError("no probabilities to compare")
    p, y = np.asarray(probabilities, float), np.asarray(outcomes, float)
    names, of_task = np.unique(np.asarray(tasks), return_inverse=True)
    rows = [np.flatnonzero(of_task == number) for number in range(len(names))]
    rng = np.random.default_rng(seed)
    draws = [
        np.concatenate([rows[number] for number in rng.integers(len(rows), size=len(rows))])
        for _ in range(RESAMPLES)
    ]
    accuracy = float(np.mean((p > 0.5) == y))
    return Calibration(
        len(p),
        len(names),
        float(y.mean()),
        (accuracy, *wilson_interval(accuracy * len(names), len(names))),
        _with_interval(_brier, p, y, draws),
        _with_interval(_error, p, y, draws),
    )


def pair_calibration(differences: Sequence[float], tasks: Sequence[str], seed: int = 0) -> Calibration:
    """The same for pairs: the model says that the first is better with the probability 1 / (1 + exp(-d)).

    Which one stands first is a convention, so each pair counts as "the one that the model prefers is the
    better one", with a probability of at least 0.5.

    Args:
        differences: length N, d, the score of the better one less that of the other.
    """
    p = 1 / (1 + np.exp(-np.abs(np.asarray(differences, float))))
    return calibration(p.tolist(), [each > 0 for each in differences], tasks, seed)


def _brier(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((p - y) ** 2))


def _error(p: np.ndarray, y: np.ndarray) -> float:
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    gaps = np.abs(np.bincount(bins, p - y, BINS))
    return float(gaps.sum() / len(p))


def _with_interval(measure, p: np.ndarray, y: np.ndarray, draws: Sequence[np.ndarray]) -> Interval:
    low, high = np.percentile([measure(p[draw], y[draw]) for draw in draws], [2.5, 97.5])
    return measure(p, y), float(low), float(high)


def _percent(interval: Interval) -> str:
    value, low, high = (100 * each for each in interval)
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"


def _plain(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
