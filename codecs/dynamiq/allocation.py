"""Which super-group gets 2, 4 or 8 bits (DynamiQ §3.2, Appendix A), decided on integers alone.

A super-group deserves 4 bits from a threshold T24 on its squared norm, 8 bits from T48 = 512/17·T24. The norm
is a bf16 whose 15-bit pattern grows with its value, so the pattern itself is the key of the upgrade 2 → 4,
and the largest T24 at which the super-group would reach T48 is the key of its upgrade 4 → 8. The rule "lower
the threshold until the budget is spent" is then: sort all upgrades by key, take the longest prefix that
fits; equal keys are settled by index. No logarithm and no comparison of floats enters a decision.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

WIDTHS = (8, 4, 2)
"""Bits per coordinate, in the order in which a message holds them."""

UNIT_BYTES = 64
"""What the upgrade of one super-group from 2 to 4 bits costs; from 4 to 8 bits costs two."""

NORM_RATIO = math.sqrt(512 / 17)
"""√(T48 / T24): thresholds are compared on norms, not on their squares."""

_INFINITY = 0x7F80
"""The bf16 pattern of infinity: no finite norm reaches it."""


@lru_cache(maxsize=8)
def eight_bit_keys(device: torch.device) -> Tensor:
    """For each bf16 pattern p the largest pattern t with bf16(t·√(512/17)) ≤ p: (0x7f80,) int32."""
    patterns = torch.arange(_INFINITY + 1, dtype=torch.int32)
    norms = patterns.to(torch.int16).view(torch.bfloat16).to(torch.float32)
    thresholds = (norms * NORM_RATIO).to(torch.bfloat16).view(torch.int16).to(torch.int32)
    keys = torch.searchsorted(thresholds, patterns[:_INFINITY], right=True) - 1
    return keys.to(device=device, dtype=torch.int32)


def norm_patterns(norm: Tensor, finite: Tensor) -> Tensor:
    """Bit patterns (int32) of non-negative bf16 norms; 0, hence the smallest width, where not `finite`."""
    return norm.view(torch.int16).to(torch.int32).masked_fill_(~finite, 0)


def allocate(patterns: Tensor, units: Tensor) -> Tensor:
    """Widths of every chunk's super-groups, each chunk within its own capacity.

    `patterns` is (chunks, super-groups) int32, 0 for super-groups that stay at 2 bits; `units` is (chunks,)
    int64, what each chunk may spend on upgrades in units of 64 bytes. Returns (chunks, super-groups) int64.
    """
    chunks, length = patterns.shape
    keys = torch.cat((patterns, eight_bit_keys(patterns.device)[patterns.long()]), dim=1)
    cost = torch.ones(2 * length, dtype=torch.int64, device=patterns.device)
    cost[length:] = 2
    keys, order = keys.sort(dim=1, descending=True, stable=True)
    taken = (cost[order].cumsum(dim=1) <= units[:, None]) & (keys > 0)
    upgraded = torch.zeros(chunks, 2 * length, dtype=torch.bool, device=patterns.device).scatter_(
        1, order, taken
    )
    return 2 + 2 * upgraded[:, :length].long() + 4 * upgraded[:, length:].long()
