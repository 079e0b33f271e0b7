"""`task=train`: one run, from a validated configuration to its record."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig

from gradwire.harness.record.writer import is_done
from gradwire.harness.report.runs import Run, load_run


def run(config: DictConfig, directory: Path) -> int:
    """Train, or show the summary of the run if it has already finished; returns the exit code.

    The last line printed is `run: <directory>`.
    """
    from gradwire.harness.launch.launch import run_here, run_torchrun_rank, under_torchrun

    visible = not under_torchrun() or os.environ["RANK"] == "0"
    if is_done(directory):
        if visible:
            print(f"already finished: {directory} (remove it, or set hydra.run.dir=, to run again)")
            _show(load_run(directory))
        return 0
    if visible:
        print(_first_line(config), flush=True)
    if under_torchrun():
        directory = run_torchrun_rank(config, directory)
    else:
        run_here(config, directory)
    if visible:
        _finish(directory)
    return 0


def _first_line(config: DictConfig) -> str:
    network = config.network.name
    if network == "paced":
        network = f"paced at {config.network.rate_mbit:g} Mbit/s"
    source = config.dataset.path or f"{config.dataset.name} text"
    return (
        f"{config.model.name} (size {config.size.name}) on {source}: codec {config.codec.name}, "
        f"topology {config.topology.name}, {config.cluster.workers} {config.cluster.name} workers, "
        f"network {network}, seed {config.seed}"
    )


def _finish(directory: Path) -> None:
    from gradwire.harness.report.run_plots import plot_run

    finished = load_run(directory)
    plot_run(finished, directory / "plots")
    _show(finished)


def _show(finished: Run) -> None:
    summary = finished.done
    step_s = 1.0 / summary.rounds_per_second
    wire = "nothing sent" if summary.wire_bits_per_coordinate is None else (
        f"{summary.wire_bits_per_coordinate:.3f} wire bits per coordinate"
    )
    error = "" if summary.vnmse_mean is None else f", vNMSE {summary.vnmse_mean:.3g}"
    print(f"{summary.metric} {summary.final_metric:.3f} after {summary.steps} steps{error}, {wire}")
    print(
        f"{summary.train_time_s:.1f} s on the training clock ({summary.clock}); a step of {step_s * 1e3:.0f} ms: "
        f"compute {summary.compute_s * 1e3:.0f}, compression {summary.compression_s * 1e3:.0f}, "
        f"exposed communication {summary.exposed_comm_s * 1e3:.0f}, other {summary.other_s * 1e3:.0f} ms"
    )
    if finished.choice("network") == "none" and summary.clock == "wall":
        _note_on_loopback(finished)
    print(f"run: {finished.folder}")


def _note_on_loopback(finished: Run) -> None:
    """On a raw loopback the wire is faster than any codec: say so where this run shows it."""
    summary = finished.done
    if not summary.machine.get("gpus") and summary.compression_s > max(summary.exposed_comm_s, 1e-3):
        print(
            f"note: on a raw loopback compression does not pay: {summary.compression_s * 1e3:.0f} ms a step to "
            f"compress, {summary.exposed_comm_s * 1e3:.0f} ms of exposed communication; network=paced makes links count"
        )
