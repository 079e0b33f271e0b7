"""Plots of one run: curves of its metric, losses and errors, and bars of its time and bytes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from gradwire.harness.record.busy import BUSY_TITLE, busy_run
from gradwire.harness.record.runs import Run
from gradwire.harness.report.bandwidth_plot import bandwidth_plot
from gradwire.harness.report.bar_rows import AXIS_HEIGHT, BAR_HEIGHT, rows_of
from gradwire.harness.report.curve_plots import (
    CODEC_SERIES,
    clock_label,
    every_few,
    finite,
    metric_label,
    vnmse_curve,
)
from gradwire.harness.report.figures import Plot, noted, write_plots
from gradwire.harness.report.groups import run_title
from gradwire.harness.report.series import STEPS, Bars, Panel, Series, Steps, series_plot
from gradwire.harness.report.style import PARTS, LineStyle, line_styles, phase_filling, plain
from gradwire.harness.report.tables import number
from gradwire.harness.report.views import edge_to_edge, from_zero, log_y, no_grid, plain_log
from gradwire.harness.timing.measure.accuracy import metric_mode
from gradwire.harness.timing.measure.metrics import METRICS

MAX_CODEC_SERIES = 12
MAX_BINS = 60
THIN = 0.9
TRAINED, EVALUATED = plain("blue"), LineStyle("ink", "-", "o")
"""The styles of figures that every step has, and of those that are measured occasionally."""


def plot_run(run: Run, folder: str | Path) -> list[Path]:
    """Writes all plots of one finished run, for print and for a dark page; returns the files."""
    folder = Path(folder)
    if folder.is_symlink():
        print(f"note: no plots, {folder} is a link, which is not followed", file=sys.stderr, flush=True)
        return []
    return write_plots(run_plots(run), folder)


def run_plots(run: Run) -> list[Plot]:
    """The plots of a finished run."""
    busy = f" · {BUSY_TITLE}" if busy_run(run) else ""
    kinds = (metric_plot, training_plot, step_plot, bandwidth_plot, vnmse_plot, bytes_plot, codec_plot)
    plots = list[Plot | None]()
    for kind in kinds:
        with noted(f"{kind.__name__} of {run.folder}"):
            plots.append(kind(run, run_title(run) + busy * (kind.__name__ in TIMED)))
    return [plot for plot in plots if plot is not None]


TIMED = ("metric_plot", "step_plot", "bandwidth_plot")
"""Those of times, by the names of what makes them."""


def metric_plot(run: Run, heading: str) -> Plot | None:
    """The evaluation metric against the training clock and against the step; None without evaluations."""
    metric = run.done.metric
    if not run.evals:
        return None
    panels, title = list[Panel](), ""
    for key, x_label in (("train_time_s", clock_label(run.clock)), ("step", STEPS)):
        x, y = finite(run.evals, key, metric)
        if not panels and len(x) < len(run.evals):
            title = f"not finite at {len(run.evals) - len(x)} of {len(run.evals)} evaluations"
        views = [plain_log(y)] if metric_mode(metric) == "min" else []
        series = Series(x, y, EVALUATED, every=every_few(x))
        panels.append(Panel([series], metric_label(metric), x_label, title, views))
        title = ""
    return series_plot("metric", heading, panels, (1.9, 1.9))


def training_plot(run: Run, heading: str) -> Plot | None:
    """The loss over steps, and below it each metric for which METRICS asks; None without steps."""
    if not run.steps:
        return None
    losses, evaluated = finite(run.steps, "step", "loss"), finite(run.evals, "step", "loss")
    lost = len(run.steps) - len(losses[0])
    title = f"training loss not finite at {lost} of {len(run.steps)} steps" if lost else ""
    dashed, every = replace(EVALUATED, line="--"), every_few(evaluated[0])
    both = [
        Series(*losses, TRAINED, "training", width=THIN),
        Series(*evaluated, dashed, "evaluation", every),
    ]
    panels = [Panel(both, "loss [nats]", title=title, views=[plain_log(losses[1] + evaluated[1])])]
    for metric in (metric for metric in METRICS.values() if metric.plot == "training"):
        steps, values = finite(run.steps, "step", metric.key)
        shown = [metric.shown.factor * value for value in values]
        series = [Series(steps, shown, TRAINED, width=THIN)]
        panels.append(Panel(series, metric.heading, views=[plain_log(values, ratio=30.0)]))
    panels[-1] = replace(panels[-1], x_label=STEPS)
    heights = (1.5, *(0.9 for _ in panels[2:]), 1.2)
    return series_plot("training", heading, panels, heights, ticks="shared")


def vnmse_plot(run: Run, heading: str) -> Plot | None:
    """The compression error over steps, logarithmic; None where it was not measured or there was none."""
    points = [point for point in vnmse_curve(run) if point[1] > 0]
    if not points:
        return None
    steps, errors = [list(column) for column in zip(*points, strict=True)]
    series = Series(steps, errors, EVALUATED, every=every_few(steps))
    return series_plot("vnmse", heading, [Panel([series], "vNMSE", STEPS, views=[log_y])])


def codec_plot(run: Run, heading: str) -> Plot | None:
    """Figures that the codec logged, over steps; None if it logged nothing."""
    keys = dict.fromkeys(key for row in run.steps for key in row if key.startswith(CODEC_SERIES))
    logged = {key.removeprefix(CODEC_SERIES): finite(run.steps, "step", key) for key in keys}
    logged = {name: points for name, points in logged.items() if points[0]}
    if not logged:
        return None
    shown = list(logged)[:MAX_CODEC_SERIES]
    # Dashes would be invisible for a value that jumps from step to step.
    styles = [replace(style, line="-") for style in line_styles(shown)]
    series = [
        Series(*logged[name], style, _words(name), every_few(logged[name][0]), THIN)
        for name, style in zip(shown, styles, strict=True)
    ]
    label = _words(shown[0]) if len(shown) == 1 else "logged by the codec"
    title = f"the first {len(shown)} of {len(logged)} series" if len(shown) < len(logged) else ""
    scale = plain_log([value for name in shown for value in logged[name][1]])
    return series_plot("codec", heading, [Panel(series, label, STEPS, title, [scale])])


def _words(name: str) -> str:
    """The name of what a codec logged, in words: it is a key of rows."""
    return name.replace("_", " ").replace("/", ", ")


def step_plot(run: Run, heading: str) -> Plot | None:
    """The parts of a step over the run, each bar the mean over some steps; None without spans.

    Measured steps are excluded, as in the summary, whose means are in the legend.
    """
    rows = timed_rows(run)
    if not rows or not run.done.has_breakdown:
        return None
    size = math.ceil(len(rows) / MAX_BINS)
    bins = [rows[start : start + size] for start in range(0, len(rows), size)]
    # A bar extends to the next one, across the measured steps between them.
    known = run.done.values()
    edges = [chunk[0]["step"] for chunk in bins] + [rows[-1]["step"] + 1]
    series, base = list[Steps](), [0.0] * len(bins)
    for key, filling in PARTS.items():
        means = [1e3 * fmean(row[key] for row in chunk) for chunk in bins]
        tops = [low + mean for low, mean in zip(base, means, strict=True)]
        label = f"{filling.label}: {number(1e3 * known[key], 3)} ms"
        series.append(Steps(edges, tops, filling, label, base))
        base = tops
    views = [edge_to_edge, from_zero, no_grid("x")]
    return series_plot("breakdown", heading, [Panel(series, "time of a step [ms]", STEPS, views=views)])


def bytes_plot(run: Run, heading: str) -> Plot | None:
    """Bytes that a rank sends in a step, by phase; None if nothing was sent or counted."""
    summary = run.done
    sent = {phase: count for phase, count in summary.bytes_by_phase.items() if count}
    if not sent or not summary.has_bytes:
        return None
    fillings = [phase_filling(phase) for phase in sent]
    rows = rows_of([filling.label for filling in fillings])
    megabytes = [count / summary.steps / summary.workers / 1e6 for count in sent.values()]
    figures = [f"{number(size, 3)} ({size / sum(megabytes):.1%})" for size in megabytes]
    bars = [
        Bars([center], [size], filling, BAR_HEIGHT)
        for center, filling, size in zip(rows.centers, fillings, megabytes, strict=True)
    ]
    panel = rows.panel(bars, megabytes, figures, "sent per step and rank [MB = 10⁶ bytes]")
    return series_plot("bytes", heading, [panel], (AXIS_HEIGHT + rows.height,))


def timed_rows(run: Run) -> list[Mapping[str, Any]]:
    """The steps that the breakdown uses: all except measured ones, unless all were measured; [] without
    spans."""
    rows = [row for row in run.steps if not row.get("measured")] or run.steps
    return [row for row in rows if all(row.get(key) is not None for key in PARTS)]
