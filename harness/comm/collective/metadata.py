"""Metadata as hops: statistics, masks and counters reduced in a fixed order, never by the backend.

Backends differ in the order of reduction, and gloo's MAX loses rank 1's NaN. Here the result has the same
bytes on every rank and in every world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from gradwire.codecs.collectives import Hops, Op
from gradwire.harness.comm.collective.metadata_kernel import Part, kernel_for


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


@dataclass(frozen=True)
class _Place:
    """The places of metadata in memory: `parts` by descending item size, and the `order` of the tensors that
    they are. `offsets` are where each part begins, `starts` where each chunk does, both followed by the end
    of the last."""

    order: tuple[int, ...]
    parts: tuple[Part, ...]
    offsets: tuple[int, ...]
    starts: tuple[int, ...]


@lru_cache(maxsize=1024)
def _placed(given: tuple[Part, ...], num_chunks: int) -> _Place:
    """The places of these parts."""
    order = tuple(sorted(range(len(given)), key=lambda i: -given[i][1].itemsize))
    parts = tuple(given[i] for i in order)
    sizes = [(numel, dtype.itemsize) for _, dtype, numel in parts]
    unit = sizes[0][1]
    offsets = tuple(accumulate((numel * item for numel, item in sizes), initial=0))
    whole = -(-offsets[-1] // unit) * unit
    chunk = -(-sum(-(-numel // num_chunks) * item for numel, item in sizes) // unit) * unit
    return _Place(
        order, parts, offsets, tuple(min(number * chunk, whole) for number in range(num_chunks + 1))
    )


def _as_one(values: Sequence[Tensor], num_bytes: int) -> Tensor | None:
    """The memory of `values`, (num_bytes,) uint8, if they lie one after another and fill it; else None."""
    first, start = values[0], values[0].data_ptr()
    storage, end = first.untyped_storage().data_ptr(), start
    for value in values:
        same = value.untyped_storage().data_ptr() == storage
        if not (same and value.is_contiguous() and value.data_ptr() == end):
            return None
        end += value.nbytes
    if end - start != num_bytes or not first.numel():
        return None
    return first.view(torch.uint8).as_strided((num_bytes,), (1,), start - storage)


class MetadataHops(Hops):
    """Tensors of any length and dtype, one message per hop.

    They lie one after another in memory, by descending item size, so that each is aligned, padded with zeros
    to a multiple of the largest. This memory is cut evenly into chunks, wherever a part ends, so that each
    message is a stretch of it: sums are made and received where they stay.
    """

    def __init__(
        self, parts: Sequence[tuple[Tensor, Op]], num_chunks: int, *, in_place: bool = False
    ) -> None:
        """`in_place`: the tensors may be overwritten. Those that lie one after another, by descending item
        size, are not copied then."""
        self._originals = [tensor for tensor, _ in parts]
        values = [magnitude_bits(tensor) if op == "max_bits" else tensor for tensor, op in parts]
        assert all(value.dim() == 1 for value in values), "metadata is one-dimensional"
        given = [(op, value.dtype, value.numel()) for value, (_, op) in zip(values, parts, strict=True)]
        place = self._place = _placed(tuple(given), num_chunks)
        self._offsets, self._starts = place.offsets, place.starts
        ordered = [values[i] for i in place.order]
        made = all(value is not own for value, own in zip(values, self._originals, strict=True))
        whole = _as_one(ordered, self._starts[-1]) if in_place or made else None
        self._values = None if whole is None else values
        """The tensors, if their memory is that of the messages."""
        self._memory = self._copied(ordered) if whole is None else whole
        self._kernel = kernel_for(self._memory, place.parts)

    def _copied(self, values: Sequence[Tensor]) -> Tensor:
        num_bytes, used = self._starts[-1], self._offsets[-1]
        memory = torch.empty(num_bytes, dtype=torch.uint8, device=values[0].device)
        for value, start, stop in zip(values, self._offsets, self._offsets[1:], strict=False):
            memory[start:stop].view(value.dtype).copy_(value)
        if used < num_bytes:
            memory[used:].zero_()
        return memory

    def message_bytes(self, chunks: range, workers: int) -> int:
        return self._starts[chunks.stop] - self._starts[chunks.start]

    def message_offsets(self) -> tuple[int, ...]:
        return self._starts

    def messages_in_place(self) -> Tensor:
        return self._memory

    def _own(self, chunks: range) -> Tensor:
        return self._memory[self._starts[chunks.start] : self._starts[chunks.stop]]

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        out.copy_(self._own(chunks))

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        self._own(chunks).copy_(message)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        first, last = self._starts[chunks.start], self._starts[chunks.stop]
        if self._kernel is not None:
            self._kernel.run(message, first, last)
            return
        for number, (start, stop) in enumerate(pairwise(self._offsets)):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                op, dtype, _ = self._place.parts[number]
                combine = _COMBINE[op]
                own, received = self._memory[begin:end], message[begin - first : end - first]
                own.view(dtype).copy_(combine(own.view(dtype), received.view(dtype)))

    def results(self) -> list[Tensor]:
        """The reduced tensors, in their original order and dtype (maxima as magnitudes)."""
        if self._values is not None:
            pairs = zip(self._values, self._originals, strict=True)
            return [value if value is own else value.view(own.dtype) for value, own in pairs]
        found = dict[int, Tensor]()
        for i, start, stop in zip(self._place.order, self._offsets, self._offsets[1:], strict=False):
            found[i] = self._memory[start:stop].view(self._originals[i].dtype)
        return [found[i] for i in range(len(found))]

    def finish(self) -> Tensor:
        return self.results()[0]
