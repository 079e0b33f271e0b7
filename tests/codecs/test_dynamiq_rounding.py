"""Dither, levels and scales: counts, strata, unbiasedness."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from dynamiq_rounds import empty_message, make_hops, simulate_ring

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.dynamiq import DynamiQ
from gradwire.codecs.dynamiq.definition import Dither
from gradwire.codecs.dynamiq.format import (
    group_quotients,
    group_steps,
    inverse_maxima,
    scale_value,
    sections,
    stochastic_group_scales,
    super_group_scale,
)
from gradwire.codecs.dynamiq.values import count_levels, geometric_values, sign_values, uniform_values
from gradwire.codecs.options.dynamiq import WIDTHS, Format, Rounding

CPU = torch.device("cpu")
KEY = stream_key(1, 2, 3)


def of_width(width: int, **options: str) -> DynamiQ:
    """A codec that gives all super-groups one width."""
    return DynamiQ(widths=[width], bits=None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("width", "epsilon"), [(2, 0.25), (4, 0.03), (4, 0.25), (4, 0.5), (8, 0.03), (8, 0.06), (8, 0.5)]
)
def test_levels_are_the_full_count(width: int, epsilon: float) -> None:
    table = geometric_values(width, epsilon, CPU)
    generator = torch.Generator().manual_seed(width)
    exponents = torch.rand(20000, generator=generator, dtype=torch.float64) * table.largest
    t = (1 + table.step) ** exponents
    w = 1 + torch.rand(20000, generator=generator) * table.step
    # Thresholds themselves, and their neighbours, at both ends of w and in between.
    near = (table.thresholds[:, None] * torch.cat((torch.tensor([1.0, 1 + table.step]), w[:40]))).flatten()
    near = torch.cat((near, near.nextafter(torch.tensor(torch.inf)), near.nextafter(torch.tensor(0.0))))
    t = torch.cat((t.float(), near)).clamp(1, 1 + table.span)
    w = torch.cat(
        (w, torch.cat((torch.tensor([1.0, 1 + table.step]), w[:40])).repeat(3 * (table.largest + 1)))
    )
    w = w.clamp(max=1 + table.step)
    full = (t[:, None] > table.thresholds[:-1] * w[:, None]).sum(dim=1)
    assert torch.equal(count_levels(t, w, table).long(), full)
    assert full.min() == 0 and full.max() == table.largest


@pytest.mark.parametrize("x", [0.0, -0.0, 0.3, -0.3, 0.999, -1.0, 1.0, 2.0**-20, -(2.0**-20)])
def test_one_bit_is_up_as_often_as_it_should(x: float) -> None:
    """The probability over all dithers is P(+max) = (1 + x/max)/2."""
    count = 1 << 12
    values = torch.full((count, 256), x)
    values[:, 1::16] = 1.0  # the groups' maxima
    dither = ((torch.arange(count) + 0.5) / count * 2 - 1)[:, None].expand(-1, 256)
    codes = sign_values(CPU).codes(values.abs(), dither * torch.ones(()).copysign(values), values)
    assert abs(int((codes[:, 0] == 0).sum()) - count * (1 + x) / 2) <= 0.5
    assert not codes[:, 1::16].any()


def test_sixteen_bits_are_the_full_count() -> None:
    """r = #{k < 32767 : y > k + w}, over the whole range of levels, in exact arithmetic."""
    generator = torch.Generator().manual_seed(16)
    y = torch.rand(40, 256, generator=generator) * torch.tensor([2.0**e for e in range(-24, 16)])[:, None]
    w = torch.rand(40, 256, generator=generator)
    y[0, :5], w[0, :5] = torch.tensor([0.0, 1.0, 32767.0, 32767.004, 32766.5]), 0.5
    values = uniform_values(CPU)
    codes = values.codes(y.clone(), w, torch.ones_like(y)).flatten().tolist()
    for code, scaled, threshold in zip(codes, y.flatten().tolist(), w.flatten().tolist(), strict=True):
        whole, exact = int(scaled), Fraction(scaled)
        assert code == min(whole + (exact - whole > Fraction(threshold)), 32767)
    negative = values.codes(y.clone(), w, -torch.ones_like(y)).flatten()
    assert [code & 0x7FFF for code in negative.tolist()] == codes
    assert all((other > 0x7FFF) == (code > 0) for other, code in zip(negative.tolist(), codes, strict=True))


@pytest.mark.parametrize("workers", range(1, 10))
def test_correlated_dithers_hit_every_stratum_once(workers: int) -> None:
    super_groups = torch.arange(50, 90)
    strata, private = [], []
    for rank in range(workers):
        dither = Dither(KEY, rank, workers, "correlated")
        values = dither.integers(dither.keys(super_groups))
        assert values.min() >= 0 and values.max() < workers << 16
        strata.append(values >> 16)
        private.append(values & 0xFFFF)
    expected = torch.arange(workers, dtype=torch.int32)[:, None, None].expand(-1, 40, 256)
    assert torch.equal(torch.stack(strata).sort(dim=0).values, expected)
    if workers > 1:
        assert (private[0] != private[1]).float().mean() > 0.99


@pytest.mark.parametrize("rounding", ["correlated", "independent"])
def test_each_dither_is_uniform(rounding: Rounding) -> None:
    dither = Dither(KEY, 2, 5, rounding)
    uniform = (dither.integers(dither.keys(torch.arange(800))).double() + 0.5) / dither.range
    count = uniform.numel()
    histogram = torch.histc(uniform, bins=40, min=0, max=1)
    # 40 bins, 39 degrees of freedom: 5 standard deviations above the mean of χ².
    assert ((histogram - count / 40).square() / (count / 40)).sum() < 39 + 5 * (2 * 39) ** 0.5
    neighbours = torch.corrcoef(torch.stack((uniform[:, :-1].flatten(), uniform[:, 1:].flatten())))[0, 1]
    assert abs(neighbours) < 5 / count**0.5


def test_independent_dithers_of_workers_are_uncorrelated() -> None:
    dithers = [Dither(KEY, rank, 3, "independent") for rank in range(3)]
    values = torch.stack([d.integers(d.keys(torch.arange(400))).double().flatten() for d in dithers])
    assert (torch.corrcoef(values) - torch.eye(3)).abs().max() < 5 / values.shape[1] ** 0.5


def repeated(workers: int, copies: int) -> list[torch.Tensor]:
    """Every worker has many copies of one mean-free super-group: one round samples a rounding many times."""
    generator = torch.Generator().manual_seed(3)
    blocks = torch.randn(workers, 256, generator=generator) * torch.rand(256, generator=generator) ** 3
    return [(block - block.mean()).repeat(copies) for block in blocks]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale_rounding", ["stochastic", "ceil"])
@pytest.mark.parametrize("workers", [1, 3])
def test_independent_rounding_is_unbiased(width: int, scale_rounding: str, workers: int) -> None:
    copies = 1500
    xs = repeated(workers, copies)
    codec = of_width(width, rounding="independent", scale_rounding=scale_rounding)
    assert codec.traits.unbiased
    errors = (
        simulate_ring(codec, xs)[0].view(copies, 256).double() - torch.stack(xs).mean(dim=0)[:256].double()
    )
    assert errors.std(dim=0).median() > 0
    # Outcomes rarer than one in `copies` may not have been seen: they move the mean, not the deviation.
    z = errors.mean(dim=0) / (errors.std(dim=0) / copies**0.5 + 2 * errors.abs().max() / copies)
    assert z.abs().max() < 6
    assert z.square().mean() < 1.5


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("workers", [2, 4, 7])
def test_correlated_rounding_has_less_error(width: int, workers: int) -> None:
    """Sums the workers' own gradients, each compressed once; scales add no noise."""
    xs = repeated(1, 60) * workers

    def error(rounding: str) -> float:
        codec = of_width(width, rounding=rounding, scale_rounding="ceil")
        total = torch.zeros_like(xs[0])
        for hops in make_hops(codec, xs, num_chunks=1):
            hops.seal(None, range(1), empty_message(hops, range(1)), 0, 1)
            total += hops.finish()
        return float((total - xs[0]).square().sum())

    # For equal gradients only the stratum that holds the rounding point is random: 1/n of the variance.
    assert error("correlated") < min(0.75, 2 / workers) * error("independent")


@pytest.mark.parametrize("width", [1, 2])
def test_rounding_up_is_towards_plus_infinity(width: int) -> None:
    """With one dither for x and −x, x is rounded up exactly where −x is not rounded to the mirrored value."""
    codec = of_width(width)
    x = torch.rand(256 * 40, generator=torch.Generator().manual_seed(0)) * 0.8
    x[::16] = 1.0
    signs = torch.ones(256).masked_fill_(torch.arange(256) % 16 >= 8, -1).repeat(40)
    # Alternating signs keep the mean away from the comparison: it is the same for both inputs up to its sign.
    positive, negative = simulate_ring(codec, [x * signs])[0], simulate_ring(codec, [-x * signs])[0]
    dither = Dither(stream_key(0, 0, 0), 0, 1, "correlated")
    assert dither.range == 1 << 16
    up, down = (positive >= x * signs), (negative <= -x * signs)
    interior = torch.ones_like(up).view(-1, 16)
    interior[:, 0] = False
    agreement = (up == down).view(-1, 16)[interior].float().mean()
    # Rounding magnitudes instead would mirror every coordinate: agreement 1.
    assert agreement < 0.7


def test_super_group_scales_are_rounded_up() -> None:
    generator = torch.Generator().manual_seed(4)
    exponents = torch.randint(-100, 127, (5000,), generator=generator)
    x = (1 + torch.rand(5000, generator=generator)).ldexp(exponents)
    x = x[x < 3.38e38]
    x = torch.cat((x, torch.tensor([2.0**-100, 1.0, 3.389e38, 3.3e38])))
    scale = scale_value(super_group_scale(x))
    assert (scale >= x).all() and (scale <= x * (1 + 2.0**-7)).all()
    assert torch.equal(scale[-3], torch.tensor(1.0))
    below = scale_value(super_group_scale(torch.tensor([0.0, 1e-45, 2.0**-101])))
    assert not below.any()
    assert scale_value(super_group_scale(torch.tensor([torch.inf, torch.nan, -torch.nan]))).isnan().all()
    assert scale_value(super_group_scale(torch.tensor([3.4028e38]))) == torch.finfo(torch.bfloat16).max


def test_divisions_round_once() -> None:
    generator = torch.Generator().manual_seed(6)
    maximum = 2 + 2 * torch.rand(4000, 16, generator=generator)
    scale = scale_value(super_group_scale(maximum.amax(dim=1)))[:, None]
    span = geometric_values(4, 0.25, CPU).span
    expected = np.float32(span) / maximum.numpy()
    np.testing.assert_array_equal(inverse_maxima(span, maximum).numpy(), expected)
    expected = maximum.numpy() * (np.float32(255) / scale.numpy())
    np.testing.assert_array_equal(group_quotients(maximum, scale).numpy(), expected)
    patterns, groups = super_group_scale(maximum[:, 0].contiguous()), (maximum * 60).floor()
    expected = (scale_value(patterns).numpy() / np.float32(255))[:, None] * groups.numpy()
    np.testing.assert_array_equal(group_steps(patterns, groups).numpy(), expected)


def test_group_scales_are_unbiased() -> None:
    noise = torch.arange(65536, dtype=torch.float32)
    for quotient in (0.0, 0.25, 17.7, 254.5, 255.0, 255.9):
        scales = stochastic_group_scales(torch.full_like(noise, quotient), noise)
        assert scales.double().mean() == pytest.approx(min(quotient, 255), abs=2**-16)
        assert scales.max() <= 255


def group_scales(codec: DynamiQ, x: torch.Tensor, seed: int) -> torch.Tensor:
    """r_G as one worker sends them: (super-groups, 16) float32, in the order of the message."""
    hops = make_hops(codec, [x], seed=seed)[0]
    message = empty_message(hops, range(1))
    hops.seal(None, range(1), message, 0, 1)
    (section,) = sections(message, {min(codec.widths): -(-x.numel() // 256)}, Format())
    return section.group_scales.float()


@pytest.mark.parametrize("width", WIDTHS)
def test_ceil_scales_are_never_too_small_and_stochastic_ones_are_right_on_average(width: int) -> None:
    """Both lie within 1 of 255·max|G|/scale; only stochastic ones depend on the seed."""
    x = torch.randn(256 * 100, generator=torch.Generator().manual_seed(8)).view(100, 256)
    x -= x.mean(dim=1, keepdim=True)
    x[3, 16:32] = 0
    maxima = x.view(100, 16, 16).abs().amax(dim=2)
    quotient = maxima * 255 / scale_value(super_group_scale(maxima.amax(dim=1)))[:, None]
    slack = 0.1  # the codec subtracts a mean that travelled as bf16
    drawn = [group_scales(of_width(width, scale_rounding="stochastic"), x.flatten(), seed) for seed in (1, 2)]
    above = [group_scales(of_width(width, scale_rounding="ceil"), x.flatten(), seed) for seed in (1, 2)]
    assert torch.equal(above[0], above[1])
    assert not torch.equal(drawn[0], drawn[1])
    assert (above[0] >= quotient - slack).all() and (above[0] < quotient + 1 + slack).all()
    assert all(((scale - quotient).abs() < 1 + slack).all() for scale in drawn)
    assert abs((drawn[0] - quotient).mean()) < 5 * 0.41 / 40 < 0.4 < (above[0] - quotient).mean()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scale_rounding", ["stochastic", "ceil"])
def test_groups_of_zeros_decode_to_zeros_beside_others(width: int, scale_rounding: str) -> None:
    x = torch.randn(256, generator=torch.Generator().manual_seed(1))
    x[:128] = -x[128:]  # mean 0: what is 0 stays 0
    x[16:48] = x[144:176] = 0
    x[160:176] = -0.0
    x[32:48], x[144:160] = 1e-30, -1e-30
    for result in simulate_ring(of_width(width, scale_rounding=scale_rounding), [x] * 2):
        small = torch.cat((result[16:48], result[144:176]))
        assert not small.any() and not small.signbit().any()
        assert result[:16].all() or width > 1
