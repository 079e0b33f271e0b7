"""Statistics of a bucket that are computed before encoding: block norms of sparse codecs, the entropy of
EDGC.

Entropies are measured at the sampling rates β of EDGC's Table V; names give the stride 1/β.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from gradwire.codecs.edgc.sampler import COUNTERS, add_histogram, estimate
from gradwire.codecs.omnireduce import num_blocks, write_energies
from gradwire.harness.studies.bench.operation import Case, Operation

BLOCK, STRIDE = 256, 4

TABLE_V = (1, 2, 4, 20)


def operations() -> Iterator[Operation]:
    yield Operation(f"omnireduce.energies.{BLOCK}", ("block_energies",), _energies)
    yield Operation(f"edgc.histogram.{STRIDE}", ("sampled_histogram",), _histogram)
    for stride in TABLE_V:
        yield Operation(f"edgc.bits.{stride}", ("sampled_histogram",), partial(_entropy, "bits", stride))
    for stride in (1, STRIDE):
        yield Operation(
            f"edgc.gaussian.{stride}", ("sampled_histogram",), partial(_entropy, "gaussian", stride)
        )
        yield Operation(
            f"edgc.hist.{stride}",
            ("sampled_energies", "equal_bins_histogram"),
            partial(_entropy, "hist", stride),
        )


def _energies(x: Tensor) -> Case:
    energies = torch.empty(num_blocks(x.numel(), BLOCK), dtype=torch.float64, device=x.device)
    return Case(lambda: write_energies(x, BLOCK, energies), (x,), (energies,))


def _histogram(x: Tensor) -> Case:
    """Counts every fourth coordinate, which reads every cache line of the bucket."""
    counts = torch.zeros(COUNTERS, dtype=torch.int64, device=x.device)
    return Case(lambda: add_histogram(x, STRIDE, 0, counts), (x,), (counts,))


def _entropy(method: str, stride: int, x: Tensor) -> Case:
    """The whole estimate of the entropy [nats] of a gradient."""
    nats = torch.empty(1, dtype=torch.float64)
    return Case(lambda: nats.fill_(estimate(x, method, stride, 0)), (x,), (nats,))
