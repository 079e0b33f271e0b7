"""The differential entropy H = −∫ f log f of a gradient's values, in nats, from their histogram.

`bit_entropy` takes the density in each bin as constant. Bins grow with the values, so the estimate is right
to 0.003 nat for normal, Laplace and Student's t distributions of any scale, and for a gradient twice as large
it is log 2 more. `gaussian_entropy` is that of a normal distribution of the same variance, which EDGC's
Theorem 2 is about.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.codecs.edgc.bins import ZEROS, finite_counts, log2_widths, lower_ends


def bit_entropy(counts: Tensor) -> float:
    """−Σ p·log(p/w) + (K − 1)/2N over the K occupied bins of width w; `counts` is a histogram, (4097,) int64.

    The last term corrects the bias of N samples (Miller and Madow). About the N finite values other than zero
    alone (see `zero_share`); −inf if there are none.
    """
    numbers = finite_counts(counts)
    total = float(numbers.sum())
    if not total:
        return -math.inf
    shares = numbers / total
    entropy = torch.special.entr(shares).sum() + math.log(2) * (shares * log2_widths()).sum()
    return float(entropy) + (int((numbers > 0).sum()) - 1) / (2 * total)


def gaussian_entropy(counts: Tensor) -> float:
    """log σ + ½·log 2πe, where σ is the standard deviation of all finite values, zeros too; −inf if it is 0.

    Values are taken as spread evenly over their bins, which gives up to 0.006 nat too much.
    """
    numbers, width = finite_counts(counts), log2_widths().exp2()
    middle, total = lower_ends() + width / 2, float(numbers.sum()) + int(counts[ZEROS])
    if not numbers.any():
        return -math.inf
    mean = float(((numbers[0] - numbers[1]) * middle).sum()) / total
    square = float((numbers.sum(dim=0) * (middle.square() + width.square() / 12)).sum()) / total
    return 0.5 * math.log(2 * math.pi * math.e * (square - mean * mean))


def zero_share(counts: Tensor) -> float:
    """Of the finite values sampled, the share of zeros; 1 if there are no values."""
    zeros, others = int(counts[ZEROS]), float(finite_counts(counts).sum())
    return zeros / (zeros + others) if others else 1.0
