"""The contract between `codecs` and `harness`: a codec, and the objects that it is given.

A codec turns the gradients of all workers into their (approximate) mean. It knows tensors and nothing else:
no process groups, no training loop, no configuration system. The harness hands it a `Collectives`, whose
methods are coroutines, so that the same codec runs between real processes, in one process that hosts every
rank, and under a simulated clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.costs import Costs
from gradwire.codecs.fields import check_fields
from gradwire.codecs.rounds import Capture, Decision, Layout, Observation, Round
from gradwire.codecs.shards import Shard
from gradwire.codecs.step_memory import Memories
from gradwire.codecs.traits import About, Traits

__all__ = ["Capture", "Decision", "Layout", "Observation", "Round"]
"""Names of `rounds` that belong to the contract and are imported from here."""

Op = Literal["sum", "max_bits", "or", "norm"]
"""Combination of metadata: `sum` in float32 (float64 and integers in their own type), `max_bits` the
integer maximum of |x| bit patterns (NaN wins), `or` bitwise, `norm` sqrt(a² + b²) without overflow."""

Level = Literal["all", "node", "local"]

Elapsed = Callable[[], float]
"""Returns the seconds since this rank's backward pass of the step began."""

Kept = Sequence[Sequence[int]]
"""The chunks that each rank keeps of a reduce-scatter, ascending: every chunk is one rank's."""


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


class Codec(ABC):
    """A way to compute the mean of the workers' gradients over a network: the base class of all codecs.

    A codec is a dataclass whose fields are its settings. It must implement `synchronize`; everything else has
    a default. State that lasts from step to step belongs into its `memories`. Every codec keeps these rules:

    - All ranks get the same bits, and real processes the same as virtual ones. So shared decisions use
      integer arithmetic on reduced statistics, and random draws are functions of (seed, step, bucket,
      coordinate, rank), see `random`.
    - Message sizes are the same on all ranks: they follow from the layout, the settings and reduced
      statistics, never from a rank's own gradient.
    - `x` is left as it was; the result has its shape and dtype. A bucket may have one coordinate.
    - A restored state continues bit for bit. A skipped step leaves the state as it was before the step.
    - Zeros stay zeros; the relative error is the same at all magnitudes, from a root mean square of 2⁻¹²⁴ to
      one of 2¹¹⁶; non-finite values, and values that overflow, stay visible on all ranks; one round's vNMSE
      is below 0.95. A codec that breaks one of these rules, or needs larger gradients, declares this in its
      `traits`.
    """

    name: str
    """The name by which it is chosen and recorded; a field of the dataclass."""
    about: About = About()
    traits: Traits = Traits()

    @cached_property
    def memories(self) -> Memories:
        """State that lasts from step to step. It is saved in checkpoints, and a skipped step leaves it
        unchanged."""
        return Memories()

    def __post_init__(self) -> None:
        """Raises ValueError for a field whose value is not allowed."""
        check_fields(type(self), vars(self), "codec")

    def supports(self, topology: str, size: int, layout: Layout) -> str | None:
        """None, or the reason why this codec cannot run there; by default only a dtype that training
        gradients do not have is refused. Called before anything starts."""
        if layout.dtype in GRADIENT_DTYPES:
            return None
        return f"codec={self.name} takes float32, bfloat16 and float16 gradients, got {layout.dtype}"

    def supports_stages(self, stages: int, *, refines: bool = False) -> str | None:
        """None, or the reason why this codec, with its settings, cannot run with a model in `stages` stages
        (1 without a pipeline), or without refinement of means. Called before anything starts."""
        if self.refines and not refines:
            return (
                f"codec={self.name} keeps refining a gradient until it is used; use parallel=blocks, which "
                "waits for that"
            )
        return None

    def refuses_capture(self, layout: Layout) -> str | None:
        """None, or the reason why `synchronize` of such a bucket cannot be captured in a CUDA graph.

        A codec that allows capture does the same work in every step, apart from values on the device: the
        host does not read results back, state stays at fixed addresses (`prepare_capture`), messages keep
        their sizes, random bits come from the key that kernels read from `Round.key_place`, and numbers that
        follow a decision from what `Capture.before_launch` writes. The same holds for `scatter`.
        """
        return f"codec={self.name} does not do the same in every step on the host"

    def prepare_capture(self, this_round: Round) -> None:
        """Called before a round is captured: gives the state that it reads and writes a place in memory that
        lasts, and its value there."""
        return

    def captured_key(self, this_round: Round) -> Key:
        """The key that a captured round of this bucket reads from `Round.key_place` in the step of
        `this_round`."""
        return this_round.key

    @abstractmethod
    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        """The mean of `x` over all ranks, bit-identical on each.

        `x` has shape (numel,) and is not written to. Called only for `this_round.size > 1`.
        """

    def observe(self, observations: Sequence[Observation]) -> None:
        """Receive the real or simulated times of this rank's step, for codecs with the trait `clock_driven`.
        Called before the step's `end_step` or `skip_step`."""
        return

    @property
    def scatters(self) -> bool:
        """True if the codec can stop half-way, with a shard of the mean on each rank: `shards` and
        `scatter`."""
        return False

    def shards(self, layout: Layout, kept: Kept) -> tuple[Shard, ...]:
        """The coordinates of a bucket that each rank gets from `scatter`, the same in every round; every
        coordinate belongs to exactly one rank. `kept` is `Collectives.kept`, or that of the run's schedule.
        """
        raise ValueError(f"codec={self.name} has no scatter")

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        """The mean over all ranks of this rank's shard of `x`: (shard,) float32, in the order of `shards`.

        It differs from the result of `synchronize` only by the last encoding, which a mean that stays on its
        rank does not need.
        """
        raise ValueError(f"codec={self.name} has no scatter")

    @property
    def refines(self) -> bool:
        """True if `refine` may send more bits of a bucket after all of a step's buckets are synchronized."""
        return False

    @property
    def boundary(self) -> int:
        """A more urgent message may interrupt one after any multiple of this number of bytes."""
        return 1 << 16

    async def refine(
        self, mean: Tensor, this_round: Round, comm: Collectives, elapsed: Elapsed | None = None
    ) -> Tensor:
        """A better mean of a bucket than `mean`, (numel,), the result of `synchronize`, which is not written
        to; bit-identical on all ranks.

        It may start after `end_step` and end after the step. It stops at the deadline that `elapsed` reports;
        without `elapsed` there is none. Not called for the buckets of a skipped step.
        """
        raise ValueError(f"codec={self.name} has nothing to refine")

    def end_step(self, step: int) -> Mapping[str, float]:
        """Called once all buckets of a step are synchronized; returns figures to log."""
        self.memories.end_step()
        return {}

    def activity(self) -> Mapping[str, float]:
        """The work of the codec's mechanism in the last step, so that an idle one shows in records: figures
        by the names of `ACTIVITY` in harness/timing/measure/training_metrics.py. Called after `end_step` or
        `skip_step`; the same on all ranks of a stage, and known without waiting for the device."""
        return {}

    def skip_step(self, step: int) -> Mapping[str, float]:
        """Called on all ranks instead of `end_step` if the step's means are not used, because they are not
        finite or because the user skips the step.

        Memories return to their values before the step, because none of the step's means was applied.
        """
        self.memories.skip_step()
        return self.end_step(step)

    def take_back(self, names: Collection[str]) -> None:
        """Called on all ranks before `end_step` with the parameters whose means are not applied in this step
        because no rank used them. The codec restores their memories, so that it still sends their residuals
        later."""
        self.memories.take_back(names)

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's state between two steps, keyed by parameter name, or by `Layout.key` of a bucket."""
        return self.memories.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Replace the state by one that `state_dict` returned. Raises ValueError for any other."""
        if rest := ", ".join(sorted(self.memories.load(state))):
            if not self.memories:
                raise ValueError(f"{type(self).__name__} has no state, got {rest}")
            known = ", ".join(f"{prefix}…" for prefix in self.memories)
            raise ValueError(f"the state of codec={self.name} has {known}, got {rest}")

    def costs(self, workers: int) -> Costs | None:
        """Costs of the codec's steps among `workers`, see `costs`; None if `task=bench` measures none of its
        operations."""
        return None


ALIGNMENT = 16
"""The buffers of messages that a codec is given begin at multiples of this many bytes."""


def align(num_bytes: int) -> int:
    """`num_bytes` rounded up to the alignment of messages."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


GRADIENT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of gradients in training."""


@runtime_checkable
class ChoosesWidths(Protocol):
    """A codec that gives each super-group of 256 coordinates a number of bits."""

    @abstractmethod
    async def super_group_widths(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        """Bits per coordinate that `synchronize` gives the super-groups of `x`: (super-groups,) int64."""
        ...
