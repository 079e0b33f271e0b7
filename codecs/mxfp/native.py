"""The compiled kernels of microscaling formats."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

DTYPES = (torch.float32, torch.bfloat16)

RULES = {"bf16_mu": 0, "e8m0_floor": 1, "e8m0_even": 2, "e8m0_ceil": 3}
"""The numbers of the scale rules."""

_BLOCK = 32


class MXFPArguments(ctypes.Structure):
    """`gradwire_mxfp`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("block_maxima", Pointer),
        ("maxima", Pointer),
        ("elements", Pointer),
        ("message", Pointer),
        ("saturated", Pointer),
        ("mean", Pointer),
        ("numel", ctypes.c_int64),
        ("mu", ctypes.c_float),
        ("rule", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("workers", ctypes.c_int32),
    ]


def readable(x: Tensor) -> Tensor:
    """`x` in a dtype that kernels read: float32 if it has another."""
    return x if x.dtype in DTYPES else x.to(torch.float32)


def maxima(library: Library, x: Tensor, out: Tensor) -> None:
    """Fill `out`, bf16 (blocks,), with the maxima of the bucket `x`, (numel,) float32 or bfloat16."""
    operation = "mxfp_maxima"
    arguments = MXFPArguments(
        x=pointer(x, operation, "x", DTYPES, x.numel(), x.device),
        block_maxima=_maxima(out, operation, x),
        numel=x.numel(),
    )
    _run(library, operation, arguments, x)


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
    operation = "mxfp_quantize"
    arguments = MXFPArguments(
        x=pointer(x, operation, "x", DTYPES, x.numel(), x.device),
        maxima=_maxima(maxima, operation, x),
        elements=_elements(out, operation, "out", maxima.numel() * _BLOCK, width, x.device),
        saturated=_count(saturated, operation, x.device),
        numel=x.numel(),
        mu=mu,
        rule=RULES[rule],
        width=width,
    )
    _run(library, operation, arguments, x)


def add(library: Library, own: Tensor, message: Tensor, width: int, saturated: Tensor) -> None:
    """Add packed elements, (blocks·4·width,) uint8, to `own`."""
    operation, numel = "mxfp_add", own.numel() * 8 // width
    arguments = MXFPArguments(
        elements=_elements(own, operation, "own", numel, width, own.device),
        message=_elements(message, operation, "message", numel, width, own.device),
        saturated=_count(saturated, operation, own.device),
        numel=numel,
        width=width,
    )
    run(library, operation, arguments, own.device)


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
    operation = "mxfp_dequantize"
    arguments = MXFPArguments(
        maxima=_maxima(maxima, operation, out),
        elements=_elements(packed, operation, "packed", maxima.numel() * _BLOCK, width, out.device),
        mean=pointer(out, operation, "out", DTYPES, out.numel(), out.device),
        numel=out.numel(),
        mu=mu,
        rule=RULES[rule],
        width=width,
        workers=workers,
    )
    _run(library, operation, arguments, out)


def _run(library: Library, operation: str, arguments: MXFPArguments, coordinates: Tensor) -> None:
    arguments.call.dtype = dtype_code(coordinates, operation)
    run(library, operation, arguments, coordinates.device)


def _maxima(maxima: Tensor, operation: str, coordinates: Tensor) -> int | None:
    blocks = -(-coordinates.numel() // _BLOCK)
    return pointer(maxima, operation, "maxima", (torch.bfloat16,), blocks, coordinates.device)


def _elements(
    packed: Tensor, operation: str, name: str, numel: int, width: int, device: torch.device
) -> int | None:
    return pointer(packed, operation, name, (torch.uint8,), numel * width // 8, device)


def _count(saturated: Tensor, operation: str, device: torch.device) -> int | None:
    return pointer(saturated, operation, "saturated", (torch.int64,), 1, device)
