"""Coordinates before and after a 32-point Hadamard transform, which spreads outliers (SDP4Bit §3.2.2).

The histograms are those of SDP4Bit's Figure 6. As in SDP4Bit, every worker's gradient is treated as one flat
buffer, padded with zeros to whole quantization groups of 128 coordinates. For a gradient longer than 2²⁴
coordinates only every second group is used, or every third, and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.hadamard import hadamard_
from gradwire.harness.studies.distribution import group_tiles, quantiles
from gradwire.harness.studies.statistics.measures import entropy_of_counts

POINTS = 32
GROUP = 128
"""The number of coordinates that are quantized with one scale."""

LONGEST = 1 << 24
"""The approximate largest number of a worker's coordinates that are used."""

BINS = 161
"""Bins of a histogram, all equally wide; the middle one is centred on 0."""

LIMIT = 8
"""The histogram of all coordinates ranges from −8 to 8 times their root mean square."""

GROUP_LIMIT = 12
"""The histogram within groups ranges from −12 to 12 times the group's root mean square; values cannot exceed
√128 times it."""

CODE_BITS = (4, 8)


@dataclass(frozen=True)
class Codes:
    """Coordinates as integers of `bits`: round(x/s·(2^(bits−1) − 1)), where s is the group's largest |x|
    (SDP4Bit).

    `entropy` [bits per coordinate] is the size with an ideal coder of single codes; `zeros` is the share of
    zeros.
    """

    bits: int
    entropy: float
    zeros: float


@dataclass(frozen=True)
class Coordinates:
    """Figures of all workers' coordinates; figures per group exclude groups without energy.

    `histogram` holds the share of each bin in units of the root mean square of all coordinates, and
    `group_histogram` in units of that of the coordinate's group; `outside` is the share beyond the bins of
    the former. `peaks` and `group_kurtosis` are 101 quantiles over groups, of max|x| over root mean square
    and of the mean of x⁴ over the squared mean of x² (3 for Gaussians). Empty or None if there is no energy
    at all.
    """

    kurtosis: float | None
    histogram: list[float]
    outside: float
    group_histogram: list[float]
    peaks: list[float]
    group_kurtosis: list[float]
    codes: list[Codes]


@dataclass(frozen=True)
class Smoothing:
    """The effect of the transform; `root_mean_square` is that of all coordinates."""

    root_mean_square: float
    before: Coordinates
    after: Coordinates


def smoothing(values: Tensor) -> Smoothing:
    """Compares the coordinates of (workers, coordinates) before and after the transform."""
    rows = [some_groups(row) for row in values]
    energy = sum(float(tile.square().sum()) for row in rows for tile in group_tiles(row, GROUP))
    unit = math.sqrt(energy / sum(row.numel() for row in rows))
    before, after = _Tally(), _Tally()
    for row in rows:
        for tile in group_tiles(row, GROUP):
            scaled = tile / (unit or 1.0)
            before.add(scaled)
            after.add(transformed(scaled))
    return Smoothing(unit, before.found(), after.found())


def some_groups(x: Tensor, longest: int = LONGEST) -> Tensor:
    """(coordinates,) itself or, if it is longer than `longest`, evenly spaced whole groups of it."""
    stride = math.ceil(x.numel() / longest)
    return x if stride == 1 else x[: x.numel() // GROUP * GROUP].view(-1, GROUP)[::stride].flatten()


def transformed(x: Tensor) -> Tensor:
    """Transforms every 32 consecutive coordinates of (groups, 128) float64, in float32."""
    rows = x.float().view(-1, POINTS)
    return hadamard_(rows).view_as(x).double()


def code_counts(groups: Tensor, bits: int) -> Tensor:
    """The count of every code, beginning with −(2^(bits−1) − 1): (2^bits − 1,) int64. Groups of zeros have
    codes of 0."""
    largest = 2 ** (bits - 1) - 1
    peaks = groups.abs().amax(dim=1, keepdim=True)
    codes = (groups / peaks.masked_fill(peaks == 0, 1.0) * largest).round_()
    return torch.bincount((codes + largest).long().flatten(), minlength=2 * largest + 1)


class _Tally:
    """Sums over the tiles so far; tiles are (groups, 128) float64 in units of the root mean square."""

    def __init__(self) -> None:
        self._numel, self._second, self._fourth = 0, 0.0, 0.0
        self._histogram = torch.zeros(BINS, dtype=torch.float64)
        self._group_histogram = torch.zeros(BINS, dtype=torch.float64)
        self._codes = {bits: torch.zeros(2**bits - 1, dtype=torch.int64) for bits in CODE_BITS}
        self._peaks: list[Tensor] = []
        self._kurtoses: list[Tensor] = []

    def add(self, tile: Tensor) -> None:
        squares = tile.square()
        second, fourth = squares.mean(dim=1), squares.square().mean(dim=1)
        self._numel += tile.numel()
        self._second += float(second.sum()) * GROUP
        self._fourth += float(fourth.sum()) * GROUP
        self._histogram += torch.histc(tile, BINS, -LIMIT, LIMIT)
        for bits, counts in self._codes.items():
            counts += code_counts(tile, bits)
        alive = (second > 0) & (second.square() > 0)
        relative = tile[alive] / second[alive].sqrt()[:, None]
        self._group_histogram += torch.histc(relative, BINS, -GROUP_LIMIT, GROUP_LIMIT)
        self._peaks.append(relative.abs().amax(dim=1))
        self._kurtoses.append(fourth[alive] / second[alive].square())

    def found(self) -> Coordinates:
        alive = self._second > 0
        shares = self._histogram / self._numel
        return Coordinates(
            kurtosis=self._fourth * self._numel / self._second**2 if alive else None,
            histogram=shares.tolist(),
            outside=max(0.0, 1.0 - float(shares.sum())),
            group_histogram=(self._group_histogram / self._group_histogram.sum()).tolist() if alive else [],
            peaks=quantiles(torch.cat(self._peaks)) if alive else [],
            group_kurtosis=quantiles(torch.cat(self._kurtoses)) if alive else [],
            codes=[
                Codes(bits, entropy_of_counts(counts), int(counts[len(counts) // 2]) / self._numel)
                for bits, counts in self._codes.items()
            ],
        )
