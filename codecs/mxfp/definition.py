"""Blocks of 32 coordinates that share a scale (the paper's chunks): their maxima over the workers, and the
three operations on packed elements. In plain PyTorch this is the definition that compiled kernels
reproduce."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed as packed_codes
from gradwire.codecs.arithmetic.floats import BF16_INFINITY
from gradwire.codecs.mxfp.formats import BlockScales, ElementFormat, SharedScales, cast, decode
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import BUCKETS, Library

BLOCK = 32

_LARGEST_BF16, _NAN_BF16 = BF16_INFINITY - 1, 0x7FC0


def num_blocks(numel: int) -> int:
    """Blocks of a bucket, the last one possibly partial."""
    return -(-numel // BLOCK)


def block_bytes(element: ElementFormat) -> int:
    """Packed elements of one block."""
    return BLOCK * element.width // 8


def _rows(x: Tensor) -> Tensor:
    """A bucket (numel,) as (blocks, 32) float32, the last one padded with zeros."""
    return torch.nn.functional.pad(x.to(torch.float32), (0, -x.numel() % BLOCK)).view(-1, BLOCK)


def block_maxima(x: Tensor) -> Tensor:
    """max|g| of every block of `x` (numel,): bf16 of shape (blocks,), rounded up.

    NaN where a coordinate is not finite. The largest finite bf16 where rounding up would overflow: a block
    maximum above 3.39e38 is then up to 0.4 % larger than what is sent.
    """
    maxima = torch.empty(num_blocks(x.numel()), dtype=torch.bfloat16, device=x.device)
    write_maxima(readable(x), maxima)
    return maxima


def write_maxima(x: Tensor, maxima: Tensor) -> None:
    """Fill `maxima`, bf16 (blocks,), from `x`, (numel,) float32 or bfloat16."""
    library = library_for(x.device)
    if library is not None:
        numel = x.numel()
        given = {"x": (x, numel), "block_maxima": (maxima, num_blocks(numel))}
        run(library, "mxfp_maxima", x.device, **given, numel=numel)
        return
    largest = _rows(x).abs().amax(dim=1)
    pattern = ((largest.view(torch.int32) + 0xFFFF) >> 16).clamp(max=_LARGEST_BF16)
    pattern = pattern.masked_fill(~largest.isfinite(), _NAN_BF16)
    maxima.copy_(pattern.to(torch.int16).view(torch.bfloat16))


def quantize(x: Tensor, scales: SharedScales, element: ElementFormat, out: Tensor, saturated: Tensor) -> None:
    """Cast the bucket `x`, (numel,) of a floating dtype, to packed elements: (blocks·4·width,) uint8.

    Adds the number of saturated casts to `saturated`, an int64 scalar. Bytes of `out` beyond the elements are
    left unchanged.
    """
    x, blocks = readable(x), num_blocks(x.numel())
    size = blocks * block_bytes(element)
    library = library_for(x.device)
    if library is not None:
        given = {"x": (x, x.numel()), "maxima": (scales.maxima, blocks), "elements": (out[:size], size)}
        given["saturated"] = saturated, 1
        run(library, "mxfp_quantize", x.device, numel=x.numel(), **given, **_fields(scales, element, library))
        return
    own = scales.of(element)
    scaled = _rows(x) * own.normalizer * own.factor
    _write_cast(torch.where(own.alive, scaled, 0.0), element, out[:size], saturated)


def _fields(scales: SharedScales, element: ElementFormat, library: Library) -> dict[str, Any]:
    """The fields of kernels for the scales and the element format."""
    return {
        "mu": scales.mu,
        "mu_place": (scales.mu_place, 1),
        "rule": library.constant(f"MXFP_{scales.rule.upper()}"),
        "width": element.width,
    }


def _write_cast(values: Tensor, element: ElementFormat, out: Tensor, saturated: Tensor) -> None:
    codes, exceeded = cast(values, element)
    out.copy_(packed_codes(codes, element.width))
    saturated += exceeded.sum()


def add(own: Tensor, message: Tensor, element: ElementFormat, saturated: Tensor) -> None:
    """Replace the packed elements `own` by their sums with those of `message`, both (blocks·4·width,) uint8.

    A sum of two elements is exact in float32, and cast once. Adds the number of saturated casts to
    `saturated`, an int64 scalar. Bytes after the last whole block stay as they are. E4M3's NaN, which no cast
    produces, may have any sum.
    """
    size = own.numel() // block_bytes(element) * block_bytes(element)
    own, message = own[:size], message[:size]
    library = library_for(own.device)
    if library is not None:
        numel = size * 8 // element.width
        given = {"elements": (own, size), "message": (message, size), "saturated": (saturated, 1)}
        run(library, "mxfp_add", own.device, **given, numel=numel, width=element.width)
        return
    _write_cast(decode(own, element) + decode(message, element), element, own, saturated)


def dequantize(packed: Tensor, scales: SharedScales, element: ElementFormat, out: Tensor) -> None:
    """Write the means to `out`, (numel,) of a floating dtype, from packed sums, (blocks·4·width,) uint8."""
    numel, blocks = out.numel(), num_blocks(out.numel())
    size = blocks * block_bytes(element)
    library = library_for(packed.device)
    if library is None:
        out.copy_(restored(decode(packed[:size], element), scales.of(element))[:numel])
        return
    mean = out if out.dtype in BUCKETS else torch.empty_like(out, dtype=torch.float32)
    given = {"maxima": (scales.maxima, blocks), "elements": (packed[:size], size), "mean": (mean, numel)}
    own = {"numel": numel, "workers": scales.workers, **_fields(scales, element, library)}
    run(library, "mxfp_dequantize", out.device, **given, **own)
    if mean is not out:
        out.copy_(mean)


def restored(values: Tensor, scales: BlockScales) -> Tensor:
    """The means, float32, decoded from sums of elements, (blocks·32,) float32."""
    return (values.view(-1, BLOCK) * scales.step * scales.restorer).view(-1)
