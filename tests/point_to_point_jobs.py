"""A message handed from rank to rank: virtually, on pool workers as fast as it goes, paced or on shaped
links, and over NCCL."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from world_steps import run_collectives

from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.pacer import PacedLink
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.network.shaped.namespace import Entrance
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.timing.trace.step import ACTIVATIONS, RankTrace

SIZE, NUMEL = 3, 25_000
MESSAGE_BYTES = 4 * NUMEL

CPU, RING = torch.device("cpu"), Fabric(partial(make_schedule, "ring"))


async def hand_on(comm: ScheduledCollectives, device: torch.device = CPU) -> list[Tensor]:
    """Passes a tensor from the first rank to the last, each of which changes it; then swaps with the
    neighbour."""
    x = torch.arange(NUMEL, dtype=torch.float32, device=device)
    last = comm.size - 1
    if comm.rank:
        await comm.receive(x, comm.rank - 1)
    x = x * 2 + comm.rank
    if comm.rank < last:
        await comm.send(x, comm.rank + 1)
    peer = comm.rank ^ 1
    swapped = torch.zeros(7, dtype=torch.int16, device=device)
    if peer < comm.size:
        await comm.send_and_receive({peer: torch.full_like(swapped, comm.rank)}, {peer: swapped})
    return [x, swapped]


class Outcome(NamedTuple):
    """The final tensors of one rank, what it sent, its trace, and when it began and ended, in seconds of the
    simulated clock or of the machine's."""

    results: list[Tensor]
    sent: dict[str, int]
    trace: RankTrace
    began: float
    ended: float


def virtually(clock: SimulatedClock) -> list[Outcome]:
    """All ranks in this process."""
    world = VirtualWorld(SIZE, RING, CPU, clock=clock)
    found = run_collectives(world, {rank: [hand_on] for rank in world.ranks})
    return [
        Outcome(found[rank][0], dict(world.traffic[rank].by_phase), own, 0.0, own.end)
        for rank, own in world.timed.items()
    ]


def over_nccl(rank: int, size: int, folder: str) -> None:
    """One rank on a GPU of its own; leaves its tensors and the number of bytes that it sent in `folder`."""
    device, timeout = torch.device("cuda", rank), timedelta(seconds=60)
    torch.cuda.set_device(device)
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size, timeout=timeout)
    world = ProcessWorld(RING, device, Connections(timeout_s=60))
    try:
        found = world.run({rank: partial(hand_on, device=device)})[rank]
        kept = [*(tensor.cpu() for tensor in found), torch.tensor(world.traffic[rank].by_phase[ACTIVATIONS])]
        torch.save(kept, Path(folder) / f"{rank}.pt")
    finally:
        world.close()
        dist.destroy_process_group()


def really(rank: int, size: int, link: PacedLink | None = None) -> Outcome:
    """One rank, over gloo."""
    world = ProcessWorld(RING, CPU, Connections(link=link, timeout_s=30), spans=True, trace=True)
    try:
        world.gather({rank: [0.0]})  # all are connected
        recorder = world.recorders[rank]
        recorder.drain()
        start, began = recorder.timestamp(), time.monotonic()
        (results,) = run_collectives(world, {rank: [hand_on]})[rank]
        ended, end = time.monotonic(), recorder.timestamp()
        at = recorder.seconds
        trace = world.take_notes()[rank].resolve(at(start), at(end), at)
        return Outcome(results, dict(world.traffic[rank].by_phase), trace, began, ended)
    finally:
        world.close()


def really_shaped(rank: int, size: int, entrances: Sequence[Entrance]) -> Outcome:
    """One rank in a network of its own. A thread enters it, so that the worker stays where it is."""
    before = os.environ["GLOO_SOCKET_IFNAME"]
    os.environ["GLOO_SOCKET_IFNAME"] = entrances[rank].interface

    def inside() -> Outcome:
        entrances[rank].enter()
        torch.set_num_threads(1)
        return really(rank, size)

    try:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(inside).result()
    finally:
        os.environ["GLOO_SOCKET_IFNAME"] = before
