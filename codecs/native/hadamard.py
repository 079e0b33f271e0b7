"""The compiled kernel of the Walsh-Hadamard transform."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, pointer, run
from gradwire.codecs.native.library import Library

OPERATION = "hadamard_transform"


class HadamardArguments(ctypes.Structure):
    """`gradwire_hadamard`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("rows", Pointer),
        ("numel", ctypes.c_int64),
        ("length", ctypes.c_int64),
    ]


def hadamard_transform(library: Library, rows: Tensor) -> None:
    """Transform each row of `rows`, (m, d) contiguous float32, in place."""
    arguments = HadamardArguments(
        rows=pointer(rows, OPERATION, "rows", (torch.float32,), rows.numel(), rows.device),
        numel=rows.numel(),
        length=rows.shape[1],
    )
    run(library, OPERATION, arguments, rows.device)
