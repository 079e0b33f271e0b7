"""The compiled kernel of sampled histograms."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.edgc.bins import COUNTERS
from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

OPERATION = "sampled_histogram"

DTYPES = (torch.float32, torch.bfloat16)


class HistogramArguments(ctypes.Structure):
    """`gradwire_histogram`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("numel", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("key", ctypes.c_uint32 * 2),
        ("counts", Pointer),
    ]


def sampled_histogram(library: Library, x: Tensor, stride: int, key: Key, counts: Tensor) -> None:
    """Add to `counts`, int64 (4097,), what is sampled of `x`, (numel,) float32 or bfloat16."""
    arguments = HistogramArguments(
        x=pointer(x, OPERATION, "x", DTYPES, x.numel(), x.device),
        numel=x.numel(),
        stride=stride,
        key=key,
        counts=pointer(counts, OPERATION, "counts", (torch.int64,), COUNTERS, x.device),
    )
    arguments.call.dtype = dtype_code(x, OPERATION)
    run(library, OPERATION, arguments, x.device)
