"""`task=bench`: the speed of the codecs' operations on this machine, as tables, JSON and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from gradwire.codecs.native.loading import cpu_level
from gradwire.harness.config.resources import check_bytes
from gradwire.harness.doctor.devices import DRIVER
from gradwire.harness.doctor.tools import output_of
from gradwire.harness.files.finite_json import dumps, restored
from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.typed import made
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.provenance import provenance
from gradwire.harness.record.row_file import append_rows
from gradwire.harness.runtime.progress import Progress
from gradwire.harness.studies.bench.bus import BusRow, BusSettings, measure_bus, subjects
from gradwire.harness.studies.bench.host import Buckets, HostRow, host_row, refusal
from gradwire.harness.studies.bench.measure import BenchSettings, Measuring, pieces
from gradwire.harness.studies.bench.operation import chosen_operations
from gradwire.harness.studies.bench.papers import ring_costs, smoothing
from gradwire.harness.studies.bench.study import BenchRow, BenchTask
from gradwire.harness.studies.bench.views import plots, text
from gradwire.harness.studies.study import Measured

SAME = ("kernel_backend", "cpu_level", "device", "driver", "code_hash", "versions", "machine")
"""The facts that must be the same for an interrupted bench to be continued."""

WORKERS = 8
"""The default number of workers of the ring whose cost is shown: DynamiQ's testbed has 8 GPUs."""


BYTES_PER_COORDINATE = 12
"""A lower bound on the bytes that an operation needs: its input, its output and a message, in float32."""


def resolve(config: BenchTask) -> BenchTask:
    """Fills in the workers; raises ValueError in one line for names that match nothing and numbers out of
    range."""
    chosen_operations(config.bench.operations)
    for size in config.bench.sizes:
        check_bytes("bench.sizes", size, BYTES_PER_COORDINATE * size)
    _check_buckets(config)
    return replace(config, cluster=replace(config.cluster, workers=config.cluster.workers or WORKERS))


def _check_buckets(config: BenchTask) -> None:
    """Raises ValueError for a codec that cannot be measured, for more workers than GPUs, and for buckets that
    do not fit into memory."""
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
                raise ValueError(f"bench.codecs: {codec} with bench.workers={workers}: {reason}")


def name(config: BenchTask) -> str:
    """`bench-<kernels>-<device>`."""
    return f"bench-{config.kernels.name}-{config.cluster.device}"


def measure(config: BenchTask, directory: Path) -> Measured:
    """The rows of operations, buckets and all-reduces, with the tables made from them."""
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
    config: BenchTask, settings: BenchSettings, directory: Path, kept: Kept
) -> tuple[list[BenchRow], list[HostRow], list[BusRow]]:
    """Measures operations, the host's work for buckets, and all-reduces for each number of real workers; each
    result is stored immediately."""
    bench = config.bench
    of_operations = pieces(chosen_operations(bench.operations), settings)
    of_buckets = [(codec, workers) for workers in bench.workers for codec in bench.codecs]
    rows, buckets, buses = list[BenchRow](), list[HostRow](), list[BusRow]()
    measuring = Measuring(settings)
    total = len(of_operations) + len(of_buckets) + len(bench.ranks)
    with Progress("bench", total, "measurement") as progress:
        for piece in of_operations:
            rows += kept.rows(BenchRow, ("operation", *piece.key), partial(measuring.rows, piece))
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
    buckets = Buckets(codec, workers, bench.bucket, config.seed, torch.device(config.cluster.device))
    return [host_row(buckets, kernels=config.kernels.name, seconds=float(bench.seconds))]


def _bus_rows(config: BenchTask, ranks: int, directory: Path) -> list[BusRow]:
    """All-reduces of the codecs in turn among `ranks` real workers."""
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


def _settings(config: BenchTask) -> BenchSettings:
    bench = config.bench
    return BenchSettings(
        tuple(bench.sizes),
        tuple(bench.dtypes),
        tuple(bench.threads),
        float(bench.seconds),
        config.kernels.name,
        torch.device(config.cluster.device),
        config.seed,
    )


def _about(settings: BenchSettings) -> dict[str, Any]:
    """The provenance of the figures: code, machine, device and driver, level of instructions, date, seed."""
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


FILE = "measured.jsonl"

REMEDY = "resume=never measures again"

Kind = TypeVar("Kind", BenchRow, HostRow, BusRow)

Key = tuple[str | int, ...]
"""The kind of a piece of work, and its key within that kind."""


class Kept:
    """The results so far, stored as they arrive, so that an interrupted command can be continued.

    They are in a file of JSON lines in the run directory: first the facts that figures depend on (`about`:
    sources, machine, packages), then one line for each piece of work with its rows. A finished bench has
    everything in `bench.json` instead.

    Results from another machine or of other code are discarded, which a line reports; so is a damaged end,
    which a killed process leaves.
    """

    def __init__(self, directory: Path, about: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = directory / FILE
        self._found = dict[Key, list[dict[str, Any]]]()
        header = {"about": about}
        first, *rest = [{}] if fresh else self._lines()
        if first == json.loads(dumps(header)):
            self._found = {tuple(line["key"]): line["rows"] for line in rest}
            print(f"resuming after {len(rest)} pieces of work that have been measured", flush=True)
        elif first:
            print("measuring anew: the machine or the code has changed since the interruption", flush=True)
        lines = [{"key": list(key), "rows": rows} for key, rows in self._found.items()]
        write_atomically(self.path, "".join(f"{dumps(line)}\n" for line in (header, *lines)))

    def rows(self, kind: type[Kind], key: Key, measure: Callable[[], Sequence[Kind]]) -> list[Kind]:
        """The rows of a piece of work: those in the file, or the result of `measure`, which is stored."""
        if key in self._found:
            return [made(kind, row, self.path, remedy=REMEDY) for row in self._found[key]]
        rows = list(measure())
        append_rows(self.path, [{"key": list(key), "rows": [asdict(row) for row in rows]}])
        return rows

    def _lines(self) -> list[dict[str, Any]]:
        """The lines before the first damaged one; an empty object if there are none."""
        found = list[dict[str, Any]]()
        try:
            for line in read_text(self.path, remedy=REMEDY, inside=self.path.parent).splitlines():
                value = restored(json.loads(line))
                if not isinstance(value, dict) or (found and not value.keys() >= {"key", "rows"}):
                    break
                found.append(value)
        except (UnusableFileError, FileNotFoundError, ValueError):
            pass
        return found or [{}]
