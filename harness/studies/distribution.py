"""Vectors cut into groups of consecutive coordinates, in float64, and distributions kept as quantiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

TILE = 1 << 20
"""About how many coordinates are converted to float64 at a time."""


def group_tiles(x: Tensor, size: int) -> Iterator[Tensor]:
    """Cuts (coordinates,) into groups: tiles of (groups, size) float64, the last group padded with zeros.

    Squares of float32 neither overflow nor vanish in float64.
    """
    step = max(1, TILE // size) * size
    for start in range(0, x.numel(), step):
        part = x[start : start + step].double()
        yield torch.nn.functional.pad(part, (0, -part.numel() % size)).view(-1, size)


def group_energies(x: Tensor, size: int) -> Tensor:
    """Squared norm of every group of `size` coordinates of (coordinates,): (groups,) float64."""
    return torch.cat([tile.square().sum(dim=1) for tile in group_tiles(x, size)])


def group_counts(numel: int, size: int) -> Tensor:
    """How many coordinates each group has, `size` in all but perhaps the last: (groups,) int64."""
    counts = torch.full((-(-numel // size),), size)
    counts[-1] -= -numel % size
    return counts


def bucket_energies(x: Tensor, buckets: Sequence[int], size: int) -> Tensor:
    """`group_energies` of each bucket of (coordinates,), one bucket after another; groups end where buckets
    do.

    `buckets` holds how many coordinates each one has.
    """
    return torch.cat([group_energies(part, size) for part in torch.split(x, list(buckets))])


PERCENT = 100


def quantiles(values: Tensor) -> list[float]:
    """Percentiles 0, 1, …, 100 of `values`: the smallest value that so many percent do not exceed.

    `values` are finite, and there is at least one. Each of the 101 results is one of them.
    """
    ordered = values.flatten().sort().values
    count = ordered.numel()
    places = [max(0, -(-percent * count // PERCENT) - 1) for percent in range(PERCENT + 1)]
    found: list[float] = ordered[places].tolist()
    return found


def share(chosen: Tensor) -> float:
    """The share of True in a mask."""
    return float(chosen.count_nonzero()) / chosen.numel()
