"""TFP's truncation, rounding, scales and rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from slice_rounds import Cluster, as_bytes, heavy_tailed, mean_of, refusal, residuals, ring_mean, sent
from tfp_reference import encoded, magnitudes, neighbours
from torch import Tensor

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.exact import FP32
from gradwire.codecs.tfp import TFP
from gradwire.codecs.tfp.coder import TruncationCoder
from gradwire.codecs.tfp.definition import block_scales, restore, truncate, truncated_format

RANDOM = CoordinateBits((1, 2), 0)
ALL = range(2, 33)


def rounded(x: Tensor, bits: int, words: Tensor | None = None) -> Tensor:
    target = truncated_format(bits)
    return restore(truncate(x, target, words), target)


def spread(count: int) -> Tensor:
    """Both signs, from far below the smallest value of the narrow formats to beyond their largest."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.randn(count, generator=generator).sign()
    return signs * 2.0 ** (45 * torch.rand(count, generator=generator) - 27)


@pytest.mark.parametrize("bits", range(2, 17))
def test_truncation_gives_the_value_below(bits: int) -> None:
    x, values = spread(20000), magnitudes(bits)
    below = values[np.searchsorted(values, x.abs().double().numpy(), side="right") - 1]
    expected = np.copysign(below, x.numpy()).astype(np.float32)
    np.testing.assert_array_equal(rounded(x, bits).numpy(), expected)


@pytest.mark.parametrize("bits", range(10, 33))
def test_truncation_of_single_precision_clears_bits(bits: int) -> None:
    """Covers all finite bit patterns, subnormals too; 32 bits are the identity."""
    patterns = torch.randint(-(1 << 31), 1 << 31, (20000,), generator=torch.Generator().manual_seed(0))
    x = patterns.to(torch.int32).view(torch.float32)
    x = x[x.isfinite()]
    expected = (x.view(torch.int32) >> (32 - bits)) << (32 - bits)
    assert torch.equal(rounded(x, bits).view(torch.int32), expected)
    assert bits < 32 or torch.equal(as_bytes(rounded(x, 32, torch.full(x.shape, 0xFFFF_FFFF))), as_bytes(x))


def test_the_papers_example() -> None:
    """TFP(3.6, 12): 3.5 with probability 0.6, 3.75 with 0.4; 200000 times, 5 standard deviations."""
    x = torch.full((200_000,), 3.6)
    assert rounded(x[:1], 12).item() == 3.5
    results = sent(TruncationCoder(32, 12, truncated_format(12), False, RANDOM), x)
    assert {*results.unique().tolist()} == {3.5, 3.75}
    up = float((results == 3.75).double().mean())
    assert up == pytest.approx(0.4, abs=5 * (0.24 / 200_000) ** 0.5)


@pytest.mark.parametrize("bits", range(2, 17))
def test_up_has_the_probability_that_makes_it_unbiased(bits: int) -> None:
    """With 2¹⁴ random words evenly over their range, for values between all kinds of neighbours."""
    words = (torch.arange(1 << 14) << 18) + (1 << 17)
    for x in spread(40).tolist():
        low, up = neighbours(abs(x), bits)
        results = rounded(torch.full((1 << 14,), x), bits, words).abs().double()
        assert results.min() >= low and results.max() <= up
        if up > low:
            share = (abs(x) - low) / (up - low)
            assert float((results == up).double().mean()) == pytest.approx(share, abs=2**-14 + 2**-20)


@pytest.mark.parametrize("bits", ALL)
def test_rounding_up_saturates(bits: int) -> None:
    """Values above the largest finite one become that one, whatever the random bits."""
    largest = truncated_format(bits).maximum
    x = torch.tensor([largest, -largest, 1.2 * largest, -3.0e38, 3.4028234e38]).clamp(
        -3.4028234e38, 3.4028234e38
    )
    for words in (None, torch.zeros(5).long(), torch.full((5,), 0xFFFF_FFFF)):
        results = rounded(x, bits, words)
        assert results[0] == -results[1] == largest
        assert (results.abs() <= largest).all()
        assert bits > 9 or (results.abs() == largest).all()


@pytest.mark.parametrize("words", [None, 0, 0xFFFF_FFFF])
@pytest.mark.parametrize("bits", ALL)
def test_nan_and_infinities_are_kept(bits: int, words: int | None) -> None:
    """Up to 6 bits infinities become NaN. NaN keeps its sign above, whatever of its mantissa is cut."""
    patterns = torch.tensor([0x7F80_0001, 0x7FC0_0000, 0x7FFF_FFFF], dtype=torch.int32).view(torch.float32)
    x = torch.cat((patterns, -patterns, torch.tensor([torch.inf, -torch.inf])))
    results = rounded(x, bits, None if words is None else torch.full(x.shape, words))
    assert results[:6].isnan().all()
    if bits < 7:
        assert results[6:].isnan().all()
    else:
        assert results[6:].tolist() == [torch.inf, -torch.inf]
        assert results[:6].signbit().tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize("bits", range(2, 10))
def test_stochastic_scales_leave_nothing_above_the_largest(bits: int) -> None:
    """The least bf16 number that does, rounded up by less than one part in 127; truncation's lies below."""
    maximum = truncated_format(bits).maximum
    (x,) = heavy_tailed(32 * 500, 1)
    rows = x.view(-1, 32)
    largest = rows.abs().amax(dim=1, keepdim=True).double()
    up, down = (block_scales(rows, maximum, round_up).double() * maximum for round_up in (True, False))
    assert (up >= largest * (1 - 1e-7)).all() and (up < largest * (1 + 1 / 127)).all()
    assert (down <= largest * (1 + 1e-7)).all() and (down > largest * (1 - 1 / 127)).all()


def test_scales_at_the_ends_of_the_range() -> None:
    """The largest value times the scale never overflows; a block of zeros has scale 0."""
    largest = torch.finfo(torch.float32).max
    rows = torch.zeros(5, 32)
    rows[0, 0], rows[1, 3], rows[2, 1], rows[3, 2] = largest, 1e-45, torch.nan, -torch.inf
    for bits in range(2, 10):
        maximum = truncated_format(bits).maximum
        for round_up in (True, False):
            scales = block_scales(rows, maximum, round_up).float().flatten()
            assert 0.98 * largest < scales[0] * maximum <= largest
            assert scales.isnan().tolist() == [False, False, True, True, False]
            assert scales[4] == 0 and scales[1] <= 1e-40


@pytest.mark.parametrize("rounding", ["stochastic", "truncate"])
@pytest.mark.parametrize(
    ("bits", "scale", "unit"),
    [
        (2, "block", 256),
        (4, "block", 256),
        (5, "block", 256),
        (8, "none", 64),
        (9, "all", 256),
        (12, "block", 32),
    ],
)
def test_a_ring_is_the_references_bit_for_bit(bits: int, scale: str, unit: int, rounding: str) -> None:
    scaled, stochastic = bits <= {"block": 6, "all": 9, "none": 0}[scale], rounding == "stochastic"
    xs = heavy_tailed(700, 3)
    for x in xs:
        x[64:96] = 0
    mean = mean_of(lambda: TFP(bits=bits, scale=scale, rounding=rounding), xs)
    expected = ring_mean(
        [x.numpy() for x in xs],
        unit,
        lambda v, first, rank: encoded(v, first, rank, bits, stochastic, scaled),
    )
    np.testing.assert_array_equal(mean.numpy(), expected)


@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
def test_32_bits_are_the_identity(topology: str) -> None:
    """Sums are those of float32 where chunks are the same."""
    xs = heavy_tailed(32 * 12, 3)
    assert torch.equal(mean_of(lambda: TFP(bits=32), xs, topology), mean_of(FP32, xs, topology))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("bits", "scale"), [(32, "block"), (12, "block"), (8, "block"), (6, "none"), (2, "none")]
)
def test_without_scales_one_value_that_is_not_finite_harms_no_other(
    bits: int, scale: str, value: float
) -> None:
    clean = heavy_tailed(500, 3)
    xs = [x.clone() for x in clean]
    xs[1][77] = value
    mean = mean_of(lambda: TFP(bits=bits, scale=scale), xs)
    undamaged = mean_of(lambda: TFP(bits=bits, scale=scale), clean)
    assert mean[77].isnan() if bits < 7 else torch.equal(as_bytes(mean[77]), as_bytes(torch.tensor(value)))
    assert torch.equal(mean[:77], undamaged[:77]) and torch.equal(mean[78:], undamaged[78:])


def test_finite_values_stay_finite() -> None:
    """Unscaled ones of 1e38 become the largest; scaled ones stay what they are."""
    xs = [torch.full((64,), 1e38), torch.full((64,), -1e38)]
    for bits in (4, 6, 8):
        mean = mean_of(lambda bits=bits: TFP(bits=bits, scale="none"), xs, "broadcast")
        assert torch.equal(mean, torch.zeros(64))
    assert (mean_of(TFP, [xs[0]] * 2) / 1e38 - 1).abs().max() < 0.35


@pytest.mark.parametrize(
    ("bits", "scale", "wire"),
    [
        (2, "block", 2.5),
        (3, "block", 3.5),
        (4, "block", 4.5),
        (6, "block", 6.5),
        (4, "none", 4),
        (7, "block", 7),
    ]
    + [(8, "all", 8.5), (12, "block", 12), (31, "all", 31), (32, "block", 32)],
)
def test_wire_bits(bits: int, scale: str, wire: float) -> None:
    """A bf16 for every 32 coordinates where there are scales."""
    workers, numel = 4, 4 * 512
    cluster = Cluster(lambda: TFP(bits=bits, scale=scale), workers)
    cluster.step(heavy_tailed(numel, workers))
    assert 8 * cluster.bytes_sent() == 2 * (workers - 1) * numel * wire


def test_scales_pay_for_small_gradients() -> None:
    """At 1e-6, below the steps of fp16's first 8 bits, the error is 100 times that with scales."""
    xs = [1e-3 * x for x in heavy_tailed(4096, 2)]
    exact = torch.stack(xs).double().mean(dim=0)
    errors = [float((mean_of(lambda s=s: TFP(bits=8, scale=s), xs) - exact).norm()) for s in ("block", "all")]
    assert errors[0] > 10 * errors[1]


@pytest.mark.parametrize(
    ("bits", "rounding", "workers"),
    [(3, "stochastic", 4), (4, "stochastic", 4), (4, "truncate", 8), (10, "truncate", 4), (2, "truncate", 2)],
)
def test_error_feedback_is_accepted_where_residuals_settle(bits: int, rounding: str, workers: int) -> None:
    def make() -> TFP:
        return TFP(bits=bits, rounding=rounding)

    assert refusal(make(), workers) is None
    energies = residuals(make, heavy_tailed(512, workers), "ring", 40)
    assert energies[-1] < (3 if bits > 2 else 200) and energies[-1] < 2 * energies[19]


def test_error_feedback_is_refused_where_residuals_grow() -> None:
    two = TFP(bits=2)
    assert refusal(two, 1) is None and "codec.bits=2" in (refusal(two, 2) or "")
    assert residuals(lambda: TFP(bits=2), heavy_tailed(1024, 8), "ring", 20)[-1] > 1e4
    unscaled = TFP(scale="none")
    assert "codec.scale=block" in (refusal(unscaled, 1) or "")
    xs = [1e5 * x for x in heavy_tailed(1024, 2)]  # above 6
    energies = residuals(lambda: TFP(scale="none"), xs, "broadcast", 20)
    assert energies[19] > 3 * energies[9] > 9 * energies[2]


@pytest.mark.parametrize(
    ("options", "unbiased"),
    [({}, True), ({"rounding": "truncate"}, False), ({"scale": "none"}, False)]
    + [({"bits": 7, "scale": "none"}, True), ({"bits": 12}, True)],
)
def test_it_says_when_it_is_unbiased(options: dict[str, str], unbiased: bool) -> None:
    """Formats of up to 6 bits without scales saturate within the gradients' range."""
    assert TFP(**options).traits.unbiased == unbiased  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"), [("bits", 1), ("bits", 33), ("rounding", "nearest"), ("scale", "bf16")]
)
def test_settings_outside_their_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"codec\.{field}={value}: choose"):
        TFP(**{field: value})  # type: ignore[arg-type]
