"""The channel between ranks on one device, on a CPU: the bytes of the virtual world, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from ranks_on_device import Rounds, assert_same, on_device, ranks_on, virtually
from stream_channel import Communicator
from torch import Tensor

from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.transport.process import PeerError

CPU = torch.device("cpu")


@pytest.mark.parametrize("codec", ["fp32", "bf16", "dynamiq", "mxfp8"])
@pytest.mark.parametrize("topology", ["ring", "butterfly"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_two_buckets_in_flight_have_the_bytes_of_the_virtual_world(
    codec: str, topology: str, size: int
) -> None:
    rounds = Rounds(codec, topology, size)
    assert_same(on_device(rounds, CPU, longest_ms=1), virtually(rounds))


def test_a_rank_that_posts_nothing_is_lost() -> None:
    async def gather(comm: ScheduledCollectives) -> Tensor:
        return (await comm.all_gather(torch.ones(3)))[1]

    with ranks_on(CPU, 2, Rounds("fp32", "ring", 2).fabric, lambda: None, timeout_s=0.1) as ranks:
        started = ranks[0].start(gather, "bucket")
        with pytest.raises(PeerError, match="rank 0 lost rank 1: no answer in time"):
            ranks[0].result(started)


def test_messages_match_by_their_order_and_must_be_the_same() -> None:
    communicator = Communicator(2, CPU, 5, lambda: None)
    buffers = [torch.full((4,), i, dtype=torch.uint8) for i in range(4)]
    sent = [communicator.post(0, 1, buffers[i], tag, sends=True) for i, tag in ((1, 7), (2, 9))]
    received = [communicator.post(0, 1, buffers[i], tag, sends=False) for i, tag in ((0, 7), (3, 8))]
    for end in (sent[0], received[0]):
        end.wait()
    assert torch.equal(buffers[0], buffers[1])
    for end in (sent[1], received[1]):
        with pytest.raises(RuntimeError, match="message 9 of 4 bytes meets the receive of message 8"):
            end.wait()
