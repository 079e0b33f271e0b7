"""Scales: from a section's maxima to what is sent, and what coordinates are normalised by (DynamiQ §3.3).

A decoded coordinate is unbiased if it was normalised by the expected value of its group's decoded scale.
`stochastic` sends a scale that is rounded at random and normalises by the exact maximum, as in the paper;
`ceil` sends one that is rounded up and normalises by what it decodes to.

A scale of a super-group, or of a group without hierarchy, is a bf16, here held as its pattern (int32); that
of a group within a super-group is a uint8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import SMALLEST_EXPONENT, constant, exponents, normalizers
from gradwire.codecs.dynamiq.values import Parameter, as_tensor
from gradwire.codecs.options.dynamiq import Format, ScaleRounding

_NAN, _LARGEST = 0x7FC0, 0x7F7F  # bf16 patterns

_SMALLEST = 2.0 ** (SMALLEST_EXPONENT - 127)
"""What has a maximum below is sent as zeros: there is no scaling further down."""

_SMALLEST_GROUP = 2.0**-26
"""A group whose maximum, normalised like the super-group's (at least 2), is below can only get the scale
0."""


@dataclass(frozen=True)
class Scaling:
    """The scales of the g super-groups of a section, and how their coordinates are normalised.

    Coordinates are multiplied by `factor`, a power of two, (g, 1) or (g, groups) float32; a group's values
    are fractions of its `reference`, (g, groups) float32. `silent` groups, (g, groups) bool, are sent as
    zeros, or have a scale that makes them NaN. What is sent are `group_scales`, (g, groups), integers or bf16
    patterns, and `patterns`, (g,) int32, the super-groups' scales, or (0,) if groups have bf16 ones.
    """

    factor: Tensor
    reference: Tensor
    silent: Tensor
    group_scales: Tensor
    patterns: Tensor


def scale_groups(maximum: Tensor, noise: Tensor, rounding: ScaleRounding, message_format: Format) -> Scaling:
    """The scales of groups with these maxima, (g, groups) float32; `noise` is a random integer below 2¹⁶ for
    each (int32)."""
    if message_format.scales == "bf16":
        return _bf16(maximum, noise, rounding)
    return _hierarchical(maximum, noise, rounding, spare=1 if message_format.codebooks > 1 else 0)


def _hierarchical(maximum: Tensor, noise: Tensor, rounding: ScaleRounding, spare: int) -> Scaling:
    pattern = super_group_scale(maximum.amax(dim=1), spare)
    value = scale_value(pattern)[:, None]
    factor = normalizers(exponents(value))
    maximum, scale = maximum * factor, value * factor
    silent = (maximum < _SMALLEST_GROUP) | (pattern == 0)[:, None] | ~value.isfinite()

    quotient = group_quotients(maximum, scale)
    if rounding == "stochastic":
        group_scale, reference = stochastic_group_scales(quotient, noise), maximum
    else:
        group_scale = quotient.ceil().clamp(max=255)
        reference = group_scale * (scale / constant(255, scale))
    return Scaling(factor, reference, silent, group_scale.masked_fill(silent, 0), pattern)


def _bf16(maximum: Tensor, noise: Tensor, rounding: ScaleRounding) -> Scaling:
    stochastic = rounding == "stochastic"
    pattern = rounded_scale(maximum, noise if stochastic else 0xFFFF)
    value = scale_value(pattern)
    factor = normalizers(exponents(value))
    reference = (maximum if stochastic else value) * factor
    silent = (pattern == 0) | ~value.isfinite()
    return Scaling(factor, reference, silent, pattern, pattern.new_empty(0))


def super_group_scale(maximum: Tensor, spare: int = 0) -> Tensor:
    """bf16 patterns (int32) of the smallest bf16 ≥ `maximum` (float32, non-negative or NaN) whose last
    `spare` mantissa bits are 0.

    NaN when the maximum is not finite, so that the whole super-group decodes to NaN; 0 below 2⁻¹⁰⁰; the
    largest finite bf16 where rounding up would overflow.
    """
    return rounded_scale(maximum, (1 << (16 + spare)) - 1, spare)


def rounded_scale(maximum: Tensor, addend: Tensor | int, spare: int = 0) -> Tensor:
    """bf16 patterns as `super_group_scale` has them, with `addend` added to the float32 pattern before its
    last 16 + `spare` bits are dropped: ones round up, as many random bits (int32, of the shape of `maximum`)
    are right on average."""
    pattern = ((maximum.view(torch.int32) + addend) >> (16 + spare)) << spare
    pattern = pattern.clamp(max=_LARGEST >> spare << spare).masked_fill(maximum < _SMALLEST, 0)
    return pattern.masked_fill(~maximum.isfinite(), _NAN)


def scale_value(pattern: Tensor) -> Tensor:
    """The float32 value of bf16 patterns (int32)."""
    return (pattern << 16).view(torch.float32)


def group_quotients(maximum: Tensor, scale: Tensor) -> Tensor:
    """max|G|·(255/scale): (rows, groups) float32 for maxima (rows, groups) and scales (rows, 1)."""
    return maximum * (constant(255, scale) / scale)


def inverse_maxima(span: Parameter, maximum: Tensor) -> Tensor:
    """K/max|G|, `span` being K: (rows, groups) float32."""
    return as_tensor(span, maximum) / maximum


def stochastic_group_scales(quotient: Tensor, noise: Tensor) -> Tensor:
    """Unbiased rounding of 255·max|G|/scale, float32 in [0, 256), to an integer in [0, 255], float32.

    `noise` holds a random integer below 2¹⁶ per group: up iff (noise + ½)/2¹⁶ < fraction.
    """
    floor = quotient.floor()
    uniform = (noise + 0.5) * (1 / 65536)
    return (floor + (uniform < quotient - floor)).clamp(max=255)


def group_steps(patterns: Tensor, group_scales: Tensor) -> Tensor:
    """Decoded scale of each group, r_G·(scale/255): (rows, groups) float32, NaN where the super-group's is.

    `patterns` is (rows,) int32, `group_scales` (rows, groups) of any dtype. The division comes first:
    r_G·scale could overflow.
    """
    unit = scale_value(patterns)
    return (unit / constant(255, unit))[:, None] * group_scales.to(torch.float32)
