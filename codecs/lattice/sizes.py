"""The sizes of slots and the step D of a round (Lagrange's condition and a budget of bits).

Slots of the sum of k contributions all have the same size, which all ranks know before the first hop: it follows from
what slots took two steps before. With these sizes the step is the smallest at which sums are predicted to fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.collectives import align
from gradwire.codecs.lattice.logarithms import UNITS, units_of
from gradwire.codecs.lattice.prediction import HIGHEST, LOWEST, POINTS, Curve, bits_of
from gradwire.codecs.lattice.slots import Slots

STEPS = range(-40 * UNITS, 12 * UNITS)
"""Steps D relative to the root mean square of a worker's gradients, log2 in units, from which one is chosen."""

MARGIN = 50
"""Slots get 1/50 more bits than predicted, because their contents differ."""

SPARE = 96
"""Bits that slots get besides."""

GAINS = (-4 * UNITS, 14 * UNITS)
MOST_CHANGE = UNITS
"""Gains change by at most an octave from step to step."""

FIRST_CORRELATION = 0.1
"""The correlation of workers' gradients that the first steps assume."""

METADATA_BYTES = 80
"""Of the statistics that all ranks reduce in a round."""


@dataclass(frozen=True)
class Traffic:
    """The messages of a collective: for every number of contributions, ascending, the number of chunks' messages that
    all ranks send together. Those that hold all `workers` are sealed."""

    counts: tuple[tuple[int, int], ...]
    workers: int

    @classmethod
    def of(cls, messages: Mapping[int, int], workers: int, *, scatter: bool) -> Traffic:
        kept = sorted(item for item in messages.items() if not scatter or item[0] < workers)
        return cls(tuple(kept), workers)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(number for number, _ in self.counts)

    @property
    def seals(self) -> bool:
        return self.workers in self.numbers


@dataclass(frozen=True)
class Sizing:
    """The slots of a bucket, the messages that carry them, and the bits a coordinate that these may take.
    `head` are the bits of a slot besides those of its super-groups."""

    slots: Slots
    traffic: Traffic
    bits: float
    head: int

    @property
    def num_slots(self) -> int:
        return self.slots.num_chunks * self.slots.per_chunk

    @property
    def budget(self) -> int:
        """Bytes of all messages together."""
        messages = sum(count for _, count in self.traffic.counts)
        metadata = METADATA_BYTES + 8 * (2 * len(self.traffic.counts) + len(POINTS) + 3)
        per_gradient = self.bits * self.slots.numel / 8 - metadata
        return int(per_gradient * messages / self.slots.num_chunks)

    @property
    def passed_on(self) -> list[int]:
        """The indices of those numbers of contributions whose sums are passed on, not sealed."""
        numbers = self.traffic.numbers
        return [index for index, number in enumerate(numbers) if number < self.traffic.workers]

    def curve(self, points: Tensor, known: int, workers: int) -> Curve:
        """The curve of the sum of the workers' `points`."""
        places = self.num_slots * self.slots.super_groups
        empty = places - -(-self.slots.numel // 256)
        fixed = self.num_slots * self.head + 8 * empty
        return Curve(points, known, workers, fixed, places * 256)

    def first_gains(self) -> list[int]:
        """The gains that the first steps assume."""
        workers = self.traffic.workers
        found = [units_of(number * (1 + (number - 1) * FIRST_CORRELATION)) for number in self.traffic.numbers]
        if self.traffic.seals and workers > 2:
            found[-1] -= units_of(workers - 1)
        return found

    def sizes(self, curve: Curve, gains: list[int]) -> tuple[list[int], int]:
        """Bits of a slot of each number of contributions, multiples of 32, and the step that they are for: the smallest
        one whose messages keep to the budget."""
        steps = torch.arange(STEPS.start, STEPS.stop, device="cpu")
        taken = curve.bits(torch.tensor(gains, device="cpu")[:, None], steps)
        passed_on = torch.tensor([index in self.passed_on for index in range(len(gains))], device="cpu")
        each = torch.where(
            passed_on[:, None], _with_margin(taken, self.num_slots), -(-taken // self.num_slots)
        )
        each = 32 * -(-each // 32)
        counts = torch.tensor([count for _, count in self.traffic.counts], device="cpu")[:, None]
        num_bytes = each * self.slots.per_chunk // 8
        spent = (counts * (-(-num_bytes // 16) * 16)).sum(dim=0)
        fits = spent <= self.budget
        chosen = int(fits.to(torch.int8).argmax()) if bool(fits.any()) else len(steps) - 1
        return [int(size) for size in each[:, chosen]], int(steps[chosen])

    def step(self, curve: Curve, gains: list[int], sizes: list[int]) -> Tensor:
        """The smallest step, () int64, at which all sums that are passed on are predicted to fit into slots of these
        sizes."""
        steps = torch.arange(STEPS.start, STEPS.stop, device=curve.points.device)
        hops, device = self.passed_on, curve.points.device
        wanted = torch.tensor([gains[index] for index in hops], device=device)
        offered = torch.tensor([sizes[index] for index in hops], device=device)
        taken = _with_margin(curve.bits(wanted[:, None], steps), self.num_slots)
        fits = (taken <= offered[:, None]).all(dim=0)
        fits[-1] = True
        return steps[fits.to(torch.int8).argmax()]

    def message_bytes(self, size: int) -> int:
        """Bytes of a chunk's message whose slots have `size` bits."""
        return align(self.slots.per_chunk * size // 8)


def _with_margin(bits: Tensor, num_slots: int) -> Tensor:
    """Bits that a slot gets where all slots together are predicted to take `bits`."""
    return (bits + bits // MARGIN) // num_slots + SPARE


def first_points(table: Tensor, super_groups: int, step: int) -> Tensor:
    """A curve for steps before any is known: super-groups whose variances lie 6 and 3 octaves below, at, and one above
    the mean energy."""
    spread = torch.tensor([-6 * UNITS, -3 * UNITS, 0, UNITS], device="cpu")
    points = torch.tensor(POINTS, device="cpu")[:, None] + spread - 2 * step
    return bits_of(points.clamp(LOWEST, HIGHEST), table).sum(dim=1) * super_groups // len(spread)
