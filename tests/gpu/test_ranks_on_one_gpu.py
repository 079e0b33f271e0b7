"""Ranks on one GPU, whose buckets are synchronized by real threads, streams, events and arenas."""

from __future__ import annotations

import pytest
import torch
from ranks_on_device import Rounds, assert_same, on_device, virtually

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("codec", ["fp32", "bf16", "dynamiq", "mxfp8", "onebit", "thc"])
@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_that_are_held_up_at_random_have_the_bytes_of_the_cpu(
    codec: str, topology: str, size: int
) -> None:
    """Inputs and copies come late, on streams that differ in how late: what ran too early would take zeros,
    a message that is not there yet, or an arena's bytes of the step before. On a stream that all ranks share
    the virtual world goes first: what a process keeps for all its ranks is then there."""
    rounds = Rounds(codec, topology, size, lengths=(200_000, 3_001, 70_000))
    device = torch.device("cuda", torch.cuda.current_device())
    expected = virtually(rounds)
    assert_same(virtually(rounds, device), expected)
    torch.cuda.synchronize(device)
    assert_same(on_device(rounds, device, longest_ms=3), expected)
