"""The messages of chunks: how super-groups and their scales are laid out in bytes (DynamiQ §3, §3.3).

A bucket is cut into super-groups of 256 coordinates; super-group j belongs to chunk j mod num_chunks. A
chunk's message has a capacity that follows from the layout, the chunks and the budget alone. Everything on
the wire counts towards the budget of `bits` per coordinate: the statistics of the first all-reduce, codes and
scales (DynamiQ §3.2).

In a message codes come first, in sections of one width (the largest first) and by super-group index within a
section; then the group scales of each super-group; then, if scales are hierarchical, the super-groups' bf16
scales. The rest of the capacity is zero.

A decoded coordinate is unbiased if it was normalised by the expected value of its group's decoded scale.
`stochastic` rounds the scale at random and normalises by the exact maximum, as in the paper; `ceil` rounds
the scale up and normalises by its decoded value.

A scale of a super-group, or of a group without hierarchy, is a bf16, here held as its pattern (int32); that
of a group within a super-group is a uint8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import SMALLEST_EXPONENT, constant, exponents, normalizers
from gradwire.codecs.collectives import ALIGNMENT, align
from gradwire.codecs.dynamiq.values import Parameter, as_tensor
from gradwire.codecs.options.dynamiq import BF16_BYTES, SUPER_GROUP, Format, ScaleRounding
from gradwire.codecs.shards import Shard, Stretches

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
    """The number of super-groups of each of `widths` in a chunk, from a tensor (17,)."""
    every = numbers.tolist()
    return {width: every[width] for width in widths}


def numbers_of(counts: Mapping[int, int], device: torch.device) -> Tensor:
    """The inverse of `counts_of`: a tensor (17,) int32."""
    every = [counts.get(width, 0) for width in range(COUNTED_WIDTHS)]
    return torch.tensor(every, dtype=torch.int32, device=device)


def used_bytes(counts: Mapping[int, int], message_format: Format) -> int:
    """Bytes of a message with `counts[width]` super-groups of each width."""
    return sum(number * (code_bytes(width) + message_format.scale_bytes) for width, number in counts.items())


@dataclass(frozen=True)
class ChunkSize:
    """One chunk: its number of super-groups, its capacity in bytes, the bytes left over at the smallest
    width, and whether the smallest width alone exceeds the budget."""

    super_groups: int
    capacity: int
    spare: int
    over_budget: bool


def chunk_coordinates(numel: int, num_chunks: int, chunk: int) -> int:
    """Number of a bucket's `numel` coordinates in chunk `chunk`."""
    total = num_super_groups(numel)
    coordinates = len(range(chunk, total, num_chunks)) * SUPER_GROUP
    return coordinates - (total * SUPER_GROUP - numel if (total - 1) % num_chunks == chunk else 0)


def chunk_shard(numel: int, num_chunks: int, chunk: int) -> Shard:
    """The coordinates of chunk `chunk` of a bucket of `numel`: every `num_chunks`-th super-group."""
    stride, whole = num_chunks * SUPER_GROUP, numel // SUPER_GROUP
    count = len(range(chunk, whole, num_chunks))
    runs = (Stretches(chunk * SUPER_GROUP, SUPER_GROUP, stride, count),) if count else ()
    rest = numel - whole * SUPER_GROUP
    last = (Stretches(whole * SUPER_GROUP, rest),) if rest and whole % num_chunks == chunk else ()
    return Shard((*runs, *last))


def chunk_size(numel: int, num_chunks: int, chunk: int, bits: float, message_format: Format) -> ChunkSize:
    """Capacity of chunk `chunk` of a bucket of `numel` coordinates at `bits` per coordinate.

    The capacity is a multiple of the messages' alignment. It is at least what all super-groups need at the
    smallest width and at most what they can use at the largest.
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
class CodeSection:
    """The g super-groups of one width: their `rows` within the chunk, and views of a message.

    `codes` is (g·32·width,) uint8; `group_scales` (g, groups) uint8 and `scales` (g,) int16, or with bf16
    scales per group `group_scales` (g, groups) int16 and `scales` empty.
    """

    width: int
    rows: slice
    codes: Tensor
    group_scales: Tensor
    scales: Tensor


def sections(message: Tensor, counts: Mapping[int, int], message_format: Format) -> Iterator[CodeSection]:
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
            yield CodeSection(
                width, rows, message[offset:end], group_scales.view(total, groups)[rows], scales[rows]
            )
        row, offset = rows.stop, end


def clear_unused(message: Tensor, counts: Mapping[int, int], message_format: Format) -> None:
    """Zero the bytes of a chunk's message beyond its codes and scales."""
    message[used_bytes(counts, message_format) :].zero_()


_NAN, _LARGEST = 0x7FC0, 0x7F7F  # bf16 patterns

_SMALLEST = 2.0 ** (SMALLEST_EXPONENT - 127)
"""The smallest maximum that is scaled: values below it are sent as zeros."""

_SMALLEST_GROUP = 2.0**-26
"""A group whose maximum, normalised like the super-group's (at least 2), is below can only get the scale
0."""


@dataclass(frozen=True)
class Scaling:
    """The scales of the g super-groups of a section, and how their coordinates are normalised.

    Coordinates are multiplied by `factor`, a power of two, (g, 1) or (g, groups) float32; a group's values
    are fractions of its `reference`, (g, groups) float32. `silent` groups, (g, groups) bool, are sent as
    zeros, or have a scale that makes them NaN. The message holds `group_scales`, (g, groups), integers or
    bf16 patterns, and `patterns`, the super-groups' scales: (g,) int32, or (0,) if groups have bf16 scales.
    """

    factor: Tensor
    reference: Tensor
    silent: Tensor
    group_scales: Tensor
    patterns: Tensor


def scale_groups(maximum: Tensor, noise: Tensor, rounding: ScaleRounding, message_format: Format) -> Scaling:
    """The scales of groups with these maxima, (g, groups) float32; `noise` is a random integer below 2¹⁶ for
    each (int32)."""
    if message_format.scales == "bf16":
        return _bf16(maximum, noise, rounding)
    return _hierarchical(maximum, noise, rounding, spare=1 if message_format.codebooks > 1 else 0)


def _hierarchical(maximum: Tensor, noise: Tensor, rounding: ScaleRounding, spare: int) -> Scaling:
    pattern = super_group_scale(maximum.amax(dim=1), spare)
    value = scale_value(pattern)[:, None]
    factor = normalizers(exponents(value))
    maximum, scale = maximum * factor, value * factor
    silent = (maximum < _SMALLEST_GROUP) | (pattern == 0)[:, None] | ~value.isfinite()

    quotient = group_quotients(maximum, scale)
    if rounding == "stochastic":
        group_scale, reference = stochastic_group_scales(quotient, noise), maximum
    else:
        group_scale = quotient.ceil().clamp(max=255)
        reference = group_scale * (scale / constant(255, scale))
    return Scaling(factor, reference, silent, group_scale.masked_fill(silent, 0), pattern)


def _bf16(maximum: Tensor, noise: Tensor, rounding: ScaleRounding) -> Scaling:
    stochastic = rounding == "stochastic"
    pattern = rounded_scale(maximum, noise if stochastic else 0xFFFF)
    value = scale_value(pattern)
    factor = normalizers(exponents(value))
    reference = (maximum if stochastic else value) * factor
    silent = (pattern == 0) | ~value.isfinite()
    return Scaling(factor, reference, silent, pattern, pattern.new_empty(0))


def super_group_scale(maximum: Tensor, spare: int = 0) -> Tensor:
    """bf16 patterns (int32) of the smallest bf16 ≥ `maximum` (float32, non-negative or NaN) whose last
    `spare` mantissa bits are 0.

    NaN when the maximum is not finite, so that the whole super-group decodes to NaN; 0 below 2⁻¹⁰⁰; the
    largest finite bf16 where rounding up would overflow.
    """
    return rounded_scale(maximum, (1 << (16 + spare)) - 1, spare)


def rounded_scale(maximum: Tensor, addend: Tensor | int, spare: int = 0) -> Tensor:
    """bf16 patterns like those of `super_group_scale`, with `addend` added to the float32 pattern before its
    last 16 + `spare` bits are dropped. An addend of all ones rounds up; one of as many random bits (int32, of
    the shape of `maximum`) rounds without bias."""
    pattern = ((maximum.view(torch.int32) + addend) >> (16 + spare)) << spare
    pattern = pattern.clamp(max=_LARGEST >> spare << spare).masked_fill(maximum < _SMALLEST, 0)
    return pattern.masked_fill(~maximum.isfinite(), _NAN)


def scale_value(pattern: Tensor) -> Tensor:
    """The float32 value of bf16 patterns (int32)."""
    return (pattern << 16).view(torch.float32)


def group_quotients(maximum: Tensor, scale: Tensor) -> Tensor:
    """max|G|·(255/scale): (rows, groups) float32 for maxima (rows, groups) and scales (rows, 1)."""
    return maximum * (constant(255, scale) / scale)


def inverse_maxima(span: Parameter, maximum: Tensor) -> Tensor:
    """K/max|G|, `span` being K: (rows, groups) float32."""
    return as_tensor(span, maximum) / maximum


def stochastic_group_scales(quotient: Tensor, noise: Tensor) -> Tensor:
    """Unbiased rounding of 255·max|G|/scale, float32 in [0, 256), to an integer in [0, 255], float32.

    `noise` holds a random integer below 2¹⁶ per group: up iff (noise + ½)/2¹⁶ < fraction.
    """
    floor = quotient.floor()
    uniform = (noise + 0.5) * (1 / 65536)
    return (floor + (uniform < quotient - floor)).clamp(max=255)


def group_steps(patterns: Tensor, group_scales: Tensor) -> Tensor:
    """Decoded scale of each group, r_G·(scale/255): (rows, groups) float32, NaN where the super-group's is.

    `patterns` is (rows,) int32, `group_scales` (rows, groups) of any dtype. The division comes first:
    r_G·scale could overflow.
    """
    unit = scale_value(patterns)
    return (unit / constant(255, unit))[:, None] * group_scales.to(torch.float32)
