"""Codes of 8, 6 or 4 bits, packed little-endian: code k starts at bit k·width, so 3 bytes hold four of 6."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.mxfp.formats import ElementFormat


def pack(codes: Tensor, width: int, out: Tensor) -> None:
    """Write uint8 `codes` < 2^width, (m,) with m a multiple of 4, to `out`, (m·width/8,) uint8."""
    if width == 8:
        out.copy_(codes)
    elif width == 6:
        four = codes.view(torch.int32)
        pairs = (four & 0x003F_003F) | ((four & 0x3F00_3F00) >> 2)
        word = (pairs & 0xFFF) | ((pairs >> 4) & 0xFF_F000)
        out.view(-1, 3).copy_(word.view(torch.uint8).view(-1, 4)[:, :3])
    else:
        pair = codes.view(torch.int16)
        out.copy_(pair.bitwise_or(pair >> 4).bitwise_and_(0xFF))


def unpack_six(packed: Tensor) -> Tensor:
    """The 6-bit codes of (3·m,) uint8: (4·m,) uint8."""
    words = torch.zeros(packed.numel() // 3, 4, dtype=torch.uint8, device=packed.device)
    words[:, :3] = packed.view(-1, 3)
    word = words.view(torch.int32)
    pairs = (word & 0xFFF) | ((word & 0xFF_F000) << 4)
    four = (pairs & 0x003F_003F) | ((pairs & 0x0FC0_0FC0) << 2)
    return four.view(torch.uint8).view(-1)


@lru_cache(maxsize=16)
def _look_up_table(element: ElementFormat, device: torch.device) -> Tensor:
    """Values of the codes that one byte stands for, held as one element: float32, or float64 for two of 4
    bits, so that a single look-up unpacks and decodes a byte."""
    values = torch.tensor(element.values, dtype=torch.float32)
    if element.width == 4:
        byte = torch.arange(256)
        values = torch.stack((values[byte & 0xF], values[byte >> 4]), dim=1).view(torch.float64).flatten()
    return values.to(device)


def decode(packed: Tensor, element: ElementFormat) -> Tensor:
    """The values of packed codes, (m·width/8,) uint8: (m,) float32."""
    index = unpack_six(packed) if element.width == 6 else packed
    table = _look_up_table(element, packed.device)
    return table.index_select(0, index.to(torch.int32)).view(torch.float32)
