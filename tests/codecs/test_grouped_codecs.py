"""Common behavior of QSGD, TernGrad, 1-bit SGD and TFP: slices of groups with scales, encoded anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from slice_rounds import Cluster, heavy_tailed, mean_of, remaining_error, sent

from gradwire.codecs.arithmetic.random import CoordinateBits
from gradwire.codecs.hop_codec import LossyHopCodec
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.onebit import OneBit, SignCoder
from gradwire.codecs.qsgd import QSGD, LevelCoder
from gradwire.codecs.slices import GroupCoder
from gradwire.codecs.terngrad import TernGrad
from gradwire.codecs.tfp import TFP
from gradwire.codecs.tfp.coder import TruncationCoder
from gradwire.codecs.tfp.definition import truncated_format

Make = Callable[[], LossyHopCodec]

CODECS: dict[str, Make] = {
    "qsgd4": lambda: QSGD(group=64),
    "qsgd5max": lambda: QSGD(bits=5, norm="max", group=128),
    "qsgd2_8": lambda: QSGD(bits=[2, 8], group=64),
    "terngrad": lambda: TernGrad(block=16),
    "onebit": lambda: OneBit(block=64),
    "tfp2": lambda: TFP(bits=2),
    "tfp4": TFP,
    "tfp6": lambda: TFP(bits=6, rounding="truncate"),
    "tfp8": lambda: TFP(bits=8, scale="all"),
    "tfp11": lambda: TFP(bits=11),
}
every_codec = pytest.mark.parametrize("make", CODECS.values(), ids=CODECS)

RANDOM = CoordinateBits((1, 2), 0)
CODERS: dict[str, GroupCoder] = {
    **{f"levels{bits}": LevelCoder(group, bits, "l2", RANDOM) for bits, group in ((2, 8), (3, 32), (16, 64))},
    "signs": SignCoder(128, 1),
    **{
        f"tfp{bits}": TruncationCoder(32, bits, truncated_format(bits), False, RANDOM)
        for bits in range(2, 33)
    },
    **{
        f"scaled{bits}": TruncationCoder(32, bits, truncated_format(bits), True, None)
        for bits in range(2, 10)
    },
}


@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
@every_codec
def test_every_rank_gets_the_same_mean_at_any_size(make: Make, workers: int, topology: str) -> None:
    for numel in (1, 7, 255, 3001):
        xs = heavy_tailed(numel, workers)
        mean = mean_of(make, xs, topology)
        assert mean.shape == (numel,)
        assert mean.isfinite().all()
        assert workers > 1 or torch.equal(mean, xs[0])


@pytest.mark.parametrize("coder", CODERS.values(), ids=CODERS)
def test_messages_are_as_long_as_their_parts_and_aligned(coder: GroupCoder) -> None:
    """Scales of all groups, begun ones too, and whole bytes for eight codes; 16 bytes a unit."""
    scales = coder.scales_per_group * coder.scale_dtype.itemsize
    for numel in (1, 8, 9, coder.group, coder.group + 1, 1000):
        expected = -(-numel // coder.group) * scales + -(-numel // 8) * coder.bits
        assert coder.num_bytes(numel) == expected
    assert coder.num_bytes(coder.unit) % 16 == 0
    assert coder.unit % coder.group == 0
    assert coder.num_bytes(3 * coder.unit + 5) == 3 * coder.num_bytes(coder.unit) + coder.num_bytes(5)


@pytest.mark.parametrize("name", ["levels3", "levels16", "signs", "tfp5", "tfp12", "scaled4"])
def test_slices_change_nothing(name: str) -> None:
    """A bucket arrives as its slices do."""
    coder = CODERS[name]
    (x,) = heavy_tailed(20_000, 1)
    cuts = [0, coder.unit, 5 * coder.unit, 12 * coder.unit, x.numel()]
    parts = [sent(coder, x[a:b], a) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert torch.equal(torch.cat(parts), sent(coder, x))


@every_codec
def test_zeros_stay_zeros(make: Make) -> None:
    xs = heavy_tailed(640, 3)
    for x in xs:
        x[128:192], x[192:256] = 0.0, -0.0
    for topology in ("ring", "broadcast"):
        mean = mean_of(make, xs, topology)
        assert not mean[128:256].any()
        assert mean[:128].any() and mean[256:].any()
        assert not mean_of(make, [torch.zeros(50)] * 2, topology).any()


@pytest.mark.parametrize("topology", ["ring", "butterfly", "broadcast"])
@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("name", "group"), [("qsgd4", 64), ("qsgd2_8", 64), ("terngrad", 16), ("onebit", 64), ("tfp4", 32)]
)
def test_what_is_not_finite_makes_exactly_its_group_nan(
    name: str, group: int, value: float, topology: str
) -> None:
    """The value spoils its group, whichever rank has it; all other groups arrive as if it were not there."""
    clean, numel = heavy_tailed(1500, 3), 1500
    xs = [x.clone() for x in clean]
    xs[0][3 * group + 5] = xs[2][numel - 1] = value
    mean = mean_of(CODECS[name], xs, topology)
    expected = torch.zeros(numel, dtype=torch.bool)
    expected[3 * group : 4 * group] = expected[(numel - 1) // group * group :] = True
    assert torch.equal(mean.isnan(), expected)
    assert torch.equal(mean[~expected], mean_of(CODECS[name], clean, topology)[~expected])


@every_codec
def test_a_power_of_two_scales_the_result(make: Make) -> None:
    """Magnitudes range from 1e-30 to 1e36, far enough from the ends of float32's range."""
    xs = [x.clamp(-1, 1) for x in heavy_tailed(700, 3)]
    plain = mean_of(make, xs)
    for power in (-90, -40, 40, 120):
        scaled = mean_of(make, [x * 2.0**power for x in xs])
        assert torch.equal(scaled, plain * 2.0**power)


@every_codec
def test_magnitudes_that_differ_by_all_orders(make: Make) -> None:
    """From 1e-30 to 1e37, where squares and sums overflow, means are finite, and right for the largest."""
    generator = torch.Generator().manual_seed(0)
    x = 10.0 ** (67 * torch.rand(512, generator=generator) - 30)
    x[100] = 1e37
    mean = mean_of(make, [x, x])
    assert mean.isfinite().all()
    assert mean[100] > (1e35 if isinstance(make(), OneBit) else 5e36)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_codec
def test_half_precision_is_encoded_from_float32(make: Make, dtype: torch.dtype) -> None:
    xs = [(1000 * x).to(dtype) for x in heavy_tailed(700, 3)]
    mean = mean_of(make, xs)
    assert mean.dtype == dtype
    assert torch.equal(mean, mean_of(make, [x.float() for x in xs]).to(dtype))


UNBIASED = ["qsgd4", "qsgd5max", "qsgd2_8", "terngrad", "tfp2", "tfp4", "tfp8", "tfp11"]


@pytest.mark.parametrize(("workers", "topology"), [(3, "ring"), (2, "broadcast")])
@pytest.mark.parametrize("name", UNBIASED)
def test_the_unbiased_ones_are_right_on_average(name: str, workers: int, topology: str) -> None:
    """Over 150 steps the error of the mean is that of a mean of independent errors."""
    make = CODECS[name]
    assert make().traits.unbiased
    assert remaining_error(make, heavy_tailed(2000, workers), topology, 150) < 1.3


@pytest.mark.parametrize("name", ["onebit", "tfp6"])
def test_the_others_are_not(name: str) -> None:
    """Biased codecs err the same way in every step."""
    make = CODECS[name]
    assert not make().traits.unbiased
    xs = heavy_tailed(2000, 3)
    results = torch.stack([mean_of(make, xs, step=step) for step in range(2)])
    assert torch.equal(results[0], results[1])
    assert float((results[0] - torch.stack(xs).mean(dim=0)).norm()) > 0.01 * float(results[0].norm())


@pytest.mark.parametrize("name", UNBIASED)
def test_randomness_depends_on_seed_step_and_rank_alone(name: str) -> None:
    xs = heavy_tailed(500, 3)
    first = mean_of(CODECS[name], xs, seed=3, step=4)
    assert torch.equal(first, mean_of(CODECS[name], xs, seed=3, step=4))
    assert not torch.equal(first, mean_of(CODECS[name], xs, seed=3, step=5))
    assert not torch.equal(first, mean_of(CODECS[name], xs, seed=4, step=4))
    same = (
        CoordinateBits((5, 6), 0).dithers(0, xs[0][:496]),
        CoordinateBits((5, 6), 1).dithers(0, xs[0][:496]),
    )
    assert (same[0] == same[1]).sum() <= 1


def test_dithers_are_uniform_and_cut_anywhere() -> None:
    """Each of the 16 bits is set half of the time, and the dithers of a slice are a slice of all dithers."""
    like = torch.empty(40000)
    dithers = CoordinateBits((7, 8), 3).dithers(0, like)
    bits = (dithers[:, None] >> torch.arange(17)) & 1
    assert (bits[:, :16].double().mean(dim=0) - 0.5).abs().max() < 0.5 * 4.5 / 40000**0.5
    assert not bits[:, 16].any() and (dithers >= 0).all()
    assert torch.equal(CoordinateBits((7, 8), 3).dithers(400, like[:80]), dithers[400:480])
    words = CoordinateBits((7, 8), 3).words(0, like)
    assert torch.equal(words, dithers.long() * 65536 + 32768)


@pytest.mark.parametrize("topology", ["ring", "broadcast"])
@every_codec
def test_bytes_sent_are_those_of_the_slices(make: Make, topology: str) -> None:
    """Along a ring two encodings of every chunk for each of n − 1 ranks; by broadcast n·(n − 1) of all."""
    workers, numel = 3, 5000
    cluster, xs = Cluster(make, workers, topology), heavy_tailed(numel, workers)
    cluster.step(xs)
    chunks = workers if topology == "ring" else 1
    hops = make().plan(xs[0], Round(0, Layout.flat(numel), 0, workers, 0), [], chunks)
    factor = 2 * (workers - 1) if topology == "ring" else workers * (workers - 1)
    assert cluster.bytes_sent() == factor * hops.message_bytes(range(chunks), 1)


@every_codec
def test_there_is_no_state(make: Make) -> None:
    codec = make()
    assert not codec.traits.stateful and codec.state_dict() == {}
    codec.load_state_dict({})
    with pytest.raises(ValueError, match="no state"):
        codec.load_state_dict({"x": torch.zeros(1)})
