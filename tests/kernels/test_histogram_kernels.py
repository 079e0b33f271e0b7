"""Sampled histograms: every implementation gives the definition's counts."""

from __future__ import annotations

import pytest
import torch
from implementations import CPU, EMULATED, IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient, misaligned

from gradwire.codecs.edgc.sampler import (
    COUNTERS,
    add_histogram,
    equal_bins,
    sampled_energies,
    sampled_histogram,
)


def assert_defined(name: str, x: torch.Tensor, stride: int, seed: int = 3) -> None:
    expected = defined(sampled_histogram, x, stride, seed)
    with implementation(name):
        assert_same(sampled_histogram(x, stride, seed), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_the_definition(name: str, dtype: torch.dtype, kind: str) -> None:
    for stride in (1, 4):
        for numel, offset in ((1, 0), (259, 1), (5000, 0), (2049, 3)):
            assert_defined(name, misaligned(gradient(kind, numel).to(dtype), offset), stride)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_energies_and_equal_bins(name: str, dtype: torch.dtype, kind: str) -> None:
    """Pieces whole and begun, windows of one coordinate and of three; bins that hold all and bins that do
    not."""
    for stride, numel, offset in ((1, 1, 0), (1, 8192, 0), (1, 4099, 1), (3, 13_000, 0)):
        x = misaligned(gradient(kind, numel).to(dtype), offset)
        expected = defined(sampled_energies, x, stride, 5)
        with implementation(name):
            for actual, wanted in zip(sampled_energies(x, stride, 5), expected, strict=True):
                assert_same(actual, wanted)
        for width in (1e-3, 0.37, 5e30):
            counts = defined(equal_bins, x, stride, 5, width)
            assert counts.sum() == expected[1][1]
            with implementation(name):
                assert_same(equal_bins(x, stride, 5, width), counts)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_values_at_the_ends_of_equal_bins(name: str) -> None:
    """Multiples of a width, and the numbers next to them: quotients decide, to the last bit."""
    for width in (0.1, 1 / 3, 7e-12, 3.0):
        ends = (torch.arange(-140, 141, dtype=torch.float64) * width).to(torch.float32)
        x = torch.cat(
            [ends, ends.nextafter(torch.tensor(torch.inf)), ends.nextafter(torch.tensor(-torch.inf))]
        )
        counts = defined(equal_bins, x, 1, 0, width)
        with implementation(name):
            assert_same(equal_bins(x, 1, 0, width), counts)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stride", [2, 3, 20, 1000, 65_536])
def test_of_samples_of_any_rate(name: str, dtype: torch.dtype, stride: int) -> None:
    x = gradient("heavy_tail", 70_003).to(dtype)
    for seed in (0, 1, -1, 1 << 40):
        assert_defined(name, x, stride, seed)


@pytest.mark.parametrize("name", ["v4", EMULATED[0]])
def test_of_many_coordinates(name: str) -> None:
    """More than one block's, and more than are sampled at a time."""
    assert_defined(name, gradient("normal", (1 << 18) + 4097 if name in CPU else 1 << 17), 1)


@pytest.mark.parametrize("name", ["base", EMULATED[1]])
def test_counts_are_added(name: str) -> None:
    x = gradient("signed_zeros", 3000)
    with implementation(name):
        counts = torch.arange(COUNTERS)
        add_histogram(x, 1, 0, counts)
        assert torch.equal(counts, torch.arange(COUNTERS) + sampled_histogram(x, 1, 0))
        assert int(counts.sum()) == 3000 + COUNTERS * (COUNTERS - 1) // 2
        before = counts.clone()
        add_histogram(x[:0], 4, 0, counts)
        assert torch.equal(counts, before)


@pytest.mark.parametrize("name", ["v4", EMULATED[0], EMULATED[2]])
def test_energies_of_many_pieces(name: str) -> None:
    """More pieces than a device has blocks."""
    x = gradient("heavy_tail", 40 * 4096 + 5)
    expected, counts = defined(sampled_energies, x, 1, 0), defined(equal_bins, x, 1, 0, 0.02)
    with implementation(name):
        for actual, wanted in zip(sampled_energies(x, 1, 0), expected, strict=True):
            assert_same(actual, wanted)
        assert_same(equal_bins(x, 1, 0, 0.02), counts)


def test_threads_change_nothing() -> None:
    x = gradient("normal", 1 << 18)
    with implementation("base"):
        alone = sampled_histogram(x, 2, 0)
        torch.set_num_threads(3)
        try:
            together = sampled_histogram(x, 2, 0)
        finally:
            torch.set_num_threads(1)
    assert_same(together, alone)


def test_refuses_what_it_cannot_read() -> None:
    x, counts = gradient("normal", 1000), torch.zeros(COUNTERS, dtype=torch.int64)
    with implementation("base"):
        for bad in (x.double(), x[::2]):
            with pytest.raises(ValueError, match="sampled_histogram"):
                add_histogram(bad, 1, 0, counts)
        with pytest.raises(ValueError, match="counts must be a contiguous torch.int64 of 4097 elements"):
            add_histogram(x, 1, 0, counts[1:])
        for stride in (0, 65_537):
            with pytest.raises(RuntimeError, match=f"out of range.*stride={stride}"):
                add_histogram(x, stride, 0, counts)
