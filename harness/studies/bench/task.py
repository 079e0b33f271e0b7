"""`task=bench`: the speed of the codecs' operations on this machine, as a table, JSON and plots."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gradwire.codecs.native.loading import cpu_level
from gradwire.harness.config.resources import check_bytes
from gradwire.harness.doctor.devices import DRIVER
from gradwire.harness.doctor.tools import output_of
from gradwire.harness.record.provenance import provenance
from gradwire.harness.runtime.progress import Progress
from gradwire.harness.studies.bench.bus import BusRow, measure_bus, subjects
from gradwire.harness.studies.bench.bus import Settings as BusSettings
from gradwire.harness.studies.bench.host import HostRow, host_row, refusal
from gradwire.harness.studies.bench.kept import Kept
from gradwire.harness.studies.bench.measure import Measuring, Row, Settings, pieces
from gradwire.harness.studies.bench.operation import chosen_operations
from gradwire.harness.studies.bench.papers import ring_costs, smoothing
from gradwire.harness.studies.bench.study import BenchTask
from gradwire.harness.studies.bench.views import plots, text
from gradwire.harness.studies.study import Measured

SAME = ("kernel_backend", "cpu_level", "device", "driver", "code_hash", "versions", "machine")
"""What must be the same for an interrupted bench to go on with what it has measured."""

WORKERS = 8
"""Workers of the ring whose cost is shown by default: DynamiQ's testbed has 8 GPUs."""


BYTES_PER_COORDINATE = 12
"""Least bytes that an operation takes: its input, its output and a message, in float32."""


def resolve(config: BenchTask) -> BenchTask:
    """Fills in the workers; raises ValueError in one line for names that match nothing and numbers out of
    range."""
    chosen_operations(config.bench.operations)
    for size in config.bench.sizes:
        check_bytes("bench.sizes", size, BYTES_PER_COORDINATE * size)
    _check_buckets(config)
    return replace(config, cluster=replace(config.cluster, workers=config.cluster.workers or WORKERS))


def _check_buckets(config: BenchTask) -> None:
    """Raises ValueError for a codec that cannot be measured, more workers than GPUs, and more than memory
    holds."""
    bench = config.bench
    for ranks in bench.ranks:
        check_bytes("bench.coordinates", bench.coordinates, BYTES_PER_COORDINATE * ranks * bench.coordinates)
        if config.cluster.device == "cuda" and ranks > torch.cuda.device_count():
            raise ValueError(
                f"bench.ranks={bench.ranks}: {ranks} workers need as many GPUs, and there are "
                f"{torch.cuda.device_count()}; use bench.ranks=[], or fewer"
            )
    for workers in bench.workers:
        check_bytes("bench.bucket", bench.bucket, BYTES_PER_COORDINATE * workers * bench.bucket)
        for codec in bench.codecs:
            device = torch.device(config.cluster.device)
            try:
                reason = refusal(codec, workers, bench.bucket, device)
            except ValueError as error:
                reason = str(error)
            if reason is not None:
                raise ValueError(f"bench.codecs: {codec} among {workers} workers: {reason}")


def name(config: BenchTask) -> str:
    """`bench-<kernels>-<device>`."""
    return f"bench-{config.kernels.name}-{config.cluster.device}"


def measure(config: BenchTask, directory: Path) -> Measured:
    """Rows of operations, buckets and all-reduces, with the tables that follow from them."""
    settings = _settings(config)
    about = _about(settings)
    kept = Kept(directory, {key: about[key] for key in SAME}, fresh=config.resume == "never")
    rows, buckets, buses = _measured(config, settings, directory, kept)
    found = about | {
        "rows": [row.as_json() for row in rows],
        "ring": [
            asdict(cost) | {f"at_{config.cluster.size}_workers": cost.at(config.cluster.size)}
            for cost in ring_costs(rows)
        ],
        "buckets": [row.as_json() for row in buckets],
        "buses": [row.as_json() for row in buses],
        "smoothing": [asdict(pair) | {"share": pair.share} for pair in smoothing(rows)],
    }
    heading = _heading(found)
    tables = text(rows, config.cluster.size, buckets, buses)
    return Measured(
        json.dumps(found, indent=1) + "\n", f"{heading}\n\n{tables}", lambda: plots(rows, heading), kept.path
    )


def _measured(
    config: BenchTask, settings: Settings, directory: Path, kept: Kept
) -> tuple[list[Row], list[HostRow], list[BusRow]]:
    """Operations, the host's work for buckets, and all-reduces by turns among each number of real workers;
    what has been measured is kept at once."""
    bench = config.bench
    of_operations = pieces(chosen_operations(bench.operations), settings)
    of_buckets = [(codec, workers) for workers in bench.workers for codec in bench.codecs]
    rows, buckets, buses = list[Row](), list[HostRow](), list[BusRow]()
    measuring = Measuring(settings)
    total = len(of_operations) + len(of_buckets) + len(bench.ranks)
    with Progress("bench", total, "measurement") as progress:
        for piece in of_operations:
            rows += kept.rows(Row, ("operation", *piece.key), partial(measuring.rows, piece))
            progress.advance(piece.operation.name)
        for codec, workers in of_buckets:
            measure = partial(_host_rows, config, codec, workers)
            buckets += kept.rows(HostRow, ("bucket", codec, workers), measure)
            progress.advance(f"{codec} among {workers} workers")
        for ranks in bench.ranks:
            buses += kept.rows(BusRow, ("bus", ranks), partial(_bus_rows, config, ranks, directory))
            progress.advance(f"all-reduces among {ranks} workers")
    return rows, buckets, buses


def _host_rows(config: BenchTask, codec: str, workers: int) -> list[HostRow]:
    """The host's work for a bucket."""
    bench = config.bench
    row = host_row(
        codec,
        workers,
        numel=bench.bucket,
        kernels=config.kernels.name,
        seconds=float(bench.seconds),
        seed=config.seed,
        device=torch.device(config.cluster.device),
    )
    return [row]


def _bus_rows(config: BenchTask, ranks: int, directory: Path) -> list[BusRow]:
    """All-reduces of the codecs by turns among so many real workers."""
    bench = config.bench
    backend = "nccl" if config.cluster.device == "cuda" else "gloo"
    asked = BusSettings(
        subjects(bench.codecs),
        replace(config.cluster, name="local", workers=ranks, backend=backend),
        bench.coordinates,
        bench.rounds,
        config.kernels.name,
        config.kernels.graphs,
        config.seed,
    )
    return measure_bus(asked, directory)


def _settings(config: BenchTask) -> Settings:
    bench = config.bench
    return Settings(
        tuple(bench.sizes),
        tuple(bench.dtypes),
        tuple(bench.threads),
        float(bench.seconds),
        config.kernels.name,
        torch.device(config.cluster.device),
        config.seed,
    )


def _about(settings: Settings) -> dict[str, Any]:
    """Where the figures come from: code, machine, device and driver, level of instructions, date, seed."""
    on_gpu = settings.device.type == "cuda"
    return {
        "kernel_backend": settings.kernels,
        "cpu_level": cpu_level(),
        "device": torch.cuda.get_device_name(settings.device) if on_gpu else "cpu",
        "driver": output_of(DRIVER) if on_gpu else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": settings.seed,
        "seconds_per_row": settings.seconds,
        **provenance(),
    }


def _heading(found: dict[str, Any]) -> str:
    processor = found["machine"]["processor"]
    device = found["device"] if found["device"] != "cpu" else f"{processor}, level {found['cpu_level']}"
    return f"measured on {device} · kernels={found['kernel_backend']}"
