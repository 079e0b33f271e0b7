"""`task=overhead`: what a step of the trainer costs over a step of a bare DistributedDataParallel loop."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from omegaconf import DictConfig

from gradwire.harness.config.errors import ConfigError
from gradwire.harness.launch.processes import run_processes
from gradwire.harness.launch.scratch import scratch_folder
from gradwire.harness.launch.torchrun import under_torchrun
from gradwire.harness.overhead.rank import BARE, HARNESS, WITHOUT_SPANS, benchmark_rank
from gradwire.harness.record.directory import make_directory
from gradwire.harness.record.files import write_atomically
from gradwire.harness.record.provenance import code_hash, git_state, machine, versions
from gradwire.harness.trainer.build import load_data

FILE = "overhead.json"


def run(config: DictConfig, directory: Path) -> int:
    """Measure, print a table, and leave `overhead.json` in `directory`."""
    if config.cluster.name != "local" or under_torchrun():
        raise ConfigError("task=overhead starts its own processes; use cluster=local, without torchrun")
    if config.overhead.blocks < 1 or config.overhead.steps < 1:
        raise ConfigError("overhead.blocks and overhead.steps must be at least 1")
    load_data(config)
    make_directory(directory)
    with scratch_folder() as folder:
        arguments = (config, folder, folder / "rendezvous")
        run_processes(benchmark_rank, arguments, config.cluster.workers, folder)
        ranks = [
            json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(config.cluster.workers)
        ]
    commit, dirty = git_state()
    found = {
        "model": config.model.name,
        "size": config.size.name,
        "codec": config.codec.name,
        "workers": config.cluster.workers,
        "micro_batch": config.train.micro_batch,
        "steps_per_block": config.overhead.steps,
        "blocks": config.overhead.blocks,
        "commit": commit,
        "dirty": dirty,
        "code_hash": code_hash(),
        "versions": versions(),
        "machine": machine(),
        "ranks": ranks,
    }
    write_atomically(directory / FILE, json.dumps(found, indent=1) + "\n")
    print(table(found))
    print(f"run: {directory}")
    return 0


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown: medians over blocks, of the slowest rank where ranks differ."""
    ranks = found["ranks"]
    lines = [
        f"{found['model']} (size {found['size']}), codec {found['codec']}, {found['workers']} workers, "
        f"{found['blocks']} alternating blocks of {found['steps_per_block']} steps each",
        "",
        "| loop | CPU ms/step | wall ms/step | CPU ratio (lowest-highest block) | wall ratio |",
        "|---|---|---|---|---|",
    ]
    for name in (BARE, HARNESS, WITHOUT_SPANS):
        cpu, wall = (
            1e3 * max(rank["seconds_per_step"][name][kind] for rank in ranks) for kind in ("cpu", "wall")
        )
        ratios = ["1", "1"] if name == BARE else [_ratio(ranks, name, kind) for kind in ("cpu", "wall")]
        lines.append(f"| {name} | {cpu:.2f} | {wall:.2f} | {ratios[0]} | {ratios[1]} |")
    spans = median(rank["recording"]["spans_per_step"] for rank in ranks)
    span_s = median(rank["recording"]["span_s"] for rank in ranks)
    step_s = median(rank["seconds_per_step"][HARNESS]["wall"] for rank in ranks)
    lines += [
        "",
        f"Recording: {spans:.0f} spans a step at {1e6 * span_s:.2f} us each: "
        f"{100 * spans * span_s / step_s:.3f} % of a step.",
    ]
    return "\n".join(lines)


def _ratio(ranks: list[dict[str, Any]], name: str, kind: str) -> str:
    worst = max((rank["ratio"][name][kind] for rank in ranks), key=lambda ratio: float(ratio["of_medians"]))
    return f"{worst['of_medians']:.3f} ({worst['lowest']:.3f}-{worst['highest']:.3f})"
