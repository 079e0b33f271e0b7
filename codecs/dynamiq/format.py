"""What a chunk's message looks like: super-groups, how many bytes they take, and where these lie (DynamiQ
§3).

A bucket is cut into super-groups of 256 coordinates; super-group j belongs to chunk j mod num_chunks. A
chunk's message has a capacity that follows from the layout, the chunks and the budget alone. Everything on
the wire counts towards the budget of `bits` per coordinate: the statistics of the first all-reduce, codes and
scales (DynamiQ §3.2).

In a message codes come first, in sections of one width (the largest first) and by super-group index within a
section; then the group scales of each super-group; then, if scales are hierarchical, the super-groups' bf16
scales. What these leave of the capacity is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.interface import ALIGNMENT, align
from gradwire.codecs.options.dynamiq import BF16_BYTES, SUPER_GROUP, Format
from gradwire.codecs.shards import Run, Shard

_SCALE_DTYPES = {1: torch.uint8, BF16_BYTES: torch.int16}


def num_super_groups(numel: int) -> int:
    """Super-groups of a bucket, the last one possibly partial."""
    return -(-numel // SUPER_GROUP)


def to_super_groups(x: Tensor) -> Tensor:
    """(numel,) of a floating dtype as (super-groups, 256) float32, the last one padded with zeros."""
    padding = num_super_groups(x.numel()) * SUPER_GROUP - x.numel()
    return torch.nn.functional.pad(x.to(torch.float32), (0, padding)).view(-1, SUPER_GROUP)


def code_bytes(width: int) -> int:
    """Bytes of one super-group's codes at `width` bits per coordinate."""
    return SUPER_GROUP * width // 8


COUNTED_WIDTHS = 17
"""Entries of a chunk's counts as a tensor: one for each number of bits from 0 to 16."""


def counts_of(numbers: Tensor, widths: Sequence[int]) -> dict[int, int]:
    """How many super-groups of each of `widths` a chunk has, from a tensor (17,)."""
    every = numbers.tolist()
    return {width: every[width] for width in widths}


def numbers_of(counts: Mapping[int, int], device: torch.device) -> Tensor:
    """The tensor, (17,) int32, from counts."""
    every = [counts.get(width, 0) for width in range(COUNTED_WIDTHS)]
    return torch.tensor(every, dtype=torch.int32, device=device)


def used_bytes(counts: Mapping[int, int], message_format: Format) -> int:
    """Bytes of a message with `counts[width]` super-groups of each width."""
    return sum(number * (code_bytes(width) + message_format.scale_bytes) for width, number in counts.items())


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


def chunk_shard(numel: int, num_chunks: int, chunk: int) -> Shard:
    """Which of a bucket's `numel` coordinates chunk `chunk` holds: every `num_chunks`-th super-group."""
    stride, whole = num_chunks * SUPER_GROUP, numel // SUPER_GROUP
    count = len(range(chunk, whole, num_chunks))
    runs = (Run(chunk * SUPER_GROUP, SUPER_GROUP, stride, count),) if count else ()
    rest = numel - whole * SUPER_GROUP
    last = (Run(whole * SUPER_GROUP, rest),) if rest and whole % num_chunks == chunk else ()
    return Shard((*runs, *last))


def chunk_size(numel: int, num_chunks: int, chunk: int, bits: float, message_format: Format) -> ChunkSize:
    """Capacity of chunk `chunk` of a bucket of `numel` coordinates at `bits` per coordinate.

    It is a multiple of the alignment of messages: at least what all super-groups need at the smallest width,
    at most what they can use.
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


@dataclass(frozen=True)
class Section:
    """The g super-groups of one width: their `rows` within the chunk, and views of a message.

    `codes` is (g·32·width,) uint8; `group_scales` (g, groups) uint8 and `scales` (g,) int16, or with bf16
    scales per group `group_scales` (g, groups) int16 and `scales` empty.
    """

    width: int
    rows: slice
    codes: Tensor
    group_scales: Tensor
    scales: Tensor


def sections(message: Tensor, counts: Mapping[int, int], message_format: Format) -> Iterator[Section]:
    """The sections of a chunk's message (uint8) with `counts[width]` super-groups of each width."""
    groups, total = message_format.groups, sum(counts.values())
    end_of_codes = sum(code_bytes(width) * number for width, number in counts.items())
    end_of_groups = end_of_codes + groups * message_format.group_scale_bytes * total
    group_scales = message[end_of_codes:end_of_groups].view(_SCALE_DTYPES[message_format.group_scale_bytes])
    scales = message[end_of_groups : used_bytes(counts, message_format)].view(torch.int16)
    row = offset = 0
    for width in sorted(counts, reverse=True):
        rows, end = slice(row, row + counts[width]), offset + counts[width] * code_bytes(width)
        if counts[width]:
            yield Section(
                width, rows, message[offset:end], group_scales.view(total, groups)[rows], scales[rows]
            )
        row, offset = rows.stop, end


def clear_unused(message: Tensor, counts: Mapping[int, int], message_format: Format) -> None:
    """Zero what a chunk's codes and scales leave of its message."""
    message[used_bytes(counts, message_format) :].zero_()
