"""Curves of a comparison: the metric, the error and the ratio of bits, over the clock or over steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from gradwire.harness.record.runs import Run
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.groups import Group, in_legend, title
from gradwire.harness.report.series import STEPS, Drawable, Panel, Rules, Series, Upright, View, series_plot
from gradwire.harness.report.style import LineStyle, plain
from gradwire.harness.report.views import (
    highest_shown,
    log_y,
    near_the_end,
    quarters,
    without_diverged,
    y_from,
)
from gradwire.harness.timing.measure.metrics import METRICS, in_words

Styles = Mapping[str, LineStyle]
"""The style of each group, by its label: the same in every plot of a comparison."""

MAX_MARKERS = 12

CODEC_SERIES = "codec/"
"""The prefix of keys that a codec logs."""
RATIO = f"{CODEC_SERIES}ratio"
"""The key under which codecs log a variable ratio."""


class Point(NamedTuple):
    """One point of a curve over the seeds; `low` and `high` are their range, `seeds` their own points."""

    x: float
    middle: float
    low: float
    high: float
    seeds: tuple[tuple[float, float], ...]


def metric_plots(groups: Sequence[Group], styles: Styles, suffix: str) -> list[Plot]:
    """The metric against the training clock, whole and near the end with targets, and against steps."""
    groups = [group for group in groups if group.curves.median]
    if not groups:
        return []
    once = all(len(group.curves.median) == 1 for group in groups)
    heading = title(groups, "median, range and each seed" if once else "median and range")
    whole, end = without_diverged(groups), near_the_end(groups)
    plots = []
    for name, view in (("metric", whole), ("metric-end", end), ("metric-steps", whole)):
        by_step = name == "metric-steps"
        lines = [
            (
                styles[group.label],
                in_legend(group, groups),
                metric_curve(group, 2 * highest_shown(groups), by_step=by_step),
            )
            for group in groups
        ]
        x_label = STEPS if by_step else clock_label(groups[0].clock)
        panel = _panel(lines, metric_label(groups[0].done_metric), x_label, view)
        plots.append(series_plot(f"{name}{suffix}", heading, [panel]))
    return plots


def metric_curve(group: Group, far: float, *, by_step: bool = False) -> list[Point]:
    """Median and range at the steps all seeds evaluated, against the clock or `by_step`.

    `far` lies beyond the view; it is the upper end of the range if a seed diverged and less is better.
    """
    worst, most = (far, far) if group.mode == "min" else (0.0, math.inf)
    seeds: dict[int, list[tuple[float, float]]] = {}
    for evaluations in group.curves.by_seed.values():
        for point in evaluations:
            value = point.metric if math.isfinite(point.metric) else worst
            x = point.step if by_step else point.train_time_s
            seeds.setdefault(point.step, []).append((x, min(value, most)))
    curve = []
    for point in group.curves.median:
        own = tuple(seeds[point.step])
        values = [value for _, value in own]
        x = point.step if by_step else point.train_time_s
        curve.append(Point(x, point.metric, min(values), max(values), own))
    return curve


def vnmse_plot(groups: Sequence[Group], styles: Styles, name: str = "vnmse") -> Plot:
    """The compression error over steps, logarithmic; groups without any error say so in the legend."""
    lines = []
    for group in groups:
        curve, known = vnmse_points(group), any(vnmse_curve(run) for run in group.runs)
        absent = "" if curve else ": exact" if known else ": not measured"
        lines.append((styles[group.label], in_legend(group, groups) + absent, curve))
    panel = _panel(lines, "vNMSE", STEPS, log_y)
    return series_plot(name, title(groups, "median and range"), [panel])


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
    """The distance between points with a marker: about a dozen in total."""
    return max(1, math.ceil(len(points) / MAX_MARKERS))


def _panel(
    lines: Sequence[tuple[LineStyle, str, list[Point]]], y_label: str, x_label: str, view: View
) -> Panel:
    """A line through the medians and a band for the seeds' range of each group, by its style and label; a
    single point is shown with its seeds."""
    series: list[Drawable] = []
    for style, label, curve in lines:
        x = [point.x for point in curve]
        line = Series(x, [point.middle for point in curve], style, label, every_few(x))
        if any(point.low < point.high for point in curve):
            if len(curve) == 1:
                (point,) = curve
                series += [
                    Upright(point.x, point.low, point.high, style.hue),
                    Series.through(point.seeds, LineStyle(style.hue, "none", ".")),
                ]
            else:
                line = replace(line, low=[p.low for p in curve], high=[p.high for p in curve])
        series.append(line)
    return Panel(series, y_label, x_label, views=[view])


def finite(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> tuple[list[float], list[float]]:
    """Two keys of the rows that have both, the second one finite."""
    known = [row for row in rows if row.get(y) is not None and math.isfinite(row[y])]
    return [row[x] for row in known], [float(row[y]) for row in known]


def ratio_plot(groups: Sequence[Group], styles: Styles, name: str) -> Plot | None:
    """The share of the original bits in each round against the training clock (AQGB Fig. 9).

    A line for each seed, and where links changed their rate; None without a codec that logs a ratio.
    """
    series, shown, seconds = list[Drawable](), [], set[float]()
    for group in groups:
        curves = [curve for run in group.runs if (curve := finite(run.steps, "train_time_s", RATIO))[0]]
        if not curves:
            continue
        shown.append(group)
        for index, curve in enumerate(curves):
            label = in_legend(group, groups) if index == 0 else None
            series.append(Series(*curve, plain(styles[group.label].hue), label, width=0.9))
        for run in group.runs:
            network: Any = run.config.get("network")
            changes = network.get("rate_changes") if isinstance(network, dict) else None
            seconds |= {float(change[0]) for change in changes or []}
    if not shown:
        return None
    changes_of_rate = Rules(sorted(seconds), width=0.9)
    views = [y_from(0, 1.05), quarters]
    panel = Panel([changes_of_rate, *series], "quantization ratio", clock_label(shown[0].clock), views=views)
    note = "each seed; dotted: the links' rate changes" if seconds else "each seed"
    return series_plot(name, title(shown, note), [panel])
