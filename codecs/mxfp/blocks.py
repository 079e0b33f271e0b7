"""Blocks: 32 coordinates that share a scale (the paper's chunks), and their maxima over the workers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.codecs.mxfp import native
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator

BLOCK = 32

TILE = 4096
"""Blocks processed at a time: temporaries of 512 KiB stay near a core, the cost of a call is spread."""

_MAGNITUDE = 0x7FFF_FFFF
_INFINITY = 0x7F80_0000
_LARGEST_BF16 = 0x7F7F
_NAN_BF16 = 0x7FC0


def num_blocks(numel: int) -> int:
    """Blocks of a bucket, the last one possibly partial."""
    return -(-numel // BLOCK)


def tiles(start: int, stop: int) -> Iterator[slice]:
    """Cut the blocks from `start` to `stop` into slices of at most `TILE`."""
    for first in range(start, stop, TILE):
        yield slice(first, min(first + TILE, stop))


def rows(x: Tensor, tile: slice) -> Tensor:
    """Some blocks of a bucket (numel,) as (blocks, 32) float32, the last one padded with zeros.

    A view of `x` where possible: not to be written to.
    """
    values = x[tile.start * BLOCK : tile.stop * BLOCK].to(torch.float32)
    padding = (tile.stop - tile.start) * BLOCK - values.numel()
    if padding:
        values = torch.nn.functional.pad(values, (0, padding))
    return values.view(-1, BLOCK)


def block_maxima(x: Tensor) -> Tensor:
    """max|g| of every block of `x` (numel,): bf16 of shape (blocks,), rounded up.

    NaN where a coordinate is not finite. The largest finite bf16 where rounding up would overflow: a block
    maximum above 3.39e38 is then up to 0.4 % larger than what is sent.
    """
    maxima = torch.empty(num_blocks(x.numel()), dtype=torch.bfloat16, device=x.device)
    write_maxima(native.readable(x), maxima)
    return maxima


@operator("mxfp_maxima(Tensor x, Tensor(a!) maxima) -> ()")
def write_maxima(x: Tensor, maxima: Tensor) -> None:
    """Fill `maxima`, bf16 (blocks,), from `x`, (numel,) float32 or bfloat16."""
    library = library_for(x.device)
    if library is not None:
        native.maxima(library, x, maxima)
        return
    bits = torch.empty(maxima.shape, dtype=torch.int32, device=x.device)
    for tile in tiles(0, bits.numel()):
        bits[tile] = rows(x, tile).view(torch.int32).bitwise_and(_MAGNITUDE).amax(dim=1)
    pattern = (bits + 0xFFFF).bitwise_right_shift_(16).clamp_(max=_LARGEST_BF16)
    pattern.masked_fill_(bits >= _INFINITY, _NAN_BF16)
    maxima.copy_(pattern.to(torch.int16).view(torch.bfloat16))
