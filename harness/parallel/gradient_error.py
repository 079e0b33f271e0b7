"""The distance of a step's synchronized gradient from the exact average, for which raw buckets are kept."""

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
"""Coordinates whose exact average is formed at once. In float64 a whole bucket would need several times its
memory, for every rank that this process hosts."""


@dataclass(frozen=True)
class MeasuredBucket:
    """A bucket of a measured step: one rank's raw bucket, which may have to be read, and the result."""

    read_raw: Callable[[], Tensor]
    synchronized: Tensor


@dataclass(frozen=True)
class GradientError:
    """vNMSE's two sums over all synchronized coordinates: ‖x̄ − x̂‖² and ‖x̄‖².

    `nonzero` counts the coordinates of which x̄ is not 0, `lost` those of them of which x̂ is. `figures` are a
    parallelism's own of the step, by their keys in METRICS.
    """

    squared_error: float
    squared_norm: float
    nonzero: float = 0.0
    lost: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def vnmse(self) -> float | None:
        """vNMSE, or None if it has no value: the average gradient is zero or not finite."""
        ratio = self.squared_error / self.squared_norm if self.squared_norm > 0 else float("nan")
        return ratio if ratio == ratio and ratio != float("inf") else None

    @property
    def zeroed(self) -> float | None:
        """The share of coordinates not 0 in the exact mean that the codec turned to 0; None if all are."""
        return self.lost / self.nonzero if self.nonzero else None


def kept_buckets(started: Sequence[Started[Tensor]], means: Sequence[Tensor]) -> list[MeasuredBucket]:
    """The buckets of a measured step and their means, which stay as they are."""
    return [MeasuredBucket(own.input, mean) for own, mean in zip(started, means, strict=True)]


def gradient_error(
    world: World,
    buckets: Mapping[int, Sequence[MeasuredBucket]],
    group: Callable[[int], int] = lambda rank: 0,
) -> GradientError:
    """The sums over all buckets of all groups of ranks, the same on every rank; `buckets` per hosted rank.

    The exact average is the sum in float64 partial sums over the run's own topology, uncounted. `group`
    numbers the groups of ranks that synchronize the same parameters (`Parallelism.group`).
    """
    totals = dict.fromkeys(world.ranks, (0.0,) * 4)
    for index in range(_most(world, {rank: len(buckets[rank]) for rank in world.ranks})):
        own = {rank: buckets[rank][index] for rank in world.ranks if index < len(buckets[rank])}
        slices = {rank: _slices(own[rank]) if rank in own else [] for rank in world.ranks}
        for number in range(_most(world, {rank: len(found) for rank, found in slices.items()})):
            # A collective of its own each: message buffers are used again in the next one.
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
    """The largest count of all ranks: those of other groups may have fewer buckets."""
    return int(max(count for (count,) in world.gather({rank: [own] for rank, own in counts.items()})))


def _slices(bucket: MeasuredBucket) -> list[tuple[Tensor, Tensor]]:
    """(raw, synchronized) coordinates."""
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
    """All ranks' raw gradients, (ranks, coordinates) on the CPU, bucket after bucket; bytes are not counted.

    `buckets` per hosted rank. The result is the same on every rank.
    """
    gathered = []
    for index in range(len(buckets[world.ranks[0]])):
        rows = world.run(
            {rank: all_gathering(buckets[rank][index].read_raw(), MEASURE) for rank in world.ranks}
        )
        gathered.append(torch.stack(rows[world.ranks[0]]).cpu())
    return torch.cat(gathered, dim=1)
