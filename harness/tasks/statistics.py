"""`task=statistics`: what saved gradients or weights look like, as tables, plots and JSON.

Given one file it describes that step; given a run directory, how gradients change over its steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.gradients import (
    SavedGradients,
    cached_gradients,
    check_finite,
    holds_weights,
    read_weights,
)
from gradwire.harness.record.provenance import code_hash, git_state
from gradwire.harness.report.figures import write_plots
from gradwire.harness.studies.evolution.run import check_run, describe
from gradwire.harness.studies.statistics.collect import Statistics, collect
from gradwire.harness.studies.statistics.compare import JSON, PLOTS, compare
from gradwire.harness.studies.statistics.settings import StatisticsTask
from gradwire.harness.studies.statistics.views import plots, text
from gradwire.harness.studies.statistics.weights import weight_statistics, weights_plots, weights_text
from gradwire.harness.studies.statistics.widths import check_budgets
from gradwire.harness.tasks.once import TABLES, run_study, tables_in

__all__ = ["compare", "name", "resolve", "run"]


def resolve(config: StatisticsTask) -> StatisticsTask:
    """Raises ValueError in one line if the numbers are out of range or the file cannot be read."""
    check_budgets("statistics.bits", config.statistics.bits)
    if is_of_run(config):
        check_run(config.gradients)
    elif holds_weights(config.gradients):
        read_weights(config.gradients)
    else:
        cached_gradients(config.gradients)
    return config


def name(config: StatisticsTask) -> str:
    """`statistics-<file>`, or `statistics-run-<run directory>`."""
    kind = "run-" if is_of_run(config) else "weights-" if holds_weights(config.gradients) else ""
    return f"statistics-{kind}{Path(config.gradients).stem}"


def is_of_run(config: StatisticsTask) -> bool:
    """Whether it is about a run directory, and not about one file."""
    return Path(config.gradients).expanduser().is_dir()


def run(config: StatisticsTask, directory: Path) -> int:
    """Prints the tables and writes them to `directory` with `statistics.json` and plots; returns the exit
    code.

    Existing statistics are shown again.
    """
    return run_study(config, directory, _write, tables_in)


def _write(config: StatisticsTask, directory: Path) -> None:
    if is_of_run(config):
        _write_run(config, directory)
        return
    if holds_weights(config.gradients):
        _write_weights(config, directory)
        return
    gradients = cached_gradients(config.gradients)
    check_finite(gradients.values, config.gradients)
    found = _collect(config, gradients)
    heading = _heading(config, gradients)
    write_atomically(directory / JSON, found.to_json(_about(config, gradients)))
    write_atomically(directory / TABLES, text(found, heading) + "\n")
    if config.plots:
        write_plots(plots(found, heading), directory / PLOTS)


def _write_run(config: StatisticsTask, directory: Path) -> None:
    found = describe(config.gradients, config.statistics, config.seed)
    write_atomically(directory / JSON, found.to_json(_of_file(config, found.num_coordinates, found.about)))
    write_atomically(directory / TABLES, found.text() + "\n")
    if config.plots:
        write_plots(found.plots(), directory / PLOTS)


def _write_weights(config: StatisticsTask, directory: Path) -> None:
    saved = read_weights(config.gradients)
    for rows in (saved.model, saved.main):
        check_finite(rows[None], config.gradients)
    found = weight_statistics(saved)
    heading = f"{Path(config.gradients).name} · weights · {saved.model.numel():,} coordinates"
    about = _of_file(config, saved.model.numel(), saved.about)
    write_atomically(directory / JSON, found.to_json(about))
    write_atomically(directory / TABLES, weights_text(found, heading) + "\n")
    if config.plots:
        write_plots(weights_plots(found, heading), directory / PLOTS)


def _collect(config: StatisticsTask, gradients: SavedGradients) -> Statistics:
    layouts = gradients.layouts(config.statistics.bucket_mb)
    budgets = list(map(float, config.statistics.bits))
    return collect(gradients.values, layouts, budgets, config.seed)


def _heading(config: StatisticsTask, gradients: SavedGradients) -> str:
    workers = f"{gradients.workers} worker{'s' if gradients.workers > 1 else ''}"
    return f"{Path(config.gradients).name} · {workers} · {gradients.numel:,} coordinates"


def _about(config: StatisticsTask, gradients: SavedGradients) -> dict[str, Any]:
    return {
        **_of_file(config, gradients.numel, gradients.about or {}),
        "num_workers": gradients.workers,
        "dtype": str(gradients.values.dtype).removeprefix("torch."),
    }


def _of_file(config: StatisticsTask, numel: int, about: Mapping[str, Any]) -> dict[str, Any]:
    commit, dirty = git_state()
    return {
        "gradients": config.gradients,
        "num_coordinates": numel,
        "about": {key: value for key, value in about.items() if key != "buckets"},
        "seed": config.seed,
        "commit": commit,
        "dirty": dirty,
        "code_hash": code_hash(),
    }
