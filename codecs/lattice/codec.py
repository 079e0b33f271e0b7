"""The lattice codec (this project's own): one step D for a whole bucket, sums that stay on its multiples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from gradwire.codecs.adaptation import Adapts, Agreed, Feedback, Numbers
from gradwire.codecs.collectives import Collectives, Hops, Kept, Op
from gradwire.codecs.exact import BF16
from gradwire.codecs.interface import Codec, Decision, Layout, Round
from gradwire.codecs.lattice import rice
from gradwire.codecs.lattice.hops import Draws, Lattice as RoundNumbers
from gradwire.codecs.lattice.hops import LatticeHops
from gradwire.codecs.lattice.logarithms import UNITS, log2_units, units_of
from gradwire.codecs.lattice.prediction import POINTS, statistics
from gradwire.codecs.lattice.sizes import GAINS, MOST_CHANGE, STEPS, Sizing, Traffic, first_points
from gradwire.codecs.lattice.slots import Slots, super_groups_of
from gradwire.codecs.lattice.tables import RICE
from gradwire.codecs.options.lattice import LatticeOptions
from gradwire.codecs.shards import Shard, joined
from gradwire.codecs.traits import SCALED_FROM, About, Traits

SIZES, GAIN, STEP = "sizes", "gains", "step"
"""Names in decisions: bits of slots and gains, by bucket and number of contributions, and the steps last known."""

WANTED, SLOTS, CURVE, USED = "wanted", "slots", "curve", "used"
"""Names in feedback."""

LARGEST_INTEGER = 29 * UNITS
"""Sums of all workers stay below 2²⁹ steps."""

LARGEST_STEP, SMALLEST_STEP = 120 * UNITS, -120 * UNITS


@dataclass
class BucketFigures:
    """What a rank has counted of a bucket in a step: bits wanted and slots by number of contributions, the workers'
    curve and the step used."""

    wanted: Tensor
    slots: Tensor
    curve: Tensor
    used: Tensor


@dataclass
class Lattice(LatticeOptions, Codec, Adapts):
    """Sums of integers, multiples of one step D for the whole bucket, in codes of variable length.

    Unbiased. Sizes of messages follow from what the sums took two steps before, D from statistics of the step, see
    `sizes`. Raises ValueError for settings outside their range.
    """

    about = About(
        group="quantized all-reduce",
        source="this project",
        wire_bits="`codec.bits`",
        metadata="norms, and bits predicted for nine steps D",
        state="sizes of messages, gains of sums, and the step D",
    )
    traits = Traits(unbiased=True, stateful=True, smallest_magnitude=SCALED_FROM, worst_vnmse=0.15)
    first_decision = {SIZES: [], GAIN: [], STEP: []}
    decides = {
        SIZES: Numbers(0, 1 << 30, whole=True),
        GAIN: Numbers(*GAINS, whole=True),
        STEP: Numbers(STEPS.start, STEPS.stop, whole=True),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._figures: dict[int, BucketFigures] = {}
        self._sizings: dict[int, Sizing] = {}

    @property
    def scatters(self) -> bool:
        return True

    def shards(self, layout: Layout, kept: Kept) -> tuple[Shard, ...]:
        num_chunks = sum(map(len, kept))
        slots = self._slots(layout.numel, num_chunks)
        if slots.too_small:
            return BF16().shards(layout, kept)
        return tuple(joined(map(slots.shard, chunks)) for chunks in kept)

    async def synchronize(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await comm.all_reduce(await self._round(x, this_round, comm, scatter=False))

    async def scatter(self, x: Tensor, this_round: Round, comm: Collectives) -> Tensor:
        return await comm.reduce_scatter(await self._round(x, this_round, comm, scatter=True))

    async def _round(self, x: Tensor, this_round: Round, comm: Collectives, *, scatter: bool) -> Hops:
        slots = self._slots(x.numel(), comm.num_chunks)
        traffic = Traffic.of(comm.messages, comm.size, scatter=scatter)
        bucket, device = this_round.bucket, x.device
        sizing = Sizing(
            slots, traffic, self.bits, rice.head_bits(slots.super_groups) - 8 * slots.super_groups
        )
        self._sizings[bucket] = sizing
        numbers = len(traffic.numbers)
        if slots.too_small:
            none = torch.zeros(numbers, dtype=torch.int64, device=device)
            self._figures[bucket] = BucketFigures(none, none, none.new_zeros(len(POINTS)), none.new_zeros(1))
            return BF16().hops(x, this_round, comm.num_chunks)
        sizes, gains, known = self._decided(this_round.decision, bucket, sizing)
        table = torch.tensor(RICE, device=device)
        own = statistics(x, known, table)
        parts: list[tuple[Tensor, Op]] = [(own.curve, "sum"), (own.norm, "norm"), (own.largest, "max_bits")]
        curve, norm, largest = await comm.reduce(parts, in_place=True)
        agreed = sizing.curve(curve, known, comm.size)
        relative = sizing.step(agreed, gains, sizes)
        step = self._absolute(relative, norm, largest, comm.size, x.numel())
        figures = BucketFigures(
            torch.zeros(numbers, dtype=torch.int64, device=device),
            torch.zeros(numbers, dtype=torch.int64, device=device),
            curve.clone(),
            relative.view(1),
        )
        self._figures[bucket] = figures
        index = {number: place for place, number in enumerate(traffic.numbers)}
        offered = dict(zip(traffic.numbers, sizes, strict=True))
        sinks = sinks_of(comm) if self._sums(comm) else None
        coarser = units_of(comm.size - 1) // 2 if comm.size > 2 else 0
        lattice = RoundNumbers(step, norm[0] == 0, offered, sinks, comm.size, coarser)
        draws = Draws(this_round.key, comm.rank)
        return LatticeHops(x, slots, lattice, draws, partial(_count, figures, index))

    def _sums(self, comm: Collectives) -> bool:
        """True if messages hold partial sums."""
        return any(number > 1 for number in comm.messages)

    def _slots(self, numel: int, num_chunks: int) -> Slots:
        return _slots_of(numel, num_chunks, self.slot)

    def _decided(self, decision: Decision, bucket: int, sizing: Sizing) -> tuple[list[int], list[int], int]:
        """The sizes, gains and the step last known that a bucket follows; guesses before the first decision."""
        numbers = len(sizing.traffic.numbers)
        own = slice(bucket * numbers, (bucket + 1) * numbers)
        sizes, gains, steps = (list(decision.get(name, [])) for name in (SIZES, GAIN, STEP))  # type: ignore[arg-type]
        if len(steps) > bucket and any(sizes[own]):
            return [*map(int, sizes[own])], [*map(int, gains[own])], int(steps[bucket])
        known = round(UNITS * (2 - self.bits))
        gains = sizing.first_gains()
        points = first_points(torch.tensor(RICE, device="cpu"), super_groups_of(sizing.slots.numel), known)
        first, chosen = sizing.sizes(sizing.curve(points, known, 1), gains)
        return first, gains, max(chosen, STEPS.start)

    def _absolute(self, relative: Tensor, norm: Tensor, largest: Tensor, workers: int, numel: int) -> Tensor:
        """log2 of D in units, () int64."""
        size = log2_units(torch.tensor(float(workers * numel), device=norm.device))
        mean = log2_units(norm[0]) + 8 * UNITS - size // 2
        least = log2_units(largest[0]) + 8 * UNITS + units_of(workers) - LARGEST_INTEGER
        step = torch.maximum(relative + mean, least).clamp(SMALLEST_STEP, LARGEST_STEP)
        return torch.where(norm[0] == 0, 0, step)

    def feedback(self) -> Feedback:
        """What this rank has counted, bucket by bucket; all of int64."""
        own = [self._figures[bucket] for bucket in sorted(self._figures)]
        none = torch.zeros(0, dtype=torch.int64, device="cpu")

        def every(parts: list[Tensor]) -> tuple[Tensor, Op]:
            return torch.cat(parts) if parts else none, "sum"

        return {
            WANTED: every([figures.wanted for figures in own]),
            SLOTS: every([figures.slots for figures in own]),
            CURVE: every([figures.curve for figures in own]),
            USED: every([figures.used for figures in own]),
        }

    def decide(self, agreed: Agreed) -> Decision:
        """The sizes of the step after the next one: see `sizes`."""
        found: dict[str, list[float]] = {SIZES: [], GAIN: [], STEP: []}
        used = agreed.feedback[USED].tolist()
        for bucket, sizing in sorted(self._sizings.items()):
            numbers = len(sizing.traffic.numbers)
            own, points = slice(bucket * numbers, (bucket + 1) * numbers), len(POINTS)
            if bucket >= len(used):
                break
            curve = agreed.feedback[CURVE][bucket * points : (bucket + 1) * points] // agreed.size
            counted, wanted = agreed.feedback[SLOTS][own], agreed.feedback[WANTED][own]
            _, gains, known = self._decided(agreed.decision, bucket, sizing)
            if sizing.slots.too_small or not bool((counted > 0).all()) or not int(curve.sum()):
                sizes = [0] * numbers
            else:
                step = used[bucket] // agreed.size
                whole = sizing.curve(curve, known, agreed.size)
                targets = whole.gain_of(wanted * sizing.num_slots // counted, step).tolist()
                gains = [
                    min(max(new, old - MOST_CHANGE, GAINS[0]), old + MOST_CHANGE, GAINS[1])
                    for new, old in zip(targets, gains, strict=True)
                ]
                sizes, known = sizing.sizes(whole, gains)
            found[SIZES] += sizes
            found[GAIN] += gains
            found[STEP].append(known)
        return found

    def end_step(self, step: int) -> Mapping[str, float]:
        self._figures = {}
        return super().end_step(step)


def _count(
    figures: BucketFigures, index: Mapping[int, int], workers: int, wanted: Tensor, slots: int
) -> None:
    figures.wanted[index[workers]] += wanted
    figures.slots[index[workers]] += slots


@lru_cache(maxsize=256)
def _slots_of(numel: int, num_chunks: int, most: int) -> Slots:
    return Slots(numel, num_chunks, most)


def sinks_of(comm: Collectives) -> list[int]:
    """The rank that each chunk's sum is complete at."""
    owners = {chunk: rank for rank, chunks in enumerate(comm.kept) for chunk in chunks}
    return [owners[chunk] for chunk in range(comm.num_chunks)]
