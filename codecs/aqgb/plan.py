"""Bits of blocks, first and in refinements: averages of what a rank observes of its steps, and the plan that
all ranks derive from them (AQGB §4.3).

Blocks are in the order in which a backward pass makes them, the last layers first. Seconds count from the
begin of that pass. A plan goes through a step as a sender would, at the agreed rate (AQGB §4.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from gradwire.codecs.aqgb.payload import FULL
from gradwire.codecs.interface import Observation

MADE, SENT, USED = "compute", "all_gather", "forward"
"""The phases of observations that count here: a block is computed, broadcast, and used in a forward pass."""

NAMES = ("profile/backward", "profile/forward", "profile/rate", "profile/arrival", "profile/planned")


@dataclass
class StepProfile:
    """Moving averages with weights `gain` for times and `rate_gain` for the rate; empty at first.

    `backward[k]` is when the k-th block of a backward pass is made, `forward[k]` when the forward pass that
    follows could use it, seconds since the backward pass began: the last byte of the first stage has come
    then, and the blocks before it have been computed, without any waiting in between. A pass that waits for
    refinements would otherwise put off its own deadlines. `rate` is in bytes a second.
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
        """Takes in a rank's step of so many blocks among `size` ranks."""
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
        """True if there is enough for a plan; of refinements only where `forward` is known, too."""
        return bool(self.backward) and self.rate > 0

    def state_dict(self) -> dict[str, Tensor]:
        values = (self.backward, self.forward, [self.rate], [self.arrival], [float(self.planned)])
        return {
            name: torch.tensor(value, dtype=torch.float64, device="cpu")
            for name, value in zip(NAMES, values, strict=True)
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Replaces everything by what `state_dict` gave."""
        values: list[list[float]] = [state[name].tolist() for name in NAMES]
        self.backward, self.forward, (self.rate,), (self.arrival,), (planned,) = values
        self.planned = bool(planned)


def _averaged(before: Sequence[float], now: Sequence[float], gain: float) -> list[float]:
    """The moving averages; `now` where there are none yet."""
    if len(before) != len(now):
        return list(now)
    return [old + gain * (new - old) for old, new in zip(before, now, strict=True)]


def _union(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that are in at least one of the intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


NEGLIGIBLE = 1e-3
"""The share of a backward pass that full precision may add to it: so little is no limit."""


@dataclass(frozen=True)
class AgreedTimes:
    """Times that all ranks share: `sizes` of the blocks in coordinates, when each is there (`backward`), when
    the next forward pass can use it at the earliest (`forward`), the latest of all ranks, in seconds, and the
    `rate` at which every rank's broadcast reaches the others, bytes a second."""

    sizes: Sequence[int]
    backward: Sequence[float]
    forward: Sequence[float]
    rate: float


@dataclass(frozen=True)
class BitPlan:
    """Bits that go `first`, and how many `more` follow, by block; `end` is when the first ones are there."""

    first: tuple[int, ...]
    more: tuple[int, ...]
    end: float


def make_plan(agreed: AgreedTimes, floor: float, margin_s: float) -> BitPlan:
    """The ratios of both stages.

    First stage: whatever is undelivered when a block appears is to be delivered before the next one does,
    `q = rate · time / undelivered` of 32 bits, no less than `floor`. The last block goes at the floor, unless
    all that is undelivered then takes next to no time in full. Second stage: in the order of the forward
    pass, as many more bits as arrive `margin_s` before a block's use.
    """
    first, end = _first_bits(agreed, floor)
    more = [0] * len(first)
    now = end
    for block in reversed(range(len(first))):
        left = FULL - first[block]
        seconds = max(0.0, agreed.forward[block] - margin_s - now)
        if not left or seconds <= 0:
            continue
        remaining = left * agreed.sizes[block] / 8
        share = min(1.0, agreed.rate * seconds / remaining)
        more[block] = min(left, math.ceil(share * left))
        now += more[block] * agreed.sizes[block] / 8 / agreed.rate
    return BitPlan(tuple(first), tuple(more), end)


def bits_of(ratio: float) -> int:
    """Bits per coordinate at a ratio of 32, no fewer than it says, 2 to 32: a ratio of 1/8 is 4 bits."""
    return max(2, min(FULL, math.ceil(FULL * ratio - 1e-9)))


def _first_bits(agreed: AgreedTimes, floor: float) -> tuple[list[int], float]:
    """The first stage's bits by block, and when all of them have arrived. The newest block goes first."""
    bits: list[int] = []
    waiting: list[float] = []  # bytes of each block that are undelivered, as they travel
    last = len(agreed.sizes) - 1
    for block, size in enumerate(agreed.sizes):
        older = sum(left * FULL / own for left, own in zip(waiting, bits, strict=True))
        undelivered = older + size * FULL / 8  # bytes at 32 bits
        if block < last:
            budget = agreed.rate * max(0.0, agreed.backward[block + 1] - agreed.backward[block])
            ratio = max(floor, min(1.0, budget / undelivered))
        else:
            budget = 0.0
            ratio = 1.0 if undelivered <= NEGLIGIBLE * agreed.rate * agreed.backward[last] else floor
        bits.append(bits_of(ratio))
        waiting.append(size * bits[-1] / 8)
        for index in reversed(range(len(waiting))):
            sent = min(budget, waiting[index])
            waiting[index] -= sent
            budget -= sent
    return bits, agreed.backward[last] + sum(waiting) / agreed.rate
