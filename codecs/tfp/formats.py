"""Floating-point formats cut to their first k bits: what they represent (AQGB §4.4).

| k | base | beside the sign | magnitudes | not finite |
|---|---|---|---|---|
| 10 to 32 | fp32 | 8 exponent, k − 9 mantissa | those of float32 with k − 9 mantissa bits | ±Inf, ±NaN |
| 9 | fp16 | 5 exponent, 3 mantissa | 0, 2⁻¹⁷, … 61440 | ±Inf, ±NaN |
| 8 | fp16 | 5 exponent, 2 mantissa | 0, 2⁻¹⁶, … 57344 | ±Inf, ±NaN |
| 7 | fp16 | 5 exponent, 1 mantissa | 0, 2⁻¹⁵, … 49152 | ±Inf, ±NaN |
| 6 | E4M3 | 4 exponent, 1 mantissa | 0, 2⁻⁷, 2⁻⁶·{1, 1.5}, … 2⁸·{1, 1.5} | NaN |
| 5 | E4M3 | 4 exponent | 0, 2⁻⁶, 2⁻⁵, … 2⁸ | NaN |
| 4 | E2M1 | 2 exponent, 1 mantissa | 0, 0.5, 1, 1.5, 2, 3, 4, 6 | NaN |
| 3 | E2M1 | 2 exponent | 0, 1, 2, 4 | NaN |
| 2 | E2M1 | the first of 2 exponent | 0, 2 | NaN |

Magnitudes are those of the base whose last bits are zero, as truncation leaves them. A NaN keeps the first
bit of its mantissa set. E4M3's NaN is then 384 at 6 bits, and the formats below have none: up to 6 bits the
code of −0 stands for NaN, as in the FNUZ formats of 8 bits, and zero has no sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

FP32_BIAS = 127
FP32_MANTISSA = 23


@dataclass(frozen=True)
class TruncatedFormat:
    """The first `bits` of a format with `exponent_bits`, not all of which need be among them, and exponent
    `bias`; `infinite` if its largest exponent is that of infinities and NaN."""

    bits: int
    exponent_bits: int
    bias: int
    infinite: bool

    @property
    def mantissa_bits(self) -> int:
        """Kept ones; −1 if the exponent's last bit is cut off, too."""
        return self.bits - 1 - self.exponent_bits

    @property
    def dropped_bits(self) -> int:
        """Bits that truncation drops of a magnitude with this exponent and float32's mantissa."""
        return FP32_MANTISSA - self.mantissa_bits

    @property
    def sign_bit(self) -> int:
        """The code of −0."""
        return 1 << (self.bits - 1)

    @property
    def infinity_code(self) -> int:
        """The code of +infinity if the format has one, otherwise the first code after those of all
        magnitudes."""
        exponents = (1 << self.exponent_bits) - 1
        return exponents << self.mantissa_bits if self.infinite else self.sign_bit

    @property
    def nan_code(self) -> int:
        return self.infinity_code | (1 << (self.mantissa_bits - 1)) if self.infinite else self.sign_bit

    @property
    def largest_code(self) -> int:
        """The code of the largest finite magnitude."""
        return self.infinity_code - 1

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def maximum(self) -> float:
        """The largest finite magnitude."""
        return self.magnitude(self.largest_code)

    def magnitude(self, code: int) -> float:
        """The exact magnitude of a finite code without its sign."""
        field, mantissa = divmod(code << self.dropped_bits, 1 << FP32_MANTISSA)
        significand = mantissa + ((1 << FP32_MANTISSA) if field else 0)
        return significand * 2.0 ** (max(field, 1) - self.bias - FP32_MANTISSA)

    @cached_property
    def values(self) -> tuple[float, ...]:
        """The value of every code, for formats of few bits; the second half negative."""
        finite = [self.magnitude(code) for code in range(self.largest_code + 1)]
        if not self.infinite:
            return (*finite, float("nan"), *(-value for value in finite[1:]))
        beyond = [float("nan")] * (self.sign_bit - self.infinity_code - 1)
        positive = [*finite, float("inf"), *beyond]
        return (*positive, *(-value for value in positive))


def truncated_format(bits: int) -> TruncatedFormat:
    """The format of 2 to 32 `bits`."""
    if bits >= 10:
        return TruncatedFormat(bits, exponent_bits=8, bias=FP32_BIAS, infinite=True)
    if bits >= 7:
        return TruncatedFormat(bits, exponent_bits=5, bias=15, infinite=True)
    if bits >= 5:
        return TruncatedFormat(bits, exponent_bits=4, bias=7, infinite=False)
    return TruncatedFormat(bits, exponent_bits=2, bias=1, infinite=False)
