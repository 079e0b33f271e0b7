"""`task=replay`: a codec on saved gradients, without training: its error, bytes and time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from gradwire.codecs.native.choice import using_kernels
from gradwire.codecs.registry import make_codec
from gradwire.harness.comm.collective.collectives import Fabric
from gradwire.harness.comm.nodes import num_nodes
from gradwire.harness.comm.topology.registry import make_schedule, placed
from gradwire.harness.comm.world.virtual import VirtualWorld
from gradwire.harness.config.run_name import codec_name
from gradwire.harness.report.names import names_of
from gradwire.harness.report.tables import number, render_text
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.studies.replay.compare import step_table
from gradwire.harness.studies.replay.rounds import Replay
from gradwire.harness.studies.replay.row import GradientRow
from gradwire.harness.studies.replay.study import MEAN, TOPOLOGIES, ReplaySummary, ReplayTask, bound_in_words
from gradwire.harness.studies.replay.tally import ReplayTally
from gradwire.harness.studies.study import Measured


def resolve(config: ReplayTask) -> ReplayTask:
    """Fills in the workers; raises ValueError in one line if file, codec and numbers do not fit together."""
    if config.cluster.name != "virtual":
        raise ValueError(
            "task=replay hosts all workers in one process; leave cluster out, or use cluster=virtual"
        )
    row = GradientRow.of(config.gradients)
    gradients = row.first
    if not row.is_one and config.replay.rounds > 1:
        raise ValueError(
            f"replay.rounds={config.replay.rounds} is for one file, and gradients has {len(row.paths)} steps "
            "in a row, each of which is a round; leave it out"
        )
    workers = config.cluster.workers or gradients.workers
    if workers > gradients.workers:
        raise ValueError(
            f"cluster.workers={workers}: {row.words} has the gradients of {gradients.workers} workers"
        )
    cluster = placed(replace(config.cluster, workers=workers), None, config.topology.name)
    codec = make_codec(**config.codec)
    if codec.traits.uses_backend and workers > 1:
        raise ValueError(f"codec={codec.name} needs real processes, and task=replay has none; use codec=fp32")
    if codec.traits.clock_driven:
        raise ValueError(
            f"codec={codec.name} decides by the times of messages, which task=replay does not send over a "
            "network; use task=allreduce, or a training run"
        )
    if codec.traits.needs_matrices and not gradients.buckets:
        raise ValueError(
            f"codec={codec.name} compresses matrices, which {row.words} does not describe: "
            "add an array `layout` (docs/gradients.md), or save gradients by measure.save_gradients_at"
        )
    bound, topology = config.replay.bound, config.topology.name
    if bound != MEAN and topology not in TOPOLOGIES:
        raise ValueError(
            f"replay.bound={bound} is of messages as topology={' and '.join(TOPOLOGIES)} send them, and "
            f"topology={topology} sends others; leave it out"
        )
    for layout in gradients.layouts(config.replay.bucket_mb):
        reason = codec.supports_stages(1) or codec.supports(config.topology.name, workers, layout)
        if reason is not None:
            raise ValueError(f"codec={config.codec['name']}: {reason}")
    num_chunks = make_schedule(topology, workers).num_chunks
    reason = codec.refuses_buckets(gradients.layouts(config.replay.bucket_mb), workers, num_chunks)
    if reason is not None:
        raise ValueError(reason)
    return replace(config, cluster=cluster, gradients=row.given)


def name(config: ReplayTask) -> str:
    """`replay-<file>-<codec>[-<bits>]-<topology>-n<workers>-s<seed>`; of a row its first and last file."""
    row, codec = GradientRow.of(config.gradients), codec_name(config.codec)
    return f"replay-{row.name}-{codec}-{config.topology.name}-n{config.cluster.size}-s{config.seed}"


def measure(config: ReplayTask, directory: Path) -> Measured:
    """Measures error, bytes and time of the codec on the gradients, repeated with different random
    numbers.
    """
    from gradwire.harness.studies.replay.plots import replay_plots

    summary = _replay(config)
    named = {"codec": config.codec["name"], "bits": config.codec.get("bits")}
    codec = names_of({key: value for key, value in named.items() if value is not None})
    return Measured(summary.to_json(), _text(summary, config), lambda: replay_plots(summary, codec))


def _replay(config: ReplayTask) -> ReplaySummary:
    row, size = GradientRow.of(config.gradients), config.cluster.size
    torch.set_num_threads(1)  # more give other bits, and are slower on tensors of this size
    fabric = Fabric(partial(make_schedule, config.topology.name), num_nodes=num_nodes(config.cluster))
    world = VirtualWorld(size, fabric, torch.device(config.cluster.device))
    replay = Replay(row, config.replay.bucket_mb, world)
    tally = ReplayTally(config, row, replay.numels)
    make = partial(make_codec, **config.codec)
    with using_kernels(config.kernels.name):
        for index in tracked(range(config.replay.repeats), "replay", "repeat"):
            seed = config.seed + index
            for found in replay.repeat(make, seed, config.replay.rounds, check_hashes=index == 0):
                tally.add(found, replay.widths(make(), config.seed) if index == 0 else None)
                del found  # two files of a row may not fit into memory
    return tally.summary()


def _text(summary: ReplaySummary, config: ReplayTask) -> str:
    """The figures in a few lines."""
    deviation = "" if summary.vnmse_std is None else f" ± {summary.vnmse_std:.1e}"
    decibels, of = summary.db_above_bound, bound_in_words(summary.bound)
    above = "" if decibels is None else f", {decibels:.1f} dB above the rate–distortion bound{of}"
    phases = ", ".join(f"{phase} {bits:.4g}" for phase, bits in summary.wire_bits_by_phase.items())
    bits, milliseconds = number(summary.wire_bits_per_coordinate), number(1e3 * summary.codec_s)
    buckets = "bucket" if summary.num_buckets == 1 else "buckets"
    words = GradientRow.of(config.gradients).words
    lines = [
        f"{codec_name(config.codec)} on {words} ({summary.num_coordinates} coordinates in "
        f"{summary.num_buckets} {buckets}), {config.topology.name} of {summary.workers}"
    ]
    steps = len(summary.vnmse_by_step)
    rounds = "" if summary.rounds == 1 else f", after {summary.rounds} rounds"
    rounds += f", mean of {steps} steps in a row" if steps else ""
    repeats = f"over replay.repeats={summary.repeats}{rounds}"
    if summary.vnmse_mean is None:
        lines.append(f"no vNMSE {repeats}: the gradients' mean is zero, or the codec's is not finite")
    else:
        lines.append(f"vNMSE {number(summary.vnmse_mean)}{deviation} {repeats}{above}")
    lines.append(f"{bits} wire bits per coordinate: {phases or 'nothing was sent'}")
    lines.append(
        f"codec {milliseconds} ms on the busiest rank, "
        f"{summary.codec_ns_per_coordinate:.1f} ns per coordinate"
    )
    if steps:
        lines.extend(["", *render_text(step_table(summary)).splitlines()])
    elif config.codec.get("ef") and summary.rounds == 1:
        lines.append(
            "note: error feedback has nothing to add in a first round; replay.rounds=20 shows its effect"
        )
    return "\n".join(lines)
