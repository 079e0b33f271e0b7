"""The compiled kernels of bit streams."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, pointer, run
from gradwire.codecs.native.library import Library

_EIGHT = 8


class BitpackArguments(ctypes.Structure):
    """`gradwire_bitpack`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("codes_in", Pointer),
        ("packed_out", Pointer),
        ("packed_in", Pointer),
        ("codes_out", Pointer),
        ("numel", ctypes.c_int64),
        ("bits", ctypes.c_int32),
    ]


def pack_bits(library: Library, codes: Tensor, bits: int, out: Tensor) -> None:
    """Write int32 `codes` to `out`, (numel·bits/8,) uint8."""
    numel, operation = codes.numel(), "pack_bits"
    arguments = BitpackArguments(
        codes_in=pointer(codes, operation, "codes", (torch.int32,), numel, codes.device),
        packed_out=_stream(out, operation, numel, bits, codes.device),
        numel=numel,
        bits=bits,
    )
    run(library, operation, arguments, codes.device)


def unpack_bits(library: Library, packed: Tensor, bits: int, codes: Tensor) -> None:
    """Write the values of `packed`, (m·bits,) uint8, to `codes`, (8·m,) int32."""
    _unpack(library, "unpack_bits", packed, bits, codes)


def add_bits(library: Library, packed: Tensor, bits: int, sums: Tensor) -> None:
    """Add the values of `packed`, (m·bits,) uint8, to `sums`, (8·m,) int32."""
    _unpack(library, "add_bits", packed, bits, sums)


def _unpack(library: Library, operation: str, packed: Tensor, bits: int, codes: Tensor) -> None:
    numel = codes.numel()
    arguments = BitpackArguments(
        packed_in=_stream(packed, operation, numel, bits, packed.device),
        codes_out=pointer(codes, operation, "codes", (torch.int32,), numel, packed.device),
        numel=numel,
        bits=bits,
    )
    run(library, operation, arguments, packed.device)


def _stream(packed: Tensor, operation: str, numel: int, bits: int, device: torch.device) -> int | None:
    return pointer(packed, operation, "the stream", (torch.uint8,), numel * bits // _EIGHT, device)
