"""Paced messages between pool workers."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from gradwire.harness.comm.transport.pacer import PacedLink, Pacer


def send_or_receive(
    rank: int, size: int, num_bytes: int, rate: float, latency_s: float, count: int
) -> list[tuple[float, int]]:
    """Rank 0 posts `count` messages at once; the first bytes of those that rank 1 gets.

    Each with the time on the machine's clock, which is that of both processes; rank 0 gives the time before
    the first one, with 0.
    """
    group = dist.group.WORLD
    assert group is not None
    buffers = [torch.full((num_bytes,), value, dtype=torch.uint8) for value in range(1, count + 1)]
    if rank == 0:
        pacer = Pacer(PacedLink(rate, latency_s), timeout_s=30)
        dist.barrier()
        start = time.monotonic()
        pending = [pacer.send(group, 1, buffer, tag) for tag, buffer in enumerate(buffers)]
        for work in (get() for get in pending):
            assert work is not None
            work.wait()
        pacer.close()
        return [(start, 0)]
    for buffer in buffers:
        buffer.zero_()
    dist.barrier()
    arrivals = []
    for tag, buffer in enumerate(buffers):
        dist.recv(buffer, src=0, tag=tag)
        arrivals.append((time.monotonic(), int(buffer[0])))
    return arrivals
