"""Intervals of paired differences against printed quantiles."""

from __future__ import annotations

import math

import pytest

from gradwire.harness.timing.measure.paired import mean_and_margin, t_quantile

PRINTED = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 9: 2.26216, 30: 2.04227}
"""Two-sided 95 % quantiles of Student's t by degrees of freedom."""


@pytest.mark.parametrize(("freedom", "printed"), PRINTED.items())
def test_quantiles_are_those_of_tables(freedom: int, printed: float) -> None:
    assert t_quantile(freedom) == pytest.approx(printed, rel=2e-6)


def test_many_degrees_of_freedom_approach_the_normal_quantile() -> None:
    assert t_quantile(2000) == pytest.approx(1.95996, rel=1e-3)


def test_an_interval_by_hand() -> None:
    mean, margin = mean_and_margin([1.0, 2.0, 3.0])
    assert mean == 2 and margin == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)


def test_one_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="takes two or more seeds, and there are 1"):
        mean_and_margin([1.0])
