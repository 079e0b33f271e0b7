"""Values every code of which counts: no negative zero, but one more level on the positive side.

A sign-magnitude code of b bits has two zeros. Here the second one is the level 2^(b−1), which only positive
coordinates have. Each side is a geometric progression of its own that ends at the group's maximum, with
a = 1 + 2ε² on both:

    positive   f(r) = (a^r − 1)/(a^P − 1),  r ≤ P = 2^(b−1)
    negative  −f(r) = −(a^r − 1)/(a^N − 1),  r ≤ N = P − 1

At 2 bits and a = 1.5 these are −1, 0, 0.4 and 1. Rounding is the count of `geometric` with the largest level
and the span of the coordinate's own side, every operation rounded to float32 once:

    t = 1 + y for positive and 1 + y·(K₋/K) for negative coordinates,  K = a^P − 1, K₋ = a^N − 1
    r = #{k < (P or N) : t > a^k·w}

so it is unbiased, "up" is towards +∞, and zero is sent as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.geometric import (
    Geometric,
    count_levels,
    geometric_powers,
    levels_per_octave,
    progression_step,
)
from gradwire.codecs.dynamiq.packing import decoding_table
from gradwire.codecs.dynamiq.values import Parameter, as_tensor, signed_codes


@dataclass(frozen=True)
class Distinct(Geometric):
    """`negative_span` is K₋/K, float32."""

    negative_span: Parameter

    @property
    def largest(self) -> int:
        """P, the largest level of positive coordinates."""
        return 1 << (self.width - 1)

    def codes(self, y: Tensor, w: Tensor, x: Tensor) -> Tensor:
        negative = x.view(torch.int32) >> 31
        # 1 or K₋/K, by its bits: torch.where takes several times as long.
        one, smaller = (as_tensor(factor, x).view(torch.int32) for factor in (1, self.negative_span))
        factor = (negative & (smaller - one)).add_(one).view(torch.float32)
        t = y.mul_(factor).add_(1)
        # A rounding error may exceed the largest negative level, whose successor's code is a positive one.
        level = count_levels(t, w, self).minimum(negative.add_(self.largest))
        return signed_codes(level, x, self.width).to(torch.uint8)


def distinct_values(width: int, epsilon: float, device: torch.device) -> Distinct:
    """The values of `width` from 2 to 8 bits."""
    step = progression_step(epsilon)
    powers = geometric_powers(step, 1 << (width - 1))
    span, negative_span = powers[-1] - 1, powers[-2] - 1
    positive = [(power - 1) / span for power in powers]
    negative = [(1 - power) / negative_span for power in powers[1:-1]]
    # By code: the levels 0 … N, the level P in the place of a negative zero, the negative levels.
    values = torch.tensor(positive + negative, dtype=torch.float32)
    return Distinct(
        width=width,
        span=torch.tensor(span, dtype=torch.float32).item(),
        centre=1 + step / 2,
        step=step,
        decoded=decoding_table(values, width).to(device),
        thresholds=torch.tensor(powers, dtype=torch.float32, device=device),
        levels_per_octave=levels_per_octave(step),
        first=0,
        negative_span=torch.tensor(negative_span / span, dtype=torch.float32).item(),
    )
