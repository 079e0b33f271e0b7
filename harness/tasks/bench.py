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
from gradwire.harness.config.memory import check_bytes
from gradwire.harness.doctor.devices import DRIVER
from gradwire.harness.doctor.tools import output_of
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.provenance import provenance
from gradwire.harness.report.figures import write_plots
from gradwire.harness.studies.bench.bus import BusRow, measure_bus, subjects
from gradwire.harness.studies.bench.bus import Settings as BusSettings
from gradwire.harness.studies.bench.host import HostRow, host_row, refusal
from gradwire.harness.studies.bench.measure import Settings, measure
from gradwire.harness.studies.bench.operation import chosen_operations
from gradwire.harness.studies.bench.papers import ring_costs, smoothing
from gradwire.harness.studies.bench.plots import plots
from gradwire.harness.studies.bench.settings import BenchTask
from gradwire.harness.studies.bench.tables import text
from gradwire.harness.tasks.once import TABLES, show_tables

JSON, PLOTS = "bench.json", "plots"

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


def run(config: BenchTask, directory: Path) -> int:
    """Measures, prints the tables, and writes them with `bench.json` and plots to `directory`; returns the
    exit code.

    Existing figures are shown again.
    """
    return show_tables(config, directory, partial(_write, config, directory))


def _write(config: BenchTask, directory: Path) -> None:
    settings = _settings(config)
    operations = chosen_operations(config.bench.operations)
    rows = list(measure(operations, settings))
    buckets, buses = _host_rows(config), _bus_rows(config, directory)
    found = _about(settings) | {
        "rows": [row.as_json() for row in rows],
        "ring": [
            asdict(cost) | {f"at_{config.cluster.size}_workers": cost.at(config.cluster.size)}
            for cost in ring_costs(rows)
        ],
        "buckets": [row.as_json() for row in buckets],
        "buses": [row.as_json() for row in buses],
        "smoothing": [asdict(pair) | {"share": pair.share} for pair in smoothing(rows)],
    }
    write_atomically(directory / JSON, json.dumps(found, indent=1) + "\n")
    heading = _heading(found)
    tables = text(rows, config.cluster.size, buckets, buses)
    write_atomically(directory / TABLES, f"{heading}\n\n{tables}\n")
    if config.plots:
        write_plots(plots(rows, heading), directory / PLOTS)


def _host_rows(config: BenchTask) -> list[HostRow]:
    """The host's work for buckets."""
    bench = config.bench
    measured = partial(
        host_row,
        numel=bench.bucket,
        kernels=config.kernels.name,
        seconds=float(bench.seconds),
        seed=config.seed,
        device=torch.device(config.cluster.device),
    )
    return [measured(codec, workers) for workers in bench.workers for codec in bench.codecs]


def _bus_rows(config: BenchTask, directory: Path) -> list[BusRow]:
    """All-reduces of the codecs by turns, among each number of real workers."""
    bench, found = config.bench, list[BusRow]()
    backend = "nccl" if config.cluster.device == "cuda" else "gloo"
    for ranks in bench.ranks:
        cluster = replace(config.cluster, name="local", workers=ranks, backend=backend)
        asked = BusSettings(
            subjects(bench.codecs),
            cluster,
            bench.coordinates,
            bench.rounds,
            config.kernels.name,
            config.kernels.graphs,
            config.seed,
        )
        found += measure_bus(asked, directory)
    return found


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
