"""Truncation of floating-point numbers, TFP: from float32 to codes of k bits and back (AQGB §4.4, Eq. 5).

A magnitude becomes the exponent and mantissa of its base format as one integer, with 23 bits of mantissa as
in float32. Its first bits are T_low, T_up is one more. From one to the other the integer grows linearly with
the magnitude: the bits that are dropped are the numerator of (x − T_low)/(T_up − T_low). A random integer of
as many bits, added before they are dropped, gives T_up with exactly this probability.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.tfp.formats import FP32_BIAS, FP32_MANTISSA, TruncatedFormat

_SIGN = 31
_SMALL = 9
"""Up to so many bits values are looked up."""


def _position(magnitude: Tensor, target: TruncatedFormat) -> Tensor:
    """Exponent and mantissa of finite float32 magnitudes in the target's base: one int32, 23 bits mantissa.

    Below the smallest normal number it counts multiples of 2⁻²³ of that number, and what is between them is
    truncated. Above the base's largest exponent it continues as if there were more.
    """
    if target.bias == FP32_BIAS:
        return magnitude.view(torch.int32)
    normal = torch.full((), target.smallest_normal, device=magnitude.device)
    linear = torch.minimum(magnitude, normal).mul_(2.0**FP32_MANTISSA / target.smallest_normal)
    above = (magnitude.view(torch.int32) - normal.view(torch.int32)).clamp_(min=0)
    return above.add_(linear.to(torch.int32))


def truncate(x: Tensor, target: TruncatedFormat, words: Tensor | None = None) -> Tensor:
    """The codes of float32 `x`: int32 of its shape, all bits of it at 32 bits.

    Without `words` towards zero; with them, random in [0, 2³²) for every element as int64, stochastically.
    What exceeds the largest finite value becomes it. NaN stays NaN, and infinities stay where the format has
    them and become NaN where not.
    """
    bits = x.view(torch.int32)
    finite = x.isfinite()
    position = _position(x.abs().masked_fill_(~finite, 0.0), target)
    position = position.clamp(max=target.largest_code << target.dropped_bits)
    if words is not None:
        position += (words >> (32 - target.dropped_bits)).to(torch.int32)
    code = position >> target.dropped_bits
    sign = (bits >> _SIGN).bitwise_and_(1) << (target.bits - 1)
    if not target.infinite:
        return torch.where(code > 0, code | sign, code).masked_fill_(~finite, target.nan_code)
    code.masked_fill_(~finite, target.infinity_code).masked_fill_(x.isnan(), target.nan_code)
    return code.bitwise_or_(sign)


@lru_cache(maxsize=16)
def _table(source: TruncatedFormat, device: torch.device) -> Tensor:
    return torch.tensor(source.values, dtype=torch.float32, device=device)


def restore(codes: Tensor, source: TruncatedFormat) -> Tensor:
    """The values of int32 `codes`, float32 of their shape."""
    if source.bits <= _SMALL:
        return _table(source, codes.device).index_select(0, codes.view(-1)).view(codes.shape)
    return (codes << (32 - source.bits)).view(torch.float32)
