"""The differential entropy H = −∫ f log f of a gradient's values, in nats, and that of Gaussians beside it.

A density is estimated from a histogram over the leading bits of float32 (`definition`), as constant within
each bin. Bins grow with the values, so the estimate is right to 0.003 nat for normal, Laplace and Student's t
distributions of any scale, and for a gradient twice as large it is log 2 more.

Zeros have no density. They can be left out, or belong to the distribution whose variance is asked for: each
reading has a Gaussian of its own.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.edgc.definition import ZEROS, finite_counts, log2_widths, lower_ends

_PIECE = 1 << 22
"""Values squared at a time."""


def differential_entropy(counts: Tensor) -> float:
    """−Σ p·log(p/w) + (K − 1)/2N over the K occupied bins of width w; `counts` is a histogram, (4097,) int64.

    The last term corrects the bias of N samples (Miller and Madow). About the N finite values other than zero
    alone (see `zero_share`); −inf if there are none.
    """
    return entropy_and_zeros(counts)[0]


def entropy_and_zeros(counts: Tensor) -> tuple[float, float]:
    """`differential_entropy` and `zero_share` in one go: matrices may be many and small."""
    numbers, zeros = finite_counts(counts).flatten(), int(counts[ZEROS])
    total = float(numbers.sum())
    if not total:
        return -math.inf, 1.0
    entropy = math.log(total) + float(numbers @ _log_widths() - torch.xlogy(numbers, numbers).sum()) / total
    return entropy + (int(numbers.count_nonzero()) - 1) / (2 * total), zeros / (zeros + total)


def gaussian_entropy_with_zeros(counts: Tensor) -> float:
    """log σ + ½·log 2πe, where σ is the standard deviation of all finite values, zeros too, about their mean:
    what EDGC's Theorem 2 is about. −inf if σ is 0.

    Values are taken as spread evenly over their bins, which gives up to 0.006 nat too much.
    """
    numbers = finite_counts(counts)
    if not numbers.any():
        return -math.inf
    middles, squares = _moments()
    total = float(numbers.sum()) + int(counts[ZEROS])
    mean = float((numbers[0] - numbers[1]) @ middles) / total
    square = float(numbers.sum(dim=0) @ squares) / total
    return 0.5 * math.log(2 * math.pi * math.e * (square - mean * mean))


def gaussian_entropy_without_zeros(x: Tensor) -> float:
    """log σ + ½·log 2πe, where σ² is the mean square of the values of `x`, any shape, other than zero: what
    `differential_entropy` compares with. −inf if there are none."""
    alive = int(x.count_nonzero())
    energy = sum(float(piece.double().square().sum()) for piece in torch.split(x.flatten(), _PIECE))
    return math.log(2 * math.pi * math.e * energy / alive) / 2 if alive else -math.inf


@lru_cache(maxsize=1)
def _log_widths() -> Tensor:
    """The natural logarithm of the width of the bins of finite values: float64 (4080,)."""
    return (log2_widths() * math.log(2)).repeat(2)


@lru_cache(maxsize=1)
def _moments() -> tuple[Tensor, Tensor]:
    """The mean and the mean square of values spread evenly over a bin: two float64 (2040,)."""
    width = log2_widths().exp2()
    middle = lower_ends() + width / 2
    return middle, middle.square() + width.square() / 12


def zero_share(counts: Tensor) -> float:
    """The share of zeros among the finite values sampled; 1 if there are no values."""
    zeros, others = int(counts[ZEROS]), float(finite_counts(counts).sum())
    return zeros / (zeros + others) if others else 1.0
