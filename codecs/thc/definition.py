"""From a bucket to integers and back, in plain PyTorch: the definition compiled kernels reproduce.

An operation works piece by piece, so that its temporaries stay in cache; only the rotation sees whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.floats import constant
from gradwire.codecs.hadamard import hadamard_
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator
from gradwire.codecs.thc import native
from gradwire.codecs.thc.blocks import Blocks, cut
from gradwire.codecs.thc.randomness import Randomness
from gradwire.codecs.thc.ranges import Ranges, block_scales, padded
from gradwire.codecs.thc.table import Table, neighbours


def quantize(x: Tensor, blocks: Blocks, ranges: Ranges, table: Table, randomness: Randomness) -> Tensor:
    """Rotate the bucket `x`, (numel,) of a floating dtype, clamp it to its ranges and round it at random to
    entries of the table: (total,) int32 in [0, g].

    A coordinate at v in units of the table, 0 ≤ v ≤ g, becomes the next entry above with the probability of
    its distance to the one below. The integers of blocks without range are without meaning.
    """
    integers = torch.empty(blocks.total, dtype=torch.int32, device=x.device)
    write_integers(
        x if x.dtype in native.DTYPES else x.to(torch.float32),
        ranges.root_mean_squares,
        ranges.t_p,
        blocks.largest,
        table.entries,
        randomness.key,
        randomness.rank,
        integers,
    )
    return integers


def dequantize(
    sums: Tensor,
    workers: int,
    blocks: Blocks,
    ranges: Ranges,
    table: Table,
    randomness: Randomness,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The mean that sums of the integers of `workers` workers, (total,) int32, stand for: (numel,) of a
    floating dtype.

    Zeros for blocks of zeros, NaN for blocks that are not finite.
    """
    written = dtype if dtype in native.DTYPES else torch.float32
    mean = torch.empty(blocks.total, dtype=written, device=sums.device)
    peak = table.granularity * workers
    write_mean(sums, peak, ranges.root_mean_squares, ranges.t_p, blocks.largest, randomness.key, mean)
    return mean[: blocks.numel].to(dtype)


@operator(
    "thc_quantize(Tensor x, Tensor root_mean_squares, float t_p, int block, int[] entries, int[] key, "
    "int rank, Tensor(a!) integers) -> ()"
)
def write_integers(
    x: Tensor,
    root_mean_squares: Tensor,
    t_p: float,
    block: int,
    entries: Sequence[int],
    key: Sequence[int],
    rank: int,
    integers: Tensor,
) -> None:
    """`quantize` into `integers` from `x`, float32 or bfloat16, cut into blocks of at most `block`."""
    blocks, table = cut(x.numel(), block), Table(tuple(entries))
    library = library_for(x.device)
    if library is not None:
        native.quantize(library, x, root_mean_squares, t_p, blocks, table, key, rank, integers)
        return
    scales, randomness = block_scales(Ranges(root_mean_squares, t_p)), Randomness((key[0], key[1]), rank)
    y = torch.empty(blocks.total, dtype=torch.float32, device=x.device)
    for piece in blocks.pieces():
        target = y[piece.coordinates]
        torch.mul(
            padded(x, piece.coordinates).view(piece.rows, -1),
            scales.normalizer[piece.blocks],
            out=target.view(piece.rows, -1),
        )
        randomness.flip_signs_(target, piece.coordinates.start)
    _rotate_(y, blocks)
    factor = constant(table.granularity / 2, y).div(scales.limit)
    for piece in blocks.pieces():
        v = y[piece.coordinates].view(piece.rows, -1).mul_(factor[piece.blocks])
        v.view(torch.int32).bitwise_and_(scales.alive[piece.blocks])
        v = v.view(-1).add_(table.granularity / 2).clamp_(0, table.granularity)
        integers[piece.coordinates] = _rounded(v, table, randomness.dither(v, piece.coordinates.start))


@operator(
    "thc_dequantize(Tensor sums, int peak, Tensor root_mean_squares, float t_p, int block, int[] key, "
    "Tensor(a!) mean) -> ()"
)
def write_mean(
    sums: Tensor,
    peak: int,
    root_mean_squares: Tensor,
    t_p: float,
    block: int,
    key: Sequence[int],
    mean: Tensor,
) -> None:
    """`dequantize` into `mean`, (total,) float32 or bfloat16, from sums in [0, peak] of blocks of at most
    `block`."""
    blocks = cut(sums.numel(), block)
    library = library_for(sums.device)
    if library is not None:
        native.dequantize(library, sums, peak, root_mean_squares, t_p, blocks, key, mean)
        return
    scales, randomness = block_scales(Ranges(root_mean_squares, t_p)), Randomness((key[0], key[1]), rank=0)
    y = mean if mean.dtype == torch.float32 else torch.empty_like(mean, dtype=torch.float32)
    unit = scales.limit.div(constant(2 * peak, y))
    for piece in blocks.pieces():
        centred = sums[piece.coordinates].mul(2).sub_(peak).to(torch.float32).view(piece.rows, -1)
        torch.mul(centred, unit[piece.blocks], out=y[piece.coordinates].view(piece.rows, -1))
    _rotate_(y, blocks)
    for piece in blocks.pieces():
        values = y[piece.coordinates]
        randomness.flip_signs_(values, piece.coordinates.start)
        rows = values.view(piece.rows, -1)
        rows.mul_(scales.restorer[piece.blocks]).add_(0.0)  # −0 becomes +0
    if y is not mean:
        mean.copy_(y)


def _rotate_(y: Tensor, blocks: Blocks) -> None:
    for segment in blocks.segments:
        hadamard_(y[segment.coordinates].view(segment.count, segment.block))


def _rounded(v: Tensor, table: Table, dither: Tensor) -> Tensor:
    """The entry below `v` or the one above it, which is as likely as `v` is near to it: (m,) float32."""
    low = v.floor()
    if table.is_uniform:
        return low.add_(v.sub_(low).add_(dither).floor_())
    index = low.to(torch.int32)
    entries, distances = (row.index_select(0, index) for row in neighbours(table, v.device).unbind())
    up = v.sub_(entries).add_(dither.mul_(distances)).ge(distances)
    return entries.add_(distances.mul_(up))
