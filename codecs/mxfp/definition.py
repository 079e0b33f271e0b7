"""The three operations on packed elements, in plain PyTorch: the definition that compiled kernels reproduce.

The definition works tile by tile, so that its temporaries stay in cache.
"""

from __future__ import annotations

from typing import cast as typed

import torch
from torch import Tensor

from gradwire.codecs.mxfp import native
from gradwire.codecs.mxfp.blocks import BLOCK, num_blocks, rows, tiles
from gradwire.codecs.mxfp.formats import BY_WIDTH, ElementFormat, cast
from gradwire.codecs.mxfp.packing import decode, pack
from gradwire.codecs.mxfp.scales import BlockScales, ScaleRule, SharedScales
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator


def block_bytes(element: ElementFormat) -> int:
    """Packed elements of one block."""
    return BLOCK * element.width // 8


def _bytes(packed: Tensor, tile: slice, element: ElementFormat) -> Tensor:
    return packed[tile.start * block_bytes(element) : tile.stop * block_bytes(element)]


def quantize(x: Tensor, scales: SharedScales, element: ElementFormat, out: Tensor, saturated: Tensor) -> None:
    """Cast the bucket `x`, (numel,) of a floating dtype, to packed elements: (blocks·4·width,) uint8.

    Adds the number of saturated casts to `saturated`, an int64 scalar. What `out` has beyond stays as it is.
    """
    whole = out[: num_blocks(x.numel()) * block_bytes(element)]
    write_elements(native.readable(x), scales.maxima, scales.mu, scales.rule, element.width, whole, saturated)


@operator(
    "mxfp_quantize(Tensor x, Tensor maxima, float mu, str rule, int width, Tensor(a!) out, "
    "Tensor(b!) saturated) -> ()"
)
def write_elements(
    x: Tensor, maxima: Tensor, mu: float, rule: str, width: int, out: Tensor, saturated: Tensor
) -> None:
    """`quantize` for `x` in float32 or bfloat16, with the block scales' `maxima`, (blocks,) bf16."""
    library = library_for(x.device)
    if library is not None:
        native.quantize(library, x, maxima, mu, rule, width, out, saturated)
        return
    element, shared = BY_WIDTH[width], SharedScales(maxima, mu, typed(ScaleRule, rule), 1)
    for tile in tiles(0, maxima.numel()):
        scales = shared.of(tile, element)
        scaled = (rows(x, tile) * scales.normalizer).mul_(scales.factor)
        scaled.view(torch.int32).bitwise_and_(scales.alive)
        codes, exceeded = cast(scaled, element)
        pack(codes.view(-1), width, _bytes(out, tile, element))
        saturated += exceeded


def add(own: Tensor, message: Tensor, element: ElementFormat, saturated: Tensor) -> None:
    """Replace the packed elements `own` by their sums with those of `message`, both (blocks·4·width,) uint8.

    A sum of two elements is exact in float32, and cast once. Adds the number of saturated casts to
    `saturated`, an int64 scalar. Bytes after the last whole block stay as they are. E4M3's NaN, which no cast
    gives, may have any sum.
    """
    size = own.numel() // block_bytes(element) * block_bytes(element)
    add_elements(own[:size], message[:size], element.width, saturated)


@operator("mxfp_add(Tensor(a!) own, Tensor message, int width, Tensor(b!) saturated) -> ()")
def add_elements(own: Tensor, message: Tensor, width: int, saturated: Tensor) -> None:
    """`add` of whole blocks."""
    library = library_for(own.device)
    if library is not None:
        native.add(library, own, message, width, saturated)
        return
    element = BY_WIDTH[width]
    for tile in tiles(0, own.numel() // block_bytes(element)):
        target = _bytes(own, tile, element)
        total = decode(target, element).add_(decode(_bytes(message, tile, element), element))
        codes, exceeded = cast(total, element)
        pack(codes, width, target)
        saturated += exceeded


def dequantize(packed: Tensor, scales: SharedScales, element: ElementFormat, out: Tensor) -> None:
    """Write the means to `out`, (numel,) of a floating dtype, from packed sums, (blocks·4·width,) uint8."""
    whole = packed[: num_blocks(out.numel()) * block_bytes(element)]
    mean = out if out.dtype in native.DTYPES else torch.empty_like(out, dtype=torch.float32)
    write_means(whole, scales.maxima, scales.mu, scales.rule, scales.workers, element.width, mean)
    if mean is not out:
        out.copy_(mean)


@operator(
    "mxfp_dequantize(Tensor packed, Tensor maxima, float mu, str rule, int workers, int width, "
    "Tensor(a!) out) -> ()"
)
def write_means(
    packed: Tensor, maxima: Tensor, mu: float, rule: str, workers: int, width: int, out: Tensor
) -> None:
    """`dequantize` for `out` in float32 or bfloat16, with the block scales' `maxima`, (blocks,) bf16."""
    library = library_for(packed.device)
    if library is not None:
        native.dequantize(library, packed, maxima, mu, rule, workers, width, out)
        return
    element, shared = BY_WIDTH[width], SharedScales(maxima, mu, typed(ScaleRule, rule), workers)
    for tile in tiles(0, maxima.numel()):
        restore(decode(_bytes(packed, tile, element), element), shared.of(tile, element), tile, out)


def restore(values: Tensor, scales: BlockScales, tile: slice, out: Tensor) -> None:
    """Write the means of the blocks `tile`, whose scales are given, to their places in `out`, (numel,) of a
    floating dtype.

    `values` are sums of elements, float32, and overwritten.
    """
    restored = values.view(-1, BLOCK).mul_(scales.step).mul_(scales.restorer)
    target = out[tile.start * BLOCK : tile.stop * BLOCK]
    target.copy_(restored.view(-1)[: target.numel()])
