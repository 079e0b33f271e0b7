"""The element formats E4M3, E3M2 and E2M1, and the cast to them (OCP Microscaling Formats v1.0, §5.3).

A code is a sign, an exponent field and a mantissa, in this order from the top bit. Exponent field 0 holds
zero and the subnormals. None of the formats has an infinity; only E4M3 has a NaN, which no cast gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_EXPONENT = 0x7F80_0000
_MAGNITUDE = 0x7FFF_FFFF
_MANTISSA_BITS = 23
_BIAS = 127


@dataclass(frozen=True)
class ElementFormat:
    """A small floating-point format: `width` bits, `mantissa_bits` of them mantissa, exponent bias `bias`,
    and the code of its largest finite value."""

    name: str
    width: int
    mantissa_bits: int
    bias: int
    largest_code: int

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The value of every code, the negative ones (sign bit set) in the second half; each is exact."""
        positive = [self._value(code) for code in range(1 << (self.width - 1))]
        return (*positive, *(-value for value in positive))

    def _value(self, code: int) -> float:
        if code > self.largest_code:
            return float("nan")
        field, mantissa = divmod(code, 1 << self.mantissa_bits)
        significand = mantissa + ((1 << self.mantissa_bits) if field else 0)
        return significand * 2.0 ** (max(field, 1) - self.bias - self.mantissa_bits)

    @property
    def maximum(self) -> float:
        """The largest finite value."""
        return self.values[self.largest_code]

    @property
    def largest_exponent(self) -> int:
        """Floor of log2 of the maximum: `emax` of the OCP specification."""
        return (self.largest_code >> self.mantissa_bits) - self.bias

    @property
    def smallest_binade(self) -> int:
        """Bit pattern in float32 of the smallest normal value: below it steps do not shrink."""
        return (1 - self.bias + _BIAS) << _MANTISSA_BITS

    @property
    def overflow_pattern(self) -> int:
        """Bit pattern in float32 of a power of two above all values."""
        return (self.largest_exponent + 1 + _BIAS) << _MANTISSA_BITS


FORMATS = {
    "mxfp8": ElementFormat("E4M3", 8, mantissa_bits=3, bias=7, largest_code=0x7E),
    "mxfp6": ElementFormat("E3M2", 6, mantissa_bits=2, bias=3, largest_code=0x1F),
    "mxfp4": ElementFormat("E2M1", 4, mantissa_bits=1, bias=1, largest_code=0x07),
}
"""By the name of the codec; their maxima are 448, 28 and 6."""

BY_WIDTH = {element.width: element for element in FORMATS.values()}


def cast(x: Tensor, element: ElementFormat) -> tuple[Tensor, Tensor]:
    """Round to nearest, ties to even, saturating: float32 of any shape to codes, uint8, and how many of them
    saturated, an int32 scalar (fewer than 2³¹ elements).

    A cast saturates if the value rounded with an unbounded exponent would exceed the maximum (IEEE 754 §7.4):
    460 becomes 448 in E4M3 by rounding, 470 by saturation. Infinities and NaN saturate too, keeping their
    sign. Zeros and what underflows keep their sign.

    With 2^e ≤ |x| < 2^(e+1) and c = 2^(e+23−M), e at least the smallest normal exponent, |x| + c in float32
    is a multiple of the step 2^(e−M), rounded once and to even; its bit pattern minus that of c counts steps.
    """
    bits = x.view(torch.int32)
    magnitude = bits.bitwise_and(_MAGNITUDE).clamp_(max=element.overflow_pattern)
    binade = magnitude.bitwise_and(_EXPONENT).clamp_(min=element.smallest_binade)
    constant = binade + ((_MANTISSA_BITS - element.mantissa_bits) << _MANTISSA_BITS)
    rounded = magnitude.view(torch.float32).add_(constant.view(torch.float32))
    code = rounded.view(torch.int32).sub_(constant)
    # A binade further up starts 2^M codes later; its steps are counted from 2^M.
    code += binade.sub_(element.smallest_binade).bitwise_right_shift_(_MANTISSA_BITS - element.mantissa_bits)
    # The difference is negative where the code is too large; an arithmetic shift turns it into −1 or 0.
    saturated = torch.rsub(code, element.largest_code).bitwise_right_shift_(31)
    sign = bits.bitwise_right_shift(31).bitwise_and_(1 << (element.width - 1))
    code.clamp_(max=element.largest_code).bitwise_or_(sign)
    return code.to(torch.uint8), saturated.sum(dtype=torch.int32).neg()
