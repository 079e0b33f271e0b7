"""Codes of 2, 4 or 8 bits, packed little-endian: value k of a super-group starts at bit k·width."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(codes: Tensor, width: int, out: Tensor) -> None:
    """Write (rows, 256) uint8 `codes` < 2^width to `out`, (rows, 32·width) uint8."""
    if width == 8:
        out.copy_(codes)
    elif width == 4:
        pair = codes.view(torch.int16)
        out.copy_(pair.bitwise_or(pair >> 4).bitwise_and_(0xFF))
    else:
        four = codes.view(torch.int32)
        four = four.bitwise_or(four >> 6)
        out.copy_(four.bitwise_or_(four >> 12).bitwise_and_(0xFF))


def look_up(packed: Tensor, byte_values: Tensor) -> Tensor:
    """Decode (rows, 32·width) uint8 by a table of every byte's values; returns (rows, 256) float32."""
    elements = byte_values.index_select(0, packed.flatten().to(torch.int32))
    return elements.view(torch.float32).view(packed.shape[0], -1)
