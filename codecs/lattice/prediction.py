"""The bits that slots will take as a function of the step, and the choice of the step D.

A super-group of Gaussian coordinates whose variance is 2^t·D² takes G(t) bits once each coordinate is
rounded at random to a multiple of D; `tables` has G. Each rank sums G over its super-groups, all scaled so
that the rank has the mean energy 1 a coordinate, for some steps around the last one known: its curve. Sums
of k contributions take the bits of the curve at a variance that is `gain` larger: log2 k and more if
workers' gradients resemble one another.

Logarithms are in units of 1/64, bits in 1/32; sums of whole numbers have no order, so every implementation
agrees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.arrangement import super_group_statistics
from gradwire.codecs.lattice.codes import HEADER_BITS
from gradwire.codecs.lattice.logarithms import UNITS, log2_units

PARTS = 32
"""Parts of a bit in G."""

LOWEST, HIGHEST = -30 * UNITS, 24 * UNITS
"""Variances between which G is known; below it every super-group is zeros."""

SPACING = UNITS // 2

POINTS = tuple(range(-8 * UNITS, 13 * UNITS, 2 * UNITS))
"""Variances relative to the last step known at which curves are made."""

NO_ENERGY = -100 * UNITS
"""The variance of a super-group of zeros."""

_MANTISSA = 8
_KEPT = 24
"""Bits that are kept of a super-group's energy relative to the largest one."""


def bits_of(variance: Tensor, table: Tensor) -> Tensor:
    """G of log2 variances in units, in parts of a bit: int64. `table` is `tables.G` of the code."""
    place = (variance - LOWEST).clamp(0, HIGHEST - LOWEST - 1)
    index, share = place // SPACING, place % SPACING
    return (table[index] * (SPACING - share) + table[index + 1] * share) // SPACING


@dataclass(frozen=True)
class BucketStatistics:
    """A rank's numbers of a bucket: its `norm` and its largest super-group's, (1,) float32, and its `curve`,
    (points,) int64."""

    norm: Tensor
    largest: Tensor
    curve: Tensor


def statistics(x: Tensor, step: int, table: Tensor) -> BucketStatistics:
    """The numbers of the bucket `x`, (numel,). `step` is the last step known relative to the root mean
    square, log2 in units. Super-groups that are not finite count as zeros."""
    travelling = super_group_statistics(x)[1].to(torch.float32)
    norms = torch.where(travelling.isfinite(), travelling, 0.0)
    largest = norms.amax(dim=0, keepdim=True)
    pattern = norms.view(torch.int32).to(torch.int64)
    behind = (largest.view(torch.int32).to(torch.int64) >> 23) - (pattern >> 23)
    mantissa = (pattern >> (23 - _MANTISSA + 1) & 0x7F) | 0x80
    energy = torch.where(norms > 0, ((mantissa * mantissa) << _KEPT) >> (2 * behind).clamp(max=62), 0).sum()
    # In units of the largest super-group's power of two, squared, with `_KEPT` bits behind the point.
    root = (energy.to(torch.float64) * 2.0 ** -(_KEPT + 2 * (_MANTISSA - 1))).sqrt().to(torch.float32)
    power = (largest.view(torch.int32) & 0x7F80_0000).view(torch.float32)
    norm = root * power
    mean = log2_units(torch.tensor(float(norms.numel()), device=x.device))
    relative = 2 * (log2_units(norms) - log2_units(norm) - step) + mean
    relative = torch.where(norms > 0, relative, NO_ENERGY)
    points = torch.tensor(POINTS, device=x.device)
    curve = bits_of(relative[:, None] + points, table).sum(dim=0)
    return BucketStatistics(norm, largest, curve)


@dataclass(frozen=True)
class Curve:
    """The bits of all slots of one worker as a function of the step: `points`, int64 in parts of a bit, are
    the sum of `workers` curves around the step `known`, of so many `super_groups`; `fixed` bits are in all
    slots together besides. `coordinates` are those of all slots."""

    points: Tensor
    known: int
    workers: int
    super_groups: int
    fixed: int
    coordinates: int

    def bits(self, gain: Tensor | int, step: Tensor | int) -> Tensor:
        """The bits of sums whose variance is 2^(gain/64) times that of a worker's gradients, with the `step`
        relative to the root mean square, in units: int64 of the shape that `gain` and `step` broadcast to."""
        device = self.points.device
        gain, step = torch.as_tensor(gain, device=device), torch.as_tensor(step, device=device)
        variance = gain - 2 * (step - self.known)
        place = (variance - POINTS[0]).clamp(0, POINTS[-1] - POINTS[0] - 1)
        spacing = POINTS[1] - POINTS[0]
        index, share = place // spacing, place % spacing
        found = (self.points[index] * (spacing - share) + self.points[index + 1] * share) // spacing
        found = found // (PARTS * self.workers)
        # Where most integers are 0, the others are as many as the variance's root: half in two octaves.
        below = (POINTS[0] - variance).clamp(min=0)
        headers = HEADER_BITS * self.super_groups
        excess = (found - headers) * (2 * spacing - below % spacing) // (2 * spacing) >> below // spacing
        beyond = (variance - POINTS[-1]).clamp(min=0) * self.coordinates // (2 * UNITS)
        return torch.where(below > 0, headers + excess, found) + beyond + self.fixed

    def gain_of(self, bits: Tensor, step: int) -> Tensor:
        """The smallest gains, in units, at which sums take at least `bits`, (counts,), with this step."""
        variances = torch.arange(POINTS[0] - 8 * UNITS, POINTS[-1], device=bits.device)
        candidates = variances + 2 * (step - self.known)
        predicted = self.bits(candidates, step)
        return candidates[torch.searchsorted(predicted, bits).clamp(max=len(candidates) - 1)]
