"""Ranges from root mean squares: a block's rotated coordinates are clamped to ±t, t = t_p·max‖x‖/√d.

The workers compare ‖x‖/√d, which unlike the norm is finite wherever the gradient is. Everything is computed
relative to a power of two near it: no product overflows or vanishes, and scaling a gradient by a power of two
changes no bit of the messages. The ends of float32's range are exceptions: a root mean square below 2⁻¹²⁶ is
less precise, one below 2⁻¹⁵⁰ is zero and so is the block's mean; above 1.5e38 a mean with its noise may be
infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import (
    SMALLEST_NORMAL,
    constant,
    exponents,
    fold,
    normalizers,
    power_of_two,
)
from gradwire.codecs.native.call import readable, run
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.thc.blocks import UNIT, RotatedBlocks, cut

_LARGEST_FLOAT = torch.finfo(torch.float32).max

_TILE = 1 << 14
"""Coordinates whose energy compiled kernels add up at a time."""


def padded(x: Tensor, total: int) -> Tensor:
    """A bucket (numel,) of a floating dtype as (total,) float32, zeros beyond its end."""
    return torch.nn.functional.pad(x.to(torch.float32), (0, total - x.numel()))


def block_root_mean_squares(x: Tensor, blocks: RotatedBlocks) -> Tensor:
    """√(Σx²/d) of every block of `x`, (numel,) of a floating dtype, padding included: (blocks,) float32.

    NaN where a coordinate is not finite.
    """
    root_mean_squares = torch.empty(blocks.count, dtype=torch.float32, device=x.device)
    write_root_mean_squares(readable(x), blocks.largest, root_mean_squares)
    return root_mean_squares


def write_root_mean_squares(x: Tensor, block: int, root_mean_squares: Tensor) -> None:
    """Fill `root_mean_squares`, float32 (blocks,), from `x`, (numel,) float32 or bfloat16, cut into blocks of
    at most `block` coordinates.

    Every 128 coordinates are summed relative to a power of two near their maximum, then every 128 of these
    sums relative to a power of two near theirs, and so on: one pass over `x`, in which no square over- or
    underflows.
    """
    blocks = cut(x.numel(), block)
    library = library_for(x.device)
    if library is not None:
        tiles = -(-blocks.total // _TILE) if blocks.largest > _TILE else 0
        maxima = torch.empty(tiles, dtype=torch.int32, device=x.device)
        energies = torch.empty(tiles, dtype=torch.float32, device=x.device)
        run(
            library,
            "thc_root_mean_squares",
            x.device,
            x=(x, blocks.numel),
            numel=blocks.numel,
            block=blocks.largest,
            maxima=(maxima, tiles),
            energies=(energies, tiles),
            root_mean_squares=(root_mean_squares, blocks.count),
        )
        return
    values = padded(x, blocks.total)
    for segment in blocks.segments:
        maximum, energy = _units(values[segment.coordinates].view(-1, min(segment.block, UNIT)))
        while maximum.numel() > segment.count:
            maximum, energy = _joined(maximum, energy, min(maximum.numel() // segment.count, UNIT))
        restorer = _powers(maximum)[1]
        root_mean_squares[segment.blocks] = _restored(energy * (1 / segment.block), maximum, restorer)


def bucket_root_mean_square(blocks: RotatedBlocks, root_mean_squares: Tensor) -> Tensor:
    """√(Σx²/d) of the whole bucket, padding included, from those of its blocks: (1,) float32."""
    maximum = root_mean_squares.amax(dim=0, keepdim=True)
    normalizer, restorer = _powers(maximum)
    squares = (root_mean_squares * normalizer).square()
    for segment in blocks.segments:
        squares[segment.blocks] *= segment.block / blocks.segments[0].block
    missing = (1 << (blocks.count - 1).bit_length()) - blocks.count
    total = fold(torch.nn.functional.pad(squares, (0, missing))[None])
    mean = total / constant(blocks.total / blocks.segments[0].block, total)
    return _restored(mean, maximum, restorer)


def _powers(maximum: Tensor) -> tuple[Tensor, Tensor]:
    """For 2^e ≤ maximum < 2^(e+1), returns 2^(1−e) and 2^e, both normal numbers: e is limited to [−126,
    127]."""
    field = exponents(maximum, SMALLEST_NORMAL)
    return normalizers(field), power_of_two(field)


def _units(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The largest magnitude and Σ(x·normalizer)² of every row, (units, coordinates) float32: (units,)
    float32."""
    maximum = rows.abs().amax(dim=1)
    return maximum, fold((rows * _powers(maximum)[0][:, None]).square())


def _joined(maximum: Tensor, energy: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Combines largest magnitudes and sums of squares, as `_units` returns them, over every `width` units."""
    rows, parts = maximum.view(-1, width), energy.view(-1, width)
    top = rows.amax(dim=1)
    apart = exponents(rows, SMALLEST_NORMAL) - exponents(top, SMALLEST_NORMAL)[:, None]
    factor = power_of_two(apart.clamp(min=-126) + 127)
    return top, fold(parts * factor * factor)


def _restored(mean_square: Tensor, maximum: Tensor, restorer: Tensor) -> Tensor:
    """The square root, scaled back: at most the largest float, NaN where `maximum` is not finite.

    PyTorch's float32 square root is not always the nearest one; rounded from float64 it is.
    """
    root = mean_square.double().sqrt().to(torch.float32)
    root = (root * 0.5 * restorer).clamp(max=_LARGEST_FLOAT)
    return root.masked_fill(~maximum.isfinite(), torch.nan)


@dataclass(frozen=True)
class Ranges:
    """The ranges of a round's blocks: `t_p` times the largest root mean square of any worker,
    (blocks,) float32."""

    root_mean_squares: Tensor
    t_p: float


@dataclass(frozen=True)
class RangeScales:
    """Factors of blocks for encoding, y = x·normalizer, and decoding, x = y·restorer/2.

    All are (blocks, 1), float32. `limit` is t in units of y: 0 for blocks of zeros, NaN for blocks that are
    not finite. `alive` is bool, False for both of these.
    """

    normalizer: Tensor
    restorer: Tensor
    limit: Tensor
    alive: Tensor


def range_scales(ranges: Ranges) -> RangeScales:
    """The scales of all blocks."""
    maximum = ranges.root_mean_squares[:, None]
    normalizer, restorer = _powers(maximum)
    finite = maximum.isfinite()
    limit = (maximum * normalizer * constant(ranges.t_p, maximum)).masked_fill(~finite, torch.nan)
    return RangeScales(normalizer, restorer, limit, finite & (maximum > 0))
