"""Arguments that a kernel must not get raise an exception and do not crash."""

from __future__ import annotations

import pytest
import torch
from dynamiq_hops_cases import Chunk, make_coder
from implementations import implementation
from inputs import gradient, poisoned

from gradwire.codecs.collectives import align
from gradwire.codecs.dynamiq.arrangement import message_order
from gradwire.codecs.dynamiq.definition import OrderedChunk
from gradwire.codecs.dynamiq.format import numbers_of, used_bytes
from gradwire.codecs.dynamiq.hops import make_hop
from gradwire.codecs.native.call import KernelError
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.native.loading import library
from gradwire.codecs.omnireduce import block_energies

CPU_DEVICE = torch.device("cpu")

pytestmark = pytest.mark.skipif(library("cpu") is None, reason="the kernels for CPUs are not built")


@pytest.mark.parametrize("name", ["v4", "emulated"])
@pytest.mark.parametrize(
    "counts", [{2: 1, 4: 1, 8: 9}, {2: 5, 4: -1}, {2: 3}, {2: 0}, {8: 4}, {4: 2**31 - 1}]
)
def test_counts_that_are_not_those_of_the_super_groups_give_nan(name: str, counts: dict[int, int]) -> None:
    """Nothing is written beyond a message: 8 bits would need more bytes than it has."""
    chunk = Chunk(1000, make_coder(0, 2))
    numbers, size = numbers_of(counts, CPU_DEVICE), align(used_bytes({2: 1, 4: 3}, chunk.coder.format))
    for dtype in (torch.float32, torch.bfloat16):
        x, memory, result = gradient("normal", 1000).to(dtype), poisoned(size + 999, torch.uint8, 0), []
        before = memory.clone()
        with implementation(name):
            hop = make_hop(1000, dtype, OrderedChunk(chunk.order, chunk.mean, numbers), chunk.coder)
            hop.run(x=x, outgoing=memory[:size])
            assert (memory[:size] == 0xFF).all(), "every scale is NaN"
            assert torch.equal(memory[size:], before[size:])
            for given in ({"incoming": before[:size]}, {"incoming": before[:size], "x": x}):
                result.append(poisoned(1000, dtype, 1))
                hop.run(**given, result=result[-1])
                result.append(poisoned(1024, torch.float32, 1).view(4, 256))
                hop.run(**given, new_sums=result[-1])
        assert all(values.isnan().all() for values in result)


def test_float16_is_not_run_by_something_else() -> None:
    chunk = Chunk(1000, make_coder(0, 2), torch.float16)
    with (
        using_kernels("cpu"),
        pytest.raises(ValueError, match="float32 or bfloat16 is needed, got torch.float16"),
    ):
        chunk.hop().run(x=gradient("normal", 1000).half(), outgoing=chunk.message())


def test_no_super_groups_are_an_empty_message() -> None:
    coder, none = make_coder(0, 2), torch.empty(0, dtype=torch.int32)
    for name in ("default", "cpu"):
        message = torch.full((16,), 0xAB, dtype=torch.uint8)
        with using_kernels(name):
            hop = make_hop(
                1000, torch.float32, OrderedChunk(none, torch.empty(0), numbers_of({}, CPU_DEVICE)), coder
            )
            hop.run(x=gradient("normal", 1000), outgoing=message)
        assert not message.any()


def test_more_super_groups_than_an_order_can_hold() -> None:
    with pytest.raises(ValueError, match="at most 2,147,483,647 super-groups, got 2,147,483,648; use more"):
        message_order(torch.zeros(1, 1, dtype=torch.int64), 2**31)


def test_blocks_beyond_all_buckets() -> None:
    with (
        using_kernels("cpu"),
        pytest.raises(KernelError, match="block_energies on cpu: an argument is out of range"),
    ):
        block_energies(gradient("normal", 1000), 2**63 - 1)
