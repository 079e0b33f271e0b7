"""Whole rounds along a ring: identical results, accuracy, and what happens at the edges of float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dynamiq_rounds import empty_message, heavy_tailed, make_hops, run_ring, simulate_ring, vnmse
from torch import Tensor

from gradwire.codecs.dynamiq import DynamiQ, definition
from gradwire.codecs.dynamiq.allocation import paper_increments
from gradwire.codecs.dynamiq.arrangement import ArrangementRule, Chunks, arrange, super_group_statistics
from gradwire.codecs.dynamiq.format import chunk_size
from gradwire.codecs.interface import Layout
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.options.dynamiq import Format

ACCURATE = 5e-4
"""vNMSE below which 5 bits on heavy-tailed gradients of 4 workers are intact."""


def same(a: Tensor, b: Tensor) -> bool:
    """True if both are equal bit for bit; any NaN equals any other."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("numel", [1, 15, 16, 17, 255, 256, 257, 1000, 5000])
def test_every_rank_gets_the_same_mean_at_any_size(numel: int, workers: int) -> None:
    xs = heavy_tailed(numel, workers, spread=0.5)
    copies = [x.clone() for x in xs]
    results = simulate_ring(DynamiQ(bits=6), xs)
    assert all(result.shape == (numel,) and torch.equal(result, results[0]) for result in results)
    assert all(torch.equal(x, copy) for x, copy in zip(xs, copies, strict=True))
    # A bucket of a few coordinates may be sent at 2 bits: its error is bounded by its maximum only.
    assert (results[0] - torch.stack(xs).mean(dim=0)).abs().max() < 3 * max(x.abs().max() for x in xs)
    if numel == 5000:
        # Two or three super-groups a chunk hardly go beyond 4 bits, whose error grows along nine hops.
        assert vnmse(results[0], xs) < 0.1


VARIANTS = [
    {"widths": [1, 2, 4], "bits": 3.5},
    {"widths": [2, 8], "bits": 5.0, "allocation": "exact"},
    {"widths": [4], "bits": 4.625},
    {"widths": [1, 2, 4, 8, 16], "bits": 6.0},
    {"widths": [16, 1, 4], "bits": 9.0, "allocation": "exact", "rounding": "independent"},
    {"allocation": "exact"},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_widths_serve_every_rank_alike_within_the_budget(options: dict[str, Any], workers: int) -> None:
    for numel in (1, 255, 257, 5000):
        codec, xs = DynamiQ(**options), heavy_tailed(numel, workers, spread=1.5)
        hops = make_hops(codec, xs)
        spent = sum(hops[0].message_bytes(range(c, c + 1), 1) for c in range(workers)) + 4 * -(-numel // 256)
        results = run_ring(hops)
        assert all(torch.equal(result, results[0]) for result in results)
        assert results[0].shape == (numel,) and results[0].isfinite().all()
        if numel == 5000:
            assert 8 * spent <= codec.bits * numel or len(codec.widths) == 1
            assert vnmse(results[0], xs) < 1.0


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_any_widths_show_non_finite_values_and_keep_zeros(options: dict[str, Any]) -> None:
    xs = heavy_tailed(3000, 3)
    for x in xs:
        x[512:1024] = 0.0
    xs[1][300], xs[2][2990] = torch.nan, -torch.inf
    expected = torch.zeros(3000, dtype=torch.bool)
    expected[256:512] = expected[2816:] = True
    for result in simulate_ring(DynamiQ(**options), xs):
        assert torch.equal(result.isnan(), expected)
        assert result[~expected].isfinite().all()
        assert not result[512:1024].any()


def test_all_five_widths_are_used() -> None:
    """Gradients are so skewed that some super-groups are worth hardly anything, others nearly everything."""
    widths, x = (1, 2, 4, 8, 16), heavy_tailed(60_000, 1, spread=5.0)[0]
    sizes = (chunk_size(60_000, 1, 0, 5.0, Format(widths)),)
    statistics = super_group_statistics(x)
    arrangement = arrange(
        *statistics, 1, Chunks(sizes), ArrangementRule(paper_increments(widths), Format(widths))
    )
    assert list(arrangement.counts[0]) == list(widths)
    assert all(number > 0 for number in arrangement.counts[0].values())


@pytest.mark.parametrize("workers", [2, 5])
def test_more_bits_are_more_accurate(workers: int) -> None:
    xs = heavy_tailed(60_000, workers)
    errors = [vnmse(simulate_ring(DynamiQ(bits=bits), xs)[0], xs) for bits in (3, 4, 5, 6)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 5 * errors[2]


def test_intact_and_sabotaged_codecs_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = heavy_tailed(60_000, 4)
    assert vnmse(simulate_ring(DynamiQ(), xs)[0], xs) < ACCURATE
    steps = definition.group_steps
    monkeypatch.setattr(definition, "group_steps", lambda scales, groups: steps(scales.roll(1), groups))
    with using_kernels("default"):
        assert vnmse(simulate_ring(DynamiQ(), xs)[0], xs) > 10 * ACCURATE


@pytest.mark.parametrize("exponent", [-98, -40, 1, 60, 123])
def test_scaling_by_a_power_of_two_scales_the_result_exactly(exponent: int) -> None:
    generator = torch.Generator().manual_seed(0)
    xs = [(torch.randn(6000, generator=generator) * 2**10).round() / 2**10 for _ in range(3)]
    factor = torch.tensor(2.0, dtype=torch.float64).pow(exponent).float()
    plain, scaled = simulate_ring(DynamiQ(), xs)[0], simulate_ring(DynamiQ(), [x * factor for x in xs])[0]
    assert torch.equal(scaled, plain * factor)
    assert scaled.isfinite().all() and scaled.count_nonzero() > 5000


@pytest.mark.parametrize("magnitude", [1e-30, 1e38])
def test_statistics_and_means_survive_the_ends_of_the_range(magnitude: float) -> None:
    result = simulate_ring(DynamiQ(), [torch.full((2000,), magnitude)] * 8)[0]
    assert ((result / magnitude - 1).abs() < 0.01).all()


def test_zero_in_is_zero_out() -> None:
    xs = heavy_tailed(3000, 3)
    for x in xs:
        x[512:1024] = 0.0
        x[1024:1280] = -0.0
    result = simulate_ring(DynamiQ(), xs)[0]
    assert not result[512:1280].any() and result[:512].any()
    assert not simulate_ring(DynamiQ(), [torch.zeros(700)] * 2)[0].any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_non_finite_value_makes_exactly_its_super_group_nan(value: float, culprit: int) -> None:
    xs = heavy_tailed(5000, 3)
    for position in (300, 4990):  # the second lies in the partial last super-group
        xs[culprit][position] = value
    for result in simulate_ring(DynamiQ(), xs):
        expected = torch.zeros(5000, dtype=torch.bool)
        expected[256:512] = expected[4864:] = True
        assert torch.equal(result.isnan(), expected)
        assert result[~expected].isfinite().all()


def test_infinities_that_cancel_are_still_nan() -> None:
    xs = heavy_tailed(1000, 2)
    xs[0][5], xs[1][5] = torch.inf, -torch.inf
    assert simulate_ring(DynamiQ(), xs)[0].isnan().nonzero().flatten().tolist() == list(range(256))


def test_a_partial_sum_that_overflows_is_nan_on_all_ranks() -> None:
    xs = heavy_tailed(2000, 4)
    for x in xs:
        x[256:512] = torch.tensor([3e38, -3e38]).repeat(128)
    results = simulate_ring(DynamiQ(), xs)
    assert all(same(result, results[0]) for result in results)
    assert results[0].isnan().nonzero().flatten().tolist() == list(range(256, 512))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_accumulated_in_float32(dtype: torch.dtype) -> None:
    xs = [x.to(dtype) for x in heavy_tailed(5000, 3, spread=0.5)]
    result = simulate_ring(DynamiQ(), xs)[0]
    assert result.dtype == dtype
    assert torch.equal(result, simulate_ring(DynamiQ(), [x.float() for x in xs])[0].to(dtype))


def test_randomness_depends_on_seed_and_step_only() -> None:
    xs, codec = heavy_tailed(2000, 2), DynamiQ()
    first = simulate_ring(codec, xs, seed=1, step=2)[0]
    assert torch.equal(first, simulate_ring(DynamiQ(), xs, seed=1, step=2)[0])
    assert not torch.equal(first, simulate_ring(codec, xs, seed=1, step=3)[0])
    assert not torch.equal(first, simulate_ring(codec, xs, seed=2, step=2)[0])


def test_exact_sizes_change_no_value() -> None:
    xs = heavy_tailed(9000, 3)
    assert torch.equal(simulate_ring(DynamiQ(exact_size=True), xs)[0], simulate_ring(DynamiQ(), xs)[0])


def test_a_message_of_several_chunks_is_their_messages() -> None:
    xs = heavy_tailed(20_000, 1)
    together, apart = make_hops(DynamiQ(), xs, num_chunks=4)[0], make_hops(DynamiQ(), xs, num_chunks=4)[0]
    message, single = empty_message(together, range(1, 4)), []
    together.encode(range(1, 4), message, 1)
    for c in range(1, 4):
        single.append(empty_message(apart, range(c, c + 1)))
        apart.encode(range(c, c + 1), single[-1], 1)
    assert torch.equal(message, torch.cat(single))
    together.accumulate(message, range(1, 4), 1)
    out, expected = empty_message(apart, range(1, 4)), empty_message(apart, range(1, 4))
    together.encode(range(1, 4), expected, 2)
    apart.accumulate_encode(message, range(1, 4), out, 1, 2)
    assert torch.equal(out, expected)


def test_sealing_replaces_the_own_sum_by_what_was_sent() -> None:
    sender, receiver = (make_hops(DynamiQ(), heavy_tailed(3000, 1), num_chunks=2)[0] for _ in range(2))
    for chunk in (range(1), range(1, 2)):
        out = empty_message(sender, chunk)
        sender.seal(None, chunk, out, 0, 4)
        receiver.decode(out, chunk, 4)
    assert torch.equal(sender.finish(), receiver.finish())


def test_a_message_of_the_wrong_length_is_refused() -> None:
    hops = make_hops(DynamiQ(), heavy_tailed(3000, 1))[0]
    with pytest.raises(AssertionError, match="message length"):
        hops.encode(range(1), torch.empty(16, dtype=torch.uint8), 1)


def test_fewer_super_groups_than_chunks() -> None:
    xs = heavy_tailed(300, 2)
    hops = make_hops(DynamiQ(bits=8), xs, num_chunks=7)
    assert [hops[0].message_bytes(range(c, c + 1), 1) for c in range(2, 7)] == [0] * 5
    results = run_ring(hops, num_chunks=7)
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bits", 2.5),
        ("bits", 9),
        ("epsilon_4", 0.0),
        ("epsilon_8", 1.0),
        ("rounding", "none"),
        ("scale_rounding", "up"),
        ("allocation", "best"),
    ],
)
def test_bad_settings_are_refused_in_one_line(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^codec\.{field}={value}: choose .*[a-z0-9)]$") as error:
        DynamiQ(**{field: value})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("widths", [[], [7], [2, 2], [2, 4, 32]])
def test_widths_without_values_are_refused(widths: list[int]) -> None:
    with pytest.raises(ValueError) as refused:
        DynamiQ(widths=widths)
    assert str(refused.value).startswith(
        f"codec.widths={widths}: choose one or more of 1, 2, 3, 4, 5, 6, 8, 16"
    )
    assert "\n" not in str(refused.value)


def test_the_budget_fits_the_widths() -> None:
    assert DynamiQ(widths=[4, 1], bits=4.6875).widths == [1, 4]
    with pytest.raises(ValueError, match=r"codec.bits=5.0: .* from 1.6875 to 4.6875 \(1 to 4 bits of code"):
        DynamiQ(widths=[1, 4])
    with pytest.raises(ValueError, match=r"codec.bits=5.0: choose 4.625 \(4 bits of code"):
        DynamiQ(widths=[4])


def test_what_is_not_supported_says_why() -> None:
    codec, layout = DynamiQ(), Layout.flat(100)
    assert codec.supports("ring", 256, layout) is None
    assert "256" in str(codec.supports("ring", 257, layout))
    integers = Layout(("a",), ((4,),), (0,), 4, dtype=torch.int32)
    assert "int32" in str(codec.supports("ring", 2, integers))
    assert "CPU" in str(DynamiQ(exact_size=True).supports("ring", 2, Layout.flat(4, device="cuda")))
