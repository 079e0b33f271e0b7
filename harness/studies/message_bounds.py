"""A bound for all-reduces of sums: the error of ideal codes for every message of a ring or a butterfly.

Every message encodes the partial sum that it carries, in groups of 16 coordinates, as independent Gaussians
of the group's variance σ² (`distribution` says what such a code can do). The errors of all messages add up,
and all share the bits: a message that is sent m times pays for each of its bits m times, so that the
Lagrangian gives it the water level m·θ. A group for which that is dearer than leaving it out of all messages
is left out: it then costs the energy of the whole sum, once, and no bits. The energies of partial sums are
not counted for it, since what a message drops, later messages do not hold either.

It is a reference, not a limit. A codec can lie below it: its roundings may cancel each other, it may leave
out a part of a sum and keep the rest, and real coordinates are not Gaussian. Codes are arbitrarily long, and
both sides know all variances for free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.slices import chunk_bounds
from gradwire.harness.comm.topology.check import carried_sums
from gradwire.harness.comm.topology.schedule import Schedule
from gradwire.harness.studies.distribution import group_counts, group_energies

GROUP = 16
"""The number of coordinates of a message that are assumed to share a variance. Chunks are multiples of it."""

BLOCK = 1 << 20
"""Coordinates of all workers that are in memory as float64 at a time, a multiple of `GROUP`."""

PER_OCTAVE, ABOVE, BELOW = 64, 48, 80
"""Water levels: so many per factor of 2, from 2^ABOVE to 2^-BELOW times the mean square of the sum."""

BISECTIONS = 16


@dataclass(frozen=True)
class MessageBound:
    """Points of the bound, by falling water level: (levels,) float64 `bits` per coordinate of an encoded
    gradient, ascending, and `errors` as vNMSE."""

    bits: Tensor
    errors: Tensor

    @classmethod
    def of(cls, values: Tensor, mean: Tensor, buckets: Sequence[int], schedule: Schedule) -> MessageBound:
        """That of (workers, coordinates), whose exact mean is `mean`, float64 and not zero, with the messages
        of `schedule`. `buckets` holds the number of coordinates of each.

        Raises ValueError for a topology whose messages hold no partial sums.
        """
        if not schedule.sums_on_the_way:
            raise ValueError(f"topology={schedule.name} sends no partial sums")
        levels = _WaterLevels(float(mean.square().mean()) * schedule.size**2)
        for groups in _groups(values, buckets, schedule):
            levels.add(groups)
        bits, distortions = levels.curve()
        sent = schedule.gradients_sent * mean.numel()
        return cls(bits / sent, distortions / distortions[0])  # at the highest level all is left out

    def bound(self, bits_per_coordinate: float) -> float:
        """The vNMSE at this rate. Between two water levels some groups are coded as at the one, and the
        others as at the other."""
        assert bits_per_coordinate >= 0, "a rate is not negative"
        after = int(torch.searchsorted(self.bits, bits_per_coordinate, right=True))
        if after == len(self.bits):
            return float(self.errors[-1])
        low, high = self.bits[after - 1], self.bits[after]
        share = float((bits_per_coordinate - low) / (high - low))
        return float((1 - share) * self.errors[after - 1] + share * self.errors[after])


@dataclass(frozen=True)
class _Groups:
    """Groups of one chunk: the variances of the partial sums in its messages, (messages, groups), how often
    each is `sent`, (messages, 1), the variance of the whole `total` sum, and the coordinates of each group.
    """

    variances: Tensor
    sent: Tensor
    total: Tensor
    counts: Tensor


def _groups(values: Tensor, buckets: Sequence[int], schedule: Schedule) -> Iterator[_Groups]:
    """The groups of all chunks of all buckets, of at most `BLOCK` coordinates at a time."""
    sums = carried_sums(schedule)
    everyone = frozenset(range(schedule.size))
    start = 0
    for numel in buckets:
        bounds = chunk_bounds(numel, schedule.num_chunks, GROUP)
        for chunk in range(schedule.num_chunks):
            messages = {workers: sends for (own, workers), sends in sums.items() if own == chunk}
            sent = torch.tensor([[float(sends)] for sends in messages.values()], dtype=torch.float64)
            for first in range(bounds[chunk], bounds[chunk + 1], BLOCK):
                last = min(first + BLOCK, bounds[chunk + 1])
                own = values[:, start + first : start + last].double()
                counts = group_counts(last - first, GROUP).double()
                variances = torch.stack(
                    [group_energies(own[sorted(workers)].sum(dim=0), GROUP) / counts for workers in messages]
                )
                yield _Groups(variances, sent, variances[list(messages).index(everyone)], counts)
        start += numel


class _WaterLevels:
    """Bits and distortions of groups, added up at every water level.

    Level k is 2^(ABOVE − k / PER_OCTAVE) times `unit`. A group is left out down to some level, and coded from
    there on; of one that is coded, each message is under water down to a level of its own.
    """

    def __init__(self, unit: float) -> None:
        self._unit = unit
        self._count = (ABOVE + BELOW) * PER_OCTAVE + 1
        self._left_out, self._flooded, self._not_flooded, self._sent, self._bits = torch.zeros(
            5, self._count + 1, dtype=torch.float64
        )

    def add(self, groups: _Groups) -> None:
        """Adds groups, none of which is in two blocks."""
        begins = self._first_below(_dearest_level(groups, self._unit))
        self._add(self._left_out, begins, groups.total * groups.counts)
        heights = groups.variances / groups.sent
        for variances, sent, height in zip(groups.variances, groups.sent, heights, strict=True):
            emerges = torch.maximum(begins, self._first_below(height))
            energies = variances * groups.counts
            self._add(self._flooded, emerges, energies)
            self._add(self._not_flooded, begins, energies)
            self._add(self._sent, emerges, sent * groups.counts)
            logarithm = height.clamp(min=torch.finfo(torch.float64).tiny).log2()
            self._add(self._bits, emerges, sent * groups.counts * logarithm / 2)

    def curve(self) -> tuple[Tensor, Tensor]:
        """(bits, distortions) at every level, in units of one coordinate's bit and of the variances."""
        places = torch.arange(self._count, dtype=torch.float64)
        logarithms = ABOVE - places / PER_OCTAVE + math.log2(self._unit)
        sent = self._sent.cumsum(dim=0)[:-1]
        bits = self._bits.cumsum(dim=0)[:-1] - sent * logarithms / 2
        under = _later(self._left_out) + _later(self._flooded) - _later(self._not_flooded)
        return bits.clamp(min=0.0), under + sent * logarithms.exp2()

    def _first_below(self, level: Tensor) -> Tensor:
        """The first place whose water level is below `level`; `_count` if there is none."""
        place = (ABOVE - (level / self._unit).log2()) * PER_OCTAVE  # infinite for a level of 0
        return place.floor().add(1).clamp(0, self._count).long()

    def _add(self, sums: Tensor, places: Tensor, values: Tensor) -> None:
        sums += torch.bincount(places, values, minlength=self._count + 1)


def _later(sums: Tensor) -> Tensor:
    """For each place but the last the sum of all later ones, the small ones first."""
    return sums.flip(0).cumsum(dim=0).flip(0)[1:]


def _dearest_level(groups: _Groups, unit: float) -> Tensor:
    """The water level from which on each group is left out, (groups,) float64: there the Lagrangian of its
    messages reaches the energy of the whole sum. With θ = λ / (2 ln 2) a message costs m·θ·(1 + ln(σ²/(m·θ)))
    above water and σ² below."""
    high = (groups.total / groups.sent.max()).log2()  # here the whole sum alone costs as much
    low = high.clamp(max=ABOVE + math.log2(unit)) - (ABOVE + BELOW)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        water = groups.sent * middle.exp2()
        ratio = groups.variances / water
        cost = (water * (ratio.clamp(min=1.0).log() + ratio.clamp(max=1.0))).sum(dim=0)
        dear = cost >= groups.total
        low, high = torch.where(dear, low, middle), torch.where(dear, middle, high)
    return high.exp2()
