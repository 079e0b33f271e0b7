"""What the workers agree on first: every super-group's mean and norm (DynamiQ §3.1, §3.2).

Both travel as bf16 and divided by 2⁸: the sum over up to 256 workers, and the norm of up to 256 coordinates
of as many workers, then stay finite wherever the gradients themselves do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.floats import constant, exponents, fold, normalizers, power_of_two
from gradwire.codecs.dynamiq import native
from gradwire.codecs.dynamiq.format import num_super_groups, to_super_groups
from gradwire.codecs.native.call import readable
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.options.dynamiq import SUPER_GROUP

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
    write_statistics(readable(x), mean, norm)
    return mean, norm


def write_statistics(x: Tensor, mean: Tensor, norm: Tensor) -> None:
    """Fill `mean` and `norm`, bf16 (super-groups,), from `x`, (numel,) float32 or bfloat16."""
    library = library_for(x.device)
    if library is not None:
        native.super_group_statistics(library, x, mean, norm)
        return
    rows = to_super_groups(x)
    field = exponents(rows.abs().amax(dim=1))
    scaled = rows * normalizers(field)[:, None]
    back = power_of_two(field - (1 + TRAVEL_EXPONENT))
    count = torch.full_like(back, SUPER_GROUP)
    count[-1] = x.numel() - (len(rows) - 1) * SUPER_GROUP
    mean.copy_(fold(scaled) / count * back)
    # PyTorch's float32 square root is not always the nearest one; rounded from float64 it is.
    norm.copy_(fold(scaled.square()).double().sqrt().to(torch.float32) * back)


def reduced_statistics(
    mean_sum: Tensor, norm: Tensor, workers: int, num_chunks: int
) -> tuple[Tensor, Tensor]:
    """The norms' patterns by chunk, (chunks, super-groups of the longest) int32, and the workers' mean of the
    means, (super-groups,) float32; from the reduced bf16 statistics, (super-groups,).

    Where one of the two is not finite the pattern is 0 and the mean NaN. Super-group i·chunks + c is the i-th
    of chunk c; a chunk that lacks the last one has a pattern of 0 there.
    """
    finite = mean_sum.isfinite() & norm.isfinite()
    length = -(-norm.numel() // num_chunks)
    padding = num_chunks * length - norm.numel()
    patterns = torch.nn.functional.pad(norm_patterns(norm, finite), (0, padding)).view(length, num_chunks).T
    mean = mean_sum.to(torch.float32) / constant(workers, mean_sum) * float(1 << TRAVEL_EXPONENT)
    return patterns.contiguous(), mean.masked_fill(~finite, torch.nan)


def norm_patterns(norm: Tensor, finite: Tensor) -> Tensor:
    """Bit patterns (int32) of non-negative bf16 norms; 0, hence the smallest width, where not `finite`."""
    return norm.view(torch.int16).to(torch.int32).masked_fill(~finite, 0)
