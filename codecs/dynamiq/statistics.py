"""Per-super-group mean and norm, as they travel in the first all-reduce (DynamiQ §3.1).

Both travel as bf16 and divided by 2⁸: the sum over up to 256 workers, and the norm of up to 256 coordinates
of as many workers, then stay finite wherever the gradients themselves do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.dynamiq.blocks import SUPER_GROUP, TILE, exponent
from gradwire.codecs.floats import constant, fold, power_of_two

TRAVEL_EXPONENT = 8
"""Statistics travel divided by 2 to this power."""


def super_group_statistics(rows: Tensor, numel: int) -> tuple[Tensor, Tensor]:
    """Mean and norm of every super-group, both bf16 of shape (super-groups,) and divided by 2⁸.

    `rows` is (super-groups, 256) float32 with zeros beyond `numel`, which the last mean does not count.
    With m
    a power of two near the largest magnitude, mean = m·(Σ(x/m)/count) and norm = m·√Σ(x/m)². Non-finite
    coordinates make at least one of the two non-finite.
    """
    mean = torch.empty(rows.shape[0], dtype=torch.bfloat16, device=rows.device)
    norm = torch.empty_like(mean)
    for start in range(0, rows.shape[0], TILE):
        tile = rows[start : start + TILE]
        field = exponent(tile.abs().amax(dim=1))
        scaled = tile * power_of_two(255 - field)[:, None]
        back = power_of_two(field - (1 + TRAVEL_EXPONENT))
        count = torch.full_like(back, SUPER_GROUP)
        if start + TILE >= rows.shape[0]:
            count[-1] = numel - (rows.shape[0] - 1) * SUPER_GROUP
        mean[start : start + TILE] = fold(scaled) / count * back
        norm[start : start + TILE] = fold(scaled.square_()).sqrt_() * back
    return mean, norm


def common_mean(mean_sum: Tensor, finite: Tensor, workers: int) -> Tensor:
    """The mean of the workers' means, float32, from the reduced (bf16) statistics; NaN where not `finite`."""
    mean = mean_sum.to(torch.float32).div_(constant(workers, mean_sum)) * float(1 << TRAVEL_EXPONENT)
    return mean.masked_fill_(~finite, torch.nan)
