"""Calibration of a model's probabilities: accuracy, Brier score and calibration error."""

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
    """Calibration of n probabilities for items of a number of tasks.

    `accuracy` is the share on the right side of 0.5. `brier` is the mean of (p - y)²; q(1 - q) for a constant
    guess at the base rate q. `error` is the expected calibration error: |mean p - mean y| in each tenth of
    the range of p, weighted by its size (Guo et al. 2017). Items of one task are not independent, so Wilson's
    interval of the accuracy counts tasks, and the other intervals are a bootstrap over tasks.
    """

    n: int
    tasks: int
    base_rate: float
    accuracy: Interval
    brier: Interval
    error: Interval

    def __str__(self) -> str:
        guess = self.base_rate * (1 - self.base_rate)
        right, low, high = (100 * each for each in self.accuracy)
        return (
            f"accuracy {right:.1f} % [{low:.1f}, {high:.1f}], Brier {_shown(self.brier)} (base rate alone: "
            f"{guess:.3f}), calibration error {_shown(self.error)}"
        )


def calibration(
    probabilities: Sequence[float],
    outcomes: Sequence[float],
    tasks: Sequence[str],
    base_rate: float | None = None,
) -> Calibration:
    """Compare probabilities with outcomes; raise ValueError if there are none.

    Args:
        probabilities: length N, the probability of the outcome 1.
        outcomes: length N, 0 or 1; 0.5 for a tie.
        tasks: length N, the task of each; items of one task are resampled together.
        base_rate: constant guess to compare with; default: the mean outcome.
    """
    if not len(probabilities):
        raise ValueError("no probabilities to compare")
    p, y = np.asarray(probabilities, float), np.asarray(outcomes, float)
    names, of_task = np.unique(np.asarray(tasks), return_inverse=True)
    rows = [np.flatnonzero(of_task == number) for number in range(len(names))]
    rng = np.random.default_rng(0)
    draws = [
        np.concatenate([rows[number] for number in rng.integers(len(rows), size=len(rows))])
        for _ in range(RESAMPLES)
    ]
    accuracy = float(np.mean(np.where(p == 0.5, 0.5, (p > 0.5) == y)))  # a tie is half right
    return Calibration(
        len(p),
        len(names),
        float(y.mean()) if base_rate is None else base_rate,
        (accuracy, *wilson_interval(accuracy * len(names), len(names))),
        _with_interval(_brier, p, y, draws),
        _with_interval(_error, p, y, draws),
    )


def pair_calibration(differences: Sequence[float], tasks: Sequence[str]) -> Calibration:
    """Return the calibration of pairs, where P(first is better) = 1 / (1 + exp(-d)).

    Each of the N differences d is the better one's score minus the other's. The order of a pair is arbitrary,
    so the outcome is "the one with the higher score is better", with a probability of at least 0.5.
    """
    p = 1 / (1 + np.exp(-np.abs(np.asarray(differences, float))))
    outcomes = [0.5 if each == 0 else float(each > 0) for each in differences]
    return calibration(p.tolist(), outcomes, tasks, base_rate=0.5)


def _brier(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((p - y) ** 2))


def _error(p: np.ndarray, y: np.ndarray) -> float:
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    gaps = np.abs(np.bincount(bins, p - y, BINS))
    return float(gaps.sum() / len(p))


def _with_interval(measure, p: np.ndarray, y: np.ndarray, draws: Sequence[np.ndarray]) -> Interval:
    low, high = np.percentile([measure(p[draw], y[draw]) for draw in draws], [2.5, 97.5])
    return measure(p, y), float(low), float(high)


def _shown(interval: Interval) -> str:
    value, low, high = interval
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
