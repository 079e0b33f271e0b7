"""`task=allreduce`: how long one synchronization takes between real workers, and on the simulated clock."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.placement import placed
from gradwire.harness.config.cluster import WORKERS_WITHOUT_GPUS
from gradwire.harness.config.decisions import check_clock
from gradwire.harness.config.memory import check_bytes
from gradwire.harness.config.network_checks import (
    check_codec_times,
    check_network,
    check_size,
    resolve_nodes,
    workers_of,
)
from gradwire.harness.config.run_name import codec_name
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.network.configured import network_text
from gradwire.harness.network.settings import background_jobs
from gradwire.harness.record.networks import read_networks
from gradwire.harness.record.provenance import provenance
from gradwire.harness.studies.allreduce.compare import FILE
from gradwire.harness.studies.allreduce.settings import AllReduceTask, layout, with_coordinates
from gradwire.harness.studies.allreduce.summary import AllReduceSummary
from gradwire.harness.tasks.once import run_once
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.step_figures import wire_bits, wire_bits_by_level
from gradwire.harness.timing.simulate.engine import require_engine

if TYPE_CHECKING:
    from gradwire.harness.report.tables import Page


BYTES_PER_COORDINATE = 12
"""Least bytes that each worker takes: its gradient, the sums and the mean, in float32."""


def resolve(config: AllReduceTask) -> AllReduceTask:
    """Fills in workers and backend; raises ValueError in one line for what cannot run."""
    cluster = config.cluster
    if cluster.name == "local" and cluster.device == "cuda":
        raise ValueError(
            "task=allreduce measures between processes on CPUs; use cluster.device=cpu, or cluster=virtual"
        )
    require_engine("task=allreduce")
    config = replace(config, allreduce=with_coordinates(config.allreduce))
    network = check_network(config)
    workers = cluster.workers or workers_of(network) or WORKERS_WITHOUT_GPUS
    needed = BYTES_PER_COORDINATE * config.allreduce.coordinates * workers
    check_bytes("allreduce.coordinates", config.allreduce.coordinates, needed)
    check_size(network, workers)
    network = resolve_nodes(network, workers)
    cluster = placed(replace(cluster, workers=workers), network, config.topology.name)
    check_codec_times(network, config.codec, workers)
    backend = "gloo" if cluster.backend == "auto" else cluster.backend
    codec = make_codec(**config.codec)
    reason = codec.supports(config.topology.name, workers, layout(config.allreduce))
    if reason is None and codec.traits.needs_matrices and not config.allreduce.matrices:
        reason = (
            "it compresses matrices, and there is one vector here; add their shapes, e.g. "
            "allreduce.matrices=[[768,3072],[768]], or use task=replay"
        )
    if reason is None and codec.traits.uses_backend and workers > 1:
        reason = "the backend sends by itself, which no clock knows; use codec=fp32 or bf16"
    if reason is not None:
        raise ValueError(f"codec={codec.name}: {reason}")
    check_clock(config)
    return replace(config, network=network, cluster=replace(cluster, backend=backend))


def name(config: AllReduceTask) -> str:
    """`allreduce-<codec>-<topology>-n<workers>-<network>`."""
    words = [codec_name(config.codec), config.topology.name, f"n{config.cluster.size}", config.network.name]
    return "-".join(["allreduce", *words])


def run(config: AllReduceTask, directory: Path) -> int:
    """Measures and models, or shows the earlier results."""
    run_once(config, directory, partial(_write, config, directory))
    print(compare([directory], directory, ()).text)
    print(f"run: {directory}")
    return 0


def compare(folders: Sequence[Path], output: Path, axes: Sequence[str]) -> Page:
    """Makes a sweep's tables."""
    from gradwire.harness.studies.allreduce.compare import compare as compare_all

    return compare_all(folders, output)


def _write(config: AllReduceTask, directory: Path) -> None:
    write_atomically(directory / FILE, _measure(config, directory).to_json())


def _measure(config: AllReduceTask, directory: Path) -> AllReduceSummary:
    from gradwire.harness.studies.allreduce.rounds import clock_for, model

    rows, goodput = None, None
    if config.cluster.name == "local":
        rows, goodput = _real(config, directory)
    modelled = model(config, clock_for(config, goodput))
    size, repeats = config.cluster.size, config.allreduce.repeats
    seconds, codec_s = (None, None) if rows is None else _over_ranks(rows)
    on_clock = (modelled.bytes_sent, modelled.bytes_between_nodes)
    sent, between = on_clock if rows is None else _bytes_sent(rows)
    follows_clock = make_codec(**config.codec).traits.clock_driven  # then each world decides by its own
    if (sent, between) != on_clock and not follows_clock:
        raise RuntimeError(
            f"real workers sent {sent} bytes, {between} to other nodes; those of the clock {on_clock[0]} and "
            f"{on_clock[1]}"
        )
    gradients, coordinates = _gradients_sent(config), config.allreduce.coordinates * repeats
    by_level = None
    if num_nodes(config.cluster, config.network) > 1:
        by_level = wire_bits_by_level(sent, between, gradients, coordinates)
    return AllReduceSummary(
        codec=codec_name(config.codec),
        topology=config.topology.name,
        workers=size,
        coordinates=config.allreduce.coordinates,
        pieces=config.overlap.segments,
        network=network_text(config.network),
        network_settings=asdict(config.network),
        rate_mbit=getattr(config.network, "rate_mbit", None),
        goodput_mbit=goodput,
        rivals=background_jobs(config.network),
        repeats=repeats,
        measured=None if seconds is None else Spread.of(seconds),
        measured_codec_s=None if codec_s is None else Spread.of(codec_s),
        modelled=Spread.of(modelled.seconds),
        modelled_codec_s=Spread.of(modelled.codec_s),
        bytes_sent=sent // repeats,
        wire_bits_per_coordinate=wire_bits(sent, gradients, coordinates),
        wire_bits_by_level=by_level,
        kernel_backend=config.kernels.name,
        rounds_s=seconds or [],
        provenance=provenance(config.mapping()),
    )


def _gradients_sent(config: AllReduceTask) -> float:
    from gradwire.harness.comm.topology.registry import make_schedule

    nodes = num_nodes(config.cluster, config.network)
    return make_schedule(config.topology.name, config.cluster.size, nodes).gradients_sent


def _real(config: AllReduceTask, directory: Path) -> tuple[list[list[float]], float | None]:
    """Every rank's row, and what a link of a shaped network carried when it was measured."""
    from gradwire.harness.launch.ranks import run_ranks, scratch_folder
    from gradwire.harness.studies.allreduce.rounds import FILE as MEASURED
    from gradwire.harness.studies.allreduce.rounds import measure_rank

    with scratch_folder() as folder:
        arguments = (config, folder, folder / "rendezvous")
        trouble = run_ranks(measure_rank, arguments, config.cluster, config.network, directory, folder)
        if trouble:
            print(f"warning: all is measured, but {trouble}", file=sys.stderr)
        rows: list[list[float]] = read_json(folder / MEASURED, remedy="run it again", expected=list)
    goodput = read_networks(directory)[-1]["goodput_mbit"] if config.network.name == "shaped" else None
    return rows, goodput


def _over_ranks(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Per round, the slowest rank's seconds and the longest codec work."""
    seconds = [max(ranks) for ranks in zip(*(row[2::2] for row in rows), strict=True)]
    codec_s = [max(ranks) for ranks in zip(*(row[3::2] for row in rows), strict=True)]
    return seconds, codec_s


def _bytes_sent(rows: Sequence[Sequence[float]]) -> tuple[int, int]:
    """What all ranks sent in all rounds, and how much of it to other nodes."""
    return int(sum(row[0] for row in rows)), int(sum(row[1] for row in rows))
