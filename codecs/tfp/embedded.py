"""One base for any number of bits: multiples of a block's scale in fixed point, for payloads to be refined.

The first bits of fp4, fp16 and fp32 are not prefixes of each other. Those of a fixed-point number are: k
bits are its sign and the first k − 1 planes of its magnitude, which is below 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SIGN = 31
_LARGEST = 0x7FFF_FF80
"""The largest float32 below 2³¹: what is left of 1."""


def embed(x: Tensor, bits: int) -> Tensor:
    """The first `bits` of float32 `x`, multiples of a scale within [−1, 1]: int32 of its shape, all bits of
    it at 32. NaN becomes 0."""
    x = x.masked_fill(x.isnan(), 0.0)
    position = (x.abs() * 2.0**_SIGN).clamp_(max=float(_LARGEST)).to(torch.int32)
    sign = (x.view(torch.int32) >> _SIGN).bitwise_and_(1) << (bits - 1)
    return (position >> (32 - bits)).bitwise_or_(sign)


def restore_embedded(codes: Tensor, bits: int) -> Tensor:
    """The multiples that int32 `codes` stand for: float32 of their shape."""
    magnitude = codes.bitwise_and((1 << (bits - 1)) - 1).to(torch.float32).mul_(2.0 ** (1 - bits))
    negative = (codes >> (bits - 1)).bitwise_and_(1) > 0
    return torch.where(negative, -magnitude, magnitude)
