"""All-reduces again and again, of the same gradients by the same codecs: between real workers, and on the
simulated clock, where codec work is measured in this process and communication follows from the links."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gradwire.codecs.interface import Codec
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import RankProgram, World
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.worker import joined_process_group
from gradwire.harness.network.settings import ShapedConfig
from gradwire.harness.network.shaped.namespace import Entrance
from gradwire.harness.network.shaped.rate_changes import clock_teller
from gradwire.harness.parallel.codec_steps import end_codecs
from gradwire.harness.parallel.synchronize import synchronize_buckets
from gradwire.harness.runtime.heartbeat import COMPLETE, beat
from gradwire.harness.runtime.memory import keep_freed_memory
from gradwire.harness.runtime.seeding import derive_seed
from gradwire.harness.studies.allreduce.settings import AllReduceTask, layout
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.trainer.parts import build_world

WARM_UP = 2
"""Rounds that are not counted: buffers are allocated, and codecs that adapt begin to do so."""

BLOCK = 256
"""Neighbouring coordinates share a scale. Scales are drawn log-normally, because those of gradients
differ."""


def gradient(config: AllReduceTask, rank: int, device: torch.device) -> Tensor:
    """Draws one rank's gradient from the seed: (coordinates,) float32."""
    generator = torch.Generator().manual_seed(derive_seed(config.seed, "allreduce", rank))
    numel = config.allreduce.coordinates
    scales = torch.randn(-(-numel // BLOCK), generator=generator).exp().repeat_interleave(BLOCK)[:numel]
    return (torch.randn(numel, generator=generator) * scales).to(device)


class Rounds:
    """One rank's codec, which synchronizes one round after another."""

    def __init__(self, config: AllReduceTask, rank: int, device: torch.device) -> None:
        self.codec: Codec = make_codec(**config.codec)
        self._x = gradient(config, rank, device)
        self._layout = layout(config.allreduce, str(device))
        self._size, self._seed = config.cluster.size, config.seed

    def program(self, number: int) -> RankProgram[list[Tensor]]:
        """What this rank does in round `number`."""
        buckets = [(self._layout, self._x)]
        return synchronize_buckets(self.codec, number, self._seed, self._size, buckets, check_hashes=False)


FILE = "measured.json"


def measure_rank(
    config: AllReduceTask, folder: Path, rendezvous: Path, entrances: Sequence[Entrance] | None, rank: int
) -> None:
    """Rank 0 writes `measured.json` to `folder`: for each rank the bytes sent in all rounds, those to other
    nodes, and for each round the seconds and those of codec work."""
    entrance = None if entrances is None else entrances[rank]
    with (
        joined_process_group(config.cluster, config.network, rank, rendezvous, entrance) as device,
        using_kernels(config.kernels.name),
    ):
        world = build_world(config, device)
        try:
            rounds = Rounds(config, rank, device)
            for number in range(WARM_UP):
                _round(world, rank, rounds, number)
            world.traffic[rank].clear()
            tell, clock, found = clock_teller(entrance), 0.0, list[tuple[float, float]]()
            for number in range(config.allreduce.repeats):
                found.append(_round(world, rank, rounds, WARM_UP + number, partial(tell, clock, True)))
                clock += found[-1][0]
                tell(clock, False)
            sent = (float(world.traffic[rank].total), float(world.traffic[rank].between_nodes))
            rows = world.gather({rank: [*sent, *(value for pair in found for value in pair)]})
            if rank == 0:
                write_atomically(folder / FILE, json.dumps(rows))
                beat(COMPLETE)
        finally:
            world.close()


def _round(
    world: World, rank: int, rounds: Rounds, number: int, begin: Callable[[], None] = lambda: None
) -> tuple[float, float]:
    """Returns the seconds from all ranks being ready until this one has the mean, and those of codec work.

    `begin` is called when they begin.
    """
    beat("rounds")
    recorder = world.recorders[rank]
    world.gather({rank: [0.0]})
    recorder.drain()
    begin()
    start = time.perf_counter()
    world.run_step(number, {rank: rounds.program(number)})
    seconds = time.perf_counter() - start
    end_codecs(world, {rank: rounds.codec}, number)
    world.take_notes()
    codec = sum(span.end - span.start for span in recorder.drain() if span.kind == "codec")
    return seconds, codec


@dataclass(frozen=True)
class Modelled:
    """Per round: seconds on the clock, and of codec work on the busiest rank; the bytes that all ranks sent
    in all rounds, and those of them to other nodes."""

    seconds: list[float]
    codec_s: list[float]
    bytes_sent: int
    bytes_between_nodes: int


def clock_for(config: AllReduceTask, rate_mbit: float | None) -> SimulatedClock:
    """The clock of the configured network; `rate_mbit` is what a link was measured to carry, or None."""
    network = config.network
    if rate_mbit is not None and isinstance(network, ShapedConfig):
        network = replace(network, rate_mbit=rate_mbit)
    return make_clock(
        network,
        config.cluster.size,
        in_flight=config.overlap.buckets,
        overlap=True,
        seed=config.seed,
        codec=config.codec,
    )


def model(config: AllReduceTask, clock: SimulatedClock) -> Modelled:
    """Runs as many rounds as real workers do, with all ranks in this process."""
    torch.set_num_threads(1)
    keep_freed_memory()
    size, device = config.cluster.size, torch.device(config.cluster.device)
    fabric = Fabric(
        partial(make_schedule, config.topology.name),
        num_nodes=num_nodes(config.cluster, config.network),
        segments=config.overlap.segments,
    )
    world = VirtualWorld(size, fabric, device, clock=clock)
    seconds, codec_s = list[float](), list[float]()
    with using_kernels(config.kernels.name):
        rounds = {rank: Rounds(config, rank, device) for rank in world.ranks}
        for number in range(WARM_UP + config.allreduce.repeats):
            if number == WARM_UP:
                for traffic in world.traffic.values():
                    traffic.clear()
            world.begin_step(sum(seconds))
            world.run_step(number, {rank: own.program(number) for rank, own in rounds.items()})
            end_codecs(world, {rank: own.codec for rank, own in rounds.items()}, number)
            if number >= WARM_UP:
                seconds.append(max(trace.end for trace in world.timed.values()))
                codec_s.append(max(_codec_s(world, rank) for rank in world.ranks))
            else:
                for rank in world.ranks:
                    world.recorders[rank].drain()
    sent = sum(traffic.total for traffic in world.traffic.values())
    return Modelled(seconds, codec_s, sent, sum(traffic.between_nodes for traffic in world.traffic.values()))


def _codec_s(world: VirtualWorld, rank: int) -> float:
    return sum(span.end - span.start for span in world.recorders[rank].drain() if span.kind == "codec")
