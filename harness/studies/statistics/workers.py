"""What the workers' gradients have in common, and how concentrated their energy is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.options.dynamiq import SUPER_GROUP
from gradwire.harness.studies.distribution import TILE, bucket_energies


@dataclass(frozen=True)
class Workers:
    """Figures of all workers' gradients taken together.

    `cosines` are the least, mean and largest cosine between the gradients of two workers, None if fewer than
    two have any energy. `energy_of_mean` is ‖x̄‖² over the mean of ‖x_i‖²: 1 for equal gradients, 1/n for
    n orthogonal ones of one length. `top_1_percent` and `top_10_percent` are the shares of the energy, summed
    over workers, in that many of the super-groups, rounded up. `kurtosis` is the mean of x⁴ over the square
    of the mean of x²: 3 for Gaussians. None where there is no energy.
    """

    norms: list[float]
    cosines: tuple[float, float, float] | None
    energy_of_mean: float | None
    top_1_percent: float | None
    top_10_percent: float | None
    zeros: float
    kurtosis: float | None
    largest: float


def workers(values: Tensor, buckets: Sequence[int]) -> Workers:
    """Compares the workers of (workers, coordinates); super-groups end where buckets of `buckets` coordinates
    do."""
    products = inner_products(values)
    energy, (zeros, fourth, largest) = float(products.trace()), _moments(values)
    super_groups = super_group_energies(values, buckets)
    return Workers(
        norms=products.diagonal().sqrt().tolist(),
        cosines=cosines(products),
        energy_of_mean=float(products.sum()) / energy / len(values) if energy else None,
        top_1_percent=share_of_top(super_groups, 0.01),
        top_10_percent=share_of_top(super_groups, 0.1),
        zeros=zeros / values.numel(),
        kurtosis=fourth / values.numel() / (energy / values.numel()) ** 2 if energy else None,
        largest=largest,
    )


def inner_products(values: Tensor) -> Tensor:
    """The products x_i·x_j of all pairs of workers: (workers, workers) float64."""
    products = torch.zeros(len(values), len(values), dtype=torch.float64)
    for part in torch.split(values, max(1, TILE // len(values)), dim=1):
        wide = part.double()
        products += wide @ wide.T
    return products


def cosines(products: Tensor) -> tuple[float, float, float] | None:
    """The least, mean and largest cosine between two workers with energy; None unless there are two."""
    alive = products.diagonal() > 0
    lengths = products.diagonal()[alive].sqrt()
    count = len(lengths)
    if count < 2:
        return None
    pairs = (products[alive][:, alive] / lengths / lengths[:, None])[
        tuple(torch.triu_indices(count, count, offset=1))
    ]
    return float(pairs.min()), float(pairs.mean()), float(pairs.max())


def super_group_energies(values: Tensor, buckets: Sequence[int]) -> Tensor:
    """F_j: squared norms of super-groups, summed over the workers, (super-groups,) float64 (DynamiQ §3.1)."""
    first, *others = (bucket_energies(row, buckets, SUPER_GROUP) for row in values)
    for energies in others:
        first += energies
    return first


def share_of_top(energies: Tensor, part: float) -> float | None:
    """Share of the sum in the largest `part` of `energies`, rounded up to whole ones; None for a sum of 0."""
    largest = energies.topk(math.ceil(part * energies.numel())).values
    total = float(energies.sum())
    return min(1.0, float(largest.sum()) / total) if total else None


def _moments(values: Tensor) -> tuple[int, float, float]:
    """The number of exact zeros, the sum of x⁴, and the largest |x|."""
    zeros, fourth, largest = 0, 0.0, 0.0
    for row in values:
        for part in torch.split(row, TILE):
            wide = part.double()
            zeros += wide.numel() - int(wide.count_nonzero())
            fourth += float(wide.square().square().sum())
            largest = max(largest, float(wide.abs().max()))
    return zeros, fourth, largest
