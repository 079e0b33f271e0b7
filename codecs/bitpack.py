"""Integers of any width from 1 to 32 bits as a little-endian bit stream: value i begins at bit i·bits.

Eight values take `bits` whole bytes, so rows of a multiple of eight values are streams of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_WHOLE = {8: torch.uint8, 16: torch.int16, 32: torch.int32}
"""Widths that are an integer type's, with that type."""


def packed_bytes(numel: int, bits: int) -> int:
    """Bytes of `numel` values, the last ones padded to eight."""
    return -(-numel // 8) * bits


def pack(codes: Tensor, bits: int, out: Tensor) -> None:
    """Write contiguous int32 `codes` of any shape to `out`, (numel·bits/8,) uint8.

    Their number is a multiple of 8. They lie in [0, 2^bits); at 32 bits all bit patterns are taken as they
    are. At 16 and 32 bits `out` is aligned to as many.
    """
    if bits in _WHOLE:
        out.view(_WHOLE[bits]).copy_(codes.view(-1))
        return
    eight, stream = codes.view(-1, 8), out.view(-1, bits)
    for byte in range(bits):
        first, last = 8 * byte // bits, (8 * byte + 7) // bits
        shifted = (_shift(eight[:, i], i * bits - 8 * byte) for i in range(first, last + 1))
        stream[:, byte] = _union(shifted)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The values of `packed`, (m·bits,) uint8 as `pack` writes it: (8·m,) int32."""
    if bits in _WHOLE:
        codes = packed.view(_WHOLE[bits]).to(torch.int32)
        return codes if bits == 32 else codes.bitwise_and_((1 << bits) - 1)
    stream = packed.view(-1, bits).to(torch.int32)
    codes = torch.empty(stream.shape[0], 8, dtype=torch.int32, device=packed.device)
    for i in range(8):
        first, last = i * bits // 8, (i * bits + bits - 1) // 8
        shifted = (_shift(stream[:, byte], 8 * byte - i * bits) for byte in range(first, last + 1))
        codes[:, i] = _union(shifted)
    return codes.bitwise_and_((1 << bits) - 1).view(-1)


def _shift(words: Tensor, left: int) -> Tensor:
    """`words` shifted by `left` bits, to the right if negative; what leaves 32 bits is lost."""
    return words << left if left >= 0 else words >> -left


def _union(parts: Iterator[Tensor]) -> Tensor:
    union = next(parts)
    for part in parts:
        union = union | part
    return union
