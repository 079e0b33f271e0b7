"""Groups along the dimensions of a mesh, messages from one rank to another, and bytes inside and between
nodes: right, alike in both worlds, and in the trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from collective_jobs import (
    CPU,
    STAGED,
    fabric,
    in_stages,
    make_chain,
    make_dimensions,
    make_pairs,
    really,
    virtually,
)
from pool import Workers
from world_steps import run_collectives

from gradwire.codecs.casts import CastHops
from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.mesh import Mesh
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.network.links import star
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.simulate.codec_times import NoTimes
from gradwire.harness.timing.trace.step import ACTIVATIONS, MEASURE, Post


def members(total: float) -> list[int]:
    """The ranks whose powers of ten a sum holds."""
    return [rank for rank, digit in enumerate(reversed(str(int(total)))) if digit == "1"]


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("num_nodes", [1, 2, 4, 8])
def test_every_dimension_divides_the_ranks(stages: int, num_nodes: int) -> None:
    mesh = Mesh(8, num_nodes, stages)
    for rank in range(8):
        along = {name: mesh.group(name, rank) for name in ("stage", "replica", "local", "node")}
        assert {name: len(found) for name, found in along.items()} == {
            "stage": stages,
            "replica": mesh.replicas,
            "local": 8 // num_nodes,
            "node": num_nodes,
        }
        for name, found in along.items():
            assert rank in found and sorted(found) == list(found)
            assert {mesh.group(name, other) for other in found} == {found}  # type: ignore[arg-type]
        for pair in (("stage", "replica"), ("local", "node")):
            assert set(along[pair[0]]) & set(along[pair[1]]) == {rank}
        assert along["local"] == tuple(mesh.node_of(rank))


def test_what_ranks_do_not_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="6 ranks cannot be divided evenly into 4 nodes"):
        Mesh(6, 4)
    with pytest.raises(ValueError, match="6 ranks cannot be divided evenly into 4 stages"):
        Mesh(6, 1, 4)
    mesh = Mesh(6, 3, 2)  # a stage is ranks 0 to 2, a node two ranks
    with pytest.raises(ValueError, match="has 1 and 2 of them on its nodes of 2 ranks; choose cluster.ranks"):
        mesh.group("local", 1, mesh.group("replica", 1))


def test_groups_along_every_dimension_reduce_alike_in_both_worlds(workers: Workers) -> None:
    world = VirtualWorld(8, STAGED, CPU, debug=True)
    found = world.run({rank: make_dimensions(rank) for rank in range(8)})
    for rank, groups in found.items():
        mesh, stage = Mesh(8, 4, 2), (0, 1, 2, 3) if rank < 4 else (4, 5, 6, 7)
        assert members(groups["stage"][0]) == [rank % 4, rank % 4 + 4]
        assert members(groups["replica"][0]) == members(groups["all"][0]) == list(stage)
        assert members(groups["local"][0]) == list(mesh.node_of(rank))
        assert members(groups["node"][0]) == [other for other in stage if other % 2 == rank % 2]
        assert [groups[name][1] for name in ("stage", "replica", "local", "node", "all")] == [2, 4, 2, 2, 4]
        assert [groups[name][2] for name in ("stage", "replica", "local", "node")] == [
            *(rank // 4, rank % 4, rank % 2, rank % 4 // 2)
        ]
        control = sum(world.traffic[other].by_phase["control"] for other in stage)
        assert control == 2 * 3 * 8, "a ring of four sums one number of eight bytes"
        assert world.traffic[rank].by_phase["metadata"] > 0
    smaller = VirtualWorld(4, replace(STAGED, num_nodes=2), CPU, debug=True)
    expected = smaller.run({rank: make_dimensions(rank) for rank in range(4)})
    assert dict(enumerate(workers(4)(in_stages))) == expected


@pytest.mark.parametrize("size", [2, 3, 5])
def test_messages_from_rank_to_rank(size: int, workers: Workers) -> None:
    virtual, sent = virtually(size, "ring", make_chain)
    total = size * (size + 1) / 2
    for rank, (x, from_left, from_right) in enumerate(virtual):
        assert x.tolist() == [total] * 1000
        if size > 2:
            assert from_left.tolist() == [(rank - 1) % size + 0.5] * 3
            assert from_right.tolist() == [(rank + 1) % size] * 4
        inner = (rank > 0) + (rank < size - 1)
        assert sent[rank] == {ACTIVATIONS: 4000 * inner + (3 * 4 + 4 * 2) * (size > 2)}
    for rank, (result, traffic) in enumerate(workers(size)(really, "ring", make_chain)):
        assert all(torch.equal(*pair) for pair in zip(result[:1], virtual[rank][:1], strict=True))
        if size > 2:
            assert all(torch.equal(*pair) for pair in zip(result, virtual[rank], strict=True))
        assert traffic == sent[rank]


def test_ranks_of_a_group_are_counted_in_the_group(workers: Workers) -> None:
    expected = [0.0, 0.0, 2.0, 2.0]
    assert virtually(4, "ring", make_pairs, 2)[0] == expected
    assert [result for result, _ in workers(4)(really, "ring", make_pairs, 2)] == expected


async def hand_on(comm: ScheduledCollectives) -> None:
    x = torch.zeros(250)
    if comm.rank:
        await comm.receive(x, comm.rank - 1)
    if comm.rank < comm.size - 1:
        await comm.send(x, comm.rank + 1)


def test_the_clock_takes_what_a_chain_of_messages_takes() -> None:
    """A thousand bytes at a thousand per second, three times one after another."""
    clock = SimulatedClock(star(4, 1000.0, 0.25), codec_times=NoTimes())
    world = VirtualWorld(4, fabric("ring"), CPU, clock=clock)
    run_collectives(world, {rank: [hand_on] for rank in world.ranks})
    posts = [
        operation
        for rank in world.ranks
        for operation in world.timed[rank].tasks[0].operations
        if isinstance(operation, Post)
    ]
    assert {post.phase for post in posts} == {ACTIVATIONS}
    assert [list(map(len, (post.sends, post.receives))) for post in posts] == [
        *([1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [0, 1])
    ]
    assert max(trace.end for trace in world.timed.values()) == pytest.approx(3 * 1.25, rel=1e-12)


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
def test_bytes_inside_and_between_nodes(num_nodes: int) -> None:
    """On a ring of four the last rank of a node sends to another one, every other one to its own."""

    async def total(comm: ScheduledCollectives) -> None:
        await comm.all_reduce(CastHops(torch.ones(40), comm.size, comm.num_chunks, torch.float32))

    world = VirtualWorld(4, fabric("ring", num_nodes), CPU)
    world.run(dict.fromkeys(range(4), total))
    local = 4 // num_nodes
    for rank in range(4):
        traffic = world.traffic[rank]
        leaves = num_nodes > 1 and rank % local == local - 1
        assert traffic.total > 0
        assert traffic.between_nodes == (traffic.total if leaves else 0)


@pytest.mark.parametrize(("num_nodes", "quarters"), [(1, 0), (2, 2), (4, 6)])
def test_metadata_leaves_a_node_last(num_nodes: int, quarters: int) -> None:
    """Neighbours among four ranks exchange halves, then ranks two apart quarters; then the same backwards, of
    the sums."""

    async def reduce(comm: ScheduledCollectives) -> None:
        await comm.reduce([(torch.ones(40), "sum")])

    world = VirtualWorld(4, fabric("ring", num_nodes), CPU)
    world.run(dict.fromkeys(range(4), reduce))
    for rank in range(4):
        traffic = world.traffic[rank]
        assert traffic.by_phase == {"metadata": 6 * 40}
        assert traffic.between_nodes == quarters * 40


def test_measurements_count_on_no_level() -> None:
    async def measure(comm: ScheduledCollectives) -> None:
        await comm.in_phase(MEASURE).group("node").all_gather(torch.zeros(8))

    world = VirtualWorld(4, fabric("ring", 2), CPU)
    world.run(dict.fromkeys(range(4), measure))
    assert {(own.total, own.between_nodes) for own in world.traffic.values()} == {(0, 0)}


def test_the_backend_knows_no_groups() -> None:
    async def summed(comm: ScheduledCollectives) -> Any:
        return await comm.group("local").backend_sum(torch.zeros(2))

    jobs: dict[int, Any] = dict.fromkeys(range(4), summed)
    with pytest.raises(ValueError, match="knows no groups; use codec=fp32"):
        VirtualWorld(4, fabric("ring", 2), CPU).run(jobs)
