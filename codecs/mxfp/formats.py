"""The element formats E4M3, E3M2 and E2M1, the cast to them and back (OCP Microscaling Formats v1.0, §5.3).

A code is a sign, an exponent field and a mantissa, in this order from the top bit. Exponent field 0 holds
zero and the subnormals. None of the formats has an infinity; only E4M3 has a NaN, which no cast gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.bitpack import unpacked
from gradwire.codecs.arithmetic.floats import exponents, power_of_two

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


FORMATS = {
    "mxfp8": ElementFormat("E4M3", 8, mantissa_bits=3, bias=7, largest_code=0x7E),
    "mxfp6": ElementFormat("E3M2", 6, mantissa_bits=2, bias=3, largest_code=0x1F),
    "mxfp4": ElementFormat("E2M1", 4, mantissa_bits=1, bias=1, largest_code=0x07),
}
"""By the name of the codec; their maxima are 448, 28 and 6."""

BY_WIDTH = {element.width: element for element in FORMATS.values()}


def cast(x: Tensor, element: ElementFormat) -> tuple[Tensor, Tensor]:
    """Round to nearest, ties to even, saturating: float32 of any shape to codes, int32, and which of them
    saturated, bool.

    A cast saturates if the value rounded with an unbounded exponent would exceed the maximum (IEEE 754 §7.4):
    460 becomes 448 in E4M3 by rounding, 470 by saturation. Infinities and NaN saturate too, keeping their
    sign. Zeros and what underflows keep their sign.

    With 2^e ≤ |x| < 2^(e+1), e at least the smallest normal exponent, |x| is rounded to a number of steps of
    2^(e−M), exact but for that. A binade further up starts 2^M codes later; its steps are counted from 2^M.
    """
    beyond = 2.0 ** (element.largest_exponent + 1)
    magnitude = x.abs().nan_to_num(nan=beyond).clamp(max=beyond)
    smallest = 1 - element.bias + _BIAS
    field = exponents(magnitude, smallest)
    steps = (magnitude * power_of_two(2 * _BIAS + element.mantissa_bits - field)).round().to(torch.int32)
    code = steps + ((field - smallest) << element.mantissa_bits)
    sign = x.signbit().to(torch.int32) << (element.width - 1)
    return code.clamp(max=element.largest_code) | sign, code > element.largest_code


def decode(stream: Tensor, element: ElementFormat) -> Tensor:
    """The values of packed codes, (m·width/8,) uint8: (m,) float32."""
    return values_of(unpacked(stream, element.width), element)


def values_of(codes: Tensor, element: ElementFormat) -> Tensor:
    """The values of int32 codes of any shape: float32 of that shape."""
    return _table(element, codes.device)[codes]


@lru_cache(maxsize=16)
def _table(element: ElementFormat, device: torch.device) -> Tensor:
    return torch.tensor(element.values, dtype=torch.float32, device=device)
