"""How many bytes a chunk's message may have: a function of the layout, the chunks and the budget only.

Super-group j belongs to chunk j mod num_chunks. Everything on the wire counts towards `bits` per
coordinate: the statistics of the first all-reduce, codes and scales (DynamiQ §3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradwire.codecs.dynamiq.blocks import SUPER_GROUP, num_super_groups
from gradwire.codecs.dynamiq.format import Format

ALIGNMENT = 16
"""Every chunk's message starts and ends at a multiple of this many bytes."""


def budget_limits(message_format: Format) -> tuple[float, float]:
    """The least and the most bits per coordinate that super-groups of this format can spend."""
    widths, overhead = message_format.widths, message_format.overhead_bits
    return min(widths) + overhead, max(widths) + overhead


def code_bytes(width: int) -> int:
    """Of one super-group's codes at `width` bits per coordinate."""
    return SUPER_GROUP * width // 8


def used_bytes(counts: Mapping[int, int], message_format: Format) -> int:
    """Of a message with `counts[width]` super-groups of each width."""
    return sum(number * (code_bytes(width) + message_format.scale_bytes) for width, number in counts.items())


def align(size: int) -> int:
    """`size` rounded up to the alignment of messages."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class ChunkSize:
    """One chunk: its super-groups, its capacity in bytes, how much of that the smallest width leaves, and
    whether the capacity exceeds the budget because the smallest width does."""

    super_groups: int
    capacity: int
    spare: int
    over_budget: bool


def chunk_coordinates(numel: int, num_chunks: int, chunk: int) -> int:
    """How many of a bucket's `numel` coordinates are in chunk `chunk`."""
    total = num_super_groups(numel)
    coordinates = len(range(chunk, total, num_chunks)) * SUPER_GROUP
    return coordinates - (total * SUPER_GROUP - numel if (total - 1) % num_chunks == chunk else 0)


def chunk_size(numel: int, num_chunks: int, chunk: int, bits: float, message_format: Format) -> ChunkSize:
    """Capacity of chunk `chunk` of a bucket of `numel` coordinates at `bits` per coordinate.

    At least what all super-groups need at the smallest width, at most what they can use.
    """
    total = num_super_groups(numel)
    super_groups = len(range(chunk, total, num_chunks))
    if not super_groups:
        return ChunkSize(0, 0, 0, False)
    coordinates = chunk_coordinates(numel, num_chunks, chunk)
    budget = int(bits * coordinates / 8) - super_groups * message_format.statistics_bytes
    smallest = used_bytes({min(message_format.widths): super_groups}, message_format)
    largest = used_bytes({max(message_format.widths): super_groups}, message_format)
    capacity = min(max(budget // ALIGNMENT * ALIGNMENT, align(smallest)), align(largest))
    return ChunkSize(super_groups, capacity, capacity - smallest, capacity > budget)
