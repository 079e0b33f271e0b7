"""The distance of a step's synchronized gradient from the exact average, computed from raw buckets kept for
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

import torch
from torch import Tensor

from gradwire.harness.comm.collective.collectives import ScheduledCollectives, all_gathering
from gradwire.harness.comm.world.interface import Collective, Started, World
from gradwire.harness.timing.trace.step import MEASURE

SLICE = 1 << 22
"""Coordinates whose exact average is computed at once. For a whole bucket, float64 would need several times
the bucket's memory on every rank that this process hosts."""


@dataclass(frozen=True)
class MeasuredBucket:
    """A bucket of a measured step: one rank's raw bucket, possibly read only on demand, and the synchronized
    result."""

    read_raw: Callable[[], Tensor]
    synchronized: Tensor


@dataclass(frozen=True)
class GradientError:
    """The two sums of vNMSE over all synchronized coordinates: ‖x̄ − x̂‖² and ‖x̄‖².

    `nonzero` counts the coordinates whose exact mean x̄ is not 0, `lost` those of them whose result x̂ is 0.
    `figures` holds a parallelism's further figures of the step, by their keys in METRICS.
    """

    squared_error: float
    squared_norm: float
    nonzero: float = 0.0
    lost: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def vnmse(self) -> float | None:
        """vNMSE; None if it is undefined because the average gradient is zero or not finite."""
        ratio = self.squared_error / self.squared_norm if self.squared_norm > 0 else float("nan")
        return ratio if ratio == ratio and ratio != float("inf") else None

    @property
    def zeroed(self) -> float | None:
        """The share of coordinates with a nonzero exact mean that the codec set to 0; None if there are no
        such coordinates."""
        return self.lost / self.nonzero if self.nonzero else None


def kept_buckets(started: Sequence[Started[Tensor]], means: Sequence[Tensor]) -> list[MeasuredBucket]:
    """The buckets of a measured step and their means, which must not be changed afterwards."""
    return [MeasuredBucket(own.input, mean) for own, mean in zip(started, means, strict=True)]


def gradient_error(
    world: World,
    buckets: Mapping[int, Sequence[MeasuredBucket]],
    group: Callable[[int], int] = lambda rank: 0,
) -> GradientError:
    """The sums over all buckets of all groups of ranks, the same on every rank; `buckets` per hosted rank.

    The exact average is computed with float64 partial sums over the run's own topology; its bytes are not
    counted. `group` numbers the groups of ranks that synchronize the same parameters (`Parallelism.group`).
    """
    totals = dict.fromkeys(world.ranks, (0.0,) * 4)
    for index in range(_most(world, {rank: len(buckets[rank]) for rank in world.ranks})):
        own = {rank: buckets[rank][index] for rank in world.ranks if index < len(buckets[rank])}
        slices = {rank: _slices(own[rank]) if rank in own else [] for rank in world.ranks}
        for number in range(_most(world, {rank: len(found) for rank, found in slices.items()})):
            # Each slice is a separate collective, so that the next one can reuse the message buffers.
            sums = world.run(
                {
                    rank: _squared_sums(*found[number]) if number < len(found) else _no_sums
                    for rank, found in slices.items()
                }
            )
            totals = {rank: tuple(map(add, total, sums[rank])) for rank, total in totals.items()}
    rows = world.gather(totals)
    by_group = {group(rank): row for rank, row in enumerate(rows)}
    error, norm, nonzero, lost = (sum(column) for column in zip(*by_group.values(), strict=True))
    return GradientError(error, norm, nonzero, lost)


def _most(world: World, counts: Mapping[int, int]) -> int:
    """The largest count on any rank: ranks of other groups may have fewer buckets."""
    return int(max(count for (count,) in world.gather({rank: [own] for rank, own in counts.items()})))


def _slices(bucket: MeasuredBucket) -> list[tuple[Tensor, Tensor]]:
    """Slices of a bucket as pairs of raw and synchronized coordinates."""
    split = torch.split(bucket.read_raw(), SLICE), torch.split(bucket.synchronized, SLICE)
    return list(zip(*split, strict=True))


async def _no_sums(comm: ScheduledCollectives) -> tuple[float, ...]:
    return (0.0,) * 4


def _squared_sums(raw: Tensor, synchronized: Tensor) -> Collective[tuple[float, ...]]:
    async def run(whole: ScheduledCollectives) -> tuple[float, ...]:
        comm = whole.group("replica")
        (total,) = await comm.in_phase(MEASURE).reduce([(raw.double(), "sum")])
        average = total / comm.size
        difference = average - synchronized.double()
        there, lost = average != 0, synchronized == 0
        counts = float(there.sum()), float((there & lost).sum())
        return float(difference.square().sum()), float(average.square().sum()), *counts

    return run


def gather_raw(world: World, buckets: Mapping[int, Sequence[MeasuredBucket]]) -> Tensor:
    """All ranks' raw gradients, (ranks, coordinates) on the CPU, bucket by bucket; their bytes are not
    counted.

    `buckets` holds those of each hosted rank. The result is the same on every rank.
    """
    own = buckets[world.ranks[0]]
    gathered: Tensor | None = None  # filled bucket by bucket: two copies of all gradients may not fit
    start = 0
    for index in range(len(own)):
        rows = _rows(world, {rank: buckets[rank][index] for rank in world.ranks})
        if gathered is None:
            total = sum(each.synchronized.numel() for each in own)
            gathered = rows[0].new_empty((len(rows), total), device="cpu")
        for rank, row in enumerate(rows):
            assert row.dtype == gathered.dtype, "all buckets have one type"
            gathered[rank, start : start + row.numel()] = row
        start += rows[0].numel()
    assert gathered is not None, "a model has buckets"
    return gathered


def _rows(world: World, bucket: Mapping[int, MeasuredBucket]) -> Sequence[Tensor]:
    """All ranks' raw gradients of one bucket, in the order of ranks. Where one process hosts all of them none
    is sent: every rank would receive copies of all."""
    if len(world.ranks) == world.size:
        return [bucket[rank].read_raw() for rank in world.ranks]
    return world.run({rank: all_gathering(own.read_raw(), MEASURE) for rank, own in bucket.items()})[
        world.ranks[0]
    ]
