"""Private random bits for stochastic rounding: 16 for every coordinate of a bucket, others on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.random import Key, halves, philox4x32

COUNTER = 8
"""Coordinates served by one counter: the halves of the four words that it gives."""

_BELOW = 1 << 15
"""The middle of what 16 bits leave open of a word."""


@dataclass(frozen=True)
class CoordinateBits:
    """One worker's randomness for one bucket in one step; `key` is the round's. A worker encodes a coordinate
    at most once a round, so no bit is used twice."""

    key: Key
    rank: int

    def dithers(self, first: int, like: Tensor) -> Tensor:
        """Integers below 2¹⁶ for the coordinates from `first` on, as many as `like` has: int32 of its shape.

        `first` and their number are multiples of 8. With 16 bits the probability of rounding up is right to
        within 2⁻¹⁷; all 32 would cost twice as much, and random bits are the dearest part of an encoding.
        """
        assert first % COUNTER == 0 and like.numel() % COUNTER == 0
        start = first // COUNTER
        counter = torch.arange(start, start + like.numel() // COUNTER, device=like.device)
        zero = torch.zeros((), dtype=torch.int64, device=like.device)
        words = philox4x32((counter, zero + self.rank, zero, zero), self.key)
        return halves(words).view(like.shape)

    def words(self, first: int, like: Tensor) -> Tensor:
        """`dithers` as the upper half of 32-bit words whose lower half is 2¹⁵: int64."""
        return (self.dithers(first, like).to(torch.int64) << 16) | _BELOW
