"""Plots of one run, all of them."""

from __future__ import annotations

import sys
from pathlib import Path

from gradwire.harness.record.runs import Run
from gradwire.harness.report.bandwidth_plot import bandwidth_plot
from gradwire.harness.report.figures import Plot, noted, write_plots
from gradwire.harness.report.run_bars import bytes_plot, step_plot
from gradwire.harness.report.run_curves import codec_plot, metric_plot, training_plot, vnmse_plot
from gradwire.harness.report.titles import run_title


def plot_run(run: Run, folder: str | Path) -> list[Path]:
    """Writes all plots of one finished run, for print and for a dark page; returns the files."""
    folder = Path(folder)
    if folder.is_symlink():
        print(f"note: no plots, {folder} is a link, which is not followed", file=sys.stderr, flush=True)
        return []
    return write_plots(run_plots(run), folder)


def run_plots(run: Run) -> list[Plot]:
    """What a finished run has to show."""
    kinds = (metric_plot, training_plot, step_plot, bandwidth_plot, vnmse_plot, bytes_plot, codec_plot)
    plots = list[Plot | None]()
    for kind in kinds:
        with noted(f"{kind.__name__} of {run.folder}"):
            plots.append(kind(run, run_title(run)))
    return [plot for plot in plots if plot is not None]
