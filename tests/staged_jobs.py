"""Ranks whose messages pass through host memory, on pool workers: their device is the CPU, and copies from it
end as late as those of a stream that is behind."""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
import torch
from emulated_graph import RerunGraph
from point_to_point_jobs import hand_on
from torch import Tensor

from gradwire.codecs.interface import Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.captured_rounds import CapturedRounds
from gradwire.harness.comm.transport.process import PeerError
from gradwire.harness.comm.transport.staging import HostCopies, Moment
from gradwire.harness.comm.world.interface import Submission
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.comm.world.process_captured import CapturedBuckets
from gradwire.harness.parallel.synchronize import synchronization, synchronize_buckets

CPU = torch.device("cpu")
GARBAGE = 113
"""The contents of host memory before a copy or a message is there."""


class _Late:
    """A copy that ends only while somebody waits for it."""

    def __init__(self, x: Tensor, host: Tensor) -> None:
        self._x, self._host = x.clone(), host

    def synchronize(self) -> None:
        time.sleep(0.002)
        self._host.copy_(self._x)


class LateCopies(HostCopies):
    """The copies of a device that is always behind the host: they keep what a stream would have copied."""

    def __init__(self) -> None:
        super().__init__(CPU)

    def room(self, like: Tensor) -> Tensor:
        return torch.full_like(like, GARBAGE)

    def to_host(self, x: Tensor) -> tuple[Tensor, Moment]:
        host = self.room(x)
        return host, _Late(x, host)


COPIES = {"direct": lambda: None, "immediate": lambda: HostCopies(CPU), "late": LateCopies}


def world_of(topology: str, copies: str, *, segments: int = 1, **options: Any) -> ProcessWorld:
    fabric = Fabric(partial(make_schedule, topology), segments=segments)
    return ProcessWorld(fabric, CPU, Connections(timeout_s=20, host_copies=COPIES[copies]()), **options)


def gradient(rank: int, numel: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(100 * numel + rank))


def means_of_rank(
    rank: int, size: int, topology: str, codec: str, copies: str, segments: int = 1
) -> tuple[list[Tensor], dict[str, int]]:
    """The means of several buckets in flight at once, and the bytes sent by phase."""
    world, made = world_of(topology, copies, segments=segments), make_codec(codec)
    try:
        futures: list[Future[Tensor]] = []
        for index, numel in enumerate((5000, 300, 70_000, 41)):
            layout = Layout.flat(numel, name=f"bucket{index}")
            this_round = Round(3, layout, rank, size, seed=5, bucket=index)
            futures.append(Future())
            collective = synchronization(made, gradient(rank, numel), this_round, check_hashes=True)
            world.submit(collective, Submission(layout.names[0], numel), futures[-1])
        return [future.result(30) for future in futures], dict(world.traffic[rank].by_phase)
    finally:
        world.close()


def handed_on(rank: int, size: int, copies: str) -> tuple[list[Tensor], dict[str, int]]:
    """Messages between two ranks at a time."""
    world = world_of("ring", copies)
    try:
        return world.run({rank: hand_on})[rank], dict(world.traffic[rank].by_phase)
    finally:
        world.close()


def reused_at_once(rank: int, size: int, copies: str) -> Tensor:
    """The stream overwrites what it sends right after posting it, as its next work may on a GPU."""

    async def swap(comm: ScheduledCollectives) -> Tensor:
        own, found = torch.full((1000,), rank + 1.0), torch.zeros(1000)
        channel, peer = comm._channel, 1 - rank
        handle = channel.post([(peer, own.view(torch.uint8))], [(peer, found.view(torch.uint8))], "gradients")
        own.fill_(-1)
        await channel.completed(handle)
        return found

    world = world_of("ring", copies)
    try:
        return world.run({rank: swap})[rank]
    finally:
        world.close()


def captured_of_rank(rank: int, size: int) -> tuple[int, CapturedBuckets | None]:
    """The launches of some steps with captures allowed, and what the record says of them."""
    captured = CapturedRounds(RerunGraph, CPU, required=False)
    world, codec = world_of("ring", "late", captured=captured), make_codec("fp32")
    x = gradient(rank, 2000)
    own = [(Layout.flat(x.numel(), name="bucket"), x)]
    try:
        for step in range(6):
            world.run_step(step, {rank: synchronize_buckets(codec, step, 5, size, own, check_hashes=False)})
        return captured.launches, world.captured_buckets()
    finally:
        world.close()


def required_of_rank(rank: int, size: int) -> str:
    """The error of a step whose rounds have to be captured."""
    captured = CapturedRounds(RerunGraph, CPU, required=True)
    world, x = world_of("ring", "late", captured=captured), gradient(rank, 2000)
    own = [(Layout.flat(x.numel(), name="bucket"), x)]
    try:
        with pytest.raises(RuntimeError) as raised:
            codec = make_codec("fp32")
            world.run_step(0, {rank: synchronize_buckets(codec, 0, 5, size, own, check_hashes=False)})
        return str(raised.value)
    finally:
        world.close()


def lost_by_rank(rank: int, size: int) -> tuple[str, float]:
    """The error of rank 0 if the other one leaves instead of sending, and the seconds until its world is
    closed; the messages of its other buckets wait meanwhile."""
    world, codec = world_of("ring", "late"), make_codec("fp32")
    world.gather({rank: [0.0]})
    if rank:
        world.close()
        return "", 0.0
    own = [(Layout.flat(n, name=f"bucket{n}"), gradient(rank, n)) for n in (2000, 3000, 4000)]
    began = time.monotonic()
    try:
        with pytest.raises(PeerError) as raised:
            world.run_step(0, {rank: synchronize_buckets(codec, 0, 5, size, own, check_hashes=False)})
        assert raised.value.peer == 1
    finally:
        world.close()
    return str(raised.value), time.monotonic() - began


def sum_by_backend(rank: int, size: int, copies: str) -> list[Tensor]:
    """gloo's own sums of two tensors."""

    async def summed(comm: ScheduledCollectives) -> list[Tensor]:
        found = [gradient(rank, 900), gradient(rank, 77)]
        for x in found:
            await comm._channel.completed(comm._channel.backend_sum(x))
        return found

    world = world_of("ring", copies)
    try:
        return world.run({rank: summed})[rank]
    finally:
        world.close()
