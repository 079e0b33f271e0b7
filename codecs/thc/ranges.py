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
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator
from gradwire.codecs.thc import native
from gradwire.codecs.thc.blocks import UNIT, Blocks, Segment, cut

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
    root_mean_squares = torch.empty(blocks.count, dtype=torch.float32, device=x.device)
    write_root_mean_squares(
        x if x.dtype in native.DTYPES else x.to(torch.float32), blocks.largest, root_mean_squares
    )
    return root_mean_squares


@operator("thc_root_mean_squares(Tensor x, int block, Tensor(a!) root_mean_squares) -> ()")
def write_root_mean_squares(x: Tensor, block: int, root_mean_squares: Tensor) -> None:
    """Fill `root_mean_squares`, float32 (blocks,), from `x`, (numel,) float32 or bfloat16, cut into blocks of
    at most `block` coordinates.

    Every 128 coordinates are added up relative to a power of two near their own maximum, then 128 of these
    sums relative to one near theirs, and so on: one pass over `x`, in which no square over- or underflows.
    """
    blocks = cut(x.numel(), block)
    library = library_for(x.device)
    if library is not None:
        native.root_mean_squares(library, x, blocks, root_mean_squares)
        return
    for segment in blocks.segments:
        maximum, energy = _units(x, segment)
        while maximum.numel() > segment.count:
            maximum, energy = _joined(maximum, energy, min(maximum.numel() // segment.count, UNIT))
        restorer = _powers(maximum)[1]
        root_mean_squares[segment.blocks] = _restored(energy * (1 / segment.block), maximum, restorer)


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
    field = _field(maximum)
    return power_of_two(255 - field), power_of_two(field)


def _field(maximum: Tensor) -> Tensor:
    """e + 127."""
    return (maximum.contiguous().view(torch.int32) >> 23).clamp_(1, 254)


def _units(x: Tensor, segment: Segment) -> tuple[Tensor, Tensor]:
    """For every 128 coordinates of a segment, or every block if these are smaller, the largest magnitude and
    Σ(x·normalizer)²: float32."""
    width, maxima, energies = min(segment.block, UNIT), list[Tensor](), list[Tensor]()
    for piece in segment.pieces():
        rows = padded(x, piece.coordinates).view(-1, width)
        low, high = rows.aminmax(dim=1)
        maxima.append(torch.maximum(low.neg_(), high))
        energies.append(fold((rows * _powers(maxima[-1])[0][:, None]).square_()))
    return torch.cat(maxima), torch.cat(energies)


def _joined(maximum: Tensor, energy: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The same for every `width` of them together."""
    rows, parts = maximum.view(-1, width), energy.view(-1, width)
    top = rows.amax(dim=1)
    apart = _field(rows).sub_(_field(top)[:, None]).clamp_(min=-126)
    factor = power_of_two(apart.add_(127))
    return top, fold(parts * factor * factor)


def _restored(mean_square: Tensor, maximum: Tensor, restorer: Tensor) -> Tensor:
    """The square root, scaled back: at most the largest float, NaN where `maximum` is not finite.

    PyTorch's float32 square root is not always the nearest one; rounded from float64 it is.
    """
    root = mean_square.double().sqrt_().to(torch.float32)
    root.mul_(0.5).mul_(restorer).clamp_(max=_LARGEST_FLOAT)
    return root.masked_fill_(~maximum.isfinite(), torch.nan)


@dataclass(frozen=True)
class Ranges:
    """What the blocks of a round are clamped to: `t_p` times the largest root mean square of any worker,
    (blocks,) float32."""

    root_mean_squares: Tensor
    t_p: float


@dataclass(frozen=True)
class Scales:
    """How blocks are scaled on the way in, y = x·normalizer, and out, x = y·restorer/2.

    All are (blocks, 1), float32. `limit` is t in units of y: 0 for blocks of zeros, NaN for those that are
    not finite. `alive` (int32) is −1, or 0 for both of these.
    """

    normalizer: Tensor
    restorer: Tensor
    limit: Tensor
    alive: Tensor


def block_scales(ranges: Ranges) -> Scales:
    maximum = ranges.root_mean_squares[:, None]
    normalizer, restorer = _powers(maximum)
    finite = maximum.isfinite()
    limit = (maximum * normalizer).mul_(constant(ranges.t_p, maximum)).masked_fill_(~finite, torch.nan)
    return Scales(normalizer, restorer, limit, (finite & (maximum > 0)).to(torch.int32).neg_())
