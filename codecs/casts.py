"""Hops that send partial sums of all or of selected coordinates as float32 or bfloat16.

Each hop is one pass over its slice of the bucket, `SlicePass`: no copy of the bucket is made at the start,
and the division by the workers is a part of the last hop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.hop_codec import LossyHops
from gradwire.codecs.memory import copied, empty
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import BUCKETS
from gradwire.codecs.slices import SliceCoder, chunk_bounds

UNIT = 8
"""Slices begin at multiples of so many coordinates: of 16 bytes in bfloat16."""

_SOURCES = {torch.uint8: "first", torch.float32: "own"}
"""The field of `cast_slice` for the own numbers, by dtype; `x` for a bucket in bfloat16."""


@dataclass(frozen=True)
class SlicePass:
    """One pass over a slice: messages have `wire` numbers, a mean is a sum divided by `workers`."""

    wire: torch.dtype
    workers: int = 1

    def run(
        self,
        own: Tensor,
        message: Tensor | None = None,
        *,
        sums: Tensor | None = None,
        out: Tensor | None = None,
        mean: Tensor | None = None,
    ) -> None:
        """Add a message to `own` in float32, and write the sum to what is given: `sums`, `out` or `mean`.

        `own` are (numel,) float32 or bfloat16 coordinates, or the bytes of a message, uint8. `sums`, float32,
        may be `own`. `out` is the message of the sum, `mean`, float32 or bfloat16, is the sum divided by
        the workers: with `out`, the sum that this message stands for.
        """
        wire, library = self.wire, library_for(own.device)
        if library is None:
            total = (own.view(wire) if own.dtype == torch.uint8 else own).to(torch.float32)
            if message is not None:
                total = total + message.view(wire)
            if sums is not None:
                sums.copy_(total)
            if out is not None:
                total = out.view(wire).copy_(total).to(torch.float32)
            if mean is not None:
                mean.copy_(total / constant(self.workers, total))
            return
        given, dtype, item = own.numel(), own.dtype, wire.itemsize
        numel = given // item if dtype == torch.uint8 else given
        num_bytes = numel * item
        if dtype == torch.bfloat16 and mean is not None and mean.dtype != dtype:
            own, dtype = own.to(torch.float32), torch.float32
        source = _SOURCES.get(dtype, "x")
        run(
            library,
            "cast_slice",
            own.device,
            **{source: (own, given)},
            message=(message, num_bytes),
            sums=(sums, numel),
            out=(out, num_bytes),
            mean=(mean, numel),
            numel=numel,
            wire=BUCKETS.index(wire),
            workers=self.workers,
        )


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
        self._pass = SlicePass(wire, size)
        self._bounds = chunk_bounds(x.numel(), num_chunks, UNIT)
        self._is_summed, self._is_final = [False] * num_chunks, [False] * num_chunks
        self._sums: Tensor | None = None
        self._mean: Tensor | None = None
        self._sends_means = False

    def message_bytes(self, chunks: range, workers: int) -> int:
        return (self._bounds[chunks.stop] - self._bounds[chunks.start]) * self._wire.itemsize

    def _place(self, chunks: range) -> slice:
        return slice(self._bounds[chunks.start], self._bounds[chunks.stop])

    def _own(self, chunks: range) -> Tensor:
        """This worker's sums of `chunks`, which are either all still in the bucket or all stored: the
        bucket's coordinates, or the stored sums."""
        place = self._place(chunks)
        if self._is_summed[chunks.start]:
            assert self._sums is not None
            return self._sums[place]
        return self._x[place]

    def _alike(self, chunks: range) -> Iterator[range]:
        """Splits `chunks` where chunks with a stored sum adjoin chunks without one."""
        start = chunks.start
        for chunk in chunks[1:]:
            if self._is_summed[chunk] != self._is_summed[start]:
                yield range(start, chunk)
                start = chunk
        yield range(start, chunks.stop)

    def _part(self, message: Tensor, whole: range, chunks: range) -> Tensor:
        """The part of a message of the chunks `whole` that belongs to `chunks`."""
        assert message.numel() == self.message_bytes(whole, 1), "message length differs from message_bytes()"
        if chunks == whole:
            return message
        start = self.message_bytes(range(whole.start, chunks.start), 1)
        return message[start : start + self.message_bytes(chunks, 1)]

    def _means(self) -> Tensor:
        """The result tensor, in the bucket's dtype if kernels can write it."""
        if self._mean is None:
            self._mean = empty(self._x.numel(), self._x.dtype, self._x.device)
        return self._mean

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
        return self._means().view(torch.uint8)

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        for alike in self._alike(chunks):
            own, part = self._own(alike), self._part(out, chunks, alike)
            self._pass.run(own, out=part)
            if self._losses is not None:
                lost = own.to(torch.float32) - part.view(self._wire)
                self._losses[self._place(alike)] = lost

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        if self._sums is None:
            self._sums = empty(self._x.numel(), torch.float32, self._x.device)
        for alike in self._alike(chunks):
            part = self._part(message, chunks, alike)
            self._pass.run(self._own(alike), part, sums=self._sums[self._place(alike)])
        self._is_summed[chunks.start : chunks.stop] = [True] * len(chunks)

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        if self._losses is not None:  # which are of the sums
            super().accumulate_encode(message, chunks, out, received, workers)
            return
        for alike in self._alike(chunks):
            came, sent = self._part(message, chunks, alike), self._part(out, chunks, alike)
            self._pass.run(self._own(alike), came, out=sent)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        if self._losses is not None:
            super().seal(message, chunks, out, received, workers)
            self.decode(out, chunks, workers)
            return
        for alike in self._alike(chunks):
            came = None if message is None else self._part(message, chunks, alike)
            sent, mean = self._part(out, chunks, alike), self._means()[self._place(alike)]
            if not self._sends_means:
                self._pass.run(self._own(alike), came, out=sent, mean=mean)
            elif self._wire == torch.float32:
                self._pass.run(self._own(alike), came, mean=mean)
            else:  # what is divided is the sum as a message has it
                self._pass.run(self._own(alike), came, out=sent)
                self._pass.run(sent, mean=mean)
        self._end(chunks)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        assert message.numel() == self.message_bytes(chunks, 1), "message length differs from message_bytes()"
        if not self._sends_means:  # or it is where it belongs
            mean = self._means()[self._place(chunks)]
            self._pass.run(message, mean=mean)
        self._end(chunks)

    def collect(self, messages: Sequence[Tensor], chunks: range) -> None:
        first, *others = messages
        mean, sums = self._means()[self._place(chunks)], first
        if not others:
            self._pass.run(first, mean=mean)
            self._end(chunks)
            return
        if len(others) > 1:
            sums = empty(mean.numel(), torch.float32, mean.device)
            self._pass.run(first, others[0], sums=sums)
            for message in others[1:-1]:
                self._pass.run(sums, message, sums=sums)
        self._pass.run(sums, others[-1], mean=mean)
        self._end(chunks)

    def _end(self, chunks: range) -> None:
        self._is_final[chunks.start : chunks.stop] = [True] * len(chunks)

    def finish(self) -> Tensor:
        if self._size == 1 and not any(self._is_final):  # nothing is sent
            return self._x.to(self._dtype, copy=True)
        assert all(self._is_final), "finish() before the sums of all chunks have come"
        mean = self._means()
        return mean if mean.dtype == self._dtype else copied(mean, self._dtype)

    def shard(self, chunks: Sequence[int]) -> Tensor:
        places = [self._place(range(chunk, chunk + 1)) for chunk in chunks]
        numel = sum(place.stop - place.start for place in places)
        mean = empty(numel, torch.float32, self._x.device)
        start = 0
        for chunk, place in zip(chunks, places, strict=True):
            stop = start + place.stop - place.start
            own = self._own(range(chunk, chunk + 1))
            self._pass.run(own, mean=mean[start:stop])
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
            self._bounds = selection.before(bounds)

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
