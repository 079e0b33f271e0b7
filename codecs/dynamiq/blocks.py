"""Super-groups: how a bucket is cut (DynamiQ §3)."""

from __future__ import annotations

import torch
from torch import Tensor

SUPER_GROUP = 256
"""Coordinates that share a bit width and a mean."""

TILE = 512
"""Super-groups processed at a time: temporaries of 512 KiB stay near a core, the cost of a call is spread."""


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
