"""Correlations inside gradient matrices, beside those of random numbers (EDGC §III-A, Figure 4).

The variables are the rows of a matrix, or its columns where these are fewer; the observations are what they
have at each place of the longer side. Even random numbers correlate a little, by √(2/πn) on average over n
observations, so a matrix is compared with a random one of its shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.harness.studies.evolution.matrices import Matrix

MOST = 256
"""Variables of a matrix that has more: evenly spaced ones."""

MAP = 64
"""Variables that a map shows."""


@dataclass(frozen=True)
class Correlation:
    """The mean |Pearson correlation| between two variables of a matrix, over all pairs and workers.

    `random` is that of normally distributed numbers of this shape. None where no two variables vary.
    """

    matrix: str
    layer: int | None
    step: int
    mean: float | None
    random: float | None


@dataclass(frozen=True)
class Map:
    """Pearson correlations between at most 64 variables, (variables, variables) float64, to be drawn."""

    title: str
    values: Tensor


def correlations(matrix: Tensor, most: int = MOST) -> Tensor:
    """Pearson correlations between the variables of (rows, columns), of any floating dtype: (variables,
    variables) float64, those left out that do not vary."""
    variables = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T).double()
    places = torch.linspace(0, len(variables) - 1, min(most, len(variables))).round().long()
    chosen = variables[places]
    centred = chosen - chosen.mean(dim=1, keepdim=True)
    norms = torch.linalg.vector_norm(centred, dim=1)
    varying = norms > 1e-12 * torch.linalg.vector_norm(chosen, dim=1)
    unit = centred[varying] / norms[varying, None]
    found: Tensor = unit @ unit.T
    return found.clamp(-1, 1)


def mean_absolute(correlation: Tensor) -> float | None:
    """The mean |r| over all pairs of different variables; None for fewer than two."""
    count = len(correlation)
    if count < 2:
        return None
    return float(correlation.abs().sum() - count) / (count * (count - 1))


def correlation(matrix: Matrix, step: int, seed: int) -> Correlation:
    """That of one matrix's gradients; `seed` is that of the random numbers beside it."""
    found = [mean_absolute(correlations(worker)) for worker in matrix.values]
    known = [value for value in found if value is not None]
    mean = sum(known) / len(known) if known else None
    return Correlation(matrix.name, matrix.layer, step, mean, mean_absolute(random_map(matrix.shape, seed)))


def random_map(shape: tuple[int, int], seed: int, most: int = MOST) -> Tensor:
    """The correlations of a matrix of normally distributed numbers."""
    generator = torch.Generator().manual_seed(seed)
    return correlations(torch.randn(shape, generator=generator), most)
