"""The way to an allocation: every implementation gives the definition's statistics, widths and orders."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from implementations import CPU, EMULATED, IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient, poisoned
from torch import Tensor

from gradwire.codecs.dynamiq.allocation import (
    WidthIncrements,
    allocate,
    measured_increments,
    paper_increments,
    threshold_patterns,
    write_widths,
)
from gradwire.codecs.dynamiq.arrangement import message_order, write_order
from gradwire.codecs.dynamiq.format import COUNTED_WIDTHS
from gradwire.codecs.dynamiq.statistics import write_reduced

CPU_DEVICE = torch.device("cpu")
INCREMENTS = [
    paper_increments((2, 4, 8)),
    paper_increments((1, 2, 4, 8, 16)),
    paper_increments((2, 8)),
    measured_increments((1, 2, 3, 4, 5, 6, 8, 16), 16),
    WidthIncrements((1, 16), (Fraction(1), Fraction(1, 2))),
]
DEFAULT = INCREMENTS[0]

NORMS = ("normal", "skewed", "constant", "few", "zeros", "some_zeros", "subnormal", "largest", "anything")


def norms(kind: str, shape: tuple[int, int], seed: int = 0) -> Tensor:
    """Patterns of finite bf16 norms, int32 of this shape."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    if kind == "anything":
        return torch.randint(0, 0x7F80, shape, generator=generator, dtype=torch.int32)
    if kind == "skewed":
        x = (6 * x).exp()
    elif kind == "constant":
        x = torch.full(shape, 0.37)
    elif kind == "few":
        x = torch.tensor([1e-3, 1.0, 1.01, 300.0])[torch.randint(0, 4, shape, generator=generator)]
    elif kind == "zeros":
        x.zero_()
    elif kind == "some_zeros":
        x[x < 0.3] = 0
    elif kind == "subnormal":
        x *= 2.0**-128
    elif kind == "largest":
        x = 3e38 * torch.rand(shape, generator=generator)
    return x.abs().to(torch.bfloat16).view(torch.int16).to(torch.int32)


def spares(chunks: int, length: int, increments: WidthIncrements) -> Tensor:
    """Spare bytes from nothing to more than all chunks can use."""
    most = 32 * length * (increments.widths[-1] - increments.widths[0])
    odd = torch.tensor([0, 31, 33, most // 9, most // 3 + 7, most // 2 + 77, most - 1, 2 * most])
    return odd[torch.arange(chunks) % len(odd)]


def assert_widths_defined(name: str, patterns: Tensor, spare: Tensor, increments: WidthIncrements) -> None:
    expected = defined(allocate, patterns, spare, increments, "fast")
    table = threshold_patterns(increments, CPU_DEVICE)
    with implementation(name):
        chosen = poisoned(patterns.numel(), torch.int64).view(patterns.shape)
        write_widths(patterns, spare, table, increments.widths, chosen)
        assert_same(chosen, expected)


@pytest.mark.parametrize("name", CPU)
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("increments", INCREMENTS, ids=lambda increments: str(increments.widths))
def test_widths_are_the_definitions(name: str, kind: str, increments: WidthIncrements) -> None:
    for length in (1, 60, 515):
        patterns = norms(kind, (8, length), seed=length)
        assert_widths_defined(name, patterns, spares(8, length, increments), increments)


@pytest.mark.parametrize("name", EMULATED)
@pytest.mark.parametrize("kind", NORMS)
def test_widths_are_the_definitions_in_cuda(name: str, kind: str) -> None:
    """Chunks of fewer and of more super-groups than a block has threads; few of them, for it takes long."""
    for increments, chunks, length in ((DEFAULT, 4, 519), (INCREMENTS[1], 2, 100), (INCREMENTS[3], 2, 100)):
        spare = spares(8, length, increments)[3 : 3 + chunks]
        assert_widths_defined(name, norms(kind, (chunks, length), seed=1), spare, increments)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_capacity_is_used_as_defined(name: str) -> None:
    """Each capacity has a chunk of its own: this shows which of equal norms get more bits."""
    chunks = 200 if name in CPU else 8
    patterns = norms("few", (1, 700)).expand(chunks, -1).contiguous()
    assert_widths_defined(name, patterns, torch.arange(chunks) * (160_000 // chunks) + 5, DEFAULT)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_windows_of_candidates_at_the_ends(name: str) -> None:
    """Thresholds next to zero and to infinity."""
    smallest = torch.arange(400, dtype=torch.int32).repeat(6, 1)
    spare = torch.tensor([32, 640, 64 * 200, 64 * 380, 192 * 399 - 1, 192 * 399])
    assert_widths_defined(name, smallest, spare, DEFAULT)
    assert_widths_defined(name, 0x7F7F - smallest, spare, DEFAULT)


def ordered(widths: Tensor, total: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    order = poisoned(total, torch.int32, seed)
    counts = poisoned(widths.shape[0] * COUNTED_WIDTHS, torch.int32, seed).view(-1, COUNTED_WIDTHS)
    write_order(widths, order, counts)
    return order, counts


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("choices", [(2, 4, 8), (1, 2, 3, 4, 5, 6, 8, 16), (7,), (16, 1)])
def test_orders_are_the_definitions(name: str, choices: Sequence[int]) -> None:
    for chunks, total in ((1, 1), (3, 2), (5, 1), (1, 1000), (2, 1501), (3, 701)):
        generator = torch.Generator().manual_seed(total)
        shape = (chunks, -(-total // chunks))
        widths = torch.tensor(choices)[torch.randint(0, len(choices), shape, generator=generator)]
        expected = defined(ordered, widths, total)
        assert torch.equal(expected[0].sort().values, torch.arange(total, dtype=torch.int32))
        with implementation(name):
            for actual, wanted in zip(ordered(widths, total, seed=1), expected, strict=True):
                assert_same(actual, wanted)


def reduced(mean_sum: Tensor, norm: Tensor, chunks: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    length = -(-norm.numel() // chunks)
    patterns = poisoned(chunks * length, torch.int32, seed).view(chunks, length)
    mean = poisoned(norm.numel(), torch.float32, seed)
    write_reduced(mean_sum, norm, 3, patterns, mean)
    return patterns, mean


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_reduced_statistics_are_the_definitions(name: str, kind: str) -> None:
    for total, chunks in ((1, 1), (1, 4), (700, 1), (701, 5), (1700, 8)):
        norm = gradient(kind, total).abs().to(torch.bfloat16)
        mean_sum = gradient(kind, total, seed=1).to(torch.bfloat16)
        mean_sum[::50] = torch.inf
        expected = defined(reduced, mean_sum, norm, chunks)
        with implementation(name):
            for actual, wanted in zip(reduced(mean_sum, norm, chunks, seed=1), expected, strict=True):
                assert_same(actual, wanted)


def test_threads_change_nothing() -> None:
    patterns, spare = norms("skewed", (8, 9_000)), spares(8, 9_000, DEFAULT)
    with implementation("base"):
        alone = allocate(patterns, spare, DEFAULT, "fast")
        orders = message_order(alone, 71_997)
        torch.set_num_threads(3)
        try:
            assert_same(allocate(patterns, spare, DEFAULT, "fast"), alone)
            for actual, wanted in zip(message_order(alone, 71_997), orders, strict=True):
                assert_same(actual, wanted)
        finally:
            torch.set_num_threads(1)


def test_refuse_what_they_cannot_read() -> None:
    patterns, spare = norms("normal", (2, 50)), torch.tensor([1000, 2000])
    table, chosen = threshold_patterns(DEFAULT, CPU_DEVICE), torch.zeros(2, 50, dtype=torch.int64)
    counts = torch.zeros(2, COUNTED_WIDTHS, dtype=torch.int32)
    with implementation("base"):
        with pytest.raises(ValueError, match="patterns must be a contiguous torch.int32 of 100 elements"):
            write_widths(patterns.long(), spare, table, (2, 4, 8), chosen)
        with pytest.raises(ValueError, match="thresholds must be a contiguous torch.int32 of 32641 elements"):
            write_widths(patterns, spare, table, (2, 4), chosen)
        with pytest.raises(ValueError, match="2 to 8 ascending widths are needed"):
            write_widths(patterns, spare, table, (2,), chosen)
        with pytest.raises(ValueError, match="widths must be a contiguous torch.int64 of 100 elements"):
            write_order(chosen.int(), torch.zeros(99, dtype=torch.int32), counts)
        with pytest.raises(ValueError, match="norm must be a contiguous torch.bfloat16 of 3 elements"):
            write_reduced(torch.ones(3).bfloat16(), torch.ones(3), 2, patterns, torch.ones(3))
        with pytest.raises(RuntimeError, match="out of range.*total=98"):
            write_order(chosen, torch.zeros(98, dtype=torch.int32), counts)
