"""Rounds of synchronization, again and again, of the same gradients by the same codecs: between real workers,
and on the simulated clock, where codec work is measured in this process and communication follows from the
links."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from gradwire.codecs.native.choice import using_kernels
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import World
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.worker import joined_process_group
from gradwire.harness.network.settings import ShapedConfig
from gradwire.harness.network.shaped.namespace import Entrance
from gradwire.harness.network.shaped.rate_changes import Tell, clock_teller, tell_nobody
from gradwire.harness.parallel.synchronize import end_codecs
from gradwire.harness.runtime.heartbeat import COMPLETE, beat
from gradwire.harness.runtime.memory import keep_freed_memory
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.studies.allreduce.parts import GRADIENTS, WEIGHTS, Rounds, make_rounds
from gradwire.harness.studies.allreduce.settings import AllReduceTask
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.trainer.parts import build_world

WARM_UP = 2
"""Rounds that are not counted: buffers are allocated, and codecs that adapt begin to do so."""

FILE = "measured.json"


@dataclass
class Timed:
    """One part of the rounds. Per round: seconds of the slowest rank, and of codec work on the busiest one.
    Bytes: what all ranks sent in all rounds, and what of it to other nodes."""

    seconds: list[float] = field(default_factory=list)
    codec_s: list[float] = field(default_factory=list)
    bytes_sent: int = 0
    bytes_between_nodes: int = 0


def measure_rank(
    config: AllReduceTask, folder: Path, rendezvous: Path, entrances: Sequence[Entrance] | None, rank: int
) -> None:
    """Rank 0 writes what `measure_rounds` returns to `measured.json` in `folder`."""
    entrance = None if entrances is None else entrances[rank]
    with (
        joined_process_group(config.cluster, config.network, rank, rendezvous, entrance) as device,
        using_kernels(config.kernels.name),
    ):
        world = build_world(config, device)
        try:
            rows = measure_rounds(config, world, rank, clock_teller(entrance))
            if rank == 0:
                write_atomically(folder / FILE, json.dumps(rows))
                beat(COMPLETE)
        finally:
            world.close()


def measure_rounds(
    config: AllReduceTask,
    world: World,
    rank: int,
    tell: Tell = tell_nobody,
) -> dict[str, list[list[float]]]:
    """Returns for each part of the rounds all ranks' rows, the same on every rank.

    `tell` is given the seconds of the rounds that count, and whether they go on.
    """
    rounds, clock = make_rounds(config, world)[rank], 0.0
    for number in range(WARM_UP):
        _round(world, rank, rounds, number)
    found: dict[str, list[list[float]]] = {name: [] for name in rounds.parts}
    for number in tracked(range(config.allreduce.repeats), "allreduce", "round"):
        parts = _round(world, rank, rounds, WARM_UP + number, partial(tell, clock, True))
        for name, own in parts.items():
            found[name].append(own)
            clock += own[2]
        tell(clock, False)
    return {name: world.gather({rank: _row(own)}) for name, own in found.items()}


def _row(rounds: Sequence[Sequence[float]]) -> list[float]:
    """A rank's row: the bytes sent in all rounds, those to other nodes, and for each round the seconds and
    those of codec work."""
    sent = [sum(each[index] for each in rounds) for index in range(2)]
    return [*sent, *(value for each in rounds for value in each[2:])]


def over_ranks(rows: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Timed]:
    """The parts of the rounds from what `measure_rounds` returns."""
    return {
        name: Timed(
            [max(ranks) for ranks in zip(*(row[2::2] for row in of_ranks), strict=True)],
            [max(ranks) for ranks in zip(*(row[3::2] for row in of_ranks), strict=True)],
            int(sum(row[0] for row in of_ranks)),
            int(sum(row[1] for row in of_ranks)),
        )
        for name, of_ranks in rows.items()
    }


def _round(
    world: World, rank: int, rounds: Rounds, number: int, begin: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Returns for each part the bytes sent, those to other nodes, the seconds from all ranks being ready
    until this one is done, and those of codec work.

    `begin` is called when the first part begins.
    """
    found = dict[str, list[float]]()
    recorder, traffic = world.recorders[rank], world.traffic[rank]
    for name, part in rounds.parts.items():
        beat("rounds")
        program = part.program(number)
        world.gather({rank: [0.0]})
        recorder.drain()
        traffic.clear()
        if not found:
            begin()
        start = time.perf_counter()
        world.run_step(number, {rank: program})
        seconds = time.perf_counter() - start
        if not found:
            end_codecs(world, {rank: rounds.codec}, number)
        world.take_notes()
        found[name] = [traffic.total, traffic.between_nodes, seconds, _codec_s(world, rank, name)]
    return found


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


def model(config: AllReduceTask, clock: SimulatedClock) -> dict[str, Timed]:
    """Runs as many rounds as real workers do, with all ranks in this process. Returns their parts by name."""
    torch.set_num_threads(1)
    keep_freed_memory()
    size, device = config.cluster.size, torch.device(config.cluster.device)
    fabric = Fabric(
        partial(make_schedule, config.topology.name),
        num_nodes=num_nodes(config.cluster, config.network),
        segments=config.overlap.segments,
    )
    world = VirtualWorld(size, fabric, device, clock=clock)
    with using_kernels(config.kernels.name):
        rounds = make_rounds(config, world)
        found = {name: Timed() for name in rounds[0].parts}
        for number in tracked(range(WARM_UP + config.allreduce.repeats), "allreduce: modelled", "round"):
            if number <= WARM_UP:  # those before do not count
                found = {name: Timed() for name in found}
            now = sum(sum(own.seconds) for own in found.values())
            for name, own in found.items():
                world.begin_step(now)
                programs = {rank: each.parts[name].program(number) for rank, each in rounds.items()}
                for traffic in world.traffic.values():
                    traffic.clear()
                world.run_step(number, programs)
                if name == GRADIENTS:
                    end_codecs(world, {rank: each.codec for rank, each in rounds.items()}, number)
                own.seconds.append(max(trace.end for trace in world.timed.values()))
                now += own.seconds[-1]
                own.codec_s.append(max(_codec_s(world, rank, name) for rank in world.ranks))
                own.bytes_sent += sum(traffic.total for traffic in world.traffic.values())
                own.bytes_between_nodes += sum(traffic.between_nodes for traffic in world.traffic.values())
    return found


def _codec_s(world: World, rank: int, part: str) -> float:
    """Seconds of codec work of the last step; what decodes gathered weights is work of the rank itself."""
    kinds = ("codec", "compute") if part == WEIGHTS else ("codec",)
    return sum(span.end - span.start for span in world.recorders[rank].drain() if span.kind in kinds)
