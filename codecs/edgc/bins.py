"""The bins of EDGC's histogram: the sign, the exponent and the first three bits of the mantissa of a float32.

Such bins are as fine for small values as for large ones: no range has to be known before, and a gradient
twice as large has the same counts, eight bins further on.
"""

from __future__ import annotations

import torch
from torch import Tensor

BIN_SHIFT = 20
"""The bin of a value is its float32 pattern without this many bits."""

BINS = 1 << (32 - BIN_SHIFT)

ZEROS = BINS
"""The counter of zeros of either sign."""

COUNTERS = BINS + 1

_MANTISSA_BITS = 23 - BIN_SHIFT

FINITE = 255 << _MANTISSA_BITS
"""The bins of one sign's finite values; the others have infinity and NaN."""


def lower_ends() -> Tensor:
    """The lower ends of the bins of finite positive values: float64 (2040,)."""
    return (torch.arange(FINITE) << BIN_SHIFT).to(torch.int32).view(torch.float32).double()


def log2_widths() -> Tensor:
    """The base-2 logarithm of the width of the bins of finite positive values: float64 (2040,)."""
    field = (torch.arange(FINITE) >> _MANTISSA_BITS).clamp(min=1)
    return (field - (127 + _MANTISSA_BITS)).double()


def finite_counts(counts: Tensor) -> Tensor:
    """The finite values but zeros of a histogram, (4097,) int64 on any device: float64 (2, 2040) on the host,
    positive and negative ones."""
    return counts[:BINS].cpu().view(2, -1)[:, :FINITE].double()
