"""One all-reduce on the simulated clock: codec work measured in this process, communication time from the
links."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from omegaconf import DictConfig, OmegaConf

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.runtime.memory import keep_freed_memory
from gradwire.harness.studies.allreduce.subject import WARM_UP, Rounds
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock


@dataclass(frozen=True)
class Modelled:
    """Per round: seconds on the clock, seconds of codec work on the busiest rank, and bytes sent by all
    ranks."""

    seconds: list[float]
    codec_s: list[float]
    bytes_sent: int


def clock_for(config: DictConfig, rate_mbit: float | None) -> SimulatedClock:
    """The clock of the configured network; `rate_mbit` is what a link was measured to carry, or None."""
    network = config.network.copy()
    OmegaConf.set_readonly(network, False)
    if rate_mbit is not None:
        network.rate_mbit = rate_mbit
    return make_clock(
        network,
        config.cluster.workers,
        in_flight=config.overlap.buckets,
        overlap=True,
        seed=config.seed,
        codec=config.codec,
    )


def model(config: DictConfig, clock: SimulatedClock) -> Modelled:
    """Runs as many rounds as real workers do, with all ranks in this process."""
    torch.set_num_threads(1)
    keep_freed_memory()
    size, device = config.cluster.workers, torch.device(config.cluster.device)
    fabric = Fabric(
        lambda ranks: make_schedule(config.topology.name, ranks), segments=config.overlap.segments
    )
    world = VirtualWorld(size, fabric, device, clock=clock)
    seconds, codec_s, sent = list[float](), list[float](), 0
    with using_kernels(config.kernels.name):
        rounds = {rank: Rounds(config, rank, device) for rank in world.ranks}
        for number in range(WARM_UP + config.allreduce.repeats):
            sent = sum(traffic.total for traffic in world.traffic.values()) if number == WARM_UP else sent
            collectives = {rank: (0.0, own.synchronization(number)) for rank, own in rounds.items()}
            world.run_bucket(collectives, rounds[0].numel)
            world.begin_step(sum(seconds))
            timed = world.end_step(number)
            for own in rounds.values():
                own.end(number)
            if number >= WARM_UP:
                seconds.append(max(trace.end for trace in timed.values()))
                codec_s.append(max(_codec_s(world, rank) for rank in world.ranks))
            else:
                for rank in world.ranks:
                    world.recorders[rank].drain()
    total = sum(traffic.total for traffic in world.traffic.values())
    return Modelled(seconds, codec_s, total - sent)


def _codec_s(world: VirtualWorld, rank: int) -> float:
    return sum(span.end - span.start for span in world.recorders[rank].drain() if span.kind == "codec")
