"""The compiled kernels of QSGD and TernGrad: groups with a norm, coordinates rounded to levels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

DTYPES = (torch.float32, torch.bfloat16)

_NORM_BYTES = 4


class LevelsArguments(ctypes.Structure):
    """`gradwire_levels`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("values_in", Pointer),
        ("values_out", Pointer),
        ("message_in", Pointer),
        ("message_out", Pointer),
        ("numel", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("group", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("l2", ctypes.c_int32),
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class LevelKernels:
    """`GroupKernels` of codes of `bits` bits and a norm, `l2` or `max`, for every `group` coordinates."""

    group: int
    bits: int
    norm: str
    key: tuple[int, int]
    rank: int

    def encode(
        self, library: Library, values: Tensor, first: int, out: Tensor, message: Tensor | None = None
    ) -> None:
        operation = "levels_encode"
        values = values if values.dtype in DTYPES else values.to(torch.float32)
        arguments = self._arguments(values.numel(), first)
        arguments.values_in = pointer(values, operation, "values", DTYPES, values.numel(), values.device)
        arguments.message_in = self._message(operation, message, values)
        arguments.message_out = self._message(operation, out, values)
        arguments.call.dtype = dtype_code(values, operation)
        run(library, operation, arguments, values.device)

    def decode(self, library: Library, message: Tensor, values: Tensor, add: bool) -> None:
        operation = "levels_add" if add else "levels_decode"
        arguments = self._arguments(values.numel(), 0)
        arguments.message_in = self._message(operation, message, values)
        arguments.values_out = pointer(
            values, operation, "values", (torch.float32,), values.numel(), values.device
        )
        run(library, operation, arguments, values.device)

    def _arguments(self, numel: int, first: int) -> LevelsArguments:
        return LevelsArguments(
            numel=numel,
            first=first,
            group=self.group,
            bits=self.bits,
            l2=self.norm == "l2",
            key0=self.key[0],
            key1=self.key[1],
            rank=self.rank,
        )

    def _message(self, operation: str, message: Tensor | None, values: Tensor) -> int | None:
        numel = values.numel()
        length = -(-numel // 8) * self.bits + -(-numel // self.group) * _NORM_BYTES
        return pointer(message, operation, "the message", (torch.uint8,), length, values.device)
