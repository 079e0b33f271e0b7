"""Metadata as hops: statistics, masks and counters reduced in a fixed order, never by the backend.

Backends differ in the order of reduction, and gloo's MAX loses rank 1's NaN. Here the result has the same
bytes on every rank and in every world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.interface import Hops, Op
from gradwire.harness.comm.collective.metadata_kernel import kernel_for


def _sum(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype in (torch.bfloat16, torch.float16):
        return (a.float() + b.float()).to(a.dtype)
    return a + b


def _norm(a: Tensor, b: Tensor) -> Tensor:
    """sqrt(a² + b²), computed in float64, where squares of float32 neither overflow nor vanish, so that no
    scaling is needed."""
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


@lru_cache(maxsize=1024)
def _laid_out(sizes: tuple[tuple[int, int], ...], num_chunks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The order of parts in a message, and the offset of each part in a message of all chunks, followed by
    the end of the last.

    `sizes` holds the number of elements and the item size of each part.
    """
    order = tuple(sorted(range(len(sizes)), key=lambda i: -sizes[i][1]))
    unit, starts = sizes[order[0]][1], [0]
    for chunk in range(num_chunks):
        used = 0
        for numel, item in sizes:
            each = -(-numel // num_chunks)
            used += (min((chunk + 1) * each, numel) - min(chunk * each, numel)) * item
        starts.append(starts[-1] + -(-used // unit) * unit)
    return order, tuple(starts)


class MetadataHops(Hops):
    """Tensors of any length and dtype, each split evenly over the chunks, one message per hop.

    Tensors are laid out by descending item size, so that each is aligned within a message. The part of a
    chunk is padded to a multiple of the largest item size.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, Op]], num_chunks: int) -> None:
        self._originals = [tensor for tensor, _ in parts]
        values = [magnitude_bits(tensor) if op == "max_bits" else tensor for tensor, op in parts]
        assert all(value.dim() == 1 for value in values), "metadata is one-dimensional"
        self._values = [value.clone(memory_format=torch.contiguous_format) for value in values]
        self._combine = [_COMBINE[op] for _, op in parts]
        sizes = tuple((value.numel(), value.element_size()) for value in values)
        self._order, self._starts = _laid_out(sizes, num_chunks)
        self._per_chunk = [-(-numel // num_chunks) for numel, _ in sizes]
        unit = sizes[self._order[0]][1]
        self._kernel = kernel_for([(self._values[i], parts[i][1]) for i in self._order], num_chunks, unit)

    def _bounds(self, index: int, chunk: int) -> tuple[int, int]:
        """The range of a part's elements that belongs to a chunk."""
        numel, each = self._values[index].numel(), self._per_chunk[index]
        return min(chunk * each, numel), min((chunk + 1) * each, numel)

    def message_bytes(self, chunks: range, workers: int) -> int:
        return self._starts[chunks.stop] - self._starts[chunks.start]

    def _views(self, message: Tensor, chunks: range) -> list[tuple[int, Tensor, Tensor]]:
        """(part index, own values, message's values) for every part of every chunk in the message."""
        views = []
        for chunk in chunks:
            start = self._starts[chunk] - self._starts[chunks.start]
            for i in self._order:
                own = self._values[i][slice(*self._bounds(i, chunk))]
                if own.numel():
                    views.append((i, own, message[start : start + own.nbytes].view(own.dtype)))
                start += own.nbytes
        return views

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        if self._kernel is not None:
            self._kernel.run("PUT", out, chunks)
            return
        out.zero_()  # padding too
        for _, own, sent in self._views(out, chunks):
            sent.copy_(own)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        if self._kernel is not None:
            self._kernel.run("COMBINE", message, chunks)
            return
        for i, own, received in self._views(message, chunks):
            own.copy_(self._combine[i](own, received))

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        if self._kernel is not None:
            self._kernel.run("TAKE", message, chunks)
            return
        for _, own, received in self._views(message, chunks):
            own.copy_(received)

    def results(self) -> list[Tensor]:
        """The reduced tensors, in their original order and dtype (maxima as magnitudes)."""
        return [
            value.view(original.dtype) if value.dtype != original.dtype else value
            for value, original in zip(self._values, self._originals, strict=True)
        ]

    def finish(self) -> Tensor:
        return self.results()[0]
