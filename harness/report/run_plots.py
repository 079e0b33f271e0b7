"""Plots of one run, all of them."""

from __future__ import annotations

from pathlib import Path

from gradwire.harness.report.bandwidth_plot import bandwidth_plot
from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.run_bars import bytes_plot, step_plot
from gradwire.harness.report.run_curves import codec_plot, metric_plot, training_plot, vnmse_plot
from gradwire.harness.report.runs import Run
from gradwire.harness.report.titles import run_title


def plot_run(run: Run, folder: str | Path) -> list[Path]:
    """Write everything one finished run can show, for print and for a dark page; returns the files."""
    return write_plots(run_plots(run), Path(folder))


def run_plots(run: Run) -> list[Plot]:
    """What a finished run has to show."""
    kinds = (metric_plot, training_plot, step_plot, bandwidth_plot, vnmse_plot, bytes_plot, codec_plot)
    plots = [kind(run, run_title(run)) for kind in kinds]
    return [plot for plot in plots if plot is not None]
