"""What codecs look at before they encode: block norms of sparse codecs, histograms of EDGC's entropy."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradwire.codecs.edgc.definition import COUNTERS, add_histogram
from gradwire.codecs.omnireduce.definition import num_blocks, write_energies
from gradwire.harness.studies.bench.operation import Case, Operation

BLOCK, STRIDE = 256, 4


def operations() -> Iterator[Operation]:
    yield Operation(f"omnireduce.energies.{BLOCK}", ("block_energies",), _energies)
    yield Operation(f"edgc.histogram.{STRIDE}", ("sampled_histogram",), _histogram)


def _energies(x: Tensor) -> Case:
    energies = torch.empty(num_blocks(x.numel(), BLOCK), dtype=torch.float64, device=x.device)
    return Case(lambda: write_energies(x, BLOCK, energies), (x,), (energies,))


def _histogram(x: Tensor) -> Case:
    """Counts every fourth coordinate, which reads every cache line of the bucket."""
    counts = torch.zeros(COUNTERS, dtype=torch.int64, device=x.device)
    return Case(lambda: add_histogram(x, STRIDE, 0, counts), (x,), (counts,))
