"""From a tile's maxima to its scales: what is sent, and what coordinates are normalised by (DynamiQ §3.3).

The decoded value of a coordinate is unbiased if it is normalised by what its group's scale is on average.
`stochastic` sends a scale that is rounded at random and normalises by the exact maximum, as in the paper;
`ceil` sends one that is rounded up and normalises by what it decodes to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.format import Format
from gradwire.codecs.dynamiq.message import Tile
from gradwire.codecs.dynamiq.scales import (
    group_quotients,
    rounded_scale,
    scale_value,
    stochastic_group_scales,
    super_group_scale,
)
from gradwire.codecs.floats import constant, exponents, normalizers

ScaleRounding = Literal["stochastic", "ceil"]

# Of the super-group's normalised maximum (at least 2): a group below can only get the scale 0.
_SMALLEST_GROUP = 2.0**-26


@dataclass(frozen=True)
class Scaling:
    """How the g super-groups of a tile are normalised.

    Coordinates are multiplied by `factor`, a power of two, (g, 1) or (g, groups) float32; a group's values
    are fractions of its `reference`, (g, groups) float32. `silent` groups, (g, groups) bool, are sent as
    zeros, or have a scale that makes them NaN.
    """

    factor: Tensor
    reference: Tensor
    silent: Tensor


def write_scales(
    maximum: Tensor, noise: Tensor, rounding: ScaleRounding, message_format: Format, tile: Tile
) -> Scaling:
    """Write the scales of groups with these maxima, (g, groups) float32; `noise` is a random integer below
    2¹⁶ for each (float32)."""
    if message_format.scales == "bf16":
        return _bf16(maximum, noise, rounding, tile)
    pattern = super_group_scale(maximum.amax(dim=1), spare=1 if message_format.codebooks > 1 else 0)
    return _hierarchical(maximum, pattern, noise, rounding, tile)


def _hierarchical(
    maximum: Tensor, pattern: Tensor, noise: Tensor, rounding: ScaleRounding, tile: Tile
) -> Scaling:
    value = scale_value(pattern)[:, None]
    factor = normalizers(exponents(value))
    maximum, scale = maximum * factor, value * factor
    silent = (maximum < _SMALLEST_GROUP) | (pattern == 0)[:, None] | ~value.isfinite()

    quotient, reference = group_quotients(maximum, scale), maximum
    if rounding == "stochastic":
        group_scale = stochastic_group_scales(quotient, noise)
    else:
        group_scale = quotient.ceil().clamp_(max=255)
        reference = group_scale * scale.div(constant(255, scale))
    tile.group_scales.copy_(group_scale.masked_fill_(silent, 0))
    tile.scales.copy_(pattern)
    return Scaling(factor, reference, silent)


def _bf16(maximum: Tensor, noise: Tensor, rounding: ScaleRounding, tile: Tile) -> Scaling:
    stochastic = rounding == "stochastic"
    pattern = rounded_scale(maximum, noise.to(torch.int32) if stochastic else 0xFFFF)
    value = scale_value(pattern)
    factor = normalizers(exponents(value))
    tile.group_scales.copy_(pattern)
    reference = (maximum if stochastic else value) * factor
    return Scaling(factor, reference, (pattern == 0) | ~value.isfinite())
