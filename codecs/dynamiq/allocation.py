"""Which super-group gets how many bits (DynamiQ §3.2, Appendix A), decided on integers alone.

A super-group starts at the smallest width of a set and is raised from neighbour to neighbour: by width
increments. With squared norm F and e_w the modelled error of w bits per unit of energy, raising it from a to
b bits takes 32·(b − a) bytes and is worth F·(e_a − e_b)/(b − a) a bit; it deserves it from a threshold on F
in proportion to T_ab = (b − a)/(e_a − e_b). In the paper e_w = 4^−w, hence T_ab = 4^b·(b − a)/(4^(b−a) − 1);
what rounding really costs (`losses`) falls much faster at first.

Both rules take the increments in descending order of what they are worth a bit, as many as the capacity of
their chunk allows: the longest prefix that fits. They differ in how exactly they know the order.

`exact` sorts all increments of all super-groups by F·benefit, compared without rounding: no other widths of
the same total size have less modelled error.

`fast` looks for one integer, the smallest bf16 pattern t that the first increment's threshold on the norm may
have; the others follow at fixed ratios, rounded to bf16, so that an increment may be taken for another that
is worth up to 1.4 % more. What the capacity leaves goes to those that t − 1 would raise too: first increments
before later ones, then by index. Counting replaces sorting. On gradients of language models the two differ by
less than 1 % of vNMSE, mostly in favour of `fast`: first increments are worth more than 4^−w says.
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
from gradwire.codecs.dynamiq.width_errors import WIDTH_ERRORS
from gradwire.codecs.options.dynamiq import Allocation


@dataclass(frozen=True)
class WidthIncrements:
    """The increments between neighbouring `widths` (ascending); `errors` holds e_w of each width.

    Widths lie on the lower convex hull of their errors: an increment is worth less than the one before it.
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
    """The smallest width and the increments taken, (chunks, increments·super-groups) bool: of a
    super-group's, those before it are taken too."""
    bits = torch.tensor([b - a for a, b in pairwise(widths)], device=patterns.device)
    by_increment = taken.view(patterns.shape[0], len(bits), patterns.shape[1])
    return widths[0] + (by_increment * bits[:, None]).sum(dim=1)


def _costs(patterns: Tensor, widths: Sequence[int]) -> Tensor:
    """Bytes of every increment of a chunk, first increments of all super-groups first:
    (increments·super-groups,) int64."""
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
        """The increments deserved with these thresholds (chunks,) of the first one."""
        return (patterns >= thresholds[:, first, None]).transpose(0, 1).flatten(1)

    def cost(taken: Tensor) -> Tensor:
        return (taken * costs).sum(dim=1)

    # All increments that `high` gives fit; `low` gives too many, or is 0, which would raise zeros.
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
    """For each bf16 pattern of a norm what every increment of such a super-group is worth a bit, as an
    integer in the same order: (increments, 0x7f81) int64, 0 for a norm of 0.

    It is the pattern of the float64 norm²·benefit, scaled so that all benefits are integers: exact for
    errors 4^−w, whose products need at most 46 bits, and rounded once for others.
    """
    scale = math.lcm(*(benefit.denominator for benefit in increments.benefits))
    squares = _norms().double().square()
    table = torch.stack([squares * float(benefit * scale) for benefit in increments.benefits])
    return table.view(torch.int64).to(device)
