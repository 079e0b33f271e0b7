"""The compiled kernel of the energies of blocks."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

OPERATION = "block_energies"

DTYPES = (torch.float32, torch.bfloat16)


class NormsArguments(ctypes.Structure):
    """`gradwire_norms`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("numel", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("energies", Pointer),
    ]


def block_energies(library: Library, x: Tensor, block: int, energies: Tensor) -> None:
    """Fill `energies`, float64 (blocks,), from the bucket `x`, (numel,) float32 or bfloat16."""
    numel, total = x.numel(), -(-x.numel() // block)
    arguments = NormsArguments(
        x=pointer(x, OPERATION, "x", DTYPES, numel, x.device),
        numel=numel,
        block=block,
        energies=pointer(energies, OPERATION, "energies", (torch.float64,), total, x.device),
    )
    arguments.call.dtype = dtype_code(x, OPERATION)
    run(library, OPERATION, arguments, x.device)
