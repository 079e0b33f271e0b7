"""Conversion between a bucket and integers: signs are flipped at random, blocks rotated, and the values
within their ranges rounded at random. This is the definition, in plain PyTorch, that compiled kernels
reproduce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.arithmetic.hadamard import hadamard_
from gradwire.codecs.arithmetic.random import Key, halves, philox4x32
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.thc.blocks import UNIT, BlockSegment, QuantizationTable, RotatedBlocks, neighbours
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


@dataclass(frozen=True)
class BlockQuantizer:
    """The quantization of one worker's bucket in one round: by blocks, which all have their ranges, to
    entries of a table."""

    blocks: RotatedBlocks
    ranges: Ranges
    table: QuantizationTable
    randomness: Randomness

    def quantize(self, x: Tensor, integers: Tensor) -> None:
        """Rotate the bucket `x`, (numel,) of a floating dtype, clamp it to its ranges and round it at random
        to entries of the table: `integers`, (total,) int32 in [0, g].

        A coordinate at v in units of the table, 0 ≤ v ≤ g, becomes the next entry above with the probability
        of its distance to the one below. The integers of blocks without range are without meaning.
        """
        x, blocks, table = readable(x), self.blocks, self.table
        library = library_for(x.device)
        if library is not None:
            values = None if table.is_uniform else neighbours(table, x.device)
            given = {
                "x": (x, blocks.numel),
                "table": (values, 2 * (table.granularity + 1)),
                "integers": (integers, blocks.total),
            }
            own = {"numel": blocks.numel, "granularity": table.granularity, "rank": self.randomness.rank}
            run(library, "thc_quantize", x.device, **given, **own, **self._fields())
            return
        scales = range_scales(self.ranges)
        factor = constant(table.granularity / 2, scales.limit) / scales.limit
        padded_values = padded(x, blocks.total)
        for segment in blocks.segments:
            rows = _blocks(padded_values, segment) * scales.normalizer[segment.blocks]
            rows = hadamard_(self.randomness.signs_flipped(rows, segment.start))
            v = torch.where(scales.alive[segment.blocks], rows * factor[segment.blocks], 0.0)
            v = (v + table.granularity / 2).clamp(0, table.granularity)
            dither = self.randomness.dither(v, segment.start)
            integers[segment.coordinates] = _rounded(v, table, dither).view(-1).to(torch.int32)

    def dequantize(self, sums: Tensor, workers: int, mean: Tensor) -> None:
        """Fill `mean`, (total,) float32 or bfloat16, with what sums of the integers of `workers` workers,
        (total,) int32, stand for: zeros for blocks of zeros, NaN for blocks that are not finite."""
        blocks, peak = self.blocks, self.table.granularity * workers
        library = library_for(sums.device)
        if library is not None:
            between = mean  # where large blocks have float32 values on the way
            if mean.dtype != torch.float32:
                is_large = blocks.largest > library.constant("GRADWIRE_THC_SMALL_BLOCK")
                room = blocks.total if is_large else 0
                between = torch.empty(room, dtype=torch.float32, device=sums.device)
            given = {
                "sums": (sums, blocks.total),
                "between": (between, between.numel()),
                "mean": (mean, blocks.total),
            }
            run(
                library,
                "thc_dequantize",
                sums.device,
                **given,
                total=blocks.total,
                peak=peak,
                **self._fields(),
            )
            return
        scales = range_scales(self.ranges)
        unit = scales.limit / constant(2 * peak, scales.limit)
        for segment in blocks.segments:
            centred = (_blocks(sums, segment) * 2 - peak).to(torch.float32)
            rows = hadamard_(centred * unit[segment.blocks])
            rows = self.randomness.signs_flipped(rows, segment.start) * scales.restorer[segment.blocks]
            mean[segment.coordinates] = (rows + 0.0).view(-1).to(mean.dtype)  # −0 becomes +0

    def _fields(self) -> dict[str, Any]:
        """The fields of both kernels for blocks, ranges and the key, which they take from `key_place` where
        it is given."""
        key0, key1 = self.randomness.key
        return {
            "block": self.blocks.largest,
            "root_mean_squares": (self.ranges.root_mean_squares, self.blocks.count),
            "t_p": self.ranges.t_p,
            "key0": key0,
            "key1": key1,
            "key_place": (self.randomness.key_place, 2),
        }


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
