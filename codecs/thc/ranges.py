"""From root mean squares to ranges: a block's rotated coordinates are clamped to ±t, t = t_p·max‖x‖/√d.

The workers compare ‖x‖/√d, which unlike the norm is finite wherever the gradient is. Everything is computed
relative to a power of two near it: no product overflows or vanishes, and a gradient scaled by a power of two
changes no bit of what is sent. Exceptions lie at the ends of float32: a root mean square below 2⁻¹²⁶ is less
precise, one below 2⁻¹⁵⁰ is zero and so is the block's mean; above 1.5e38 a mean with its noise may be
infinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.floats import constant, fold, power_of_two
from gradwire.codecs.thc.blocks import UNIT, Blocks, Segment

_LARGEST_FLOAT = torch.finfo(torch.float32).max


def padded(x: Tensor, coordinates: slice) -> Tensor:
    """Some coordinates of a bucket (numel,) of a floating dtype as float32, zeros beyond its end.

    A view of `x` where possible: not to be written to.
    """
    values = x[coordinates].to(torch.float32)
    missing = coordinates.stop - coordinates.start - values.numel()
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def block_root_mean_squares(x: Tensor, blocks: Blocks) -> Tensor:
    """√(Σx²/d) of every block of `x`, (numel,) of a floating dtype, padding included: (blocks,) float32.

    NaN where a coordinate is not finite.
    """
    maximum = torch.zeros(blocks.count, dtype=torch.float32, device=x.device)
    for piece in blocks.pieces():
        low, high = padded(x, piece.coordinates).view(piece.rows, -1).aminmax(dim=1)
        maximum[piece.blocks] = torch.maximum(maximum[piece.blocks], torch.maximum(low.neg_(), high))
    normalizer, restorer = _powers(maximum)
    mean = torch.empty_like(maximum)
    for segment in blocks.segments:
        mean[segment.blocks] = _mean_squares(x, segment, normalizer)
    return _restored(mean, maximum, restorer)


def bucket_root_mean_square(blocks: Blocks, root_mean_squares: Tensor) -> Tensor:
    """√(Σx²/d) of the whole bucket, padding included, from those of its blocks: (1,) float32."""
    maximum = root_mean_squares.amax(dim=0, keepdim=True)
    normalizer, restorer = _powers(maximum)
    squares = (root_mean_squares * normalizer).square_()
    for segment in blocks.segments:
        squares[segment.blocks] *= segment.block / blocks.segments[0].block
    missing = (1 << (blocks.count - 1).bit_length()) - blocks.count
    total = fold(torch.nn.functional.pad(squares, (0, missing))[None])
    mean = total.div_(constant(blocks.total / blocks.segments[0].block, total))
    return _restored(mean, maximum, restorer)


def _powers(maximum: Tensor) -> tuple[Tensor, Tensor]:
    """For 2^e ≤ maximum < 2^(e+1) 2^(1−e) and 2^e, both normal numbers: e is confined to [−126, 127]."""
    field = (maximum.view(torch.int32) >> 23).clamp_(1, 254)
    return power_of_two(255 - field), power_of_two(field)


def _mean_squares(x: Tensor, segment: Segment, normalizer: Tensor) -> Tensor:
    """Σ(x·normalizer)²/d of a segment's blocks, (count,) float32; at first 128 coordinates are added up."""
    unit = min(segment.block, UNIT)
    sums = []
    for piece in segment.pieces():
        rows = padded(x, piece.coordinates).view(piece.rows, -1) * normalizer[piece.blocks, None]
        sums.append(fold(rows.square_().view(-1, unit)))
    return fold(torch.cat(sums).view(segment.count, -1)) * (1 / segment.block)


def _restored(mean_square: Tensor, maximum: Tensor, restorer: Tensor) -> Tensor:
    """The square root, scaled back: at most the largest float, NaN where `maximum` is not finite.

    PyTorch's float32 square root is not always the nearest one; rounded from float64 it is.
    """
    root = mean_square.double().sqrt_().to(torch.float32)
    root.mul_(0.5).mul_(restorer).clamp_(max=_LARGEST_FLOAT)
    return root.masked_fill_(~maximum.isfinite(), torch.nan)


@dataclass(frozen=True)
class Ranges:
    """How the blocks of a round are scaled on the way in, y = x·normalizer, and out, x = y·restorer/2.

    All are (blocks, 1), float32. `limit` is t in units of y: 0 for blocks of zeros, NaN for those that are
    not finite. `alive` (int32) is −1, or 0 for both of these.
    """

    normalizer: Tensor
    restorer: Tensor
    limit: Tensor
    alive: Tensor


def block_ranges(root_mean_squares: Tensor, t_p: float) -> Ranges:
    """The ranges of blocks, from (blocks,) maxima over the workers."""
    maximum = root_mean_squares[:, None]
    normalizer, restorer = _powers(maximum)
    finite = maximum.isfinite()
    limit = (maximum * normalizer).mul_(constant(t_p, maximum)).masked_fill_(~finite, torch.nan)
    return Ranges(normalizer, restorer, limit, (finite & (maximum > 0)).to(torch.int32).neg_())
