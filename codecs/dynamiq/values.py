"""Non-uniform quantization values and the rounding between them (DynamiQ §3.3).

A coordinate of b bits is a sign and a level r ≤ R = 2^(b−1) − 1 of value f(ε, r) = (a^r − 1)/(a^R − 1) of its
group's maximum, a = 1 + 2ε². Rounding is defined by a count, every operation rounded to float32 once:

    t = 1 + |x|·(K / max|G|),   K = a^R − 1      (no fused multiply-add)
    w = 1 + (a − 1)/2 ± d·((a − 1)/N)            (d: centred dither, see `rounding`; minus where x < 0)
    r = #{k < R : t > T[k]·w},  T[k] = a^k

so t lies in [1, a^R] and w in [1, a]. Since w is affine in the dither, r is an unbiased rounding of t.
Because the dither is mirrored for negative x, rounding up means towards +∞ of the signed value.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

_GRID = float(1 << 22)
"""a is a multiple of 2⁻²²: a, a − 1 and 1 + (a − 1)/2 are then float32 numbers, and w cannot fall below 1."""


@dataclass(frozen=True)
class Levels:
    """The tables of one width; `thresholds` is T[0…R], `values` f(ε, 0…R), both float32.

    `byte_values` maps a byte of packed codes to its 8/width signed values, held as one element (float32,
    float64 or complex128) so that a single look-up unpacks and decodes a byte.
    """

    width: int
    step: float
    span: float
    thresholds: Tensor
    values: Tensor
    byte_values: Tensor

    @property
    def largest(self) -> int:
        """R, the largest level."""
        return (1 << (self.width - 1)) - 1


def _signed_values(values: Tensor) -> Tensor:
    """Value of every code, its sign in the top bit: (2·(R + 1),) float32."""
    return torch.cat((values, -values))


def _byte_values(values: Tensor, width: int) -> Tensor:
    """The values packed in each byte, as (256,) elements of 4·8/width bytes."""
    shifts = torch.arange(0, 8, width)
    codes = (torch.arange(256)[:, None] >> shifts) & ((1 << width) - 1)
    decoded = _signed_values(values)[codes].contiguous()
    element = {8: torch.float32, 4: torch.float64, 2: torch.complex128}[width]
    return decoded.view(element).flatten()


@lru_cache(maxsize=64)
def levels(width: int, epsilon: float, device: torch.device) -> Levels:
    """The tables of `width` ∈ {2, 4, 8}. At 2 bits ε has no effect and a = 2 makes t exact."""
    step = 1.0 if width == 2 else round(2 * epsilon * epsilon * _GRID) / _GRID
    # Powers by repeated multiplication: the C library's pow may differ between machines.
    powers = [1.0]
    for _ in range((1 << (width - 1)) - 1):
        powers.append(powers[-1] * (1 + step))
    span = powers[-1] - 1
    values = torch.tensor([(power - 1) / span for power in powers], dtype=torch.float32)
    thresholds = torch.tensor(powers, dtype=torch.float32)
    byte_values = _byte_values(values, width)
    tables = (tensor.to(device) for tensor in (thresholds, values, byte_values))
    return Levels(width, step, torch.tensor(span, dtype=torch.float32).item(), *tables)


def count_levels(t: Tensor, w: Tensor, table: Levels) -> Tensor:
    """#{k < R : t > T[k]·w} for t ∈ [1, a^R], w ∈ [1, a] (float32, any shape), as int32.

    An estimate of log_a t that is off by less than a quarter level, and two exact comparisons: every
    threshold below the estimate is exceeded by at least half a level, every one above it by none.
    """
    if table.largest == 1:
        return (t > w).to(torch.int32)
    estimate = t.log2().mul_(1 / _log2(1 + table.step)).sub_(0.75).clamp_(0, table.largest - 2)
    level = estimate.to(torch.int32)
    flat = level.view(-1)
    lower = table.thresholds.index_select(0, flat).view_as(t)
    upper = table.thresholds.index_select(0, flat + 1).view_as(t)
    # p − t has the exact sign of the comparison t > p; an arithmetic shift turns it into −1 or 0.
    above_lower = lower.mul_(w).sub_(t).view(torch.int32).bitwise_right_shift_(31)
    above_upper = upper.mul_(w).sub_(t).view(torch.int32).bitwise_right_shift_(31)
    return level.sub_(above_lower).sub_(above_upper)


def _log2(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float64).log2())


def to_codes(level: Tensor, x: Tensor, width: int) -> Tensor:
    """Levels (int32) with the signs of `x` (float32) as uint8 codes; there is no negative zero."""
    sign = x.view(torch.int32) >> 31
    nonzero = level.neg().bitwise_right_shift_(31)
    return sign.bitwise_and_(nonzero).bitwise_and_(1 << (width - 1)).bitwise_or_(level).to(torch.uint8)
