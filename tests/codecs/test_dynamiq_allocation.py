"""Bit widths and message sizes: budget, optimality, order."""

from __future__ import annotations

import math

import pytest
import torch
from dynamiq_rounds import heavy_tailed, make_hops
from torch import Tensor

from gradwire.codecs.dynamiq import DynamiQ
from gradwire.codecs.dynamiq.allocation import allocate, eight_bit_keys, norm_patterns
from gradwire.codecs.dynamiq.message import message_order
from gradwire.codecs.dynamiq.plan import make_plan
from gradwire.codecs.dynamiq.sizes import align, chunk_size, used_bytes

RATIO = math.sqrt(512 / 17)


def norms(kind: str, count: int) -> Tensor:
    """bf16 norms (count,) of one kind."""
    generator = torch.Generator().manual_seed(count)
    if kind == "skewed":
        return torch.exp(6 * torch.randn(count, generator=generator)).to(torch.bfloat16)
    if kind == "random":
        return torch.rand(count, generator=generator).to(torch.bfloat16)
    if kind == "infinite":
        return (
            torch.rand(count, generator=generator)
            .to(torch.bfloat16)
            .index_fill_(0, torch.tensor([0]), torch.inf)
        )
    return torch.full((count,), {"constant": 0.37, "zero": 0.0, "tiny": 1e-40}[kind], dtype=torch.bfloat16)


KINDS = ["skewed", "random", "infinite", "constant", "zero", "tiny"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 7, 64, 333])
@pytest.mark.parametrize("bits", [2.6875, 3.0, 5.0, 8.6875])
def test_no_chunk_exceeds_its_capacity(kind: str, count: int, bits: float) -> None:
    norm = norms(kind, count)
    for num_chunks in (1, 2, 5):
        sizes = tuple(chunk_size(count * 256, num_chunks, chunk, bits) for chunk in range(num_chunks))
        plan = make_plan(torch.zeros_like(norm), norm, 3, sizes)
        assert plan.order.sort().values.tolist() == list(range(count))
        for size, counts, rows in zip(sizes, plan.counts, plan.rows, strict=True):
            assert used_bytes(counts) <= size.capacity
            assert sum(counts.values()) == size.super_groups == rows.stop - rows.start
        if kind == "zero":
            assert all(counts[4] == counts[8] == 0 for counts in plan.counts)
        if kind == "infinite":
            assert plan.order[plan.rows[0]][-1] == 0 or 0 in plan.order[plan.rows[0]][-plan.counts[0][2] :]
            assert plan.mean.isnan().sum() == 1


@pytest.mark.parametrize("kind", ["skewed", "random", "constant"])
@pytest.mark.parametrize("units", [0, 1, 17, 100, 250, 600])
def test_widths_are_the_best_threshold_and_ties_go_by_index(kind: str, units: int) -> None:
    norm = norms(kind, 200)
    patterns = norm_patterns(norm, norm.isfinite())
    widths = allocate(patterns[None], torch.tensor([units]))[0]

    def threshold_widths(t4: int) -> Tensor:
        t4_norm = torch.tensor([t4], dtype=torch.int16).view(torch.bfloat16).float()
        t8 = int((t4_norm * RATIO).to(torch.bfloat16).view(torch.int16))
        return 2 + 2 * (patterns >= t4).long() + 4 * (patterns >= t8).long()

    candidates = [1, *sorted({p + d for p in patterns.tolist() for d in (0, 1)}), 0x7F7F]
    candidates += list(range(1, 0x7F80, 97))
    feasible = [t for t in candidates if cost(threshold_widths(t)) <= units]
    best = min(feasible)
    lower = max((t for t in candidates if t < best), default=best)
    assert (widths >= threshold_widths(best)).all()
    if lower < best and kind != "constant":
        while best - lower > 1:  # the search above was coarse: find the exact edge
            middle = (best + lower) // 2
            lower, best = (lower, middle) if cost(threshold_widths(middle)) <= units else (middle, best)
        assert (widths >= threshold_widths(best)).all() and (widths <= threshold_widths(lower)).all()
        tied = (threshold_widths(lower) > threshold_widths(best)).nonzero().flatten()
        raised = (widths[tied] > threshold_widths(best)[tied]).tolist()
        assert cost(widths) + 2 > units or all(raised)
    if kind == "constant":
        assert widths.tolist() == sorted(widths.tolist(), reverse=True)
        assert cost(widths) in (min(units, 600), min(units, 600) - 1)


@pytest.mark.parametrize("damaged", ["mean", "norm"])
def test_non_finite_statistics_get_the_smallest_width_and_no_mean(damaged: str) -> None:
    statistics = {"mean": torch.ones(8).bfloat16(), "norm": torch.full((8,), 3.0).bfloat16()}
    statistics[damaged][1] = torch.inf
    plan = make_plan(statistics["mean"], statistics["norm"], 2, (chunk_size(8 * 256, 1, 0, 8.6),))
    assert plan.counts[0][2] == 1
    assert plan.order[-1] == 1
    assert plan.mean.isnan().tolist() == [False] * 7 + [True]
    assert (plan.mean[:-1] == 128).all()


def cost(widths: Tensor) -> int:
    """Units of 64 bytes beyond 2 bits everywhere."""
    return int((widths == 4).sum() + 3 * (widths == 8).sum())


@pytest.mark.parametrize("units", [30, 90, 180])
def test_widths_minimise_the_modelled_error(units: int) -> None:
    """Against the best of all pairs of thresholds on F·4^−b, the error model of the paper."""
    norm = norms("skewed", 80)
    energy = norm.double().square()
    widths = allocate(norm_patterns(norm, norm.isfinite())[None], torch.tensor([units]))[0]
    by_energy = energy.sort(descending=True).values

    def error(width: Tensor, of: Tensor) -> float:
        return float((of * 4.0**-width).sum())

    best = math.inf
    for eights in range(81):
        for fours in range(81 - eights):
            if fours + 3 * eights <= units:
                width = torch.tensor([8] * eights + [4] * fours + [2] * (80 - eights - fours))
                best = min(best, error(width, by_energy))
    assert error(widths, energy) <= 1.1 * best


def test_eight_bit_keys_invert_the_threshold_ratio() -> None:
    keys = eight_bit_keys(torch.device("cpu"))
    patterns = torch.arange(0x7F80, dtype=torch.int32)
    thresholds = (patterns.to(torch.int16).view(torch.bfloat16).float() * RATIO).to(torch.bfloat16)
    t8 = thresholds.view(torch.int16).int()
    assert (t8[keys.long()] <= patterns).all()
    assert (t8[(keys.long() + 1).clamp(max=0x7F7F)] > patterns).all()
    assert (keys[1:] < patterns[1:]).all()


def test_order_is_by_width_then_index_within_each_chunk() -> None:
    widths = torch.tensor([[2, 8, 4, 8], [4, 4, 2, 2]])  # super-groups 0 2 4 6 and 1 3 5 (7 does not exist)
    assert message_order(widths, 7).tolist() == [2, 6, 4, 0, 1, 3, 5]


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("bits", [2.6875, 3.0, 4.0, 5.0, 6.0])
def test_the_budget_holds_for_every_size(workers: int, bits: float) -> None:
    for numel in (1, 100, 256, 257, 5000, 64 * 256 * workers, 100_003, 3_000_000):
        sizes = [chunk_size(numel, workers, chunk, bits) for chunk in range(workers)]
        total = -(-numel // 256)
        assert sum(size.super_groups for size in sizes) == total
        metadata = 4 * total
        smallest = sum(align(82 * size.super_groups) for size in sizes)
        spent = sum(size.capacity for size in sizes)
        padded = bits * 256 * workers * math.ceil(numel / (256 * workers))
        assert 8 * (spent + metadata) <= padded or spent == smallest
        assert spent >= smallest
        assert all(size.capacity % 16 == 0 for size in sizes)
        assert not any(size.over_budget for size in sizes) or spent < 8.7 * numel + 128 * workers
        if numel >= 1e5 and total >= 64 * workers and bits > 2.75:
            assert 8 * (spent + metadata) <= bits * numel
            # Alignment costs little: at most 16 bytes a chunk.
            assert 8 * (spent + metadata) > bits * numel - 8 * 17 * workers


def test_a_tiny_bucket_is_sent_at_the_smallest_widths_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    codec = DynamiQ(bits=3)
    for _ in range(2):
        hops = make_hops(codec, heavy_tailed(100, 1))
        assert hops[0].message_bytes(range(1), 1) == 96
    assert len(caplog.records) == 1 and "too small" in caplog.text


def test_message_bytes_are_additive_and_know_no_gradient() -> None:
    codec = DynamiQ()
    hops = [make_hops(codec, heavy_tailed(70_000, 4, seed=seed))[1] for seed in (0, 1)]
    sizes = [
        [each.message_bytes(range(c, c + 1), workers) for c in range(4)]
        for each in hops
        for workers in (1, 3)
    ]
    assert all(size == sizes[0] for size in sizes)
    assert hops[0].message_bytes(range(1, 4), 1) == sum(sizes[0][1:])


def test_exact_sizes_are_what_is_used() -> None:
    xs = heavy_tailed(40_000, 2)
    fixed, exact = make_hops(DynamiQ(bits=6), xs)[0], make_hops(DynamiQ(bits=6, exact_size=True), xs)[0]
    zeros = make_hops(DynamiQ(bits=6, exact_size=True), [torch.zeros_like(x) for x in xs])[0]
    chunk = range(1)
    assert exact.message_bytes(chunk, 1) <= fixed.message_bytes(chunk, 1)
    assert zeros.message_bytes(chunk, 1) == align(82 * 79)
