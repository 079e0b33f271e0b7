"""Bit widths and message sizes: budget, optimality, order."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import dynamiq_allocation_reference as reference
import pytest
import torch
from dynamiq_rounds import heavy_tailed, make_hops
from torch import Tensor

from gradwire.codecs.collectives import align
from gradwire.codecs.dynamiq import DynamiQ
from gradwire.codecs.dynamiq.allocation import (
    WidthIncrements,
    allocate,
    paper_increments,
    threshold_patterns,
    worth_keys,
)
from gradwire.codecs.dynamiq.arrangement import ArrangementRule, Chunks, arrange, message_order, norm_patterns
from gradwire.codecs.dynamiq.codec import warn_of_small_bucket
from gradwire.codecs.dynamiq.format import chunk_size, used_bytes
from gradwire.codecs.options.dynamiq import Allocation, Format, budget_limits

CPU = torch.device("cpu")
WIDTH_SETS = [(2, 4, 8), (1, 2, 4), (2, 8), (4,), (1, 2, 4, 8, 16), (1, 16)]
RULES: list[Allocation] = ["fast", "exact"]
DEFAULT = (2, 4, 8)


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


def patterns_of(norm: Tensor) -> Tensor:
    return norm_patterns(norm, norm.isfinite())


def choose(patterns: Tensor, spare: int, widths: tuple[int, ...], rule: Allocation) -> list[int]:
    """The widths of one chunk."""
    chosen: list[int] = allocate(patterns[None], torch.tensor([spare]), paper_increments(widths), rule)[
        0
    ].tolist()
    return chosen


KINDS = ["skewed", "random", "infinite", "constant", "zero", "tiny"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 7, 333])
def test_no_chunk_exceeds_its_capacity(kind: str, count: int, rule: Allocation) -> None:
    norm = norms(kind, count)
    for widths, num_chunks, share in itertools.product(WIDTH_SETS, (1, 2, 5), (0, 0.2, 1)):
        low, high = budget_limits(Format(widths))
        bits = low + share * (high - low)
        sizes = tuple(
            chunk_size(count * 256, num_chunks, chunk, bits, Format(widths)) for chunk in range(num_chunks)
        )
        settings = ArrangementRule(paper_increments(widths), Format(widths), rule)
        arrangement = arrange(torch.zeros_like(norm), norm, 3, Chunks(sizes), settings)
        assert arrangement.order.sort().values.tolist() == list(range(count))
        for size, counts, rows in zip(sizes, arrangement.counts, arrangement.rows, strict=True):
            assert used_bytes(counts, Format(widths)) <= size.capacity
            assert sum(counts.values()) == size.super_groups == rows.stop - rows.start
            assert all(number >= 0 for number in counts.values())
        smallest = min(widths)
        if kind == "zero":
            assert all(counts[smallest] == sum(counts.values()) for counts in arrangement.counts)
        if kind == "infinite":
            assert 0 in arrangement.order[arrangement.rows[0]][-arrangement.counts[0][smallest] :]
            assert arrangement.mean.isnan().sum() == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["skewed", "random", "constant"])
@pytest.mark.parametrize("widths", WIDTH_SETS)
def test_widths_are_those_of_the_reference(kind: str, widths: tuple[int, ...], rule: Allocation) -> None:
    """Several chunks are allocated at once, each with its own capacity, from nothing to more than they can
    use."""
    rows = torch.stack([patterns_of(norms(kind, 60)).roll(i) for i in range(8)])
    rows[:, 5] = 0
    most = 32 * 60 * (max(widths) - min(widths))
    spare = torch.tensor([0, 31, 32, most // 9, most // 3, most // 2 + 77, most - 1, 2 * most])
    chosen = allocate(rows, spare, paper_increments(widths), rule)
    expected = reference.fast_widths if rule == "fast" else reference.exact_widths
    for row, bytes_left, found in zip(rows.tolist(), spare.tolist(), chosen.tolist(), strict=True):
        assert found == (expected(row, bytes_left, widths) if len(widths) > 1 else [4] * 60)


@pytest.mark.parametrize("widths", [(2, 4, 8), (1, 2, 4), (2, 8), (1, 2, 4, 8, 16)])
def test_no_choice_of_the_same_size_has_less_modelled_error_than_exact(widths: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(len(widths))
    for spare in (64, 400, 1500):
        patterns = (
            (torch.rand(5, generator=generator) * 16 + 2**-6).to(torch.bfloat16).view(torch.int16).int()
        )
        found = choose(patterns, spare, widths, "exact")
        error, size = reference.modelled_error(patterns.tolist(), found), reference.code_bytes(found)
        assert size <= 32 * min(widths) * 5 + spare
        for other in itertools.product(widths, repeat=5):
            if reference.code_bytes(other) <= size:
                assert reference.modelled_error(patterns.tolist(), other) >= error


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("widths", WIDTH_SETS)
def test_a_larger_norm_has_no_smaller_width(widths: tuple[int, ...], rule: Allocation) -> None:
    """`fast` distinguishes norms that differ by two bf16 steps or more: thresholds at fixed ratios are
    rounded."""
    for kind, spare in itertools.product(("skewed", "random", "constant"), (500, 9_000, 30_000)):
        patterns = patterns_of(norms(kind, 400))
        found = torch.tensor(choose(patterns, spare, widths, rule))
        apart = 2 if rule == "fast" else 1
        larger = patterns[:, None] >= patterns[None, :] + apart
        earlier = torch.ones(400, 400, dtype=torch.bool).triu(1) & (patterns[:, None] == patterns[None, :])
        assert (found[:, None] >= found[None, :])[larger | earlier].all()


@pytest.mark.parametrize("widths", [(2, 4, 8), (1, 2, 4, 8, 16)])
def test_fast_loses_next_to_nothing_to_exact(widths: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    patterns, worse = patterns_of(torch.randn(500, generator=generator).exp().to(torch.bfloat16)), 0
    for spare in range(1_000, 60_000, 4_000):
        fast, exact = (
            reference.modelled_error(patterns.tolist(), choose(patterns, spare, widths, rule))
            for rule in RULES
        )
        assert exact <= fast * Fraction(1.01) and fast <= exact * Fraction(1.03)
        worse += fast > exact
    assert worse > 0


@pytest.mark.parametrize("damaged", ["mean", "norm"])
def test_non_finite_statistics_get_the_smallest_width_and_no_mean(damaged: str) -> None:
    statistics = {"mean": torch.ones(8).bfloat16(), "norm": torch.full((8,), 3.0).bfloat16()}
    statistics[damaged][1] = torch.inf
    sizes = (chunk_size(8 * 256, 1, 0, 8.6, Format()),)
    rule = ArrangementRule(paper_increments(DEFAULT), Format())
    arrangement = arrange(statistics["mean"], statistics["norm"], 2, Chunks(sizes), rule)
    assert arrangement.counts[0][2] == 1
    assert arrangement.order[-1] == 1
    assert arrangement.mean.isnan().tolist() == [False] * 7 + [True]
    assert (arrangement.mean[:-1] == 128).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("units", [30, 90, 180])
def test_widths_minimise_the_modelled_error(units: int, rule: Allocation) -> None:
    """Against the best of all pairs of thresholds on F·4^−b, the error model of the paper."""
    norm = norms("skewed", 80)
    energy = norm.double().square()
    widths = torch.tensor(choose(patterns_of(norm), 64 * units, DEFAULT, rule))
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


def test_thresholds_have_the_papers_ratios() -> None:
    first, second, third, fourth = (1 / benefit for benefit in paper_increments((1, 2, 4, 8, 16)).benefits)
    assert first == Fraction(5, 32) * second
    assert second == Fraction(17, 512) * third
    assert third == Fraction(257, 2**17) * fourth


def test_thresholds_follow_the_first_one_at_fixed_ratios() -> None:
    first, second = threshold_patterns(paper_increments(DEFAULT), CPU)
    assert torch.equal(first, torch.arange(0x7F81, dtype=torch.int32))
    assert (second[1:] >= second[:-1]).all() and second[-1] == 0x7F80
    norm, raised = (
        table[0x80:0x7E00].to(torch.int16).view(torch.bfloat16).double() for table in (first, second)
    )
    assert ((raised / norm).square() / (512 / 17) - 1).abs().max() < 2**-7


def test_worths_are_compared_exactly() -> None:
    """The worths of norms and increments may be too close for float32 to distinguish."""
    widths = (1, 2, 4, 8, 16)
    keys = worth_keys(paper_increments(widths), CPU)
    benefits = paper_increments(widths).benefits
    nearest: list[tuple[int, int]] = [(0, pattern) for pattern in range(0x3F00, 0x3F80, 5)]
    for increment in (1, 2, 3):
        for _, pattern in nearest[:26]:
            close = int((keys[increment] < keys[0, pattern]).sum())
            nearest += [(increment, close - 1), (increment, close)]
    worths = [reference.energy(pattern) * benefits[increment] for increment, pattern in nearest]
    found = [int(keys[increment, pattern]) for increment, pattern in nearest]
    for (worth, key), (other, other_key) in itertools.combinations(zip(worths, found, strict=True), 2):
        assert (worth < other) == (key < other_key) and (worth == other) == (key == other_key)


@pytest.mark.parametrize("rule", RULES)
def test_other_widths_and_measured_errors_will_do(rule: Allocation) -> None:
    errors = [0.464, 0.0583, 0.0121, 0.00288, 0.000706, 0.0000557]
    increments = WidthIncrements((2, 3, 4, 5, 6, 8), tuple(map(Fraction, errors)))
    patterns = patterns_of(norms("skewed", 300))
    widths = allocate(patterns[None], torch.tensor([20_000]), increments, rule)[0]
    assert widths.unique().tolist() == [2, 3, 4, 5, 6, 8]
    assert 19_900 < (32 * (widths - 2)).sum() <= 20_000
    assert (widths[patterns.argsort()].diff() >= 0).float().mean() > 0.95


def test_order_is_by_width_then_index_within_each_chunk() -> None:
    widths = torch.tensor([[2, 8, 4, 8], [4, 4, 2, 2]])  # super-groups 0 2 4 6 and 1 3 5 (7 does not exist)
    order, counts = message_order(widths, 7)
    assert order.tolist() == [2, 6, 4, 0, 1, 3, 5]
    assert counts[:, [2, 4, 8]].tolist() == [[1, 1, 2], [1, 2, 0]] and counts.sum() == 7


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("widths", WIDTH_SETS)
def test_the_budget_holds_for_every_size(workers: int, widths: tuple[int, ...]) -> None:
    low, high = budget_limits(Format(widths))
    for share, numel in itertools.product(
        (0, 0.05, 0.2, 0.4, 0.6), (1, 100, 256, 257, 5000, 64 * 256 * workers, 100_003, 3_000_000)
    ):
        bits = low + share * (high - low)
        sizes = [chunk_size(numel, workers, chunk, bits, Format(widths)) for chunk in range(workers)]
        total = -(-numel // 256)
        assert sum(size.super_groups for size in sizes) == total
        metadata = (4 if len(widths) > 1 else 2) * total
        smallest = sum(align((32 * min(widths) + 18) * size.super_groups) for size in sizes)
        spent = sum(size.capacity for size in sizes)
        padded = bits * 256 * workers * math.ceil(numel / (256 * workers))
        assert 8 * (spent + metadata) <= padded or spent == smallest
        assert spent >= smallest
        assert all(size.capacity % 16 == 0 for size in sizes)
        assert any(size.over_budget for size in sizes) or 8 * (spent + metadata) <= bits * numel
        if numel >= 1e5 and total >= 64 * workers and share > 0:
            assert 8 * (spent + metadata) <= bits * numel or len(widths) == 1
            # Alignment costs little: at most 16 bytes a chunk.
            assert 8 * (spent + metadata) > bits * numel - 8 * 17 * workers


def test_a_tiny_bucket_is_sent_at_the_smallest_widths_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_of_small_bucket.cache_clear()
    for _ in range(2):  # two ranks of one process
        hops = make_hops(DynamiQ(bits=3), heavy_tailed(100, 1))
        assert hops[0].message_bytes(range(1), 1) == 96
    (told,) = caplog.messages
    assert told.startswith("gradwire: dynamiq at 3 bits: a bucket of 100 coordinates is too small to keep to")
    assert "its fullest chunk takes 8 bits per coordinate; harmless, or raise bucket_cap_mb" in told


def test_the_warning_of_a_small_bucket_names_what_exceeds_its_budget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One chunk has 288 of the 544 coordinates, the other is within the budget; only rank 0 warns."""
    warn_of_small_bucket.cache_clear()
    hops = make_hops(DynamiQ(), heavy_tailed(544, 1), num_chunks=2)
    sizes = [hops[0].message_bytes(range(chunk, chunk + 1), 1) for chunk in range(2)]
    (told,) = caplog.messages
    most = float(told.split(" bits per coordinate")[0].split()[-1])
    assert most > 5
    assert most == pytest.approx(8 * (sizes[0] + 2 * 4) / 288, rel=1e-3)


@pytest.mark.parametrize("numel", [165, 5000])
def test_a_budget_that_only_the_alignment_exceeds_is_no_error(numel: int) -> None:
    hops = make_hops(DynamiQ(bits=4.2358 if numel == 165 else 2.6875), heavy_tailed(numel, 1), num_chunks=19)
    sizes = [hops[0].message_bytes(range(c, c + 1), 1) for c in range(19)]
    assert sizes == [align(82 * len(range(c, -(-numel // 256), 19))) for c in range(19)]


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
