"""The compiled kernel that combines metadata: one call per message, whatever its parts are."""

from __future__ import annotations

import threading
from functools import cache

import torch
from torch import Tensor

from gradwire.codecs.collectives import Op
from gradwire.codecs.native.call import Call, pointer
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library

_OPERATION = "metadata_hop"

MOST_PARTS = 8

MOST_CALLS = 1024
"""Number of calls that a thread keeps."""

_KINDS: dict[tuple[Op, torch.dtype], str] = {
    ("sum", torch.bfloat16): "SUM_BFLOAT16",
    ("sum", torch.float32): "SUM_FLOAT32",
    ("sum", torch.float64): "SUM_FLOAT64",
    ("sum", torch.int32): "SUM_32",
    ("sum", torch.int64): "SUM_64",
    ("norm", torch.bfloat16): "NORM_BFLOAT16",
    ("norm", torch.float32): "NORM_FLOAT32",
    ("max_bits", torch.uint8): "MAXIMUM_8",
    ("max_bits", torch.int16): "MAXIMUM_16",
    ("max_bits", torch.int32): "MAXIMUM_32",
    ("max_bits", torch.int64): "MAXIMUM_64",
    ("or", torch.bool): "OR_8",
    ("or", torch.uint8): "OR_8",
    ("or", torch.int16): "OR_16",
    ("or", torch.int32): "OR_32",
    ("or", torch.int64): "OR_64",
}
"""The kernel's operations, which cover the metadata of all built-in codecs. PyTorch does the others, which
plug-ins may add."""


@cache
def _kind(library: Library, op: Op, dtype: torch.dtype) -> int:
    return library.constant(f"GRADWIRE_{_KINDS[op, dtype]}")


Part = tuple[Op, torch.dtype, int]
"""A part: its operation, its dtype and its number of elements."""

_BYTES = (torch.uint8,)


class _Calls(threading.local):
    """A thread's calls by library, parts and device; the memory and the message are set in each."""

    def __init__(self) -> None:
        self.made: dict[tuple[Library, tuple[Part, ...], torch.device], Call] = {}

    def of(self, library: Library, parts: tuple[Part, ...], device: torch.device) -> Call:
        """The call for these parts, made once."""
        key = library, parts, device
        found = self.made.get(key)
        if found is None:
            settings = {
                "parts": len(parts),
                "kinds": tuple(_kind(library, op, dtype) for op, dtype, _ in parts),
                "numel": tuple(numel for *_, numel in parts),
            }
            if len(self.made) == MOST_CALLS:
                self.made.clear()
            found = self.made[key] = Call(library, _OPERATION, device, settings)
        return found


_calls = _Calls()


class MetadataKernel:
    """Native calls that add messages to one rank's metadata."""

    def __init__(self, library: Library, memory: Tensor, parts: tuple[Part, ...]) -> None:
        self._memory, self._device = memory, memory.device
        self._at = pointer(memory, _OPERATION, "values", _BYTES, memory.numel(), self._device)
        self._call = _calls.of(library, parts, self._device)

    def run(self, message: Tensor, first: int, last: int) -> None:
        """Combine `message`, (last − first,) uint8, with the bytes from `first` to `last`."""
        arguments = self._call.arguments
        arguments.values, arguments.first, arguments.last = self._at, first, last
        arguments.message = pointer(message, _OPERATION, "message", _BYTES, last - first, self._device)
        if first != last:
            self._call.run()


def kernel_for(memory: Tensor, parts: tuple[Part, ...]) -> MetadataKernel | None:
    """The kernel for parts that lie in `memory`, uint8, in this order; None if PyTorch's definition must be
    used."""
    library = library_for(memory.device)
    known = len(parts) <= MOST_PARTS and all((op, dtype) in _KINDS for op, dtype, _ in parts)
    if library is None or not known:
        return None
    return MetadataKernel(library, memory, parts)
