"""The bit widths that DynamiQ gives to super-groups, and their thresholds on F_j (DynamiQ §3.2, Figure 3).

All figures are those of the codec with its default settings on a ring: F_j is the square of the norm as
reduced in the codec's first all-reduce, in bf16, and widths come from the resulting arrangement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.allocation import paper_increments
from gradwire.codecs.dynamiq.arrangement import (
    TRAVEL_EXPONENT,
    ArrangementRule,
    Chunks,
    arrange,
    super_group_statistics,
)
from gradwire.codecs.dynamiq.format import chunk_size
from gradwire.codecs.options.dynamiq import Format, budget_limits
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Collective
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.studies.distribution import quantiles, share

FORMAT = Format()


@dataclass(frozen=True)
class Threshold:
    """The smallest F_j of a chunk's super-groups with at least `width` bits: the lowest, middle and highest
    such value among the chunks that also have super-groups with fewer bits."""

    width: int
    low: float
    median: float
    high: float


@dataclass(frozen=True)
class Allocation:
    """The use of a budget of `bits` per coordinate, which includes everything on the wire.

    `shares` holds the share of super-groups at each width; `code_bits` is the mean width.
    """

    bits: float
    shares: dict[int, float]
    code_bits: float
    thresholds: list[Threshold]


@dataclass(frozen=True)
class Widths:
    """101 quantiles of F_j over the super-groups, the share of zeros among them, and the allocations."""

    super_groups: int
    quantiles: list[float]
    zeros: float
    allocations: list[Allocation]


@dataclass(frozen=True)
class _WidthBucket:
    """One bucket's super-groups: F_j and, for each budget, their widths, with `chunks` chunks of a ring."""

    squares: Tensor
    widths: list[Tensor]
    chunks: int


def widths(values: Tensor, buckets: Sequence[int], budgets: Sequence[float]) -> Widths:
    """The width allocation for (workers, coordinates), bucket by bucket, at each of `budgets` bits per
    coordinate."""
    workers = len(values)
    fabric = Fabric(partial(make_schedule, "ring"))
    world = VirtualWorld(workers, fabric, torch.device("cpu"), spans=False)
    found = [_bucket(part, world, budgets) for part in torch.split(values, list(buckets), dim=1)]
    squares = torch.cat([bucket.squares for bucket in found])
    return Widths(
        super_groups=squares.numel(),
        quantiles=quantiles(squares),
        zeros=share(squares == 0),
        allocations=[_allocation(bits, found, index) for index, bits in enumerate(budgets)],
    )


def check_budgets(field: str, budgets: Sequence[float]) -> None:
    """Raises a one-line ValueError unless the codec can keep to every budget."""
    low, high = budget_limits(FORMAT)
    for bits in budgets:
        if not low <= bits <= high:
            raise ValueError(
                f"{field}={bits:g}: choose bits from {low:g} to {high:g}, as for codec.bits of codec=dynamiq"
            )


def _bucket(values: Tensor, world: VirtualWorld, budgets: Sequence[float]) -> _WidthBucket:
    """The width allocation for one bucket, (workers, coordinates)."""
    workers, numel = values.shape
    mean, norm = world.run({rank: _reduce(row) for rank, row in enumerate(values)})[0]
    chunks, increments, found = make_schedule("ring", workers).num_chunks, paper_increments(FORMAT.widths), []
    for bits in budgets:
        sizes = tuple(chunk_size(numel, chunks, chunk, bits, FORMAT) for chunk in range(chunks))
        rule = ArrangementRule(increments, FORMAT)
        found.append(arrange(mean, norm, workers, Chunks(sizes), rule).widths())
    return _WidthBucket((norm.double() * 2.0**TRAVEL_EXPONENT).square(), found, chunks)


def _reduce(x: Tensor) -> Collective[list[Tensor]]:
    """The reduced statistics of one worker's bucket, in the format in which they are sent."""

    async def run(comm: ScheduledCollectives) -> list[Tensor]:
        mean, norm = super_group_statistics(x)
        return await comm.reduce([(mean, "sum"), (norm, "norm")])

    return run


def _allocation(bits: float, buckets: Sequence[_WidthBucket], budget: int) -> Allocation:
    chosen = torch.cat([bucket.widths[budget] for bucket in buckets])
    thresholds = [
        _threshold(
            width,
            [_least(bucket, budget, width, chunk) for bucket in buckets for chunk in range(bucket.chunks)],
        )
        for _, width in pairwise(FORMAT.widths)
    ]
    return Allocation(
        bits=bits,
        shares={width: share(chosen == width) for width in FORMAT.widths},
        code_bits=float(chosen.double().mean()),
        thresholds=[threshold for threshold in thresholds if threshold is not None],
    )


def _least(bucket: _WidthBucket, budget: int, width: int, chunk: int) -> float | None:
    """The smallest F_j in a chunk with at least `width` bits; None unless some super-groups have fewer bits
    and some do not."""
    squares = bucket.squares[chunk :: bucket.chunks]
    above = bucket.widths[budget][chunk :: bucket.chunks] >= width
    return float(squares[above].min()) if 0 < int(above.sum()) < len(above) else None


def _threshold(width: int, by_chunk: Sequence[float | None]) -> Threshold | None:
    known = sorted(least for least in by_chunk if least is not None)
    return Threshold(width, known[0], known[len(known) // 2], known[-1]) if known else None
