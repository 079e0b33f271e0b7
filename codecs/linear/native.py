"""The compiled kernels of linear quantizers."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.linear.message import SCALES, MessageFormat
from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

DTYPES = (torch.float32, torch.bfloat16)

_SCALE_CODES = {name: DTYPES.index(dtype) for name, dtype in SCALES.items()}


class Encoding(ctypes.Structure):
    """`gradwire_linear_encoding`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("x", Pointer),
        ("message", Pointer),
        ("numel", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("scale_dtype", ctypes.c_int32),
        ("hadamard", ctypes.c_int32),
        ("stochastic", ctypes.c_int32),
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
    ]


class Decoding(ctypes.Structure):
    """`gradwire_linear_decoding`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("messages", Pointer),
        ("stride", ctypes.c_int64),
        ("out", Pointer),
        ("numel", ctypes.c_int64),
        ("count", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("scale_dtype", ctypes.c_int32),
        ("hadamard", ctypes.c_int32),
    ]


def linear_quantize(
    library: Library,
    x: Tensor,
    message: Tensor,
    form: MessageFormat,
    hadamard: bool,
    random: tuple[int, int, int, int] | None,
) -> None:
    """See `definition.linear_quantize`; `random` is first, key0, key1, rank, None for rounding to nearest."""
    operation, numel = "linear_quantize", x.numel()
    first, key0, key1, rank = random or (0, 0, 0, 0)
    arguments = Encoding(
        x=pointer(x, operation, "x", DTYPES, numel, x.device),
        message=pointer(message, operation, "message", (torch.uint8,), form.num_bytes(numel), x.device),
        numel=numel,
        first=first,
        bits=form.bits,
        group=form.group,
        scale_dtype=_SCALE_CODES[form.scales],
        hadamard=hadamard,
        stochastic=random is not None,
        key0=key0,
        key1=key1,
        rank=rank,
    )
    arguments.call.dtype = dtype_code(x, operation)
    run(library, operation, arguments, x.device)


def linear_dequantize(
    library: Library, message: Tensor, out: Tensor, form: MessageFormat, hadamard: bool
) -> None:
    """See `definition.linear_dequantize`."""
    _decode(library, "linear_dequantize", message[None], out, form, hadamard)


def linear_add(
    library: Library, message: Tensor, target: Tensor, form: MessageFormat, hadamard: bool
) -> None:
    """See `definition.linear_add`."""
    _decode(library, "linear_add", message[None], target, form, hadamard)


def linear_reduce(
    library: Library, messages: Tensor, out: Tensor, form: MessageFormat, hadamard: bool
) -> None:
    """See `definition.linear_reduce`."""
    _decode(library, "linear_reduce", messages, out, form, hadamard)


def _decode(
    library: Library, operation: str, messages: Tensor, out: Tensor, form: MessageFormat, hadamard: bool
) -> None:
    numel, device = out.numel(), out.device
    size = form.num_bytes(numel)
    for message in messages:
        pointer(message, operation, "message", (torch.uint8,), size, device)
    arguments = Decoding(
        messages=messages.data_ptr(),
        stride=messages.stride(0),
        out=pointer(out, operation, "out", DTYPES, numel, device),
        numel=numel,
        count=messages.shape[0],
        bits=form.bits,
        group=form.group,
        scale_dtype=_SCALE_CODES[form.scales],
        hadamard=hadamard,
    )
    arguments.call.dtype = dtype_code(out, operation)
    run(library, operation, arguments, device)
