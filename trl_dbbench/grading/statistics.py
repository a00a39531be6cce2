"""Shares of right episodes, with confidence intervals and the void episodes left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev


@dataclass(frozen=True)
class Share:
    """Right episodes among the judged ones, and the number of void ones.

    An episode is void if its environment failed. It is not judged, because it says nothing about the agent
    unless the agent can cause the failure. `void_wrong` is the share with void episodes counted as wrong.

    Args:
        right: number of right episodes; for estimates per task, such as pass@k, their sum.
        judged: number of episodes, or of tasks with an estimate.
        void: number of void episodes.
        of_all: (right, total) with void episodes counted as wrong; default (`right`, `judged + void`).
    """

    right: float
    judged: int
    void: int = 0
    of_all: tuple[float, int] | None = None

    @property
    def rate(self) -> float:
        """Share of right episodes, 0 to 1; 0 if none was judged."""
        return self.right / self.judged if self.judged else 0.0

    @property
    def void_wrong(self) -> float:
        """The share with void episodes counted as wrong, 0 to 1."""
        right, total = self.of_all or (self.right, self.judged + self.void)
        return right / total if total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval over the judged episodes."""
        return wilson_interval(self.right, self.judged)

    @property
    def percent(self) -> str:
        return f"{100 * self.rate:.1f} %" if self.judged else "none judged"

    @property
    def bounds(self) -> str:
        low, high = self.interval
        return f"[{100 * low:.1f}, {100 * high:.1f}]" if self.judged else ""

    @property
    def counts(self) -> str:
        """Text such as `5 of 20`, or `5 of 5; 15 void, 25.0 % with those counted wrong`."""
        four_digits = self.right % 1 and self.right < 1_000  # larger numbers would become 1.235e+04
        counts = f"{self.right:{'.4g' if four_digits else '.0f'}} of {self.judged}"
        return f"{counts}; {self.void_note}" if self.void else counts

    @property
    def void_note(self) -> str:
        """Text such as `15 void, 25.0 % with those counted wrong`."""
        return f"{self.void:,} void, {100 * self.void_wrong:.1f} % with those counted wrong"

    def __str__(self) -> str:
        """Return text such as `64.6 % [50.4, 76.6]`, with void episodes in parentheses."""
        share = f"{self.percent} {self.bounds}".rstrip()
        return f"{share} ({self.void_note})" if self.void else share


def wilson_interval(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a share; `(0.0, 1.0)` for `n = 0`.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927):
    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike p ± z √(p(1-p)/n) it does not shrink to a point
    at 0 or 1, which are common with few tasks. With z = 1.96 it is the 95 % interval.
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Rounding can leave 0 of n a hair above 0: the interval must still contain p.
    return max(0.0, min(p, (centre - spread) / scale)), min(1.0, max(p, (centre + spread) / scale))


T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Quantiles 0.975 of Student's t with 1 to 9 degrees of freedom."""


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of at least two values and half the length of its 95 % interval, by Student's t.

    Beyond 9 degrees of freedom the quantile is approximated (Cornish and Fisher, 1938), within 0.001.
    """
    freedom = len(values) - 1
    if freedom <= len(T_95):
        t = T_95[freedom - 1]
    else:
        z = NormalDist().inv_cdf(0.975)
        t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    return mean(values), t * stdev(values) / math.sqrt(len(values))
