"""The four operations of a hop on one chunk, in plain PyTorch: the definition other backends reproduce
(DynamiQ §4).

Rows are the chunk's partial sums, (super-groups, 256) float32, in the order of its message. An operation
works through the message tile by tile, so that its temporaries stay in cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.blocks import GROUP, GROUPS, SUPER_GROUP, normalizer
from gradwire.codecs.dynamiq.message import Tile, clear_unused, tiles
from gradwire.codecs.dynamiq.packing import look_up, pack
from gradwire.codecs.dynamiq.rounding import Dither, Keys
from gradwire.codecs.dynamiq.scales import (
    group_quotients,
    group_steps,
    inverse_maxima,
    scale_value,
    stochastic_group_scales,
    super_group_scale,
)
from gradwire.codecs.dynamiq.values import Values
from gradwire.codecs.floats import constant

ScaleRounding = Literal["stochastic", "ceil"]

# Of the super-group's normalised maximum (at least 2): a group below can only get the scale 0.
_SMALLEST_GROUP = 2.0**-26

_SIGN = -(1 << 31)


@dataclass(frozen=True)
class Coder:
    """What the operations of one worker need in one round: values per width, randomness, rule of scales."""

    values: Mapping[int, Values]
    dither: Dither
    scale_rounding: ScaleRounding


def compress(
    rows: Tensor, super_groups: Tensor, counts: Mapping[int, int], coder: Coder, message: Tensor
) -> None:
    """Write the whole message (uint8) of a chunk; `super_groups` (int64) are the rows' indices in the bucket,
    `counts` the super-groups of each width. A row with a non-finite value is sent so that it decodes to
    NaN."""
    keys = coder.dither.keys(super_groups)
    for tile in tiles(message, counts):
        _compress_tile(rows[tile.rows], keys[tile.rows], coder, tile)
    clear_unused(message, counts)


def decompress(message: Tensor, counts: Mapping[int, int], coder: Coder, rows: Tensor) -> None:
    """Replace `rows` by the message's values."""
    for tile in tiles(message, counts):
        torch.mul(*_factors(coder, tile), out=_grouped(rows[tile.rows]))


def decompress_accumulate(message: Tensor, counts: Mapping[int, int], coder: Coder, rows: Tensor) -> None:
    """Add the message's values to `rows`."""
    for tile in tiles(message, counts):
        _add_tile(rows[tile.rows], coder, tile)


def decompress_accumulate_recompress(
    message: Tensor, rows: Tensor, super_groups: Tensor, counts: Mapping[int, int], coder: Coder, out: Tensor
) -> None:
    """Add the message's values to `rows` and write the message of the new sums to `out`."""
    keys = coder.dither.keys(super_groups)
    for incoming, outgoing in zip(tiles(message, counts), tiles(out, counts), strict=True):
        sums = rows[incoming.rows]
        _add_tile(sums, coder, incoming)
        _compress_tile(sums, keys[incoming.rows], coder, outgoing)
    clear_unused(out, counts)


def _grouped(rows: Tensor) -> Tensor:
    return rows.view(-1, GROUPS, GROUP)


def _factors(coder: Coder, tile: Tile) -> tuple[Tensor, Tensor]:
    """Normalised values (g, 16, 16) and group scales (g, 16, 1): their product is the decoded tile."""
    steps = group_steps(tile.scales.to(torch.int32), tile.group_scales)
    return _grouped(look_up(tile.codes, coder.values[tile.width].decoded)), steps[:, :, None]


def _add_tile(rows: Tensor, coder: Coder, tile: Tile) -> None:
    values, steps = _factors(coder, tile)
    _grouped(rows).add_(values.mul_(steps))


def _compress_tile(rows: Tensor, keys: Keys, coder: Coder, tile: Tile) -> None:
    values = coder.values[tile.width]
    magnitude = rows.abs()
    group_maximum = torch.nn.functional.max_pool1d(magnitude[None], GROUP)[0]
    scale = super_group_scale(group_maximum.amax(dim=1))

    factor = normalizer(scale_value(scale))[:, None]
    group_maximum *= factor
    dead = (scale == 0) | ~scale_value(scale).isfinite()
    group_scale, reference = _group_scales(
        group_maximum, scale_value(scale)[:, None] * factor, keys.scale_noise, coder
    )
    group_scale.masked_fill_(dead[:, None], 0)

    inverse = inverse_maxima(values.span, reference).masked_fill_(group_maximum < _SMALLEST_GROUP, 0)
    y = _grouped(magnitude.mul_(factor)).mul_(inverse[:, :, None]).view(-1, SUPER_GROUP)
    y.masked_fill_(dead[:, None], 0)
    w = _scaled_dither(rows, keys, coder.dither, values)
    pack(values.codes(y, w, rows), tile.width, tile.codes)
    tile.group_scales.copy_(group_scale)
    tile.scales.copy_(scale)


def _group_scales(maximum: Tensor, scale: Tensor, noise: Tensor, coder: Coder) -> tuple[Tensor, Tensor]:
    """Each group's r_G (float32, garbage in dead rows) and the magnitude that its values are normalised by.

    `stochastic` is the paper's: the exact maximum. `ceil` rounds up and normalises by the decoded scale; what
    `stochastic` would never round up to 1 stays 0.
    """
    quotient = group_quotients(maximum, scale)
    if coder.scale_rounding == "stochastic":
        return stochastic_group_scales(quotient, noise), maximum
    group_scale = quotient.ceil().clamp_(max=255).masked_fill_(maximum < _SMALLEST_GROUP, 0)
    return group_scale, group_scale * scale.div(constant(255, scale))


def _scaled_dither(rows: Tensor, keys: Keys, dither: Dither, values: Values) -> Tensor:
    """w = centre ± d·(step/N), with the sign of the row's values: (g, 256) float32."""
    unit = torch.tensor(values.step).div(torch.tensor(float(dither.range))).item()
    centred = dither.centred(keys).mul_(unit)
    centred.view(torch.int32).bitwise_xor_(rows.view(torch.int32) & _SIGN)
    return centred.add_(values.centre)
