"""THC's kernels: every implementation gives the definition's bits."""

from __future__ import annotations

import pytest
import torch
from implementations import CPU, IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, WRONG_KEY, assert_same, gradient, key_in_memory, misaligned, poisoned
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.thc.blocks import QuantizationTable, cut, optimal_table, uniform_table
from gradwire.codecs.thc.definition import BlockQuantizer, Randomness
from gradwire.codecs.thc.ranges import Ranges, write_root_mean_squares

T_P = 2.154
KEY = (0x89ABCDEF, 0xFEDCBA98)
TABLES = {
    "uniform": uniform_table(4),
    "widest": uniform_table(8),
    "nonuniform": optimal_table(4, 30, T_P),
    "coarse": QuantizationTable((0, 3, 7, 100, 255)),
}
SIZES = [(1, 16), (128, 64), (999, 32), (1000, 128), (5000, 4096), (5000, 1 << 24), (9000, 1024)]
"""Coordinates, and those of the largest block."""
LARGE = [(40_000, 1 << 24), (70_001, 1 << 15), (50_000, 256)]
"""Blocks that take two passes; a few that share a tile with others."""


def norms(x: Tensor, block: int, seed: int = 0) -> Tensor:
    out = poisoned(cut(x.numel(), block).count, torch.float32, seed)
    write_root_mean_squares(x, cut(x.numel(), block).largest, out)
    return out


def quantizer(
    numel: int,
    block: int,
    ranges: Tensor,
    table: QuantizationTable,
    key: Key = KEY,
    key_place: Tensor | None = None,
) -> BlockQuantizer:
    """That of worker 3."""
    return BlockQuantizer(cut(numel, block), Ranges(ranges, T_P), table, Randomness(key, 3, key_place))


def integers(x: Tensor, block: int, ranges: Tensor, table: QuantizationTable, seed: int = 0) -> Tensor:
    blocks = cut(x.numel(), block)
    out = poisoned(4 * blocks.total, torch.uint8, seed).view(torch.int32)
    quantizer(x.numel(), block, ranges, table).quantize(x, out)
    return out


def mean(sums: Tensor, peak: int, block: int, ranges: Tensor, dtype: torch.dtype, seed: int = 0) -> Tensor:
    out = poisoned(sums.numel(), dtype, seed)
    quantizer(sums.numel(), block, ranges, uniform_table(4)).dequantize(sums, peak // 15, out)
    return out


def ranges_of(numel: int, block: int) -> Tensor:
    """Ranges of `gradient("mixed")`: some of zeros or not finite, some small or large."""
    with using_kernels("default"):
        ranges = norms(gradient("mixed", numel), block)
    for place, value in ((1, 0.0), (2, torch.nan), (3, torch.inf), (4, 1e-38), (5, 3e38), (6, 1e-42)):
        if place < ranges.numel():
            ranges[place] = value
    return ranges


def sums_of(numel: int, block: int, peak: int) -> Tensor:
    generator = torch.Generator().manual_seed(numel)
    return torch.randint(0, peak + 1, (cut(numel, block).total,), generator=generator, dtype=torch.int32)


def cases(*few: str) -> list[tuple[str, str]]:
    """Implementations with kinds of gradients: all on a CPU, a `few` in the emulation, which is slow."""
    return [(name, kind) for name in IMPLEMENTATIONS for kind in (KINDS if name in CPU else few)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "kind"), cases("nan", "mixed"))
def test_root_mean_squares_equal_the_definition(name: str, dtype: torch.dtype, kind: str) -> None:
    for numel, block in [*SIZES, *LARGE] if kind == "mixed" and dtype == torch.float32 else SIZES:
        for offset in (0, 1) if numel < 2000 else (0,):
            x = misaligned(gradient(kind, numel).to(dtype), offset)
            expected = defined(norms, x, block)
            with implementation(name):
                assert_same(norms(x, block, seed=1), expected)


def test_more_large_blocks_than_a_small_device_has_warps() -> None:
    x = gradient("mixed", 11 << 14)
    expected = defined(norms, x, 1 << 15)
    with implementation("small"):
        assert_same(norms(x, 1 << 15, seed=1), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("name", "kind"), [case for case in cases("mixed") if case[1] not in ("infinite", "nan")]
)
def test_integers_equal_the_definition(name: str, dtype: torch.dtype, kind: str, table: str) -> None:
    for numel, block in SIZES:
        for offset in (0, 1) if numel < 2000 else (0,):
            x = misaligned(gradient(kind, numel).to(dtype), offset)
            ranges = defined(norms, x, block)
            expected = defined(integers, x, block, ranges, TABLES[table])
            with implementation(name):
                assert_same(integers(x, block, ranges, TABLES[table], seed=1), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("table", ["uniform", "nonuniform"])
@pytest.mark.parametrize(("numel", "block"), LARGE)
def test_integers_of_large_blocks_equal_the_definition(name: str, table: str, numel: int, block: int) -> None:
    x = gradient("normal", numel)
    ranges = defined(norms, x, block)
    expected = defined(integers, x, block, ranges, TABLES[table])
    with implementation(name):
        assert_same(integers(x, block, ranges, TABLES[table], seed=1), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("numel", "block"), SIZES + LARGE)
def test_means_equal_the_definition(name: str, dtype: torch.dtype, numel: int, block: int) -> None:
    ranges, peak = ranges_of(numel, block), 15 * 7
    sums = sums_of(numel, block, peak)
    expected = defined(mean, sums, peak, block, ranges, dtype)
    with implementation(name):
        assert_same(mean(sums, peak, block, ranges, dtype, seed=1), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("numel", "block"), [(5000, 1 << 24), (9000, 1024), (40_000, 1 << 24)])
def test_a_key_in_memory(name: str, numel: int, block: int) -> None:
    table = TABLES["uniform"]
    for dtype in (torch.float32, torch.bfloat16):
        x = gradient("normal", numel).to(dtype)
        ranges = defined(norms, x, block)
        expected = defined(integers, x, block, ranges, table)
        decoded = defined(mean, expected, 15, block, ranges, dtype)
        sums, means = torch.empty_like(expected), torch.empty_like(decoded)
        with implementation(name):
            made = quantizer(numel, block, ranges, table, WRONG_KEY, key_in_memory(KEY))
            made.quantize(x, sums)
            made.dequantize(expected, 1, means)
        assert_same(sums, expected)
        assert_same(means, decoded)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_blocks_without_range_have_defined_integers(name: str) -> None:
    numel, block = 3000, 128
    x = gradient("normal", numel)
    with using_kernels("default"):
        ranges = norms(x, block)
        ranges[1], ranges[2], ranges[3] = 0.0, torch.nan, torch.inf
        expected = integers(x, block, ranges, TABLES["uniform"])
    with implementation(name):
        assert_same(integers(x, block, ranges, TABLES["uniform"], seed=1), expected)


@pytest.mark.parametrize("name", ["base", "v4"])
def test_the_largest_blocks_equal_the_definition(name: str) -> None:
    """All three levels of caches, threads, and what follows the large blocks."""
    numel = (1 << 20) + (1 << 19) + (1 << 18) + 70_000
    x = gradient("normal", numel).to(torch.bfloat16)
    ranges = defined(norms, x, 0)
    expected = defined(integers, x, 0, ranges, TABLES["uniform"])
    decoded = defined(mean, expected, 15, 0, ranges, torch.bfloat16)
    torch.set_num_threads(3)
    try:
        with implementation(name):
            assert_same(norms(x, 0, seed=1), ranges)
            assert_same(integers(x, 0, ranges, TABLES["uniform"], seed=1), expected)
            assert_same(mean(expected, 15, 0, ranges, torch.bfloat16, seed=1), decoded)
    finally:
        torch.set_num_threads(1)


def test_refuse_what_they_cannot_read() -> None:
    x, ranges = gradient("normal", 1000), torch.ones(4)
    sums, made = torch.ones(1024, dtype=torch.int32), quantizer(1024, 256, ranges, TABLES["uniform"])
    with implementation("base"):
        with pytest.raises(ValueError, match="thc_root_mean_squares: x must be a contiguous"):
            write_root_mean_squares(x[::2], 256, torch.ones(2))
        with pytest.raises(ValueError, match="root_mean_squares must be a contiguous torch.float32 of 4"):
            integers(x, 256, torch.ones(3), TABLES["uniform"])
        with pytest.raises(ValueError, match="thc_dequantize: mean must be a contiguous"):
            made.dequantize(sums, 1, torch.ones(1000))
        with pytest.raises(ValueError, match="thc_dequantize: sums must be a contiguous torch.int32"):
            made.dequantize(sums.float(), 1, torch.ones(1024))
