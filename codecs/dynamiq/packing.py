"""Codes of 1, 2, 3, 4, 5, 6, 8 or 16 bits, packed little-endian: value k of a super-group starts at bit
k·width, so that 16 coordinates take 2·width bytes.

Widths that divide 8 are packed within bytes; of others, eight codes become `width` bytes through one int64.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PACKED_TOGETHER = {1: torch.int64, 2: torch.int32, 4: torch.int16, 8: torch.uint8}
"""The integer whose bytes are the codes that share one byte on the wire."""

_LOOKED_UP_TOGETHER = {1: 8, 2: 4, 3: 2, 4: 2, 5: 2, 6: 2, 8: 1, 16: 1}
"""How many codes one look-up decodes: a byte's, or two of those that do not fill bytes."""

_ELEMENT = {1: torch.float32, 2: torch.float64, 4: torch.complex128}
"""A type as large as that many float32."""


def pack(codes: Tensor, width: int, out: Tensor) -> None:
    """Write (rows, 256) `codes` < 2^width, uint8 or at 16 bits int16, to `out`, (rows, 32·width) uint8."""
    if width == 16:
        out.view(torch.int16).copy_(codes)
        return
    if width not in _PACKED_TOGETHER:
        _pack_eights(codes, width, out)
        return
    packed = codes.view(_PACKED_TOGETHER[width])
    shift = 8 - width
    for _ in range((8 // width).bit_length() - 1):
        packed = packed.bitwise_or(packed >> shift)
        shift *= 2
    out.copy_(packed.bitwise_and(0xFF))


def _pack_eights(codes: Tensor, width: int, out: Tensor) -> None:
    """Join neighbours three times: eight codes, a byte each, move to the low 8·width bits of an int64."""
    packed, bits = codes.view(torch.int64), width
    for lane in (16, 32, 64):
        low = _low_bits(lane, bits)
        upper = (packed >> (lane // 2 - bits)).bitwise_and_(low << bits)
        packed, bits = packed.bitwise_and(low).bitwise_or_(upper), 2 * bits
    out.view(-1, 32, width).copy_(packed.view(torch.uint8).view(-1, 32, 8)[:, :, :width])


def _pairs(packed: Tensor, width: int) -> Tensor:
    """What `_pack_eights` joined, taken apart twice: (rows, 128) int16, two codes in the low 2·width bits."""
    eights = torch.zeros(packed.shape[0], 32, 8, dtype=torch.uint8, device=packed.device)
    eights[:, :, :width] = packed.view(-1, 32, width)
    codes, bits = eights.view(torch.int64), 4 * width
    for lane in (64, 32):
        low = _low_bits(lane, bits)
        upper = codes.bitwise_and(low << bits).bitwise_left_shift_(lane // 2 - bits)
        codes, bits = codes.bitwise_and(low).bitwise_or_(upper), bits // 2
    return codes.view(torch.int16).view(-1, 128)


def _low_bits(lane: int, bits: int) -> int:
    """A 64-bit word whose lanes of `lane` bits have their lowest `bits` set."""
    return sum((1 << (start + bits)) - (1 << start) for start in range(0, 64, lane))


def decoding_table(values: Tensor, width: int) -> Tensor:
    """What `look_up` takes for `values` (2^width,) float32 by code: the values of all codes that it decodes
    together, as one element (float32, float64, complex128), or at 1 bit as a row of float32."""
    together = _LOOKED_UP_TOGETHER[width]
    shifts = torch.arange(0, together * width, width)
    codes = (torch.arange(1 << (together * width))[:, None] >> shifts) & ((1 << width) - 1)
    decoded = values[codes].contiguous()
    return decoded.view(_ELEMENT[together]).flatten() if together in _ELEMENT else decoded


def look_up(packed: Tensor, decoded: Tensor, first: Tensor | None = None) -> Tensor:
    """Decode (rows, 32·width) uint8 to (rows, 256) float32; `decoded` is the width's `decoding_table`, or
    several one after another, of which a row's begins at `first`, (rows, 1) int32."""
    width = packed.shape[1] // 32
    if width == 16:
        index = packed.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)
    elif width in _PACKED_TOGETHER:
        index = packed.to(torch.int32)
    else:
        index = _pairs(packed, width).to(torch.int32)
    if first is not None:
        index = index + first
    elements = decoded.index_select(0, index.flatten())
    return elements.view(torch.float32).view(packed.shape[0], -1)
