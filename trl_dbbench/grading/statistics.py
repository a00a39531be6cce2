"""Intervals of shares."""

from __future__ import annotations

import math


def wilson_interval(successes: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a share; `(0.0, 1.0)` for `n = 0`, which says nothing is known.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927):
    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n). Unlike p ± z √(p(1-p)/n) it does not shrink to a point
    at 0 or 1, where few tasks often lie.

    Args:
        z: standard normal quantile; 1.96 gives 95 %.
    """
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Rounding can leave 0 of n a hair above 0: the interval must still contain p.
    return max(0.0, min(p, (centre - spread) / scale)), min(1.0, max(p, (centre + spread) / scale))
