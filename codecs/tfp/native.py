"""TFP's compiled kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.native.call import Call, Pointer, dtype_code, pointer, run
from gradwire.codecs.native.library import Library

DTYPES = (torch.float32, torch.bfloat16)

_BASES = {"plain": 0, "scaled": 1, "embedded": 2}

_BLOCK, _SCALE_BYTES = 32, 2


class TruncationArguments(ctypes.Structure):
    """`gradwire_tfp`."""

    _fields_: ClassVar = [
        ("call", Call),
        ("values_in", Pointer),
        ("values_out", Pointer),
        ("message_in", Pointer),
        ("plane_in", Pointer),
        ("message_out", Pointer),
        ("numel", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("bits_in", ctypes.c_int32),
        ("base", ctypes.c_int32),
        ("stochastic", ctypes.c_int32),
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class TruncationKernels:
    """`GroupKernels` of one format, `bits` of one of `Base`; `random` are the key's words and the rank."""

    bits: int
    base: str
    random: tuple[int, int, int] | None

    def encode(
        self, library: Library, values: Tensor, first: int, out: Tensor, message: Tensor | None = None
    ) -> None:
        operation, numel = "tfp_encode", values.numel()
        arguments = self._arguments(numel, self.bits, first)
        arguments.message_in = self._message(operation, message, numel, self.bits, values.device)
        arguments.message_out = self._message(operation, out, numel, self.bits, values.device)
        _encode(library, operation, arguments, values)

    def plane(self, library: Library, values: Tensor, bits: int, out: Tensor) -> None:
        """Write to `out` what `encode` writes beyond the first `bits` of each coordinate."""
        operation, numel = "tfp_plane", values.numel()
        arguments = self._arguments(numel, bits)
        arguments.message_out = self._plane(operation, out, numel, bits, values.device)
        _encode(library, operation, arguments, values)

    def refine(
        self, library: Library, message: Tensor, plane: Tensor, numel: int, bits: int, out: Tensor
    ) -> None:
        """Join a message of `bits` and the plane of the others to what `encode` writes."""
        operation, device = "tfp_refine", out.device
        arguments = self._arguments(numel, bits)
        arguments.message_in = self._message(operation, message, numel, bits, device)
        arguments.plane_in = self._plane(operation, plane, numel, bits, device)
        arguments.message_out = self._message(operation, out, numel, self.bits, device)
        run(library, operation, arguments, device)

    def decode(self, library: Library, message: Tensor, values: Tensor, add: bool) -> None:
        self._decode(library, message, None, values, self.bits, add)

    def decode_refined(
        self, library: Library, message: Tensor, plane: Tensor, values: Tensor, bits: int, add: bool
    ) -> None:
        """Decodes a message of `bits` together with the plane of the remaining bits."""
        self._decode(library, message, plane, values, bits, add)

    def _decode(
        self, library: Library, message: Tensor, plane: Tensor | None, values: Tensor, bits: int, add: bool
    ) -> None:
        operation, numel, device = "tfp_add" if add else "tfp_decode", values.numel(), values.device
        arguments = self._arguments(numel, bits)
        arguments.message_in = self._message(operation, message, numel, bits, device)
        arguments.plane_in = self._plane(operation, plane, numel, bits, device)
        arguments.values_out = pointer(values, operation, "values", (torch.float32,), numel, device)
        run(library, operation, arguments, device)

    def _arguments(self, numel: int, bits_in: int, first: int = 0) -> TruncationArguments:
        key0, key1, rank = self.random or (0, 0, 0)
        return TruncationArguments(
            numel=numel,
            first=first,
            bits=self.bits,
            bits_in=bits_in,
            base=_BASES[self.base],
            stochastic=self.random is not None,
            key0=key0,
            key1=key1,
            rank=rank,
        )

    def _message(
        self, operation: str, message: Tensor | None, numel: int, bits: int, device: torch.device
    ) -> int | None:
        blocks = 0 if self.base == "plain" else -(-numel // _BLOCK)
        length = -(-numel // 8) * bits + blocks * _SCALE_BYTES
        return pointer(message, operation, "the message", (torch.uint8,), length, device)

    def _plane(
        self, operation: str, plane: Tensor | None, numel: int, bits: int, device: torch.device
    ) -> int | None:
        length = -(-numel // 8) * (self.bits - bits)
        return pointer(plane, operation, "the plane", (torch.uint8,), length, device)


def _encode(library: Library, operation: str, arguments: TruncationArguments, values: Tensor) -> None:
    values = values if values.dtype in DTYPES else values.to(torch.float32)
    arguments.values_in = pointer(values, operation, "values", DTYPES, values.numel(), values.device)
    arguments.call.dtype = dtype_code(values, operation)
    run(library, operation, arguments, values.device)
