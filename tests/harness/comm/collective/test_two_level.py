"""The two-level all-reduce: what travels inside nodes and between them, in both worlds, with any codec."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from collective_jobs import fabric, gradients, make_two_level_sum, really, virtually
from driven import drive, integers, watched_sum
from pool import Workers

from gradwire.codecs.casts import CastHops
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.transport.local import Mailboxes

SHAPES = [(2, 2), (2, 3), (4, 2)]
"""Nodes and the ranks of each."""

every_shape = pytest.mark.parametrize(("nodes", "local"), SHAPES)


@every_shape
@pytest.mark.parametrize("segments", [1, 3])
def test_sums_are_exact_in_whatever_order_messages_arrive(nodes: int, local: int, segments: int) -> None:
    size = nodes * local
    for seed, numel in enumerate([1000, 333, 9, 1, 0]):
        results, _ = drive(fabric("two_level", nodes, segments), size, watched_sum(numel), seed=seed)
        expected = sum(integers(rank, numel) for rank in range(size))
        assert all(torch.equal(result, expected) for result in results)


@every_shape
@pytest.mark.parametrize("wire", [torch.float32, torch.bfloat16])
def test_bytes_inside_nodes_and_between(
    nodes: int, local: int, wire: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank sends 2(N − 1)/N of an encoded gradient inside its node, 2(M − 1)/(N·M) to others."""
    size, moved = nodes * local, Counter[tuple[int, bool]]()
    send = Mailboxes.send

    def counted(self: Mailboxes, key: Any, buffer: torch.Tensor, handle: Any) -> None:
        source, destination = key[:2]
        moved[source, source // local == destination // local] += buffer.nbytes
        send(self, key, buffer, handle)

    monkeypatch.setattr(Mailboxes, "send", counted)
    numel = 8 * size * 11
    encoded = numel * wire.itemsize

    def make(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
        async def run(comm: ScheduledCollectives) -> torch.Tensor:
            own = gradients(rank, numel)
            return await comm.all_reduce(CastHops(own, size, comm.num_chunks, wire))

        return run

    virtually(size, "two_level", make, nodes)
    for rank in range(size):
        assert moved[rank, True] == 2 * (local - 1) * encoded // local
        assert moved[rank, False] == 2 * (nodes - 1) * encoded // size


@every_shape
def test_real_workers_get_what_virtual_ones_get(nodes: int, local: int, workers: Workers) -> None:
    size = nodes * local
    if size > 6:
        pytest.skip("the pool's processes are few")
    virtual, sent = virtually(size, "two_level", make_two_level_sum, nodes)
    real = workers(size)(really, "two_level", make_two_level_sum, nodes)
    for rank, (result, traffic) in enumerate(real):
        assert torch.equal(result, virtual[0])
        assert torch.equal(virtual[rank], virtual[0])
        assert traffic == sent[rank]


@every_shape
def test_groups_have_schedules_of_their_own(nodes: int, local: int) -> None:
    """Inside a node it is a ring of its ranks, between counterparts a ring of the nodes."""

    def make(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
        async def run(comm: ScheduledCollectives) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            own = torch.tensor([10.0**comm.rank])
            inside = await comm.group("local").reduce([(own, "sum")])
            return inside, await comm.group("node").reduce([(own, "sum")])

        return run

    results, _ = virtually(nodes * local, "two_level", make, nodes)
    for rank, ((inside,), (between,)) in enumerate(results):
        node, place = divmod(rank, local)
        assert inside.item() == sum(10.0**peer for peer in range(node * local, (node + 1) * local))
        assert between.item() == sum(10.0**peer for peer in range(place, nodes * local, local))
