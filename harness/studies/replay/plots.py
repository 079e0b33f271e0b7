"""Plots of replays: error against wire bits with the rate–distortion bound, and errors of super-groups."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.series import STEPS, Panel, Series, View, series_plot
from gradwire.harness.report.style import LineStyle, line_styles, plain
from gradwire.harness.report.views import log_x, log_y, ticks_at, whole_x, y_from
from gradwire.harness.studies.replay.study import ReplaySummary, bound_in_words, spread_of
from gradwire.harness.timing.measure.metrics import METRICS

if TYPE_CHECKING:
    from gradwire.harness.studies.replay.compare import Replayed

Curves = Mapping[str, list[float]]
"""Name → quantiles at 0, 1, …, 100 %."""

SMALLEST_SHOWN = 1e-9
"""Smaller relative errors are drawn at this value, because a logarithmic axis has no zero."""

BELOW = 30.0
"""The rate–distortion bound is shown down to the smallest error divided by this."""

FEWEST = 3
"""The smallest number of different worker counts that make a line."""

MARKERS = 5
"""Markers along the curve of a codec's errors."""

ERROR = "squared error / energy of the super-group"


def replay_plots(summary: ReplaySummary, codec: str) -> list[Plot | None]:
    """The plots of one replay."""
    title = f"{codec} · {summary.workers} workers · {summary.repeats} seeds"
    curves = {codec: summary.super_group_errors}
    return [errors_plot("super-groups", title, curves), steps_plot("steps", title, {codec: summary})]


def plot_comparison(by_subject: Mapping[str, list[Replayed]], folder: Path) -> list[Path]:
    """Writes the plots of a comparison, two or more for each subject; returns the files."""
    plots: list[Plot | None] = []
    for subject, replays in by_subject.items():
        suffix = f"-{slug(subject)}" if len(by_subject) > 1 else ""
        plots.append(frontier_plot(f"frontier{suffix}", subject, replays))
        curves = {replay.words: replay.summary.super_group_errors for replay in replays}
        plots.append(errors_plot(f"super-groups{suffix}", subject, curves))
        by_width = {replay.words: replay.summary.errors_by_width for replay in replays}
        plots.append(widths_plot(f"widths{suffix}", subject, by_width))
        summaries = {replay.codec: replay.summary for replay in replays}
        plots.append(steps_plot(f"steps{suffix}", subject, summaries))
    plots += _over_workers([replay for replays in by_subject.values() for replay in replays])
    return write_plots(plots, folder, pdf=True)


def _over_workers(replays: Sequence[Replayed]) -> list[Plot]:
    """Plots of the error against the number of workers, for each file and topology with at least three
    different numbers of workers."""
    by_series: dict[str, list[Replayed]] = {}
    for replay in replays:
        by_series.setdefault(replay.series, []).append(replay)
    plotted = {name: own for name, own in by_series.items() if len(_workers(own)) >= FEWEST}
    return [
        workers_plot(f"over-workers{f'-{slug(name)}' if len(plotted) > 1 else ''}", name, own)
        for name, own in plotted.items()
    ]


def _workers(replays: Sequence[Replayed]) -> list[int]:
    return sorted({replay.summary.workers for replay in replays})


def workers_plot(name: str, title: str, replays: Sequence[Replayed]) -> Plot:
    """vNMSE against the number of workers, a line for each codec (DynamiQ Figures 10 and 11)."""
    series = dict[str, list[tuple[float, float]]]()
    for replay in replays:
        if error := replay.figures["vnmse"]:
            series.setdefault(replay.words, []).append((replay.summary.workers, error))
    views = (log_y, ticks_at(_workers(replays), doubling=True))
    panel = Panel(_lines(series), METRICS["vnmse"].heading, "workers", views=views)
    return series_plot(name, title, [panel], (2.6,))


def steps_plot(name: str, title: str, summaries: Mapping[str, ReplaySummary]) -> Plot | None:
    """vNMSE by step, a line for each codec, of gradients that were replayed in a row."""
    series = {
        codec: [
            (int(step), error)
            for step, errors in summary.vnmse_by_step.items()
            if (error := spread_of(errors)["vnmse_mean"])
        ]
        for codec, summary in summaries.items()
    }
    shown = {codec: points for codec, points in series.items() if points}
    if not shown:
        return None
    panel = Panel(_lines(shown), METRICS["vnmse"].heading, STEPS, views=(log_y, whole_x))
    return series_plot(name, title, [panel], (2.6,))


def _lines(points: Mapping[str, Sequence[tuple[float, float]]]) -> list[Series]:
    """A line for each codec through its points, from left to right."""
    looks = line_styles(list(points))
    return [
        Series.through(sorted(own), style, codec)
        for (codec, own), style in zip(points.items(), looks, strict=True)
    ]


def slug(text: str) -> str:
    """The text as a file name: letters and digits are kept, everything else becomes dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def frontier_plot(name: str, title: str, replays: Sequence[Replayed]) -> Plot | None:
    """vNMSE against wire bits, a line for each codec over its bits, and the rate–distortion bound below."""
    series: dict[str, list[tuple[float, float]]] = {}
    for replay in replays:
        bits, error = replay.figures.get("wire_bits_per_coordinate"), replay.figures["vnmse"]
        if bits is not None and error:
            series.setdefault(replay.family, []).append((bits, error))
    if not series:
        return None
    bound = replays[0].summary.bound_curve
    known, errors = zip(*(point for points in series.values() for point in points), strict=True)
    shown = [
        (float(bits), value)
        for bits, value in enumerate(bound)
        if value > 0 and min(known) - 1.5 <= bits <= max(known) + 1
    ]

    lines, views = _lines(series), list[View]()
    if shown:
        label = METRICS["bound_vnmse"].label + bound_in_words(replays[0].summary.bound)
        lines.append(Series.through(shown, plain("grey"), label))
        # A bound far below every codec would squeeze them all into the upper half.
        views.append(y_from(max(min(value for _, value in shown), min(errors) / BELOW)))
    labels = (METRICS["vnmse"].heading, METRICS["wire_bits_per_coordinate"].heading)
    return series_plot(name, title, [Panel(lines, *labels, views=[log_y, *views, log_y])], (3.2,))


def errors_plot(name: str, title: str, curves: Curves) -> Plot | None:
    """CDF over super-groups of their squared error relative to their own energy."""
    shown = {label: values for label, values in curves.items() if values}
    if not shown:
        return None
    panel = _cdfs(shown, line_styles(list(shown)))
    return series_plot(name, title, [replace(panel, x_label=ERROR)], (2.4,))


def widths_plot(name: str, title: str, by_width: Mapping[str, Curves]) -> Plot | None:
    """`errors_plot` separately for each width of super-groups (DynamiQ Figure 12), for codecs with several
    widths."""
    several = {codec: curves for codec, curves in by_width.items() if len(curves) > 1}
    widths = sorted({int(width) for curves in several.values() for width in curves})
    if not widths:
        return None
    styles = dict(zip(several, line_styles(list(several)), strict=True))
    panels = []
    for width in widths:
        own = {codec: curves[str(width)] for codec, curves in several.items() if str(width) in curves}
        panel = _cdfs(own, [styles[codec] for codec in own])
        panels.append(replace(panel, title=f"{width} bit{'s' * (width > 1)} per coordinate"))
    panels[-1] = replace(panels[-1], x_label=ERROR)
    return series_plot(name, title, panels, (1.7,) * len(panels))


def _cdfs(curves: Curves, styles: Sequence[LineStyle]) -> Panel:
    series = []
    for (label, values), style in zip(curves.items(), styles, strict=True):
        share = [index / (len(values) - 1) for index in range(len(values))]
        limited = [max(value, SMALLEST_SHOWN) for value in values]
        series.append(Series(limited, share, style, label, len(limited) // MARKERS))
    return Panel(series, "share of super-groups", views=[log_x])
