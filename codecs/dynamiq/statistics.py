"""Per-super-group mean and norm, as they travel in the first all-reduce (DynamiQ §3.1).

Both travel as bf16 and divided by 2⁸: the sum over up to 256 workers, and the norm of up to 256 coordinates
of as many workers, then stay finite wherever the gradients themselves do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.dynamiq import statistics_compiled as compiled
from gradwire.codecs.dynamiq.blocks import SUPER_GROUP, TILE, num_super_groups, to_super_groups
from gradwire.codecs.floats import constant, exponents, fold, normalizers, power_of_two
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator

TRAVEL_EXPONENT = 8
"""Statistics travel divided by 2 to this power."""


def super_group_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and norm of every super-group of `x`, (numel,) of a floating dtype: both bf16 of shape
    (super-groups,) and divided by 2⁸.

    With m a power of two near the largest magnitude, mean = m·(Σ(x/m)/count) and norm = m·√Σ(x/m)²; the last
    super-group's mean does not count padding. Non-finite coordinates make at least one of the two non-finite.
    """
    mean = torch.empty(num_super_groups(x.numel()), dtype=torch.bfloat16, device=x.device)
    norm = torch.empty_like(mean)
    write_statistics(x if x.dtype in compiled.DTYPES else x.to(torch.float32), mean, norm)
    return mean, norm


@operator("super_group_statistics(Tensor x, Tensor(a!) mean, Tensor(b!) norm) -> ()")
def write_statistics(x: Tensor, mean: Tensor, norm: Tensor) -> None:
    """Fill `mean` and `norm`, bf16 (super-groups,), from `x`, (numel,) float32 or bfloat16."""
    library = library_for(x.device)
    if library is not None:
        compiled.super_group_statistics(library, x, mean, norm)
        return
    rows = to_super_groups(x)
    for start in range(0, rows.shape[0], TILE):
        tile = rows[start : start + TILE]
        field = exponents(tile.abs().amax(dim=1))
        scaled = tile * normalizers(field)[:, None]
        back = power_of_two(field - (1 + TRAVEL_EXPONENT))
        count = torch.full_like(back, SUPER_GROUP)
        if start + TILE >= rows.shape[0]:
            count[-1] = x.numel() - (rows.shape[0] - 1) * SUPER_GROUP
        mean[start : start + TILE] = fold(scaled) / count * back
        # PyTorch's float32 square root is not always the nearest one; rounded from float64 it is.
        root = fold(scaled.square_()).double().sqrt_().to(torch.float32)
        norm[start : start + TILE] = root * back


def common_mean(mean_sum: Tensor, finite: Tensor, workers: int) -> Tensor:
    """The mean of the workers' means, float32, from the reduced (bf16) statistics; NaN where not `finite`."""
    mean = mean_sum.to(torch.float32).div_(constant(workers, mean_sum)) * float(1 << TRAVEL_EXPONENT)
    return mean.masked_fill_(~finite, torch.nan)
