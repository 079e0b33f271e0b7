"""The compiled kernels of THC."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library
from gradwire.codecs.thc.blocks import Blocks
from gradwire.codecs.thc.table import QuantizationTable, neighbours

DTYPES = (torch.float32, torch.bfloat16)

_Key = ctypes.c_uint32 * 2

_SMALL_BLOCK = 4096
"""Larger ones need room for float32 values on the way (`GRADWIRE_THC_SMALL_BLOCK`)."""

_TILE = 1 << 14
"""Coordinates whose energy is added up at a time."""


class NormsArguments(ctypes.Structure):
    """`gradwire_thc_norms`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("numel", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("maxima", Pointer),
        ("energies", Pointer),
        ("root_mean_squares", Pointer),
    ]


class QuantizeArguments(ctypes.Structure):
    """`gradwire_thc_in`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("numel", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("root_mean_squares", Pointer),
        ("table", Pointer),
        ("integers", Pointer),
        ("t_p", ctypes.c_float),
        ("granularity", ctypes.c_int32),
        ("key", _Key),
        ("rank", ctypes.c_uint32),
    ]


class DequantizeArguments(ctypes.Structure):
    """`gradwire_thc_out`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("sums", Pointer),
        ("total", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("root_mean_squares", Pointer),
        ("between", Pointer),
        ("mean", Pointer),
        ("t_p", ctypes.c_float),
        ("peak", ctypes.c_int32),
        ("key", _Key),
    ]


def root_mean_squares(library: Library, x: Tensor, blocks: Blocks, out: Tensor) -> None:
    """Fill `out`, (blocks,) float32, from the bucket `x`, (numel,) float32 or bfloat16."""
    operation = "thc_root_mean_squares"
    tiles = -(-blocks.total // _TILE) if blocks.largest > _TILE else 0
    room = torch.empty(2, tiles, dtype=torch.int32, device=x.device)
    arguments = NormsArguments(
        x=pointer(x, operation, "x", DTYPES, blocks.numel, x.device),
        numel=blocks.numel,
        block=blocks.largest,
        maxima=room[0].data_ptr(),
        energies=room[1].data_ptr(),
        root_mean_squares=_floats(out, operation, blocks, x.device),
    )
    arguments.call.dtype = dtype_code(x, operation)
    run(library, operation, arguments, x.device)


def quantize(
    library: Library,
    x: Tensor,
    root_mean_squares: Tensor,
    t_p: float,
    blocks: Blocks,
    table: QuantizationTable,
    key: Sequence[int],
    rank: int,
    integers: Tensor,
) -> None:
    """Fill `integers`, (total,) int32, from the bucket `x`, (numel,) float32 or bfloat16."""
    operation = "thc_quantize"
    values = None if table.is_uniform else neighbours(table, x.device)
    arguments = QuantizeArguments(
        x=pointer(x, operation, "x", DTYPES, blocks.numel, x.device),
        numel=blocks.numel,
        block=blocks.largest,
        root_mean_squares=_floats(root_mean_squares, operation, blocks, x.device),
        table=None if values is None else values.data_ptr(),
        integers=pointer(integers, operation, "integers", (torch.int32,), blocks.total, x.device),
        t_p=t_p,
        granularity=table.granularity,
        key=_Key(*key),
        rank=rank,
    )
    arguments.call.dtype = dtype_code(x, operation)
    run(library, operation, arguments, x.device)


def dequantize(
    library: Library,
    sums: Tensor,
    peak: int,
    root_mean_squares: Tensor,
    t_p: float,
    blocks: Blocks,
    key: Sequence[int],
    mean: Tensor,
) -> None:
    """Fill `mean`, (total,) float32 or bfloat16, from `sums`, (total,) int32 in [0, peak]."""
    operation = "thc_dequantize"
    between: Any = mean
    if mean.dtype != torch.float32:
        size = blocks.total if blocks.largest > _SMALL_BLOCK else 0
        between = torch.empty(size, dtype=torch.float32, device=sums.device)
    arguments = DequantizeArguments(
        sums=pointer(sums, operation, "sums", (torch.int32,), blocks.total, sums.device),
        total=blocks.total,
        block=blocks.largest,
        root_mean_squares=_floats(root_mean_squares, operation, blocks, sums.device),
        between=between.data_ptr(),
        mean=pointer(mean, operation, "mean", DTYPES, blocks.total, sums.device),
        t_p=t_p,
        peak=peak,
        key=_Key(*key),
    )
    arguments.call.dtype = dtype_code(mean, operation)
    run(library, operation, arguments, sums.device)


def _floats(root_mean_squares: Tensor, operation: str, blocks: Blocks, device: torch.device) -> int | None:
    return pointer(root_mean_squares, operation, "root_mean_squares", (torch.float32,), blocks.count, device)
