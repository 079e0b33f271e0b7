"""What raising a super-group from one bit width to the next costs and is worth (DynamiQ §3.2).

A super-group starts at the smallest width of a set and is raised from neighbour to neighbour. With squared
norm F and e_w the modelled error of w bits per unit of energy, raising it from a to b bits takes 32·(b − a)
bytes and is worth F·(e_a − e_b)/(b − a) a bit; it deserves it from a threshold on F in proportion to
T_ab = (b − a)/(e_a − e_b). In the paper e_w = 4^−w, hence T_ab = 4^b·(b − a)/(4^(b−a) − 1); what rounding
really costs falls much faster at first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

INFINITY = 0x7F80
"""The bf16 pattern of infinity: no finite norm reaches it."""


@dataclass(frozen=True)
class Upgrades:
    """The upgrades between neighbouring `widths` (ascending); `errors` holds e_w of each width.

    Widths lie on the lower convex hull of their errors: an upgrade is worth less than the one before it.
    """

    widths: tuple[int, ...]
    errors: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        assert all(a < b for a, b in pairwise(self.widths)), f"widths {self.widths} do not ascend"
        assert all(a > b for a, b in pairwise(self.benefits)), f"errors {self.errors} are not convex"

    @cached_property
    def benefits(self) -> tuple[Fraction, ...]:
        """1/T_ab of every upgrade, (e_a − e_b)/(b − a)."""
        steps = zip(pairwise(self.widths), pairwise(self.errors), strict=True)
        return tuple((before - after) / (b - a) for (a, b), (before, after) in steps)

    @cached_property
    def bits(self) -> tuple[int, ...]:
        """b − a of every upgrade."""
        return tuple(b - a for a, b in pairwise(self.widths))


@lru_cache(maxsize=64)
def paper_upgrades(widths: tuple[int, ...]) -> Upgrades:
    """The upgrades between ascending `widths` whose errors are 4^−w."""
    return Upgrades(widths, tuple(Fraction(1, 4**width) for width in widths))


MEASURED = {
    16: {1: 3.8, 2: 0.437, 3: 0.0564, 4: 0.0117, 5: 0.00274, 6: 6.81e-4, 8: 4.56e-5, 16: 7.5e-10},
    32: {1: 5.2, 2: 0.556, 3: 0.0709, 4: 0.0147, 5: 0.00347, 6: 8.55e-4, 8: 5.37e-5, 16: 9.6e-10},
}
"""By group: width to the error of one rounding over the energy, the mean over super-groups.

Of distinct values with the default non-uniformities, group scales rounded up: the median over gradients of a
GPT-2 (steps 0, 10, 40 and 100), a Llama and a BERT (steps 4 and 120) of 0.1 to 0.4 million parameters, of one
worker and of four together, at most 600 super-groups of each, those of zeros aside. These sets differ by
±15 %. Stochastic group scales add 3e-6 at 8 bits and 9e-6 at 16. Other values err 1.4 to 1.6 times as much
at 2 bits, 1.3 to 1.4 at 3 and up to 1.3 above.
"""


@lru_cache(maxsize=64)
def measured_upgrades(widths: tuple[int, ...], group: int) -> Upgrades:
    """The upgrades between ascending `widths` whose errors are `MEASURED` ones, for groups of 16 or 32."""
    return Upgrades(widths, tuple(Fraction(MEASURED[group][width]) for width in widths))


def _norms() -> Tensor:
    """The value of every non-negative bf16 pattern up to infinity: (0x7f81,) float32."""
    patterns = torch.arange(INFINITY + 1, dtype=torch.int32)
    return patterns.to(torch.int16).view(torch.bfloat16).to(torch.float32)


@lru_cache(maxsize=16)
def threshold_patterns(upgrades: Upgrades, device: torch.device) -> Tensor:
    """For each bf16 pattern t of the first upgrade's threshold on the norm, the pattern of every upgrade's
    threshold, bf16(t·√(T_k/T_0)): (upgrades, 0x7f81) int32. Computed on the host, one multiplication each.
    """
    ratios = [math.sqrt(upgrades.benefits[0] / benefit) for benefit in upgrades.benefits]
    table = torch.stack([(_norms() * ratio).to(torch.bfloat16) for ratio in ratios])
    return table.view(torch.int16).to(device=device, dtype=torch.int32)


@lru_cache(maxsize=16)
def worth_keys(upgrades: Upgrades, device: torch.device) -> Tensor:
    """For each bf16 pattern of a norm what every upgrade of such a super-group is worth a bit, as an integer
    in the same order: (upgrades, 0x7f81) int64, 0 for a norm of 0.

    It is the pattern of the float64 norm²·benefit, scaled so that all benefits are integers: exact for
    errors 4^−w, whose products need at most 46 bits, and rounded once for others.
    """
    scale = math.lcm(*(benefit.denominator for benefit in upgrades.benefits))
    squares = _norms().double().square()
    table = torch.stack([squares * float(benefit * scale) for benefit in upgrades.benefits])
    return table.view(torch.int64).to(device)
