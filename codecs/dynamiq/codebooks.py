"""Four codebooks of one width, of which each super-group takes the one that fits it best.

The codebooks are the distinct values of two ε, one below and one above the width's own, each in two forms: as
they are, and mirrored with the additional level on the negative side. The super-group's bf16 scale encodes
the choice: the scale is rounded up to six mantissa bits, the seventh bit chooses ε, and the sign bit mirrors
by negating the decoded values.

The sender takes the codebook with the least expected error of stochastic rounding: the sum of (v − q)(q′ − v)
over values v between levels q and q′. Errors are looked up at the nearest of 8·2^b + 1 points from 0 to the
group's maximum, which needs neither a logarithm nor a search. They are integers of 11 bits, so that a group's
errors add up in 16 bits, in any order. With this choice a super-group of gradients has at most 4 % more error
than with the best of the four, and 0.02 % more overall. Sums over groups have a fixed order; ties go to the
first codebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import fold
from gradwire.codecs.dynamiq.format import inverse_maxima
from gradwire.codecs.dynamiq.values import Distinct, Values, distinct_values, values_of
from gradwire.codecs.options.dynamiq import ValueKind

CODEBOOK_WIDTHS = (2, 3, 4, 5, 6, 8)
"""The widths that have several; at 1 and 16 bits all super-groups have the first."""

SPREAD = 1.2
"""The two ε are the width's own over and times this."""

POINTS_PER_CODE = 8
"""Steps from 0 to a group's maximum at which errors are tabulated, over 2^b."""

LARGEST_COST = 2047
"""The largest error of a coordinate: kernels add up 32 of them in 16 bits."""

_LARGER = 1  # the last bit of a scale: the codebook has the larger ε
_OF_EPSILON = ("span", "centre", "step", "levels_per_octave", "negative_span")


@dataclass(frozen=True)
class Codebooks:
    """The codebooks of one width: number c has the (c div 2)-th ε and is mirrored if c is odd.

    `values` are those of both ε: their tables one after another, their parameters (2,) float32. `costs` holds
    the errors of the codebooks at every point, in units of the largest over 2047, first of positive
    coordinates, then of negative ones: (2·(points + 1), codebooks) int32.
    """

    values: Distinct
    costs: Tensor

    @property
    def decoded(self) -> Tensor:
        """The values by code of both ε, see `tables`."""
        return self.values.decoded

    def choose(self, magnitude: Tensor, reference: Tensor, silent: Tensor, x: Tensor) -> Tensor:
        """Each super-group's codebook, (g,) int32, for coordinates `x`, (g, 256) float32, their scaled
        magnitudes, (g, groups, group), and their groups' `reference`s and `silent`, see `Scaling`."""
        points = _points(self.values.width)
        point = magnitude * inverse_maxima(points, reference)[:, :, None]
        point = point.round().clamp(max=points).masked_fill(silent[:, :, None], 0).to(torch.int64)
        point = point + x.signbit().view_as(point) * (points + 1)
        costs = self.costs[point].sum(dim=2).to(torch.float32)  # (g, groups, codebooks), exact
        energy = reference.square().masked_fill(silent, 0)
        return fold(costs * energy[:, :, None]).argmin(dim=1).to(torch.int32)

    def of_rows(self, choice: Tensor) -> Distinct:
        """The values of the chosen codebooks before mirroring: coordinates are to be mirrored instead."""
        larger = (choice >> 1)[:, None]
        chosen = {name: getattr(self.values, name)[larger] for name in _OF_EPSILON}
        return replace(self.values, first=larger * (len(self.values.thresholds) // 2), **chosen)

    def tables(self, scales: Tensor) -> Tensor:
        """The begin in `decoded` of the table that each scale (g,) int16 chooses: (g, 1) int32."""
        return (scales[:, None].to(torch.int32) & _LARGER) * (len(self.decoded) // 2)


def chosen_values(
    width: int, kind: ValueKind, epsilon: float, device: torch.device, group: int, codebooks: int
) -> Values | Codebooks:
    """The values of a width, or its codebooks if there are several."""
    if codebooks > 1 and width in CODEBOOK_WIDTHS:
        return codebooks_of(width, epsilon, device)
    return values_of(width, kind, epsilon, device, group)


def marked(patterns: Tensor, choice: Tensor) -> Tensor:
    """Stores the chosen codebooks in bf16 patterns, (g,) int32, whose sign and last bit are 0."""
    return patterns | (choice >> 1) | ((choice & 1) << 15)


def unmarked(scales: Tensor) -> Tensor:
    """The patterns (int32) of scales without their codebook bits; a negative scale mirrors the values decoded
    with it."""
    return scales & ~_LARGER


def mirrored(x: Tensor, choice: Tensor) -> Tensor:
    """`x`, (g, 256) float32, negated in super-groups whose codebook is mirrored."""
    return torch.where((choice & 1).bool()[:, None], -x, x)


@lru_cache(maxsize=16)
def codebooks_of(width: int, epsilon: float, device: torch.device) -> Codebooks:
    """The codebooks of one of `CODEBOOK_WIDTHS` around ε."""
    books = [distinct_values(width, e, device) for e in (epsilon / SPREAD, epsilon * SPREAD)]
    longer, shorter = ([_errors(book, fewer) for book in books] for fewer in (0, 1))
    positive = torch.stack((longer[0], shorter[0], longer[1], shorter[1]), dim=1)
    negative = torch.stack((shorter[0], longer[0], shorter[1], longer[1]), dim=1)
    costs = torch.cat((positive, negative))
    units = (costs * (LARGEST_COST / costs.max())).round().to(torch.int32)
    return Codebooks(_joined(books, device), units.to(device))


def _joined(books: Sequence[Distinct], device: torch.device) -> Distinct:
    """The values of several ε with their tables one after another and their parameters side by side."""
    parameters: dict[str, Any] = {
        name: torch.tensor([getattr(book, name) for book in books], dtype=torch.float32, device=device)
        for name in _OF_EPSILON
    }
    decoded, thresholds = (torch.cat([getattr(b, name) for b in books]) for name in ("decoded", "thresholds"))
    return replace(books[0], decoded=decoded, thresholds=thresholds, **parameters)


def _points(width: int) -> int:
    return POINTS_PER_CODE << width


def _errors(book: Distinct, fewer: int) -> Tensor:
    """(v − q)(q′ − v) at every point on the side that has all levels, or one fewer: (points + 1,) float64."""
    powers = book.thresholds.double().cpu()[: book.thresholds.numel() - fewer]
    levels = (powers - 1) / (powers[-1] - 1)
    fractions = torch.arange(_points(book.width) + 1, dtype=torch.float64, device="cpu") / _points(book.width)
    upper = torch.searchsorted(levels, fractions).clamp(min=1)
    return (fractions - levels[upper - 1]) * (levels[upper] - fractions)
