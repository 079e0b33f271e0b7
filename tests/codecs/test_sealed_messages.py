"""Uncompressed sums whose messages are of the result's type: the sink divides, and means arrive in place."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from gradwire.codecs.casts import CastHops
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import TOPOLOGIES, make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")


def means(codec: str, dtype: torch.dtype, fabric: Fabric, size: int, numel: int) -> list[Tensor]:
    """Every rank's mean of heavy-tailed gradients with a NaN and an infinity."""
    world = VirtualWorld(size, fabric, CPU, debug=True)
    layout, collectives = replace(Layout.flat(numel), dtype=dtype), {}
    for rank in range(size):
        generator = torch.Generator().manual_seed(rank)
        x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
        x[rank % numel] = float("nan") if rank % 2 else float("inf")
        this_round = Round(0, layout, rank, size, 0)
        collectives[rank] = synchronization(make_codec(codec), x.to(dtype), this_round, check_hashes=True)
    return list(world.run(collectives).values())


CASES = [
    *((topology, size, 1, 1) for topology in sorted(TOPOLOGIES) for size in (2, 3, 5)),
    ("two_level", 4, 2, 1),
    ("two_level", 6, 2, 1),
    ("ring", 3, 1, 3),
    ("butterfly", 4, 1, 3),
    ("two_level", 6, 3, 3),
]
"""Topology, ranks, nodes and segments."""


@pytest.mark.parametrize(("topology", "size", "nodes", "segments"), CASES)
@pytest.mark.parametrize(("codec", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_means_that_are_sent_are_those_that_sums_become(
    codec: str,
    dtype: torch.dtype,
    topology: str,
    size: int,
    nodes: int,
    segments: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds where a division is inexact, too, and in buckets with chunks without coordinates."""
    fabric = Fabric(partial(make_schedule, topology), nodes, segments)
    for numel in (1, 9, 1000):
        found = means(codec, dtype, fabric, size, numel)
        with monkeypatch.context() as patch:
            patch.setattr(CastHops, "seal_in_result", lambda hops: None)
            expected = means(codec, dtype, fabric, size, numel)
        for own, other in zip(found, expected, strict=True):
            assert own.dtype == dtype
            assert torch.equal(own.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize(
    ("wire", "dtype", "losses", "in_place"),
    [
        (torch.float32, torch.float32, False, True),
        (torch.bfloat16, torch.bfloat16, False, True),
        (torch.float32, torch.float16, False, True),
        (torch.bfloat16, torch.float32, False, False),
        (torch.float32, torch.bfloat16, False, False),
        (torch.float32, torch.float32, True, False),
    ],
)
def test_messages_lie_in_the_result_where_they_are_of_its_type(
    wire: torch.dtype, dtype: torch.dtype, losses: bool, in_place: bool
) -> None:
    """Half precision is summed, and sent, in float32. The losses reported are those of sums."""
    hops = CastHops(torch.ones(100, dtype=dtype), 3, 4, wire)
    if losses:
        hops.keep_losses()
    room = hops.seal_in_result()
    assert (room is not None) == in_place
    if room is not None:
        assert (
            room.numel() == hops.message_bytes(range(4), 3) and room.data_ptr() == hops._pass.mean.data_ptr()
        )
