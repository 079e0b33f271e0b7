"""Plans of how many bits of each block are sent, first and in refinements (AQGB §4.3).

Each rank keeps moving averages of the times and rates that it observes; all ranks derive the same plan from
the agreed values. Blocks are numbered in the order in which a backward pass produces them, the last layers
first. Times are seconds from the beginning of that pass. The plan simulates a step of a sender that transmits
at the agreed rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from gradwire.codecs.aqgb.encoding import EMBEDDED, FULL, Encoding
from gradwire.codecs.aqgb.pieces import coarsest, more_of, pieces_of
from gradwire.codecs.interface import Observation

MADE, SENT, USED = "compute", "all_gather", "forward"
"""The phases of observations that count here: a block is computed, broadcast, and used in a forward pass."""

NAMES = ("profile/backward", "profile/forward", "profile/rate", "profile/arrival", "profile/planned")


@dataclass
class StepProfile:
    """Moving averages with weights `gain` for times and `rate_gain` for the rate; empty at first.

    `backward[k]` is the time at which a backward pass produces the k-th block, `forward[k]` the time at which
    the following forward pass could use it, in seconds from the beginning of the backward pass. `forward[k]`
    assumes that the last byte of the first stage has arrived, that the preceding blocks have been computed,
    and that nothing waits in between: otherwise a pass that waits for refinements would postpone its own
    deadlines. `rate` is in bytes per second.
    """

    gain: float
    rate_gain: float
    backward: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    rate: float = 0.0
    arrival: float = 0.0
    """Arrival of the last step's first stage, in seconds since its backward pass began."""
    planned: bool = False
    """True if the last step followed a plan. The times of others say little of when blocks can be used."""

    def see(self, seen: Sequence[Observation], blocks: int, size: int, *, planned: bool) -> None:
        """Updates the averages with one rank's observations of a step with `blocks` blocks among `size`
        ranks."""
        made = {one.bucket: one for one in seen if one.phase == MADE}
        used: dict[int, list[Observation]] = {}
        for one in seen:
            if one.phase == USED:
                used.setdefault(one.bucket, []).append(one)
        sent = [one for one in seen if one.phase == SENT and one.bucket < blocks]
        if not blocks or len(used) < blocks or any(block not in made for block in range(blocks)):
            return
        if self.planned:
            took = [sum(one.end - one.start for one in used[number]) for number in range(blocks - 1)]
            forward = [self.arrival + before for before in accumulate(took, initial=0.0)]
            self.forward = _averaged(self.forward, forward[::-1], self.gain)
        self.planned = planned
        begin = used[blocks - 1][-1].end
        backward = [made[block].end - begin for block in range(blocks)]
        self.backward = _averaged(self.backward, backward, self.gain)
        self.arrival = max([one.end for one in sent], default=made[blocks - 1].end) - begin
        seconds = _union((one.start, one.end) for one in sent)
        if seconds > 0 and size > 1:
            rate = sum(one.num_bytes for one in sent) / (size - 1) / seconds
            (self.rate,) = _averaged([self.rate] if self.rate else [], [rate], self.rate_gain)

    @property
    def is_complete(self) -> bool:
        """True if there is enough data for a plan. A plan with refinements needs `forward`, too."""
        return bool(self.backward) and self.rate > 0

    def state_dict(self) -> dict[str, Tensor]:
        values = (self.backward, self.forward, [self.rate], [self.arrival], [float(self.planned)])
        return {
            name: torch.tensor(value, dtype=torch.float64, device="cpu")
            for name, value in zip(NAMES, values, strict=True)
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replaces the whole state by one that `state_dict` returned."""
        values: list[list[float]] = [state[name].tolist() for name in NAMES]
        self.backward, self.forward, (self.rate,), (self.arrival,), (planned,) = values
        self.planned = bool(planned)


def _averaged(before: Sequence[float], now: Sequence[float], gain: float) -> list[float]:
    """The updated moving averages; `now` if there are none yet."""
    if len(before) != len(now):
        return list(now)
    return [old + gain * (new - old) for old, new in zip(before, now, strict=True)]


def _union(intervals: Iterable[tuple[float, float]]) -> float:
    """Total length of the union of the intervals, in seconds."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


NEGLIGIBLE = 1e-3
"""The share of a backward pass that full precision may add to it: so little is no limit."""


@dataclass(frozen=True)
class AgreedTimes:
    """Times that all ranks share: the `sizes` of the blocks in coordinates, the times at which each is ready
    (`backward`) and at which the next forward pass can use it at the earliest (`forward`), both in seconds
    and the maximum over the ranks, and the `rate` at which every rank's broadcast reaches the others, in
    bytes per second."""

    sizes: Sequence[int]
    backward: Sequence[float]
    forward: Sequence[float]
    rate: float


@dataclass(frozen=True)
class BitPlan:
    """For each block, the bits that are sent `first` and how many `more` follow those of its coarsest piece;
    `end` is when the first bits have arrived.

    `split` has, row by row, how many coordinates of each block are sent with each block's bits; empty if
    blocks keep their own (`pieces.pieces_of`).
    """

    first: tuple[int, ...]
    more: tuple[int, ...]
    end: float
    split: tuple[int, ...] = ()


def make_plan(
    agreed: AgreedTimes,
    floor: float,
    margin_s: float,
    encoding: Encoding = EMBEDDED,
    partition: int | None = None,
) -> BitPlan:
    """Plans the bits of both stages.

    First stage: all undelivered data, when a block appears, is to be delivered before the next block appears.
    So the ratio is `q = rate · time / undelivered` of 32 bits, but at least `floor`. The last block is sent
    at the floor, unless sending all undelivered data in full takes hardly any time. What is left of a block
    keeps its bits, or in whole `partition`s, if given, gets those of the new block. Second stage: in the
    order of the forward pass, each block gets as many more bits as arrive `margin_s` before its use, or none
    if they are too few to refine the block in this `encoding`.
    """
    split: list[int] = []
    if partition is None:
        first, end = _first_bits(agreed, floor)
    else:
        first, rows, end = _requantized_bits(agreed, floor, partition)
        split = [coordinates for row in rows for coordinates in row]
    more = [0] * len(first)
    now = end
    for block in reversed(range(len(first))):
        pieces = pieces_of(first, split, block, agreed.sizes[block])
        least = coarsest(pieces)
        left = FULL - least
        seconds = max(0.0, agreed.forward[block] - margin_s - now)
        if not left or seconds <= 0:
            continue
        remaining = sum((FULL - bits) * numel for numel, bits in pieces) / 8
        share = min(1.0, agreed.rate * seconds / remaining)
        planned = min(left, math.ceil(share * left))
        sent = sum(more_of(bits, least, planned, encoding) * numel for numel, bits in pieces)
        if not sent:
            continue
        more[block] = planned
        now += sent / 8 / agreed.rate
    return BitPlan(tuple(first), tuple(more), end, tuple(split))


def bits_of(ratio: float) -> int:
    """Bits per coordinate, 2 to 32, for a ratio of 32 bits, rounded up: 4 bits for a ratio of 1/8."""
    return max(2, min(FULL, math.ceil(FULL * ratio - 1e-9)))


def _ratio(agreed: AgreedTimes, block: int, undelivered: float, floor: float) -> tuple[float, float]:
    """The ratio as a block appears, when so many bytes at 32 bits are undelivered, and the bytes that can be
    sent until the next one appears: 0 after the last, for which no block waits."""
    if block < len(agreed.sizes) - 1:
        budget = agreed.rate * max(0.0, agreed.backward[block + 1] - agreed.backward[block])
        return max(floor, min(1.0, budget / undelivered)), budget
    return (1.0 if undelivered <= NEGLIGIBLE * agreed.rate * agreed.backward[block] else floor), 0.0


def _first_bits(agreed: AgreedTimes, floor: float) -> tuple[list[int], float]:
    """The bits of the first stage by block, and the time when all of them have arrived. The newest block goes
    first."""
    bits: list[int] = []
    waiting: list[float] = []  # bytes of each block that are undelivered, as they travel
    for block, size in enumerate(agreed.sizes):
        older = sum(left * FULL / own for left, own in zip(waiting, bits, strict=True))
        ratio, budget = _ratio(agreed, block, older + size * FULL / 8, floor)
        bits.append(bits_of(ratio))
        waiting.append(size * bits[-1] / 8)
        for index in reversed(range(len(waiting))):
            sent = min(budget, waiting[index])
            waiting[index] -= sent
            budget -= sent
    return bits, agreed.backward[-1] + sum(waiting) / agreed.rate


def _requantized_bits(
    agreed: AgreedTimes, floor: float, partition: int
) -> tuple[list[int], list[list[int]], float]:
    """As `_first_bits`, but what is left of a block gets the bits of the one that has appeared. Also returns
    how many coordinates of each block are sent with each block's bits: whole partitions."""
    bits: list[int] = []
    left: list[int] = []  # coordinates of each block that are undelivered
    split = [[0] * len(agreed.sizes) for _ in agreed.sizes]
    for block, size in enumerate(agreed.sizes):
        left.append(size)
        ratio, budget = _ratio(agreed, block, sum(left) * FULL / 8, floor)
        bits.append(bits_of(ratio))
        for index in reversed(range(block + 1)):
            begun = math.ceil(budget * 8 / bits[-1] / partition - 1e-9)  # the one under way is not broken off
            split[index][block] = min(left[index], begun * partition)
            left[index] -= split[index][block]
            budget = max(0.0, budget - split[index][block] * bits[-1] / 8)
    for row, rest in zip(split, left, strict=True):
        row[-1] += rest
    return bits, split, agreed.backward[-1] + sum(left) * bits[-1] / 8 / agreed.rate
