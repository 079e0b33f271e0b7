"""DynamiQ's switches: their bytes on the wire, their error, and their effect on odd gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from dynamiq_cluster import Cluster
from dynamiq_reference import EPSILONS
from dynamiq_rounds import heavy_tailed, make_hops, simulate_ring, vnmse
from dynamiq_switches_reference import SwitchedReference
from torch import Tensor

from gradwire.codecs.arithmetic.random import stream_key
from gradwire.codecs.collectives import align
from gradwire.codecs.dynamiq import DynamiQ, definition
from gradwire.codecs.dynamiq.definition import Dither
from gradwire.codecs.dynamiq.format import chunk_size, rounded_scale, scale_value, used_bytes
from gradwire.codecs.dynamiq.values import values_of
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.options.dynamiq import (
    Format,
    Rounding,
    ScaleKind,
    ScaleRounding,
    ValueKind,
    budget_limits,
)

CPU = torch.device("cpu")
KEY = stream_key(seed=3, step=1, uid=9)
SUPER_GROUPS = [0, 5, (1 << 32) - 1, 17, 1 << 20, 6]

SWITCHES: list[dict[str, Any]] = [
    {"group": 32},
    {"scales": "bf16", "bits": 5.5},
    {"scales": "bf16", "group": 32, "scale_rounding": "ceil"},
    {"mean": False},
    {"values": "uniform"},
    {"values": "distinct", "widths": [2, 3, 4, 5, 6, 8], "errors": "measured"},
    {"values": "distinct", "group": 32, "scales": "bf16", "mean": False, "allocation": "exact"},
    {"widths": [4], "bits": None},
    {"widths": [3], "bits": None, "mean": False},
    {"widths": [1], "bits": None, "mean": False, "group": 32},
    {"widths": [5], "bits": None, "mean": False, "group": 32, "scales": "bf16", "values": "uniform"},
]


def hard_rows(seed: int) -> Tensor:
    """Six super-groups: heavy tails, zeros, vanishing groups, both ends of float32, one value that is not
    finite."""
    rows = torch.randn(6, 256, generator=torch.Generator().manual_seed(seed))
    rows[0] *= torch.exp(4 * rows[0].roll(1))
    rows[1, :16], rows[1, 16:32], rows[1, 32:64] = 0.0, -0.0, 1e-40
    rows[1, 64:80] *= 1e-12
    rows[2] *= 1e-30 / rows[2].abs().max()
    rows[3] *= 3e38 / rows[3].abs().max()
    rows[3, 7], rows[3, 40] = torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max
    rows[4, 200] = torch.inf if seed % 2 else torch.nan
    rows[5] = rows[5].abs().clamp(min=1).log2().round().exp2()
    return rows


@pytest.mark.parametrize(
    ("values", "group", "scales", "scale_rounding", "rounding", "workers"),
    [
        ("uniform", 32, "bf16", "ceil", "independent", 4),
        ("uniform", 16, "hierarchical", "stochastic", "correlated", 5),
        ("nonuniform", 32, "hierarchical", "stochastic", "correlated", 3),
        ("nonuniform", 32, "bf16", "stochastic", "correlated", 2),
        ("nonuniform", 16, "bf16", "ceil", "independent", 2),
        ("uniform", 32, "hierarchical", "ceil", "correlated", 7),
    ],
)
def test_every_operation_matches_the_reference(
    values: ValueKind,
    group: int,
    scales: ScaleKind,
    scale_rounding: ScaleRounding,
    rounding: Rounding,
    workers: int,
) -> None:
    """Messages and decoded values, bit for bit, of a widest and a narrow width at a time."""
    rank = workers - 1
    reference = SwitchedReference(KEY, rank, workers, rounding, scale_rounding, values, group, scales)
    for widths in ((8, 2), (5, 1), (4, 3)):
        counts, message_format = dict.fromkeys(widths, 3), Format(tuple(sorted(widths)), group, scales)
        tables = {w: values_of(w, values, EPSILONS.get(w, 0.0), CPU, group) for w in widths}
        coder = definition.Coder(
            tables, Dither(KEY, rank, workers, rounding, group), scale_rounding, message_format
        )
        rows, row_widths = hard_rows(sum(widths)), [width for width in widths for _ in range(3)]
        size = used_bytes(counts, message_format)
        message = torch.full((size + 16,), 0xAB, dtype=torch.uint8)
        definition.compress(rows, torch.tensor(SUPER_GROUPS), counts, coder, message)
        with np.errstate(all="ignore"):
            assert bytes(message[:size].tolist()) == reference.message(rows.numpy(), row_widths, SUPER_GROUPS)
            encoded = zip(rows.numpy(), row_widths, SUPER_GROUPS, strict=True)
            expected = np.stack([reference.decode(*reference.encode(*row), row[1]) for row in encoded])
        assert not message[size:].any()
        np.testing.assert_array_equal(definition.decompress(message, counts, coder).numpy(), expected)


WIDTH_SETS = [(w,) for w in (1, 2, 3, 4, 5, 6, 8, 16)] + [
    (2, 4, 8),
    (2, 3, 4, 5, 6, 8),
    (1, 2, 4, 8, 16),
    (3, 6),
]


@pytest.mark.parametrize("widths", WIDTH_SETS, ids=str)
def test_the_budget_holds_for_every_combination(widths: tuple[int, ...]) -> None:
    """Covers all combinations of group, scales, mean, bucket and workers: statistics and messages, all ranks'
    chunks together."""
    scales: tuple[ScaleKind, ...] = ("hierarchical", "bf16")
    for group, scale, mean in itertools.product((16, 32), scales, (True, False)):
        message_format = Format(widths, group, scale, mean)
        per_scale = {"hierarchical": 8 / group + 16 / 256, "bf16": 16 / group}[scale]
        statistics = (16 * mean + 16 * (len(widths) > 1)) / 256
        assert message_format.overhead_bits == per_scale + statistics
        low, high = budget_limits(message_format)
        assert (low, high) == (min(widths) + per_scale + statistics, max(widths) + per_scale + statistics)
        for numel, workers, share in itertools.product(
            (1, 7, 255, 257, 5000, 100_003), (1, 2, 3, 8), (0, 0.3, 1)
        ):
            bits, total = low + share * (high - low), -(-numel // 256)
            sizes = [chunk_size(numel, workers, chunk, bits, message_format) for chunk in range(workers)]
            spent = 8 * sum(size.capacity for size in sizes) + 256 * statistics * total
            smallest = sum(align(int(size.super_groups * 32 * (min(widths) + per_scale))) for size in sizes)
            assert sum(size.super_groups for size in sizes) == total
            assert spent <= bits * numel or any(size.over_budget for size in sizes)
            assert spent <= bits * 256 * workers * math.ceil(numel / 256 / workers) or (
                sum(size.capacity for size in sizes) == smallest
            )


def sent_bits(codec: DynamiQ, numel: int) -> float:
    """Bits a coordinate, statistics included, of one all-reduce of a single chunk."""
    hops = make_hops(codec, heavy_tailed(numel, 1))[0]
    layout = Layout.flat(numel)
    parts = codec.statistics(heavy_tailed(numel, 1)[0], Round(0, layout, 0, 1, 0))
    metadata = sum(part.numel() * part.itemsize for part, _ in parts)
    return 8 * (metadata + hops.message_bytes(range(1), 1)) / numel


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_what_is_sent_is_what_the_switches_say(options: dict[str, Any]) -> None:
    """Messages use all of the budget but for their alignment to 16 bytes, or what a single width takes."""
    codec, numel = DynamiQ(**options), 256 * 64
    if len(codec.widths) > 1:
        assert codec.bits is not None and codec.bits - 8 * 16 / numel < sent_bits(codec, numel) <= codec.bits
        return
    scales = 16 / codec.group if codec.scales == "bf16" else 8 / codec.group + 1 / 16
    assert sent_bits(codec, numel) == codec.widths[0] + scales + codec.mean / 16


def test_only_statistics_that_serve_are_sent() -> None:
    x, this_round = torch.ones(700), Round(0, Layout.flat(700), 0, 2, 0)

    def operations(**options: Any) -> list[str]:
        return [op for _, op in DynamiQ(**options).statistics(x, this_round)]

    assert operations() == ["sum", "norm"]
    assert operations(mean=False) == ["norm"]
    assert operations(widths=[4], bits=None) == ["sum"]
    assert operations(widths=[4], bits=None, mean=False) == []


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_ranks_agree_on_every_topology(options: dict[str, Any]) -> None:
    """Ranks agree bit for bit, and the mean is roughly right."""
    for size, topology in (
        (2, "broadcast"),
        (3, "butterfly"),
        (4, "ring"),
        (5, "butterfly"),
        (5, "broadcast"),
    ):
        cluster, xs = Cluster([DynamiQ(**options) for _ in range(size)], topology), heavy_tailed(3000, size)
        mean = cluster.step(xs)
        assert mean.shape == (3000,) and mean.isfinite().all()
        assert vnmse(mean, xs) < (20 if cluster.codecs[0].widths == [1] else 0.3)  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_what_is_not_finite_is_seen_by_all_and_zeros_stay(options: dict[str, Any]) -> None:
    """A value that is not finite spoils its super-group's statistics and what shares its scale, nothing
    else."""
    codec, xs = DynamiQ(**options), heavy_tailed(3000, 3)
    for x in xs:
        x[512:1024] = 0.0
        x[1024:1152] = -0.0
    xs[1][300], xs[2][2990] = torch.nan, -torch.inf
    told = bool(codec.statistics(xs[0], Round(0, Layout.flat(3000), 0, 3, 0)))
    unit = 256 if told or codec.scales == "hierarchical" else codec.group
    expected = torch.zeros(3000, dtype=torch.bool)
    for position in (300, 2990):
        expected[position // unit * unit : (position // unit + 1) * unit] = True
    for result in simulate_ring(codec, xs):
        assert torch.equal(result.isnan(), expected)
        assert result[~expected].isfinite().all()
        assert not result[512:1024].any()


@pytest.mark.parametrize("options", SWITCHES, ids=str)
@pytest.mark.parametrize("exponent", [-95, 118])
def test_scaling_by_a_power_of_two_scales_the_result_exactly(options: dict[str, Any], exponent: int) -> None:
    generator = torch.Generator().manual_seed(0)
    xs = [(torch.randn(1500, generator=generator) * 2**10).round() / 2**10 for _ in range(3)]
    factor = torch.tensor(2.0, dtype=torch.float64).pow(exponent).float()
    plain, scaled = (simulate_ring(DynamiQ(**options), ys)[0] for ys in (xs, [x * factor for x in xs]))
    assert torch.equal(scaled, plain * factor)
    assert scaled.isfinite().all() and scaled.any()


@pytest.mark.parametrize("options", SWITCHES, ids=str)
@pytest.mark.parametrize("numel", [1, 7, 255])
def test_buckets_smaller_than_a_super_group(options: dict[str, Any], numel: int) -> None:
    xs = heavy_tailed(numel, 3)
    results = simulate_ring(DynamiQ(**options), xs)
    assert all(result.shape == (numel,) and torch.equal(result, results[0]) for result in results)
    assert (results[0].abs() <= 4 * max(x.abs().max() for x in xs)).all()


@pytest.mark.parametrize("options", SWITCHES, ids=str)
def test_independent_rounding_is_unbiased(options: dict[str, Any]) -> None:
    """The mean is taken over many copies of one super-group, along a ring of 2."""
    copies, generator = 500, torch.Generator().manual_seed(3)
    blocks = torch.randn(2, 256, generator=generator) * torch.rand(256, generator=generator) ** 3
    blocks -= blocks.mean(dim=1, keepdim=True)
    blocks[:, 32:48] = 0  # half a group of 32
    xs = [block.repeat(copies) for block in blocks]
    codec = DynamiQ(**options, rounding="independent")
    assert codec.traits.unbiased
    errors = simulate_ring(codec, xs)[0].view(copies, 256).double() - blocks.mean(dim=0)
    z = errors.mean(dim=0) / (errors.std(dim=0) / copies**0.5 + 2 * errors.abs().max() / copies)
    assert errors.std(dim=0).median() > 0
    assert z.abs().max() < 6 and z.square().mean() < 1.5


def test_bf16_scales_are_right_on_average_or_above() -> None:
    """Over all 2¹⁶ noises the average is exact; rounded up, a scale is the smallest bf16 not below."""
    noise = torch.arange(1 << 16, dtype=torch.int32)
    for value in (1.0, 1.003, 3.999, 1e-30, 2.5e38):
        maxima = torch.full((1 << 16,), value)
        drawn = scale_value(rounded_scale(maxima, noise)).double()
        assert drawn.mean().item() == pytest.approx(maxima[0].item(), rel=1e-12)
        above = scale_value(rounded_scale(maxima[:1], 0xFFFF))
        assert above == drawn.max() >= maxima[0]
    extremes = torch.tensor([0.0, 2.0**-101, torch.inf, torch.nan, torch.finfo(torch.float32).max])
    for addend in (0xFFFF, torch.full((5,), 0xFFFF, dtype=torch.int32)):
        scales = scale_value(rounded_scale(extremes, addend))
        assert scales[:2].tolist() == [0, 0] and scales[2:4].isnan().all()
        assert scales[4] == torch.finfo(torch.bfloat16).max


def table_6(total_bits: float) -> dict[str, DynamiQ]:
    """The rows of DynamiQ's Table 6 at the same bits on the wire; `mean` comes with the last one."""
    row: dict[str, Any] = {
        "widths": [int(total_bits)],
        "bits": None,
        "values": "uniform",
        "group": 32,
        "scales": "bf16",
        "mean": False,
        "rounding": "independent",
    }
    rows = {"uniform": DynamiQ(**row)}
    row |= {"values": "nonuniform"}
    rows["nonuniform"] = DynamiQ(**row)
    row |= {"widths": [2, 4, 8], "bits": total_bits}
    rows["variable"] = DynamiQ(**row)
    row |= {"scales": "hierarchical", "group": 16}
    rows["hierarchical"] = DynamiQ(**row)
    row |= {"rounding": "correlated"}
    rows["correlated"] = DynamiQ(**row)
    return rows


@pytest.mark.parametrize("workers", [2, 4])
def test_each_technique_of_table_6_reduces_the_error(workers: int) -> None:
    """Gradients have super-groups that differ, at 4.5 bits, as in the paper: the second step gains the
    most."""
    xs = heavy_tailed(256 * 256, workers, spread=1.0)
    errors = {name: vnmse(simulate_ring(codec, xs)[0], xs) for name, codec in table_6(4.5).items()}
    values = list(errors.values())
    assert values == sorted(values, reverse=True), errors
    gains = [before / after for before, after in itertools.pairwise(values)]
    assert max(gains) == gains[1] > 2.5, errors
    assert values[0] / values[-1] > 4, errors


@pytest.mark.parametrize("options", [{}, {"widths": [4], "bits": None}], ids=str)
def test_the_mean_takes_an_offset_away(options: dict[str, Any]) -> None:
    """Gradients far from zero that differ little: without it their common part is rounded, too."""
    xs = [1 + 0.01 * x / x.std() for x in heavy_tailed(256 * 40, 3, spread=0.0)]
    with_mean, without = (
        vnmse(simulate_ring(DynamiQ(**options, mean=mean), xs)[0], xs) for mean in (True, False)
    )
    assert with_mean < 0.01 * without


def test_measured_errors_choose_better_widths_than_powers_of_four() -> None:
    """3 bits have an eighth of the error of 2, 4 of them a 38th of it: not a quarter and a sixteenth."""
    xs = heavy_tailed(256 * 200, 2, spread=1.0)
    for widths in ([2, 4, 8], [2, 3, 4, 5, 6, 8]):
        powers, measured = (
            vnmse(simulate_ring(DynamiQ(widths=widths, errors=errors), xs)[0], xs)
            for errors in ("powers", "measured")
        )
        assert measured < 0.9 * powers


def test_all_switches_at_their_defaults_are_the_paper() -> None:
    """8/16 + 16/256 bits of scales and 32/256 of statistics, of 5."""
    assert Format() == DynamiQ()._format
    assert Format().overhead_bits == 0.6875 and Format().scale_bytes == 18
    assert (DynamiQ().bits, DynamiQ().widths) == (5.0, [2, 4, 8])


REFUSED = [
    ({"group": 8}, "codec.group=8: choose one of 16, 32"),
    ({"scales": "fp32"}, "codec.scales=fp32: choose one of hierarchical, bf16"),
    ({"values": "even"}, "codec.values=even: choose one of nonuniform, uniform, distinct"),
    ({"errors": "none"}, "codec.errors=none: choose one of powers, measured"),
    ({"epsilon_3": 0.0}, "codec.epsilon_3=0.0: choose a number from 0.03 to 0.5"),
    (
        {"bits": None},
        "codec.bits=null: choose a number from 2.6875 to 8.6875 (2 to 8 bits of code and 0.6875",
    ),
    (
        {"widths": [4]},
        "codec.bits=5.0: choose 4.625 (4 bits of code and 0.625 of metadata per coordinate)",
    ),
    ({"mean": False, "bits": 2.6}, "codec.bits=2.6: choose a number from 2.625 to 8.625"),
    ({"scales": "bf16", "bits": 3.1}, "codec.bits=3.1: choose a number from 3.125 to 9.125"),
    ({"group": 32, "bits": 8.5}, "codec.bits=8.5: choose a number from 2.4375 to 8.4375"),
]


@pytest.mark.parametrize(("options", "refusal"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError) as error:
        DynamiQ(**options)
    assert str(error.value).startswith(refusal) and "\n" not in str(error.value)
