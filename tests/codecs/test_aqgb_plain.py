"""AQGB's plain base: payloads are TFP's, refinements float32's bits, and random rounding can be refined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from aqgb_ranks import LAYOUT, SIZE, Ranks, decided, times
from codec_rounds import CPU, Cluster, gradients
from torch import Tensor

from gradwire.codecs.aqgb.codec import AQGB
from gradwire.codecs.aqgb.encoding import PLAIN, Encoding
from gradwire.codecs.aqgb.payload import Payload, mean_of, plane_of
from gradwire.codecs.aqgb.plan import AgreedTimes, make_plan
from gradwire.codecs.aqgb.rounding import RandomRounding
from gradwire.codecs.arithmetic.random import CoordinateBits, stream_key
from gradwire.codecs.registry import make_codec
from gradwire.codecs.tfp.coder import coder_of

RANDOM = CoordinateBits(stream_key(0, 5, 7), 1)


def truncation(x: Tensor, bits: int, random: CoordinateBits | None = None) -> Tensor:
    """TFP's values of `bits`, as float32 from 10 bits on."""
    coder = coder_of(bits, "plain", random)
    message = torch.empty(coder.num_bytes(x.numel()), dtype=torch.uint8)
    coder.encode(x, 0, message)
    return coder.decode(message, 0, x.numel()).clone()


def mean(xs: Sequence[Tensor]) -> Tensor:
    total = xs[0].clone()
    for x in xs[1:]:
        total += x
    return total / len(xs)


def special() -> Tensor:
    """Values that rounding must take care of, among usual ones."""
    (x,) = gradients(LAYOUT, 1)
    x[3], x[4], x[5], x[6], x[7] = 0.0, -0.0, 3.4028234e38, -3.39e38, 1e-42
    x[40], x[41], x[42] = torch.nan, torch.inf, -torch.inf
    return x


@pytest.mark.parametrize("bits", range(2, 32))
@pytest.mark.parametrize("rounding", ["truncate", "stochastic"])
@pytest.mark.parametrize("scale", ["block", "all", "none"])
def test_the_first_stage_is_tfps_broadcast(bits: int, rounding: str, scale: str) -> None:
    """Both codecs draw the same random numbers."""
    settings: dict[str, Any] = {"bits": bits, "rounding": rounding, "scale": scale}
    ours = Cluster(SIZE, "broadcast", "aqgb", base="plain", **settings)
    theirs = Cluster(SIZE, "broadcast", "tfp", **settings)
    xs = gradients(LAYOUT, SIZE)
    assert torch.equal(ours.one(xs, LAYOUT), theirs.one(xs, LAYOUT))
    sent = [dict(cluster.world.traffic[0].by_phase) for cluster in (ours, theirs)]
    assert sum(sent[0].values()) - sum(sent[1].values()) in range(64), "but for the decisions' numbers"


@pytest.mark.parametrize(
    ("first", "more", "refined"),
    [(10, 3, 13), (10, 22, 32), (16, 9, 25), (31, 1, 32), (4, 12, 12), (8, 24, 24)],
)
@pytest.mark.parametrize("step_bits", [1, 8, 32])
def test_a_refinement_is_the_longer_truncation(first: int, more: int, refined: int, step_bits: int) -> None:
    """Below 10 bits it begins anew, and has as many bits as were sent."""
    ranks, xs = Ranks(base="plain", step_bits=step_bits), gradients(LAYOUT, SIZE)
    coarse = ranks.synchronize(xs, decided(first, more))
    assert not torch.equal(coarse, mean([truncation(x, refined) for x in xs]))
    assert torch.equal(ranks.refine(coarse), mean([truncation(x, refined) for x in xs]))


@pytest.mark.parametrize("bits", range(10, 32))
def test_cutting_dithered_patterns_is_tfps_random_rounding(bits: int) -> None:
    x = special()
    expected = Payload.of(x, bits, PLAIN, RANDOM).message
    assert torch.equal(Payload.of(RandomRounding(RANDOM, bits).dithered(x), bits, PLAIN).message, expected)


def refined_from(x: Tensor, steps: Sequence[int], random: CoordinateBits = RANDOM) -> Tensor:
    """The values of a rounded payload that grows from the first of these numbers of bits to the last."""
    payload = Payload.of(x, steps[0], PLAIN, random)
    assert payload.rounding is not None
    cut = payload.rounding.dithered(x)
    for longer in steps[1:]:
        payload.refine(plane_of(cut, payload.bits, longer, PLAIN), longer)
    return mean_of([payload], CPU)


@pytest.mark.parametrize("steps", [(10, 13), (10, 13, 21, 30), (12, 31), (4, 14), (6, 10, 29)])
def test_a_refined_value_is_one_of_its_two_neighbours(steps: tuple[int, ...]) -> None:
    """They are the truncation at as many bits and the number above it. A coordinate has 16 random bits: with
    16 bits more than were rounded the lower one is left."""
    x = gradients(LAYOUT, 1)[0]
    low = truncation(x, steps[-1]).view(torch.int32)
    high = low + (1 << (32 - steps[-1]))
    found = refined_from(x, steps).view(torch.int32)
    assert ((found == low) | (found == high)).all()
    assert (found == low).any()
    assert (found == high).any() == (steps[-1] < max(steps[0], 10) + 16)


@pytest.mark.parametrize("steps", [(10, 32), (11, 12, 32), (5, 10, 32), (20, 28, 32)])
def test_a_full_refinement_is_exact(steps: tuple[int, ...]) -> None:
    """Values that the first stage clamps, above the largest of its bits, stay clamped."""
    x = special()
    largest = float(truncation(torch.tensor([3.4028234e38]), max(steps[0], 10)))
    expected = torch.where(x.isfinite(), x.clamp(-largest, largest), x)
    found = refined_from(x, steps)
    assert torch.equal(found.nan_to_num(9.0), expected.nan_to_num(9.0))
    assert torch.equal(found.isnan(), x.isnan()) and torch.equal(found.signbit(), x.signbit())


@pytest.mark.parametrize("steps", [(12,), (12, 15), (12, 13, 18)])
def test_rounding_is_unbiased_at_every_length(steps: tuple[int, ...]) -> None:
    """The mean of 2000 draws is within 5 standard deviations. Without a correction it would be a unit of the
    first stage's last bit off, which is 1/8 to 1/4 here."""
    x = torch.linspace(2.0, 3.99, 64)
    unit = 2.0 ** (1 - (steps[-1] - 9))
    draws = [
        refined_from(x, steps, CoordinateBits(stream_key(seed, 0, 0), 2)).double() for seed in range(2000)
    ]
    error = torch.stack(draws).mean(dim=0) - x.double()
    assert float(error.abs().max()) < 5 * 0.5 * unit / 2000**0.5


def test_the_papers_example() -> None:
    """3.6 in 12 bits is 3.5, or 3.75 with probability 0.4 (Figure 7)."""
    ups = 0
    for seed in range(100):
        random = CoordinateBits(stream_key(seed, 0, 0), 0)
        values = refined_from(torch.full((64,), 3.6), (12,), random)
        assert set(values.tolist()) <= {3.5, 3.75}
        ups += int((values == 3.75).sum())
    assert abs(ups / 6400 - 0.4) < 4 * (0.24 / 6400) ** 0.5


def test_long_blocks_are_rounded_as_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's integers are drawn some at a time."""
    x = gradients(LAYOUT, 1)[0]
    expected = refined_from(x, (10, 17))
    monkeypatch.setattr("gradwire.codecs.aqgb.rounding.AT_ONCE", 64)
    assert torch.equal(refined_from(x, (10, 17)), expected)


@pytest.mark.parametrize("step_bits", [1, 5, 32])
def test_ranks_refine_rounded_payloads_alike(step_bits: int) -> None:
    """However many bits are sent at a time. Every rank knows the others' random numbers."""
    ranks = Ranks(base="plain", rounding="stochastic", step_bits=step_bits)
    xs = gradients(LAYOUT, SIZE)
    coarse = ranks.synchronize(xs, decided(12, 9))
    refined = ranks.refine(coarse)
    expected = [refined_from(x, (12, 21), CoordinateBits(ranks.key, rank)) for rank, x in enumerate(xs)]
    assert torch.equal(refined, mean(expected))


@pytest.mark.parametrize("rounding", ["truncate", "stochastic"])
def test_whoever_is_late_sends_less_and_a_replay_the_same(rounding: str) -> None:
    """The first piece has ten bits at least, as the first stage had four; the last one what is left."""
    options = {"base": "plain", "rounding": rounding, "step_bits": 5}
    late, xs = Ranks(**options), gradients(LAYOUT, SIZE)
    coarse = late.synchronize(xs, decided(4, 17))
    refined = late.refine(coarse, [times(0.0), times(0.9, 1.1), times(2.0)])
    assert [codec._sent[5][0] for codec in late.codecs] == [[17, 10, 0]] * SIZE
    again = Ranks(**options)
    followed = again.synchronize(xs, decided(4, 17, sent=[17, 10, 0]))
    assert torch.equal(again.refine(followed, [times(9.0)] * SIZE), refined)
    assert not torch.equal(refined, coarse)


def test_a_plan_sends_no_bits_that_refine_nothing() -> None:
    """A block of 4 bits gets ten or more, or none."""
    found = set()
    for until in range(1, 400):
        agreed = AgreedTimes((10**6,) * 2, (1.0, 2.0), (2.0 + until / 50,) * 2, 1e6)
        plain, embedded = (make_plan(agreed, 0.125, 0.0, Encoding(base)) for base in ("plain", "embedded"))
        assert plain.first == embedded.first
        found |= {more for first, more in zip(plain.first, plain.more, strict=True) if first < 10}
    assert 0 in found and min(found - {0}) == 10 and max(found) == 28


@pytest.mark.parametrize(("fitting", "more"), [(8.9, 0), (9.1, 10), (12.5, 13), (40.0, 28)])
def test_the_second_stage_acts_once_more_than_nine_bits_fit(fitting: float, more: int) -> None:
    """That is, between the first stage's end and the block's use. After 4 bits they help from 11 on: 10 of
    float32 keep one bit of mantissa, as 4 of E2M1 do."""
    size, rate, arrival = 10**6, 1e6, 2.001
    forward = (arrival + fitting * size / 8 / rate, arrival)
    agreed = AgreedTimes((size,) * 2, (1.0, 1.001), forward, rate)
    made = make_plan(agreed, 0.125, 0.0, PLAIN)
    assert made.first == (4, 4) and made.end == pytest.approx(arrival, abs=2e-3)
    assert made.more == (more, 0)
    ranks, xs = Ranks(base="plain", rounding="stochastic"), gradients(LAYOUT, SIZE)
    exact, coarse = mean(xs), ranks.synchronize(xs, decided(4, more))
    refined = ranks.refine(coarse)
    assert torch.equal(refined, coarse) == (not more)
    errors = [float((found - exact).square().sum()) for found in (refined, coarse)]
    assert more < 11 or errors[0] < 0.1 * errors[1]


def test_fixed_bits_are_neither_planned_nor_refined() -> None:
    ranks, xs = Ranks(bits=6), gradients(LAYOUT, SIZE)
    found = ranks.synchronize(xs, decided(20, 8))
    assert torch.equal(found, mean_of([Payload.of(x, 6) for x in xs], CPU))
    assert torch.equal(ranks.refine(found), found)
    assert not AQGB(bits=6).refines and not AQGB(bits=6).traits.clock_driven
    assert AQGB().refines and AQGB().traits.clock_driven


@pytest.mark.parametrize(
    ("given", "unbiased"),
    [
        ({}, False),
        ({"base": "plain"}, False),
        ({"base": "plain", "rounding": "stochastic"}, True),
        ({"base": "plain", "rounding": "stochastic", "scale": "none"}, False),
    ],
)
def test_it_says_when_it_is_unbiased(given: dict[str, Any], unbiased: bool) -> None:
    assert make_codec("aqgb", **given).traits.unbiased is unbiased


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"base": "fp8"}, r"codec.base=fp8: choose one of embedded, plain"),
        ({"rounding": "stochastic"}, r"choose one of truncate \(what base=embedded .* codec.base=plain has"),
        ({"scale": "none"}, r"codec.scale=none: choose one of block \(base=embedded has a scale"),
        ({"base": "plain", "rounding": "up"}, r"codec.rounding=up: choose one of truncate, stochastic"),
        ({"base": "plain", "bits": 33}, r"codec.bits=33: choose a whole number from 2 to 32, or null"),
    ],
)
def test_refusals(given: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_codec("aqgb", **given)  # type: ignore[arg-type]
