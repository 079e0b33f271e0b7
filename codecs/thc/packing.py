"""Integers of 1 to 16 bits as a little-endian bit stream: number k starts at bit k·bits of the message.

Eight numbers fill whole bytes; on the way they are two 64-bit halves of four numbers each.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_BITS = 16

_GROUP = 8
_TILE = 1 << 16


def pack(values: Tensor, bits: int, out: Tensor) -> None:
    """Write `values`, (m,) int32 in [0, 2^bits) with m a multiple of 8, to `out`, (m·bits/8,) uint8."""
    if bits == 8:
        out.copy_(values)
    elif bits == 16:
        out.view(torch.int16).copy_(values)
    else:
        streams = torch.split(out.view(-1, bits), _TILE // _GROUP)
        for part, target in zip(torch.split(values, _TILE), streams, strict=True):
            target.copy_(_stream(part, bits).view(torch.uint8)[:, :bits])


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The numbers of (m·bits/8,) uint8: (m,) int32."""
    if bits == 8:
        return packed.to(torch.int32)
    if bits == 16:
        return packed.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    values = torch.empty(packed.numel() * 8 // bits, dtype=torch.int32, device=packed.device)
    streams = torch.split(packed.view(-1, bits), _TILE // _GROUP)
    for part, target in zip(streams, torch.split(values, _TILE), strict=True):
        stream = torch.zeros(part.shape[0], 16, dtype=torch.uint8, device=packed.device)
        stream[:, :bits] = part
        _numbers(stream.view(torch.int64), bits, target.view(-1, 2, 4))
    return values


def _stream(values: Tensor, bits: int) -> Tensor:
    """(m,) int32 as (m/8, 2) int64: the bits of eight numbers, below 128 of them, zeros above."""
    pairs = values.view(-1, 2)
    pair = pairs[:, 0].bitwise_or(pairs[:, 1] << bits).view(-1, 2).to(torch.int64)
    four = pair[:, 0].bitwise_or(pair[:, 1] << 2 * bits).view(-1, 2)
    low, high = four[:, 0], four[:, 1]
    # What a shift pushes out above bit 63 is what the second word begins with.
    return torch.stack((low | (high << 4 * bits), high >> (64 - 4 * bits)), dim=1)


def _numbers(stream: Tensor, bits: int, out: Tensor) -> None:
    """The inverse of `_stream`: (m/8, 2) int64 to (m/8, 2, 4) int32."""
    first, second = stream[:, 0], stream[:, 1]
    # The arithmetic shift copies the sign into the high bits: they are cleared first.
    rest = (first >> 4 * bits) & ((1 << (64 - 4 * bits)) - 1)
    high = rest | (second << (64 - 4 * bits))
    for k in range(4):
        out[:, 0, k] = (first >> k * bits) & ((1 << bits) - 1)
        out[:, 1, k] = (high >> k * bits) & ((1 << bits) - 1)
