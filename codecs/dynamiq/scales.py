"""Scales as numbers: bf16 of super-groups or groups, uint8 of groups (DynamiQ §3.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.values import Parameter, as_tensor
from gradwire.codecs.floats import SMALLEST_EXPONENT, constant

_NAN = 0x7FC0
_LARGEST = 0x7F7F
# What has a maximum below is sent as zeros: there is no scaling further down.
_SMALLEST_BITS = SMALLEST_EXPONENT << 23


def super_group_scale(maximum: Tensor, spare: int = 0) -> Tensor:
    """bf16 patterns (int32) of the smallest bf16 ≥ `maximum` (float32, non-negative or NaN) whose last
    `spare` mantissa bits are 0.

    NaN when the maximum is not finite, so that the whole super-group decodes to NaN; 0 below 2⁻¹⁰⁰; the
    largest finite bf16 where rounding up would overflow.
    """
    return rounded_scale(maximum, (1 << (16 + spare)) - 1, spare)


def rounded_scale(maximum: Tensor, addend: Tensor | int, spare: int = 0) -> Tensor:
    """The same with `addend` added to the float32 pattern before its last 16 + `spare` bits are dropped: ones
    round up, as many random bits (int32, of the shape of `maximum`) are right on average."""
    bits = maximum.view(torch.int32)
    pattern = ((bits + addend) >> (16 + spare)) << spare
    largest = _LARGEST >> spare << spare
    pattern = pattern.clamp_(max=largest).masked_fill_(bits < _SMALLEST_BITS, 0)
    return pattern.masked_fill_(~maximum.isfinite(), _NAN)


def scale_value(pattern: Tensor) -> Tensor:
    """The float32 value of bf16 patterns (int32)."""
    return (pattern << 16).view(torch.float32)


def group_quotients(maximum: Tensor, scale: Tensor) -> Tensor:
    """max|G|·(255/scale): (rows, groups) float32 for maxima (rows, groups) and scales (rows, 1)."""
    return maximum * constant(255, scale).div(scale)


def inverse_maxima(span: Parameter, maximum: Tensor) -> Tensor:
    """K/max|G|, `span` being K: (rows, groups) float32."""
    return as_tensor(span, maximum).div(maximum)


def stochastic_group_scales(quotient: Tensor, noise: Tensor) -> Tensor:
    """Unbiased rounding of 255·max|G|/scale, float32 in [0, 256), to an integer in [0, 255], float32.

    `noise` holds a random integer below 2¹⁶ per group (float32): up iff (noise + ½)/2¹⁶ < fraction.
    """
    floor = quotient.floor()
    uniform = (noise + 0.5) * (1 / 65536)
    return (floor + (uniform < quotient - floor)).clamp_(max=255)


def group_steps(patterns: Tensor, group_scales: Tensor) -> Tensor:
    """Decoded scale of each group, r_G·(scale/255): (rows, groups) float32, NaN where the super-group's is.

    `patterns` is (rows,) int32, `group_scales` (rows, groups) of any dtype. The division comes first:
    r_G·scale could overflow.
    """
    unit = scale_value(patterns)
    return unit.div_(constant(255, unit))[:, None] * group_scales.to(torch.float32)
