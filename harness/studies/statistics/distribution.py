"""Distributions as quantiles: what is kept of millions of values."""

from __future__ import annotations

from torch import Tensor

PERCENT = 100


def quantiles(values: Tensor) -> list[float]:
    """The smallest values that 0, 1, …, 100 % of `values` do not exceed: 101 of them, the first the least.

    Each is one of `values`, which are not empty and finite.
    """
    ordered = values.flatten().sort().values
    count = ordered.numel()
    places = [max(0, -(-percent * count // PERCENT) - 1) for percent in range(PERCENT + 1)]
    found: list[float] = ordered[places].tolist()
    return found


def share(chosen: Tensor) -> float:
    """The share of True in a mask."""
    return float(chosen.count_nonzero()) / chosen.numel()
