"""The error of synchronized gradients, over all coordinates and super-group by super-group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.format import SUPER_GROUP
from gradwire.harness.studies.distribution import group_energies


def exact_mean(values: Tensor) -> Tensor:
    """The mean over the workers (rows), (coordinates,) float64; it is summed row by row, without a copy of
    all."""
    total = torch.zeros(values.shape[1], dtype=torch.float64)
    for row in values:
        total += row
    return total / values.shape[0]


def vnmse(estimate: Tensor, mean: Tensor) -> float | None:
    """‖x̄ − x̂‖² / ‖x̄‖²; None if it has no value, because the mean is zero or something is not finite."""
    energy = float(mean.square().sum())
    error = float((estimate.double() - mean).square().sum())
    ratio = error / energy if energy > 0 else float("nan")
    return ratio if ratio == ratio and ratio != float("inf") else None


def relative_errors(estimates: Sequence[Tensor], mean: Tensor) -> Tensor:
    """Each super-group's squared error, averaged over `estimates`, relative to its energy; super-groups
    without energy are left out."""
    energy = group_energies(mean, SUPER_GROUP)
    total = torch.zeros_like(energy)
    for estimate in estimates:
        total += group_energies(estimate.double() - mean, SUPER_GROUP)
    alive = energy > 0
    return total[alive] / len(estimates) / energy[alive]
