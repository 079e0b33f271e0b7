"""Vectors divided into groups of coordinates, the error of synchronized gradients, and its rate–distortion
bound.

The bound is computed by reverse water-filling over a gradient's measured variances.

Let coordinates be independent and Gaussian, with variance σ_j² in group j, and let distortion be the mean
squared error D. No code of R bits per coordinate has a smaller distortion than D = mean_j min(θ, σ_j²), where
the water level θ is such that mean_j max(0, ½·log2(σ_j²/θ)) = R (Cover and Thomas, "Elements of information
theory", theorem 10.3.3). D divided by mean_j σ_j² is a vNMSE.

It is a reference line, not a limit for real gradients. It describes one encoding of the mean itself, by an
arbitrarily long code, for variances that both sides know at no cost; an all-reduce encodes several partial
sums and spends bits on scales. Real coordinates are not Gaussian either: with the same variances they can be
easier to describe, never harder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradwire.codecs.options.dynamiq import SUPER_GROUP

TILE = 1 << 20
"""The approximate number of coordinates that are converted to float64 at a time."""


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
    """The number of coordinates of each group, `size` in all but perhaps the last: (groups,) int64."""
    counts = torch.full((-(-numel // size),), size)
    counts[-1] -= -numel % size
    return counts


def bucket_energies(x: Tensor, buckets: Sequence[int], size: int) -> Tensor:
    """`group_energies` of each bucket of (coordinates,), bucket by bucket; groups do not extend across
    buckets.

    `buckets` holds the number of coordinates of each.
    """
    return torch.cat([group_energies(part, size) for part in torch.split(x, list(buckets))])


PERCENT = 100


def quantiles(values: Tensor) -> list[float]:
    """Percentiles 0, 1, …, 100 of `values`: for each percentage the smallest value that this share does not
    exceed.

    `values` must be finite and not empty. Each of the 101 results is one of them.
    """
    ordered = values.flatten().sort().values
    count = ordered.numel()
    places = [max(0, -(-percent * count // PERCENT) - 1) for percent in range(PERCENT + 1)]
    found: list[float] = ordered[places].tolist()
    return found


def share(chosen: Tensor) -> float:
    """The share of True in a mask."""
    return float(chosen.count_nonzero()) / chosen.numel()


def exact_mean(values: Tensor) -> Tensor:
    """The mean over the workers (rows), (coordinates,) float64; rows are summed one by one, without copying
    the whole."""
    total = torch.zeros(values.shape[1], dtype=torch.float64)
    for row in values:
        total += row
    return total / values.shape[0]


def vnmse(estimate: Tensor, mean: Tensor) -> float | None:
    """‖x̄ − x̂‖² / ‖x̄‖²; None if it is undefined, because the mean is zero or a value is not finite."""
    energy = float(mean.square().sum())
    error = float((estimate.double() - mean).square().sum())
    ratio = error / energy if energy > 0 else float("nan")
    return ratio if ratio == ratio and ratio != float("inf") else None


@dataclass
class GroupErrors:
    """The squared errors of super-groups, added up over estimates of one mean.

    Super-groups do not extend across `buckets`, which hold the coordinates of each; `energies` are those of
    the mean, (super-groups,).
    """

    buckets: Sequence[int]
    energies: Tensor
    squared: Tensor
    estimates: int = 0

    @classmethod
    def of(cls, mean: Tensor, buckets: Sequence[int]) -> GroupErrors:
        """Those of no estimate yet of `mean`, (coordinates,) float64."""
        energies = bucket_energies(mean, buckets, SUPER_GROUP)
        return cls(buckets, energies, torch.zeros_like(energies))

    def add(self, difference: Tensor) -> None:
        """Adds an estimate by its difference from the mean, (coordinates,) float64."""
        self.squared += bucket_energies(difference, self.buckets, SUPER_GROUP)
        self.estimates += 1

    def relative(self) -> Tensor:
        """Each super-group's squared error, averaged over the estimates, relative to its energy; super-groups
        without energy are left out."""
        return (self.squared / self.estimates / self.energies)[self.energies > 0]

    def by_width(self, widths: Tensor) -> dict[int, Tensor]:
        """`relative` separately for the super-groups of each width; `widths` (super-groups,) are their
        bits."""
        shares, alive = self.squared / self.estimates / self.energies, self.energies > 0
        return {width: shares[alive & (widths == width)] for width in sorted(set(widths.tolist()))}


GROUP = 256
"""The number of coordinates that are assumed to share a variance: a super-group of DynamiQ."""


@dataclass(frozen=True)
class RateDistortionCurve:
    """The groups with nonzero energy, in descending order of variance.

    `variances` and `counts` (coordinates of a group) are (groups,) float64; `numel` counts the coordinates of
    all groups, including those without energy, which cost no bits.
    """

    variances: Tensor
    counts: Tensor
    numel: int

    @classmethod
    def of(cls, mean: Tensor, group: int = GROUP) -> RateDistortionCurve:
        """The bound for an exact mean gradient, (coordinates,), from the mean square of every `group`
        coordinates.

        Groups that are not finite make every bound NaN.
        """
        counts = group_counts(mean.numel(), group).double()
        variances = group_energies(mean, group) / counts
        variances, order = variances.sort(descending=True)  # NaN first
        alive = variances != 0
        return cls(variances[alive], counts[order][alive], mean.numel())

    def bound(self, bits_per_coordinate: float) -> float:
        """The least vNMSE at this rate; NaN for a gradient that is zero or not finite."""
        assert bits_per_coordinate >= 0, "a rate is not negative"
        if not len(self.variances) or not math.isfinite(self._energies[0]):
            return math.nan
        bits = bits_per_coordinate * self.numel
        above = int((self._bits_down_to <= bits).sum())  # groups above the water
        level = 2.0 ** float((self._logarithms[above - 1] - 2 * bits) / self._numels[above - 1])
        flooded = self._energies[above] if above < len(self._energies) else 0.0
        return min(1.0, float((level * self._numels[above - 1] + flooded) / self._energies[0]))

    def decibels_above(self, vnmse: float, bits_per_coordinate: float) -> float:
        """10·log10 of `vnmse` over the bound at this rate: −∞ if there is no error, NaN if one of them is
        undefined."""
        bound = self.bound(bits_per_coordinate)
        if math.isnan(bound + vnmse):
            return math.nan
        if vnmse == 0:
            return -math.inf
        return 10 * math.log10(vnmse / bound) if bound else math.inf

    @cached_property
    def _numels(self) -> Tensor:
        """The number of coordinates of the first 1, 2, … groups."""
        return self.counts.cumsum(dim=0)

    @cached_property
    def _logarithms(self) -> Tensor:
        """Σ log2 σ² over the coordinates of the first 1, 2, … groups."""
        return (self.counts * self.variances.log2()).cumsum(dim=0)

    @cached_property
    def _bits_down_to(self) -> Tensor:
        """Total bits for which the water level equals each group's variance."""
        return (self._logarithms - self._numels * self.variances.log2()) / 2

    @cached_property
    def _energies(self) -> Tensor:
        """The energy of each group and all groups after it."""
        return (self.counts * self.variances).flip(0).cumsum(dim=0).flip(0)
