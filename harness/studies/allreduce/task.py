"""`task=allreduce`: the time of one synchronization between real workers and on the simulated clock.

With `parallel=sharded` it consists of a bucket's reduce-scatter and the gathering of its weights.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule, placed
from gradwire.harness.config.cluster import WORKERS_WITHOUT_GPUS
from gradwire.harness.config.given_files import check_clock
from gradwire.harness.config.network_checks import (
    check_codec_times,
    check_network,
    resolve_workers,
    workers_of,
)
from gradwire.harness.config.resources import check_bytes
from gradwire.harness.config.run_name import codec_name
from gradwire.harness.files.structured import read_json
from gradwire.harness.network.configured import network_text
from gradwire.harness.network.settings import background_jobs
from gradwire.harness.parallel.requirements import scatter_refusal
from gradwire.harness.record.attempts import read_networks
from gradwire.harness.record.provenance import provenance
from gradwire.harness.studies.allreduce.rounds import layout
from gradwire.harness.studies.allreduce.study import (
    TIMED,
    AllReduceSummary,
    AllReduceTask,
    PartSummary,
    in_words,
    sharded,
    with_coordinates,
)
from gradwire.harness.studies.study import Measured
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.metrics import kind_of
from gradwire.harness.timing.measure.step_figures import wire_bits, wire_bits_by_level
from gradwire.harness.timing.simulate.engine import require_engine

if TYPE_CHECKING:
    from gradwire.harness.studies.allreduce.rounds import Timed


BYTES_PER_COORDINATE = 12
"""A lower bound on the bytes that each worker needs: its gradient, the sums and the mean, or the model, in
float32."""


def resolve(config: AllReduceTask) -> AllReduceTask:
    """Fills in workers and backend; raises ValueError in one line for an impossible configuration."""
    cluster = config.cluster
    if cluster.name == "local" and cluster.device == "cuda":
        raise ValueError(
            "task=allreduce measures between processes on CPUs; use cluster.device=cpu, or cluster=virtual"
        )
    require_engine("task=allreduce")
    config = replace(config, allreduce=with_coordinates(config.allreduce))
    check_network(config)
    workers = cluster.workers or workers_of(config.network) or WORKERS_WITHOUT_GPUS
    needed = BYTES_PER_COORDINATE * config.allreduce.coordinates * workers
    check_bytes("allreduce.coordinates", config.allreduce.coordinates, needed)
    network, workers = resolve_workers(config.network, workers)
    cluster = placed(replace(cluster, workers=workers), network, config.topology.name)
    check_codec_times(network, config.codec, workers)
    backend = "gloo" if cluster.backend == "auto" else cluster.backend
    codec, bucket = make_codec(**config.codec), layout(config.allreduce)
    if config.parallel.name not in TIMED:
        raise ValueError(
            f"parallel={config.parallel.name} has no single bucket to time; choose {' or '.join(TIMED)}"
        )
    settings = sharded(config)
    if settings is not None:
        reason = scatter_refusal(settings, codec, config.topology.name, workers, bucket)
        if reason is not None:
            raise ValueError(reason)
    reason = codec.supports_stages(1) or codec.supports(config.topology.name, workers, bucket)
    if reason is None:
        num_chunks = make_schedule(config.topology.name, workers).num_chunks
        reason = codec.refuses_buckets([bucket], workers, num_chunks)
    if reason is None and codec.traits.needs_matrices and not config.allreduce.matrices:
        reason = (
            "it compresses matrices, and there is one vector here; add their shapes, e.g. "
            "allreduce.matrices=[[768,3072],[768]], or use task=replay"
        )
    if reason is None and codec.traits.uses_backend and workers > 1:
        reason = (
            "the backend sends its own messages, which a simulated clock cannot time; use codec=fp32 or bf16"
        )
    if reason is not None:
        named = f"codec={codec.name}"
        raise ValueError(reason if reason.startswith(named) else f"{named}: {reason}")
    check_clock(config)
    return replace(config, network=network, cluster=replace(cluster, backend=backend))


def name(config: AllReduceTask) -> str:
    """`allreduce-<codec>-<topology>-n<workers>-<network>`, with `sharded-<codec>-<weights>` for the codec."""
    settings = sharded(config)
    what = [] if settings is None else ["sharded"]
    sent = [codec_name(config.codec)] + ([] if settings is None else [settings.weights])
    words = [config.topology.name, f"n{config.cluster.size}", config.network.name]
    return "-".join(["allreduce", *what, *sent, *words])


def measure(config: AllReduceTask, directory: Path) -> Measured:
    """Runs rounds between real workers, unless the cluster is virtual, and on the simulated clock."""
    from gradwire.harness.studies.allreduce.rounds import clock_for, model

    measured, goodput = None, None
    if config.cluster.name == "local":
        measured, goodput = _real(config, directory)
    modelled = model(config, clock_for(config, goodput))
    if measured is not None and not make_codec(**config.codec).traits.clock_driven:
        _check_bytes(measured, modelled)  # where they follow the clock, each world decides by its own
    counted = (modelled if measured is None else measured).values()
    sent = sum(part.bytes_sent for part in counted)
    between = sum(part.bytes_between_nodes for part in counted)
    repeats = config.allreduce.repeats
    gradients, coordinates = _gradients_sent(config), config.allreduce.coordinates * repeats
    by_level = None
    if num_nodes(config.cluster, config.network) > 1:
        by_level = wire_bits_by_level(sent, between, gradients, coordinates)
    settings = sharded(config)
    found = AllReduceSummary(
        codec=codec_name(config.codec),
        topology=config.topology.name,
        workers=config.cluster.size,
        coordinates=config.allreduce.coordinates,
        pieces=config.overlap.segments,
        network=network_text(config.network, kind_of(config.cluster.name, config.network.name)),
        network_settings=asdict(config.network),
        rate_mbit=getattr(config.network, "rate_mbit", None),
        goodput_mbit=goodput,
        background_jobs=background_jobs(config.network),
        repeats=repeats,
        measured=None if measured is None else Spread.of(_sums(measured, "seconds")),
        measured_codec_s=None if measured is None else Spread.of(_sums(measured, "codec_s")),
        modelled=Spread.of(_sums(modelled, "seconds")),
        modelled_codec_s=Spread.of(_sums(modelled, "codec_s")),
        bytes_sent=sent // repeats,
        wire_bits_per_coordinate=wire_bits(sent, gradients, coordinates),
        wire_bits_by_level=by_level,
        model_dtype=None if settings is None else settings.model_dtype,
        weights=None if settings is None else in_words(settings),
        parts=None if settings is None else _parts(config, measured, modelled),
        kernel_backend=config.kernels.name,
        rounds_s=[] if measured is None else _sums(measured, "seconds"),
        provenance=provenance(config.mapping()),
    )
    return Measured(found.to_json())


def _sums(parts: Mapping[str, Timed], key: str) -> list[float]:
    """Per round, the sum over its parts."""
    return [sum(each) for each in zip(*(getattr(part, key) for part in parts.values()), strict=True)]


def _parts(
    config: AllReduceTask, measured: Mapping[str, Timed] | None, modelled: Mapping[str, Timed]
) -> dict[str, PartSummary]:
    """The summary of each part; a part sends half of the vectors that an all-reduce sends."""
    halves, coordinates = _gradients_sent(config) / 2, config.allreduce.coordinates * config.allreduce.repeats
    found = {}
    for name, part in (measured or modelled).items():
        found[name] = PartSummary(
            measured=None if measured is None else Spread.of(part.seconds),
            modelled=Spread.of(modelled[name].seconds),
            bytes_sent=part.bytes_sent // config.allreduce.repeats,
            wire_bits_per_coordinate=wire_bits(part.bytes_sent, halves, coordinates),
        )
    return found


def _check_bytes(measured: Mapping[str, Timed], modelled: Mapping[str, Timed]) -> None:
    """Raises RuntimeError unless real workers have sent as many bytes as simulated ones."""
    for name, part in measured.items():
        on_clock = modelled[name]
        sent, expected = (
            (part.bytes_sent, part.bytes_between_nodes),
            (
                on_clock.bytes_sent,
                on_clock.bytes_between_nodes,
            ),
        )
        if sent != expected:
            raise RuntimeError(
                f"{name}: real workers sent {sent[0]} bytes, {sent[1]} to other nodes; those of the clock "
                f"{expected[0]} and {expected[1]}"
            )


def _gradients_sent(config: AllReduceTask) -> float:

    nodes = num_nodes(config.cluster, config.network)
    return make_schedule(config.topology.name, config.cluster.size, nodes).gradients_sent


def _real(config: AllReduceTask, directory: Path) -> tuple[dict[str, Timed], float | None]:
    """The parts of the measured rounds, and the measured throughput of a shaped network's link."""
    from gradwire.harness.launch.ranks import LocalRanks, scratch_folder
    from gradwire.harness.studies.allreduce.rounds import FILE as MEASURED
    from gradwire.harness.studies.allreduce.rounds import measure_rank, over_ranks

    with scratch_folder() as folder:
        arguments = (config, folder, folder / "rendezvous")
        ranks = LocalRanks(config.cluster, config.network, directory, folder)
        trouble = ranks.run(measure_rank, arguments)
        if trouble:
            print(f"warning: all is measured, but {trouble}", file=sys.stderr)
        rows: dict[str, list[list[float]]] = read_json(
            folder / MEASURED, remedy="run it again", expected=dict
        )
    goodput = read_networks(directory)[-1]["goodput_mbit"] if config.network.name == "shaped" else None
    return over_ranks(rows), goodput
