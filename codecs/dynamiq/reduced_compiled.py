"""The compiled kernel of the reduced statistics."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, pointer, run
from gradwire.codecs.native.library import Library

OPERATION = "reduced_statistics"


class ReducedArguments(ctypes.Structure):
    """`gradwire_reduced`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("mean_sum", Pointer),
        ("norm", Pointer),
        ("total", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("workers", ctypes.c_int32),
        ("patterns", Pointer),
        ("mean", Pointer),
    ]


def reduced_statistics(
    library: Library, mean_sum: Tensor, norm: Tensor, workers: int, patterns: Tensor, mean: Tensor
) -> None:
    """Fill `patterns`, int32 (chunks, super-groups of a chunk), and `mean`, float32 (super-groups,), from
    `mean_sum` and `norm`, bf16 (super-groups,)."""
    chunks, length = patterns.shape
    total, device = norm.numel(), norm.device
    bf16 = (torch.bfloat16,)
    arguments = ReducedArguments(
        mean_sum=pointer(mean_sum, OPERATION, "mean_sum", bf16, total, device),
        norm=pointer(norm, OPERATION, "norm", bf16, total, device),
        total=total,
        chunks=chunks,
        length=length,
        workers=workers,
        patterns=pointer(patterns, OPERATION, "patterns", (torch.int32,), chunks * length, device),
        mean=pointer(mean, OPERATION, "mean", (torch.float32,), total, device),
    )
    run(library, OPERATION, arguments, device)
