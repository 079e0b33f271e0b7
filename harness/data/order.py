"""The order of training: which samples a worker takes at a step.

Samples follow from the step by arithmetic alone, so that a resumed run needs no loader state.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gradwire.harness.runtime.seeding import derive_seed


def sample_indices(
    num_samples: int,
    seed: int,
    step: int,
    micro_step: int,
    rank: int,
    *,
    world_size: int,
    micro_batch: int,
    accumulation: int,
) -> Tensor:
    """Returns the indices of one micro-batch, shape (micro_batch,), dtype int64.

    A run walks through one endless sequence, with a fresh permutation of all samples per epoch. Steps take
    samples from it in order; within a step, micro-steps; within a micro-step, ranks. So each epoch uses every
    sample exactly once, a batch may span epochs, and a step's samples depend only on the product of world
    size, micro-batch and accumulation.
    """
    assert num_samples > 0 and 0 <= micro_step < accumulation and 0 <= rank < world_size
    start = ((step * accumulation + micro_step) * world_size + rank) * micro_batch
    taken = [divmod(position, num_samples) for position in range(start, start + micro_batch)]
    return torch.stack([_permutation(num_samples, seed, epoch)[place] for epoch, place in taken])


# The virtual cluster asks for every rank in turn; a batch spans few epochs.
@lru_cache(maxsize=4)
def _permutation(num_samples: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(num_samples, generator=generator)
