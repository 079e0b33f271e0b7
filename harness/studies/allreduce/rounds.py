"""Repeated rounds of synchronization of the same gradients with the same codecs, between real workers and on
the simulated clock.

A round is one all-reduce, or, with sharded weights, a scatter of gradients and a gathering of weights. Times
and bytes are recorded for each part, which begins when all ranks are ready. On the simulated clock codec work
is measured in this process, and communication is simulated on the links.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from gradwire.codecs.collectives import Kept
from gradwire.codecs.interface import Codec, Layout, Round
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric, ScheduledCollectives
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.world.interface import RankProgram, RankStep, Submission, World
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.worker import joined_process_group
from gradwire.harness.network.settings import ShapedConfig
from gradwire.harness.network.shaped.namespace import Entrance
from gradwire.harness.network.shaped.rate_changes import ClockListener, clock_sender, ignore_clock
from gradwire.harness.parallel.settings import ShardedConfig
from gradwire.harness.parallel.sharded.shards import FlatBucket
from gradwire.harness.parallel.sharded.weights import WeightGathering, weight_messages
from gradwire.harness.parallel.synchronize import Scattering, end_codecs, synchronize_buckets
from gradwire.harness.runtime.heartbeat import COMPLETE, beat
from gradwire.harness.runtime.memory import keep_freed_memory
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.runtime.seeding import derive_seed
from gradwire.harness.studies.allreduce.study import AllReduceConfig, AllReduceTask, sharded
from gradwire.harness.timing.simulate.build import make_clock
from gradwire.harness.timing.simulate.clock import SimulatedClock
from gradwire.harness.trainer.parts import build_world

BLOCK = 256
"""Neighbouring coordinates that share a scale. Scales are drawn from a log-normal distribution, because
gradients have different scales, too."""

GRADIENTS, WEIGHTS = "gradients", "weights"

UPDATE = 1e-3
"""The main weights of a round are those of the round before minus this share of the mean gradient, so that
there are differences to send."""


def layout(config: AllReduceConfig, device: str = "cpu") -> Layout:
    """The bucket's layout: the matrices one after another, or one vector."""
    if not config.matrices:
        return Layout.flat(config.coordinates, device=device)
    shapes = tuple(tuple(shape) for shape in config.matrices)
    ends = tuple(accumulate(map(math.prod, shapes)))
    names = tuple(f"matrix{number}" for number in range(len(shapes)))
    return Layout(names, shapes, (0, *ends[:-1]), ends[-1], device=torch.device(device))


class RoundPart(Protocol):
    """One rank's part of every round."""

    def program(self, number: int) -> RankProgram[object]:
        """The work of this rank in round `number`."""
        ...


class TimedSynchronization:
    """An all-reduce of a bucket."""

    def __init__(self, config: AllReduceTask, codec: Codec, x: Tensor) -> None:
        self._codec, self._x, self._size, self._seed = codec, x, config.cluster.size, config.seed
        self._layout = layout(config.allreduce, str(x.device))

    def program(self, number: int) -> RankProgram[object]:
        buckets = [(self._layout, self._x)]
        return synchronize_buckets(self._codec, number, self._seed, self._size, buckets, check_hashes=False)


class Scatter:
    """A reduce-scatter of a bucket; `mean` holds the rank's shard until the weights are updated with it."""

    def __init__(self, config: AllReduceTask, codec: Codec, x: Tensor, bucket: FlatBucket) -> None:
        self._codec, self._x, self._bucket = codec, x, bucket
        self._size, self._seed = config.cluster.size, config.seed
        self.mean: Tensor | None = None

    def program(self, number: int) -> RankProgram[object]:
        async def run(rank_step: RankStep) -> None:
            layout, rank = self._bucket.layout, rank_step.rank
            this_round = Round(number, layout, rank, self._size, self._seed, 0)
            shard = self._bucket.shards[rank]
            self.mean = await rank_step.start(
                lambda x: Scattering(self._codec, x, this_round, shard),
                self._x,
                Submission(buffers=str(layout.uid), coordinates=layout.numel, is_own=True),
            )

        return run


class Gathering:
    """A gathering of all ranks' main weights into the model's weights. The main weights of `rank` are updated
    before, with the mean from `scatter`, while no clock runs."""

    def __init__(self, config: ShardedConfig, bucket: FlatBucket, rank: int, scatter: Scatter) -> None:
        self._messages, self._bucket, self._scatter = weight_messages(config), bucket, scatter
        self._main = bucket.shards[rank].take(bucket.weights).float()

    def program(self, number: int) -> RankProgram[object]:
        assert self._scatter.mean is not None, "gradients come first"
        self._main.sub_(self._scatter.mean, alpha=UPDATE)
        self._scatter.mean = None

        async def run(rank_step: RankStep) -> None:
            layout = self._bucket.layout
            messages = await rank_step.start(
                partial(WeightGathering, self._messages, self._bucket, rank_step.rank),
                self._main,
                Submission(
                    buffers=f"{WEIGHTS} {layout.uid}",
                    coordinates=layout.numel,
                    is_own=True,
                    has_one_result=True,
                ),
            )
            with rank_step.compute(WEIGHTS):
                rank_step.replicated(partial(self._decode, messages))

        return run

    def _decode(self, messages: Sequence[Tensor]) -> None:
        for rank, message in enumerate(messages):
            self._messages.decode(message, self._bucket, rank)


@dataclass(frozen=True)
class Rounds:
    """One rank's codec, and the parts of a round by name, in order."""

    codec: Codec
    parts: Mapping[str, RoundPart]


def make_rounds(config: AllReduceTask, world: World) -> dict[int, Rounds]:
    """The rounds of the ranks in this process, which share the model's weights if weights are gathered."""
    codecs: dict[int, Codec] = {rank: make_codec(**config.codec) for rank in world.ranks}
    gradients = {rank: drawn(config, "allreduce", rank, world.device) for rank in world.ranks}
    settings = sharded(config)
    if settings is None:
        return {
            rank: Rounds(codec, {GRADIENTS: TimedSynchronization(config, codec, gradients[rank])})
            for rank, codec in codecs.items()
        }
    bucket, found = _bucket(config, settings, world, next(iter(codecs.values()))), {}
    for rank, codec in codecs.items():
        scatter = Scatter(config, codec, gradients[rank], bucket)
        gathering = Gathering(settings, bucket, rank, scatter)
        found[rank] = Rounds(codec, {GRADIENTS: scatter, WEIGHTS: gathering})
    return found


def _bucket(config: AllReduceTask, settings: ShardedConfig, world: World, codec: Codec) -> FlatBucket:
    """The model's weights as a bucket, in the shards that the codec uses for gradients."""

    async def ask(comm: ScheduledCollectives) -> Kept:
        return comm.kept

    kept = world.run(dict.fromkeys(world.ranks, ask))[world.ranks[0]]
    own = layout(config.allreduce, str(world.device))
    weights = drawn(config, WEIGHTS, 0, world.device).to(getattr(torch, settings.model_dtype))
    no_gradient = weights.new_empty(0)  # each rank has its own
    return FlatBucket(own, no_gradient, weights, codec.shards(own, kept))


def drawn(config: AllReduceTask, what: str, rank: int, device: torch.device) -> Tensor:
    """One rank's gradient, or weights, from the seed: (coordinates,) float32."""
    generator = torch.Generator().manual_seed(derive_seed(config.seed, what, rank))
    numel = config.allreduce.coordinates
    scales = torch.randn(-(-numel // BLOCK), generator=generator).exp().repeat_interleave(BLOCK)[:numel]
    return (torch.randn(numel, generator=generator) * scales).to(device)


WARM_UP = 2
"""Rounds that are not counted, in which buffers are allocated and adaptive codecs start to adapt."""

FILE = "measured.json"


@dataclass
class Timed:
    """One part of the rounds. For each round: seconds of the slowest rank, and seconds of codec work on the
    busiest one. Bytes: sent by all ranks in all rounds, and the share of these sent to other nodes."""

    seconds: list[float] = field(default_factory=list)
    codec_s: list[float] = field(default_factory=list)
    bytes_sent: int = 0
    bytes_between_nodes: int = 0


def measure_rank(
    config: AllReduceTask, folder: Path, rendezvous: Path, entrances: Sequence[Entrance] | None, rank: int
) -> None:
    """Measures this rank; rank 0 writes the result of `measure_rounds` to `measured.json` in `folder`."""
    entrance = None if entrances is None else entrances[rank]
    with (
        joined_process_group(config.cluster, config.network, rank, rendezvous, entrance) as device,
        using_kernels(config.kernels.name),
    ):
        world = build_world(config, device)
        try:
            rows = measure_rounds(config, world, rank, clock_sender(entrance))
            if rank == 0:
                write_atomically(folder / FILE, json.dumps(rows))
                beat(COMPLETE)
        finally:
            world.close()


def measure_rounds(
    config: AllReduceTask,
    world: World,
    rank: int,
    on_clock: ClockListener = ignore_clock,
) -> dict[str, list[list[float]]]:
    """Returns, for each part of the rounds, the rows of all ranks, the same on every rank.

    `on_clock` is called with the seconds of the counted rounds, and with whether they continue.
    """
    rounds, clock = make_rounds(config, world)[rank], 0.0
    for number in range(WARM_UP):
        _round(world, rank, rounds, number)
    found: dict[str, list[list[float]]] = {name: [] for name in rounds.parts}
    for number in tracked(range(config.allreduce.repeats), "allreduce", "round"):
        parts = _round(world, rank, rounds, WARM_UP + number, partial(on_clock, clock, True))
        for name, own in parts.items():
            found[name].append(own)
            clock += own[2]
        on_clock(clock, False)
    return {name: world.gather({rank: _row(own)}) for name, own in found.items()}


def _row(rounds: Sequence[Sequence[float]]) -> list[float]:
    """A rank's row: the bytes sent in all rounds, those sent to other nodes, and for each round its seconds
    and its seconds of codec work."""
    sent = [sum(each[index] for each in rounds) for index in range(2)]
    return [*sent, *(value for each in rounds for value in each[2:])]


def over_ranks(rows: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Timed]:
    """The parts of the rounds, combined over the ranks' rows from `measure_rounds`."""
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
    """Returns for each part the bytes sent, those sent to other nodes, the seconds from the moment when all
    ranks are ready until this rank is done, and the seconds of codec work.

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
    """The clock of the configured network; `rate_mbit` is the measured throughput of a link, or None."""
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
    """Runs the same number of rounds as the real workers, with all ranks in this process. Returns their parts
    by name."""
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
    """Seconds of codec work in the last step. Decoding gathered weights is recorded as the rank's own
    computation, and is included."""
    kinds = ("codec", "compute") if part == WEIGHTS else ("codec",)
    return sum(span.end - span.start for span in world.recorders[rank].drain() if span.kind in kinds)
