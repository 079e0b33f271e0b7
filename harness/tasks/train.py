"""`task=train`: one run, from a validated configuration to its record."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.harness.checkpoint.resume import check_directory, is_finished
from gradwire.harness.data.settings import FITS
from gradwire.harness.models.folder import model_in_words
from gradwire.harness.network.configured import network_text, whose_computation
from gradwire.harness.record.busy import busy_run
from gradwire.harness.record.directory import PROFILE
from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.record.summary import Summary
from gradwire.harness.timing.measure.metrics import METRICS, PARTS, in_words, kind_of
from gradwire.harness.trainer.settings import RunConfig

if TYPE_CHECKING:
    from gradwire.harness.report.compare import Comparison


ALONE = "note: one worker sends nothing: codec, topology and network have no effect; use cluster.workers=4"

UNLIMITED = (
    "note: links are unlimited, so that compression can only cost time; network=simulated gives them a rate"
)


def run(config: RunConfig, directory: Path) -> int:
    """Trains, or shows the summary of a finished run; returns the exit code.

    The last line printed is `run: <directory>`.
    """
    from gradwire.harness.launch.launch import clean_finished, continued, run_here
    from gradwire.harness.launch.torchrun import restarted_by_torchrun, run_torchrun_rank, under_torchrun

    if restarted_by_torchrun():
        config = continued(config)
    visible = not under_torchrun() or os.environ["RANK"] == "0"
    check_directory(config, directory)
    finished = is_finished(config, directory)  # of rank 0's directory, which counts, rank 0 alone knows
    if visible and finished:
        print(f"already finished: {directory} (resume=never runs it again)")
        clean_finished(directory)
    elif visible:
        print("\n".join(first_lines(config, directory)), flush=True)
    draw = partial(_draw, config, directory)
    if under_torchrun():
        run_torchrun_rank(config, directory, draw)
    elif not finished:
        run_here(config, directory, draw)
    if visible:
        if not (directory / "plots").is_dir():  # of a run that was finished before
            draw()
        show_run(load_run(directory))
    return 0


def compare(folders: Sequence[Path], output: Path, axes: Sequence[str]) -> Comparison:
    """Makes a sweep's tables and plots: see `report.compare`."""
    from gradwire.harness.report import compare as report

    return report.compare(folders, output, axes=axes)


def first_lines(config: RunConfig, directory: Path) -> list[str]:
    """The first lines of output of the run in `directory`: its model and data, and limits of its links."""
    cluster, links = config.cluster, config.network
    kind = kind_of(cluster.name, links.name, share_device=cluster.share_device)
    network = network_text(links, kind)
    source = config.dataset.path or f"{config.dataset.name} {FITS[config.dataset.kind][0]}"
    size = f"size {config.size.name}"
    what = size if config.model.architecture is None else f"{model_in_words(config.model)}; {size}"
    trained = (
        f"{config.model.name} ({what}) on {source}: codec {config.codec['name']}, "
        f"topology {config.topology.name}, {config.cluster.workers} {config.cluster.name} workers, "
        f"seed {config.seed}; {network}{_computation(config, directory)}"
    )
    unlimited = config.cluster.name == "virtual" and config.network.name == "none"
    return [trained, *([ALONE] if config.cluster.size == 1 else [UNLIMITED] if unlimited else [])]


def _computation(config: RunConfig, directory: Path) -> str:
    """The source of the simulated clock's compute times, in words for a first line."""
    if config.cluster.name != "virtual":
        return ""
    shared = (directory / PROFILE).is_file()
    whose = whose_computation(asdict(config.network), config.cluster.device, shared=shared)
    return f", computation: {whose}"


def _draw(config: RunConfig, directory: Path) -> None:
    from gradwire.harness.report.run_plots import plot_run

    if config.plots:
        plot_run(load_run(directory), directory / "plots")


def show_run(finished: Run) -> None:
    """Prints its figures in a few lines; the last one is `run: <directory>`."""
    summary = finished.done
    wire, error = "", ""
    if summary.wire_bits_per_coordinate is not None:
        wire = f", {summary.wire_bits_per_coordinate:.3f} wire bits per coordinate"
    if summary.vnmse_mean is not None:
        error = f", vNMSE {summary.vnmse_mean:.3g}"
    skipped = f" ({summary.skipped_steps} skipped)" if summary.skipped_steps else ""
    name = in_words(summary.metric)
    print(f"{name} {summary.final_metric:.3f} after {summary.steps} steps{skipped}{error}{wire}")
    clock = f"{summary.clock}; {finished.network}"
    print(f"{summary.train_time_s:.1f} s on the training clock ({clock}){_parts(summary)}")
    if summary.earlier_ends:
        times = len(summary.earlier_ends)
        print(f"interrupted {times} time{'s' * (times > 1)} on the way: run.json says why")
    if summary.captured is not None:
        print(captured_in_words(summary.captured))
    _note_on_loopback(finished)
    busy = busy_run(finished)
    if busy:
        print(f"note: {busy[0].lower()}{busy[1:]}")
    print(f"run: {finished.folder}")


def captured_in_words(captured: Mapping[str, Any]) -> str:
    """A line on the rounds that ran as CUDA graphs: how many, why others did not, and how often they were
    timed."""
    words = f"captured: {captured['captured']} of {captured['buckets']} buckets"
    if refused := captured["refused"]:
        words += f" ({'; '.join(f'{count}: {reason}' for reason, count in refused.items())})"
    every, share = captured["spans_every"], captured["marks_share"]
    if every is not None:
        words += f", timed in {'every step' if every == 1 else f'one step of {every}'}"
    if share is not None:
        words += f", where that adds {share:.1%}"
    if anew := captured.get("recaptured"):  # old records do not say
        words += f"; captured anew {anew} times, with messages of other sizes"
    return words


def _parts(summary: Summary) -> str:
    """The mean step time and its parts, and the 10th and 90th percentile of steps."""

    def with_range(key: str, seconds: float) -> str:
        between = summary.spread.get(key)
        range_ = f" ({1e3 * between['p10']:.0f}–{1e3 * between['p90']:.0f})" if between else ""
        return f"{1e3 * seconds:.0f}{range_}"

    step = f"; a step of {with_range('step_time_s', 1 / summary.rounds_per_second)} ms"
    spread = ", p10–p90 of steps in brackets" if summary.spread else ""
    if not summary.has_breakdown:
        return f"{step}{spread}"
    parts = (f"{METRICS[part].words} {with_range(part, summary.figures[part] or 0.0)}" for part in PARTS)
    return f"{step}: {', '.join(parts)} ms{spread}"


def _note_on_loopback(finished: Run) -> None:
    """Prints a note that a raw loopback is faster than any codec, if this run shows it."""
    summary = finished.done
    looped = (
        finished.choice("network") == "none" and summary.clock == "wall" and not summary.machine.get("gpus")
    )
    compression_s, exposed_s = (
        summary.figures.get(part) or 0.0 for part in ("compression_s", "exposed_comm_s")
    )
    if looped and compression_s > max(exposed_s, 1e-3):
        print(
            f"note: on a raw loopback compression does not pay: {compression_s * 1e3:.0f} ms a step to "
            f"compress, {exposed_s * 1e3:.0f} ms of exposed communication; "
            "network=paced or network=shaped makes links count"
        )
