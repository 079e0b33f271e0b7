"""Counter-based random bits: a value is a pure function of its purpose (step, bucket, coordinate, rank),
never of when it is drawn.

Two generators, both on int64 tensors that hold unsigned 32-bit words: `philox4x32` (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011) where quality matters for every coordinate, and `mix32`, a
two-multiplication bijective hash, for the few words a super-group needs. All arithmetic is integer, so every
implementation and machine draws the same bits.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Key = tuple[int, int]
"""Two unsigned 32-bit words."""

WORD = 0xFFFF_FFFF

PER_COUNTER = 8
"""Coordinates that one counter serves, with the halves of the four words that it gives."""

_BITS_PER_COUNTER = 128

_BELOW = 1 << 15
"""The middle of what 16 bits leave open of a word."""

_MULTIPLIERS = (0xD251_1F53, 0xCD9E_8D57)
_KEY_STEPS = (0x9E37_79B9, 0xBB67_AE85)


def stream_key(seed: int, step: int, uid: int) -> Key:
    """The key of one bucket's randomness in one step; `uid` is the bucket's `Layout.uid`."""
    digest = hashlib.blake2b(struct.pack("<qqq", seed, step, uid), digest_size=8).digest()
    first, second = struct.unpack("<II", digest)
    return first, second


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: Key, rounds: int = 7
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random 32-bit words for every counter.

    The counter's words are int64 tensors with values in [0, 2³²) whose shapes broadcast together: words that
    do not vary along a dimension stay small for the first rounds, which then cost almost nothing.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        # Products are taken modulo 2⁶⁴; the mask also clears what the arithmetic shift leaves above bit 31.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((product1 >> 32) ^ c1 ^ k0) & WORD, product1 & WORD
        c2, c3 = ((product0 >> 32) ^ c3 ^ k1) & WORD, product0 & WORD
        k0, k1 = (k0 + _KEY_STEPS[0]) & WORD, (k1 + _KEY_STEPS[1]) & WORD
    return c0, c1, c2, c3


def mix32(x: Tensor) -> Tensor:
    """A bijective hash of 32-bit words ("lowbias32"); int64 in (only the low 32 bits count) and out."""
    x = x & WORD
    x = ((x ^ (x >> 16)) * 0x7FEB_352D) & WORD
    x = ((x ^ (x >> 15)) * 0x846C_A68B) & WORD
    return x ^ (x >> 16)


def halves(words: tuple[Tensor, ...]) -> Tensor:
    """Split equally shaped (..., m) 32-bit words into 16-bit ones, low half first: (..., 2·m·len(words))
    int32.

    Position q of the words becomes positions 2·len(words)·q … of the result, word by word.
    """
    parts = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    return torch.stack(parts, dim=-1).flatten(-2).to(torch.int32)


def shared_bits(key: Key, first: int, count: int, device: torch.device) -> Tensor:
    """Random bits that all workers of a round share, starting at index `first`: (count,) bool.

    A worker's private bits are `CoordinateBits`, whose counters differ from these in their third word.
    """
    start, stop = first // _BITS_PER_COUNTER, -(-(first + count) // _BITS_PER_COUNTER)
    zero = torch.zeros((), dtype=torch.int64, device=device)
    counter = torch.arange(start, stop, device=device)
    parts = halves(philox4x32((counter, zero, zero + 1, zero), key))
    bits = (parts[:, None] >> torch.arange(16, device=device)) & 1
    begin = first - start * _BITS_PER_COUNTER
    return bits.view(-1)[begin : begin + count].bool()


@dataclass(frozen=True)
class CoordinateBits:
    """One worker's private bits for stochastic rounding of one bucket in one step: 16 for every coordinate.

    `key` is the round's. A worker encodes a coordinate at most once a round, so no bit is used twice.
    """

    key: Key
    rank: int
    key_place: Tensor | None = None
    """`Round.key_place`."""

    def fields(self) -> dict[str, Any]:
        """The fields that describe these bits to kernels."""
        key0, key1 = self.key
        return {"key0": key0, "key1": key1, "rank": self.rank, "key_place": (self.key_place, 2)}

    def dithers(self, first: int, like: Tensor) -> Tensor:
        """Integers below 2¹⁶ for the coordinates from `first` on, as many as `like` has: int32 of its shape.

        `first` and their number are multiples of 8. With 16 bits the probability of rounding up is right to
        within 2⁻¹⁷; all 32 would cost twice as much, and random bits are the most expensive part of an
        encoding.
        """
        assert first % PER_COUNTER == 0 and like.numel() % PER_COUNTER == 0
        start = first // PER_COUNTER
        counter = torch.arange(start, start + like.numel() // PER_COUNTER, device=like.device)
        zero = torch.zeros((), dtype=torch.int64, device=like.device)
        words = philox4x32((counter, zero + self.rank, zero, zero), self.key)
        return halves(words).view(like.shape)

    def words(self, first: int, like: Tensor) -> Tensor:
        """`dithers` as the upper half of 32-bit words whose lower half is 2¹⁵: int64."""
        return (self.dithers(first, like).to(torch.int64) << 16) | _BELOW
