"""The counts of a bucket, and the decision on sizes and gains that follows from the counts of all
ranks.

A row of numbers for each bucket: its coordinates, the step D used, the workers' curve, and by number of
contributions the bits that slots would have taken and the slots. Ranks add them up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.interface import Decision
from gradwire.codecs.lattice.logarithms import UNITS
from gradwire.codecs.lattice.prediction import POINTS
from gradwire.codecs.lattice.sizes import GAINS, MOST_CHANGE, STEPS, Sizing, first_points, too_small
from gradwire.codecs.lattice.slots import super_groups_of

COORDINATES, SIZES, GAIN, STEP = "coordinates", "sizes", "gains", "log_step"
"""Names in decisions: by bucket its coordinates and the step last known, by bucket and number of
contributions the bits of slots, 0 if the bucket has none, and gains."""


class BucketCounts:
    """A rank's row of numbers of a bucket in a step."""

    def __init__(self, numel: int, numbers: tuple[int, ...], device: torch.device) -> None:
        self._index = {number: place for place, number in enumerate(numbers)}
        self._numel = torch.tensor([numel], dtype=torch.int64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.curve = torch.zeros(len(POINTS), dtype=torch.int64, device=device)
        self._wanted, self._slots = torch.zeros(2, len(numbers), dtype=torch.int64, device=device)

    def count(self, workers: int, wanted: Tensor) -> None:
        """Adds the bits that slots of so many contributions would have taken, (slots,)."""
        self._wanted[self._index[workers]] += wanted.sum()
        self._slots[self._index[workers]] += len(wanted)

    def row(self) -> Tensor:
        return torch.cat((self._numel, self.step, self.curve, self._wanted, self._slots))


@dataclass(frozen=True)
class BucketDecision:
    """The sizes of slots and the gains by number of contributions, and the step last known."""

    sizes: list[int]
    gains: list[int]
    known: int


def of_bucket(decision: Decision, bucket: int, sizing: Sizing, table: Tensor) -> BucketDecision:
    """The decision that a bucket follows; a guess if nothing has been decided about a bucket of so many
    coordinates. `table` is on the CPU."""
    numbers = len(sizing.messages.numbers)
    own = slice(bucket * numbers, (bucket + 1) * numbers)
    names = (COORDINATES, STEP, SIZES, GAIN)
    coordinates, steps, sizes, gains = ([*map(int, _listed(decision, name))] for name in names)
    there = min(len(coordinates), len(steps)) > bucket and min(len(sizes), len(gains)) >= own.stop
    if there and coordinates[bucket] == sizing.slots.numel and any(sizes[own]):
        return BucketDecision([*map(sizing.allowed, sizes[own])], gains[own], steps[bucket])
    known = round(UNITS * (2 - sizing.bits))
    first = sizing.first_gains()
    points = first_points(table, super_groups_of(sizing.slots.numel), known)
    offered, chosen = sizing.sizes(sizing.curve(points, known, 1), first)
    return BucketDecision(offered, first, max(chosen, STEPS.start))


def are_known(decision: Decision, sizings: Mapping[int, Sizing]) -> bool:
    """True if a decision has sizes for all of a step's buckets."""
    coordinates, sizes = _listed(decision, COORDINATES), _listed(decision, SIZES)
    for bucket, sizing in sizings.items():
        numbers = len(sizing.messages.numbers)
        if coordinates[bucket : bucket + 1] != [sizing.slots.numel]:
            return False
        small = too_small(sizing.slots, sizing.messages.workers, sizing.bits)
        if not small and not any(sizes[bucket * numbers : (bucket + 1) * numbers]):
            return False
    return True


def captured_numbers(decision: Decision, bucket: int) -> tuple[float, ...]:
    """The numbers of a bucket that a decision fixes on the host."""
    coordinates, steps, sizes, gains = (_listed(decision, name) for name in (COORDINATES, STEP, SIZES, GAIN))
    numbers = len(sizes) // max(1, len(coordinates))
    own = slice(bucket * numbers, (bucket + 1) * numbers)
    return (*coordinates[bucket : bucket + 1], *steps[bucket : bucket + 1], *sizes[own], *gains[own])


def _listed(decision: Decision, name: str) -> list[float]:
    return list(decision.get(name, ()))  # type: ignore[arg-type]


def decided(
    rows: Tensor, size: int, sizings: Mapping[int, Sizing], decision: Decision, table: Tensor
) -> Decision:
    """The sizes of the step after the next one: `rows` are the sums of all `size` ranks' rows, one after
    another, and `decision` is what they followed."""
    found: dict[str, list[float]] = {COORDINATES: [], SIZES: [], GAIN: [], STEP: []}
    numbers = len(next(iter(sizings.values())).messages.numbers) if sizings else 0
    by_bucket = rows.view(-1, 2 + len(POINTS) + 2 * numbers) if sizings else rows.view(-1, 1)
    for bucket, sizing in sorted(sizings.items()):
        new = BucketDecision([0] * numbers, [0] * numbers, 0)
        if bucket < len(by_bucket):
            row = by_bucket[bucket]
            if int(row[0]) == size * sizing.slots.numel and int(row[-numbers:].sum()):
                before = of_bucket(decision, bucket, sizing, table)
                new = _following(row[1:], size, sizing, before)
        found[COORDINATES].append(sizing.slots.numel)
        found[SIZES] += new.sizes
        found[GAIN] += new.gains
        found[STEP].append(new.known)
    return found


def _following(row: Tensor, size: int, sizing: Sizing, before: BucketDecision) -> BucketDecision:
    """A bucket's decision after one that it has followed: gains move to where the predicted curve has the
    bits that slots would have taken."""
    numbers = len(before.gains)
    step, points = int(row[0]) // size, row[1 : 1 + len(POINTS)] // size
    wanted, counted = row[-2 * numbers : -numbers], row[-numbers:]
    if not int(points.sum()):
        return BucketDecision([0] * numbers, before.gains, before.known)
    whole = sizing.curve(points, before.known, size)
    targets = whole.gain_of(wanted * sizing.num_slots // counted.clamp(min=1), step)
    gains = [
        min(max(new, old - MOST_CHANGE, GAINS[0]), old + MOST_CHANGE, GAINS[1]) if slots else old
        for new, old, slots in zip(targets.tolist(), before.gains, counted.tolist(), strict=True)
    ]
    sizes, known = sizing.sizes(whole, gains)
    return BucketDecision(sizes, gains, known)
