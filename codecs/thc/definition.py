"""Conversion between a bucket and integers: signs are flipped at random, blocks rotated, and the values
within their ranges rounded at random. This is the definition, in plain PyTorch, that compiled kernels
reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.arithmetic.hadamard import hadamard_
from gradwire.codecs.arithmetic.random import Key, halves, philox4x32
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.loading import BUCKETS
from gradwire.codecs.thc.blocks import UNIT, BlockSegment, QuantizationTable, RotatedBlocks, cut, neighbours
from gradwire.codecs.thc.ranges import Ranges, padded, range_scales

_SHARED = 0
"""The stream of the signs; worker r's dither is stream r + 1."""


@dataclass(frozen=True)
class Randomness:
    """Randomness of one worker in one round: the signs before the rotation, the same on all workers, and its
    own dither. `key` comes from seed, step and the bucket's uid; apart from it, both depend only on the
    coordinate. `key_place` is `Round.key_place`."""

    key: Key
    rank: int
    key_place: Tensor | None = None

    def signs_flipped(self, values: Tensor, first: int) -> Tensor:
        """Float32 `values`, coordinates `first` and following, with each sign flipped with probability ½;
        flipping twice restores the values. `first` and the number of values are multiples of 128."""
        units, zero = _units(values, first)
        words = torch.stack(philox4x32((units, zero + _SHARED, zero, zero), self.key), dim=1)
        bit = torch.arange(32, device=values.device)
        flips = ((words[:, :, None] >> (31 - bit)) & 1).bool().view(values.shape)
        return torch.where(flips, -values, values)

    def dither(self, values: Tensor, first: int) -> Tensor:
        """An odd multiple of 2⁻¹⁷, uniform on (0, 1), for each of `values`: float32 of their shape."""
        units, zero = _units(values, first)
        part = torch.arange(UNIT // 8, device=values.device)
        words = philox4x32((units[:, None], zero + self.rank + 1, part, zero), self.key)
        return (halves(words).view(values.shape).to(torch.float32) + 0.5) * 2.0**-16


def _units(values: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """The indices of the units of 128 coordinates, (m/128,) int64, and a zero."""
    start = first // UNIT
    units = torch.arange(start, start + values.numel() // UNIT, device=values.device)
    return units, torch.zeros((), dtype=torch.int64, device=values.device)


def quantize(
    x: Tensor, blocks: RotatedBlocks, ranges: Ranges, table: QuantizationTable, randomness: Randomness
) -> Tensor:
    """Rotate the bucket `x`, (numel,) of a floating dtype, clamp it to its ranges and round it at random to
    entries of the table: (total,) int32 in [0, g].

    A coordinate at v in units of the table, 0 ≤ v ≤ g, becomes the next entry above with the probability of
    its distance to the one below. The integers of blocks without a range are undefined.
    """
    integers = torch.empty(blocks.total, dtype=torch.int32, device=x.device)
    write_integers(
        readable(x),
        ranges.root_mean_squares,
        ranges.t_p,
        blocks.largest,
        table.entries,
        randomness.key,
        randomness.rank,
        integers,
        randomness.key_place,
    )
    return integers


def dequantize(
    sums: Tensor,
    workers: int,
    blocks: RotatedBlocks,
    ranges: Ranges,
    table: QuantizationTable,
    randomness: Randomness,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Decode sums of the integers of `workers` workers, (total,) int32, to their mean: (numel,) of a floating
    dtype.

    Zeros for blocks of zeros, NaN for blocks that are not finite.
    """
    written = dtype if dtype in BUCKETS else torch.float32
    mean = torch.empty(blocks.total, dtype=written, device=sums.device)
    peak = table.granularity * workers
    write_mean(
        sums,
        peak,
        ranges.root_mean_squares,
        ranges.t_p,
        blocks.largest,
        randomness.key,
        mean,
        randomness.key_place,
    )
    return mean[: blocks.numel].to(dtype)


def write_integers(
    x: Tensor,
    root_mean_squares: Tensor,
    t_p: float,
    block: int,
    entries: Sequence[int],
    key: Sequence[int],
    rank: int,
    integers: Tensor,
    key_place: Tensor | None = None,
) -> None:
    """`quantize` into `integers` from `x`, float32 or bfloat16, cut into blocks of at most `block`.

    Compiled kernels take the key from `key_place`, (2,) int32, where it is given.
    """
    blocks, table = cut(x.numel(), block), QuantizationTable(tuple(entries))
    library = library_for(x.device)
    if library is not None:
        values = None if table.is_uniform else neighbours(table, x.device)
        run(
            library,
            "thc_quantize",
            x.device,
            x=(x, blocks.numel),
            numel=blocks.numel,
            block=blocks.largest,
            root_mean_squares=(root_mean_squares, blocks.count),
            table=(values, 2 * (table.granularity + 1)),
            integers=(integers, blocks.total),
            t_p=t_p,
            granularity=table.granularity,
            key0=key[0],
            key1=key[1],
            key_place=(key_place, 2),
            rank=rank,
        )
        return
    scales = range_scales(Ranges(root_mean_squares, t_p))
    randomness = Randomness((key[0], key[1]), rank)
    factor = constant(table.granularity / 2, scales.limit) / scales.limit
    values = padded(x, blocks.total)
    for segment in blocks.segments:
        rows = _blocks(values, segment) * scales.normalizer[segment.blocks]
        rows = hadamard_(randomness.signs_flipped(rows, segment.start))
        v = torch.where(scales.alive[segment.blocks], rows * factor[segment.blocks], 0.0)
        v = (v + table.granularity / 2).clamp(0, table.granularity)
        dither = randomness.dither(v, segment.start)
        integers[segment.coordinates] = _rounded(v, table, dither).view(-1).to(torch.int32)


def write_mean(
    sums: Tensor,
    peak: int,
    root_mean_squares: Tensor,
    t_p: float,
    block: int,
    key: Sequence[int],
    mean: Tensor,
    key_place: Tensor | None = None,
) -> None:
    """`dequantize` into `mean`, (total,) float32 or bfloat16, from sums in [0, peak] of blocks of at most
    `block`; `key_place` as `write_integers` takes it."""
    blocks = cut(sums.numel(), block)
    library = library_for(sums.device)
    if library is not None:
        between = mean  # where large blocks have float32 values on the way
        if mean.dtype != torch.float32:
            is_large = blocks.largest > library.constant("GRADWIRE_THC_SMALL_BLOCK")
            between = torch.empty(blocks.total if is_large else 0, dtype=torch.float32, device=sums.device)
        run(
            library,
            "thc_dequantize",
            sums.device,
            sums=(sums, blocks.total),
            total=blocks.total,
            block=blocks.largest,
            root_mean_squares=(root_mean_squares, blocks.count),
            between=(between, between.numel()),
            mean=(mean, blocks.total),
            t_p=t_p,
            peak=peak,
            key0=key[0],
            key1=key[1],
            key_place=(key_place, 2),
        )
        return
    scales = range_scales(Ranges(root_mean_squares, t_p))
    randomness = Randomness((key[0], key[1]), rank=0)
    unit = scales.limit / constant(2 * peak, scales.limit)
    for segment in blocks.segments:
        centred = (_blocks(sums, segment) * 2 - peak).to(torch.float32)
        rows = hadamard_(centred * unit[segment.blocks])
        rows = randomness.signs_flipped(rows, segment.start) * scales.restorer[segment.blocks]
        mean[segment.coordinates] = (rows + 0.0).view(-1).to(mean.dtype)  # −0 becomes +0


def _blocks(values: Tensor, segment: BlockSegment) -> Tensor:
    """The coordinates of a segment, (blocks, coordinates of a block)."""
    return values[segment.coordinates].view(segment.count, segment.block)


def _rounded(v: Tensor, table: QuantizationTable, dither: Tensor) -> Tensor:
    """Rounds `v` to the entry below or above it, with probabilities that make the result unbiased: float32 of
    its shape."""
    low = v.floor()
    if table.is_uniform:
        return low + (v - low + dither).floor()
    entries, distances = neighbours(table, v.device)[:, low.to(torch.int32)].unbind()
    return entries + distances * (v - entries + dither * distances >= distances)
