"""Entropies of gradients: of their density, as EDGC samples it, and of their quantized codes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gradwire.codecs.edgc import differential_entropy, gaussian_entropy_without_zeros, sampled_histogram
from gradwire.codecs.interface import Layout


@dataclass(frozen=True)
class MatrixEntropy:
    """The differential entropy [nats] of one parameter's gradient, averaged over the workers."""

    name: str
    shape: tuple[int, ...]
    nats: float


@dataclass(frozen=True)
class Entropy:
    """Differential entropies [nats] of the workers' own gradients, exact zeros left out; averaged over them.

    `gaussian_nats` is what a Gaussian of the same mean square has. `matrix_nats` is the mean over `matrices`,
    the parameters with two dimensions or more, weighted by their number of coordinates; None if the file does
    not say which they are, or all are zeros.
    """

    nats: float
    gaussian_nats: float
    matrix_nats: float | None
    matrices: list[MatrixEntropy]


def entropy(values: Tensor, layouts: Sequence[Layout]) -> Entropy:
    """The entropies of (workers, coordinates); `layouts` say which coordinates belong to which parameter."""
    matrices = matrix_entropies(values, layouts)
    return Entropy(
        nats=_mean(density_entropy(row) for row in values),
        gaussian_nats=_mean(gaussian_entropy_without_zeros(row) for row in values),
        matrix_nats=weighted_mean(matrices),
        matrices=matrices,
    )


def weighted_mean(matrices: Sequence[MatrixEntropy]) -> float | None:
    """The mean over matrices, weighted by their number of coordinates; None if there is none but of zeros."""
    known = [(math.prod(matrix.shape), matrix.nats) for matrix in matrices if math.isfinite(matrix.nats)]
    weight = sum(numel for numel, _ in known)
    return sum(numel * nats for numel, nats in known) / weight if weight else None


def density_entropy(x: Tensor) -> float:
    """The differential entropy of the finite values other than 0 of `x`, (numel,) of a floating dtype."""
    return differential_entropy(sampled_histogram(x, 1, 0))


def matrix_entropies(values: Tensor, layouts: Sequence[Layout]) -> list[MatrixEntropy]:
    """Every parameter with two dimensions or more in (workers, coordinates), bucket after bucket."""
    found, start = [], 0
    for layout in layouts:
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            if len(shape) >= 2:
                own = values[:, start + offset : start + offset + math.prod(shape)]
                found.append(MatrixEntropy(name, shape, _mean(density_entropy(row) for row in own)))
        start += layout.numel
    return found


def entropy_of_counts(counts: Tensor) -> float:
    """Bits per value of a histogram, −Σ p·log2 p: what an ideal entropy coder needs. 0 for an empty one."""
    total = float(counts.sum())
    shares = counts[counts > 0].double() / max(total, 1.0)
    return max(0.0, float(-(shares * shares.log2()).sum()))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
