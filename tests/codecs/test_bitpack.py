"""Bit streams against Python's integers of any length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.codecs.arithmetic import bitpack
from gradwire.codecs.arithmetic.bitpack import pack, packed_bytes, unpack, unpacked

WIDTHS = range(1, 33)


def random_codes(count: int, bits: int) -> Tensor:
    """int32, all bit patterns of `bits` bits; the first and last one is all ones."""
    generator = torch.Generator().manual_seed(bits)
    codes = torch.randint(0, 1 << bits, (count,), generator=generator)
    codes[0] = codes[-1] = (1 << bits) - 1
    return codes.to(torch.int32)


def packed(codes: Tensor, bits: int) -> Tensor:
    out = torch.full((packed_bytes(codes.numel(), bits),), 0xAB, dtype=torch.uint8)
    pack(codes, bits, out)
    assert torch.equal(bitpack.packed(codes, bits), out)
    return out


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_stream_is_little_endian(bits: int) -> None:
    codes = random_codes(40, bits)
    stream = sum((int(code) & 0xFFFF_FFFF) << (bits * i) for i, code in enumerate(codes))
    assert bytes(packed(codes, bits).tolist()) == stream.to_bytes(5 * bits, "little")


@pytest.mark.parametrize("bits", WIDTHS)
def test_unpacking_gives_what_was_packed(bits: int) -> None:
    codes = random_codes(1000, bits)
    stream = packed(codes, bits)
    assert torch.equal(unpack(stream, bits), codes)
    assert torch.equal(unpacked(stream, bits), codes)


@pytest.mark.parametrize("bits", WIDTHS)
def test_rows_are_streams_of_their_own(bits: int) -> None:
    rows = random_codes(96, bits).view(4, 24)
    whole = packed(rows, bits).view(4, -1)
    assert all(torch.equal(packed(row, bits), stream) for row, stream in zip(rows, whole, strict=True))


def test_twelve_bits_are_two_numbers_in_three_bytes() -> None:
    stream = packed(torch.tensor([0xABC, 0x123, 0, 0, 0, 0, 0, 0xFFF], dtype=torch.int32), 12)
    assert stream.tolist() == [0xBC, 0x3A, 0x12, *[0] * 7, 0xF0, 0xFF]


def test_sizes_are_padded_to_eight_values() -> None:
    assert [packed_bytes(numel, 3) for numel in (0, 1, 8, 9, 1000)] == [0, 3, 3, 6, 375]
