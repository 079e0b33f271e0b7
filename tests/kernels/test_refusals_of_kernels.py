"""Arguments that a kernel must not get raise an exception and do not crash."""

from __future__ import annotations

import pytest
import torch
from dynamiq_hops_cases import Chunk, make_coder
from inputs import gradient

from gradwire.codecs.dynamiq.allocation import write_widths
from gradwire.codecs.dynamiq.hops import make_hop
from gradwire.codecs.native.call import KernelError
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import library
from gradwire.codecs.omnireduce.definition import block_energies

pytestmark = pytest.mark.skipif(library("cpu") is None, reason="the kernels for CPUs are not built")


def test_counts_that_are_not_those_of_the_super_groups() -> None:
    chunk = Chunk(1000, make_coder(0, 2))
    for counts in ({2: 1, 4: 1, 8: 9}, {2: 5, 4: -1, 8: 0}):
        with using_kernels("cpu"), pytest.raises(ValueError, match="dynamiq_hop: counts .* 4 super-groups"):
            make_hop(1000, torch.float32, chunk.order, chunk.mean, counts, chunk.coder)


def test_float16_is_not_run_by_something_else() -> None:
    chunk = Chunk(1000, make_coder(0, 2), torch.float16)
    with (
        using_kernels("cpu"),
        pytest.raises(ValueError, match="float32 or bfloat16 is needed, got torch.float16"),
    ):
        chunk.hop().run(x=gradient("normal", 1000).half(), outgoing=chunk.message())


def test_no_super_groups_are_an_empty_message() -> None:
    coder, none = make_coder(0, 2), torch.empty(0, dtype=torch.int64)
    for name in ("default", "cpu"):
        message = torch.full((16,), 0xAB, dtype=torch.uint8)
        with using_kernels(name):
            hop = make_hop(1000, torch.float32, none, torch.empty(0), {2: 0, 4: 0, 8: 0}, coder)
            hop.run(x=gradient("normal", 1000), outgoing=message)
        assert not message.any()


def test_widths_that_do_not_ascend() -> None:
    patterns, chosen = torch.zeros(1, 4, dtype=torch.int32), torch.zeros(1, 4, dtype=torch.int64)
    spare, thresholds = torch.tensor([64]), torch.zeros(2, 0x7F81, dtype=torch.int32)
    with using_kernels("cpu"), pytest.raises(ValueError, match="ascending widths are needed"):
        write_widths(patterns, spare, thresholds, [2, 2, 4], chosen)


def test_blocks_beyond_all_buckets() -> None:
    with (
        using_kernels("cpu"),
        pytest.raises(KernelError, match="block_energies on cpu: an argument is out of range"),
    ):
        block_energies(gradient("normal", 1000), 2**63 - 1)
