"""The compiled kernels of microscaling formats."""

from __future__ import annotations

from torch import Tensor

from gradwire.codecs.native.call import run
from gradwire.codecs.native.loading import Library

_BLOCK = 32


def maxima(library: Library, x: Tensor, out: Tensor) -> None:
    """Fill `out`, bf16 (blocks,), with the maxima of the bucket `x`, (numel,) float32 or bfloat16."""
    numel = x.numel()
    blocks = -(-numel // _BLOCK)
    run(library, "mxfp_maxima", x.device, x=(x, numel), block_maxima=(out, blocks), numel=numel)


def quantize(
    library: Library,
    x: Tensor,
    maxima: Tensor,
    mu: float,
    rule: str,
    width: int,
    out: Tensor,
    saturated: Tensor,
) -> None:
    """Cast the bucket `x`, (numel,) float32 or bfloat16, to packed elements, (blocks·4·width,) uint8."""
    numel = x.numel()
    blocks = -(-numel // _BLOCK)
    run(
        library,
        "mxfp_quantize",
        x.device,
        x=(x, numel),
        maxima=(maxima, blocks),
        elements=(out, blocks * _BLOCK * width // 8),
        saturated=(saturated, 1),
        numel=numel,
        mu=mu,
        rule=library.constant(f"MXFP_{rule.upper()}"),
        width=width,
    )


def add(library: Library, own: Tensor, message: Tensor, width: int, saturated: Tensor) -> None:
    """Add packed elements, (blocks·4·width,) uint8, to `own`."""
    numel = own.numel() * 8 // width
    size = numel * width // 8
    run(
        library,
        "mxfp_add",
        own.device,
        elements=(own, size),
        message=(message, size),
        saturated=(saturated, 1),
        numel=numel,
        width=width,
    )


def dequantize(
    library: Library,
    packed: Tensor,
    maxima: Tensor,
    mu: float,
    rule: str,
    workers: int,
    width: int,
    out: Tensor,
) -> None:
    """Write the means to `out`, (numel,) float32 or bfloat16, from packed sums, (blocks·4·width,) uint8."""
    numel = out.numel()
    blocks = -(-numel // _BLOCK)
    run(
        library,
        "mxfp_dequantize",
        out.device,
        maxima=(maxima, blocks),
        elements=(packed, blocks * _BLOCK * width // 8),
        mean=(out, numel),
        numel=numel,
        mu=mu,
        rule=library.constant(f"MXFP_{rule.upper()}"),
        width=width,
        workers=workers,
    )
