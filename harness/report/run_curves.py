"""Curves of one run: its metric over time and steps, its losses, its compression error, its codec's log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradwire.harness.record.runs import Run
from gradwire.harness.report.curve_plots import clock_label, every_few, metric_label, vnmse_curve
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.style import Form, line_styles
from gradwire.harness.report.views import log_axis, plain_log_axis, step_axis
from gradwire.harness.timing.measure.accuracy import metric_mode
from gradwire.harness.timing.measure.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CODEC_SERIES = "codec/"
"""How the keys of what a codec logs begin."""
MAX_CODEC_SERIES = 12

Columns = tuple[list[float], list[float]]
"""The values of two keys in the same rows."""


def metric_plot(run: Run, heading: str) -> Plot | None:
    """The evaluation metric against the training clock and against the step; None without evaluations."""
    metric = run.done.metric
    if not run.evals:
        return None
    by_clock, by_step = (finite(run.evals, x, metric) for x in ("train_time_s", "step"))
    lost = len(run.evals) - len(by_step[0])

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for axes, points in zip(panels, (by_clock, by_step), strict=True):
            axes.plot(*points, color=form.colors["ink"], marker="o", markevery=every_few(points[0]))
            if metric_mode(metric) == "min":
                plain_log_axis(axes, points[1])
            axes.set_ylabel(metric_label(metric))
        panels[0].set_xlabel(clock_label(run.clock))
        step_axis(panels[1])
        if lost:
            panels[0].set_title(f"not finite at {lost} of {len(run.evals)} evaluations")

    return Plot("metric", heading, draw, (1.9, 1.9))


def training_plot(run: Run, heading: str) -> Plot | None:
    """The loss over steps, and below it each metric that METRICS calls for; None without steps."""
    if not run.steps:
        return None
    losses, evaluated = finite(run.steps, "step", "loss"), finite(run.evals, "step", "loss")
    lost = len(run.steps) - len(losses[0])
    below = [metric for metric in METRICS.values() if metric.plot == "training"]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        top, *others = panels
        top.plot(*losses, color=form.colors["blue"], lw=0.9, label="training")
        ink, every = form.colors["ink"], every_few(evaluated[0])
        top.plot(*evaluated, color=ink, ls="--", marker="o", markevery=every, label="evaluation")
        plain_log_axis(top, losses[1] + evaluated[1])
        top.set_ylabel("loss [nats]")
        if lost:
            top.set_title(f"training loss not finite at {lost} of {len(run.steps)} steps")
        for axes, metric in zip(others, below, strict=True):
            steps, values = finite(run.steps, "step", metric.key)
            axes.plot(
                steps, [metric.shown.factor * value for value in values], color=form.colors["blue"], lw=0.9
            )
            plain_log_axis(axes, values, ratio=30.0)
            axes.set_ylabel(metric.heading)
            axes.sharex(top)
        for axes in panels[:-1]:
            axes.tick_params(labelbottom=False)
        step_axis(panels[-1])

    return Plot("training", heading, draw, (1.5, *(0.9 for _ in below[1:]), 1.2))


def vnmse_plot(run: Run, heading: str) -> Plot | None:
    """The compression error over steps, logarithmic; None where it was not measured or there was none."""
    points = [point for point in vnmse_curve(run) if point[1] > 0]
    if not points:
        return None
    steps, errors = [list(column) for column in zip(*points, strict=True)]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        axes = panels[0]
        axes.plot(steps, errors, color=form.colors["ink"], marker="o", markevery=every_few(steps))
        log_axis(axes)
        step_axis(axes)
        axes.set_ylabel("vNMSE")

    return Plot("vnmse", heading, draw)


def codec_plot(run: Run, heading: str) -> Plot | None:
    """What the codec logged over steps; None where it logged nothing."""
    keys = dict.fromkeys(key for row in run.steps for key in row if key.startswith(CODEC_SERIES))
    series = {key.removeprefix(CODEC_SERIES): finite(run.steps, "step", key) for key in keys}
    series = {name: points for name, points in series.items() if points[0]}
    if not series:
        return None
    shown = list(series)[:MAX_CODEC_SERIES]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        axes = panels[0]
        for name, style in zip(shown, line_styles(shown), strict=True):
            # Dashes would not survive a value that jumps from step to step.
            look = style.drawn(form) | {"ls": "-", "lw": 0.9}
            axes.plot(*series[name], **look, markevery=every_few(series[name][0]), label=name)
        plain_log_axis(axes, [value for name in shown for value in series[name][1]])
        step_axis(axes)
        axes.set_ylabel(shown[0] if len(shown) == 1 else "logged by the codec")
        if len(shown) < len(series):
            axes.set_title(f"the first {len(shown)} of {len(series)} series")

    return Plot("codec", heading, draw)


def finite(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> Columns:
    """Two keys of the rows that have both, the second one finite."""
    known = [row for row in rows if row.get(y) is not None and math.isfinite(row[y])]
    return [row[x] for row in known], [float(row[y]) for row in known]
