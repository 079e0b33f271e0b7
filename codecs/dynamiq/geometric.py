"""Non-uniform values at 2 to 8 bits, in geometric progression (DynamiQ §3.3).

A coordinate of b bits is a sign and a level r ≤ R = 2^(b−1) − 1 of value f(ε, r) = (a^r − 1)/(a^R − 1) of its
group's maximum, a = 1 + 2ε². Rounding is defined by a count, every operation rounded to float32 once:

    t = 1 + y,   span K = a^R − 1      (no fused multiply-add)
    w = 1 + (a − 1)/2 ± d·((a − 1)/N)
    r = #{k < R : t > T[k]·w},  T[k] = a^k

so t lies in [1, a^R] and w in [1, a].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.packing import decoding_table
from gradwire.codecs.dynamiq.values import Parameter, Values, signed_codes

_GRID = float(1 << 22)
"""a is a multiple of 2⁻²²: a, a − 1 and 1 + (a − 1)/2 are then float32 numbers, and w cannot fall below 1."""


@dataclass(frozen=True)
class Geometric(Values):
    """`thresholds` is T[0…R], float32, or several tables of which a row's begins at `first`, (rows, 1) int32;
    `step` is a − 1 and `levels_per_octave` 1/log₂ a."""

    thresholds: Tensor
    levels_per_octave: Parameter
    first: Tensor | int

    @property
    def largest(self) -> int:
        """R, the largest level."""
        return (1 << (self.width - 1)) - 1

    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        return signed_codes(count_levels(y.add_(1), w, self), x, self.width).to(torch.uint8)


def progression_step(epsilon: float) -> float:
    """a − 1 = 2ε², a multiple of 2⁻²²."""
    return round(2 * epsilon * epsilon * _GRID) / _GRID


def geometric_powers(step: float, largest: int) -> list[float]:
    """1, a, …, a^largest, by repeated multiplication: the C library's pow may differ between machines."""
    powers = [1.0]
    for _ in range(largest):
        powers.append(powers[-1] * (1 + step))
    return powers


def geometric_values(width: int, epsilon: float, device: torch.device) -> Geometric:
    """The values of `width` from 2 to 8 bits. At 2 bits ε has no effect and a = 2 makes t exact."""
    step = 1.0 if width == 2 else progression_step(epsilon)
    powers = geometric_powers(step, (1 << (width - 1)) - 1)
    span = powers[-1] - 1
    values = torch.tensor([(power - 1) / span for power in powers], dtype=torch.float32)
    return Geometric(
        width=width,
        span=torch.tensor(span, dtype=torch.float32).item(),
        centre=1 + step / 2,
        step=step,
        decoded=decoding_table(torch.cat((values, -values)), width).to(device),
        thresholds=torch.tensor(powers, dtype=torch.float32, device=device),
        levels_per_octave=levels_per_octave(step),
        first=0,
    )


def count_levels(t: Tensor, w: Tensor, table: Geometric) -> Tensor:
    """#{k < R : t > T[k]·w} for t ∈ [1, a^R], w ∈ [1, a] (float32, any shape), as int32.

    An estimate of log_a t that is off by less than a quarter level, and two exact comparisons: every
    threshold below the estimate is exceeded by at least half a level, every one above it by none.
    """
    if table.largest <= 2:
        level = (t > w).to(torch.int32)
        return level if table.largest == 1 else level.add_(t > w * (1 + table.step))
    estimate = t.log2().mul_(table.levels_per_octave).sub_(0.75).clamp_(0, table.largest - 2)
    level = estimate.to(torch.int32)
    flat = (level + table.first).view(-1)
    lower = table.thresholds.index_select(0, flat).view_as(t)
    upper = table.thresholds.index_select(0, flat + 1).view_as(t)
    # p − t has the exact sign of the comparison t > p; an arithmetic shift turns it into −1 or 0.
    above_lower = lower.mul_(w).sub_(t).view(torch.int32).bitwise_right_shift_(31)
    above_upper = upper.mul_(w).sub_(t).view(torch.int32).bitwise_right_shift_(31)
    return level.sub_(above_lower).sub_(above_upper)


def levels_per_octave(step: float) -> float:
    """1/log₂ a, for estimates: its last bits decide nothing."""
    return 1 / float(torch.tensor(1 + step, dtype=torch.float64).log2())
