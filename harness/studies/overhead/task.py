"""`task=overhead`: the cost of a step of the trainer relative to a plain DistributedDataParallel loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradwire.harness.config.run_name import codec_name
from gradwire.harness.files.structured import read_json
from gradwire.harness.launch.processes import Supervision, run_processes
from gradwire.harness.launch.ranks import scratch_folder
from gradwire.harness.launch.torchrun import under_torchrun
from gradwire.harness.network.configured import network_text
from gradwire.harness.record.provenance import provenance
from gradwire.harness.report.tables import Column, figure, figures_table, render_markdown
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.overhead.rank import (
    BARE,
    HARNESS,
    WITH_DDP,
    WITHOUT_SPANS,
    benchmark_rank,
    over_ranks,
    summarize,
)
from gradwire.harness.studies.overhead.study import (
    OverheadRecord,
    OverheadTask,
    RecordingCost,
    StepRatio,
)
from gradwire.harness.studies.study import Measured
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.metrics import METRICS, kind_of
from gradwire.harness.trainer.parts import prepare

CONTESTANTS = (BARE, HARNESS, WITHOUT_SPANS, WITH_DDP)

COLUMNS = (
    "cpu_step_s",
    Column("step_time_s", shown=METRICS["cpu_step_s"].shown),
    Column("to_bare", "cpu_ratio", "CPU, bare = 1"),
    Column("to_bare", "wall_ratio", "step, bare = 1"),
)


def resolve(config: OverheadTask) -> OverheadTask:
    """Raises ConfigError in one line for workers started by others, and for limited links, which would slow
    down only the trainer."""
    if config.cluster.name != "local" or under_torchrun():
        raise ConfigError("task=overhead starts its own processes; use cluster=local, without torchrun")
    if config.network.name == "shaped":
        raise ConfigError("task=overhead measures a training without limited links; use network=none")
    return config


def name(config: OverheadTask) -> str:
    """`overhead-<model>-<codec>`."""
    return f"overhead-{config.model.name}-{codec_name(config.codec)}"


def measure(config: OverheadTask, directory: Path) -> Measured:
    """Runs all contestants' blocks in turn, on all ranks."""
    prepare(config)
    with scratch_folder() as folder:
        arguments = (config, folder, folder / "rendezvous")
        cluster = config.cluster
        supervision = Supervision(hang_s=cluster.hang_s)
        run_processes(benchmark_rank, arguments, cluster.size, folder, supervision)
        files = [folder / f"rank{rank}.json" for rank in range(config.cluster.size)]
        ranks = [read_json(file, remedy="run it again") for file in files]
    found = OverheadRecord(
        model=config.model.name,
        size=config.size.name,
        codec=config.codec["name"],
        parallel=config.parallel.name,
        kernel_backend=config.kernels.name,
        workers=config.cluster.size,
        network=network_text(config.network, kind_of(config.cluster.name, config.network.name)),
        micro_batch=config.train.micro_batch,
        steps_per_block=config.overhead.steps,
        blocks_each=config.overhead.blocks,
        **provenance(config.mapping()),
        recording=RecordingCost(**ranks[0]["recording"]),
        **summarize(over_ranks([rank["blocks"] for rank in ranks]), BARE),
    )
    return Measured(found.to_json(), table(found))


def table(found: OverheadRecord) -> str:
    """The figures as Markdown: medians over blocks, for the CPU time of all workers and the wall time of the
    slowest."""
    title = (
        f"{found.model} (size {found.size}), codec {found.codec}, parallel {found.parallel}, "
        f"{found.workers} workers, {found.network}, "
        f"{found.blocks_each} alternating blocks of {found.steps_per_block} steps each"
    )
    further = {field: getattr(found, field) for field in found.columns()}
    by_loop = [field for field, value in further.items() if isinstance(value, dict)]
    columns: list[Column | str] = [*COLUMNS, *(Column(found.columns()[field], field) for field in by_loop)]
    lines = [
        ([name], _figures(found, name) | {field: further[field].get(name) for field in by_loop})
        for name in CONTESTANTS
        if name in found.seconds_per_step
    ]
    spans, span_s = found.recording.spans_per_step, found.recording.span_s
    wall_s = found.seconds_per_step[HARNESS].wall
    share = "" if not wall_s else f": {spans * span_s / wall_s:.4%} of a step"
    remarks = [f"Recording: {spans:.0f} spans a step at {1e6 * span_s:.2f} us each{share}."]
    for field, value in further.items():
        if field not in by_loop:
            metric = METRICS[found.columns()[field]]
            remarks.append(f"{metric.heading}: {figure(value, metric.shown)}.")
    return "\n\n".join([render_markdown(figures_table(title, ["loop"], lines, columns)), "\n".join(remarks)])


def _figures(found: OverheadRecord, name: str) -> dict[str, Any]:
    """Seconds per step, and their ratios to the plain loop's: of the medians, and the lowest and highest in a
    round."""
    seconds, ratios = found.seconds_per_step[name], found.ratio.get(name, StepRatio(None, None))
    return {
        "cpu_step_s": seconds.cpu,
        "step_time_s": seconds.wall,
        "cpu_ratio": ratios.cpu and Spread(ratios.cpu.of_medians, ratios.cpu.lowest, ratios.cpu.highest),
        "wall_ratio": ratios.wall and Spread(ratios.wall.of_medians, ratios.wall.lowest, ratios.wall.highest),
    }
