"""All-reduces between real workers on one machine, with every codec in turn, alternating with the backend's
own.

Bus bandwidth: the bytes of the uncompressed bucket, times 2(n − 1)/n, over the time. Because workers share
this machine, rounds of the codecs alternate, and medians are reported.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from gradwire.codecs.interface import Codec, Layout
from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.settings import ClusterConfig
from gradwire.harness.comm.topology.registry import make_schedule
from gradwire.harness.comm.transport.captured_rounds import SETTLING, make_captured_rounds
from gradwire.harness.comm.world.process import Connections, ProcessWorld
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.ranks import LocalRanks, scratch_folder
from gradwire.harness.launch.worker import joined_process_group
from gradwire.harness.network.settings import UnpacedConfig
from gradwire.harness.network.shaped.namespace import Entrance
from gradwire.harness.parallel.synchronize import synchronize_buckets
from gradwire.harness.runtime.heartbeat import COMPLETE, beat
from gradwire.harness.runtime.memory import keep_freed_memory
from gradwire.harness.studies.bench.host import TOPOLOGY
from gradwire.harness.studies.bench.measure import DTYPES
from gradwire.harness.timing.measure.metric import quotient

WARM_UP = SETTLING + 1
"""Rounds that are not counted; the last of them is captured if rounds are captured."""

FILE = "rounds.json"

BACKEND = "backend"


class Subject(NamedTuple):
    """A codec, and the dtype of the bucket that it synchronizes."""

    codec: str
    dtype: str


def subjects(codecs: Sequence[str]) -> tuple[Subject, ...]:
    """The backend's own all-reduce in both dtypes, and these codecs with float32 buckets, `bf16` also with
    bfloat16 ones."""
    own = [Subject(BACKEND, dtype) for dtype in DTYPES]
    others = [Subject(codec, "float32") for codec in codecs if codec != BACKEND]
    return (*own, *others, *(Subject("bf16", "bfloat16") for codec in codecs if codec == "bf16"))


@dataclass(frozen=True)
class BusRow:
    """One codec's all-reduce of a bucket among `workers`: medians of the slowest rank's seconds, and of the
    total CPU time of all ranks' processes, which other processes affect less."""

    codec: str
    dtype: str
    implementation: str
    workers: int
    coordinates: int
    seconds: float
    cpu_s: float
    bus_bandwidth: float | None  # B/s
    backend_seconds: float  # of the backend's all-reduce of what the codec sends: bfloat16 for `bf16`
    backend_cpu_s: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class BusSettings(NamedTuple):
    """The settings of a measurement, as plain values that are passed to other processes."""

    subjects: tuple[Subject, ...]
    cluster: ClusterConfig
    coordinates: int
    rounds: int
    kernels: str
    graphs: str
    seed: int


def measure_bus(settings: BusSettings, directory: Path) -> list[BusRow]:
    """Starts the workers of `settings.cluster` and measures. Raises WorkerError."""
    with scratch_folder() as folder:
        arguments = (settings, folder, folder / "rendezvous")
        LocalRanks(settings.cluster, UnpacedConfig(), directory, folder).run(measure_rank, arguments)
        rows: list[list[float]] = read_json(folder / FILE, remedy="run it again", expected=list)
    return bus_rows(settings, rows)


def measure_rank(
    settings: BusSettings, folder: Path, rendezvous: Path, entrances: Sequence[Entrance] | None, rank: int
) -> None:
    """Measures this rank; rank 0 writes, for each rank, its seconds and CPU seconds alternately."""
    cluster = settings.cluster
    with (
        joined_process_group(cluster, UnpacedConfig(), rank, rendezvous) as device,
        using_kernels(settings.kernels),
    ):
        keep_freed_memory()
        fabric = Fabric(partial(make_schedule, TOPOLOGY))
        captured = make_captured_rounds(settings.graphs, device)
        world = ProcessWorld(fabric, device, Connections(timeout_s=cluster.timeout_s), captured=captured)
        try:
            taken = [value for row in _rounds(settings, world, device) for value in row]
            gathered = world.gather({rank: taken})
            if rank == 0:
                write_atomically(folder / FILE, json.dumps(gathered))
                beat(COMPLETE)
        finally:
            world.close()


def _rounds(settings: BusSettings, world: ProcessWorld, device: torch.device) -> list[list[float]]:
    """Seconds and CPU seconds of each subject in each counted round: (rounds, 2 · subjects)."""
    codecs = [make_codec(name=subject.codec) for subject in settings.subjects]
    layouts = [
        replace(Layout.flat(settings.coordinates, device=device), dtype=DTYPES[subject.dtype])
        for subject in settings.subjects
    ]
    generator = torch.Generator().manual_seed(settings.seed + world.rank)
    values = torch.randn(settings.coordinates, generator=generator)
    buckets = {name: values.to(device, dtype) for name, dtype in DTYPES.items()}
    found = []
    for step in range(WARM_UP + settings.rounds):
        row = list[float]()
        for subject, codec, layout in zip(settings.subjects, codecs, layouts, strict=True):
            row += _round(settings, world, codec, layout, buckets[subject.dtype], step)
        if step >= WARM_UP:
            found.append(row)
    return found


def _round(
    settings: BusSettings, world: ProcessWorld, codec: Codec, layout: Layout, x: torch.Tensor, step: int
) -> tuple[float, float]:
    """Seconds and CPU seconds from the moment when all ranks are ready until this one is done."""
    beat("rounds")
    program = synchronize_buckets(codec, step, settings.seed, world.size, [(layout, x)], check_hashes=False)
    world.gather({world.rank: [0.0]})
    start, cpu = time.perf_counter(), time.process_time()
    world.run_step(step, {world.rank: program})
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    taken = time.perf_counter() - start, time.process_time() - cpu
    codec.end_step(step)
    world.take_notes()
    return taken


def bus_rows(settings: BusSettings, ranks: Sequence[Sequence[float]]) -> list[BusRow]:
    """The rows for the results that `measure_rank` writes."""
    width, workers = 2 * len(settings.subjects), settings.cluster.size
    medians: dict[Subject, tuple[float, float]] = {}
    for index, subject in enumerate(settings.subjects):
        seconds = zip(*(row[2 * index :: width] for row in ranks), strict=True)
        cpu = zip(*(row[2 * index + 1 :: width] for row in ranks), strict=True)
        medians[subject] = median(map(max, seconds)), median(map(sum, cpu))
    return [_row(settings, subject, workers, medians) for subject in settings.subjects]


def _row(
    settings: BusSettings, subject: Subject, workers: int, medians: Mapping[Subject, tuple[float, float]]
) -> BusRow:
    seconds, cpu_s = medians[subject]
    sent = "bfloat16" if subject.codec == "bf16" else subject.dtype
    backend_seconds, backend_cpu_s = medians[Subject(BACKEND, sent)]
    num_bytes = settings.coordinates * DTYPES[subject.dtype].itemsize
    return BusRow(
        *subject,
        implementation=settings.kernels,
        workers=workers,
        coordinates=settings.coordinates,
        seconds=seconds,
        cpu_s=cpu_s,
        bus_bandwidth=quotient(num_bytes * 2 * (workers - 1) / workers, seconds),
        backend_seconds=backend_seconds,
        backend_cpu_s=backend_cpu_s,
    )
