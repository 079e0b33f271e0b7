"""Sums and largest magnitudes of groups of coordinates, the same bits everywhere."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.floats import fold

NEIGHBOURS = 16
"""Coordinates that are added first."""

_ROW, _TILE = 32, 256
"""Sums of neighbours that are added next, and those of which there are several only if a group is longer."""


def largest_magnitudes(rows: Tensor) -> Tensor:
    """(groups, 1) from (groups, group) float32; NaN where a coordinate is NaN."""
    return rows.abs().amax(dim=1, keepdim=True)


def group_sums(rows: Tensor) -> Tensor:
    """Of every row of (groups, group) float32, `group` a power of two: (groups, 1), in a fixed order.

    First 16 neighbours, then 32 of their sums, then up to 8 of those, by halves each time (`fold`). Of groups
    above 4096, the sums of 16 are first added to those 4096 further on, one after another. So that on GPUs 16
    coordinates, 512 and 4096 are those of a thread, a warp and a block.
    """
    groups, group = rows.shape
    sums = fold(rows.reshape(-1, min(group, NEIGHBOURS))).view(groups, -1)
    if sums.shape[1] > _TILE:
        first, *others = torch.split(sums, _TILE, dim=1)
        for other in others:
            first = first + other
        sums = first
    sums = fold(sums.reshape(-1, min(sums.shape[1], _ROW))).view(groups, -1)
    return fold(sums)[:, None]
