"""Statistics of super-groups, which the workers reduce, and the widths, orders and sizes of messages that
every worker derives from them (DynamiQ §3.1, §3.2).

Means and norms travel as bf16, divided by 2⁸. So the sum of means over up to 256 workers, and the norm of 256
coordinates over as many workers, stay finite wherever the gradients do.

The statistics are bit-identical on every rank, hence so is the arrangement, which therefore need not be sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant, exponents, fold, normalizers, power_of_two
from gradwire.codecs.collectives import align
from gradwire.codecs.dynamiq.allocation import WidthIncrements, allocate
from gradwire.codecs.dynamiq.definition import OrderedChunk
from gradwire.codecs.dynamiq.format import (
    COUNTED_WIDTHS,
    ChunkSize,
    counts_of,
    num_super_groups,
    to_super_groups,
    used_bytes,
)
from gradwire.codecs.dynamiq.native import NativePlan
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import Library
from gradwire.codecs.options.dynamiq import SUPER_GROUP, Allocation, Format

TRAVEL_EXPONENT = 8
"""Statistics travel divided by 2 to this power."""


def super_group_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and norm of every super-group of `x`, (numel,) of a floating dtype: both bf16 of shape
    (super-groups,) and divided by 2⁸.

    With m a power of two near the largest magnitude, mean = m·(Σ(x/m)/count) and norm = m·√Σ(x/m)²; the last
    super-group's mean does not count padding. Non-finite coordinates make at least one of the two non-finite.

    They lie one after another in memory, as in the message that is reduced first.
    """
    total = num_super_groups(x.numel())
    mean, norm = torch.empty(2, total, dtype=torch.bfloat16, device=x.device).unbind()
    write_statistics(readable(x), mean, norm)
    return mean, norm


def write_statistics(x: Tensor, mean: Tensor, norm: Tensor) -> None:
    """Fill `mean` and `norm`, bf16 (super-groups,), from `x`, (numel,) float32 or bfloat16."""
    library = library_for(x.device)
    if library is not None:
        numel, total = x.numel(), num_super_groups(x.numel())
        given = {"x": (x, numel), "mean": (mean, total), "norm": (norm, total)}
        run(library, "super_group_statistics", x.device, numel=numel, **given)
        return
    rows = to_super_groups(x)
    field = exponents(rows.abs().amax(dim=1))
    scaled = rows * normalizers(field)[:, None]
    back = power_of_two(field - (1 + TRAVEL_EXPONENT))
    count = torch.full_like(back, SUPER_GROUP)
    count[-1] = x.numel() - (len(rows) - 1) * SUPER_GROUP
    mean.copy_(fold(scaled) / count * back)
    # PyTorch's float32 square root is not always the nearest one; rounded from float64 it is.
    norm.copy_(fold(scaled.square()).double().sqrt().to(torch.float32) * back)


def reduced_statistics(
    mean_sum: Tensor, norm: Tensor, workers: int, num_chunks: int
) -> tuple[Tensor, Tensor]:
    """Convert reduced statistics, two bf16 (super-groups,), to the norms' patterns by chunk, (chunks,
    super-groups of the longest) int32, and the workers' mean of the means, (super-groups,) float32.

    Where a statistic is not finite, the pattern is 0 and the mean NaN. Super-group i·chunks + c is the i-th
    of chunk c; a chunk that is one super-group shorter has a pattern of 0 in its place.
    """
    finite = mean_sum.isfinite() & norm.isfinite()
    length = -(-norm.numel() // num_chunks)
    padding = num_chunks * length - norm.numel()
    patterns = torch.nn.functional.pad(norm_patterns(norm, finite), (0, padding)).view(length, num_chunks).T
    mean = mean_sum.to(torch.float32) / constant(workers, mean_sum) * float(1 << TRAVEL_EXPONENT)
    return patterns.contiguous(), mean.masked_fill(~finite, torch.nan)


def norm_patterns(norm: Tensor, finite: Tensor) -> Tensor:
    """Bit patterns (int32) of non-negative bf16 norms; 0, hence the smallest width, where not `finite`."""
    return norm.view(torch.int16).to(torch.int32).masked_fill(~finite, 0)


MOST_SUPER_GROUPS = 2**31 - 1
"""The most that a bucket may have: an order is int32."""


@dataclass(frozen=True)
class Chunks:
    """The chunks of a bucket, the same in every round."""

    sizes: tuple[ChunkSize, ...]

    @cached_property
    def super_groups(self) -> int:
        """Super-groups of the whole bucket."""
        return sum(size.super_groups for size in self.sizes)

    @cached_property
    def rows(self) -> tuple[slice, ...]:
        """The places of each chunk's super-groups in an order."""
        starts = [0, *accumulate(size.super_groups for size in self.sizes)]
        return tuple(slice(start, stop) for start, stop in pairwise(starts))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The start of each chunk's message, and the end of the last one, if every message has its full
        capacity."""
        return (0, *accumulate(size.capacity for size in self.sizes))


@dataclass(frozen=True)
class Arrangement:
    """One round's arrangement of a bucket.

    `order` (super-groups,) int32 lists super-group indices chunk by chunk in message order. `mean`
    (super-groups,) float32 holds the means to subtract, in the same order, NaN where statistics are not
    finite. `numbers` (chunks, 17) int32, on the device, holds the number of super-groups of each bit width.
    """

    order: Tensor
    mean: Tensor
    numbers: Tensor
    chunks: Chunks
    format: Format
    exact_size: bool

    @cached_property
    def counts(self) -> tuple[Mapping[int, int], ...]:
        """Number of super-groups of each width in every chunk. Waits for the device to copy them to the
        host."""
        return tuple(counts_of(row, self.format.widths) for row in self.numbers.cpu())

    @property
    def rows(self) -> tuple[slice, ...]:
        """The places of each chunk's super-groups in `order`."""
        return self.chunks.rows

    def chunk(self, number: int) -> OrderedChunk:
        """A chunk's part of it."""
        rows = self.rows[number]
        return OrderedChunk(self.order[rows], self.mean[rows], self.numbers[number])

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The start of each chunk's message, and the end of the last one: messages take their full capacity,
        or only the bytes used if sizes are exact."""
        if not self.exact_size:
            return self.chunks.offsets
        return (0, *accumulate(align(used_bytes(counts, self.format)) for counts in self.counts))

    def widths(self) -> Tensor:
        """Bits per coordinate of every super-group, in the bucket's order: (super-groups,) int64."""
        found = torch.empty_like(self.order, dtype=torch.int64)
        for rows, counts in zip(self.rows, self.counts, strict=True):
            descending = sorted(counts, reverse=True)
            runs = torch.tensor([counts[width] for width in descending], device="cpu")
            found[self.order[rows]] = (
                torch.tensor(descending, device="cpu").repeat_interleave(runs).to(found.device)
            )
        return found


@dataclass(frozen=True)
class ArrangementRule:
    """The settings of an arrangement: the increments to choose from and the rule that takes them, the format
    of messages, and whether these have no more bytes than they use."""

    increments: WidthIncrements
    format: Format
    allocation: Allocation = "fast"
    exact_size: bool = False


def arrange(
    mean_sum: Tensor, norm: Tensor, workers: int, chunks: Chunks, rule: ArrangementRule
) -> Arrangement:
    """The arrangement for reduced statistics, two bf16 tensors (super-groups,) on any device; a statistic
    that was not sent is given as zeros. Raises ValueError for a bucket of 2³¹ super-groups or more.

    A compiled kernel does all of this at once, except `allocation="exact"`, which sorts in PyTorch.
    """
    library, increments = library_for(norm.device), rule.increments
    if library is not None and (rule.allocation == "fast" or not increments.bits):
        plan = native_plan(library, chunks, increments, workers, norm.device)
        plan.run(mean_sum.contiguous(), norm.contiguous())
        return Arrangement(plan.order, plan.mean, plan.numbers, chunks, rule.format, rule.exact_size)
    patterns, mean = reduced_statistics(mean_sum, norm, workers, len(chunks.sizes))
    widths = allocate(patterns, _spare(chunks.sizes, norm.device), increments, rule.allocation)
    order, numbers = message_order(widths, norm.numel())
    mean = mean.index_select(0, order)
    return Arrangement(order, mean, numbers, chunks, rule.format, rule.exact_size)


def native_plan(
    library: Library, chunks: Chunks, increments: WidthIncrements, workers: int, device: torch.device
) -> NativePlan:
    """The compiled plan of a bucket on `device`, reused in every round. Raises ValueError as `arrange`."""
    spare = _spare(chunks.sizes, device)
    return NativePlan(library, spare, _checked(chunks.super_groups), increments, workers)


@lru_cache(maxsize=64)
def _spare(sizes: tuple[ChunkSize, ...], device: torch.device) -> Tensor:
    """The chunks' spare bytes, (chunks,) int64. They are the same in every round, so they are copied to the
    device once."""
    return torch.tensor([size.spare for size in sizes], device=device)


def _checked(total: int) -> int:
    if total > MOST_SUPER_GROUPS:
        raise ValueError(
            f"a bucket has at most {MOST_SUPER_GROUPS:,} super-groups, got {total:,}; use more buckets"
        )
    return total


def message_order(widths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """Super-group indices in the order of the messages, (total,) int32, and how many super-groups of each
    width every chunk has, (chunks, 17) int32.

    Messages hold them chunk after chunk, each in sections of one width, the largest first, and by index
    within a section. `widths` is (chunks, super-groups) int64 from 1 to 16; its entry (c, i) is super-group
    i·chunks + c, which exists if below `total`. Raises ValueError for a bucket of 2³¹ super-groups or more.
    """
    (chunks, length), total = widths.shape, _checked(total)
    chunk = torch.arange(chunks, device=widths.device)[:, None]
    index = torch.arange(length, device=widths.device) * chunks + chunk
    widths = widths.masked_fill(index >= total, 0)
    by_width = widths.argsort(dim=1, descending=True, stable=True)
    index = index.gather(1, by_width).flatten()
    counts = torch.zeros(chunks, COUNTED_WIDTHS, dtype=torch.int32, device=widths.device)
    counts.scatter_add_(1, widths, (widths > 0).to(torch.int32))
    return index[index < total].to(torch.int32), counts
