"""Entropies of gradients: of their density, as EDGC samples it, and of the codes they are quantized to.

The density is estimated from a histogram over the leading bits of float32: sign, exponent and three bits of
the mantissa. Its bins grow with the values in them, so that the estimate is as good for a gradient of 10⁻⁶ as
for one of 1, whatever its tails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.interface import Layout

MANTISSA_BITS = 3
BINS = 1 << (1 + 8 + MANTISSA_BITS)
TILE = 1 << 22
_SHIFT = 23 - MANTISSA_BITS
_BIAS = 127


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
    the parameters with two dimensions or more, by their number of coordinates: None where the file does not
    say which they are, or all are zeros.
    """

    nats: float
    gaussian_nats: float
    matrix_nats: float | None
    matrices: list[MatrixEntropy]


def entropy(values: Tensor, layouts: Sequence[Layout]) -> Entropy:
    """Of (workers, coordinates); `layouts` say which coordinates are which parameter."""
    matrices = matrix_entropies(values, layouts)
    known = [(math.prod(matrix.shape), matrix.nats) for matrix in matrices if math.isfinite(matrix.nats)]
    weight = sum(numel for numel, _ in known)
    return Entropy(
        nats=_mean(differential_entropy(row) for row in values),
        gaussian_nats=_mean(gaussian_entropy(row) for row in values),
        matrix_nats=sum(numel * nats for numel, nats in known) / weight if weight else None,
        matrices=matrices,
    )


def differential_entropy(x: Tensor) -> float:
    """−∫ f log f [nats] of the density of x's finite values other than 0, any shape; −∞ where there are none.

    −Σ p_k·log(p_k/w_k) over bins of width w_k, and (K − 1)/2N for the bias of K bins with N values in them
    (Miller and Madow).
    """
    counts = torch.zeros(BINS, dtype=torch.int64)
    for part in torch.split(x.flatten(), TILE):
        part = part[part != 0].float()
        counts += torch.bincount((part.view(torch.int32) >> _SHIFT) & (BINS - 1), minlength=BINS)
    total = int(counts.sum())
    if not total:
        return -math.inf
    used = counts > 0
    shares = counts[used].double() / total
    bits = float(-(shares * (shares.log() - log_widths()[used])).sum())
    return bits + (int(used.sum()) - 1) / (2 * total)


def log_widths() -> Tensor:
    """The logarithm of every bin's width: (4096,) float64. The bins nearest to 0 hold subnormal numbers."""
    exponents = (torch.arange(BINS) >> MANTISSA_BITS) & 0xFF
    return (exponents.clamp(min=1) - _BIAS - MANTISSA_BITS).double() * math.log(2)


def gaussian_entropy(x: Tensor) -> float:
    """log σ + ½·log 2πe [nats], σ² the mean square of x's values other than 0; −∞ where there are none."""
    alive = int(x.count_nonzero())
    energy = sum(float(part.double().square().sum()) for part in torch.split(x.flatten(), TILE))
    return math.log(2 * math.pi * math.e * energy / alive) / 2 if alive else -math.inf


def matrix_entropies(values: Tensor, layouts: Sequence[Layout]) -> list[MatrixEntropy]:
    """Of every parameter with two dimensions or more in (workers, coordinates), bucket after bucket."""
    found, start = [], 0
    for layout in layouts:
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            if len(shape) >= 2:
                own = values[:, start + offset : start + offset + math.prod(shape)]
                found.append(MatrixEntropy(name, shape, _mean(differential_entropy(row) for row in own)))
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
