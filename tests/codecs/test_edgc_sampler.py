"""EDGC's estimators of entropy: their distance to closed forms, and their results for odd matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gradwire.codecs.edgc.sampler import estimate, sample, sampled_coordinates, sampling_key
from gradwire.codecs.options.reduced import ESTIMATORS

NUMEL = 1_000_003
GAUSSIAN = 0.5 * math.log(2 * math.pi * math.e)
SIGMAS = (1e-6, 0.242, 1.0)
GENERATOR = np.random.default_rng(11)
NORMAL = torch.from_numpy(GENERATOR.standard_normal(NUMEL)).float()
LAPLACE = torch.from_numpy(GENERATOR.laplace(size=NUMEL)).float()
STUDENT = torch.from_numpy(GENERATOR.standard_t(3, NUMEL)).float()
STUDENT_NATS = 2 * (2 * math.log(2) - 1) + math.log(math.sqrt(3) * math.pi / 2)


@pytest.mark.parametrize(
    ("method", "x", "nats"),
    [
        *((method, sigma * NORMAL, GAUSSIAN + math.log(sigma)) for method in ESTIMATORS for sigma in SIGMAS),
        *((method, LAPLACE, 1 + math.log(2)) for method in ("bits", "hist")),
        *((method, STUDENT, STUDENT_NATS) for method in ("bits", "hist")),
    ],
)
def test_estimates_are_the_closed_forms(method: str, x: Tensor, nats: float) -> None:
    """All of a million coordinates give them to 0.01 nat, every twentieth to 0.03."""
    assert estimate(x, method, 1, 0) == pytest.approx(nats, abs=0.01)
    for seed in range(2):
        assert estimate(x, method, 20, seed) == pytest.approx(nats, abs=0.03)


def test_the_gaussian_is_right_for_gaussians_alone() -> None:
    """It is the entropy of the normal distribution with the same σ, the largest that this σ allows."""
    sigma = math.sqrt(2)
    assert estimate(LAPLACE, "gaussian", 1, 0) == pytest.approx(GAUSSIAN + math.log(sigma), abs=0.01)
    assert estimate(LAPLACE, "gaussian", 1, 0) > estimate(LAPLACE, "bits", 1, 0) + 0.05
    assert estimate(STUDENT, "gaussian", 1, 0) > estimate(STUDENT, "bits", 1, 0) + 0.1


@pytest.mark.parametrize("method", ESTIMATORS)
@pytest.mark.parametrize("stride", [1, 4])
def test_half_of_sigma_is_log_2_less(method: str, stride: int) -> None:
    for x in (NORMAL[:50_000], STUDENT[:50_000], NORMAL[:50_000].bfloat16()):
        once, half = (estimate(each, method, stride, 3) for each in (x, x / 2))
        assert half == pytest.approx(once - math.log(2), abs=1e-9)


def test_an_equal_histogram_misses_a_spike() -> None:
    """Values far smaller than σ, if most are, fall into one bin of `hist`."""
    x = torch.where(torch.arange(NUMEL) % 50 == 0, NORMAL, NORMAL * 1e-3)
    assert estimate(x, "hist", 1, 0) > estimate(x, "bits", 1, 0) + 1


@pytest.mark.parametrize("method", ESTIMATORS)
def test_without_values_there_is_no_entropy(method: str) -> None:
    for x in (torch.zeros(30, 40), torch.zeros(0, 4), torch.full((10,), torch.nan)):
        found = sample(x, method, 4, 0)
        assert found.nats == -math.inf and found.zeros == 1


def test_zeros_are_left_out_and_told() -> None:
    padded = torch.cat([NORMAL[:100_000], torch.zeros(300_000)])
    for method in ("bits", "hist"):
        assert sample(padded, method, 1, 0).nats == pytest.approx(estimate(NORMAL[:100_000], method, 1, 0))
    for method in ESTIMATORS:
        assert sample(padded, method, 1, 0).zeros == 0.75
    # Zeros belong to σ: a quarter of the variance.
    expected = estimate(NORMAL[:100_000], "gaussian", 1, 0) - math.log(2)
    assert estimate(padded, "gaussian", 1, 0) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("method", ESTIMATORS)
def test_what_is_not_finite_does_not_count(method: str) -> None:
    x = NORMAL[:40_000].clone()
    clean = estimate(x[3:], method, 1, 0)
    x[:3] = torch.tensor([torch.inf, -torch.inf, torch.nan])
    assert estimate(x, method, 1, 0) == pytest.approx(clean, abs=1e-12)


@pytest.mark.parametrize("method", ESTIMATORS)
@pytest.mark.parametrize("numel", [5, 16_385, 70_001])
def test_all_methods_draw_alike(method: str, numel: int) -> None:
    """Only the drawn values decide, whatever their places and the matrix's shape."""
    windows = torch.arange(-(-numel // 3))
    drawn = sampled_coordinates(windows, numel, 3, sampling_key(9))
    x = STUDENT[:numel].clone()
    x[~torch.isin(torch.arange(numel), drawn)] = 1e9
    assert estimate(x, method, 3, 9) == pytest.approx(estimate(x[drawn], method, 1, 0), abs=1e-12)
    assert estimate(x[None], method, 3, 9) == estimate(x, method, 3, 9) != estimate(x, method, 3, 10)


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(ValueError, match=r"estimator='kde' is unknown: choose one of bits, hist, gaussian"):
        estimate(NORMAL, "kde", 1, 0)
