"""EDGC's gradient data sampler: the entropy of one matrix from some of its coordinates (EDGC §IV-B).

Three estimators share one interface. `bits` is right for any distribution and scale. `hist` is the usual
histogram of equal bins, scaled by the standard deviation: right if values are spread over many of its bins,
which those of a real gradient often are not. `gaussian` is the entropy of a normal distribution of the same
standard deviation, which is what Theorem 2 needs and Lemma 2 states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.edgc.definition import sampled_coordinates, sampled_histogram, sampling_key
from gradwire.codecs.edgc.entropy import entropy_and_zeros, gaussian_entropy_with_zeros, zero_share
from gradwire.codecs.options.low_rank import ESTIMATORS

BINS = 256
"""Bins of `hist`, all equally wide."""

LIMIT = 8.0
"""They range from −8 to 8 standard deviations; what is beyond counts in the outermost ones."""

_PIECE = 1 << 14
"""Values that `hist` works on at a time."""


@dataclass(frozen=True)
class Sample:
    """The entropy of a matrix [nats], −inf if there is nothing but zeros, and the share of exact zeros among
    the coordinates that were drawn. `bits` and `hist` leave zeros out; to σ of `gaussian` they belong."""

    nats: float
    zeros: float


def estimate(x: Tensor, method: str, stride: int, seed: int) -> float:
    """The differential entropy [nats] of `x`, any shape of a floating dtype, from one coordinate in every
    `stride`; −inf if all of them are zero.

    Draws depend on `seed` and the number of coordinates alone. Raises ValueError for a method that is none of
    `ESTIMATORS`.
    """
    return sample(x, method, stride, seed).nats


def sample(x: Tensor, method: str, stride: int, seed: int) -> Sample:
    """`estimate` with the share of zeros."""
    if method not in ESTIMATORS:
        raise ValueError(f"estimator={method!r} is unknown: choose one of {', '.join(ESTIMATORS)}")
    flat = x.detach().reshape(-1)
    if method == "hist":
        return _scaled_histogram(flat, stride, seed)
    counts = sampled_histogram(flat, stride, seed)
    if method == "bits":
        return Sample(*entropy_and_zeros(counts))
    return Sample(gaussian_entropy_with_zeros(counts), zero_share(counts))


def _drawn(x: Tensor, stride: int, seed: int) -> Iterator[Tensor]:
    """The coordinates of `x`, (numel,), that `sampled_histogram` counts, in float64 pieces."""
    key = sampling_key(seed)
    for first in range(0, x.numel(), _PIECE * stride):
        if stride == 1:
            yield x[first : first + _PIECE].double()
            continue
        last = min(first + _PIECE * stride, x.numel())
        windows = torch.arange(first // stride, -(-last // stride), device=x.device)
        yield x[sampled_coordinates(windows, x.numel(), stride, key)].double()


def _scaled_histogram(x: Tensor, stride: int, seed: int) -> Sample:
    """−Σ p·log(p/w) + (K − 1)/2N over the K occupied bins of width w = 16σ/256, for the N finite values other
    than zero; σ is their root mean square."""
    pieces = list(_drawn(x, stride, seed))
    if not all(bool(piece.isfinite().all()) for piece in pieces):
        pieces = [piece[piece.isfinite()] for piece in pieces]
    drawn = sum(piece.numel() for piece in pieces)
    total = sum(int(piece.count_nonzero()) for piece in pieces)
    if not total:
        return Sample(-math.inf, 1.0)
    energy = sum(float(piece @ piece) for piece in pieces)
    width = 2 * LIMIT * math.sqrt(energy / total) / BINS
    counts = torch.zeros(BINS, dtype=torch.int64, device=x.device)
    for piece in pieces:
        bins = (piece / width).floor_().clamp_(-BINS // 2, BINS // 2 - 1).add_(BINS // 2).long()
        counts += torch.bincount(bins, minlength=BINS)
    counts[BINS // 2] -= drawn - total  # zeros fall into the bin above 0
    used = counts.cpu().double()
    nats = math.log(total) + math.log(width) - float(torch.xlogy(used, used).sum()) / total
    return Sample(nats + (int(used.count_nonzero()) - 1) / (2 * total), 1 - total / drawn)
