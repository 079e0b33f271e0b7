"""Allocation of bit widths to super-groups (DynamiQ §3.2, Appendix A) in integer arithmetic, and the measured
rounding errors that it is based on.

A super-group starts at the smallest width of a set and is raised from neighbour to neighbour: by width
increments. With squared norm F and e_w the modelled error of w bits per unit of energy, raising it from a to
b bits takes 32·(b − a) bytes and gains F·(e_a − e_b)/(b − a) per bit. It is raised where F exceeds a
threshold in proportion to T_ab = (b − a)/(e_a − e_b). In the paper e_w = 4^−w, hence T_ab = 4^b·(b −
a)/(4^(b−a) − 1); the measured errors (`losses`) fall much faster at first.

Both rules take increments in descending order of gain per bit, as many as fit into the chunk's capacity. They
differ in how exactly they determine this order.

`exact` sorts all increments of all super-groups by F·benefit, compared without rounding: no other widths of
the same total size have less modelled error.

`fast` looks for one integer, the smallest bf16 pattern t that the first increment's threshold on the norm may
have; the others follow at fixed ratios, rounded to bf16, so that an increment may be taken for another that
is worth up to 1.4 % more. The remaining capacity goes to increments that only t − 1 would take: first
increments before later ones, then by index. Counting replaces sorting. On gradients of language models the
two differ by less than 1 % of vNMSE, mostly in favour of `fast`: first increments gain more than the model
4^−w predicts.

Error feedback is only stable if an encoding loses a small share ω of the energy. A worker's residual is
encoded again with the next gradient, and a share ω of it is lost again. Along a ring the residual is part of
sums of 1 to n gradients, (n + 1)/2 on average, so it outgrows the gradients if ω·(n + 1)/2 ≥ 1. With several
widths ω varies: a super-group at the smallest width whose residual grows gets more bits in a later round,
which removes nearly all of the residual. Growth is multiplicative, so the geometric mean of ω over the widths
that the budget pays for in turn decides.

This rule was checked once along rings of 2 to 32 workers with gradients that never change, 25 to 100 rounds
each. The settings that this rule accepts had residuals that stopped growing at no more than 130 times the
energy of the gradients, most of them far earlier. Of the settings that it refuses, 1 bit, and [1, 2, 4] at
2.5 bits on 8 workers, went beyond 10¹⁷ times; [2, 4, 8] at 2.8 bits was still growing at 10⁵; others stopped
at 5 to 5000 times, where a round's mean was mostly noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import BF16_INFINITY
from gradwire.codecs.dynamiq.format import code_bytes
from gradwire.codecs.options.dynamiq import Allocation, ValueKind


@dataclass(frozen=True)
class WidthIncrements:
    """The increments between neighbouring `widths` (ascending); `errors` holds e_w of each width.

    The errors are convex in the width: each increment gains less per bit than the one before it.
    """

    widths: tuple[int, ...]
    errors: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        assert all(a < b for a, b in pairwise(self.widths)), f"widths {self.widths} do not ascend"
        assert all(a > b for a, b in pairwise(self.benefits)), f"errors {self.errors} are not convex"

    @cached_property
    def benefits(self) -> tuple[Fraction, ...]:
        """1/T_ab of every increment, (e_a − e_b)/(b − a)."""
        steps = zip(pairwise(self.widths), pairwise(self.errors), strict=True)
        return tuple((before - after) / (b - a) for (a, b), (before, after) in steps)

    @cached_property
    def bits(self) -> tuple[int, ...]:
        """b − a of every increment."""
        return tuple(b - a for a, b in pairwise(self.widths))


@lru_cache(maxsize=64)
def paper_increments(widths: tuple[int, ...]) -> WidthIncrements:
    """The increments between ascending `widths` whose errors are 4^−w."""
    return WidthIncrements(widths, tuple(Fraction(1, 4**width) for width in widths))


@lru_cache(maxsize=64)
def measured_increments(widths: tuple[int, ...], group: int) -> WidthIncrements:
    """The increments between ascending `widths` whose errors are measured ones, for groups of 16 or 32."""
    return WidthIncrements(widths, tuple(Fraction(WIDTH_ERRORS[group][width]) for width in widths))


def allocate(patterns: Tensor, spare: Tensor, increments: WidthIncrements, allocation: Allocation) -> Tensor:
    """Widths of every chunk's super-groups, each chunk within its own capacity.

    `patterns` is (chunks, super-groups) int32, 0 for super-groups that stay at the smallest width; `spare` is
    (chunks,) int64, the bytes each chunk may spend on increments. Returns (chunks, super-groups) int64.
    """
    if not increments.bits:
        return torch.full(patterns.shape, increments.widths[0], device=patterns.device)
    if allocation == "exact":
        return _raised(patterns, _exact(patterns, spare, increments), increments.widths)
    thresholds = threshold_patterns(increments, patterns.device)
    return _raised(patterns, _fast(patterns, spare, thresholds, increments.widths), increments.widths)


def _raised(patterns: Tensor, taken: Tensor, widths: Sequence[int]) -> Tensor:
    """The widths, given the smallest one and the increments taken, (chunks, increments·super-groups) bool: a
    taken increment of a super-group implies all its smaller ones."""
    bits = torch.tensor([b - a for a, b in pairwise(widths)], device=patterns.device)
    by_increment = taken.view(patterns.shape[0], len(bits), patterns.shape[1])
    return widths[0] + (by_increment * bits[:, None]).sum(dim=1)


def _costs(patterns: Tensor, widths: Sequence[int]) -> Tensor:
    """Bytes of every increment of a chunk, ordered by increment, then super-group: (increments·super-groups,)
    int64."""
    each = torch.tensor([code_bytes(b - a) for a, b in pairwise(widths)], device=patterns.device)
    return each.repeat_interleave(patterns.shape[1])


def _exact(patterns: Tensor, spare: Tensor, increments: WidthIncrements) -> Tensor:
    """The increments taken: (chunks, increments·super-groups) bool."""
    keys = worth_keys(increments, patterns.device)[:, patterns.long()].transpose(0, 1).flatten(1)
    keys, order = keys.sort(dim=1, descending=True, stable=True)
    fits = _costs(patterns, increments.widths)[order].cumsum(dim=1) <= spare[:, None]
    return torch.zeros_like(fits).scatter_(1, order, fits & (keys > 0))


def _fast(patterns: Tensor, spare: Tensor, thresholds: Tensor, widths: Sequence[int]) -> Tensor:
    """The increments taken: (chunks, increments·super-groups) bool."""
    costs = _costs(patterns, widths)

    def reached(first: Tensor) -> Tensor:
        """The increments taken if the first one's threshold is `first`, (chunks,)."""
        return (patterns >= thresholds[:, first, None]).transpose(0, 1).flatten(1)

    def cost(taken: Tensor) -> Tensor:
        return (taken * costs).sum(dim=1)

    # Invariant: all increments that `high` takes fit; `low` takes too many, or is 0, which would raise zeros.
    low = torch.zeros_like(spare)
    high = torch.full_like(spare, BF16_INFINITY)
    for _ in range(BF16_INFINITY.bit_length()):
        middle = (low + high + 1) >> 1
        fits = cost(reached(middle)) <= spare
        high, low = torch.where(fits, middle, high), torch.where(fits, low, middle)
    taken = reached(high)
    tied = reached(low) & ~taken & (low > 0)[:, None]
    return taken | tied & ((tied * costs).cumsum(dim=1) <= (spare - cost(taken))[:, None])


def _norms() -> Tensor:
    """The value of every non-negative bf16 pattern up to infinity: (0x7f81,) float32."""
    patterns = torch.arange(BF16_INFINITY + 1, dtype=torch.int32, device="cpu")
    return patterns.to(torch.int16).view(torch.bfloat16).to(torch.float32)


@lru_cache(maxsize=16)
def threshold_patterns(increments: WidthIncrements, device: torch.device) -> Tensor:
    """For each bf16 pattern t of the first increment's threshold on the norm, the pattern of every
    increment's threshold, bf16(t·√(T_k/T_0)): (increments, 0x7f81) int32. Computed on the host, one
    multiplication each.
    """
    ratios = [math.sqrt(increments.benefits[0] / benefit) for benefit in increments.benefits]
    table = torch.stack([(_norms() * ratio).to(torch.bfloat16) for ratio in ratios])
    return table.view(torch.int16).to(device=device, dtype=torch.int32)


@lru_cache(maxsize=16)
def worth_keys(increments: WidthIncrements, device: torch.device) -> Tensor:
    """For each bf16 pattern of a norm, the gain per bit of every increment of such a super-group, as
    order-preserving integers: (increments, 0x7f81) int64, 0 for a norm of 0.

    The integer is the pattern of the float64 norm²·benefit, scaled so that all benefits are integers: exact
    for errors 4^−w, whose products need at most 46 bits, and rounded once for others.
    """
    scale = math.lcm(*(benefit.denominator for benefit in increments.benefits))
    squares = _norms().double().square()
    table = torch.stack([squares * float(benefit * scale) for benefit in increments.benefits])
    return table.view(torch.int64).to(device)


WIDTH_ERRORS = {
    16: {1: 3.8, 2: 0.437, 3: 0.0564, 4: 0.0117, 5: 0.00274, 6: 6.81e-4, 8: 4.56e-5, 16: 7.5e-10},
    32: {1: 5.2, 2: 0.556, 3: 0.0709, 4: 0.0147, 5: 0.00347, 6: 8.55e-4, 8: 5.37e-5, 16: 9.6e-10},
}
"""By group: width to the error of one rounding over the energy, the mean over super-groups.

Values are distinct with the default non-uniformities, group scales rounded up: the median over gradients of a
GPT-2 (steps 0, 10, 40 and 100), a Llama and a BERT (steps 4 and 120) of 0.1 to 0.4 million parameters, of one
worker and of four together, at most 600 super-groups of each, those of zeros aside. These sets differ by
±15 %. Stochastic group scales add 3e-6 at 8 bits and 9e-6 at 16. Other values err 1.4 to 1.6 times as much
at 2 bits, 1.3 to 1.4 at 3 and up to 1.3 above.
"""

LOST_SHARES: dict[tuple[ValueKind, int], dict[int, float]] = {
    ("nonuniform", 16): {1: 3.56, 2: 0.70, 3: 0.0704, 4: 0.0128, 5: 2.8e-3, 6: 6.6e-4, 8: 4.5e-5, 16: 5.7e-6},
    ("nonuniform", 32): {1: 4.72, 2: 0.89, 3: 0.0878, 4: 0.0159, 5: 3.5e-3, 6: 8.3e-4, 8: 5.3e-5, 16: 4.6e-6},
    ("uniform", 16): {1: 3.56, 2: 0.70, 3: 0.0792, 4: 0.0145, 5: 3.2e-3, 6: 7.5e-4, 8: 5.0e-5, 16: 5.7e-6},
    ("uniform", 32): {1: 4.72, 2: 0.89, 3: 0.103, 4: 0.0188, 5: 4.1e-3, 6: 9.6e-4, 8: 6.2e-5, 16: 4.6e-6},
    ("distinct", 16): {1: 3.56, 2: 0.43, 3: 0.0557, 4: 0.0113, 5: 2.6e-3, 6: 6.4e-4, 8: 4.5e-5, 16: 5.7e-6},
    ("distinct", 32): {1: 4.72, 2: 0.55, 3: 0.0689, 4: 0.0141, 5: 3.3e-3, 6: 8.0e-4, 8: 5.3e-5, 16: 4.6e-6},
}
"""By quantization values and group: width to ω, the lost share of the energy of normally distributed
coordinates, rounded independently with hierarchical scales and the default non-uniformities."""


def lost_share(widths: Sequence[int], code_bits: float, kind: ValueKind, group: int) -> float:
    """ω for super-groups that get `code_bits` of code per coordinate on average: the geometric mean over the
    two neighbouring `widths` (ascending)."""
    shares = LOST_SHARES[kind, group]
    if code_bits <= widths[0]:
        return shares[widths[0]]
    for a, b in pairwise(widths):
        if code_bits <= b:
            upper = (code_bits - a) / (b - a)
            return math.exp((1 - upper) * math.log(shares[a]) + upper * math.log(shares[b]))
    return shares[widths[-1]]
