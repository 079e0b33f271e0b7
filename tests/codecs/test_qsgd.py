"""QSGD against a second implementation on scalars, its norms, variance and refusals."""

from __future__ import annotations

import math

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
    tree_sum,
)

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.options.quantized import Norm
from gradwire.codecs.qsgd import QSGD, LevelCoder, group_norms

F32 = np.float32


def reference(values: Vector, first: int, rank: int, bits: int, group: int, norm: str) -> Vector:
    """One encoding and decoding, coordinate by coordinate."""
    levels, decoded = 2 ** (bits - 1) - 1, np.empty_like(values)
    for start in range(0, len(values), group):
        own = np.zeros(group, F32)
        own[: len(values) - start] = values[start : start + group]
        unit = power_near(own)
        scale = F32(math.sqrt(tree_sum((own / unit) ** 2))) if norm == "l2" else np.abs(own / unit).max()
        for i, x in enumerate(values[start : start + group]):
            position = F32(F32(abs(x) / unit) * F32(F32(levels * 2**16) / scale)) if scale else F32(0)
            steps = int(F32(min(position, F32(levels * 2**16)) + F32(0.5)))
            level = (steps + dither(first + start + i, rank)) // 2**16
            decoded[start + i] = math.copysign(F32(level) * F32(F32(scale * unit) / F32(levels)), x)
    return decoded


@pytest.mark.parametrize(
    ("bits", "group", "norm", "unit"),
    [(4, 64, "l2", 256), (8, 32, "max", 128), (2, 16, "l2", 32), (3, 512, "max", 2048), (11, 8, "l2", 128)]
    + [(6, 1024, "l2", 4096), (8, 16384, "l2", 65536)],
)
def test_a_ring_is_the_references_bit_for_bit(bits: int, group: int, norm: str, unit: int) -> None:
    """Chunk boundaries too: `unit` is the number of coordinates that take a multiple of 16 bytes."""
    xs = heavy_tailed(max(700, group), 3)
    for x in xs:
        x[64:128] = 0
    mean = mean_of(lambda: QSGD(bits=bits, group=group, norm=norm), xs)
    expected = ring_mean(
        [x.numpy() for x in xs], unit, lambda v, first, rank: reference(v, first, rank, bits, group, norm)
    )
    np.testing.assert_array_equal(mean.numpy(), expected)


def coder(bits: int, group: int = 512, norm: Norm = "l2") -> LevelCoder:
    return LevelCoder(group, bits, norm, CoordinateBits((1, 2), 0))


@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_what_arrives_are_neighbouring_levels(bits: int, norm: Norm) -> None:
    """Multiples of norm/s, less than one of them away, with the sign of the coordinate."""
    (x,) = heavy_tailed(1024, 1)
    step = group_norms(x.view(2, 512), norm)[0].double() / (2 ** (bits - 1) - 1)
    arrived = sent(coder(bits, norm=norm), x).view(2, 512).double()
    levels = arrived / step
    assert torch.allclose(levels, levels.round(), atol=1e-2 if bits == 16 else 1e-4)
    assert ((arrived - x.view(2, 512)).abs() < step * 1.001).all()
    assert (arrived * x.view(2, 512) >= 0).all()
    assert levels.abs().max() <= 2 ** (bits - 1)


def test_levels_are_exact() -> None:
    """Values on the grid arrive as they are: with the maximum, s = 7 and a maximum of 7."""
    x = torch.arange(-7.0, 8.0).repeat(5)[:64]
    assert torch.equal(sent(coder(4, group=64, norm="max"), x), x)


def test_variance_is_that_of_stochastic_rounding() -> None:
    """Each coordinate's: (norm/s)²·f·(1 − f), f the position between two levels; over 400 ranks."""
    (x,) = heavy_tailed(512, 1)
    step = float(x.double().norm()) / 7
    position = x.double().abs() / step
    part = position - position.floor()
    errors = torch.stack(
        [sent(LevelCoder(512, 4, "l2", CoordinateBits((1, 2), r)), x) - x for r in range(400)]
    )
    measured = float(errors.double().square().sum()) / 400
    assert measured == pytest.approx(float((part * (1 - part)).sum()) * step**2, rel=0.03)


def test_norms_neither_overflow_nor_vanish() -> None:
    rows = torch.tensor([[3e30, 4e30], [3e-30, -4e-30], [3e38, 3e38], [torch.inf, 1.0], [0.0, 0.0]])
    l2, largest = group_norms(rows, "l2")[0], group_norms(rows, "max")[0]
    assert torch.allclose(l2[:2], torch.tensor([[5e30], [5e-30]]))
    assert l2.isnan().flatten().tolist() == [False, False, True, True, False]
    assert torch.equal(largest[:3], torch.tensor([[4e30], [4e-30], [3e38]]))
    assert largest.isnan().flatten().tolist() == [False, False, False, True, False]


def test_an_l2_norm_beyond_the_range_is_seen_by_all() -> None:
    xs = heavy_tailed(256, 2)
    xs[1][64:128] = 1e38
    mean = mean_of(lambda: QSGD(group=64), xs)
    assert mean.isnan().nonzero().flatten().tolist() == list(range(64, 128))
    assert mean_of(lambda: QSGD(group=64, norm="max"), xs).isfinite().all()


@pytest.mark.parametrize(("bits", "group"), [(4, 512), (8, 512), (4, 64)])
def test_wire_bits(bits: int, group: int) -> None:
    """32 bits of norm a group, along a ring twice (n − 1)/n of the bucket from every rank."""
    workers, numel = 4, 4 * 8192
    cluster = Cluster(lambda: QSGD(bits=bits, group=group), workers)
    cluster.step(heavy_tailed(numel, workers))
    assert 8 * cluster.bytes_sent() == 2 * (workers - 1) * numel * (bits + 32 / group)


@pytest.mark.parametrize(
    ("options", "workers", "topology"),
    [({"bits": 4}, 2, "broadcast"), ({"bits": 4}, 2, "ring"), ({"bits": 2, "norm": "max"}, 4, "ring")],
)
def test_error_feedback_is_refused_where_it_diverges(
    options: dict[str, int], workers: int, topology: str
) -> None:
    """Residuals outgrow the gradients many times in 40 steps."""
    codec = QSGD(**options)  # type: ignore[arg-type]
    reason = refusal(codec, 1 if topology == "broadcast" else workers)
    assert reason is not None and f"codec.bits={codec.bits}" in reason
    energies = residuals(lambda: QSGD(**options), heavy_tailed(2048, workers), topology, 40)  # type: ignore[arg-type]
    assert energies[-1] > 100 and energies[-1] > 5 * energies[9]


@pytest.mark.parametrize(
    ("options", "workers"), [({"bits": 5}, 4), ({"bits": 8}, 3), ({"bits": 4, "norm": "max"}, 8)]
)
def test_error_feedback_is_accepted_where_residuals_stay_small(options: dict[str, int], workers: int) -> None:
    assert refusal(QSGD(**options), workers) is None  # type: ignore[arg-type]
    energies = residuals(lambda: QSGD(**options), heavy_tailed(1024, workers), "ring", 30)  # type: ignore[arg-type]
    assert energies[-1] < 10 and energies[-1] < 1.5 * energies[14]


@pytest.mark.parametrize(
    ("field", "value"),
    [("bits", 1), ("bits", 17), ("group", 4), ("group", 100), ("group", 1 << 17), ("norm", "l1")],
)
def test_settings_outside_their_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"codec\.{field}={value}: choose") as refusal:
        QSGD(**{field: value})  # type: ignore[arg-type]
    assert "\n" not in str(refusal.value)
