"""The lattice codec (this project's own): one step D for a whole bucket, sums that stay on its multiples."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Adapts, Agreed, Feedback, Numbers
from gradwire.codecs.collectives import Collectives, Hops, Kept, Op
from gradwire.codecs.costs import NOTHING, Costs, hop_costs, moved
from gradwire.codecs.interface import Codec, Decision, Layout, Round
from gradwire.codecs.lattice.codes import SlotCode
from gradwire.codecs.lattice.compiled_hops import CompiledLatticeHops
from gradwire.codecs.lattice.draws import Draws
from gradwire.codecs.lattice.feedback import (
    COORDINATES,
    GAIN,
    SIZES,
    STEP,
    BucketCounts,
    are_known,
    captured_numbers,
    decided,
    of_bucket,
)
from gradwire.codecs.lattice.hops import Grid, LatticeHops
from gradwire.codecs.lattice.logarithms import UNITS, log2_units, units_of
from gradwire.codecs.lattice.packed import Packed
from gradwire.codecs.lattice.prediction import BucketStatistics, statistics
from gradwire.codecs.lattice.rice import Rice
from gradwire.codecs.lattice.sizes import GAINS, STEPS, MessageCounts, Sizing, least_numel, too_small
from gradwire.codecs.lattice.slots import Slots
from gradwire.codecs.lattice.small_buckets import DitheredBF16
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.lattice import LatticeOptions
from gradwire.codecs.shards import Shard, joined
from gradwire.codecs.slices import SumHops, chunk_slice
from gradwire.codecs.traits import SCALED_FROM, About, Traits

CODES: Mapping[str, SlotCode] = {"rice": Rice(), "packed": Packed()}

MOVED: Mapping[str, tuple[int, int, int, int]] = {
    "rice": (2750, 1900, 1900, 10_000),
    "packed": (1200, 870, 850, 3700),
}
"""Bytes per coordinate that PyTorch's operations read and write in `encode`, `accumulate`, `decode` and
`seal`, by code: counted once among three workers at 5 bits."""

COUNTS = "counts"
"""The name in feedback."""

LARGEST_INTEGER = 29 * UNITS
"""Sums of all workers stay below 2²⁹ steps."""

LARGEST_STEP, SMALLEST_STEP = 120 * UNITS, -120 * UNITS


@dataclass
class Lattice(LatticeOptions, Codec, Adapts):
    """Sums of integers, multiples of one step D for the whole bucket, in slots that all have the same size.

    Unbiased. Sizes of messages follow from what the sums took two steps before, D from statistics of the
    step, see `sizes`. Raises ValueError for settings outside their range.
    """

    about = About(
        group="quantized all-reduce",
        source="this project",
        wire_bits="`codec.bits`",
        metadata="norms, bits predicted for eleven steps D, and counts",
        state="sizes of slots, gains of sums, the step D, and their counts",
    )
    traits = Traits(unbiased=True, stateful=True, smallest_magnitude=SCALED_FROM)
    first_decision = {COORDINATES: [], SIZES: [], GAIN: [], STEP: []}
    decides = {
        COORDINATES: Numbers(0, 1 << 53, whole=True),
        SIZES: Numbers(0, 1 << 30, whole=True),
        GAIN: Numbers(*GAINS, whole=True),
        STEP: Numbers(STEPS.start, STEPS.stop, whole=True),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._slot_code = CODES[self.code]
        self._table = torch.tensor(self._slot_code.table, device="cpu")
        self._counts: dict[int, BucketCounts] = {}
        self._sizings: dict[int, Sizing] = {}

    def refuses_buckets(self, layouts: Sequence[Layout], size: int, num_chunks: int) -> str | None:
        largest = max(layout.numel for layout in layouts)
        if size == 1 or not too_small(_slots_of(largest, num_chunks, self.slot), size, self.bits):
            return None
        return (
            f"codec=lattice: the largest bucket has {largest} coordinates, and with codec.bits={self.bits:g} "
            f"and {size} workers it takes {least_numel(num_chunks, self.slot, size, self.bits)} to compress "
            "one: use larger buckets, or codec=bf16, which is how these would travel"
        )

    @property
    def scatters(self) -> bool:
        return True

    def shards(self, layout: Layout, kept: Kept) -> tuple[Shard, ...]:
        num_chunks = sum(map(len, kept))
        slots = _slots_of(layout.numel, num_chunks, self.slot)
        if too_small(slots, len(kept), self.bits):
            unit = DitheredBF16.unit
            parts = [chunk_slice(layout.numel, num_chunks, chunk, unit) for chunk in range(num_chunks)]
        else:
            parts = [slots.shard(chunk) for chunk in range(num_chunks)]
        return tuple(joined(parts[chunk] for chunk in chunks) for chunks in kept)

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await comm.all_reduce(await self._hops(x, this_round, comm, scatter=False))

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await comm.reduce_scatter(await self._hops(x, this_round, comm, scatter=True))

    async def _hops(self, x: Tensor, this_round: Round, comm: Collectives, *, scatter: bool) -> Hops:
        bucket = this_round.bucket
        slots = _slots_of(x.numel(), comm.num_chunks, self.slot)
        messages = MessageCounts.of(comm.messages, comm.size, scatter=scatter)
        sizing = self._sizings[bucket] = Sizing(slots, messages, self.bits)
        counts = self._counts[bucket] = BucketCounts(x.numel(), messages.numbers, x.device)
        if too_small(slots, comm.size, self.bits):
            coder = DitheredBF16(this_round.key, comm.rank)
            return SumHops(x, comm.size, comm.num_chunks, coder)
        followed = of_bucket(this_round.decision, bucket, sizing, self._table)
        own = statistics(x, followed.known, self._table.to(x.device))
        parts: list[tuple[Tensor, Op]] = [(own.curve, "sum"), (own.norm, "norm"), (own.largest, "max_bits")]
        total, norm, largest = await comm.reduce(parts, in_place=True)
        reduced = BucketStatistics(norm, largest, total)
        curve = sizing.curve(reduced.curve, followed.known, comm.size)
        relative = sizing.step(curve, followed.gains, followed.sizes)
        counts.curve, counts.step = reduced.curve.clone(), relative.view(1)
        grid = Grid(
            absolute_step(relative, reduced, comm.size, x.numel()),
            reduced.norm[0] == 0,
            dict(zip(messages.numbers, followed.sizes, strict=True)),
            sinks_of(comm) if any(number > 1 for number in messages.numbers) else None,
            comm.size,
        )
        draws, library = Draws(this_round.key, comm.rank), library_for(x.device)
        if library is None:
            return LatticeHops(x, slots, grid, self._slot_code, draws, counts.count)
        packed = self.code == "packed"
        place = this_round.key_place
        return CompiledLatticeHops(x, slots, grid, packed, draws, counts.count, library, place)

    def feedback(self) -> Feedback:
        """This rank's counts: (buckets · numbers,) int64, see `feedback`."""
        rows = [self._counts[bucket].row() for bucket in sorted(self._counts)]
        return {COUNTS: (torch.cat(rows) if rows else torch.zeros(0, dtype=torch.int64, device="cpu"), "sum")}

    def refuses_capture(self, layout: Layout) -> str | None:
        if self.hold == 1:
            return "codec.hold=1 has messages of another size in every step"
        return "codec=lattice computes statistics, and chooses its step, with tensors of the host"

    def captured_form(self, this_round: Round) -> Hashable:
        return captured_numbers(this_round.decision, this_round.bucket)

    def decide(self, agreed: Agreed) -> Decision:
        """The sizes of the step after the next one, see `feedback`; those of before while they are held."""
        if agreed.step % self.hold and are_known(agreed.decision, self._sizings):
            return agreed.decision
        rows = agreed.feedback[COUNTS]
        return decided(rows, agreed.size, self._sizings, agreed.decision, self._table)

    def costs(self, workers: int) -> Costs:
        """Costs of its definition in PyTorch, by the bytes moved; the benchmark has those of kernels."""
        encode, accumulate, decode, seal = (moved(number) for number in MOVED[self.code])
        hops = hop_costs(workers, encode, accumulate, decode, seal=seal)
        return {"statistics": moved(13), "metadata": NOTHING, "plan": moved(8), **hops, "finish": moved(44)}

    def end_step(self, step: int) -> Mapping[str, float]:
        self._counts, self._sizings = {}, {}
        return super().end_step(step)


def absolute_step(relative: Tensor, reduced: BucketStatistics, workers: int, numel: int) -> Tensor:
    """log2 of D in units, () int64: `relative` to the root mean square, and so large that sums are below 2²⁹
    steps."""
    norm, largest = reduced.norm[0], reduced.largest[0]
    size = log2_units(torch.tensor(float(workers * numel), device=norm.device))
    mean = log2_units(norm) + 8 * UNITS - size // 2
    least = log2_units(largest) + 8 * UNITS + units_of(workers) - LARGEST_INTEGER
    step = torch.maximum(relative + mean, least).clamp(SMALLEST_STEP, LARGEST_STEP)
    return torch.where(norm == 0, 0, step)


def sinks_of(comm: Collectives) -> list[int]:
    """The rank that each chunk's sum is complete at."""
    owners = {chunk: rank for rank, chunks in enumerate(comm.kept) for chunk in chunks}
    return [owners[chunk] for chunk in range(comm.num_chunks)]


@lru_cache(maxsize=256)
def _slots_of(numel: int, num_chunks: int, most: int) -> Slots:
    return Slots(numel, num_chunks, most)
