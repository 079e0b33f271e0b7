"""Time-to-accuracy: the training clock at the first evaluation at or past a target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

from gradwire.harness.timing.measure.metrics import METRICS

Mode = Literal["min", "max"]

PERPLEXITY_FACTORS = (1.05, 1.03, 1.01, 1.005)
ACCURACY_FACTORS = (0.98, 0.99, 0.995, 0.999)


class Evaluation(NamedTuple):
    """One point of a curve: the steps done, the training clock in seconds, the metric."""

    step: int
    train_time_s: float
    metric: float


@dataclass(frozen=True, slots=True)
class TimeToAccuracy:
    """The time at which a run reached a target; infinite if it did not."""

    target: float
    train_time_s: float  # seconds, infinite when not reached
    step: int | None  # None when not reached
    stays: bool | None  # whether no later evaluation fell back; None when not reached


def metric_mode(metric: str) -> Mode:
    """The better direction of a metric: `min` for losses and perplexities, `max` for accuracies and all other
    scores."""
    return "min" if metric in METRICS and METRICS[metric].better == "lower" else "max"


def reached(value: float, target: float, mode: Mode) -> bool:
    """True at the target or beyond it; NaN never reaches it."""
    return value <= target if mode == "min" else value >= target


def time_to_accuracy(curve: Iterable[Evaluation], target: float, mode: Mode = "min") -> TimeToAccuracy:
    """The first evaluation at or beyond `target`, without smoothing or interpolation. `curve` is in order of
    steps."""
    points = list(curve)
    for index, point in enumerate(points):
        if reached(point.metric, target, mode):
            stays = all(reached(later.metric, target, mode) for later in points[index:])
            return TimeToAccuracy(target, point.train_time_s, point.step, stays)
    return TimeToAccuracy(target, math.inf, None, None)


def relative_targets(baseline: Sequence[float], mode: Mode = "min") -> dict[float, float]:
    """The targets of a comparison by factor, the loosest first: factor × median of `baseline`.

    `baseline` holds the final metric of each seed's uncompressed run. Raises ValueError if their median is
    not finite, because diverged runs are no baseline, or not positive (as a Matthews correlation may be),
    because its multiples are no targets.
    """
    middle = median_with_misses(baseline, mode)
    if not 0 < middle < math.inf:
        raise ValueError(f"the baseline's median final metric is {middle}: no targets can be derived from it")
    factors = PERPLEXITY_FACTORS if mode == "min" else ACCURACY_FACTORS
    return {factor: factor * middle for factor in factors}


def median_with_misses(values: Iterable[float], mode: Mode = "min") -> float:
    """The median, with NaN treated as the worst possible value (infinity if lower is better)."""
    worst = math.inf if mode == "min" else -math.inf
    return median(worst if math.isnan(value) else value for value in values)


def paired_test_faster(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """One-sided p-value of "candidate takes less time than baseline", paired by seed. Exact.

    A sign-flip test on ranks (Wilcoxon's signed-rank statistic): under the null hypothesis each difference
    baseline_i - candidate_i is as likely to have the other sign, so all 2^n sign patterns are equally likely,
    and p is the share of them whose sum of positive ranks is at least the observed one. Ranks are used
    because a missed target makes a difference infinite: it then has the highest rank, whatever its size.
    Pairs without a difference (two misses included) are left out; ties share the mean of their ranks. The
    smallest possible p is 2^-n: 5 pairs are needed for p < 0.05. Raises ValueError for unpaired input.
    """
    if len(baseline) != len(candidate):
        raise ValueError(f"a paired test needs equal seeds: got {len(baseline)} and {len(candidate)} values")
    pairs = zip(baseline, candidate, strict=True)
    differences = [slow - fast for slow, fast in pairs if slow != fast]
    assert not any(map(math.isnan, differences)), "a miss is infinity, never NaN"
    ranks = _doubled_ranks([abs(difference) for difference in differences])
    observed = sum(rank for rank, difference in zip(ranks, differences, strict=True) if difference > 0)
    patterns = Counter({0: 1})  # sum of positive ranks -> number of sign patterns that give it
    for rank in ranks:
        patterns += Counter({total + rank: count for total, count in patterns.items()})
    at_least = sum(count for total, count in patterns.items() if total >= observed)
    return at_least / float(2 ** len(ranks))


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice each value's rank, ties sharing the mean rank; doubled so that ranks are whole numbers."""
    return [sum((other < value) + (other <= value) for other in values) + 1 for value in values]
