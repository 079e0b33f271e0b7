"""What the reduced statistics say of every super-group: the mean to subtract, and the norm that decides on
its width (DynamiQ §3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.codecs.dynamiq import reduced_compiled as compiled
from gradwire.codecs.dynamiq.allocation import norm_patterns
from gradwire.codecs.dynamiq.statistics import common_mean
from gradwire.codecs.native.choice import library_for
from gradwire.codecs.native.operators import operator


def reduced_statistics(
    mean_sum: Tensor, norm: Tensor, workers: int, num_chunks: int
) -> tuple[Tensor, Tensor]:
    """The norms' patterns by chunk, (chunks, super-groups of the longest) int32, and the workers' mean of the
    means, (super-groups,) float32; from the reduced bf16 statistics, (super-groups,).

    Where one of the two is not finite the pattern is 0 and the mean NaN. Super-group i·chunks + c is the i-th
    of chunk c; a chunk that lacks the last one has a pattern of 0 there.
    """
    total = norm.numel()
    shape = (num_chunks, -(-total // num_chunks))
    patterns = torch.empty(shape, dtype=torch.int32, device=norm.device)
    mean = torch.empty(total, dtype=torch.float32, device=norm.device)
    write_reduced(mean_sum.contiguous(), norm.contiguous(), workers, patterns, mean)
    return patterns, mean


@operator(
    "reduced_statistics(Tensor mean_sum, Tensor norm, int workers, Tensor(a!) patterns, Tensor(b!) mean)"
    " -> ()"
)
def write_reduced(mean_sum: Tensor, norm: Tensor, workers: int, patterns: Tensor, mean: Tensor) -> None:
    """Fill `patterns`, int32 (chunks, super-groups), and `mean`, float32 (super-groups,)."""
    library = library_for(norm.device)
    if library is not None:
        compiled.reduced_statistics(library, mean_sum, norm, workers, patterns, mean)
        return
    finite = mean_sum.isfinite() & norm.isfinite()
    chunks, length = patterns.shape
    padded = torch.nn.functional.pad(norm_patterns(norm, finite), (0, chunks * length - norm.numel()))
    patterns.copy_(padded.view(length, chunks).T)
    mean.copy_(common_mean(mean_sum, finite, workers))
