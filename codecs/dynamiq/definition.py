"""The operations of a hop on one chunk, in plain PyTorch: the definition that compiled kernels reproduce
(DynamiQ §4).

Rows are the chunk's partial sums, (super-groups, 256) float32, in the order of its message. An operation
works through the message tile by tile, so that its temporaries stay in cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.blocks import SUPER_GROUP
from gradwire.codecs.dynamiq.codebooks import Codebooks, mark, mirrored, unmarked
from gradwire.codecs.dynamiq.format import Format
from gradwire.codecs.dynamiq.message import Tile, clear_unused, tiles
from gradwire.codecs.dynamiq.packing import look_up, pack
from gradwire.codecs.dynamiq.rounding import Dither, Keys
from gradwire.codecs.dynamiq.scales import group_steps, inverse_maxima, scale_value
from gradwire.codecs.dynamiq.scaling import ScaleRounding, write_scales
from gradwire.codecs.dynamiq.values import Values, as_tensor
from gradwire.codecs.floats import constant

_SIGN = -(1 << 31)


@dataclass(frozen=True)
class Coder:
    """What the operations of one worker need in one round: values per width, randomness, rule of scales, and
    what a message looks like."""

    values: Mapping[int, Values | Codebooks]
    dither: Dither
    scale_rounding: ScaleRounding
    format: Format


def compress(
    rows: Tensor, super_groups: Tensor, counts: Mapping[int, int], coder: Coder, message: Tensor
) -> None:
    """Write the whole message (uint8) of a chunk; `super_groups` (int64) are the rows' indices in the bucket,
    `counts` the super-groups of each width. What shares a bf16 scale with a non-finite value decodes to NaN.
    """
    keys = coder.dither.keys(super_groups)
    for tile in tiles(message, counts, coder.format):
        _compress_tile(rows[tile.rows], keys[tile.rows], coder, tile)
    clear_unused(message, counts, coder.format)


def decompress(message: Tensor, counts: Mapping[int, int], coder: Coder, rows: Tensor) -> None:
    """Replace `rows` by the message's values."""
    for tile in tiles(message, counts, coder.format):
        torch.mul(*_factors(coder, tile), out=_grouped(rows[tile.rows], coder.format))


def decompress_accumulate(message: Tensor, counts: Mapping[int, int], coder: Coder, rows: Tensor) -> None:
    """Add the message's values to `rows`."""
    for tile in tiles(message, counts, coder.format):
        _add_tile(rows[tile.rows], coder, tile)


def _grouped(rows: Tensor, message_format: Format) -> Tensor:
    return rows.view(-1, message_format.groups, message_format.group)


def _factors(coder: Coder, tile: Tile) -> tuple[Tensor, Tensor]:
    """Normalised values (g, groups, group) and group scales (g, groups, 1): their product is the decoded
    tile."""
    values = _grouped(_look_up(coder.values[tile.width], tile), coder.format)
    if coder.format.scales == "bf16":
        return values, scale_value(tile.group_scales.to(torch.int32))[:, :, None]
    scales = tile.scales.to(torch.int32)
    if coder.format.codebooks > 1:
        scales = unmarked(scales)
    return values, group_steps(scales, tile.group_scales)[:, :, None]


def _look_up(values: Values | Codebooks, tile: Tile) -> Tensor:
    """Normalised values, (g, 256) float32."""
    first = values.tables(tile.scales) if isinstance(values, Codebooks) else None
    return look_up(tile.codes, values.decoded, first)


def _add_tile(rows: Tensor, coder: Coder, tile: Tile) -> None:
    values, steps = _factors(coder, tile)
    _grouped(rows, coder.format).add_(values.mul_(steps))


def _compress_tile(rows: Tensor, keys: Keys, coder: Coder, tile: Tile) -> None:
    values, message_format = coder.values[tile.width], coder.format
    magnitude = rows.abs()
    maximum = torch.nn.functional.max_pool1d(magnitude[None], message_format.group)[0]
    scaling = write_scales(maximum, keys.scale_noise, coder.scale_rounding, message_format, tile)

    y = _grouped(magnitude, message_format).mul_(scaling.factor[:, :, None])
    signed = rows
    if isinstance(values, Codebooks):
        choice = values.choose(y, scaling, rows)
        mark(tile.scales, choice)
        values, signed = values.of_rows(choice), mirrored(rows, choice)
    y.mul_(inverse_maxima(values.span, scaling.reference)[:, :, None])
    y.masked_fill_(scaling.silent[:, :, None], 0)
    w = _scaled_dither(rows, keys, coder.dither, values)
    pack(values.codes(y.view(-1, SUPER_GROUP), w, signed), tile.width, tile.codes)


def _scaled_dither(rows: Tensor, keys: Keys, dither: Dither, values: Values) -> Tensor:
    """w = centre ± d·(step/N), with the sign of the row's values: (g, 256) float32."""
    unit = as_tensor(values.step, rows).div(constant(dither.range, rows))
    centred = dither.centred(keys).mul_(unit)
    centred.view(torch.int32).bitwise_xor_(rows.view(torch.int32) & _SIGN)
    return centred.add_(values.centre)
