"""Codes of 1, 2, 4, 8 or 16 bits, packed little-endian: value k of a super-group starts at bit k·width."""

from __future__ import annotations

import torch
from torch import Tensor

_PACKED_TOGETHER = {1: torch.int64, 2: torch.int32, 4: torch.int16, 8: torch.uint8}
"""The integer whose bytes are the codes that share one byte on the wire."""


def pack(codes: Tensor, width: int, out: Tensor) -> None:
    """Write (rows, 256) `codes` < 2^width, uint8 or at 16 bits int16, to `out`, (rows, 32·width) uint8."""
    if width == 16:
        out.view(torch.int16).copy_(codes)
        return
    packed = codes.view(_PACKED_TOGETHER[width])
    shift = 8 - width
    for _ in range((8 // width).bit_length() - 1):
        packed = packed.bitwise_or(packed >> shift)
        shift *= 2
    out.copy_(packed.bitwise_and(0xFF))


def look_up(packed: Tensor, decoded: Tensor) -> Tensor:
    """Decode (rows, 32·width) uint8 to (rows, 256) float32.

    `decoded` has an element, or a row, with all the values of each byte; with 65536 of them, of each pair.
    """
    if len(decoded) > 256:
        index = packed.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    else:
        index = packed.to(torch.int32)
    elements = decoded.index_select(0, index.flatten())
    return elements.view(torch.float32).view(packed.shape[0], -1)
