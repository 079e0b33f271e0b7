"""Truncation of floating-point numbers, TFP: from float32 to codes of k bits and back (AQGB §4.4, Eq. 5). In
plain PyTorch this is the definition that compiled kernels reproduce.

A magnitude becomes the exponent and mantissa of its base format as one integer, with 23 bits of mantissa as
in float32. Its first bits are T_low, T_up is one more. From one to the other the integer grows linearly with
the magnitude: the bits that are dropped are the numerator of (x − T_low)/(T_up − T_low). A random integer of
as many bits, added before they are dropped, gives T_up with exactly this probability.

The first bits of fp4, fp16 and fp32 are not prefixes of each other. Those of a fixed-point number are: in the
embedded base, for payloads to be refined, k bits are the sign and the first k − 1 planes of the magnitude of
a multiple of a block's scale, which is below 1.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant
from gradwire.codecs.tfp.formats import FP32_BIAS, FP32_MANTISSA, TruncatedFormat

BLOCK = 32
"""Coordinates that share a scale."""

WIDEST_SCALED = 9
"""Bits of the widest format with scales: those of single precision reach far enough."""

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
    """Rows of (blocks, 32) float32 divided by their scales; as they are where the scale is 0, NaN where it
    is."""
    divisor = scales.to(torch.float32)
    quotients = rows / divisor.masked_fill(divisor == 0, 1.0)
    return quotients.masked_fill(divisor.isnan(), torch.nan)


def _position(magnitude: Tensor, target: TruncatedFormat) -> Tensor:
    """Exponent and mantissa of finite float32 magnitudes in the target's base: one int32, 23 bits mantissa.

    Below the smallest normal number it counts multiples of 2⁻²³ of that number, and what is between them is
    truncated. Above the base's largest exponent it continues as if there were more.
    """
    if target.bias == FP32_BIAS:
        return magnitude.view(torch.int32)
    normal = torch.full((), target.smallest_normal, device=magnitude.device)
    linear = torch.minimum(magnitude, normal) * (2.0**FP32_MANTISSA / target.smallest_normal)
    above = (magnitude.view(torch.int32) - normal.view(torch.int32)).clamp(min=0)
    return above + linear.to(torch.int32)


def truncate(x: Tensor, target: TruncatedFormat, words: Tensor | None = None) -> Tensor:
    """The codes of float32 `x`: int32 of its shape, all bits of it at 32 bits.

    Without `words` towards zero; with them, random in [0, 2³²) for every element as int64, stochastically.
    What exceeds the largest finite value becomes it. NaN stays NaN, and infinities stay where the format has
    them and become NaN where not.
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
    """The multiples that int32 `codes` stand for: float32 of their shape."""
    magnitude = (codes & ((1 << (bits - 1)) - 1)).to(torch.float32) * 2.0 ** (1 - bits)
    negative = ((codes >> (bits - 1)) & 1) > 0
    return torch.where(negative, -magnitude, magnitude)
