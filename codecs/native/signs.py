"""The compiled kernels of 1-bit SGD: signs, and two means for every group."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

DTYPES = (torch.float32, torch.bfloat16)

_MEAN_BYTES = 8
"""Bytes of the two means together."""


class SignsArguments(ctypes.Structure):
    """`gradwire_signs`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("values_in", Pointer),
        ("values_out", Pointer),
        ("message_in", Pointer),
        ("message_out", Pointer),
        ("numel", ctypes.c_int64),
        ("group", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class SignKernels:
    """`GroupKernels` of signs and two means for every `group` coordinates."""

    group: int

    def encode(
        self, library: Library, values: Tensor, first: int, out: Tensor, message: Tensor | None = None
    ) -> None:
        operation = "signs_encode"
        values = values if values.dtype in DTYPES else values.to(torch.float32)
        arguments = SignsArguments(
            values_in=pointer(values, operation, "values", DTYPES, values.numel(), values.device),
            message_in=self._message(operation, message, values),
            message_out=self._message(operation, out, values),
            numel=values.numel(),
            group=self.group,
        )
        arguments.call.dtype = dtype_code(values, operation)
        run(library, operation, arguments, values.device)

    def decode(self, library: Library, message: Tensor, values: Tensor, add: bool) -> None:
        operation = "signs_add" if add else "signs_decode"
        arguments = SignsArguments(
            values_out=pointer(values, operation, "values", (torch.float32,), values.numel(), values.device),
            message_in=self._message(operation, message, values),
            numel=values.numel(),
            group=self.group,
        )
        run(library, operation, arguments, values.device)

    def _message(self, operation: str, message: Tensor | None, values: Tensor) -> int | None:
        numel = values.numel()
        length = -(-numel // 8) + -(-numel // self.group) * _MEAN_BYTES
        return pointer(message, operation, "the message", (torch.uint8,), length, values.device)
