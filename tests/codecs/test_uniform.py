"""Uniform hop-wise quantization: against a scalar reference, its bytes, its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from dynamiq_cluster import Cluster
from dynamiq_rounds import heavy_tailed, simulate_ring, vnmse
from dynamiq_switches_reference import SwitchedReference, ring_mean
from torch import Tensor

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.dynamiq import DynamiQ, UniformQuantization
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec

TOPOLOGIES = ["ring", "butterfly", "broadcast"]


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, {}),
        (2, {"widths": [3]}),
        (3, {}),
        (3, {"widths": [1], "scale_rounding": "stochastic"}),
        (2, {"widths": [8], "group": 16}),
        (3, {"widths": [2], "scales": "hierarchical", "scale_rounding": "stochastic"}),
        (2, {"values": "nonuniform", "rounding": "correlated"}),
    ],
    ids=str,
)
def test_a_ring_is_the_reference_bit_for_bit(workers: int, options: dict[str, Any]) -> None:
    """Hop by hop on scalars: encode, decode, add, in float32."""
    codec, numel = UniformQuantization(**options), 700
    xs = heavy_tailed(numel, workers, seed=4, spread=1.0)
    key = stream_key(seed=7, step=2, uid=Layout.flat(numel).uid)
    switches = (codec.rounding, codec.scale_rounding, codec.values, codec.group, codec.scales)
    references = [SwitchedReference(key, rank, workers, *switches) for rank in range(workers)]
    expected = ring_mean(references, [x.numpy() for x in xs], codec.widths[0])
    for result in simulate_ring(codec, xs, seed=7, step=2):
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_ranks_agree_and_send_four_and_a_half_bits(topology: str, size: int) -> None:
    """128 bytes of codes and 16 of scales a super-group, no metadata; the bits are the same on all ranks."""
    numel = 256 * 60
    xs = heavy_tailed(numel, size)
    cluster = Cluster([UniformQuantization() for _ in range(size)], topology)
    mean = cluster.step(xs)
    assert vnmse(mean, xs) < 0.1
    assert cluster.bytes_sent("metadata") == 0
    message = 144 * 60
    sent = cluster.bytes_sent("reduce_scatter") + cluster.bytes_sent("all_gather")
    if topology == "broadcast":
        assert sent == size * (size - 1) * message
    elif topology == "ring" or size in (2, 4):
        assert sent == 2 * (size - 1) * message


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 8, 16])
def test_any_width_takes_its_bits_and_half_a_bit_of_scales(width: int) -> None:
    numel, xs = 256 * 20, heavy_tailed(256 * 20, 2)
    cluster = Cluster([UniformQuantization(widths=[width]) for _ in range(2)])
    cluster.step(xs)
    assert 8 * cluster.bytes_sent("reduce_scatter") == (width + 0.5) * numel
    assert UniformQuantization(widths=[width], bits=width + 0.5).widths == [width]


def test_no_metadata_is_reduced() -> None:
    x = torch.ones(300)
    assert UniformQuantization().statistics(x, Round(0, Layout.flat(300), 0, 2, 0)) == []
    assert UniformQuantization().about.metadata == "none"


def test_the_mean_over_rounds_is_the_mean() -> None:
    """Four workers, every round rounded anew; the deviation falls with the number of rounds."""
    xs, rounds = heavy_tailed(2000, 4, spread=0.5), 60
    codec = UniformQuantization()
    assert codec.traits.unbiased and not UniformQuantization(rounding="correlated").traits.unbiased
    results = torch.stack([simulate_ring(codec, xs, step=step)[0] for step in range(rounds)]).double()
    deviation = results.mean(dim=0) - torch.stack(xs).double().mean(dim=0)
    z = deviation / (results.std(dim=0) / rounds**0.5).clamp(min=1e-12)
    assert z.square().mean() < 1.3 and z.abs().max() < 7


def test_levels_are_equidistant() -> None:
    """One worker's levels are ±7 steps of the group's scale, which is the smallest bf16 not below its
    maximum."""
    x = torch.randn(256, generator=torch.Generator().manual_seed(1))
    groups, result = x.view(8, 32), simulate_ring(UniformQuantization(), [x])[0].view(8, 32)
    for group, decoded in zip(groups, result, strict=True):
        maximum = group.abs().max()
        scale = maximum.bfloat16().float()
        if scale < maximum:
            scale = torch.nextafter(scale.bfloat16(), torch.tensor(torch.inf).bfloat16()).float()
        levels = decoded.double() / scale.double() * 7
        assert (levels - levels.round()).abs().max() < 1e-5
        assert (levels.round().abs() <= 7).all() and ((decoded - group).abs() <= scale / 7 * 1.0001).all()


def test_a_non_finite_value_makes_exactly_its_group_nan_on_all_ranks() -> None:
    for topology, value in zip(TOPOLOGIES, (torch.nan, torch.inf, -torch.inf), strict=True):
        xs = heavy_tailed(1000, 3)
        xs[1][70] = value
        mean = Cluster([UniformQuantization() for _ in range(3)], topology).step(xs)
        assert mean.isnan().nonzero().flatten().tolist() == list(range(64, 96))
        assert mean.isfinite().sum() == 1000 - 32


def test_a_sum_that_overflows_is_nan_and_zeros_are_zeros() -> None:
    xs = heavy_tailed(600, 4)
    for x in xs:
        x[32:64], x[64:96], x[96:128] = 3e38, 0.0, -0.0
        x[128:160] = 1e-41
    for result in simulate_ring(UniformQuantization(), xs):
        assert result.isnan().nonzero().flatten().tolist() == list(range(32, 64))
        assert not result[64:160].any()


@pytest.mark.parametrize("magnitude", [1e-29, 1e38])
def test_the_ends_of_the_range_survive(magnitude: float) -> None:
    x = torch.randn(512, generator=torch.Generator().manual_seed(2)).clamp(-3, 3) * magnitude
    result = simulate_ring(UniformQuantization(widths=[8]), [x])[0]
    assert ((result - x).abs() <= 3 * magnitude / 127 * 1.01).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("numel", [1, 7, 255, 3000])
def test_half_precision_and_small_buckets(dtype: torch.dtype, numel: int) -> None:
    xs = [x.to(dtype) for x in heavy_tailed(numel, 3, spread=0.5)]
    copies = [x.clone() for x in xs]
    result = simulate_ring(UniformQuantization(), xs)[0]
    assert result.shape == (numel,) and result.dtype == dtype
    assert torch.equal(result, simulate_ring(UniformQuantization(), [x.float() for x in xs])[0].to(dtype))
    assert all(torch.equal(x, copy) for x, copy in zip(xs, copies, strict=True))


def test_randomness_depends_on_seed_and_step_only() -> None:
    def mean(seed: int, step: int) -> Tensor:
        return simulate_ring(UniformQuantization(), heavy_tailed(900, 2), seed=seed, step=step)[0]

    assert torch.equal(mean(1, 2), mean(1, 2))
    assert not torch.equal(mean(1, 2), mean(1, 3)) and not torch.equal(mean(1, 2), mean(2, 2))


def test_its_last_switch_makes_it_dynamiq() -> None:
    """With the switches of DynamiQ it gives DynamiQ's bits."""
    xs = heavy_tailed(5000, 3)
    options: dict[str, Any] = {
        "widths": [2, 4, 8],
        "bits": 5.0,
        "values": "nonuniform",
        "group": 16,
        "scales": "hierarchical",
        "scale_rounding": "stochastic",
        "mean": True,
        "rounding": "correlated",
    }
    expected = simulate_ring(DynamiQ(), xs)[0]
    assert torch.equal(simulate_ring(UniformQuantization(**options), xs)[0], expected)
    assert not torch.equal(simulate_ring(UniformQuantization(), xs)[0], expected)


def test_it_is_made_by_name() -> None:
    codec = make_codec("uniform", widths=[3])
    assert isinstance(codec, UniformQuantization)
    assert (codec.name, codec.widths, codec.bits, codec.traits.stateful) == ("uniform", [3], None, False)
    integers = Layout(("a",), ((4,),), (0,), 4, dtype=torch.int32)
    assert codec.supports("ring", 2, integers) == (
        "codec=uniform takes float32, bfloat16 and float16 gradients, got torch.int32"
    )


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"widths": [2, 4]}, "codec.bits=null: choose a number from 2.5625 to 4.5625 (2 to 4 bits"),
        (
            {"bits": 4},
            "codec.bits=4: choose 4.5 (4 bits of code and 0.5 of metadata per coordinate), or",
        ),
        ({"widths": [7]}, "codec.widths=[7]: choose one or more of 1, 2, 3, 4, 5, 6, 8, 16"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError) as error:
        UniformQuantization(**options)
    assert str(error.value).startswith(refusal) and "\n" not in str(error.value)
