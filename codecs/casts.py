"""Hops that send partial sums of all or of selected coordinates as float32 or bfloat16.

Each hop is one pass over its slice of the bucket, `BucketPass`: no copy of the bucket is made at the start,
and the division by the workers is a part of the last hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.hop_codec import LossyHops
from gradwire.codecs.memory import copied, empty
from gradwire.codecs.native.call import readable
from gradwire.codecs.slice_pass import BucketPass, SlicePass
from gradwire.codecs.slices import SliceCoder, chunk_bounds

UNIT = 8
"""Slices begin at multiples of so many coordinates: of 16 bytes in bfloat16."""


@dataclass(frozen=True)
class Cast(SliceCoder):
    """Slices converted to another floating dtype."""

    dtype: torch.dtype
    unit = UNIT

    def num_bytes(self, numel: int) -> int:
        return numel * self.dtype.itemsize

    def encode(self, values: Tensor, first: int, out: Tensor) -> None:
        out.view(self.dtype).copy_(values)

    def decode(self, message: Tensor, first: int, numel: int) -> Tensor:
        return message.view(self.dtype)


class CastHops(LossyHops):
    """Partial sums in float32 that travel as `wire`, float32 or bfloat16.

    A chunk's sum begins as the bucket's own coordinates, in place. It is stored in float32 only where an
    added message is not passed on at once, or where error feedback needs the difference.
    """

    def __init__(self, x: Tensor, size: int, num_chunks: int, wire: torch.dtype) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype, which must not change until the round
        has ended; it is not written to."""
        self._x = readable(x).contiguous()
        self._size, self._dtype, self._wire = size, x.dtype, wire
        self._pass = BucketPass(self._x, wire, size)
        self._bounds = chunk_bounds(x.numel(), num_chunks, UNIT)
        self._is_summed, self._is_final = [False] * num_chunks, [False] * num_chunks
        self._sends_means = False

    def message_bytes(self, chunks: range, workers: int) -> int:
        return (self._bounds[chunks.stop] - self._bounds[chunks.start]) * self._wire.itemsize

    def message_offsets(self) -> tuple[int, ...]:
        return tuple([bound * self._wire.itemsize for bound in self._bounds])

    def _place(self, chunks: range) -> slice:
        return slice(self._bounds[chunks.start], self._bounds[chunks.stop])

    def _own(self, chunks: range) -> Tensor:
        """This worker's sums of `chunks`, which are either all still in the bucket or all stored: the
        bucket's coordinates, or the stored sums."""
        summed = self._is_summed[chunks.start]
        return (self._pass.sums if summed else self._x)[self._place(chunks)]

    def _alike(self, chunks: range) -> Sequence[range]:
        """Splits `chunks` where chunks with a stored sum adjoin chunks without one."""
        if len(chunks) == 1:
            return (chunks,)
        cuts = [c for c in chunks[1:] if self._is_summed[c] != self._is_summed[c - 1]]
        return [range(*bounds) for bounds in pairwise((chunks.start, *cuts, chunks.stop))]

    def _part(self, message: Tensor, whole: range, chunks: range) -> Tensor:
        """The part of a message of the chunks `whole` that belongs to `chunks`."""
        assert message.numel() == self.message_bytes(whole, 1), "message length differs from message_bytes()"
        if chunks is whole or chunks == whole:
            return message
        start = self.message_bytes(range(whole.start, chunks.start), 1)
        return message[start : start + self.message_bytes(chunks, 1)]

    def _run(
        self,
        chunks: range,
        message: Tensor | None = None,
        *,
        out: Tensor | None = None,
        sums: bool = False,
        mean: bool = False,
    ) -> None:
        """One pass over this worker's sums of `chunks`, which are either all still in the bucket or all
        stored."""
        summed = self._is_summed[chunks.start]
        self._pass.run(self._place(chunks), message, summed=summed, out=out, sums=sums, mean=mean)

    def leaf(self, chunks: range) -> Tensor | None:
        if self._x.dtype != self._wire or self._losses is not None:
            return None
        summed = any(self._is_summed[chunk] for chunk in chunks)
        return None if summed else self._x[self._place(chunks)].view(torch.uint8)

    def seal_in_result(self) -> Tensor | None:
        """The result, if messages have its dtype: the sink then divides the sum, and other ranks receive
        means."""
        if self._x.dtype != self._wire or self._losses is not None:
            return None
        self._sends_means = True
        return self._pass.mean.view(torch.uint8)

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        for alike in self._alike(chunks):
            part = self._part(out, chunks, alike)
            self._run(alike, out=part)
            if self._losses is not None:
                lost = self._own(alike).to(torch.float32) - part.view(self._wire)
                self._losses[self._place(alike)] = lost

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        for alike in self._alike(chunks):
            self._run(alike, self._part(message, chunks, alike), sums=True)
        self._is_summed[chunks.start : chunks.stop] = [True] * len(chunks)

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        if self._losses is not None:  # which are of the sums
            super().accumulate_encode(message, chunks, out, received, workers)
            return
        for alike in self._alike(chunks):
            came, sent = self._part(message, chunks, alike), self._part(out, chunks, alike)
            self._run(alike, came, out=sent)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        if self._losses is not None:
            super().seal(message, chunks, out, received, workers)
            self.decode(out, chunks, workers)
            return
        for alike in self._alike(chunks):
            came = None if message is None else self._part(message, chunks, alike)
            sent = self._part(out, chunks, alike)
            if not self._sends_means:
                self._run(alike, came, out=sent, mean=True)
            elif self._wire == torch.float32:
                self._run(alike, came, mean=True)
            else:  # what is divided is the sum as a message has it
                self._run(alike, came, out=sent)
                self._pass.run(self._place(alike), first=sent, mean=True)
        self._end(chunks)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        assert message.numel() == self.message_bytes(chunks, 1), "message length differs from message_bytes()"
        if not self._sends_means:  # or it is where it belongs
            self._pass.run(self._place(chunks), first=message, mean=True)
        self._end(chunks)

    def collect(self, messages: Sequence[Tensor], chunks: range) -> None:
        first, *others = messages
        place = self._place(chunks)
        if len(others) <= 1:
            self._pass.run(place, *others, first=first, mean=True)
            self._end(chunks)
            return
        self._pass.run(place, others[0], first=first, sums=True)
        for message in others[1:-1]:
            self._pass.run(place, message, summed=True, sums=True)
        self._pass.run(place, others[-1], summed=True, mean=True)
        self._end(chunks)

    def _end(self, chunks: range) -> None:
        self._is_final[chunks.start : chunks.stop] = [True] * len(chunks)

    def finish(self) -> Tensor:
        if self._size == 1 and not any(self._is_final):  # nothing is sent
            return self._x.to(self._dtype, copy=True)
        assert all(self._is_final), "finish() before the sums of all chunks have come"
        mean = self._pass.mean
        return mean if mean.dtype == self._dtype else copied(mean, self._dtype)

    def shard(self, chunks: Sequence[int]) -> Tensor:
        places = [self._place(range(chunk, chunk + 1)) for chunk in chunks]
        numel = sum(place.stop - place.start for place in places)
        mean = empty(numel, torch.float32, self._x.device)
        start = 0
        for chunk, place in zip(chunks, places, strict=True):
            stop = start + place.stop - place.start
            own = self._own(range(chunk, chunk + 1))
            SlicePass(self._wire, self._size).run(own, mean=mean[start:stop])
            start = stop
        return mean

    def keep_losses(self) -> None:
        self._losses = torch.zeros(self._x.numel(), dtype=torch.float32, device=self._x.device)


class CoordinateSelection(Protocol):
    """Some coordinates of a bucket, in a fixed order."""

    @property
    def factor(self) -> float:
        """Selected values are multiplied by it before they are sent."""
        ...

    def take(self, x: Tensor) -> Tensor:
        """The selected values of `x`, (numel,) of any dtype, which is left unchanged: (selected,)."""
        ...

    def put(self, values: Tensor, into: Tensor) -> None:
        """Write (selected,) values to their places in `into`, (numel,) of the same dtype."""
        ...

    def before(self, bounds: Sequence[int]) -> list[int]:
        """Number of selected coordinates before each of `bounds`, ascending from 0 to `numel`."""
        ...


class SelectedHops(CastHops):
    """Hops of the selected coordinates, which travel as `wire`; the mean of all others is 0."""

    def __init__(
        self,
        x: Tensor,
        size: int,
        num_chunks: int,
        selection: CoordinateSelection,
        wire: torch.dtype,
        bounds: Sequence[int] | None = None,
    ) -> None:
        """`x` is this worker's bucket, (numel,) of a floating dtype; it is not written to. Chunks hold
        equally many selected coordinates, or those between the `bounds`."""
        self._bucket, self._selection, self._places = x, selection, bounds
        own = selection.take(x)
        if selection.factor != 1.0:
            own = own.to(torch.float32) * constant(selection.factor, x)
        super().__init__(own, size, num_chunks, wire)
        if bounds is not None:
            self._bounds = tuple(selection.before(bounds))

    def finish(self) -> Tensor:
        mean = torch.zeros_like(self._bucket)
        self._selection.put(super().finish().to(mean.dtype), mean)
        return mean

    def shard(self, chunks: Sequence[int]) -> Tensor:
        assert self._places is not None, "shard() of chunks that hold other coordinates in every round"
        mean = torch.zeros(self._bucket.numel(), dtype=torch.float32, device=self._bucket.device)
        self._selection.put(super().shard(range(len(self._bounds) - 1)), mean)
        return torch.cat([mean[:0], *(mean[slice(*self._places[c : c + 2])] for c in chunks)])

    def losses(self) -> Tensor:
        """The error of every coordinate: the whole value where it is not sent, and the effect of the factor
        and of rounding where it is."""
        lost = self._bucket.to(torch.float32, copy=True)
        own = self._selection.take(lost)
        self._selection.put(own - own * constant(self._selection.factor, own) + super().losses(), lost)
        return lost
