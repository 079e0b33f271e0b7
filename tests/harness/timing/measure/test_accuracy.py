"""Time to accuracy, its targets, and the paired test."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from gradwire.harness.timing.measure.accuracy import (
    Evaluation,
    TimeToAccuracy,
    median_with_misses,
    metric_mode,
    paired_test_faster,
    relative_targets,
    time_to_accuracy,
)


def curve(*metrics: float) -> list[Evaluation]:
    return [Evaluation(10 * i, 1.5 * i, metric) for i, metric in enumerate(metrics)]


def test_first_evaluation_past_the_target() -> None:
    assert time_to_accuracy(curve(9, 7, 4, 3), 5.0) == TimeToAccuracy(5.0, 3.0, 20, True)


def test_exactly_at_the_target_counts() -> None:
    assert time_to_accuracy(curve(9, 5, 4), 5.0) == TimeToAccuracy(5.0, 1.5, 10, True)


def test_falling_back_is_noted() -> None:
    assert time_to_accuracy(curve(9, 5, 6, 4), 5.0) == TimeToAccuracy(5.0, 1.5, 10, False)


def test_a_miss_is_infinitely_late() -> None:
    assert time_to_accuracy(curve(9, 8), 5.0) == TimeToAccuracy(5.0, math.inf, None, None)
    assert time_to_accuracy([], 5.0).train_time_s == math.inf


def test_more_is_better_for_accuracies() -> None:
    assert time_to_accuracy(curve(0.1, 0.5, 0.7, 0.6), 0.65, "max") == TimeToAccuracy(0.65, 3.0, 20, False)
    assert [metric_mode(name) for name in ("perplexity", "loss", "accuracy")] == ["min", "min", "max"]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_never_reaches_and_falls_back(mode: str) -> None:
    assert time_to_accuracy(curve(math.nan), 5.0, mode).step is None  # type: ignore[arg-type]
    assert time_to_accuracy(curve(5.0, math.nan), 5.0, mode).stays is False  # type: ignore[arg-type]


def test_targets_are_factors_of_the_median() -> None:
    assert relative_targets([30.0, 10.0, 20.0]) == pytest.approx(
        {1.05: 21, 1.03: 20.6, 1.01: 20.2, 1.005: 20.1}
    )
    assert relative_targets([0.5], "max") == pytest.approx(
        {0.98: 0.49, 0.99: 0.495, 0.995: 0.4975, 0.999: 0.4995}
    )


def test_no_targets_from_runs_that_diverged() -> None:
    with pytest.raises(ValueError, match="median final metric is inf"):
        relative_targets([math.nan, math.nan, 20.0])


def test_misses_enter_the_median() -> None:
    assert median_with_misses([1.0, 2.0, math.inf]) == 2.0
    assert median_with_misses([1.0, math.inf, math.nan]) == math.inf
    assert median_with_misses([1.0, math.nan, math.nan], "max") == -math.inf


def brute_force_p(differences: list[float]) -> float:
    """All sign patterns of the ranks of the differences that are not zero."""
    sizes = [abs(difference) for difference in differences if difference]
    ranks = [sum(o < s for o in sizes) + (sum(o == s for o in sizes) + 1) / 2 for s in sizes]
    signs = [difference > 0 for difference in differences if difference]
    observed = sum(itertools.compress(ranks, signs))
    patterns = list(itertools.product([False, True], repeat=len(ranks)))
    return sum(sum(itertools.compress(ranks, pattern)) >= observed for pattern in patterns) / len(patterns)


@pytest.mark.parametrize("seed", range(60))
def test_p_is_the_share_of_sign_patterns(seed: int) -> None:
    source = random.Random(seed)
    differences = [
        float(source.randrange(-4, 7)) for _ in range(source.randrange(1, 9))
    ]  # ties and zeros too
    candidate = [float(source.randrange(1, 100)) for _ in differences]
    baseline = [time + difference for time, difference in zip(candidate, differences, strict=True)]
    assert paired_test_faster(baseline, candidate) == pytest.approx(brute_force_p(differences))


def test_p_of_the_clear_cases() -> None:
    assert paired_test_faster([2.0] * 5, [1.0] * 5) == 2**-5
    assert paired_test_faster([1.0] * 5, [2.0] * 5) == 1.0
    assert paired_test_faster([1.0, 2.0], [1.0, 2.0]) == 1.0


def test_a_miss_is_the_largest_difference() -> None:
    inf = math.inf
    assert paired_test_faster([9.0, 9.0, inf], [8.0, 8.0, 5.0]) == 1 / 8
    assert paired_test_faster([9.0, 9.0, 9.0], [8.0, 8.0, inf]) == 5 / 8  # ranks +1.5 +1.5 -3
    assert paired_test_faster([inf, inf], [inf, inf]) == 1.0


def test_pairs_are_needed() -> None:
    with pytest.raises(ValueError, match="equal seeds"):
        paired_test_faster([1.0], [1.0, 2.0])
