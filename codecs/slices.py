"""Hops of codecs that turn slices of a sum into bytes and back, anew at every hop.

A codec of this kind only adds a `SliceCoder`, which converts a slice to bytes and back. If the bytes are the
numbers themselves, `casts` does the same without a copy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import packed, packed_bytes, unpacked
from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.hop_codec import LossyHopCodec, LossyHops
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.memory import copied
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for, without_kernels
from gradwire.codecs.native.loading import Library
from gradwire.codecs.shards import Shard


class SliceCoder(Protocol):
    """An encoding of slices of a bucket in one round of one worker: a base class.

    Slices begin at multiples of `unit` coordinates, and only the bucket's last one ends elsewhere: `unit`
    coordinates take a multiple of 16 bytes, so every slice's bytes are aligned. `first` is the index of a
    slice's first coordinate in the bucket, which random numbers per coordinate depend on.
    """

    @property
    def unit(self) -> int: ...

    def num_bytes(self, numel: int) -> int:
        """Bytes of a slice of `numel` coordinates, the same on every rank and in every round."""
        ...

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        """Write (numel,) float32 `values`, left unchanged, to all of `out`, (num_bytes,) uint8."""
        ...

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        """Decode (numel,) float32; the result may be a view of the message."""
        ...

    def decode_into(self, message: Tensor, first: int, values: Tensor) -> None:
        """`decode`, but writes to `values`, (numel,) float32."""
        values.copy_(self.decode(message, first, values.numel()))

    def accumulate(self, message: Tensor, first: int, sums: Tensor) -> None:
        """Adds the decoded message to `sums`, (numel,) float32; codecs may override it with one fused
        operation."""
        sums.add_(self.decode(message, first, sums.numel()))

    def accumulate_encode(self, message: Tensor, first: int, sums: Tensor, out: Tensor) -> None:
        """Encode the sum of (numel,) float32 `sums`, left unchanged, and the decoded `message`."""
        self.encode(sums + self.decode(message, first, sums.numel()), first, out)


@lru_cache(maxsize=1024)
def chunk_bounds(numel: int, num_chunks: int, unit: int = 8) -> tuple[int, ...]:
    """`num_chunks + 1` boundaries of nearly equal slices, multiples of `unit`; the last ones may be short or
    empty."""
    per_chunk = -(-numel // (num_chunks * unit)) * unit
    return tuple(min(i * per_chunk, numel) for i in range(num_chunks + 1))


def chunk_slice(numel: int, num_chunks: int, chunk: int, unit: int = 8) -> Shard:
    """The coordinates of one chunk where chunks are slices with `chunk_bounds`."""
    return Shard.between(*chunk_bounds(numel, num_chunks, unit)[chunk : chunk + 2])


class SumHops(LossyHops):
    """Hops for any `SliceCoder`."""

    def __init__(self, x: Tensor, size: int, num_chunks: int, coder: SliceCoder) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to."""
        self._sums = copied(x, torch.float32)
        self._size, self._dtype, self._coder = size, x.dtype, coder
        self._bounds = chunk_bounds(x.numel(), num_chunks, coder.unit)
        self._places = [slice(start, stop) for start, stop in pairwise(self._bounds)]
        sizes = (
            coder.num_bytes(place.stop - place.start) if place.stop > place.start else 0
            for place in self._places
        )
        self._offsets = (0, *accumulate(sizes))

    def message_bytes(self, chunks: range, workers: int) -> int:
        return self._offsets[chunks.stop] - self._offsets[chunks.start]

    def message_offsets(self) -> tuple[int, ...]:
        return self._offsets

    def _slices(self, chunks: range, message: Tensor) -> list[tuple[slice, Tensor]]:
        """The slices of the bucket for the non-empty ones of `chunks`, and their parts of a message."""
        size, begin = message.numel(), self._offsets[chunks.start]
        assert size == self._offsets[chunks.stop] - begin, "message length differs from message_bytes()"
        if len(chunks) == 1:  # a slice of a tensor takes the host longer than a short message's arithmetic
            return [(self._places[chunks.start], message)] if size else []
        bounds = [offset - begin for offset in self._offsets[chunks.start : chunks.stop + 1]]
        parts = zip(self._places[chunks.start : chunks.stop], pairwise(bounds), strict=True)
        return [(place, message[start:stop]) for place, (start, stop) in parts if stop > start]

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        for place, message in self._slices(chunks, out):
            self._coder.encode(self._sums[place], place.start, message)
            if self._losses is not None:
                decoded = self._coder.decode(message, place.start, place.stop - place.start)
                torch.sub(self._sums[place], decoded, out=self._losses[place])

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        for place, part in self._slices(chunks, message):
            self._coder.accumulate(part, place.start, self._sums[place])

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        if self._losses is not None:  # which are of the sums
            super().accumulate_encode(message, chunks, out, received, workers)
            return
        parts = zip(self._slices(chunks, message), self._slices(chunks, out), strict=True)
        for (place, came), (_, sent) in parts:
            self._coder.accumulate_encode(came, place.start, self._sums[place], sent)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        if message is None:
            self.encode(chunks, out, workers)
        else:
            self.accumulate_encode(message, chunks, out, received, workers)
        self.decode(out, chunks, workers)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        for place, part in self._slices(chunks, message):
            self._coder.decode_into(part, place.start, self._sums[place])

    def finish(self) -> Tensor:
        mean = self._sums.div_(constant(self._size, self._sums))
        return mean if mean.dtype == self._dtype else copied(mean, self._dtype)

    def shard(self, chunks: Sequence[int]) -> Tensor:
        own = torch.cat([self._sums[:0], *(self._sums[slice(*self._bounds[c : c + 2])] for c in chunks)])
        return own.div_(constant(self._size, own))

    def keep_losses(self) -> None:
        self._losses = torch.zeros_like(self._sums)


class SliceCodec(LossyHopCodec):
    """Base class of codecs that consist of a `SliceCoder` for each round."""

    @abstractmethod
    def coder(self, this_round: Round) -> SliceCoder:
        """The coder of one worker in one round; the same `unit` in all of them."""

    def refuses_capture(self, layout: Layout) -> str | None:
        """Allows capture with `GroupCoder`, whose kernels read each replay's key from the device."""
        coder = self.coder(_any_round(layout))
        if isinstance(coder, GroupCoder) and coder.family:
            return without_kernels(layout.device)
        return super().refuses_capture(layout)

    def hops(self, x: Tensor, this_round: Round, num_chunks: int) -> SumHops:
        return SumHops(x, this_round.size, num_chunks, self.coder(this_round))

    def chunk(self, layout: Layout, num_chunks: int, chunk: int) -> Shard:
        return chunk_slice(layout.numel, num_chunks, chunk, self.coder(_any_round(layout)).unit)


def _any_round(layout: Layout) -> Round:
    return Round(step=0, layout=layout, rank=0, size=1, seed=0)


@dataclass(frozen=True)
class GroupCoder(SliceCoder, ABC):
    """A `SliceCoder` that sends scales for every `group` coordinates and `bits` bits for each of them.

    `quantize` and `dequantize` define the bytes; compiled kernels, if available, do all of it at once.
    """

    group: int
    bits: int

    scale_dtype: ClassVar[torch.dtype] = torch.float32
    family: ClassVar[str] = ""
    """The name of its compiled kernels: `levels` for `levels_encode`, `levels_decode` and `levels_add`."""

    @property
    def scales_per_group(self) -> int:
        return 1

    def settings(self, library: Library, first: int) -> dict[str, Any]:
        """Fields of the kernels' structs apart from tensors and `numel`, for coordinates from `first` on."""
        return {"group": self.group}

    def run(self, library: Library, operation: str, values: Tensor, first: int = 0, **given: Any) -> None:
        """Run a kernel of this coder's family for the coordinates of `values`; `given` are fields as in
        `native.call`."""
        fields = {**self.settings(library, first), "numel": values.numel(), **given}
        run(library, f"{self.family}_{operation}", values.device, **fields)

    @abstractmethod
    def quantize(self, rows: Tensor, first: int, numel: int) -> tuple[Tensor, Tensor]:
        """Scales, (groups, scales_per_group) of `scale_dtype`, and codes < 2^bits, (groups, group) int32.

        `rows` (groups, group) float32 are the bucket's coordinates from `first` on, zeros beyond `numel` of
        them, and not to be written to.
        """

    @abstractmethod
    def dequantize(self, scales: Tensor, codes: Tensor) -> Tensor:
        """(groups, group) float32 from what `quantize` returned."""

    @property
    def _scale_bytes(self) -> int:
        return self.scales_per_group * self.scale_dtype.itemsize

    @property
    def unit(self) -> int:
        """The smallest number of coordinates in whole groups that take a multiple of 16 bytes."""
        group_bytes = self._scale_bytes + packed_bytes(self.group, self.bits)
        return self.group * (16 // math.gcd(16, group_bytes))

    def num_bytes(self, numel: int) -> int:
        return packed_bytes(numel, self.bits) + -(-numel // self.group) * self._scale_bytes

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        """Encode `values`, (numel,) of any floating dtype."""
        self._encode(values, first, out, None)

    def accumulate_encode(self, message: Tensor, first: int, sums: Tensor, out: Tensor) -> None:
        self._encode(sums, first, out, message)

    def _encode(self, values: Tensor, first: int, out: Tensor, message: Tensor | None) -> None:
        library, numel = library_for(values.device), values.numel()
        if library is not None and self.family:
            size = self.num_bytes(numel)
            given = {"message_in": (message, size), "message_out": (out, size)}
            values = readable(values)
            self.run(library, "encode", values, first, values_in=(values, numel), **given)
            return
        total = values.to(torch.float32)
        if message is not None:
            total = total + self._values(message, numel)
        scales, codes = self.quantize(self._rows(total), first, numel)
        code_part, scale_part = self.split(out, numel)
        scale_part.copy_(scales.view(-1).view(torch.uint8))
        code_part.copy_(packed(codes.view(-1)[: -(-numel // 8) * 8], self.bits))

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        values = torch.empty(numel, dtype=torch.float32, device=message.device)
        self.decode_into(message, first, values)
        return values

    def decode_into(self, message: Tensor, first: int, values: Tensor) -> None:
        self._decode(message, values, add=False)

    def accumulate(self, message: Tensor, first: int, sums: Tensor) -> None:
        self._decode(message, sums, add=True)

    def _decode(self, message: Tensor, values: Tensor, add: bool) -> None:
        library = library_for(values.device)
        if library is not None and self.family:
            received = (message, self.num_bytes(values.numel()))
            operation = "add" if add else "decode"
            self.run(library, operation, values, message_in=received, values_out=(values, values.numel()))
            return
        decoded = self._values(message, values.numel())
        values.copy_(values + decoded if add else decoded)

    def _values(self, message: Tensor, numel: int) -> Tensor:
        """The values of a message, (numel,) float32."""
        codes, scales = self.split(message, numel)
        # Scales may be unaligned, so they are copied before they are read.
        scales = scales.clone().view(self.scale_dtype).view(-(-numel // self.group), self.scales_per_group)
        return self.dequantize(scales, self._rows(unpacked(codes, self.bits))).view(-1)[:numel]

    def split(self, message: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """The bytes of a message's codes and of its scales, as views."""
        end = packed_bytes(numel, self.bits)
        return message[:end], message[end:]

    def _rows(self, flat: Tensor) -> Tensor:
        """Rows (groups, group), the last group padded with zeros; a view where possible."""
        padding = -flat.numel() % self.group
        return (torch.nn.functional.pad(flat, (0, padding)) if padding else flat).view(-1, self.group)
