"""The three operations on packed elements, in plain PyTorch: the definition other backends reproduce.

An operation works tile by tile, so that its temporaries stay in cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.mxfp.blocks import BLOCK, rows, tiles
from gradwire.codecs.mxfp.formats import ElementFormat, cast
from gradwire.codecs.mxfp.packing import decode, pack
from gradwire.codecs.mxfp.scales import BlockScales


def block_bytes(element: ElementFormat) -> int:
    """Packed elements of one block."""
    return BLOCK * element.width // 8


def _bytes(packed: Tensor, tile: slice, element: ElementFormat) -> Tensor:
    return packed[tile.start * block_bytes(element) : tile.stop * block_bytes(element)]


def quantize(x: Tensor, scales: BlockScales, element: ElementFormat, out: Tensor, saturated: Tensor) -> None:
    """Cast the bucket `x`, (numel,) of a floating dtype, to packed elements: (blocks·4·width,) uint8.

    Adds the number of saturated casts to `saturated`, an int64 scalar.
    """
    for tile in tiles(0, scales.alive.shape[0]):
        scaled = (rows(x, tile) * scales.normalizer[tile]).mul_(scales.factor[tile])
        scaled.view(torch.int32).bitwise_and_(scales.alive[tile])
        codes, exceeded = cast(scaled, element)
        pack(codes.view(-1), element.width, _bytes(out, tile, element))
        saturated += exceeded


def add(own: Tensor, message: Tensor, element: ElementFormat, saturated: Tensor) -> None:
    """Replace the packed elements `own` by their sums with those of `message`, both (blocks·4·width,) uint8.

    A sum of two elements is exact in float32, and cast once. Adds the number of saturated casts to
    `saturated`, an int64 scalar.
    """
    for tile in tiles(0, own.numel() // block_bytes(element)):
        target = _bytes(own, tile, element)
        total = decode(target, element).add_(decode(_bytes(message, tile, element), element))
        codes, exceeded = cast(total, element)
        pack(codes, element.width, target)
        saturated += exceeded


def dequantize(packed: Tensor, scales: BlockScales, element: ElementFormat, out: Tensor) -> None:
    """Write the means to `out`, (numel,) of a floating dtype, from packed sums, (blocks·4·width,) uint8."""
    for tile in tiles(0, scales.step.shape[0]):
        restore(decode(_bytes(packed, tile, element), element), scales, tile, out)


def restore(values: Tensor, scales: BlockScales, tile: slice, out: Tensor) -> None:
    """Write the means of the blocks `tile` to their places in `out`, (numel,) of a floating dtype.

    `values` are sums of elements, float32, and overwritten.
    """
    restored = values.view(-1, BLOCK).mul_(scales.step[tile]).mul_(scales.restorer[tile])
    target = out[tile.start * BLOCK : tile.stop * BLOCK]
    target.copy_(restored.view(-1)[: target.numel()])
