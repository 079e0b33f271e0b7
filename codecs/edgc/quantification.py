"""EDGC's compression quantification model: the rank that keeps a matrix's compression error constant as its
entropy changes (EDGC §IV-C, Appendix A).

The singular values of a random matrix follow from its shape alone (Marchenko and Pastur). So does g(r), the
error that the best approximation of rank r leaves when entries have variance 1. The actual error is modelled
as σ·g(r), with σ proportional to the exponential of the entropy. All shapes are m × n with m ≤ n: a matrix
with more rows than columns stands for its transpose.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

METHODS = ("quantiles", "monte_carlo")
"""Choice of eigenvalues: the middles of m equal shares of the law, or m random draws as printed."""

_BISECTIONS = 54
"""Halvings of [0, π/2], after which float64 has no further number between."""

_PAIRS = 1 << 16
"""Pairs of eigenvalue and probability that Monte Carlo draws from, Theorem 1 a) and b)."""

_ROUNDING = 1 + 1e-9
"""By how much g may exceed an error and still count as equal to it."""


def marchenko_pastur_cdf(eigenvalue: Tensor, rows: int, columns: int) -> Tensor:
    """The share of the eigenvalues of A·Aᵀ that are at most `eigenvalue`, any shape: same shape, float64
    (Lemma 1).

    A has the shape (m, n), m ≤ n, of `rows` and `columns`, and independent entries of variance 1. Eigenvalues
    are in [a, b] = [(√n − √m)², (√n + √m)²]: the share is 0 up to a and exactly 1 from b on.
    """
    m, n = _shape(rows, columns)
    low, high = _support(m, n)
    given = eigenvalue.double()
    angle = ((given - low) / (high - low)).clamp(0, 1).sqrt().asin()
    return _share(angle, m, n).masked_fill(given <= low, 0.0).masked_fill(given >= high, 1.0)


def eigenvalue_quantiles(rows: int, columns: int) -> Tensor:
    """The eigenvalues with shares (k − ½)/m, k = 1 … m, as typical ones of A·Aᵀ: (m,) float64, ascending."""
    m, n = _shape(rows, columns)
    shares = (torch.arange(m, dtype=torch.float64, device="cpu") + 0.5) / m
    below, above = torch.zeros_like(shares), torch.full_like(shares, math.pi / 2)
    for _ in range(_BISECTIONS):
        middle = (below + above) / 2
        left = _share(middle, m, n) < shares
        below, above = torch.where(left, middle, below), torch.where(left, above, middle)
    low, high = _support(m, n)
    return low + (high - low) * ((below + above) / 2).sin().square()


def compression_errors(rows: int, columns: int, method: str = "quantiles", seed: int = 0) -> Tensor:
    """g(0), …, g(m): the Frobenius norm that the best approximation of rank r leaves of a random m × n matrix
    with entries of variance 1, (m + 1,) float64 (Theorem 1).

    Decreasing, with g(m) = 0; within 2 % of the mean of random matrices up to r = 3m/4 from m = 64 on. A draw
    of `method="monte_carlo"`, of which `seed` is the seed, has the same mean and a spread of √(1/4n), 6 % for
    64 × 64. Calls share the result, which must not be changed. Raises ValueError for another method.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is unknown: choose one of {', '.join(METHODS)}")
    return _errors(*_shape(rows, columns), method, seed if method == "monte_carlo" else 0)


def rank_for_error(error: float, rows: int, columns: int) -> int:
    """g⁻¹: the smallest rank whose g is at most `error`, up to rounding; 0 if `error` ≥ g(0).

    Raises ValueError if `error` is negative or not a number.
    """
    if not error >= 0:
        raise ValueError(f"a compression error of {error} has no rank: give one that is not negative")
    return int((compression_errors(rows, columns) > error * _ROUNDING).sum())


def updated_rank(rank: int, entropy_before: float, entropy_after: float, rows: int, columns: int) -> int:
    """The rank r₁ = g⁻¹(e^(H₀ − H₁)·g(r₀)) that keeps the error as the entropy [nats] changes (Theorem 3).

    r₀ = `rank` counts as m − 1 at most, because g(m) = 0 stays 0 at any scale. The rank is unchanged if an
    entropy is not finite. Raises ValueError for a negative rank.
    """
    if rank < 0:
        raise ValueError(f"a rank of {rank} is out of range: give one of at least 0")
    if not (math.isfinite(entropy_before) and math.isfinite(entropy_after)):
        return rank
    kept = min(rank, min(rows, columns) - 1)
    factor = math.exp(min(entropy_before - entropy_after, 700.0))  # e^710 is more than float64 holds
    return rank_for_error(factor * float(compression_errors(rows, columns)[kept]), rows, columns)


def _shape(rows: int, columns: int) -> tuple[int, int]:
    """The shape as (m, n) with m ≤ n."""
    if min(rows, columns) < 1:
        raise ValueError(f"a matrix of {rows} × {columns} has no rank: give at least one row and one column")
    return min(rows, columns), max(rows, columns)


def _support(m: int, n: int) -> tuple[float, float]:
    """The smallest and the largest eigenvalue, a and b."""
    return (math.sqrt(n) - math.sqrt(m)) ** 2, (math.sqrt(n) + math.sqrt(m)) ** 2


def _share(angle: Tensor, m: int, n: int) -> Tensor:
    """The CDF at a + (b − a)·sin²θ by the angle θ in [0, π/2], float64: a rewriting of the printed formula,
    which is 0/0 for m = n.

    In terms of θ the printed F is −2√(ab)·atan2(√b·sin θ, √a·cos θ) + (a + b)θ + (b − a)·sin θ·cos θ, with
    √(ab) = n − m and a + b = 2(n + m). Here θ is separated from the first term, so that no large numbers
    cancel for n ≫ m.
    """
    sine, cosine = angle.sin(), angle.cos()
    ratio = n / m
    ahead = torch.atan2(
        2 * sine * cosine, (math.sqrt(ratio) - 1) * cosine.square() + (math.sqrt(ratio) + 1) * sine.square()
    )
    return (2 * angle - (ratio - 1) * ahead + 2 * math.sqrt(ratio) * sine * cosine) / math.pi


@lru_cache(maxsize=256)
def _errors(m: int, n: int, method: str, seed: int) -> Tensor:
    eigenvalues = _drawn_eigenvalues(m, n, seed) if method == "monte_carlo" else eigenvalue_quantiles(m, n)
    smallest = torch.cat([torch.zeros(1, dtype=torch.float64, device="cpu"), eigenvalues.cumsum(0)])
    return smallest.sqrt().flip(0)


def _drawn_eigenvalues(m: int, n: int, seed: int) -> Tensor:
    """m eigenvalues as Theorem 1 draws them: uniform probabilities looked up among random pairs."""
    generator = torch.Generator().manual_seed(seed)
    low, high = _support(m, n)
    places = torch.rand(_PAIRS, dtype=torch.float64, generator=generator, device="cpu")
    pairs = low + (high - low) * places.sort().values
    draws = torch.rand(m, dtype=torch.float64, generator=generator, device="cpu")
    found = torch.searchsorted(marchenko_pastur_cdf(pairs, m, n), draws).clamp(max=_PAIRS - 1)
    return pairs[found].sort().values
