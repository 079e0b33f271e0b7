"""Private random bits for stochastic rounding: 32 for every coordinate of a bucket, others on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.interface import Round
from gradwire.codecs.random import Key, philox4x32, stream_key

_WORDS = 4
"""Coordinates served by one counter: the words that a counter gives."""


@dataclass(frozen=True)
class CoordinateBits:
    """One worker's randomness for one bucket in one step. A worker encodes a coordinate at most once a round,
    so no bit is used twice."""

    key: Key
    rank: int

    @classmethod
    def of(cls, round: Round) -> CoordinateBits:
        return cls(stream_key(round.seed, round.step, round.layout.uid), round.rank)

    def words(self, first: int, like: Tensor) -> Tensor:
        """32-bit words for the coordinates from `first` on, as many as `like` has: int64 of its shape.

        `first` and their number are multiples of 4.
        """
        assert first % _WORDS == 0 and like.numel() % _WORDS == 0
        start = first // _WORDS
        counter = torch.arange(start, start + like.numel() // _WORDS, device=like.device)
        zero = torch.zeros((), dtype=torch.int64, device=like.device)
        words = philox4x32((counter, zero + self.rank, zero, zero), self.key)
        return torch.stack(words, dim=-1).view(like.shape)

    def uniforms(self, first: int, like: Tensor) -> Tensor:
        """Multiples of 2⁻²⁴ in [0, 1), float32, from the words' upper bits."""
        return (self.words(first, like) >> 8).to(torch.float32).mul_(2.0**-24)
