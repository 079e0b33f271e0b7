"""`task=statistics`: properties of saved gradients or weights, as tables, plots and JSON.

For a file it describes that step; for a run directory, how gradients change over the run's steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradwire.harness.record.gradients import SavedGradients, cached_gradients, check_finite
from gradwire.harness.record.provenance import code_hash, git_state
from gradwire.harness.record.saved_weights import holds_weights, read_weights
from gradwire.harness.studies.statistics.collect import Statistics, collect
from gradwire.harness.studies.statistics.evolution import check_run, describe
from gradwire.harness.studies.statistics.study import StatisticsTask
from gradwire.harness.studies.statistics.views import plots, text
from gradwire.harness.studies.statistics.weights import weight_statistics, weights_plots, weights_text
from gradwire.harness.studies.statistics.widths import check_budgets
from gradwire.harness.studies.study import Measured


def resolve(config: StatisticsTask) -> StatisticsTask:
    """Raises ValueError in one line for numbers out of range and for an unreadable file."""
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
    """True for a run directory, false for one file."""
    return Path(config.gradients).expanduser().is_dir()


def measure(config: StatisticsTask, directory: Path) -> Measured:
    """Computes the statistics of a run's steps, of weights, or of the gradients of one step."""
    path = config.gradients
    if is_of_run(config):
        described = describe(path, config.statistics, config.seed)
        about = _of_file(config, described.num_coordinates, described.about)
        return Measured(described.to_json(about), described.text(), described.plots)
    if holds_weights(path):
        saved = read_weights(path)
        for rows in (saved.model, saved.main):
            check_finite(rows[None], path)
        of_weights = weight_statistics(saved)
        heading = f"{Path(path).name} · weights · {saved.model.numel():,} coordinates"
        about = _of_file(config, saved.model.numel(), saved.about)
        text_of_weights = weights_text(of_weights, heading)
        return Measured(
            of_weights.to_json(about), text_of_weights, lambda: weights_plots(of_weights, heading)
        )
    gradients = cached_gradients(path)
    check_finite(gradients.values, path)
    found, heading = _collect(config, gradients), _heading(gradients, path)
    return Measured(
        found.to_json(_about(config, gradients)), text(found, heading), lambda: plots(found, heading)
    )


def _collect(config: StatisticsTask, gradients: SavedGradients) -> Statistics:
    layouts = gradients.layouts(config.statistics.bucket_mb)
    budgets = list(map(float, config.statistics.bits))
    return collect(gradients.values, layouts, budgets, config.seed)


def _heading(gradients: SavedGradients, path: str) -> str:
    workers = f"{gradients.workers} worker{'s' if gradients.workers > 1 else ''}"
    return f"{Path(path).name} · {workers} · {gradients.numel:,} coordinates"


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
