"""Scatters of any codec, in this process and between real ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from codec_rounds import CPU, MODEL, gradients
from torch import Tensor

from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.registry import make_codec
from gradwire.codecs.shards import Shard
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.comm.world.virtual import VirtualWorld


def scattered(
    codec: str | Sequence[Codec],
    options: dict[str, Any],
    topology: str,
    size: int,
    nodes: int,
    layout: Layout,
    xs: Sequence[Tensor],
    *,
    seed: int = 3,
    step: int = 0,
    segments: int = 1,
    whole: bool = False,
) -> tuple[Tensor, list[dict[str, int]]]:
    """All ranks' shards together, (numel,) float32, or with `whole` what `synchronize` gives; and each rank's
    bytes by phase."""
    codecs = [make_codec(codec, **options) for _ in xs] if isinstance(codec, str) else codec

    async def run(comm: ScheduledCollectives) -> Tensor:
        this_round = Round(step, layout, comm.rank, size, seed)
        collective = codecs[comm.rank].synchronize if whole else codecs[comm.rank].scatter
        return await collective(xs[comm.rank], this_round, comm)

    fabric = Fabric(partial(make_schedule, topology), nodes, segments)
    world = VirtualWorld(size, fabric, CPU, debug=True)
    before = [x.clone() for x in xs]
    found = world.run(dict.fromkeys(range(size), run))
    assert all(torch.equal(x, copy) for x, copy in zip(xs, before, strict=True)), "a gradient was written to"
    for own in codecs:
        own.end_step(step)
    sent = [dict(world.traffic[rank].by_phase) for rank in range(size)]
    if whole:
        return found[0], sent
    mean = torch.full((layout.numel,), torch.nan)
    _, schedule = fabric.schedules(size)
    for rank, shard in enumerate(codecs[0].shards(layout, schedule.kept)):
        shard.put(found[rank], mean)
    return mean, sent


def scatter_for_real(
    rank: int, size: int, topology: str, nodes: int, codec: str
) -> tuple[Tensor, Shard, dict[str, int]]:
    """One rank's shard over gloo, its places and its bytes by phase."""
    world = ProcessWorld(Fabric(partial(make_schedule, topology), nodes), CPU, Connections(timeout_s=30))
    own = make_codec(codec)

    async def run(comm: ScheduledCollectives) -> tuple[Tensor, Shard]:
        this_round = Round(0, MODEL, rank, size, 3)
        shard = await own.scatter(gradients(MODEL, size)[rank], this_round, comm)
        return shard, own.shards(MODEL, comm.kept)[rank]

    try:
        return *world.run({rank: run})[rank], dict(world.traffic[rank].by_phase)
    finally:
        world.close()
