"""The sizes of slots and the step D of a round (Lagrange's condition and a budget of bits).

Slots of the sum of k contributions all have the same size, which all ranks know before the first hop: it
follows from what slots took two steps before. With these sizes the step is the smallest at which sums are
predicted to fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from gradwire.codecs.collectives import ALIGNMENT
from gradwire.codecs.lattice.codes import HEADER_BITS, head_bits
from gradwire.codecs.lattice.logarithms import UNITS, units_of
from gradwire.codecs.lattice.prediction import HIGHEST, LOWEST, POINTS, Curve, bits_of
from gradwire.codecs.lattice.slots import Slots, super_groups_of
from gradwire.codecs.options.dynamiq import SUPER_GROUP

STEPS = range(-40 * UNITS, 12 * UNITS)
"""Steps D relative to the root mean square of a worker's gradients, log2 in units: one is chosen."""

MARGIN = 50
"""Slots get 1/50 more bits than predicted, because their contents differ."""

SPARE = 96
"""Bits that slots get besides."""

GAINS = (-6 * UNITS, 14 * UNITS)
MOST_CHANGE = UNITS
"""Gains change by at most an octave from step to step."""

FIRST_CORRELATION = 0.1
"""The correlation of workers' gradients that the first steps assume."""

FEWEST = 4
"""Super-groups of a chunk from which on it has slots."""

LEAST_SHARE = 0.5
"""Bits of the budget that have to be left for coordinates, where there are slots, after all headers."""

_WORD = 32


def metadata_bytes(numbers: int) -> int:
    """Bytes of what all ranks reduce in a round: a curve, its norms, and feedback with two figures for each
    of so many numbers of contributions."""
    return 8 + 8 * len(POINTS) + 8 * (2 + len(POINTS) + 2 * numbers)


@dataclass(frozen=True)
class MessageCounts:
    """The messages of a collective: for every number of contributions, ascending, the number of chunks'
    messages that all ranks send together. Those that hold all `workers` are sealed; a scatter sends none
    of these."""

    counts: tuple[tuple[int, int], ...]
    workers: int

    @classmethod
    def of(cls, messages: Mapping[int, int], workers: int, *, scatter: bool) -> MessageCounts:
        sent = {number: 0 if scatter and number == workers else messages[number] for number in messages}
        return cls(tuple(sorted(sent.items())), workers)

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(number for number, _ in self.counts)

    @property
    def total(self) -> int:
        return sum(count for _, count in self.counts)


@dataclass(frozen=True)
class Sizing:
    """The slots of a bucket, the messages that carry them, and the bits a coordinate that these may take."""

    slots: Slots
    messages: MessageCounts
    bits: float

    @property
    def num_slots(self) -> int:
        return self.slots.num_chunks * self.slots.per_chunk

    @property
    def head(self) -> int:
        """Bits of a slot besides those of its super-groups."""
        return head_bits(self.slots.super_groups) - HEADER_BITS * self.slots.super_groups

    @property
    def budget(self) -> int:
        """Bytes of all messages together."""
        per_gradient = self.bits * self.slots.numel / 8 - metadata_bytes(len(self.messages.counts))
        return int(per_gradient * self.messages.total / self.slots.num_chunks)

    @property
    def passed_on(self) -> list[int]:
        """The indices of those numbers of contributions whose sums are passed on, not sealed."""
        numbers = self.messages.numbers
        return [index for index, number in enumerate(numbers) if number < self.messages.workers]

    def curve(self, points: Tensor, known: int, workers: int) -> Curve:
        """The curve of the sum of the workers' `points`."""
        places = self.num_slots * self.slots.super_groups
        super_groups = super_groups_of(self.slots.numel)
        fixed = self.num_slots * self.head + HEADER_BITS * (places - super_groups)
        return Curve(points, known, workers, super_groups, fixed, places * SUPER_GROUP)

    def first_gains(self) -> list[int]:
        """The gains that the first steps assume."""
        workers = self.messages.workers
        numbers = self.messages.numbers
        found = [units_of(number * (1 + (number - 1) * FIRST_CORRELATION)) for number in numbers]
        if numbers[-1] == workers > 2:
            found[-1] -= units_of(workers - 1)
        return found

    def sizes(self, curve: Curve, gains: list[int]) -> tuple[list[int], int]:
        """Bits of a slot of each number of contributions, multiples of 32, and the step that they are for:
        the smallest one whose messages keep to the budget. If not even the largest one does, all slots
        have the same size."""
        steps = torch.arange(STEPS.start, STEPS.stop, device="cpu")
        taken = curve.bits(torch.tensor(gains, device="cpu")[:, None], steps)
        passed_on = torch.tensor([index in self.passed_on for index in range(len(gains))], device="cpu")
        each = torch.where(
            passed_on[:, None], _with_margin(taken, self.num_slots), -(-taken // self.num_slots)
        )
        each = _WORD * -(-each // _WORD)
        counts = torch.tensor([count for _, count in self.messages.counts], device="cpu")[:, None]
        num_bytes = each * self.slots.per_chunk // 8
        spent = (counts * (-(-num_bytes // ALIGNMENT) * ALIGNMENT)).sum(dim=0)
        fits = spent <= self.budget
        if not bool(fits.any()):
            return [self.equal_size] * len(gains), int(steps[-1])
        chosen = int(fits.to(torch.int8).argmax())
        return [int(size) for size in each[:, chosen]], int(steps[chosen])

    @property
    def equal_size(self) -> int:
        """Bits of a slot if all have the same size and keep to the budget."""
        return _equal_size(self.budget // self.messages.total, self.slots.per_chunk)

    def allowed(self, size: int) -> int:
        """A slot's size, or the nearest one that is possible: a decision from a file may have any."""
        least = _least_size(self.slots.super_groups)
        most = head_bits(self.slots.super_groups) + 2 * _WORD * SUPER_GROUP * self.slots.super_groups
        return min(max(size, least), most) // _WORD * _WORD

    def step(self, curve: Curve, gains: list[int], sizes: list[int]) -> Tensor:
        """The smallest step, () int64, at which all sums that are passed on are predicted to fit into slots
        of these sizes."""
        steps = torch.arange(STEPS.start, STEPS.stop, device=curve.points.device)
        hops, device = self.passed_on, curve.points.device
        wanted = torch.tensor([gains[index] for index in hops], device=device)
        offered = torch.tensor([sizes[index] for index in hops], device=device)
        taken = _with_margin(curve.bits(wanted[:, None], steps), self.num_slots)
        fits = (taken <= offered[:, None]).all(dim=0)
        fits[-1] = True
        return steps[fits.to(torch.int8).argmax()]


def too_small(slots: Slots, workers: int, bits: float) -> bool:
    """True if a bucket is too small for slots: it has few super-groups, or what comes with them takes much of
    its bits."""
    if slots.rows < FEWEST:
        return True
    share = bits * slots.numel / 8 - metadata_bytes(workers)
    size = _equal_size(int(share / slots.num_chunks), slots.per_chunk)
    needed = LEAST_SHARE * bits * SUPER_GROUP * slots.super_groups
    return size < head_bits(slots.super_groups) + SPARE + needed


def least_numel(num_chunks: int, most: int, workers: int, bits: float) -> int:
    """The least whole super-groups of a bucket, in coordinates, that are not too small for slots of at most
    `most` super-groups."""
    counts = count(1)
    sizes = (SUPER_GROUP * each for each in counts)
    return next(numel for numel in sizes if not too_small(Slots(numel, num_chunks, most), workers, bits))


def _equal_size(num_bytes: int, per_chunk: int) -> int:
    """Bits of each of a chunk's slots in a message of at most so many bytes."""
    return num_bytes // ALIGNMENT * ALIGNMENT * 8 // per_chunk // _WORD * _WORD


def _least_size(super_groups: int) -> int:
    """Bits of the smallest slot: that of zeros."""
    return head_bits(super_groups)


def _with_margin(bits: Tensor, num_slots: int) -> Tensor:
    """Bits that a slot gets where all slots together are predicted to take `bits`."""
    return (bits + bits // MARGIN) // num_slots + SPARE


def first_points(table: Tensor, super_groups: int, step: int) -> Tensor:
    """A curve for steps before any is known: super-groups whose variances lie 6 and 3 octaves below, at, and
    one above the mean energy."""
    spread = torch.tensor([-6 * UNITS, -3 * UNITS, 0, UNITS], device="cpu")
    points = torch.tensor(POINTS, device="cpu")[:, None] + spread - 2 * step
    return bits_of(points.clamp(LOWEST, HIGHEST), table).sum(dim=1) * super_groups // len(spread)
