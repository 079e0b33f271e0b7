"""Masks of blocks as they travel: a bit a block, block i at bit i mod 8 of byte i div 8."""

from __future__ import annotations

import torch
from torch import Tensor


def _bits(device: torch.device) -> Tensor:
    return torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=device)


def pack_mask(mask: Tensor) -> Tensor:
    """(blocks,) bool to (ceil(blocks / 8),) uint8; bits beyond the last block are 0."""
    padded = torch.nn.functional.pad(mask.to(torch.uint8), (0, -mask.numel() % 8))
    return (padded.view(-1, 8) * _bits(mask.device)).sum(dim=1, dtype=torch.uint8)


def unpack_mask(packed: Tensor, blocks: int) -> Tensor:
    """The inverse of `pack_mask`."""
    return packed[:, None].bitwise_and(_bits(packed.device)).ne(0).flatten()[:blocks]
