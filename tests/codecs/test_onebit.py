"""1-bit SGD against a second implementation in numpy, and with the error feedback it is meant for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from slice_rounds import (
    Cluster,
    Vector,
    exact_mean,
    heavy_tailed,
    mean_of,
    power_near,
    refusal,
    residuals,
    ring_mean,
    sent,
    tree_sum,
)

from gradwire.codecs.onebit import OneBit, SignCoder
from gradwire.codecs.wrappers.feedback import ErrorFeedback

F32 = np.float32


def reference(values: Vector, block: int) -> Vector:
    """The values after one encoding and decoding."""
    decoded = np.empty_like(values)
    for start in range(0, len(values), block):
        own = values[start : start + block]
        unit = power_near(own)
        for side in (own < 0, ~(own < 0)):
            if side.any():
                part = np.zeros(block, F32)
                part[: len(own)][side] = own[side] / unit
                decoded[start : start + block][side] = F32(tree_sum(part) / F32(side.sum())) * unit
    return decoded


@pytest.mark.parametrize("numel", [1, 63, 64, 700])
@pytest.mark.parametrize(("block", "unit"), [(16, 128), (64, 128)])
def test_a_ring_is_the_references_bit_for_bit(numel: int, block: int, unit: int) -> None:
    """The means leave padding out."""
    xs = heavy_tailed(numel, 3)
    for x in xs:
        x[20:30], x[40:60] = 0.0, -0.0
    mean = mean_of(lambda: OneBit(block=block), xs)
    expected = ring_mean([x.numpy() for x in xs], unit, lambda v, first, rank: reference(v, block))
    np.testing.assert_array_equal(mean.numpy(), expected)


def test_sums_and_squared_errors_are_the_best() -> None:
    """The result has the sum of the input; any other two values for the signs are further away."""
    (x,) = heavy_tailed(512, 1)
    arrived = sent(SignCoder(512, 1), x).double()
    assert float(arrived.sum()) == pytest.approx(float(x.double().sum()), rel=1e-6)
    error = (arrived - x).square().sum()
    for factor in (0.9, 1.1):
        assert ((torch.where(x < 0, arrived, factor * arrived) - x).square().sum()) > error
        assert ((torch.where(x < 0, factor * arrived, arrived) - x).square().sum()) > error


def test_means_are_those_of_exact_sums() -> None:
    """Means are right to within a few bits, in long blocks as in short ones."""
    for block in (8, 512, 65536):
        (x,) = heavy_tailed(block, 1)
        arrived = sent(SignCoder(block, 1), x).double()
        for side in (x < 0, x > 0):
            assert float(arrived[side].mean()) == pytest.approx(float(x[side].double().mean()), rel=1e-6)


def test_means_do_not_exceed_the_largest() -> None:
    """Sums of float32's largest value are rounded, and may be too large by a bit."""
    for count in range(1, 65):
        x = torch.zeros(64)
        x[:count] = torch.finfo(torch.float32).max
        arrived = sent(SignCoder(64, 1), -x)
        assert arrived.isfinite().all() and float(arrived[0] / x[0]) == pytest.approx(-1, rel=1e-6)


def test_normal_coordinates_lose_36_percent() -> None:
    """1 − 2/π of their energy."""
    x = torch.randn(1 << 18, generator=torch.Generator().manual_seed(0))
    lost = (sent(SignCoder(512, 1), x) - x).square().sum() / x.square().sum()
    assert float(lost) == pytest.approx(1 - 2 / math.pi, rel=0.01)


def test_sums_that_float32_does_not_hold() -> None:
    """512 values of 3e38 and as many of 1e-45 have means like any others."""
    for value in (3e38, 1e-45):
        x = torch.full((512,), value)
        x[256:] = -x[256:]
        assert torch.equal(sent(SignCoder(512, 1), x), x)


def test_one_sign_alone_has_one_mean() -> None:
    x = torch.arange(1.0, 65.0)
    assert torch.equal(sent(SignCoder(64, 1), x), torch.full((64,), 32.5))
    assert torch.equal(sent(SignCoder(64, 1), -x), torch.full((64,), -32.5))


def test_wire_bits() -> None:
    """1 bit and two float32 a block."""
    workers, numel = 4, 4 * 8192
    cluster = Cluster(OneBit, workers)
    cluster.step(heavy_tailed(numel, workers))
    assert 8 * cluster.bytes_sent() == 2 * (workers - 1) * numel * (1 + 64 / 512)


@pytest.mark.parametrize(("workers", "topology"), [(2, "ring"), (5, "ring"), (8, "ring"), (4, "broadcast")])
def test_error_feedback_does_not_diverge(workers: int, topology: str) -> None:
    """Feedback is never refused: residuals settle, on a ring of eight as in a broadcast."""
    assert refusal(OneBit(), workers) is None
    energies = residuals(lambda: OneBit(block=8), heavy_tailed(512, workers), topology, 40)
    assert max(energies) < 15 and energies[-1] < 2 * energies[19]


def test_error_feedback_brings_the_mean_over_steps_to_the_exact_one() -> None:
    """Without it the error stays."""
    xs = heavy_tailed(2048, 4)
    exact = exact_mean(xs)

    def error(cluster: Cluster) -> float:
        total = sum((cluster.step(xs).double() for _ in range(40)), torch.zeros(2048, dtype=torch.float64))
        return float((total / 40 - exact).square().sum() / exact.square().sum())

    assert error(Cluster(lambda: ErrorFeedback(OneBit(block=64)), 4)) < 0.2
    assert error(Cluster(lambda: OneBit(block=64), 4)) > 0.4


def test_blocks_of_odd_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"codec\.block=1: choose one of 8, 16"):
        OneBit(block=1)
