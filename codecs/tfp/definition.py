"""Truncation of floating-point numbers, TFP: the formats, and the conversion between float32 and codes of k
bits (AQGB §4.4, Eq. 5). In plain PyTorch this is the definition that compiled kernels reproduce.

| k | base | beside the sign | magnitudes | not finite | |---|---|---|---|---| | 10 to 32 | fp32 | 8 exponent,
k − 9 mantissa | those of float32 with k − 9 mantissa bits | ±Inf, ±NaN | | 9 | fp16 | 5 exponent, 3 mantissa
| 0, 2⁻¹⁷, … 61440 | ±Inf, ±NaN | | 8 | fp16 | 5 exponent, 2 mantissa | 0, 2⁻¹⁶, … 57344 | ±Inf, ±NaN | | 7 |
fp16 | 5 exponent, 1 mantissa | 0, 2⁻¹⁵, … 49152 | ±Inf, ±NaN | | 6 | E4M3 | 4 exponent, 1 mantissa | 0, 2⁻⁷,
2⁻⁶·{1, 1.5}, … 2⁸·{1, 1.5} | NaN | | 5 | E4M3 | 4 exponent | 0, 2⁻⁶, 2⁻⁵, … 2⁸ | NaN | | 4 | E2M1 | 2
exponent, 1 mantissa | 0, 0.5, 1, 1.5, 2, 3, 4, 6 | NaN | | 3 | E2M1 | 2 exponent | 0, 1, 2, 4 | NaN | | 2 |
E2M1 | the first of 2 exponent | 0, 2 | NaN |

Magnitudes are those of the base whose last bits are zero, as truncation leaves them. The first mantissa bit
of a NaN stays set. E4M3's NaN is then 384 at 6 bits, and the formats below have none: up to 6 bits the code
of −0 stands for NaN, as in the FNUZ formats of 8 bits, and zero has no sign.

A magnitude becomes the exponent and mantissa of its base format as one integer, with 23 bits of mantissa as
in float32. Its first bits are T_low, and T_up is the next larger code. Between the two the integer grows
linearly with the magnitude: the bits that are dropped are the numerator of (x − T_low)/(T_up − T_low). A
random integer of as many bits, added before they are dropped, gives T_up with exactly this probability.

The first bits of fp4, fp16 and fp32 are not prefixes of each other, but those of a fixed-point number are. So
payloads to be refined use the embedded base: the coordinate is divided by its block's scale, which makes its
magnitude less than 1, and k bits are its sign and the first k − 1 planes of its magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant

FP32_BIAS = 127
FP32_MANTISSA = 23


@dataclass(frozen=True)
class TruncatedFormat:
    """The first `bits` of a format with `exponent_bits` exponent bits, some of which may be cut off, and
    exponent `bias`; `infinite` if its largest exponent is reserved for infinities and NaN."""

    bits: int
    exponent_bits: int
    bias: int
    infinite: bool

    @property
    def mantissa_bits(self) -> int:
        """Number of mantissa bits that are kept; −1 if the exponent's last bit is cut off, too."""
        return self.bits - 1 - self.exponent_bits

    @property
    def dropped_bits(self) -> int:
        """Number of bits that truncation removes from a magnitude with this exponent and float32's
        mantissa."""
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


BLOCK = 32
"""Coordinates that share a scale."""

WIDEST_SCALED = 9
"""Bits of the widest format with scales: those of single precision reach far enough."""

SCALED_BITS = {"block": 6, "all": WIDEST_SCALED, "none": 0}
"""Bits of the widest format with scales, by the option `scale` of codecs."""

_BELOW_BF16 = 0xFFFF
"""The bits of float32 that bfloat16 has not."""

_SMALL = 9
"""Up to so many bits values are looked up."""

_LARGEST = 0x7FFF_FF80
"""The largest float32 below 2³¹: what is left of 1."""


def block_scales(rows: Tensor, maximum: float, round_up: bool) -> Tensor:
    """The largest magnitude of every row of (blocks, 32) float32, divided by a format's `maximum` ≥ 1:
    (blocks, 1) bf16; NaN where a coordinate is not finite.

    Rounded up, no magnitude exceeds the maximum times the scale, so stochastic rounding is unbiased; rounded
    down, truncation keeps the largest one instead of taking it to the value below. No scale is so large that
    the maximum times it overflows.
    """
    largest = rows.abs().amax(dim=1, keepdim=True)
    finite = largest.isfinite()
    pattern = (largest / constant(maximum, largest)).masked_fill(~finite, 0.0).view(torch.int32)
    limit = constant(torch.finfo(torch.float32).max, largest) / constant(maximum, largest)
    if round_up:
        pattern = torch.minimum(pattern + _BELOW_BF16, limit.view(torch.int32))
    scales = (pattern & ~_BELOW_BF16).view(torch.float32).to(torch.bfloat16)
    return scales.masked_fill(~finite, torch.nan)


def scaled_down(rows: Tensor, scales: Tensor) -> Tensor:
    """Rows of (blocks, 32) float32 divided by their scales; unchanged where the scale is 0, NaN where it is
    NaN."""
    divisor = scales.to(torch.float32)
    quotients = rows / divisor.masked_fill(divisor == 0, 1.0)
    return quotients.masked_fill(divisor.isnan(), torch.nan)


def _position(magnitude: Tensor, target: TruncatedFormat) -> Tensor:
    """Exponent and mantissa of finite float32 magnitudes in the target's base: one int32, 23 bits mantissa.

    Below the smallest normal number it counts multiples of 2⁻²³ of that number, rounded down. Above the
    base's largest exponent it continues as if there were larger ones.
    """
    if target.bias == FP32_BIAS:
        return magnitude.view(torch.int32)
    normal = torch.full((), target.smallest_normal, device=magnitude.device)
    linear = torch.minimum(magnitude, normal) * (2.0**FP32_MANTISSA / target.smallest_normal)
    above = (magnitude.view(torch.int32) - normal.view(torch.int32)).clamp(min=0)
    return above + linear.to(torch.int32)


def truncate(x: Tensor, target: TruncatedFormat, words: Tensor | None = None) -> Tensor:
    """The codes of float32 `x`: int32 of its shape, all bits of it at 32 bits.

    Rounds towards zero without `words`, and stochastically with `words`, random int64 in [0, 2³²) for every
    element. Values beyond the largest finite one are clamped to it. NaN stays NaN; infinities stay if the
    format has them and become NaN otherwise.
    """
    finite = x.isfinite()
    position = _position(x.abs().masked_fill(~finite, 0.0), target)
    position = position.clamp(max=target.largest_code << target.dropped_bits)
    if words is not None:
        position = position + (words >> (32 - target.dropped_bits)).to(torch.int32)
    code, sign = position >> target.dropped_bits, _sign_bits(x, target.bits)
    if not target.infinite:
        return torch.where(code > 0, code | sign, code).masked_fill(~finite, target.nan_code)
    return code.masked_fill(~finite, target.infinity_code).masked_fill(x.isnan(), target.nan_code) | sign


def _sign_bits(x: Tensor, bits: int) -> Tensor:
    """The highest of `bits` bits where `x` is negative: int32."""
    return x.signbit().to(torch.int32) << (bits - 1)


@lru_cache(maxsize=16)
def _table(source: TruncatedFormat, device: torch.device) -> Tensor:
    return torch.tensor(source.values, dtype=torch.float32, device=device)


def restore(codes: Tensor, source: TruncatedFormat) -> Tensor:
    """The values of int32 `codes`, float32 of their shape."""
    if source.bits <= _SMALL:
        return _table(source, codes.device)[codes]
    return (codes << (32 - source.bits)).view(torch.float32)


def embed(x: Tensor, bits: int) -> Tensor:
    """The first `bits` of float32 `x`, multiples of a scale within [−1, 1]: int32 of its shape, all bits of
    it at 32. NaN becomes 0."""
    x = x.masked_fill(x.isnan(), 0.0)
    position = (x.abs() * 2.0**31).clamp(max=float(_LARGEST)).to(torch.int32)
    return (position >> (32 - bits)) | _sign_bits(x, bits)


def restore_embedded(codes: Tensor, bits: int) -> Tensor:
    """The decoded multiples of the scale, from int32 `codes`: float32 of their shape."""
    magnitude = (codes & ((1 << (bits - 1)) - 1)).to(torch.float32) * 2.0 ** (1 - bits)
    negative = ((codes >> (bits - 1)) & 1) > 0
    return torch.where(negative, -magnitude, magnitude)
