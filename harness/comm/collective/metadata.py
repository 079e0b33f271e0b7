"""Metadata as hops: statistics, masks and counters reduced in a fixed order, never by the backend.

Orders differ between backends and worlds, and gloo's MAX loses rank 1's NaN; here the result is the
same bytes on every rank and in every world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.codecs.interface import Hops, Op


def _sum(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype in (torch.bfloat16, torch.float16):
        return (a.float() + b.float()).to(a.dtype)
    return a + b


def _norm(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(a² + b²): squares of float32 neither overflow nor vanish in float64, so no scaling."""
    wide, other = a.double(), b.double()
    return (wide * wide + other * other).sqrt().float().to(a.dtype)


_COMBINE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": _sum,
    "norm": _norm,
    "or": torch.bitwise_or,
    "max_bits": torch.maximum,
}

_BIT_PATTERNS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def magnitude_bits(x: Tensor) -> Tensor:
    """Bit patterns of |x| as integers: ordered like |x|, with NaN above infinity."""
    if not x.dtype.is_floating_point:
        return x
    integer = _BIT_PATTERNS[x.dtype.itemsize]
    return x.contiguous().view(integer) & torch.iinfo(integer).max


class MetadataHops(Hops):
    """Tensors of any length and dtype, each split evenly over the chunks, one message per hop.

    They are laid out by descending item size, so every one is aligned within a message. Messages are padded
    to the largest item size.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, Op]], num_chunks: int) -> None:
        self._originals = [tensor for tensor, _ in parts]
        values = [magnitude_bits(tensor) if op == "max_bits" else tensor for tensor, op in parts]
        assert all(value.dim() == 1 for value in values), "metadata is one-dimensional"
        self._values = [value.clone() for value in values]
        self._combine = [_COMBINE[op] for _, op in parts]
        self._order = sorted(range(len(parts)), key=lambda i: -values[i].element_size())
        self._num_chunks = num_chunks
        self._chunk_bytes = [self._message_bytes(chunk) for chunk in range(num_chunks)]

    def _part(self, index: int, chunk: int) -> Tensor:
        value = self._values[index]
        per_chunk = -(-value.numel() // self._num_chunks)
        return value[chunk * per_chunk : (chunk + 1) * per_chunk]

    def _message_bytes(self, chunk: int) -> int:
        used = sum(self._part(i, chunk).nbytes for i in range(len(self._values)))
        unit = max(value.element_size() for value in self._values)
        return -(-used // unit) * unit

    def message_bytes(self, chunks: range, workers: int) -> int:
        return sum(self._chunk_bytes[chunks.start : chunks.stop])

    def _views(self, message: Tensor, chunks: range) -> list[tuple[int, Tensor, Tensor]]:
        """(part index, own values, message's values) for every part of every chunk."""
        views, chunk_start = [], 0
        for chunk in chunks:
            start = chunk_start
            for i in self._order:
                own = self._part(i, chunk)
                if own.numel():
                    views.append((i, own, message[start : start + own.nbytes].view(own.dtype)))
                start += own.nbytes
            chunk_start += self._chunk_bytes[chunk]
        return views

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        out.zero_()  # padding too
        for _, own, sent in self._views(out, chunks):
            sent.copy_(own)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        for i, own, received in self._views(message, chunks):
            own.copy_(self._combine[i](own, received))

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        for _, own, received in self._views(message, chunks):
            own.copy_(received)

    def results(self) -> list[Tensor]:
        """The reduced tensors, in the order and dtype given (maxima as magnitudes)."""
        return [
            value.view(original.dtype) if value.dtype != original.dtype else value
            for value, original in zip(self._values, self._originals, strict=True)
        ]

    def finish(self) -> Tensor:
        return self.results()[0]
