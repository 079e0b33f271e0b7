"""What all ranks decide from what they have seen: how many bits of each block go first, and how many follow.

Blocks are in the order in which a backward pass makes them, the last layers first. Seconds count from the
begin of that pass. A plan goes through a step as a sender would, at the agreed rate (AQGB §4.3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.codecs.aqgb.payload import FULL

NEGLIGIBLE = 1e-3
"""The share of a backward pass that full precision may add to it: so little is no limit."""


@dataclass(frozen=True)
class Agreed:
    """What all ranks know alike: `sizes` of the blocks in coordinates, when each is there (`backward`), when
    the next forward pass can use it at the earliest (`forward`), the latest of all ranks, in seconds, and the
    `rate` at which every rank's broadcast reaches the others, bytes a second."""

    sizes: Sequence[int]
    backward: Sequence[float]
    forward: Sequence[float]
    rate: float


@dataclass(frozen=True)
class Plan:
    """Bits that go `first`, and how many `more` follow, by block; `end` is when the first ones are there."""

    first: tuple[int, ...]
    more: tuple[int, ...]
    end: float


def make_plan(agreed: Agreed, floor: float, margin_s: float) -> Plan:
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
    return Plan(tuple(first), tuple(more), end)


def bits_of(ratio: float) -> int:
    """Bits per coordinate at a ratio of 32, no fewer than it says, 2 to 32: a ratio of 1/8 is 4 bits."""
    return max(2, min(FULL, math.ceil(FULL * ratio - 1e-9)))


def _first_bits(agreed: Agreed, floor: float) -> tuple[list[int], float]:
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
