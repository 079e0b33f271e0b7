"""What all workers derive from the reduced statistics: widths, the order of messages, sizes (DynamiQ §3.2).

The statistics are bit-identical on every rank, hence so is the arrangement; it costs no bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.allocation import Allocation, WidthIncrements, allocate
from gradwire.codecs.dynamiq.format import COUNTED_WIDTHS, ChunkSize, Format, counts_of, used_bytes
from gradwire.codecs.dynamiq.native import NativePlan
from gradwire.codecs.dynamiq.statistics import reduced_statistics
from gradwire.codecs.interface import align
from gradwire.codecs.native.choice import library_for

MOST_SUPER_GROUPS = 2**31 - 1
"""The most that a bucket may have: an order is int32."""


@dataclass(frozen=True)
class Arrangement:
    """One round's arrangement of a bucket.

    `order` (super-groups,) int32 lists super-group indices chunk after chunk as messages hold them, `mean`
    (super-groups,) float32 what is subtracted from them in the same order: their means, NaN where the
    statistics are not finite. `numbers` (chunks, 17) int32 says how many super-groups of a chunk have each
    number of bits, on the device. `sizes` has one entry per chunk.
    """

    order: Tensor
    mean: Tensor
    numbers: Tensor
    sizes: tuple[ChunkSize, ...]
    format: Format
    exact_size: bool

    @cached_property
    def counts(self) -> tuple[Mapping[int, int], ...]:
        """How many super-groups of each width every chunk has: read back to the host, which waits for it."""
        return tuple(counts_of(row, self.format.widths) for row in self.numbers.cpu())

    @cached_property
    def rows(self) -> tuple[slice, ...]:
        """Where each chunk's super-groups lie in `order`."""
        slices, start = [], 0
        for size in self.sizes:
            slices.append(slice(start, start + size.super_groups))
            start += size.super_groups
        return tuple(slices)

    def widths(self) -> Tensor:
        """Bits per coordinate of every super-group, in the bucket's order: (super-groups,) int64."""
        found = torch.empty_like(self.order, dtype=torch.int64)
        for rows, counts in zip(self.rows, self.counts, strict=True):
            descending = sorted(counts, reverse=True)
            runs = torch.tensor([counts[width] for width in descending])
            found[self.order[rows]] = torch.tensor(descending).repeat_interleave(runs).to(found.device)
        return found

    def message_bytes(self, chunk: int) -> int:
        """Length of one chunk's message: its capacity, or the bytes used if sizes are exact."""
        if self.exact_size:
            return align(used_bytes(self.counts[chunk], self.format))
        return self.sizes[chunk].capacity


def arrange(
    mean_sum: Tensor,
    norm: Tensor,
    workers: int,
    sizes: tuple[ChunkSize, ...],
    increments: WidthIncrements,
    message_format: Format,
    allocation: Allocation = "fast",
    exact_size: bool = False,
) -> Arrangement:
    """The arrangement for reduced statistics, two bf16 tensors (super-groups,) on any device; zeros stand for
    one that is not sent. Raises ValueError for a bucket of 2³¹ super-groups or more.

    Compiled kernels do all of it at once, but for `allocation="exact"`, which is PyTorch's sorting.
    """
    plan = native_plan(sizes, increments, workers, allocation, norm.device)
    if plan is not None:
        plan.run(mean_sum.contiguous(), norm.contiguous())
        return Arrangement(plan.order, plan.mean, plan.numbers, sizes, message_format, exact_size)
    patterns, mean = reduced_statistics(mean_sum, norm, workers, len(sizes))
    spare = _spare(sizes, norm.device)
    order, numbers = message_order(allocate(patterns, spare, increments, allocation), norm.numel())
    return Arrangement(order, mean.index_select(0, order), numbers, sizes, message_format, exact_size)


def native_plan(
    sizes: tuple[ChunkSize, ...],
    increments: WidthIncrements,
    workers: int,
    allocation: Allocation,
    device: torch.device,
) -> NativePlan | None:
    """The compiled plan of a bucket on `device` that is cut into chunks of these `sizes`; None where PyTorch
    does it. Raises ValueError as `arrange`."""
    library, total = library_for(device), sum(size.super_groups for size in sizes)
    if library is None or (allocation == "exact" and increments.bits):
        return None
    return NativePlan(library, _spare(sizes, device), _checked(total), increments, workers)


@lru_cache(maxsize=64)
def _spare(sizes: tuple[ChunkSize, ...], device: torch.device) -> Tensor:
    """The chunks' spare bytes, (chunks,) int64: the same in every round, hence copied to the device once."""
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
