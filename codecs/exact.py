"""The uncompressed codecs: hop-wise sums in float32 or bfloat16.

BF16 is the reference of every comparison; it runs through the same hops as the quantizers. Its
partial sums are rounded to bfloat16 at each hop, as a bfloat16 all-reduce does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.interface import HopCodec, Round

ALIGNMENT = 8
"""Chunk boundaries are multiples of 8 elements: 16-byte aligned messages in bfloat16."""


def chunk_bounds(numel: int, num_chunks: int) -> list[int]:
    """`num_chunks + 1` boundaries of nearly equal, aligned slices; the last ones may be short."""
    per_chunk = -(-numel // (num_chunks * ALIGNMENT)) * ALIGNMENT
    return [min(i * per_chunk, numel) for i in range(num_chunks + 1)]


class ExactHops:
    """Partial sums in float32, sent as `wire_dtype`; chunks are contiguous slices of the bucket."""

    def __init__(self, x: Tensor, size: int, num_chunks: int, wire_dtype: torch.dtype) -> None:
        self._sums = x.to(torch.float32, copy=True)
        self._size, self._dtype, self._wire_dtype = size, x.dtype, wire_dtype
        self._bounds = chunk_bounds(x.numel(), num_chunks)

    def _slice(self, chunks: range) -> Tensor:
        return self._sums[self._bounds[chunks.start] : self._bounds[chunks.stop]]

    def message_bytes(self, chunks: range, workers: int) -> int:
        return (self._bounds[chunks.stop] - self._bounds[chunks.start]) * self._wire_dtype.itemsize

    def encode(self, chunks: range, out: Tensor) -> None:
        out.view(self._wire_dtype).copy_(self._slice(chunks))

    def accumulate(self, message: Tensor, chunks: range) -> None:
        self._slice(chunks).add_(message.view(self._wire_dtype))

    def accumulate_encode(self, message: Tensor, chunks: range, out: Tensor) -> None:
        self.accumulate(message, chunks)
        self.encode(chunks, out)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor) -> None:
        if message is not None:
            self.accumulate(message, chunks)
        self.encode(chunks, out)
        self.decode(out, chunks)

    def decode(self, message: Tensor, chunks: range) -> None:
        self._slice(chunks).copy_(message.view(self._wire_dtype))

    def finish(self) -> Tensor:
        return self._sums.div_(self._size).to(self._dtype)


@dataclass
class FP32(HopCodec):
    """Hop-wise sums in float32: exact up to rounding, 32 bits a coordinate."""

    name: str = "fp32"

    unbiased = True

    def plan(self, x: Tensor, round: Round, reduced: list[Tensor], num_chunks: int) -> ExactHops:
        return ExactHops(x, round.size, num_chunks, torch.float32)


@dataclass
class BF16(HopCodec):
    """Hop-wise sums in bfloat16, rounded to nearest even at each hop: 16 bits a coordinate."""

    name: str = "bf16"

    def plan(self, x: Tensor, round: Round, reduced: list[Tensor], num_chunks: int) -> ExactHops:
        return ExactHops(x, round.size, num_chunks, torch.bfloat16)
