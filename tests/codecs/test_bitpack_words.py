"""The bit stream of fewer than 16 bits, against Python's big integers."""

from __future__ import annotations

import pytest
import torch

from gradwire.codecs.bitpack import pack, unpack


def packed(values: torch.Tensor, bits: int) -> torch.Tensor:
    out = torch.full((values.numel() * bits // 8,), 0xAA, dtype=torch.uint8)
    pack(values, bits, out)
    return out


@pytest.mark.parametrize("bits", range(1, 17))
def test_it_is_one_little_endian_number(bits: int) -> None:
    """And what is unpacked is what was packed, the extremes among it."""
    values = torch.randint(
        1 << bits, (264,), generator=torch.Generator().manual_seed(bits), dtype=torch.int32
    )
    values[:8], values[8:16] = (1 << bits) - 1, 0
    number = sum(int(value) << bits * k for k, value in enumerate(values))
    stream = packed(values, bits)
    assert bytes(stream.tolist()) == number.to_bytes(264 * bits // 8, "little")
    assert torch.equal(unpack(stream, bits), values)


@pytest.mark.parametrize("bits", [8, 11, 12, 16])
def test_long_streams_are_cut_without_a_seam(bits: int) -> None:
    values = torch.arange((1 << 17) + 8, dtype=torch.int32) % (1 << bits)
    assert torch.equal(unpack(packed(values, bits), bits), values)


def test_twelve_bits_are_two_numbers_in_three_bytes() -> None:
    stream = packed(torch.tensor([0xABC, 0x123, 0, 0, 0, 0, 0, 0xFFF], dtype=torch.int32), 12)
    assert stream.tolist() == [0xBC, 0x3A, 0x12, *[0] * 7, 0xF0, 0xFF]
