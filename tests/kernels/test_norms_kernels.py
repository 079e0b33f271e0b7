"""Energies of blocks: every implementation gives the definition's bits."""

from __future__ import annotations

import pytest
import torch
from implementations import CPU, EMULATED, IMPLEMENTATIONS, defined, implementation
from inputs import KINDS, assert_same, gradient, misaligned, poisoned

from gradwire.codecs.omnireduce import block_energies, num_blocks, write_energies

# Each way of a kernel: lanes of a warp for a block, a warp, several tiles, more tiles than partial sums.
BLOCKS = (1, 7, 16, 33, 64, 100, 128, 255, 256, 257, 1000, 1024, 8192, 20_000)


def energies(x: torch.Tensor, block: int, seed: int = 0) -> torch.Tensor:
    written = poisoned(num_blocks(x.numel(), block), torch.float64, seed)
    write_energies(x, block, written)
    return written


def assert_defined(name: str, x: torch.Tensor, block: int) -> None:
    expected = defined(energies, x, block)
    assert not expected.isnan().any()
    with implementation(name):
        assert_same(energies(x, block, seed=1), expected)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_the_definition(name: str, dtype: torch.dtype, kind: str) -> None:
    for block in (4, 50, 256, 600):
        for numel, offset in ((1, 1), (block * 5, 0), (1999, 3)):
            assert_defined(name, misaligned(gradient(kind, numel).to(dtype), offset), block)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", BLOCKS)
def test_of_blocks_of_any_length(name: str, dtype: torch.dtype, block: int) -> None:
    x = gradient("mixed", max(3 * block + 5, 2000) if name in CPU else 2 * block + 5).to(dtype)
    assert_defined(name, x, block)
    assert_defined(name, x[1:], block)


@pytest.mark.parametrize("name", ["v4", EMULATED[0]])
def test_of_the_longest_blocks(name: str) -> None:
    assert_defined(name, gradient("heavy_tail", (1 << 18) + 777), 1 << 18)


def test_threads_change_nothing() -> None:
    x = gradient("normal", 1 << 20)
    with implementation("base"):
        alone = energies(x, 64)
        torch.set_num_threads(3)
        try:
            together = energies(x, 64, seed=1)
        finally:
            torch.set_num_threads(1)
    assert_same(together, alone)


def test_float16_is_measured_as_float32() -> None:
    x = gradient("normal", 1000).to(torch.float16)
    with implementation("base"):
        assert_same(block_energies(x, 16), block_energies(x.float(), 16))
        assert block_energies(x[:0], 16).shape == (0,)


def test_refuses_what_it_cannot_read() -> None:
    x = gradient("normal", 1000)
    with implementation("base"):
        for bad in (x.double(), x[::2]):
            with pytest.raises(ValueError, match="block_energies"):
                write_energies(bad, 256, torch.zeros(num_blocks(bad.numel(), 256), dtype=torch.float64))
        with pytest.raises(ValueError, match="energies must be a contiguous torch.float64 of 4 elements"):
            write_energies(x, 256, torch.zeros(3, dtype=torch.float64))
