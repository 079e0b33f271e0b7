"""A bf16 scale for every block of a narrow format, so that nothing overflows or vanishes in it."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.floats import constant

BLOCK = 32
"""Coordinates that share a scale."""

WIDEST_SCALED = 9
"""Bits of the widest format with scales: those of single precision reach far enough."""

_BELOW_BF16 = 0xFFFF
"""The bits of float32 that bfloat16 has not."""


def block_scales(rows: Tensor, maximum: float, round_up: bool) -> Tensor:
    """The largest magnitude of every row of (blocks, 32) float32, divided by a format's `maximum` ≥ 1:
    (blocks, 1) bf16; NaN where a coordinate is not finite.

    Rounded up, no magnitude exceeds the maximum times the scale, so stochastic rounding is unbiased; rounded
    down, truncation keeps the largest one instead of taking it to the value below. No scale is so large that
    the maximum times it overflows.
    """
    largest = rows.abs().amax(dim=1, keepdim=True)
    finite = largest.isfinite()
    pattern = (largest / constant(maximum, largest)).masked_fill_(~finite, 0.0).view(torch.int32)
    limit = constant(torch.finfo(torch.float32).max, largest) / constant(maximum, largest)
    if round_up:
        pattern = torch.minimum(pattern + _BELOW_BF16, limit.view(torch.int32))
    scales = pattern.bitwise_and(~_BELOW_BF16).view(torch.float32).to(torch.bfloat16)
    return scales.masked_fill_(~finite, torch.nan)


def scaled_down(rows: Tensor, scales: Tensor) -> Tensor:
    """Rows of (blocks, 32) float32 divided by their scales; as they are where the scale is 0, NaN where it
    is."""
    divisor = scales.to(torch.float32)
    quotients = rows / divisor.masked_fill(divisor == 0, 1.0)
    return quotients.masked_fill_(divisor.isnan(), torch.nan)
