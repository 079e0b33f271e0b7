"""The rate-distortion bound against closed forms, and against a search over all divisions of the bits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from gradwire.harness.studies.distribution import RateDistortionCurve

RATES = (0.0, 0.1, 0.5, 1.0, 2.0, 3.7, 5.0, 12.0)


def with_variances(*variances: float, counts: tuple[int, ...] | None = None, group: int = 4) -> Tensor:
    """Coordinates ±σ, `group` in each group but perhaps the last."""
    counts = counts or (group,) * len(variances)
    signs = (torch.arange(sum(counts)) % 2) * 2.0 - 1
    sizes = torch.tensor(variances, dtype=torch.float64).sqrt().repeat_interleave(torch.tensor(counts))
    return signs.double() * sizes


@pytest.mark.parametrize("bits", RATES)
@pytest.mark.parametrize("numel", [1, 255, 256, 1000])
def test_equal_variances(bits: float, numel: int) -> None:
    """All groups share the bits equally, partial ones too: D(R) = 2^(−2R)."""
    curve = RateDistortionCurve.of(torch.full((numel,), -0.37))
    assert curve.bound(bits) == pytest.approx(2.0 ** (-2 * bits), rel=1e-10)


def test_two_groups() -> None:
    """Only the larger variance is described until the water is down at the smaller one, then both are."""
    curve = RateDistortionCurve.of(with_variances(16.0, 1.0), group=4)
    for bits in (0.0, 0.3, 0.9, 1.0):  # 16 → 1 takes 2 bits of half of the coordinates
        assert curve.bound(bits) == pytest.approx((16 * 2.0 ** (-4 * bits) + 1) / 17, rel=1e-12)
    for bits in (1.0, 1.5, 4.0):
        level = math.sqrt(16 * 1) * 2.0 ** (-2 * bits)
        assert curve.bound(bits) == pytest.approx(2 * level / 17, rel=1e-12)


def test_groups_without_energy_take_no_bits() -> None:
    """Half of the coordinates are zeros: the others have twice the rate; no bits, no description."""
    half = RateDistortionCurve.of(with_variances(0.0, 3.0, 0.0, 3.0), group=4)
    for bits in RATES:
        assert half.bound(bits) == pytest.approx(2.0 ** (-4 * bits), rel=1e-10)
    assert half.bound(0.0) == 1.0


def test_a_partial_group_counts_by_its_coordinates() -> None:
    """One coordinate of variance 4 with four of variance 1: 1/5 bit per coordinate brings it down to 1."""
    curve = RateDistortionCurve.of(with_variances(1.0, 4.0, counts=(4, 1)), group=4)
    assert curve.bound(0.2) == pytest.approx(5 / 8, rel=1e-12)
    assert curve.bound(0.1) == pytest.approx((4 + 4 * 2.0 ** (-2 * 0.5)) / 8, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_no_division_of_the_bits_does_better(seed: int) -> None:
    """A search over many divisions of the bits among four groups (Σ σ²·2^(−2R_j), R_j ≥ 0) comes close to the
    bound and never below it."""
    generator = torch.Generator().manual_seed(seed)
    variances = torch.exp(2 * torch.randn(4, generator=generator, dtype=torch.float64))
    curve, steps, bits = RateDistortionCurve.of(with_variances(*variances.tolist()), group=4), 40, 1.5
    shares = torch.tensor(
        [
            (a, b, c, steps - a - b - c)
            for a, b, c in itertools.product(range(steps + 1), repeat=3)
            if a + b + c <= steps
        ]
    )
    rates = shares.double() * 4 * bits / steps
    found = float((variances * torch.pow(2.0, -2 * rates)).sum(dim=1).min() / variances.sum())
    bound = curve.bound(bits)
    assert bound <= found * (1 + 1e-12)
    assert found == pytest.approx(bound, rel=0.02)


@pytest.mark.parametrize("bits", [0.5, 3.0, 6.0])
def test_the_water_level_has_the_rate_asked_for(bits: float) -> None:
    """Bisection for θ over skewed variances, groups of different sizes, gives the same distortion."""
    generator = torch.Generator().manual_seed(7)
    energy = torch.exp(3 * torch.randn(100, generator=generator)).repeat_interleave(256)
    x = (energy * torch.randn(25600, generator=generator))[:25500]
    rows = [row.double() for row in x.split(256)]
    variances = torch.tensor([float(row.square().mean()) for row in rows], dtype=torch.float64)
    weights = torch.tensor([len(row) for row in rows], dtype=torch.float64) / 25500
    low, high = 0.0, float(variances.max())
    for _ in range(2000):
        level = (low + high) / 2
        rate = float((weights * (variances / level).log2().clamp(min=0) / 2).sum())
        low, high = (level, high) if rate > bits else (low, level)
    flooded = float((weights * variances.clamp(max=high)).sum() / (weights * variances).sum())
    assert RateDistortionCurve.of(x).bound(bits) == pytest.approx(flooded, rel=1e-9)


def test_less_with_more_bits_and_with_more_skew() -> None:
    curve = RateDistortionCurve.of(with_variances(9.0, 1.0, 0.1, 1e-9), group=4)
    bounds = [curve.bound(bits) for bits in RATES]
    assert all(a > b for a, b in itertools.pairwise(bounds))
    even = RateDistortionCurve.of(with_variances(1.0, 1.0, 1.0, 1.0), group=4)
    assert all(a < even.bound(bits) for a, bits in list(zip(bounds, RATES, strict=True))[1:])


def test_scale_and_order_do_not_matter() -> None:
    """Magnitudes range from the smallest float32 to the largest; groups come in any order."""
    x = with_variances(9.0, 1.0, 0.1)
    bound = RateDistortionCurve.of(x, group=4).bound(2)
    for scale in (2.0**-140, 2.0**120):
        assert RateDistortionCurve.of((x * scale).float(), group=4).bound(2) == pytest.approx(bound, rel=1e-3)
    assert RateDistortionCurve.of(x.view(3, 4).flip(0).flatten(), group=4).bound(2) == pytest.approx(
        bound, rel=1e-12
    )


def test_decibels() -> None:
    """6.02 dB a bit: 2^(−2R) one bit earlier is a quarter; perfect is −∞."""
    curve = RateDistortionCurve.of(torch.ones(512))
    assert curve.decibels_above(2.0**-6, 4) == pytest.approx(10 * math.log10(4))
    assert curve.decibels_above(curve.bound(3), 3) == 0
    assert curve.decibels_above(0.0, 3) == -math.inf
    assert math.isnan(curve.decibels_above(math.nan, 3))


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_gradients_without_a_bound(value: float) -> None:
    x = torch.zeros(600)
    x[300] = value
    assert math.isnan(RateDistortionCurve.of(x).bound(3))
    assert math.isnan(RateDistortionCurve.of(x).decibels_above(0.1, 3))


def test_far_more_bits_than_a_float_can_show() -> None:
    """A level below the smallest float64 is no error."""
    assert RateDistortionCurve.of(torch.ones(4)).bound(2000) == 0
    assert RateDistortionCurve.of(torch.ones(4)).decibels_above(1e-9, 2000) == math.inf
