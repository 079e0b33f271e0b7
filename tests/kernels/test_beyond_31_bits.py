"""Buckets of more than 2³¹ coordinates: places are 64-bit numbers."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from dynamiq_hops_cases import Chunk, make_coder
from implementations import implementation
from inputs import assert_same, poisoned
from torch import Tensor

from gradwire.codecs.dynamiq.arrangement import super_group_statistics
from gradwire.codecs.dynamiq.definition import OrderedChunk
from gradwire.codecs.dynamiq.format import numbers_of
from gradwire.codecs.dynamiq.hops import make_hop
from gradwire.codecs.edgc.sampler import sampled_histogram
from gradwire.codecs.mxfp.definition import block_maxima
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.omnireduce import block_energies

NUMEL = (1 << 31) + 300
END = 256 * 3 + 300
"""Coordinates at the end that are not zeros."""

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

pytestmark = pytest.mark.skipif(MEMORY < 10 << 30, reason="needs 10 GiB of memory")


def zeros() -> Tensor:
    """A bucket of zeros, which take no memory before they are written."""
    return torch.from_numpy(np.zeros(NUMEL, np.int16)).view(torch.bfloat16)


@pytest.fixture(scope="module")
def bucket() -> Tensor:
    """Zeros and a random end."""
    x = zeros()
    x[-END:] = torch.randn(END, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    return x


def test_what_is_reduced_first(bucket: Tensor) -> None:
    end = bucket[-END:]
    with implementation("v4"):
        for huge, alone in zip(super_group_statistics(bucket), super_group_statistics(end), strict=True):
            assert_same(huge[-4:], alone[-4:])
            assert not huge[:-5].any()
        assert_same(block_maxima(bucket)[-30:], block_maxima(end)[-30:])
        assert_same(block_energies(bucket, 256)[-4:], block_energies(end, 256)[-4:])
        counts = sampled_histogram(bucket, 1, 0)
        assert int(counts.sum()) == NUMEL
        assert int(counts[:-1].sum()) == int(bucket[-END:].count_nonzero())


def test_a_hop_gathers_and_scatters(bucket: Tensor) -> None:
    last = -(-NUMEL // 256) - 1
    order, mean = torch.tensor([last, 0, last - 1, last - 3], dtype=torch.int32), torch.zeros(4)
    chunk = Chunk(1024, make_coder(1, 4))
    counts = numbers_of({2: 1, 4: 1, 8: 2}, order.device)
    message = [poisoned(4096, torch.uint8, seed) for seed in (0, 1)]
    found = []
    for name, out in zip(("default", "cpu"), message, strict=True):
        with using_kernels(name):
            hop = make_hop(NUMEL, torch.bfloat16, OrderedChunk(order, mean, counts), chunk.coder)
            hop.run(x=bucket, outgoing=out)
            result = zeros()
            hop.run(incoming=out, result=result)
            found.append(torch.cat((result[:256], result[-END:])))
    assert_same(message[1], message[0])
    assert_same(found[1], found[0])
