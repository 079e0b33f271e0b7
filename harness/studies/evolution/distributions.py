"""The distribution of a layer's gradients as training goes on (EDGC §III-A, Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gradwire.harness.studies.evolution.matrices import Matrix

BINS, LIMIT = 121, 6.0
"""Bins from −6 to 6 standard deviations of the layer's gradients at the first step; the middle one is centred
on 0."""

INSIDE = 0.999


@dataclass(frozen=True)
class Distribution:
    """Coordinates of all matrices of a layer and all workers at one step.

    `sigma` is their root mean square and `reach` what 99.9 % of all |x| stay within. `histogram` has the
    share of each bin, in units of `unit`; `outside` is the share beyond the bins.
    """

    layer: int
    step: int
    sigma: float
    reach: float
    unit: float
    histogram: list[float]
    outside: float


def distribution(layer: int, step: int, matrices: Sequence[Matrix], unit: float | None) -> Distribution:
    """That of the layer's `matrices`; `unit` is the first step's `sigma`, None in that step itself."""
    values = torch.cat([matrix.values.flatten().float() for matrix in matrices]).double()
    sigma = math.sqrt(float(values.square().mean()))
    within = max(1, math.ceil(INSIDE * values.numel()))
    reach = float(values.abs().kthvalue(within).values)
    unit = sigma if unit is None else unit
    shares = torch.histc(values / (unit or 1.0), BINS, -LIMIT, LIMIT) / values.numel()
    outside = max(0.0, 1.0 - float(shares.sum()))
    return Distribution(layer, step, sigma, reach, unit, shares.tolist(), outside)


def narrowing(found: Sequence[Distribution]) -> float | None:
    """σ at the last step over that at the first one, the geometric mean over layers; None if one is 0."""
    by_layer: dict[int, list[Distribution]] = {}
    for each in found:
        by_layer.setdefault(each.layer, []).append(each)
    ratios = [own[-1].sigma / own[0].sigma if own[0].sigma else 0.0 for own in by_layer.values()]
    if not ratios or min(ratios) <= 0:
        return None
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def units(found: Sequence[Distribution]) -> Mapping[int, float]:
    """The unit of each layer's histograms."""
    return {each.layer: each.unit for each in found}
