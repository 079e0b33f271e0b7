"""Curves of a comparison: the metric against the training clock, and the error over steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from gradwire.harness.record.runs import Run
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.groups import Group, in_legend, title
from gradwire.harness.report.style import Form, LineStyle
from gradwire.harness.report.views import highest_shown, limit_view, log_axis, step_axis, zoom_view
from gradwire.harness.timing.measure.metrics import METRICS, in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Styles = Mapping[str, LineStyle]
"""The style of each group, by its label: the same in every plot of a comparison."""

MAX_MARKERS = 12


class Point(NamedTuple):
    """One point of a curve over the seeds; `low` and `high` are their range, `seeds` their own points."""

    x: float
    middle: float
    low: float
    high: float
    seeds: tuple[tuple[float, float], ...]


def metric_plots(groups: Sequence[Group], styles: Styles, suffix: str) -> list[Plot]:
    """The metric against the training clock, in all and near the end with the targets, and against steps."""
    groups = [group for group in groups if group.median_curve(group.done_metric)]
    if not groups:
        return []
    curves = [metric_curve(group, 2 * highest_shown(groups)) for group in groups]
    by_step = [metric_curve(group, 2 * highest_shown(groups), by_step=True) for group in groups]

    def draw_whole(panels: Sequence[Axes], form: Form) -> None:
        _draw_metric(panels[0], groups, curves, styles, form)
        limit_view(panels[0], groups)

    def draw_end(panels: Sequence[Axes], form: Form) -> None:
        _draw_metric(panels[0], groups, curves, styles, form)
        zoom_view(panels[0], groups, form)

    def draw_steps(panels: Sequence[Axes], form: Form) -> None:
        _draw_metric(panels[0], groups, by_step, styles, form)
        limit_view(panels[0], groups)
        step_axis(panels[0])

    once = all(len(curve) == 1 for curve in curves)
    heading = title(groups, "median, range and each seed" if once else "median and range")
    named = {"metric": draw_whole, "metric-end": draw_end, "metric-steps": draw_steps}
    return [Plot(f"{name}{suffix}", heading, draw) for name, draw in named.items()]


def metric_curve(group: Group, far: float, *, by_step: bool = False) -> list[Point]:
    """Median and range at the steps all seeds evaluated, against the clock or `by_step`.

    `far` is past the view: how far up the range of a seed that diverged goes where less is better.
    """
    worst, most = (far, far) if group.mode == "min" else (0.0, math.inf)
    seeds: dict[int, list[tuple[float, float]]] = {}
    for run in group.runs:
        for point in run.curve(group.done_metric):
            value = point.metric if math.isfinite(point.metric) else worst
            x = point.step if by_step else point.train_time_s
            seeds.setdefault(point.step, []).append((x, min(value, most)))
    curve = []
    for point in group.median_curve(group.done_metric):
        own = tuple(seeds[point.step])
        values = [value for _, value in own]
        x = point.step if by_step else point.train_time_s
        curve.append(Point(x, point.metric, min(values), max(values), own))
    return curve


def vnmse_plot(groups: Sequence[Group], styles: Styles, name: str = "vnmse") -> Plot:
    """The compression error over steps, logarithmic; groups without any error say so in the legend."""
    curves = [vnmse_points(group) for group in groups]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        axes = panels[0]
        for group, curve in zip(groups, curves, strict=True):
            known = any(vnmse_curve(run) for run in group.runs)
            absent = "" if curve else ": exact" if known else ": not measured"
            _draw(axes, curve, styles[group.label], form, in_legend(group, groups) + absent)
        log_axis(axes)
        step_axis(axes)
        axes.set_ylabel("vNMSE")

    return Plot(name, title(groups, "median and range"), draw)


def vnmse_points(group: Group) -> list[Point]:
    """Median and range over the seeds of the errors above zero, at each measured step."""
    by_step: dict[float, list[float]] = {}
    for run in group.runs:
        for step, error in vnmse_curve(run):
            if error > 0:
                by_step.setdefault(step, []).append(error)
    return [
        Point(step, median(errors), min(errors), max(errors), tuple((step, error) for error in errors))
        for step, errors in sorted(by_step.items())
    ]


def vnmse_curve(run: Run) -> list[tuple[float, float]]:
    """(step, vNMSE) at the steps where it was measured and finite."""
    rows = ((row["step"], row.get("vnmse")) for row in run.steps)
    return [(step, error) for step, error in rows if error is not None and math.isfinite(error)]


def metric_label(metric: str) -> str:
    unit = METRICS[metric].unit if metric in METRICS else ""
    return f"evaluation {in_words(metric)}{unit and f' [{unit}]'}"


def clock_label(clock: str | None) -> str:
    return f"training clock [s], {clock}"


def every_few(points: Sequence[float]) -> int:
    """Which points of a line carry a marker: about a dozen in all."""
    return max(1, math.ceil(len(points) / MAX_MARKERS))


def _draw_metric(
    axes: Axes, groups: Sequence[Group], curves: Sequence[list[Point]], styles: Styles, form: Form
) -> None:
    for group, curve in zip(groups, curves, strict=True):
        _draw(axes, curve, styles[group.label], form, in_legend(group, groups))
    axes.set_xlabel(clock_label(groups[0].clock))
    axes.set_ylabel(metric_label(groups[0].done_metric))


def _draw(axes: Axes, curve: Sequence[Point], style: LineStyle, form: Form, label: str) -> None:
    """A line through the medians and a band for the seeds' range; a single point is shown with its seeds."""
    color = form.colors[style.hue]
    x = [point.x for point in curve]
    if any(point.low < point.high for point in curve):
        if len(curve) == 1:
            _draw_seeds(axes, curve, color)
        else:
            low, high = [point.low for point in curve], [point.high for point in curve]
            axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    look = style.drawn(form) | {"markevery": style.markers(every_few(x))}
    axes.plot(x, [point.middle for point in curve], **look, label=label)


def _draw_seeds(axes: Axes, curve: Sequence[Point], color: str) -> None:
    """A line over the range at the median's place, and a small point for each seed at its own."""
    axes.vlines([p.x for p in curve], [p.low for p in curve], [p.high for p in curve], colors=color, lw=0.8)
    own = [seed for point in curve for seed in point.seeds]
    axes.plot(*zip(*own, strict=True), color=color, ls="none", marker=".")
