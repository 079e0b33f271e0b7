"""Random bits for stochastic rounding: 16 for every coordinate, others on every rank and in every draw."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs.coordinate_bits import COUNTER, CoordinateBits
from gradwire.codecs.random import Key

LARGEST = COUNTER << 32
"""Coordinates that have bits of their own."""


@dataclass(frozen=True)
class RoundingNoise:
    """One rank's randomness in one step: `key` is the step's (`random.stream_key`), `draw`, an unsigned
    32-bit word, tells several quantizations of the same coordinates apart (0 inside nodes, 1 between)."""

    key: Key
    rank: int
    draw: int = 0

    @property
    def bits(self) -> CoordinateBits:
        return CoordinateBits((self.key[0], self.key[1] ^ self.draw), self.rank)
