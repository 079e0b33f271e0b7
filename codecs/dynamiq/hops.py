"""One round of DynamiQ, hop by hop (DynamiQ §3.4, §3.5): the work of a hop on a chunk, the order of these
calls, and the compiled calls that the rounds of a bucket reuse."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gradwire.codecs import memory
from gradwire.codecs.dynamiq.allocation import WidthIncrements
from gradwire.codecs.dynamiq.arrangement import Arrangement, Chunks, native_plan
from gradwire.codecs.dynamiq.definition import Coder, OrderedChunk, ReferenceHop
from gradwire.codecs.dynamiq.format import chunk_coordinates
from gradwire.codecs.dynamiq.native import ChunkSizes, NativeHop
from gradwire.codecs.hop_codec import LossyHops
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library
from gradwire.codecs.options.dynamiq import SUPER_GROUP


class Hop(Protocol):
    """The hops of one chunk, or of several that follow one another, in one round of one worker."""

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


class HopsOfChunks(Protocol):
    """The hops of a bucket's chunks."""

    joint: bool
    """True if several chunks can have one hop together."""

    def of(self, chunks: range) -> Hop:
        """The hop of these chunks: of one, unless `joint`."""
        ...


class SeparateHops:
    """A hop object for each chunk."""

    joint = False

    def __init__(self, x: Tensor, arrangement: Arrangement, coder: Coder) -> None:
        self._hops = [
            make_hop(x.numel(), x.dtype, arrangement.chunk(number), coder)
            for number in range(len(arrangement.chunks.sizes))
        ]

    def of(self, chunks: range) -> Hop:
        (chunk,) = chunks
        return self._hops[chunk]


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
        hops: HopsOfChunks | None = None,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        """`x` is this worker's bucket, (numel,) float32 or bfloat16; it is not written to. The mean is given
        in `dtype`. `hops` are made here if None. `finished` is called when `hops` and `arrangement` are no
        longer needed."""
        self._dtype, self._x = dtype, x
        self.arrangement = self._arrangement = arrangement
        self._sums: Tensor | None = None
        self._made: Tensor | None = None
        self._summed: set[int] = set()
        self._finished: set[int] = set()
        self._coder, self._release = coder, finished
        self._offsets, self._filled = arrangement.offsets, arrangement.chunks.sizes
        self._hops = hops or SeparateHops(x, arrangement, coder)

    def _calls(self, chunks: range) -> list[range]:
        """The chunks that have super-groups, divided into those of one call each: several together if their
        partial sums lie alike."""
        if len(chunks) == 1:
            return [chunks] if self._filled[chunks.start].super_groups else []
        calls: list[range] = []
        for chunk in chunks:
            if not self._filled[chunk].super_groups:
                continue
            follows = self._hops.joint and bool(calls) and calls[-1].stop == chunk
            if follows and (chunk in self._summed) == (chunk - 1 in self._summed):
                calls[-1] = range(calls[-1].start, chunk + 1)
            else:
                calls.append(range(chunk, chunk + 1))
        return calls

    def _part(self, message: Tensor, chunks: range, call: range) -> Tensor:
        """The part for `call` of a message for `chunks`."""
        first, offsets = self._offsets[chunks.start], self._offsets
        assert message.numel() == offsets[chunks.stop] - first, "message length differs from message_bytes()"
        if call == chunks:
            return message
        return message[offsets[call.start] - first : offsets[call.stop] - first]

    @property
    def _result(self) -> Tensor:
        """The tensor of the means."""
        if self._made is None:
            self._made = memory.empty(self._x.numel(), self._x.dtype, self._x.device)
        return self._made

    def _places(self, chunks: range) -> slice:
        """The rows of these chunks among those of all."""
        rows = self._arrangement.rows
        return slice(rows[chunks.start].start, rows[chunks.stop - 1].stop)

    def _rows(self, chunks: range) -> Tensor:
        """The rows that hold the chunks' partial sums once these are no longer read from the bucket."""
        if self._sums is None:
            order = self._arrangement.order
            sums = memory.empty(order.numel() * SUPER_GROUP, torch.float32, order.device)
            self._sums = sums.view(-1, SUPER_GROUP)
        return self._sums[self._places(chunks)]

    def _run(
        self,
        call: range,
        incoming: Tensor | None = None,
        outgoing: Tensor | None = None,
        *,
        new_sums: Tensor | None = None,
        result: Tensor | None = None,
    ) -> None:
        """`Hop.run` on the partial sums of a call's chunks."""
        summed = call.start in self._summed
        self._hops.of(call).run(
            x=None if summed else self._x,
            sums=self._rows(call) if summed else None,
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
        for call in self._calls(chunks):
            message = self._part(out, chunks, call)
            self._run(call, None, message)
            self._add_losses(call, message)

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        for call in self._calls(chunks):
            part = self._part(message, chunks, call)
            self._run(call, part, new_sums=self._rows(call))
            self._summed.update(call)

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        if self._losses is not None:  # the sum is needed once more
            self.accumulate(message, chunks, received)
            self.encode(chunks, out, workers)
            return
        for call in self._calls(chunks):
            self._run(call, self._part(message, chunks, call), self._part(out, chunks, call))

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        if self._losses is not None:  # the sum is needed once more
            super().seal(message, chunks, out, received, workers)
            self.decode(out, chunks, workers)
            return
        for call in self._calls(chunks):
            incoming = None if message is None else self._part(message, chunks, call)
            self._run(call, incoming, self._part(out, chunks, call), result=self._result)
            self._finished.update(call)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        for call in self._calls(chunks):
            self._hops.of(call).run(incoming=self._part(message, chunks, call), result=self._result)
            self._finished.update(call)

    def collect(self, messages: Sequence[Tensor], chunks: range) -> None:
        first, *others = messages
        for call in self._calls(chunks):
            part = self._part(first, chunks, call)
            self._hops.of(call).run(incoming=part, new_sums=self._rows(call))
            self._summed.update(call)
        for message in others:
            self.accumulate(message, chunks, 1)

    def finish(self) -> Tensor:
        for chunk in range(len(self._filled)):
            if chunk not in self._finished:
                for call in self._calls(range(chunk, chunk + 1)):
                    self._run(call, result=self._result)
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
        own_chunk = range(chunk, chunk + 1)
        if chunk not in self._summed and self._filled[chunk].super_groups:
            self._hops.of(own_chunk).run(x=self._x, new_sums=self._rows(own_chunk))
        num_chunks = len(self._filled)
        numel = chunk_coordinates(self._x.numel(), num_chunks, chunk)
        mean = torch.empty(numel, dtype=torch.float32, device=self._x.device)
        if numel:
            whole = self._arrangement.chunk(chunk)
            own = whole._replace(order=whole.order // num_chunks)
            hop = make_hop(numel, mean.dtype, own, self._coder)
            hop.run(sums=self._rows(own_chunk), result=mean)
        return mean

    def _add_losses(self, call: range, message: Tensor) -> None:
        if self._losses is None:
            return
        hop, rows = self._hops.of(call), self._rows(call)
        if call.start not in self._summed:  # as rows, to be compared with what the message stands for
            hop.run(x=self._x, new_sums=rows)
            self._summed.update(call)
        decoded = torch.empty_like(rows)
        hop.run(incoming=message, new_sums=decoded)
        self._losses[self._places(call)] += rows - decoded

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
    of which only the round's own fields change. Those of chunks that come together are made when they first
    do. Serves one round at a time."""

    def __init__(
        self, library: Library, x: Tensor, chunks: Chunks, increments: WidthIncrements, coder: Coder
    ) -> None:
        """`x` is a bucket like those of later rounds; `coder` belongs to any round with the same number of
        workers."""
        plan = native_plan(library, chunks, increments, coder.dither.workers, x.device)
        self._plan, self._chunks, self._library, self._coder = plan, chunks, library, coder
        self._numel, self._dtype = x.numel(), x.dtype
        self._sizes = ChunkSizes(library, [(size.super_groups, size.capacity) for size in chunks.sizes])
        self.hops: dict[range, NativeHop] = {}
        self.joint = True

    def of(self, chunks: range) -> NativeHop:
        hop = self.hops.get(chunks)
        if hop is None:
            rows = self._chunks.rows
            places = slice(rows[chunks.start].start, rows[chunks.stop - 1].stop)
            numbers = self._plan.numbers[chunks.start : chunks.stop]
            chunk = OrderedChunk(self._plan.order[places], self._plan.mean[places], numbers)
            sizes = self._sizes.of(chunks) if len(chunks) > 1 else None
            hop = NativeHop(self._library, self._numel, self._dtype, chunk, self._coder, sizes)
            self.hops[chunks] = hop
        return hop

    def begin(
        self, mean_sum: Tensor | None, norm: Tensor | None, coder: Coder, exact_size: bool
    ) -> Arrangement:
        """The arrangement of a round, from its reduced statistics (None: not sent).

        The hops use this arrangement from now on. Its tensors are overwritten by the next call.
        """
        plan = self._plan
        plan.run(mean_sum, norm)
        self._coder, self.joint = coder, not exact_size  # or messages do not have their capacities
        for hop in self.hops.values():
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
