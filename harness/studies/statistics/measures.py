"""Statistics of the workers' gradients: norms of groups, common energy, entropies.

Norms of groups, with and without shuffling, show spatial locality (DynamiQ §2.2, Figure 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.edgc.sampler import (
    differential_entropy,
    gaussian_entropy_without_zeros,
    sampled_histogram,
)
from gradwire.codecs.interface import Layout
from gradwire.codecs.options.dynamiq import SUPER_GROUP
from gradwire.harness.studies.distribution import TILE, bucket_energies, quantiles, share

SIZES = (16, 256)
"""Coordinates of a group and of a super-group."""


@dataclass(frozen=True)
class GroupNorms:
    """ℓ2 norms of all groups of all workers: their 101 quantiles, and the shares of small ones.

    `below_10th` and `below_100th` are the shares of groups whose norm is below a 10th or 100th of the median.
    """

    size: int
    shuffled: bool
    groups: int
    quantiles: list[float]
    zeros: float
    below_10th: float
    below_100th: float


def group_norms(values: Tensor, buckets: Sequence[int], seed: int) -> list[GroupNorms]:
    """The norms of groups of every size in (workers, coordinates), before and after `shuffle`.

    Groups do not extend across buckets; `buckets` holds the buckets' numbers of coordinates. Shuffled
    coordinates are divided at the same places.
    """
    order, found = shuffle(values.shape[1], seed), []
    for shuffled in (False, True):
        energies: dict[int, list[Tensor]] = {size: [] for size in SIZES}
        for row in values:
            row = row[order] if shuffled else row
            for size, parts in energies.items():
                parts.append(bucket_energies(row, buckets, size))
        found += [_found(torch.cat(parts).sqrt_(), size, shuffled) for size, parts in energies.items()]
    return found


def shuffle(numel: int, seed: int) -> Tensor:
    """A random order of all coordinates, the same for all workers: (numel,) int64."""
    return torch.randperm(numel, generator=torch.Generator().manual_seed(seed))


def _found(norms: Tensor, size: int, shuffled: bool) -> GroupNorms:
    found = quantiles(norms)
    median = found[len(found) // 2]
    return GroupNorms(
        size=size,
        shuffled=shuffled,
        groups=norms.numel(),
        quantiles=found,
        zeros=share(norms == 0),
        below_10th=share(norms < median / 10),
        below_100th=share(norms < median / 100),
    )


@dataclass(frozen=True)
class Workers:
    """Figures of all workers' gradients together.

    `cosines` holds the least, mean and largest cosine between the gradients of two workers, None if fewer
    than two have any energy. `energy_of_mean` is ‖x̄‖² over the mean of ‖x_i‖²: 1 for equal gradients, 1/n
    for n orthogonal ones of one length. `top_1_percent` and `top_10_percent` are the shares of the energy,
    summed over workers, in this share of the super-groups, rounded up. `kurtosis` is the mean of x⁴ over the
    square of the mean of x²: 3 for Gaussians. Figures are None if there is no energy.
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
    """Compares the workers of (workers, coordinates); super-groups do not extend across `buckets`, given by
    their numbers of coordinates."""
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
    """The share of the sum that is in the largest `part` of `energies`, rounded up to whole ones; None for a
    sum of 0."""
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


@dataclass(frozen=True)
class MatrixEntropy:
    """The differential entropy [nats] of one parameter's gradient, averaged over the workers."""

    name: str
    shape: tuple[int, ...]
    nats: float


@dataclass(frozen=True)
class Entropy:
    """Differential entropies [nats] of the workers' own gradients without exact zeros, averaged over the
    workers.

    `gaussian_nats` is the entropy of a Gaussian with the same mean square. `matrix_nats` is the mean over
    `matrices`, the parameters with at least two dimensions, weighted by their number of coordinates; None if
    the file does not describe parameters, or if all are zeros.
    """

    nats: float
    gaussian_nats: float
    matrix_nats: float | None
    matrices: list[MatrixEntropy]


def entropy(values: Tensor, layouts: Sequence[Layout]) -> Entropy:
    """The entropies of (workers, coordinates); `layouts` map coordinates to parameters."""
    matrices = matrix_entropies(values, layouts)
    return Entropy(
        nats=_mean(density_entropy(row) for row in values),
        gaussian_nats=_mean(gaussian_entropy_without_zeros(row) for row in values),
        matrix_nats=weighted_mean(matrices),
        matrices=matrices,
    )


def weighted_mean(matrices: Sequence[MatrixEntropy]) -> float | None:
    """The mean over matrices, weighted by their number of coordinates; None if all are zeros."""
    known = [(math.prod(matrix.shape), matrix.nats) for matrix in matrices if math.isfinite(matrix.nats)]
    weight = sum(numel for numel, _ in known)
    return sum(numel * nats for numel, nats in known) / weight if weight else None


def density_entropy(x: Tensor) -> float:
    """The differential entropy of the finite values other than 0 of `x`, (numel,) of a floating dtype."""
    return differential_entropy(sampled_histogram(x, 1, 0))


def matrix_entropies(values: Tensor, layouts: Sequence[Layout]) -> list[MatrixEntropy]:
    """The entropies of all parameters with at least two dimensions in (workers, coordinates), bucket by
    bucket."""
    found, start = [], 0
    for layout in layouts:
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            if len(shape) >= 2:
                own = values[:, start + offset : start + offset + math.prod(shape)]
                found.append(MatrixEntropy(name, shape, _mean(density_entropy(row) for row in own)))
        start += layout.numel
    return found


def entropy_of_counts(counts: Tensor) -> float:
    """Bits per value of a histogram, −Σ p·log2 p, as needed by an ideal entropy coder. 0 for an empty one."""
    total = float(counts.sum())
    shares = counts[counts > 0].double() / max(total, 1.0)
    return max(0.0, float(-(shares * shares.log2()).sum()))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
