"""The eight strategies that SDP4Bit compares, by name: what they send, by the formats of their messages."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from training_jobs import tiny_run, train_all_virtually

from gradwire.codecs.linear.definition import MessageFormat
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.sharded.weights import gathered_by_level
from gradwire.harness.record.runs import load_run

Bytes = Callable[[int], int]
"""The bytes of a message by its number of coordinates."""

GROUP, DIFFERENCES = 128, 2048


def whole(bits: int) -> Bytes:
    return lambda numel: numel * bits // 8


def quantized(bits: int, group: int) -> Bytes:
    return MessageFormat(bits, group, "float32").num_bytes


FLOAT32, BFLOAT16 = whole(32), whole(16)
INT8, INT4, WEIGHTS = quantized(8, GROUP), quantized(4, GROUP), quantized(4, DIFFERENCES)

SENT = {
    "sharded_baseline": (BFLOAT16, None),
    "qw": (WEIGHTS, None),
    "qwd": (WEIGHTS, None),
    "ulq": (BFLOAT16, (INT4, INT4)),
    "tlq": (BFLOAT16, (INT8, INT4)),
    "tlq_hs": (BFLOAT16, (INT8, INT4)),
    "sdp4bit": (WEIGHTS, (INT8, INT4)),
    "zeropp": (WEIGHTS, (INT4, INT4)),
}
"""Messages of weights, and of gradients inside nodes and between them; None: float32 on a ring."""


@pytest.mark.parametrize("strategy", SENT)
def test_a_strategy_sends_what_its_messages_hold(strategy: str, tmp_path: Path) -> None:
    """Each of 2 × 2 ranks sends two slices inside its node and one between nodes, and its shard to three."""
    config = tiny_run(
        f"experiment={strategy}",
        "cluster=virtual",
        "cluster.workers=4",
        "cluster.ranks_per_node=2",
        "parallel.bucket_cap_mb=25",  # one bucket
        "train.steps=1",
        "train.save_checkpoint=false",
        "measure.vnmse_every=0",
    )
    train_all_virtually(config, str(tmp_path))
    done = load_run(tmp_path).done
    weights, gradients = SENT[strategy]
    shard = done.num_coordinates / 4
    a_slice = math.ceil(shard / GROUP) * GROUP
    sent = {phase: count / 4 for phase, count in done.bytes_by_phase.items() if phase != "control"}
    assert sent.pop("weights") == pytest.approx(3 * weights(math.ceil(shard)), rel=0.01)
    expected = 3 * FLOAT32(math.ceil(shard))
    if gradients is not None:
        inside, between = gradients
        expected = inside(2 * a_slice) + between(a_slice)
    assert sum(sent.values()) == pytest.approx(expected, rel=0.01)


def test_a_message_of_weights_comes_to_every_node_once() -> None:
    """6 ranks on 3 nodes, each with a message of another size, one of them empty."""
    world = VirtualWorld(6, Fabric(partial(make_schedule, "ring"), num_nodes=3), torch.device("cpu"))
    messages = [torch.full((rank,), rank, dtype=torch.uint8) for rank in world.ranks]
    sizes = [message.numel() for message in messages]
    found = world.run(
        {rank: lambda comm: gathered_by_level(comm, messages[comm.rank], sizes) for rank in world.ranks}
    )
    for own in found.values():
        assert all(torch.equal(*pair) for pair in zip(own, messages, strict=True))
    assert sum(each.between_nodes for each in world.traffic.values()) == 2 * sum(sizes)
    assert sum(each.total for each in world.traffic.values()) == 5 * sum(sizes)
