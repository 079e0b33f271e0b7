"""Whole rounds of dynamiq_plus: agreement, bytes, odd gradients, unbiasedness, its settings one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dynamiq_allocation_reference import energy
from dynamiq_cluster import Cluster
from dynamiq_rounds import empty_message, heavy_tailed, make_hops, simulate_ring, vnmse

from gradwire.codecs.dynamiq import DynamiQ, DynamiQPlus
from gradwire.codecs.dynamiq.allocation import WIDTH_ERRORS, allocate, measured_increments
from gradwire.codecs.dynamiq.arrangement import norm_patterns
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.options.dynamiq import Allocation, budget_limits

SETTINGS: list[dict[str, Any]] = [
    {},
    {"bits": 2.4},
    {"codebooks": 1},
    {"values": "nonuniform", "codebooks": 1},
    {"errors": "powers", "bits": 4.0},
    {"group": 16, "scale_rounding": "stochastic"},
    {"mean": True},
    {"widths": [1, 2, 3, 4, 5, 6, 8, 16], "bits": 3.0},
    {"widths": [3], "bits": None},
    {"allocation": "exact", "rounding": "independent"},
]
every_setting = pytest.mark.parametrize("options", SETTINGS, ids=str)


@every_setting
def test_ranks_agree_on_every_topology_within_the_budget(options: dict[str, Any]) -> None:
    """All ranks get the same bits; everything sent, including statistics, is at most `bits` per
    coordinate."""
    numel = 256 * 60
    for topology, size in (("ring", 4), ("butterfly", 5), ("broadcast", 3), ("ring", 2), ("butterfly", 3)):
        codec = DynamiQPlus(**options)
        cluster, xs = Cluster([codec] * size, topology), heavy_tailed(numel, size, spread=1.0)
        assert vnmse(cluster.step(xs), xs) < 1
        gradients = 2 * (size - 1) if topology != "broadcast" else size * (size - 1)
        sent = sum(cluster.bytes_sent(phase) for phase in ("reduce_scatter", "all_gather")) / gradients
        sent += cluster.bytes_sent("metadata") / (2 * (size - 1))
        spent, alignment = 8 * sent / numel, 8 * 16 * (size + 1) / numel
        if codec.bits is None:  # what the single width takes; chunks are aligned to 16 bytes
            assert 0 <= spent - budget_limits(codec._format)[0] < alignment
        else:
            assert codec.bits - alignment < spent <= codec.bits


@pytest.mark.parametrize("numel", [1, 7, 255, 257, 5000])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_rank_gets_the_same_mean_at_any_size(numel: int, workers: int) -> None:
    xs = heavy_tailed(numel, workers, spread=0.5)
    copies = [x.clone() for x in xs]
    results = simulate_ring(DynamiQPlus(), xs)
    assert all(result.shape == (numel,) and torch.equal(result, results[0]) for result in results)
    assert all(torch.equal(x, copy) for x, copy in zip(xs, copies, strict=True))
    assert (results[0] - torch.stack(xs).mean(dim=0)).abs().max() < 3 * max(x.abs().max() for x in xs)


@every_setting
def test_what_is_not_finite_is_seen_by_all_and_zeros_stay(options: dict[str, Any]) -> None:
    xs = heavy_tailed(3000, 3)
    for x in xs:
        x[512:768], x[768:1024] = 0.0, -0.0
    xs[1][300], xs[2][2990] = torch.nan, -torch.inf
    expected = torch.zeros(3000, dtype=torch.bool)
    expected[256:512] = expected[2816:] = True
    for result in simulate_ring(DynamiQPlus(**options), xs):
        assert torch.equal(result.isnan(), expected)
        assert result[~expected].isfinite().all()
        assert not result[512:1024].any() and not result[512:1024].signbit().any()


def test_infinities_that_cancel_and_sums_that_overflow_are_nan() -> None:
    xs = heavy_tailed(2000, 4)
    xs[0][5], xs[1][5] = torch.inf, -torch.inf
    for x in xs:
        x[512:768] = torch.tensor([3e38, -3e38]).repeat(128)
    results = simulate_ring(DynamiQPlus(), xs)
    damaged = [*range(256), *range(512, 768)]
    for result in results:
        assert result.isnan().nonzero().flatten().tolist() == damaged
        assert torch.equal(result.nan_to_num(), results[0].nan_to_num())


@pytest.mark.parametrize("magnitude", [1e-45, 1e-28, 1e-3, 3e37])
def test_gradients_of_any_magnitude(magnitude: float) -> None:
    """Gradients below 2⁻¹⁰⁰ are sent as zeros."""
    xs = [x / x.abs().max() * magnitude for x in heavy_tailed(2000, 3, spread=0.3)]
    result = simulate_ring(DynamiQPlus(), xs)[0]
    assert result.isfinite().all()
    if magnitude < 2.0**-100:
        assert not result.any()
    else:
        assert vnmse(result / magnitude, [x / magnitude for x in xs]) < 0.03


def codes_and_scales(xs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, tuple[Any, ...]]:
    """The first rank's message without its super-groups' scales, those scales, and the widths."""
    hops = make_hops(DynamiQPlus(), xs, num_chunks=1)[0]
    counts = hops._arrangement.counts
    message = empty_message(hops, range(1))
    hops.encode(range(1), message, 1)
    total = sum(counts[0].values())
    end = sum(number * (32 * width + 8) for width, number in counts[0].items())
    return message[:end], message[end : end + 2 * total].view(torch.int16), counts


@pytest.mark.parametrize("exponent", [-60, -3, 40])
def test_scaling_by_a_power_of_two_changes_no_code(exponent: int) -> None:
    """Only the exponents of scales change, not widths, codes, group scales or codebooks."""
    xs = heavy_tailed(256 * 30, 2, spread=1.0)
    plain, scaled = codes_and_scales(xs), codes_and_scales([x * 2.0**exponent for x in xs])
    assert plain[2] == scaled[2] and torch.equal(plain[0], scaled[0])
    assert torch.equal(scaled[1], plain[1] + (exponent << 7))
    assert len((plain[1] & -0x7FFF).unique()) == 4  # all codebooks occur


@every_setting
def test_independent_rounding_is_unbiased(options: dict[str, Any]) -> None:
    """The mean is taken over many copies of one super-group, along a ring of 2."""
    copies, generator = 400, torch.Generator().manual_seed(3)
    blocks = torch.randn(2, 256, generator=generator) * torch.rand(256, generator=generator) ** 3
    blocks -= blocks.mean(dim=1, keepdim=True)
    codec = DynamiQPlus(**(options | {"rounding": "independent"}))
    assert codec.traits.unbiased and not DynamiQPlus().traits.unbiased
    result = simulate_ring(codec, [block.repeat(copies) for block in blocks])[0]
    errors = result.view(copies, 256).double() - blocks.double().mean(dim=0)
    z = errors.mean(dim=0) / (errors.std(dim=0) / copies**0.5 + 2 * errors.abs().max() / copies)
    assert errors.std(dim=0).median() > 0
    assert z.abs().max() < 6 and z.square().mean() < 1.5


def test_only_the_norm_is_sent_beforehand() -> None:
    parts = DynamiQPlus().statistics(torch.ones(700), Round(0, Layout.flat(700), 0, 2, 0))
    assert [(op, part.dtype, part.numel()) for part, op in parts] == [("norm", torch.bfloat16, 3)]


def test_its_settings_are_dynamiqs() -> None:
    """Only defaults differ: with dynamiq's values the messages are dynamiq's."""
    paper = {
        "widths": [2, 4, 8],
        "errors": "powers",
        "values": "nonuniform",
        "codebooks": 1,
        "group": 16,
        "scale_rounding": "stochastic",
        "mean": True,
    }
    xs = heavy_tailed(4000, 3)
    assert torch.equal(simulate_ring(DynamiQPlus(**paper), xs)[0], simulate_ring(DynamiQ(), xs)[0])  # type: ignore[arg-type]
    assert not torch.equal(simulate_ring(DynamiQPlus(), xs)[0], simulate_ring(DynamiQ(), xs)[0])
    for field, value in paper.items():
        assert getattr(DynamiQ(), field) == value != getattr(DynamiQPlus(), field)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codebooks": 2}, "codec.codebooks=2: choose one of 1, 4"),
        (
            {"values": "uniform"},
            "codec.codebooks=4: choose 1, or values=distinct and scales=hierarchical",
        ),
        ({"scales": "bf16"}, "codec.codebooks=4: choose 1, or values=distinct and scales=hierarchical"),
        ({"bits": 2.3}, "codec.bits=2.3: choose a number from 2.375 to 16.375"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        DynamiQPlus(**options)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)
    assert "codec=dynamiq_plus" in str(DynamiQPlus().supports("ring", 257, Layout.flat(9)))


@pytest.mark.parametrize("group", [16, 32])
def test_fast_allocation_is_nearly_exact_with_all_widths(group: int) -> None:
    """Both take a prefix of the increments, so their modelled errors differ by less than 3 %."""
    widths = tuple(sorted(WIDTH_ERRORS[group]))
    increments = measured_increments(widths, group)
    errors = dict(zip(widths, increments.errors, strict=True))
    norms = (2 * torch.randn(300, generator=torch.Generator().manual_seed(0))).exp().to(torch.bfloat16)
    patterns = norm_patterns(norms, norms.isfinite())

    def modelled(spare: int, rule: Allocation) -> float:
        chosen = allocate(patterns[None], torch.tensor([spare]), increments, rule)[0].tolist()
        assert sum(32 * (width - 1) for width in chosen) <= spare
        return float(sum(energy(p) * errors[w] for p, w in zip(patterns.tolist(), chosen, strict=True)))

    for spare in range(2_000, 70_000, 9_000):
        assert modelled(spare, "fast") == pytest.approx(modelled(spare, "exact"), rel=0.03)
