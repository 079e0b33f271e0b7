"""`task=overhead`: what a step of the trainer costs over a step of a bare DistributedDataParallel loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from gradwire.harness.config.task_keys import check_root
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.launch.processes import run_processes
from gradwire.harness.launch.scratch import scratch_folder
from gradwire.harness.launch.torchrun import under_torchrun
from gradwire.harness.record.directory import make_directory
from gradwire.harness.record.provenance import provenance
from gradwire.harness.report.tables import escaped
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.studies.overhead.compare import over_ranks, summarize
from gradwire.harness.studies.overhead.rank import BARE, HARNESS, WITHOUT_SPANS, benchmark_rank
from gradwire.harness.trainer.parts import prepare

FILE = "overhead.json"


def run(config: DictConfig, directory: Path) -> int:
    """Measures, prints a table, and writes `overhead.json` to `directory`."""
    if config.cluster.name != "local" or under_torchrun():
        raise ConfigError("task=overhead starts its own processes; use cluster=local, without torchrun")
    if config.network.name == "shaped":
        raise ConfigError("task=overhead measures what no link slows down; use network=none")
    check_root(config, "overhead")
    prepare(config)
    make_directory(directory)
    with scratch_folder() as folder:
        arguments = (config, folder, folder / "rendezvous")
        cluster = config.cluster
        run_processes(benchmark_rank, arguments, cluster.workers, folder, hang_s=cluster.hang_s)
        files = [folder / f"rank{rank}.json" for rank in range(config.cluster.workers)]
        ranks = [read_json(file, remedy="run it again") for file in files]
    found = {
        "model": config.model.name,
        "size": config.size.name,
        "codec": config.codec.name,
        "kernel_backend": config.kernels.name,
        "workers": config.cluster.workers,
        "micro_batch": config.train.micro_batch,
        "steps_per_block": config.overhead.steps,
        "blocks_each": config.overhead.blocks,
        **provenance(config),
        "recording": ranks[0]["recording"],
        **summarize(over_ranks([rank["blocks"] for rank in ranks]), BARE),
    }
    write_atomically(directory / FILE, json.dumps(found, indent=1) + "\n")
    print(table(found))
    print(f"run: {directory}")
    return 0


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown: medians over blocks; all workers' CPU time, the slowest one's wall time."""
    lines = [
        f"{escaped(found['model'])} (size {found['size']}), codec {found['codec']}, "
        f"{found['workers']} workers, "
        f"{found['blocks_each']} alternating blocks of {found['steps_per_block']} steps each",
        "",
        "| loop | CPU ms/step | wall ms/step | CPU ratio (lowest-highest block) | wall ratio |",
        "|---|---|---|---|---|",
    ]
    for name in (BARE, HARNESS, WITHOUT_SPANS):
        seconds = found["seconds_per_step"][name]
        ratios = [_ratio(found, name, kind) for kind in ("cpu", "wall")]
        times = [f"{1e3 * seconds[kind]:.2f}" for kind in ("cpu", "wall")]
        lines.append(f"| {' | '.join([name, *times, *ratios])} |")
    spans, span_s = found["recording"]["spans_per_step"], found["recording"]["span_s"]
    share = spans * span_s / found["seconds_per_step"][HARNESS]["wall"]
    lines += [
        "",
        f"Recording: {spans:.0f} spans a step at {1e6 * span_s:.2f} us each: {share:.4%} of a step.",
    ]
    return "\n".join(lines)


def _ratio(found: dict[str, Any], name: str, kind: str) -> str:
    if name == BARE:
        return "1"
    ratio = found["ratio"][name][kind]
    return f"{ratio['of_medians']:.3f} ({ratio['lowest']:.3f}-{ratio['highest']:.3f})"
