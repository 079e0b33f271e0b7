"""Hierarchical scales: one bf16 per super-group, one randomly rounded uint8 per group (DynamiQ §3.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.blocks import GROUPS, SMALLEST_EXPONENT
from gradwire.codecs.floats import constant

_NAN = 0x7FC0
_LARGEST = 0x7F7F
_SMALLEST_BITS = SMALLEST_EXPONENT << 23


def super_group_scale(maximum: Tensor) -> Tensor:
    """bf16 patterns (int32) of the smallest bf16 ≥ `maximum` (float32, non-negative or NaN).

    NaN when the maximum is not finite, so that the whole super-group decodes to NaN; 0 below 2⁻¹⁰⁰; the
    largest finite bf16 where rounding up would overflow.
    """
    bits = maximum.view(torch.int32)
    pattern = (bits >> 16) + ((bits & 0xFFFF) != 0)
    pattern = pattern.clamp_(max=_LARGEST).masked_fill_(bits < _SMALLEST_BITS, 0)
    return pattern.masked_fill_(~maximum.isfinite(), _NAN)


def scale_value(pattern: Tensor) -> Tensor:
    """The float32 value of bf16 patterns (int32)."""
    return (pattern << 16).view(torch.float32)


def group_quotients(maximum: Tensor, scale: Tensor) -> Tensor:
    """max|G|·(255/scale): (rows, 16) float32 for maxima (rows, 16) and scales (rows, 1)."""
    return maximum * constant(255, scale).div(scale)


def inverse_maxima(span: float, maximum: Tensor) -> Tensor:
    """K/max|G|, `span` being K: float32 of any shape."""
    return constant(span, maximum).div(maximum)


def stochastic_group_scales(quotient: Tensor, noise: Tensor) -> Tensor:
    """Unbiased rounding of 255·max|G|/scale, float32 in [0, 256), to an integer in [0, 255], float32.

    `noise` holds a random integer below 2¹⁶ per group (float32): up iff (noise + ½)/2¹⁶ < fraction.
    """
    floor = quotient.floor()
    uniform = (noise + 0.5) * (1 / 65536)
    return (floor + (uniform < quotient - floor)).clamp_(max=255)


def group_steps(patterns: Tensor, group_scales: Tensor) -> Tensor:
    """Decoded scale of each group, r_G·(scale/255): (rows, 16) float32, NaN where the super-group's is.

    `patterns` is (rows,) int32, `group_scales` (rows, 16) of any dtype. The division comes first: r_G·scale
    could overflow.
    """
    unit = scale_value(patterns)
    return unit.div_(constant(255, unit))[:, None] * group_scales.to(torch.float32).view(-1, GROUPS)
