"""The compiled kernel of super-group statistics."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.blocks import num_super_groups
from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

OPERATION = "super_group_statistics"

DTYPES = (torch.float32, torch.bfloat16)


class StatisticsArguments(ctypes.Structure):
    """`gradwire_statistics`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("numel", ctypes.c_int64),
        ("mean", Pointer),
        ("norm", Pointer),
    ]


def super_group_statistics(library: Library, x: Tensor, mean: Tensor, norm: Tensor) -> None:
    """Fill `mean` and `norm`, bf16 (super-groups,), from the bucket `x`, (numel,) float32 or bfloat16."""
    numel, total = x.numel(), num_super_groups(x.numel())
    arguments = StatisticsArguments(
        x=pointer(x, OPERATION, "x", DTYPES, numel, x.device),
        numel=numel,
        mean=pointer(mean, OPERATION, "mean", (torch.bfloat16,), total, x.device),
        norm=pointer(norm, OPERATION, "norm", (torch.bfloat16,), total, x.device),
    )
    arguments.call.dtype = dtype_code(x, OPERATION)
    run(library, OPERATION, arguments, x.device)
