"""Blocks that are rotated independently, and the tables of values that their coordinates are rounded to.

A bucket is padded with zeros to a multiple of 128 coordinates, which take a multiple of 16 bytes at any
number of bits. As many blocks of the given size as fit come first; the rest is filled with blocks of the
largest power of two that fits, and so on down to 128. So less than 128 coordinates are padding, whatever the
block size.

Rotated coordinates are close to normally distributed. In units of their standard deviation the range is [−t,
t]; a value between two neighbouring entries is rounded to one of them at random, without bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.codecs.options.quantized import LARGEST_ROTATION

UNIT = 128
"""Coordinates that a bucket is padded to a multiple of, and chunks begin at."""


@dataclass(frozen=True)
class BlockSegment:
    """`count` blocks of `block` coordinates; the first one begins at coordinate `start` and is the bucket's
    `index`-th."""

    start: int
    index: int
    block: int
    count: int

    @property
    def coordinates(self) -> slice:
        return slice(self.start, self.start + self.block * self.count)

    @property
    def blocks(self) -> slice:
        return slice(self.index, self.index + self.count)


@dataclass(frozen=True)
class RotatedBlocks:
    """All blocks of a bucket of `numel` coordinates, padded to `total`."""

    numel: int
    total: int
    segments: tuple[BlockSegment, ...]

    @property
    def largest(self) -> int:
        """Coordinates of the largest block; together with `numel` it determines all others."""
        return self.segments[0].block

    @property
    def count(self) -> int:
        return sum(segment.count for segment in self.segments)


def whole_blocks(blocks: RotatedBlocks, num_chunks: int) -> list[int]:
    """`num_chunks + 1` boundaries of chunks of whole blocks, nearly equal where blocks are small."""
    bounds = [0]
    for chunk in range(1, num_chunks + 1):
        wanted = -(-blocks.total * chunk // num_chunks)
        found = next(s for s in blocks.segments if s.coordinates.stop >= wanted)
        unit = max(found.block, UNIT)
        bounds.append(found.start + -(-(wanted - found.start) // unit) * unit)
    return bounds


@lru_cache(maxsize=1024)
def cut(numel: int, block: int) -> RotatedBlocks:
    """The blocks of a bucket of `numel` > 0 coordinates; `block` is a power of two, or 0 for the largest that
    fits (at most 2²⁴)."""
    total = -(-numel // UNIT) * UNIT
    size, segments = block or LARGEST_ROTATION, list[BlockSegment]()
    start = index = 0
    while start < total:
        left = total - start
        size = min(size, 1 << (left.bit_length() - 1))
        segments.append(BlockSegment(start, index, size, left // size))
        start, index = segments[-1].coordinates.stop, segments[-1].blocks.stop
    return RotatedBlocks(numel, total, tuple(segments))


_COST_UNIT = 2.0**-48
"""Expected errors are compared as integers, so that the last bits of `erf` decide nothing."""


@dataclass(frozen=True)
class QuantizationTable:
    """`entries` are integers from 0 to g, ascending; entry z stands for −t + entries[z]·2t/g."""

    entries: tuple[int, ...]

    @property
    def granularity(self) -> int:
        """g, the largest integer a worker contributes to a sum."""
        return self.entries[-1]

    @property
    def is_uniform(self) -> bool:
        return len(self.entries) == self.granularity + 1

    def expected_error(self, t: float) -> float:
        """E(Q(Z) − Z)² of a standard normal Z: the share of its energy that a worker loses if its norm is the
        largest of all."""
        unit = 2 * t / self.granularity
        inner = sum(
            _rounding_error(-t + low * unit, -t + high * unit) for low, high in pairwise(self.entries)
        )
        return inner + 2 * ((1 + t * t) * (1 - _cumulative(t)) - t * _density(t))


def uniform_table(bits: int) -> QuantizationTable:
    """All integers below 2^bits."""
    return QuantizationTable(tuple(range(1 << bits)))


@lru_cache(maxsize=64)
def optimal_table(bits: int, granularity: int, t: float) -> QuantizationTable:
    """The symmetric table of 2^bits entries with the smallest expected squared error for a normal coordinate
    within [−t, t]; `granularity` is at least 2^bits − 1.

    Half of the entries determine a symmetric table. `best[last]` holds the least error of the first entries
    up to `last`, and these entries. For 16 entries and g = 30 they are the tables of the authors' released
    code.
    """
    lower_half = range((granularity + 1) // 2)
    costs = {(a, b): _cost(a, b, granularity, t) for a in lower_half for b in lower_half if a < b}
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for _ in range((1 << (bits - 1)) - 1):
        best = {
            entry: min((best[a][0] + costs[a, entry], (*best[a][1], entry)) for a in best if a < entry)
            for entry in range(min(best) + 1, len(lower_half))
        }
    _, half = min(
        (2 * error + _cost(last, granularity - last, granularity, t), entries)
        for last, (error, entries) in best.items()
    )
    return QuantizationTable((*half, *(granularity - entry for entry in reversed(half))))


def _cost(low: int, high: int, granularity: int, t: float) -> int:
    unit = 2 * t / granularity
    return round(_rounding_error(-t + low * unit, -t + high * unit) / _COST_UNIT)


def _rounding_error(low: float, high: float) -> float:
    """∫(z − low)(high − z)φ(z)dz from `low` to `high`: the variance of rounding what lies between them."""
    mass = _cumulative(high) - _cumulative(low)
    mean = _density(low) - _density(high)
    square = mass + low * _density(low) - high * _density(high)
    return (low + high) * mean - low * high * mass - square


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _cumulative(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2


@lru_cache(maxsize=16)
def neighbours(table: QuantizationTable, device: torch.device) -> Tensor:
    """For each integer k in [0, g] the largest entry that is at most k, and the distance to the next entry, 1
    after the last: (2, g + 1) float32."""
    below = [max(entry for entry in table.entries if entry <= k) for k in range(table.granularity + 1)]
    distances = dict(zip(table.entries, (b - a for a, b in pairwise(table.entries)), strict=False))
    gaps = [distances.get(entry, 1) for entry in below]
    return torch.tensor([below, gaps], dtype=torch.float32, device=device)
