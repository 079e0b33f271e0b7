"""EDGC's sampler: which coordinates it draws, what it counts, and how accurate the entropies are."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from gradwire.codecs.edgc.sampler import (
    COUNTERS,
    ZEROS,
    differential_entropy,
    gaussian_entropy_with_zeros,
    log2_widths,
    lower_ends,
    sampled_coordinates,
    sampled_histogram,
    sampling_key,
    stride_of,
    zero_share,
)

NUMEL = 1_000_003

GAUSSIAN = 0.5 * math.log(2 * math.pi * math.e)
STUDENT_3 = 2 * (2 * math.log(2) - 1) + math.log(math.sqrt(3) * math.pi / 2)


def normal(generator: np.random.Generator) -> np.ndarray:
    return generator.standard_normal(NUMEL)


def laplace(generator: np.random.Generator) -> np.ndarray:
    return generator.laplace(size=NUMEL)


def student(generator: np.random.Generator) -> np.ndarray:
    return generator.standard_t(3, NUMEL)


CASES: list[tuple[Callable[[np.random.Generator], np.ndarray], float, float]] = [
    *((normal, scale, GAUSSIAN) for scale in (1e-6, 0.242, 1.0)),
    (laplace, 1.0, 1 + math.log(2)),
    (laplace, 3e-4, 1 + math.log(2)),
    (student, 1.0, STUDENT_3),
    (student, 1e-5, STUDENT_3),
]


@pytest.mark.parametrize(("distribution", "scale", "unscaled"), CASES)
def test_entropies_are_the_closed_forms(
    distribution: Callable[[np.random.Generator], np.ndarray], scale: float, unscaled: float
) -> None:
    """A million coordinates give it to 0.01 nat, every twentieth of them to 0.03."""
    x = torch.from_numpy(distribution(np.random.default_rng(7)) * scale).float()
    expected = unscaled + math.log(scale)
    assert differential_entropy(sampled_histogram(x, 1, 0)) == pytest.approx(expected, abs=0.01)
    for iteration in range(3):
        counts = sampled_histogram(x, stride_of(0.05), iteration)
        assert differential_entropy(counts) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_twice_as_large_has_log_2_more(dtype: torch.dtype) -> None:
    x = torch.from_numpy(normal(np.random.default_rng(0))).to(dtype)
    for entropy in (differential_entropy, gaussian_entropy_with_zeros):
        once, twice = (entropy(sampled_histogram(each, 4, 0)) for each in (x, 2 * x))
        assert twice == pytest.approx(once + math.log(2), abs=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 0.242, 1e30])
def test_the_gaussian_entropy_follows_the_standard_deviation(scale: float) -> None:
    generator = np.random.default_rng(1)
    for values in (normal(generator), laplace(generator), 2.0 + normal(generator)):
        x = torch.from_numpy(values * scale).float()
        expected = GAUSSIAN + math.log(float(x.double().std()))
        assert gaussian_entropy_with_zeros(sampled_histogram(x, 1, 0)) == pytest.approx(expected, abs=0.006)


def test_zeros_are_left_out_and_told() -> None:
    x = torch.from_numpy(normal(np.random.default_rng(2))).float()
    alone = sampled_histogram(x, 1, 0)
    padded = sampled_histogram(torch.cat([x, torch.zeros(NUMEL), -torch.zeros(2 * NUMEL)]), 1, 0)
    assert differential_entropy(padded) == differential_entropy(alone)
    assert zero_share(alone) == 0 and zero_share(padded) == 0.75
    # Zeros belong to the distribution whose σ is estimated: a quarter of the variance, half of σ.
    assert gaussian_entropy_with_zeros(padded) == pytest.approx(
        gaussian_entropy_with_zeros(alone) - math.log(2), abs=1e-3
    )


def test_without_values_there_is_no_entropy() -> None:
    for x in (torch.zeros(1000), torch.zeros(0), torch.full((10,), torch.nan)):
        counts = sampled_histogram(x, 4, 0)
        assert differential_entropy(counts) == gaussian_entropy_with_zeros(counts) == -math.inf
        assert zero_share(counts) == 1.0


def test_what_is_not_finite_is_counted_apart() -> None:
    x = torch.from_numpy(normal(np.random.default_rng(3))).float()
    clean = sampled_histogram(x[5:], 1, 0)
    x[:5] = torch.tensor([torch.inf, -torch.inf, torch.nan, -torch.nan, torch.inf])
    counts = sampled_histogram(x, 1, 0)
    assert differential_entropy(counts) == differential_entropy(clean) and gaussian_entropy_with_zeros(
        counts
    ) == gaussian_entropy_with_zeros(clean)
    assert counts[0x7F8:0x800].sum() + counts[0xFF8:0x1000].sum() == 5
    assert counts[0x7F8] == 2 and counts[0xFF8] == 1


def test_bins_are_those_of_their_values() -> None:
    lower, width = lower_ends(), log2_widths().exp2()
    assert torch.equal(lower[1:], (lower + width)[:-1])
    assert float(lower[-1] + width[-1]) == 2.0**128
    x = torch.tensor([1.0, 1.124, 1.125, -1.0, 1e-40, 0.0, -0.0, 3e38])
    expected = torch.zeros(COUNTERS, dtype=torch.int64)
    for value in x.tolist():
        above = int((lower <= abs(value)).sum()) - 1
        expected[ZEROS if value == 0 else above + 2048 * (value < 0)] += 1
    assert torch.equal(sampled_histogram(x, 1, 0), expected)


@pytest.mark.parametrize("stride", [1, 3, 4, 20])
def test_one_coordinate_of_every_stride_is_drawn(stride: int) -> None:
    numel = 1003
    windows = torch.arange(-(-numel // stride))
    drawn = sampled_coordinates(windows, numel, stride, sampling_key(5))
    assert torch.equal(drawn // stride, windows) and int(drawn.max()) < numel
    again = sampled_coordinates(windows[7:], numel, stride, sampling_key(5))
    assert torch.equal(again, drawn[7:])


def test_draws_are_uniform_and_new_in_every_iteration() -> None:
    windows, stride = torch.arange(20_000), 5
    places = torch.stack(
        [sampled_coordinates(windows, 100_000, stride, sampling_key(i)) % stride for i in range(3)]
    )
    for row in places:
        assert ((row.bincount(minlength=stride) / 20_000 - 1 / stride).abs() < 0.015).all()
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert float((places[one] == places[other]).double().mean()) == pytest.approx(1 / stride, abs=0.015)
    assert float((places[0][1:] == places[0][:-1]).double().mean()) == pytest.approx(1 / stride, abs=0.015)


def test_windows_beyond_32_bits_are_drawn_alike() -> None:
    windows = torch.tensor([0, 1, 1 << 32, (1 << 32) + 1, 1 << 40])
    drawn = sampled_coordinates(windows, 1 << 50, 1000, sampling_key(0))
    assert torch.equal(drawn // 1000, windows) and len(set((drawn % 1000).tolist())) > 2


def test_rates_are_whole_strides() -> None:
    rates = (1.0, 0.5, 0.25, 0.05, 1 / 3, 1 / 65_536)
    assert [stride_of(rate) for rate in rates] == [1, 2, 4, 20, 3, 65_536]
    for bad in (0.0, -0.25, 1.5, 1e-5):
        with pytest.raises(ValueError, match=f"rate of {bad} is out of range"):
            stride_of(bad)


def test_neighbours_that_are_alike_are_sampled_evenly() -> None:
    """In a gradient whose rows differ in scale, one sample of ten thousand coordinates is as good as all of
    them."""
    generator = np.random.default_rng(4)
    rows = np.exp(generator.standard_normal(1000))[:, None] * generator.standard_normal((1000, 1000))
    x: Tensor = torch.from_numpy(rows.ravel()).float()
    whole = differential_entropy(sampled_histogram(x, 1, 0))
    for iteration in range(3):
        assert differential_entropy(sampled_histogram(x, 100, iteration)) == pytest.approx(whole, abs=0.05)
