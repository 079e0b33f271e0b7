"""The compiled kernel that combines metadata: one call per message, whatever its parts are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from gradwire.codecs.interface import Op
from gradwire.codecs.native.call import Call, pointer
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library

Action = Literal["PUT", "COMBINE", "TAKE"]
"""PUT writes own values to the message, COMBINE reduces the message into the own values, TAKE copies the
message to the own values."""

_OPERATION = "metadata_hop"

MOST_PARTS = 8

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


@cache
def _action(library: Library, action: Action) -> int:
    return library.constant(f"GRADWIRE_{action}")


class MetadataKernel:
    """A native call for one rank's metadata, of which only the message and its chunks change between
    calls.
    """

    def __init__(
        self, library: Library, parts: Sequence[tuple[Tensor, Op]], num_chunks: int, unit: int
    ) -> None:
        values = [value for value, _ in parts]
        settings = {
            "parts": len(parts),
            "kinds": tuple(_kind(library, op, value.dtype) for value, op in parts),
            "numel": tuple(value.numel() for value in values),
            "values": tuple(value.data_ptr() for value in values),
            "chunks": num_chunks,
            "unit": unit,
        }
        self._keep, self._library, self._device = values, library, values[0].device
        self._call = Call(library, _OPERATION, self._device, settings)

    def run(self, action: Action, message: Tensor, chunks: range) -> None:
        """Do `action` with `message`, uint8, which holds these chunks."""
        arguments = self._call.arguments
        arguments.action = _action(self._library, action)
        arguments.first, arguments.last = chunks.start, chunks.stop
        arguments.message_bytes = message.numel()
        arguments.message = pointer(
            message, _OPERATION, "message", (torch.uint8,), message.numel(), self._device
        )
        if message.numel():
            self._call.run()


def kernel_for(parts: Sequence[tuple[Tensor, Op]], num_chunks: int, unit: int) -> MetadataKernel | None:
    """The kernel for contiguous `parts`, in order of descending item size; None if PyTorch's definition must
    be used."""
    library = library_for(parts[0][0].device)
    known = len(parts) <= MOST_PARTS and all((op, value.dtype) in _KINDS for value, op in parts)
    if library is None or not known:
        return None
    return MetadataKernel(library, parts, num_chunks, unit)
