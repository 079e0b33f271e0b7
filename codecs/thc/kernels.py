"""From a bucket to integers and back, in plain PyTorch: the definition other backends reproduce.

An operation works piece by piece, so that its temporaries stay in cache; only the rotation sees whole blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.floats import constant
from gradwire.codecs.hadamard import hadamard_
from gradwire.codecs.thc.blocks import Blocks
from gradwire.codecs.thc.randomness import Randomness
from gradwire.codecs.thc.ranges import Ranges, padded
from gradwire.codecs.thc.table import Table, neighbours


def quantize(x: Tensor, blocks: Blocks, ranges: Ranges, table: Table, randomness: Randomness) -> Tensor:
    """Rotate the bucket `x`, (numel,) of a floating dtype, clamp it to its ranges and round it at random to
    entries of the table: (total,) int32 in [0, g].

    A coordinate at v in units of the table, 0 ≤ v ≤ g, becomes the next entry above with the probability of
    its distance to the one below. The integers of blocks without range are without meaning.
    """
    y = torch.empty(blocks.total, dtype=torch.float32, device=x.device)
    for piece in blocks.pieces():
        target = y[piece.coordinates]
        torch.mul(
            padded(x, piece.coordinates).view(piece.rows, -1),
            ranges.normalizer[piece.blocks],
            out=target.view(piece.rows, -1),
        )
        randomness.flip_signs_(target, piece.coordinates.start)
    _rotate_(y, blocks)
    integers = torch.empty(blocks.total, dtype=torch.int32, device=x.device)
    factor = constant(table.granularity / 2, y).div(ranges.limit)
    for piece in blocks.pieces():
        v = y[piece.coordinates].view(piece.rows, -1).mul_(factor[piece.blocks])
        v.view(torch.int32).bitwise_and_(ranges.alive[piece.blocks])
        v = v.view(-1).add_(table.granularity / 2).clamp_(0, table.granularity)
        integers[piece.coordinates] = _rounded(v, table, randomness.dither(v, piece.coordinates.start))
    return integers


def dequantize(
    sums: Tensor, workers: int, blocks: Blocks, ranges: Ranges, table: Table, randomness: Randomness
) -> Tensor:
    """The mean that sums of the integers of `workers` workers, (total,) int32, stand for: (numel,) float32.

    Zeros for blocks of zeros, NaN for blocks that are not finite.
    """
    y = torch.empty(blocks.total, dtype=torch.float32, device=sums.device)
    peak = table.granularity * workers
    unit = ranges.limit.div(constant(2 * peak, y))
    for piece in blocks.pieces():
        centred = sums[piece.coordinates].mul(2).sub_(peak).to(torch.float32).view(piece.rows, -1)
        torch.mul(centred, unit[piece.blocks], out=y[piece.coordinates].view(piece.rows, -1))
    _rotate_(y, blocks)
    zero = constant(0, y)
    for piece in blocks.pieces():
        values = y[piece.coordinates]
        randomness.flip_signs_(values, piece.coordinates.start)
        rows = values.view(piece.rows, -1)
        torch.addcmul(zero, rows, ranges.restorer[piece.blocks], out=rows)  # 0 + a product: −0 becomes +0
    return y[: blocks.numel]


def _rotate_(y: Tensor, blocks: Blocks) -> None:
    for segment in blocks.segments:
        hadamard_(y[segment.coordinates].view(segment.count, segment.block))


def _rounded(v: Tensor, table: Table, dither: Tensor) -> Tensor:
    """The entry below `v` or the one above it, which is as likely as `v` is near to it: (m,) float32."""
    low = v.floor()
    if table.is_uniform:
        return low.add_(v.sub_(low).add_(dither).floor_())
    index = low.to(torch.int32)
    entries, distances = (row.index_select(0, index) for row in neighbours(table, v.device))
    up = v.sub_(entries).div_(distances).add_(dither).floor_()
    return entries.add_(up.mul_(distances))
