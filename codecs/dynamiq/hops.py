"""One round of DynamiQ, hop by hop (DynamiQ §3.4, §3.5): the work of a hop on a chunk, the order of these
calls, and the compiled calls that the rounds of a bucket reuse."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gradwire.codecs import memory
from gradwire.codecs.dynamiq.allocation import WidthIncrements
from gradwire.codecs.dynamiq.arrangement import Arrangement, Chunks, native_plan
from gradwire.codecs.dynamiq.definition import Coder, OrderedChunk, ReferenceHop
from gradwire.codecs.dynamiq.format import chunk_coordinates
from gradwire.codecs.dynamiq.native import NativeHop
from gradwire.codecs.hop_codec import LossyHops
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library
from gradwire.codecs.options.dynamiq import SUPER_GROUP


class Hop(Protocol):
    """The hops of one chunk in one round of one worker."""

    def run(
        self,
        *,
        x: Tensor | None = None,
        sums: Tensor | None = None,
        incoming: Tensor | None = None,
        outgoing: Tensor | None = None,
        new_sums: Tensor | None = None,
        result: Tensor | None = None,
    ) -> None:
        """Add up the given inputs, and write the sum in the given forms.

        Inputs are this worker's bucket `x`, (numel,), or partial `sums`, (super-groups, 256) float32, and/or
        an `incoming` message. The sum is written to an `outgoing` message, to `new_sums`, which may be
        `sums`, or, divided by the number of workers, to the bucket `result`. With both `outgoing` and
        `result`, the result is decoded from the outgoing message.
        """
        ...


def make_hop(numel: int, dtype: torch.dtype, chunk: OrderedChunk, coder: Coder) -> Hop:
    """The hops of a chunk of a bucket of `numel` coordinates of `dtype`, float32 or bfloat16.

    Not checked: that `order` holds super-groups of this bucket. Compiled kernels read the counts when they
    run, and produce NaN if the counts do not match the order or need more bytes than the message has.
    """
    library = library_for(chunk.order.device)
    if library is None:
        return ReferenceHop(numel, chunk, coder)
    return NativeHop(library, numel, dtype, chunk, coder)


class DynamiQHops(LossyHops):
    """Hops of the mean-free super-groups.

    A chunk's partial sum is at first read from the bucket. It becomes rows of float32, in message order, once
    a message is added that is not passed on in the same hop. The last hop decodes straight into the result.
    """

    def __init__(
        self,
        x: Tensor,
        dtype: torch.dtype,
        arrangement: Arrangement,
        coder: Coder,
        hops: Sequence[Hop] | None = None,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        """`x` is this worker's bucket, (numel,) float32 or bfloat16; it is not written to. The mean is given
        in `dtype`. `hops` holds one hop object for each chunk, made here if None. `finished` is called when
        `hops` and `arrangement` are no longer needed."""
        self._dtype, self._x = dtype, x
        self.arrangement = self._arrangement = arrangement
        self._sums: Tensor | None = None
        self._made: Tensor | None = None
        self._summed: set[int] = set()
        self._finished: set[int] = set()
        self._coder, self._release = coder, finished
        self._offsets, self._filled = arrangement.offsets, arrangement.chunks.sizes
        self._hops = hops or [
            make_hop(x.numel(), x.dtype, arrangement.chunk(number), coder)
            for number in range(len(self._filled))
        ]

    def _each(self, chunks: range, *messages: Tensor) -> Sequence[tuple[Any, ...]]:
        """The non-empty chunks, each with its part of the messages."""
        first, stop, offsets = chunks.start, chunks.stop, self._offsets
        for message in messages:
            same = message.numel() == offsets[stop] - offsets[first]
            assert same, "message length differs from message_bytes()"
        if stop - first == 1:
            return ((first, *messages),) if self._filled[first].super_groups else ()
        sizes = [b - a for a, b in pairwise(offsets[first : stop + 1])]
        parts = zip(chunks, *(message.split_with_sizes(sizes) for message in messages), strict=True)
        return [found for found in parts if self._filled[found[0]].super_groups]

    @property
    def _result(self) -> Tensor:
        """The tensor of the means."""
        if self._made is None:
            self._made = memory.empty(self._x.numel(), self._x.dtype, self._x.device)
        return self._made

    def _rows(self, chunk: int) -> Tensor:
        """The rows that hold the chunk's partial sum once it is no longer read from the bucket."""
        if self._sums is None:
            order = self._arrangement.order
            sums = memory.empty(order.numel() * SUPER_GROUP, torch.float32, order.device)
            self._sums = sums.view(-1, SUPER_GROUP)
        return self._sums[self._arrangement.rows[chunk]]

    def _run(
        self,
        chunk: int,
        incoming: Tensor | None = None,
        outgoing: Tensor | None = None,
        *,
        new_sums: Tensor | None = None,
        result: Tensor | None = None,
    ) -> None:
        """`Hop.run` on the chunk's partial sum."""
        summed = chunk in self._summed
        self._hops[chunk].run(
            x=None if summed else self._x,
            sums=self._rows(chunk) if summed else None,
            incoming=incoming,
            outgoing=outgoing,
            new_sums=new_sums,
            result=result,
        )

    def message_bytes(self, chunks: range, workers: int) -> int:
        return self._offsets[chunks.stop] - self._offsets[chunks.start]

    def message_offsets(self) -> tuple[int, ...]:
        return self._offsets

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        for chunk, message in self._each(chunks, out):
            self._run(chunk, None, message)
            self._add_losses(chunk, message)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        for chunk, part in self._each(chunks, message):
            self._run(chunk, part, new_sums=self._rows(chunk))
            self._summed.add(chunk)

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        if self._losses is not None:  # the sum is needed once more
            self.accumulate(message, chunks, received)
            self.encode(chunks, out, workers)
            return
        for chunk, source, target in self._each(chunks, message, out):
            self._run(chunk, source, target)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        if self._losses is not None:  # the sum is needed once more
            super().seal(message, chunks, out, received, workers)
            self.decode(out, chunks, workers)
            return
        messages = (out,) if message is None else (out, message)
        for chunk, target, *incoming in self._each(chunks, *messages):
            self._run(chunk, incoming[0] if incoming else None, target, result=self._result)
            self._finished.add(chunk)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        for chunk, part in self._each(chunks, message):
            self._hops[chunk].run(incoming=part, result=self._result)
            self._finished.add(chunk)

    def collect(self, messages: Sequence[Tensor], chunks: range) -> None:
        first, *others = messages
        for chunk, part in self._each(chunks, first):
            self._hops[chunk].run(incoming=part, new_sums=self._rows(chunk))
            self._summed.add(chunk)
        for message in others:
            self.accumulate(message, chunks, 1)

    def finish(self) -> Tensor:
        for chunk, size in enumerate(self._filled):
            if chunk not in self._finished and size.super_groups:
                self._run(chunk, result=self._result)
        if self._losses is None:
            self._release()
        return self._result.to(self._dtype)

    def shard(self, chunks: Sequence[int]) -> Tensor:
        empty = torch.empty(0, dtype=torch.float32, device=self._x.device)
        shard = torch.cat([empty, *(self._mean_of(chunk) for chunk in chunks)])
        if self._losses is None:
            self._release()
        return shard

    def _mean_of(self, chunk: int) -> Tensor:
        """The mean of a chunk, (coordinates,) float32, laid out as if its super-groups were a whole
        bucket."""
        if chunk not in self._summed and self._filled[chunk].super_groups:
            self._hops[chunk].run(x=self._x, new_sums=self._rows(chunk))
        num_chunks = len(self._filled)
        numel = chunk_coordinates(self._x.numel(), num_chunks, chunk)
        mean = torch.empty(numel, dtype=torch.float32, device=self._x.device)
        if numel:
            whole = self._arrangement.chunk(chunk)
            own = whole._replace(order=whole.order // num_chunks)
            hop = make_hop(numel, mean.dtype, own, self._coder)
            hop.run(sums=self._rows(chunk), result=mean)
        return mean

    def _add_losses(self, chunk: int, message: Tensor) -> None:
        if self._losses is None:
            return
        rows = self._arrangement.rows[chunk]
        if chunk not in self._summed:  # as rows, to be compared with what the message stands for
            self._hops[chunk].run(x=self._x, new_sums=self._rows(chunk))
            self._summed.add(chunk)
        decoded = torch.empty_like(self._rows(chunk))
        self._hops[chunk].run(incoming=message, new_sums=decoded)
        self._losses[rows] += self._rows(chunk) - decoded

    def keep_losses(self) -> None:
        self._losses = torch.zeros(self._arrangement.order.numel(), SUPER_GROUP, device=self._x.device)

    def losses(self) -> Tensor:
        rows, order = super().losses(), self._arrangement.order.long()
        losses = torch.empty_like(rows).index_copy_(0, order, rows)
        self._release()
        return losses.view(-1)[: self._x.numel()]


Item = TypeVar("Item")


class KeptRounds:
    """The plan of a bucket and the hops of its chunks, kept between rounds: their tensors, and native calls
    of which only the round's own fields change. Serves one round at a time."""

    def __init__(
        self, library: Library, x: Tensor, chunks: Chunks, increments: WidthIncrements, coder: Coder
    ) -> None:
        """`x` is a bucket like those of later rounds; `coder` belongs to any round with the same number of
        workers."""
        plan = native_plan(library, chunks, increments, coder.dither.workers, x.device)
        self._plan, self._chunks = plan, chunks
        self.hops = [
            NativeHop(library, x.numel(), x.dtype, chunk, coder)
            for chunk in (
                OrderedChunk(plan.order[rows], plan.mean[rows], numbers)
                for rows, numbers in zip(chunks.rows, plan.numbers, strict=True)
            )
        ]

    def begin(
        self, mean_sum: Tensor | None, norm: Tensor | None, coder: Coder, exact_size: bool
    ) -> Arrangement:
        """The arrangement of a round, from its reduced statistics (None: not sent).

        The hops use this arrangement from now on. Its tensors are overwritten by the next call.
        """
        plan = self._plan
        plan.run(mean_sum, norm)
        for hop in self.hops:
            hop.begin_round(coder.dither)
        return Arrangement(plan.order, plan.mean, plan.numbers, self._chunks, coder.format, exact_size)


class Pool(Generic[Item]):
    """Reusable items by key, for rounds in flight on any thread.

    Holds as many items of a key as there were rounds in flight at once. A copy or an unpickled pool is empty.
    """

    def __init__(self) -> None:
        self._free: dict[Hashable, list[Item]] = {}

    def take(self, key: Hashable, make: Callable[[], Item]) -> Item:
        """A free item of this key, or a new one."""
        try:
            return self._free.setdefault(key, []).pop()
        except IndexError:
            return make()

    def give(self, key: Hashable, item: Item) -> None:
        """Return an item that `take` gave for `key`."""
        self._free[key].append(item)

    def __reduce__(self) -> tuple[type[Pool[Item]], tuple[()]]:
        return Pool, ()
