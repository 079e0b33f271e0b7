"""A second MXFP: one coordinate at a time, casts by ml_dtypes, scales as their definitions read.

It knows no normalization: its gradients must be far from the ends of float32's range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

F32 = np.float32
Vector = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Element:
    """The format's type, maximum, exponent of the maximum, mantissa bits, and the magnitude that rounding
    takes beyond the maximum (`inclusive`: a tie there goes up)."""

    dtype: Any
    maximum: float
    emax: int
    mantissa_bits: int
    beyond: float
    inclusive: bool


ELEMENTS = {
    "mxfp8": Element(ml_dtypes.float8_e4m3fn, 448.0, 8, 3, 464.0, False),
    "mxfp6": Element(ml_dtypes.float6_e3m2fn, 28.0, 4, 2, 30.0, True),
    "mxfp4": Element(ml_dtypes.float4_e2m1fn, 6.0, 2, 1, 7.0, True),
}


def cast_codes(x: Vector, element: Element) -> Vector:
    """Finite float32 to codes (uint8), clamped to the format's range first."""
    clamped = np.clip(x, F32(-element.maximum), F32(element.maximum))
    codes: Vector = clamped.astype(element.dtype).view(np.uint8)
    return codes


def saturates(x: Vector, element: Element) -> Vector:
    """True where rounding with an unbounded exponent leaves the format's range."""
    magnitude = np.abs(x)
    beyond: Vector = magnitude >= element.beyond if element.inclusive else magnitude > element.beyond
    return beyond


def bf16_up(value: float) -> float:
    """The smallest bf16 number ≥ `value`, which is positive and normal."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, 8)), exponent - 8)


def element_scale(maximum: float, mu: float, rule: str, element: Element) -> Any:
    """X of a block with this (bf16) maximum, or for `bf16_mu` the pair s, MAX whose quotient it is."""
    s = F32(mu) * F32(maximum)
    if rule == "bf16_mu":
        return s, F32(element.maximum)
    mantissa, exponent = math.frexp(float(s))  # s = mantissa·2^exponent, ½ ≤ mantissa < 1
    if rule == "e8m0_even":
        steps = math.floor(math.ldexp(mantissa, element.mantissa_bits + 1) + 0.5)
        mantissa, shift = math.frexp(math.ldexp(steps, -element.mantissa_bits - 1))
        exponent += shift
    if rule == "e8m0_ceil":
        power = math.ceil(math.log2(float(s) / element.maximum) - 1e-12)
        assert float(s) <= element.maximum * 2.0**power < 2 * float(s) * (1 + 1e-9)
        return F32(2.0**power), F32(1)
    return F32(2.0 ** (exponent - 1 - element.emax)), F32(1)


class Ring:
    """One bucket's round along a ring: `mean` (numel,) float32 and the number of `saturated` casts."""

    def __init__(self, xs: Sequence[Vector], mu: float, rule: str, name: str) -> None:
        self.element, self.workers = ELEMENTS[name], len(xs)
        self.mean, self.saturated = np.zeros_like(xs[0]), 0
        numel = len(xs[0])
        blocks = -(-numel // 32)
        per_chunk = -(-blocks // (2 * self.workers)) * 2
        for block in range(blocks):
            chunk = block // per_chunk
            own = [x[32 * block : 32 * block + 32] for x in xs]
            travel = [own[(chunk + hop) % self.workers] for hop in range(self.workers)]
            self.mean[32 * block : 32 * block + 32] = self._block(travel, mu, rule)

    def _cast(self, x: Vector) -> Vector:
        self.saturated += int(saturates(x, self.element).sum())
        values: Vector = cast_codes(x, self.element).view(self.element.dtype).astype(F32)
        return values

    def _block(self, travel: Sequence[Vector], mu: float, rule: str) -> Vector:
        """The mean of one block, whose contributions come in the order of `travel`."""
        largest = max(float(np.abs(x).max()) for x in travel)
        if largest == 0:
            return np.zeros_like(travel[0])
        numerator, denominator = element_scale(bf16_up(largest), mu, rule, self.element)
        cast = [self._cast(x * (denominator / numerator)) for x in travel]
        total = cast[0]
        for x in cast[1:]:
            total = self._cast(total + x)
        mean: Vector = total * ((numerator / denominator) / F32(self.workers))
        return mean
