"""Integers of any width from 1 to 32 bits as a little-endian bit stream: value i begins at bit i·bits.

Eight values take `bits` whole bytes, so rows of a multiple of eight values are streams of their own. Below 16
bits eight values are, on the way, two 64-bit words of four each; above, bytes are put together one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.codecs.native import bitpack as native
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator

_WHOLE = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
"""Widths that are an integer type's, with that type."""

_EIGHT = 8

_TILE = 1 << 16
"""Values processed at a time: temporaries stay near a core."""


def packed_bytes(numel: int, bits: int) -> int:
    """Bytes of `numel` values, the last ones padded to eight."""
    return -(-numel // _EIGHT) * bits


@operator("pack_bits(Tensor codes, int bits, Tensor(a!) out) -> ()")
def pack(codes: Tensor, bits: int, out: Tensor) -> None:
    """Write contiguous int32 `codes` of any shape to `out`, (numel·bits/8,) uint8.

    Their number is a multiple of 8. They lie in [0, 2^bits); at 32 bits all bit patterns are taken as they
    are. At 16 and 32 bits `out` is aligned to as many.
    """
    library = library_for(codes.device)
    if library is not None:
        native.pack_bits(library, codes, bits, out)
        return
    if bits in _WHOLE:
        out.view(_WHOLE[bits]).copy_(codes.view(-1))
        return
    streams = torch.split(out.view(-1, bits), _TILE // _EIGHT)
    for part, stream in zip(torch.split(codes.view(-1), _TILE), streams, strict=True):
        if bits < 16:
            stream.copy_(_to_words(part, bits).view(torch.uint8)[:, :bits])
        else:
            _to_bytes(part.view(-1, _EIGHT), bits, stream)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The values of `packed`, (m·bits,) uint8 as `pack` writes it: (8·m,) int32."""
    codes = torch.empty(packed.numel() // bits * _EIGHT, dtype=torch.int32, device=packed.device)
    write_values(packed, bits, codes)
    return codes


@operator("unpack_bits(Tensor packed, int bits, Tensor(a!) codes) -> ()")
def write_values(packed: Tensor, bits: int, codes: Tensor) -> None:
    """Write the values of `packed`, (m·bits,) uint8, to `codes`, (8·m,) int32."""
    library = library_for(packed.device)
    if library is not None:
        native.unpack_bits(library, packed, bits, codes)
        return
    if bits in _WHOLE:
        codes.copy_(packed.view(_WHOLE[bits]))
        if bits < 32:
            codes.bitwise_and_((1 << bits) - 1)
        return
    streams = torch.split(packed.view(-1, bits), _TILE // _EIGHT)
    for stream, part in zip(streams, torch.split(codes, _TILE), strict=True):
        if bits < 16:
            whole = torch.zeros(stream.shape[0], 16, dtype=torch.uint8, device=packed.device)
            whole[:, :bits] = stream
            _from_words(whole.view(torch.int64), bits, part.view(-1, 2, 4))
        else:
            _from_bytes(stream.to(torch.int32), bits, part.view(-1, _EIGHT))


@operator("add_bits(Tensor packed, int bits, Tensor(a!) sums) -> ()")
def unpack_add(packed: Tensor, bits: int, sums: Tensor) -> None:
    """Add the values of `packed`, (m·bits,) uint8, to `sums`, (8·m,) int32; sums wrap around at 32 bits."""
    library = library_for(packed.device)
    if library is not None:
        native.add_bits(library, packed, bits, sums)
        return
    sums.add_(unpack(packed, bits))


def _to_bytes(eight: Tensor, bits: int, stream: Tensor) -> None:
    """(m/8, 8) int32 to (m/8, bits) uint8."""
    for byte in range(bits):
        first, last = 8 * byte // bits, (8 * byte + 7) // bits
        shifted = (_shift(eight[:, i], i * bits - 8 * byte) for i in range(first, last + 1))
        stream[:, byte] = _union(shifted)


def _from_bytes(stream: Tensor, bits: int, eight: Tensor) -> None:
    """The inverse of `_to_bytes`, from (m/8, bits) int32."""
    for i in range(_EIGHT):
        first, last = i * bits // 8, (i * bits + bits - 1) // 8
        shifted = (_shift(stream[:, byte], 8 * byte - i * bits) for byte in range(first, last + 1))
        eight[:, i] = _union(shifted)
    eight.bitwise_and_((1 << bits) - 1)


def _to_words(values: Tensor, bits: int) -> Tensor:
    """(m,) int32 below 2^16 as (m/8, 2) int64: the bits of eight values, below 128 of them, zeros above."""
    pairs = values.view(-1, 2)
    pair = pairs[:, 0].bitwise_or(pairs[:, 1] << bits).view(-1, 2).to(torch.int64)
    four = pair[:, 0].bitwise_or(pair[:, 1] << 2 * bits).view(-1, 2)
    low, high = four[:, 0], four[:, 1]
    # What a shift pushes out above bit 63 is what the second word begins with.
    return torch.stack((low | (high << 4 * bits), high >> (64 - 4 * bits)), dim=1)


def _from_words(stream: Tensor, bits: int, out: Tensor) -> None:
    """The inverse of `_to_words`: (m/8, 2) int64 to (m/8, 2, 4) int32."""
    first, second = stream[:, 0], stream[:, 1]
    # The arithmetic shift copies the sign into the high bits: they are cleared first.
    rest = (first >> 4 * bits) & ((1 << (64 - 4 * bits)) - 1)
    high = rest | (second << (64 - 4 * bits))
    for k in range(4):
        out[:, 0, k] = (first >> k * bits) & ((1 << bits) - 1)
        out[:, 1, k] = (high >> k * bits) & ((1 << bits) - 1)


def _shift(words: Tensor, left: int) -> Tensor:
    """`words` shifted by `left` bits, to the right if negative; what leaves 32 bits is lost."""
    return words << left if left >= 0 else words >> -left


def _union(parts: Iterator[Tensor]) -> Tensor:
    union = next(parts)
    for part in parts:
        union = union | part
    return union
