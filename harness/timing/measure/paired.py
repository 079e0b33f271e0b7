"""The mean of paired differences and its 95 % interval, by Student's t distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

CONFIDENCE = 0.95
_HALVINGS = 80


def mean_and_margin(differences: Sequence[float]) -> tuple[float, float]:
    """The mean of the differences, one per seed, and half the width of its 95 % interval.

    Raises ValueError for fewer than two differences, which have no spread.
    """
    count = len(differences)
    if count < 2:
        raise ValueError(f"an interval takes two or more seeds, and there are {count}")
    return fmean(differences), t_quantile(count - 1) * stdev(differences) / math.sqrt(count)


def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t such that |T| <= t has this probability with `freedom` degrees of freedom; found by bisection."""
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| <= √freedom · tan(angle)): the finite sums of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for factor in range(2 + odd, freedom + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (factor - 1) / factor
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
