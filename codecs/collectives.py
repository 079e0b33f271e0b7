"""The contract between `codecs` and `harness`: the collectives that a codec calls, and its hops.

The methods of `Collectives` are coroutines, so that the same codec runs between real processes, in one
process that hosts every rank, and under a simulated clock. A codec does not know the topology: it hands its
`Hops` to a collective, whose schedule says which chunks are encoded, added and decoded when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from torch import Tensor

Op = Literal["sum", "max_bits", "or", "norm"]
"""Combination of metadata: `sum` in float32 (float64 and integers in their own type), `max_bits` the
integer maximum of |x| bit patterns (NaN wins), `or` bitwise, `norm` sqrt(a² + b²) without overflow."""

Level = Literal["all", "node", "local"]
"""The ranks that take part: all, or a dimension of the mesh, see `Collectives.group`."""

Kept = Sequence[Sequence[int]]
"""The chunks that each rank keeps of a reduce-scatter, ascending: every chunk is one rank's."""

ALIGNMENT = 16
"""The buffers of messages that a codec is given begin at multiples of this many bytes."""


def align(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment of messages."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Hops(Protocol):
    """The state of one round of a codec that works hop by hop; owns its work buffers.

    `chunks` is a range of base chunks (`Collectives.num_chunks` of them); a message of several chunks is
    their messages one after another in ascending order. Messages are uint8 views of the harness's arena; no
    reference to them may be kept after the call. `received` is the number of contributions in the incoming
    message, `workers` the number in the outgoing one.
    """

    def message_bytes(self, chunks: range, workers: int) -> int:
        """Size of the message holding the sum of `workers` contributions to `chunks`.

        Additive over chunks, and the same on all ranks: it may depend on the layout, the settings and reduced
        statistics, never on a rank's own gradient.
        """
        ...

    def message_offsets(self) -> tuple[int, ...] | None:
        """The start of each chunk's message if the messages of all chunks lie one after another, and the end
        of the last one. None if their sizes differ by the number of contributions: `message_bytes` is asked
        about each then."""
        return None

    def leaf(self, chunks: range) -> Tensor | None:
        """LEAF: the message of `chunks`, if its bytes already exist in the bucket: (message_bytes,) uint8.

        They do not change until the round has ended. None means that `encode` must write the message.
        """
        return None

    def messages_in_place(self) -> Tensor | None:
        """The memory of partial sums that lie there as messages hold them, (message_bytes of all chunks,)
        uint8.

        Messages are then sent from there and sums received there, by schedules without segments: of the
        other methods only `message_bytes`, `accumulate` and `finish` are called. None if messages are
        something else than partial sums.
        """
        return None

    def seal_in_result(self) -> Tensor | None:
        """Have sealed messages written and received directly in the result: returns the memory for the
        messages of all chunks, (message_bytes,) uint8. `seal` then fills parts of it, and `decode` finds its
        message in place.

        Called once, before the first hop. None if messages need memory of their own.
        """
        return None

    def encode(self, chunks: range, out: Tensor, workers: int) -> None:
        """LEAF: write the current partial sums of `chunks` to `out`."""
        ...

    def accumulate(self, message: Tensor, chunks: range, workers: int) -> None:
        """PARTIAL: add a message to the partial sums."""
        ...

    def accumulate_encode(
        self, message: Tensor, chunks: range, out: Tensor, received: int, workers: int
    ) -> None:
        """INNER: add a message and write the new partial sums to `out`; one operation where that pays.

        The new sums go to the next rank; this rank next sees these chunks when they are decoded.
        """
        self.accumulate(message, chunks, received)
        self.encode(chunks, out, workers)

    def seal(self, message: Tensor | None, chunks: range, out: Tensor, received: int, workers: int) -> None:
        """SINK: add, write the final encoding to `out`, and replace the own sum by its decoding.

        The default suffices for lossless encodings, for which the own sum equals its decoding.
        """
        if message is not None:
            self.accumulate(message, chunks, received)
        self.encode(chunks, out, workers)

    def decode(self, message: Tensor, chunks: range, workers: int) -> None:
        """GATHER: replace the sums of `chunks` by a sealed message's decoding."""
        ...

    def collect(self, messages: Sequence[Tensor], chunks: range) -> None:
        """Replace the sums of `chunks` by the sum of all ranks' messages, added in the order given."""
        first, *others = messages
        self.decode(first, chunks, 1)
        for message in others:
            self.accumulate(message, chunks, 1)

    def finish(self) -> Tensor:
        """The mean over the workers, in layout order and the caller's dtype, shape (numel,)."""
        ...

    def shard(self, chunks: Sequence[int]) -> Tensor:
        """The mean over the workers for the coordinates of `chunks`, whose sums are complete but not sealed:
        float32, chunk by chunk, in the order in which `HopCodec.chunk` lists their coordinates."""
        raise ValueError(f"{type(self).__name__} has no shards")


class Collectives(Protocol):
    """The collectives a codec may use. All but `group` and `worked` are coroutines that all ranks must run
    alike."""

    rank: int
    size: int
    num_chunks: int

    @property
    def kept(self) -> Kept:
        """The chunks that `reduce_scatter` leaves on each rank. Raises ValueError on a topology that computes
        no partial sums."""
        ...

    @property
    def messages(self) -> Mapping[int, int]:
        """The number of chunks' messages that all ranks send together in an all-reduce, by the number of
        contributions that they hold. Those with contributions of all ranks are sealed."""
        ...

    def in_phase(self, phase: Literal["probe"]) -> Collectives:
        """These collectives with their bytes counted under `phase`.

        A `probe` only measures how long messages take: their contents are no part of the result, and their
        bytes do not count in the wire bits per coordinate.
        """
        ...

    def group(self, level: Level) -> Collectives:
        """The collectives among all ranks, the ranks of this node (`local`), or this rank's counterparts
        on every node (`node`): the dimensions of a two-dimensional device mesh."""
        ...

    async def reduce(self, parts: Sequence[tuple[Tensor, Op]], *, in_place: bool = False) -> list[Tensor]:
        """Combine one-dimensional metadata tensors over the ranks, in one message per hop.

        With `in_place` the tensors may be overwritten. Those that lie one after another in memory, by
        descending item size, are then the first message themselves, and nothing is copied.

        They travel by recursive halving and doubling on any topology; the order is fixed by the number of
        ranks and the result bit-identical on every rank. The partial results travel in the tensors' own dtype
        (bfloat16 sums are rounded at every hop).
        """
        ...

    async def all_reduce(self, hops: Hops) -> Tensor:
        """Run `hops` over the run's topology; returns `hops.finish()`."""
        ...

    async def reduce_scatter(self, hops: Hops) -> Tensor:
        """The first half of `all_reduce`: returns `hops.shard` of the chunks that this rank keeps."""
        ...

    async def all_to_all(self, send: Tensor) -> Tensor:
        """Row i of `send`, (size, ...), goes to rank i; row i of the result, contiguous, comes from it."""
        ...

    async def all_gather(self, own: Tensor, sizes: Sequence[int] | None = None) -> list[Tensor]:
        """Every rank's tensor, in rank order; `sizes` (elements per rank) when they differ."""
        ...

    async def send(self, x: Tensor, to: int) -> None:
        """Send `x` to rank `to`, which must receive it; returns once it has arrived."""
        ...

    async def receive(self, out: Tensor, source: int) -> Tensor:
        """Receive a tensor of the size and dtype of `out`, contiguous, from rank `source` into `out`; returns
        `out`."""
        ...

    async def send_and_receive(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        """Send tensors to some ranks and fill tensors from some ranks, by rank, all at once.

        Two ranks that send to each other at the same time must use this: with one transfer after the other,
        each would wait for the other on a GPU.
        """
        ...

    def worked(self, label: str, share: float) -> None:
        """Labels the computation since the last label, message or wait, for this share of the bucket's
        coordinates. A codec without `Hops` labels in this way the steps that its `costs` list."""
        ...

    async def backend_sum(self, x: Tensor) -> Tensor:
        """The sum by the communication library's own all-reduce (gloo, NCCL), in place; uncounted bytes."""
        ...
