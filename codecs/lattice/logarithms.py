"""Logarithms to base 2 in whole units of 1/64: every implementation and machine finds the same ones.

The statistics that all ranks share are kept in these units, and steps D are powers 2^(i/64), so that
choosing a step is integer arithmetic.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import power_of_two

UNITS = 64
"""Units of an octave."""

_MANTISSA_BITS = 10
_OF_MANTISSA = tuple(
    round(UNITS * math.log2(1 + index / (1 << _MANTISSA_BITS))) for index in range(1 << _MANTISSA_BITS)
)
_POWERS = tuple(2.0 ** (index / UNITS) for index in range(UNITS))


def log2_units(values: Tensor) -> Tensor:
    """log2 of positive normal float32 numbers, in units: int64. Of zeros and smaller numbers about −127
    octaves."""
    pattern = values.to(torch.float32).view(torch.int32).to(torch.int64)
    table = torch.tensor(_OF_MANTISSA, dtype=torch.int64, device=values.device)
    of_mantissa = table[pattern >> (23 - _MANTISSA_BITS) & ((1 << _MANTISSA_BITS) - 1)]
    return ((pattern >> 23) - 127) * UNITS + of_mantissa


def power(units: Tensor) -> Tensor:
    """2^(units/64) as float32, the nearest one; `units` int64 in the range of normal numbers."""
    table = torch.tensor(_POWERS, dtype=torch.float64, device=units.device).to(torch.float32)
    return table[units % UNITS] * power_of_two((units // UNITS + 127).to(torch.int32))


def units_of(value: float) -> int:
    """log2 of a positive number in units, the nearest one."""
    return round(UNITS * math.log2(value))
