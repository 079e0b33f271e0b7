"""TernGrad against a second implementation on scalars, and where error feedback is allowed around it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slice_rounds import (
    Cluster,
    Vector,
    dither,
    heavy_tailed,
    mean_of,
    power_near,
    refusal,
    residuals,
    ring_mean,
    sent,
)

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.qsgd import LevelCoder
from gradwire.codecs.terngrad import TernGrad

F32 = np.float32


def reference(values: Vector, first: int, rank: int, block: int) -> Vector:
    """One encoding and decoding: ± the block's maximum with probability |x|/maximum."""
    decoded = np.zeros_like(values)
    for start in range(0, len(values), block):
        own = values[start : start + block]
        maximum, unit = np.abs(own).max(), power_near(own)
        for i, x in enumerate(own):
            if not maximum:
                continue
            share = min(F32(F32(abs(x) / unit) * F32(F32(2**16) / F32(maximum / unit))), F32(2**16))
            if int(F32(share + F32(0.5))) + dither(first + start + i, rank) >= 2**16:
                decoded[start + i] = np.copysign(maximum, x)
    return decoded


@pytest.mark.parametrize(("block", "unit"), [(16, 32), (32, 128), (512, 2048)])
def test_a_ring_is_the_references_bit_for_bit(block: int, unit: int) -> None:
    xs = heavy_tailed(700, 3)
    for x in xs:
        x[64:128] = 0
    mean = mean_of(lambda: TernGrad(block=block), xs)
    expected = ring_mean(
        [x.numpy() for x in xs], unit, lambda v, first, rank: reference(v, first, rank, block)
    )
    np.testing.assert_array_equal(mean.numpy(), expected)


def test_what_arrives_is_ternary() -> None:
    """A block's largest coordinate always arrives, too."""
    (x,) = heavy_tailed(512, 1)
    arrived = sent(LevelCoder(512, 2, "max", CoordinateBits((1, 2), 0)), x)
    largest = x.abs().max()
    assert {*arrived.abs().unique().tolist()} == {0.0, float(largest)}
    assert arrived[x.abs().argmax()] == x[x.abs().argmax()]


def test_wire_bits() -> None:
    """2 bits and a float32 a block."""
    workers, numel = 4, 4 * 8192
    cluster = Cluster(TernGrad, workers)
    cluster.step(heavy_tailed(numel, workers))
    assert 8 * cluster.bytes_sent() == 2 * (workers - 1) * numel * (2 + 32 / 512)


def test_error_feedback_along_a_ring_is_refused() -> None:
    assert refusal(TernGrad(block=32), 1) is None
    assert refusal(TernGrad(), 1) is not None
    for workers in (2, 4):
        reason = refusal(TernGrad(), workers)
        assert reason is not None and "codec.block=512" in reason
    assert residuals(TernGrad, heavy_tailed(2048, 4), "ring", 20)[-1] > 1e4
    assert residuals(TernGrad, heavy_tailed(2048, 4), "broadcast", 20)[-1] < 100


def test_blocks_of_odd_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"codec\.block=100: choose one of 8, 16"):
        TernGrad(block=100)


def test_bits_differ_between_ranks() -> None:
    """Ranks round equal values independently."""
    (x,) = heavy_tailed(512, 1)
    arrived = [sent(LevelCoder(512, 2, "max", CoordinateBits((1, 2), rank)), x) for rank in range(2)]
    assert not torch.equal(*arrived)
