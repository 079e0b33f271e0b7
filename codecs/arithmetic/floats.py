"""Float32 arithmetic that every implementation and machine repeats bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_NORMAL, SMALLEST_EXPONENT, LARGEST_EXPONENT = 1, 27, 254
"""Exponent fields of the smallest normal number, of 2⁻¹⁰⁰ and of the largest numbers. Groups of coordinates
are scaled by none beyond the last two, so that normalizers and what undoes them are normal numbers."""

BF16_INFINITY = 0x7F80
"""The bfloat16 pattern of infinity: no finite number's reaches it."""


def constant(value: float, like: Tensor) -> Tensor:
    """`value` as a float32 scalar tensor on the device of `like`.

    Every division by or of a constant goes through it: with a Python number PyTorch may multiply by a
    reciprocal instead, which rounds twice and differs between devices.
    """
    return torch.full((), value, dtype=torch.float32, device=like.device)


def power_of_two(field: Tensor) -> Tensor:
    """2^(field − 127) as float32, exactly; `field` int32 in [1, 254]."""
    return (field << 23).view(torch.float32)


def exponents(magnitudes: Tensor, smallest: int = SMALLEST_EXPONENT) -> Tensor:
    """Exponent field of non-negative float32, limited to [smallest, 254]: int32, same shape."""
    return (magnitudes.view(torch.int32) >> 23).clamp(smallest, LARGEST_EXPONENT)


def normalizers(field: Tensor) -> Tensor:
    """The powers of two that bring magnitudes of these exponents into [2, 4), smaller ones below.

    They are normal numbers, and scaling by them is exact. Results computed from scaled values neither
    overflow nor vanish, and scaling a gradient by 2^k does not change a bit of them.
    """
    return power_of_two(255 - field)


def restorers(field: Tensor) -> Tensor:
    """The powers of two that undo `normalizers`; exponents from 2 on."""
    return power_of_two(field - 1)


def fold(x: Tensor) -> Tensor:
    """Sum over the second dimension, a power of two, in a fixed order: halves are added until one value is
    left.

    In (rows, 256), coordinates k and k + 128 are added first, then sums k and k + 64, and so on: whole
    vectors in SIMD, no shuffles until 16 lanes are left.
    """
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = x[:, :half] + x[:, half:]
    return x[:, 0]


NEIGHBOURS = 16
"""Coordinates that are added first."""

_ROW, _FAR = 32, 256
"""Number of sums of neighbours that are added next, and the distance of those that are added first of long
groups."""


def largest_magnitudes(rows: Tensor) -> Tensor:
    """The largest magnitude of every row: (groups, 1) from (groups, group) float32; NaN where a coordinate is
    NaN."""
    return rows.abs().amax(dim=1, keepdim=True)


def group_sums(rows: Tensor) -> Tensor:
    """The sum of every row of (groups, group) float32, `group` a power of two, in a fixed order: (groups, 1).

    16 neighbours are summed first, then 32 of these sums, then up to 8 of those, by halves each time
    (`fold`). In groups above 4096, each sum of 16 is first added to the sums 4096 coordinates further on, one
    after another. On GPUs a thread then sums 16 coordinates, a warp 512 and a block 4096.
    """
    groups, group = rows.shape
    sums = fold(rows.reshape(-1, min(group, NEIGHBOURS))).view(groups, -1)
    if sums.shape[1] > _FAR:
        first, *others = torch.split(sums, _FAR, dim=1)
        for other in others:
            first = first + other
        sums = first
    sums = fold(sums.reshape(-1, min(sums.shape[1], _ROW))).view(groups, -1)
    return fold(sums)[:, None]
