"""Collectives that run alike on pool workers and in the in-process driver."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from world_steps import run_collectives

from gradwire.codecs.casts import CastHops
from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import Submission
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.parallel.synchronize import synchronization

CPU = torch.device("cpu")
Make = Callable[[int], Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]]


def fabric(topology: str, num_nodes: int = 1, segments: int = 1) -> Fabric:
    return Fabric(partial(make_schedule, topology), num_nodes, segments)


def gradients(rank: int, numel: int) -> Tensor:
    """Heavy-tailed, different on every rank."""
    generator = torch.Generator().manual_seed(1000 + rank)
    return torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()


def virtually(
    size: int, topology: str, make: Make, num_nodes: int = 1
) -> tuple[list[Any], list[dict[str, int]]]:
    """The collective's results by rank and each rank's bytes by phase, all ranks in this process."""
    world = VirtualWorld(size, fabric(topology, num_nodes), CPU, debug=True)
    results = world.run({rank: make(rank) for rank in range(size)})
    return list(results.values()), [dict(world.traffic[rank].by_phase) for rank in range(size)]


def really(rank: int, size: int, topology: str, make: Make, num_nodes: int = 1) -> tuple[Any, dict[str, int]]:
    """The result of one rank over gloo, and its bytes by phase."""
    world = ProcessWorld(fabric(topology, num_nodes), CPU, Connections(timeout_s=30))
    try:
        return world.run({rank: make(rank)})[rank], dict(world.traffic[rank].by_phase)
    finally:
        world.close()


def synchronize_buckets(
    rank: int,
    size: int,
    topology: str,
    codec: str,
    options: dict[str, Any],
    sizes: list[int],
    segments: int = 1,
) -> tuple[list[Tensor], dict[str, int]]:
    """Several buckets in flight at once over gloo; the means and the bytes sent."""
    world = ProcessWorld(fabric(topology, segments=segments), CPU, Connections(timeout_s=30))
    made = make_codec(codec, **options)
    try:
        futures: list[Future[Tensor]] = []
        for index, numel in enumerate(sizes):
            layout = Layout.flat(numel, name=f"bucket{numel}")
            this_round = Round(3, layout, rank, size, seed=5, bucket=index)
            futures.append(Future())
            collective = synchronization(made, gradients(rank, numel), this_round, check_hashes=True)
            world.submit(collective, Submission(layout.names[0], 0), futures[-1])
        return [future.result(30) for future in futures], dict(world.traffic[rank].by_phase)
    finally:
        world.close()


def synchronize_virtually(
    size: int, topology: str, codec: str, options: dict[str, Any], sizes: list[int], segments: int = 1
) -> tuple[list[list[Tensor]], list[dict[str, int]]]:
    """Synchronizes the buckets with every rank in this process; returns the results by rank."""
    world = VirtualWorld(size, fabric(topology, segments=segments), CPU, debug=True)
    codecs = [make_codec(codec, **options) for _ in range(size)]
    collectives = {
        rank: [
            synchronization(
                codecs[rank],
                gradients(rank, numel),
                Round(3, Layout.flat(numel, name=f"bucket{numel}"), rank, size, 5, index),
                check_hashes=True,
            )
            for index, numel in enumerate(sizes)
        ]
        for rank in range(size)
    }
    results = run_collectives(world, collectives)
    return [results[rank] for rank in range(size)], [dict(world.traffic[r].by_phase) for r in range(size)]


async def reduce_everything(comm: ScheduledCollectives) -> list[Tensor]:
    """One `reduce` with every operation and dtype, with NaN and infinity in odd places."""
    own = gradients(comm.rank, 37)
    peaks = own.clone()
    peaks[comm.rank] = float("nan")
    peaks[10 + comm.rank] = float("inf")
    mask = torch.tensor([1 << comm.rank % 8, 0, 255], dtype=torch.uint8)
    return await comm.reduce(
        [
            (own.bfloat16(), "sum"),
            (own.double(), "sum"),
            (own.abs().bfloat16(), "norm"),
            (peaks, "max_bits"),
            (mask, "or"),
            (torch.tensor([comm.rank, 2**40]), "sum"),
        ]
    )


async def exchange_everything(comm: ScheduledCollectives) -> list[Tensor]:
    """Gathers of equal and unequal sizes and an all-to-all."""
    own = torch.full((3,), float(comm.rank))
    sizes = [rank + 1 for rank in range(comm.size)]
    equal = await comm.all_gather(own)
    unequal = await comm.all_gather(torch.full((comm.rank + 1,), comm.rank), sizes)
    swapped = await comm.all_to_all(10 * comm.rank + torch.arange(comm.size)[:, None])
    return [*equal, *unequal, *swapped]


async def reduce_in_groups(comm: ScheduledCollectives) -> list[Tensor]:
    """Sums inside each node and between the counterparts of all nodes."""
    own = torch.tensor([10.0**comm.rank])
    inside = await comm.group("local").reduce([(own, "sum")])
    between = await comm.group("node").reduce([(own, "sum")])
    return [*inside, *between]


async def sum_in_bfloat16(comm: ScheduledCollectives) -> Tensor:
    """One all-reduce of 777 coordinates, rounded at every hop."""
    return await comm.all_reduce(
        CastHops(gradients(comm.rank, 777), comm.size, comm.num_chunks, torch.bfloat16)
    )


def make_two_level_sum(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
    return sum_in_bfloat16


def make_reduce(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
    return reduce_everything


def make_exchange(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
    return exchange_everything


def make_groups(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
    return reduce_in_groups


STAGED = Fabric(partial(make_schedule, "ring"), num_nodes=4, stages=2)
"""Eight ranks: two stages of four replicas on two nodes each."""


async def reduce_along_dimensions(comm: ScheduledCollectives) -> dict[str, list[float]]:
    """Digits say which ranks a sum holds; the size and the place in each group, and groups of the group."""
    own = torch.tensor([10.0**comm.rank], dtype=torch.float64)
    replicas = comm.group("replica")
    groups = {
        "stage": comm.group("stage"),
        "replica": replicas.in_phase("control"),
        "local": replicas.group("local"),
        "node": replicas.group("node"),
        "all": replicas.group("local").group("all"),
    }
    found = {}
    for name, group in groups.items():
        (total,) = await group.reduce([(own, "sum")])
        found[name] = [total.item(), group.size, group.rank]
    return found


async def pass_around(comm: ScheduledCollectives) -> list[Tensor]:
    """Rank to rank in a chain, forth and back; then neighbours on a ring at once; then within groups."""
    last, x = comm.size - 1, torch.zeros(1000)
    if comm.rank > 0:
        await comm.receive(x, comm.rank - 1)
    x = x + comm.rank + 1
    if comm.rank < last:
        await comm.send(x, comm.rank + 1)
    if comm.rank < last:
        await comm.receive(x, comm.rank + 1)
    if comm.rank > 0:
        await comm.send(x, comm.rank - 1)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    swapped = [torch.empty(3), torch.empty(4, dtype=torch.int16)]
    own = torch.full((3, 2), comm.rank + 0.5)[:, 0], torch.full((2, 2), comm.rank, dtype=torch.int16)
    if comm.size > 2:
        await comm.send_and_receive({right: own[0], left: own[1]}, {left: swapped[0], right: swapped[1]})
    return [x, *swapped]


async def pass_in_groups(comm: ScheduledCollectives) -> float:
    """The first of each node's ranks sends to the second."""
    group, x = comm.group("local"), torch.tensor([float(comm.rank)])
    if group.rank == 0:
        await group.send(x, 1)
    else:
        await group.receive(x, 0)
    return x.item()


def make_dimensions(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
    return reduce_along_dimensions


def make_chain(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
    return pass_around


def make_pairs(rank: int) -> Callable[[ScheduledCollectives], Coroutine[Any, None, Any]]:
    return pass_in_groups


def in_stages(rank: int, size: int) -> dict[str, list[float]]:
    """`reduce_along_dimensions` of one rank of two stages, over gloo."""
    world = ProcessWorld(replace(STAGED, num_nodes=2), CPU, Connections(timeout_s=30))
    try:
        found: dict[str, list[float]] = world.run({rank: reduce_along_dimensions})[rank]
        return found
    finally:
        world.close()
