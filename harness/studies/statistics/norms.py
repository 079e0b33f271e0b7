"""Norms of groups of coordinates, as they are and shuffled: spatial locality (DynamiQ §2.2, Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.harness.studies.distribution import bucket_energies, quantiles, share

SIZES = (16, 256)
"""Coordinates of a group and of a super-group."""


@dataclass(frozen=True)
class GroupNorms:
    """ℓ2 norms of all groups of all workers: their 101 quantiles, and how many are small.

    `below_10th` and `below_100th` are the shares of groups whose norm is below a 10th or 100th of the median.
    """

    size: int
    shuffled: bool
    groups: int
    quantiles: list[float]
    zeros: float
    below_10th: float
    below_100th: float


def group_norms(values: Tensor, buckets: Sequence[int], seed: int) -> list[GroupNorms]:
    """The norms of groups of every size in (workers, coordinates), before and after `shuffle`.

    Groups end where buckets end; `buckets` holds their numbers of coordinates. Shuffled coordinates are cut
    in the same places.
    """
    order, found = shuffle(values.shape[1], seed), []
    for shuffled in (False, True):
        energies: dict[int, list[Tensor]] = {size: [] for size in SIZES}
        for row in values:
            row = row[order] if shuffled else row
            for size, parts in energies.items():
                parts.append(bucket_energies(row, buckets, size))
        found += [_found(torch.cat(parts).sqrt_(), size, shuffled) for size, parts in energies.items()]
    return found


def shuffle(numel: int, seed: int) -> Tensor:
    """A random order of all coordinates, the same for all workers: (numel,) int64."""
    return torch.randperm(numel, generator=torch.Generator().manual_seed(seed))


def _found(norms: Tensor, size: int, shuffled: bool) -> GroupNorms:
    found = quantiles(norms)
    median = found[len(found) // 2]
    return GroupNorms(
        size=size,
        shuffled=shuffled,
        groups=norms.numel(),
        quantiles=found,
        zeros=share(norms == 0),
        below_10th=share(norms < median / 10),
        below_100th=share(norms < median / 100),
    )
