"""Super-groups: how a bucket is cut, and the exact powers of two it is scaled by (DynamiQ §3)."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.floats import power_of_two

SUPER_GROUP = 256
"""Coordinates that share a bit width and a mean."""

TILE = 512
"""Super-groups processed at a time: temporaries of 512 KiB stay near a core, the cost of a call is spread."""

# Exponent field of 2⁻¹⁰⁰. What has a bf16 scale and a maximum below is sent as zeros, and no scaling goes
# further down, so that every factor and its inverse are normal numbers.
SMALLEST_EXPONENT = 27
LARGEST_EXPONENT = 254


def num_super_groups(numel: int) -> int:
    """Super-groups of a bucket, the last one possibly partial."""
    return -(-numel // SUPER_GROUP)


def to_super_groups(x: Tensor) -> Tensor:
    """(numel,) of a floating dtype as (super-groups, 256) float32, the last one padded with zeros."""
    padding = num_super_groups(x.numel()) * SUPER_GROUP - x.numel()
    x = x.to(torch.float32)
    if padding:
        x = torch.nn.functional.pad(x, (0, padding))
    return x.view(-1, SUPER_GROUP)


def exponent(maximum: Tensor) -> Tensor:
    """Exponent field of non-negative float32, limited to [27, 254]: int32, same shape."""
    return (maximum.view(torch.int32) >> 23).clamp_(SMALLEST_EXPONENT, LARGEST_EXPONENT)


def normalizer(maximum: Tensor) -> Tensor:
    """The power of two that brings `maximum` (float32, ≥ 2⁻¹⁰⁰) into [2, 4).

    Scaling by it is exact, so what is computed from scaled values neither overflows nor vanishes, and scaling
    a gradient by 2^k changes no bit of it.
    """
    return power_of_two(255 - exponent(maximum))
