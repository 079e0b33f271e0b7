"""What all workers derive from the reduced statistics: widths, order, sizes (DynamiQ §3.2).

The statistics are bit-identical on every rank, hence so is the plan; it costs no bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.allocation import Allocation, allocate
from gradwire.codecs.dynamiq.format import Format
from gradwire.codecs.dynamiq.order import message_order
from gradwire.codecs.dynamiq.reduced import reduced_statistics
from gradwire.codecs.dynamiq.sizes import ChunkSize, align, used_bytes
from gradwire.codecs.dynamiq.upgrades import Upgrades


@dataclass(frozen=True)
class Plan:
    """One round's arrangement of a bucket.

    `order` (super-groups,) int64 lists super-group indices chunk after chunk as messages hold them, `mean`
    (super-groups,) float32 what is subtracted from them in the same order: their means, NaN where the
    statistics are not finite. `counts` and `sizes` have one entry per chunk.
    """

    order: Tensor
    mean: Tensor
    counts: tuple[Mapping[int, int], ...]
    sizes: tuple[ChunkSize, ...]
    format: Format
    exact_size: bool

    @cached_property
    def rows(self) -> tuple[slice, ...]:
        """Where each chunk's super-groups lie in `order`."""
        slices, start = [], 0
        for size in self.sizes:
            slices.append(slice(start, start + size.super_groups))
            start += size.super_groups
        return tuple(slices)

    def message_bytes(self, chunk: int) -> int:
        """Length of one chunk's message: its capacity, or the bytes used if sizes are exact."""
        if self.exact_size:
            return align(used_bytes(self.counts[chunk], self.format))
        return self.sizes[chunk].capacity


def make_plan(
    mean_sum: Tensor,
    norm: Tensor,
    workers: int,
    sizes: tuple[ChunkSize, ...],
    upgrades: Upgrades,
    message_format: Format,
    allocation: Allocation = "fast",
    exact_size: bool = False,
) -> Plan:
    """The plan for reduced statistics, two bf16 tensors (super-groups,) on any device; zeros stand for one
    that is not sent.

    The number of super-groups of each width is read back to the host if there is a choice.
    """
    patterns, mean = reduced_statistics(mean_sum, norm, workers, len(sizes))
    spare = _spare(tuple(size.spare for size in sizes), norm.device)
    order, numbers = message_order(allocate(patterns, spare, upgrades, allocation), norm.numel())
    mean = mean.index_select(0, order)
    return Plan(order, mean, _counts(numbers, sizes, message_format), sizes, message_format, exact_size)


@lru_cache(maxsize=64)
def _spare(spare: tuple[int, ...], device: torch.device) -> Tensor:
    """The chunks' spare bytes, (chunks,) int64: the same in every round, hence copied to the device once."""
    return torch.tensor(spare, device=device)


def _counts(
    numbers: Tensor, sizes: tuple[ChunkSize, ...], message_format: Format
) -> tuple[Mapping[int, int], ...]:
    """How many super-groups of each width every chunk has, from `message_order`'s (chunks, 17) int64."""
    if len(message_format.widths) == 1:
        return tuple({message_format.widths[0]: size.super_groups} for size in sizes)
    return tuple({width: row[width] for width in message_format.widths} for row in numbers.tolist())
