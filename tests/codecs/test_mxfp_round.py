"""Whole rounds: against the reference bit for bit, identical on all ranks, at the edges of float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mxfp_reference import Ring
from mxfp_rounds import Cluster, as_bytes, gradients, make_hops, mean_of, vnmse
from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.codecs.mxfp import MXFP
from gradwire.codecs.mxfp.formats import FORMATS

NAMES = ["mxfp8", "mxfp6", "mxfp4"]
RULES = ["bf16_mu", "e8m0_floor", "e8m0_even", "e8m0_ceil"]
ACCURATE = {"mxfp8": 0.02, "mxfp6": 0.06, "mxfp4": 0.6}
"""vNMSE below which gradients of blocks alike are intact after up to four hops."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES)
def test_a_ring_is_the_references_bit_for_bit(name: str, rule: str) -> None:
    """Scales, casts, sums, means and saturated casts, at several μ."""
    workers, numel = 3, 1003
    xs = gradients(numel, workers, spread=2.0)
    for x in xs:
        x[64:96] = 0
        x[96:128] = xs[0][96:128]  # alike: their sum is as large as can be
    for mu in (0.7, 1.0, 2.97, 6.0):
        cluster = Cluster(workers, mu=mu, name=name, scale_rule=rule)
        (mean,), _ = cluster.step(xs)
        reference = Ring([x.numpy() for x in xs], mu, rule, name)
        np.testing.assert_array_equal(mean.numpy(), reference.mean)
        counted = sum(codec.state_dict()["cast_counts"] for codec in cluster.codecs)
        assert counted.tolist() == [reference.saturated, (2 * workers - 1) * numel]
        assert reference.saturated or mu > 1


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("workers", [2, 3, 4, 5])
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_gets_the_same_mean_at_any_size(name: str, workers: int, topology: str) -> None:
    sizes = (1, 31, 32, 33, 64, 1000, 5000)
    buckets = [gradients(numel, workers, spread=0.3) for numel in sizes]
    copies = [[x.clone() for x in bucket] for bucket in buckets]
    means, _ = Cluster(workers, topology, name=name).step(*buckets)
    for mean, numel, bucket, copy in zip(means, sizes, buckets, copies, strict=True):
        assert mean.shape == (numel,)
        assert all(torch.equal(x, unchanged) for x, unchanged in zip(bucket, copy, strict=True))
        if numel >= 1000:
            assert vnmse(mean, bucket) < ACCURATE[name]


@pytest.mark.parametrize("name", NAMES)
def test_sums_that_the_format_holds_are_exact(name: str) -> None:
    """Every rank's maximum is the format's over n, and all partial sums are values of the format."""
    maximum = FORMATS[name].maximum
    values = torch.tensor([maximum, -maximum, maximum / 2, 0.0, -0.0, 4.0, -2.0, 1.0]).repeat(8)
    mean = mean_of([values, values], name=name)
    assert torch.equal(mean, values)
    assert torch.equal(mean_of([values, -values], name=name), torch.zeros(64))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("exponent", [-126, -60, 1, 125])
def test_scaling_by_a_power_of_two_scales_the_result_exactly(name: str, rule: str, exponent: int) -> None:
    """Block maxima range from the smallest normal one to the largest; means may be subnormal and are rounded
    once."""
    generator = torch.Generator().manual_seed(0)
    xs = [(torch.randn(2016, generator=generator) * 2**10).round() / 2**10 for _ in range(3)]
    assert all(x.view(-1, 32).abs().amax(dim=1).min() >= 1 and x.abs().max() < 8 for x in xs)
    factor = torch.tensor(2.0, dtype=torch.float64).pow(exponent).float()
    plain, scaled = (
        mean_of(xs, name=name, scale_rule=rule),
        mean_of([x * factor for x in xs], name=name, scale_rule=rule),
    )
    assert torch.equal(scaled, plain * factor)
    assert scaled.isfinite().all() and scaled.count_nonzero() > 1000


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("magnitude", [1e-38, 1e38])
def test_constants_survive_the_ends_of_the_range(name: str, rule: str, magnitude: float) -> None:
    """The constants lie below the smallest normal number and near the largest."""
    for workers in (2, 5):
        mean = mean_of([torch.full((100,), magnitude)] * workers, name=name, scale_rule=rule)
        error = (mean / magnitude - 1).abs().max()
        assert error < {"mxfp8": 0.14, "mxfp6": 0.27, "mxfp4": 0.34}[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_number_is_kept_or_rounded_to_infinity(name: str) -> None:
    """A power of two for a scale may round 2¹²⁸ − 2¹⁰⁴ up to 2¹²⁸; the paper's scale rounds it down."""
    largest = torch.finfo(torch.float32).max
    for rule in RULES:
        for workers in (2, 5):
            mean = mean_of([torch.full((100,), -largest)] * workers, name=name, scale_rule=rule)
            assert (mean <= -0.66 * largest).all()
            assert mean.isfinite().all() or rule != "bf16_mu"


@pytest.mark.parametrize("name", NAMES)
def test_the_smallest_numbers_vanish_but_harm_nothing(name: str) -> None:
    """Far below 2⁻¹³³ a maximum is rounded up by more than a format spans: the block may become zero."""
    for magnitude in (1e-45, 1e-42):
        mean = mean_of([torch.full((64,), magnitude)] * 2, name=name)
        assert mean.isfinite().all() and (mean >= 0).all() and (mean <= 2 * magnitude + 1e-41).all()


def test_zero_in_is_zero_out() -> None:
    xs = gradients(320, 3)
    for x in xs:
        x[64:96], x[96:128] = 0.0, -0.0
    for rule in RULES:
        mean = mean_of(xs, scale_rule=rule)
        assert not mean[64:128].view(torch.int32).any() and mean[:64].count_nonzero() == 64
        assert not mean_of([torch.zeros(50)] * 2, scale_rule=rule).any()


@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_makes_exactly_its_block_nan(
    value: float, rule: str, topology: str
) -> None:
    workers, clean = 3, gradients(1000, 3)
    xs = [x.clone() for x in clean]
    xs[0][40] = xs[2][999] = value  # the second lies in the partial last block
    cluster = Cluster(workers, topology, name="mxfp6", scale_rule=rule)
    (mean,), _ = cluster.step(xs)
    expected = torch.zeros(1000, dtype=torch.bool)
    expected[32:64] = expected[992:] = True
    assert torch.equal(mean.isnan(), expected)
    undamaged = Cluster(workers, topology, name="mxfp6", scale_rule=rule).step(clean)[0][0]
    assert torch.equal(mean[~expected], undamaged[~expected])
    assert all(codec.state_dict()["cast_counts"][0] == 0 for codec in cluster.codecs)


def test_infinities_that_cancel_are_still_nan() -> None:
    xs = gradients(96, 2)
    xs[0][5], xs[1][5] = torch.inf, -torch.inf
    assert mean_of(xs).isnan().nonzero().flatten().tolist() == list(range(32))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_scaled_in_float32(dtype: torch.dtype) -> None:
    xs = [x.to(dtype) for x in gradients(1000, 3)]
    mean = mean_of(xs)
    assert mean.dtype == dtype
    assert torch.equal(mean, mean_of([x.float() for x in xs]).to(dtype))


def all_operations(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The messages of a fused operation, of the two it is made of, of a seal, and what decoding it gives."""
    own, other = gradients(1500, 2)
    chunks = range(1, 4)
    sender = make_hops(name, other * 3, 4)
    message = torch.empty(sender.message_bytes(chunks, 1), dtype=torch.uint8)
    sender.encode(chunks, message, 1)
    fused, apart, sealed = (torch.empty_like(message) for _ in range(3))
    first, second, third = (make_hops(name, own, 4) for _ in range(3))
    first.accumulate_encode(message, chunks, fused, 1, 2)
    second.accumulate(message, chunks, 1)
    second.encode(chunks, apart, 2)
    third.seal(message, chunks, sealed, 1, 2)
    sender.decode(sealed, chunks, 2)
    sender.encode(chunks, message, 2)
    return fused, apart, sealed, message


@pytest.mark.parametrize("name", NAMES)
def test_operations_agree_with_each_other(name: str) -> None:
    fused, apart, sealed, decoded = all_operations(name)
    assert torch.equal(fused, apart) and torch.equal(fused, sealed) and torch.equal(fused, decoded)


@pytest.mark.parametrize("name", NAMES)
def test_a_message_of_several_chunks_is_their_messages(name: str) -> None:
    hops = make_hops(name, gradients(2000, 1)[0], 4)
    together = torch.empty(hops.message_bytes(range(1, 4), 1), dtype=torch.uint8)
    hops.encode(range(1, 4), together, 1)
    single = [torch.empty(hops.message_bytes(range(c, c + 1), 1), dtype=torch.uint8) for c in range(1, 4)]
    for c, message in enumerate(single, start=1):
        hops.encode(range(c, c + 1), message, 1)
    assert torch.equal(together, torch.cat(single))


def test_the_rules_are_told_apart() -> None:
    xs = gradients(2000, 3)
    means = [mean_of(xs, name="mxfp4", scale_rule=rule) for rule in RULES]
    for i, mean in enumerate(means):
        assert all(not torch.equal(as_bytes(mean), as_bytes(other)) for other in means[:i])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "mxfp5"),
        ("scale_rule", "fp32"),
        ("epsilon", -0.1),
        ("epsilon", 2),
        ("gamma", 0.0),
        ("gamma", 1.01),
        ("mu_minimum", 0),
        ("mu_minimum", float("nan")),
    ],
)
def test_bad_settings_are_refused_in_one_line(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^codec\.{field}={value}: choose .*[a-z0-9)?]$") as error:
        MXFP(**{field: value})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_what_is_not_supported_says_why() -> None:
    codec = MXFP(name="mxfp6")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert codec.supports("ring", 64, Layout(("a",), ((4,),), (0,), 4, dtype=dtype)) is None
    reason = str(codec.supports("ring", 2, Layout(("a",), ((4,),), (0,), 4, dtype=torch.float64)))
    assert "mxfp6" in reason and "float64" in reason and "\n" not in reason
