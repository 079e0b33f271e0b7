"""How a bucket is cut into blocks, each rotated on its own.

A bucket is padded with zeros to a multiple of 128 coordinates: any number of bits then fills whole 16 bytes.
As many blocks of the given size as fit come first, then, of what is left, as many of the largest power of two
that fits, and so on down to 128. So less than 128 coordinates are padding, whatever the size of the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gradwire.codecs.options.quantized import LARGEST_ROTATION

UNIT = 128
"""Coordinates that a bucket is padded to a multiple of, and chunks begin at."""


@dataclass(frozen=True)
class Segment:
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
class Blocks:
    """All blocks of a bucket of `numel` coordinates, padded to `total`."""

    numel: int
    total: int
    segments: tuple[Segment, ...]

    @property
    def largest(self) -> int:
        """Coordinates of the largest block; it and `numel` determine all others."""
        return self.segments[0].block

    @property
    def count(self) -> int:
        return sum(segment.count for segment in self.segments)


def whole_blocks(blocks: Blocks, num_chunks: int) -> list[int]:
    """`num_chunks + 1` boundaries of chunks of whole blocks, nearly equal where blocks are small."""
    bounds = [0]
    for chunk in range(1, num_chunks + 1):
        wanted = -(-blocks.total * chunk // num_chunks)
        found = next(s for s in blocks.segments if s.coordinates.stop >= wanted)
        unit = max(found.block, UNIT)
        bounds.append(found.start + -(-(wanted - found.start) // unit) * unit)
    return bounds


@lru_cache(maxsize=1024)
def cut(numel: int, block: int) -> Blocks:
    """The blocks of a bucket of `numel` > 0 coordinates; `block` is a power of two, or 0 for the largest that
    fits (at most 2²⁴)."""
    total = -(-numel // UNIT) * UNIT
    size, segments = block or LARGEST_ROTATION, list[Segment]()
    start = index = 0
    while start < total:
        left = total - start
        size = min(size, 1 << (left.bit_length() - 1))
        segments.append(Segment(start, index, size, left // size))
        start, index = segments[-1].coordinates.stop, segments[-1].blocks.stop
    return Blocks(numel, total, tuple(segments))
