"""Plots of a comparison: the metric against the training clock, the error over steps, the parts of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median, median_low
from typing import TYPE_CHECKING, Any

from gradwire.harness.report.groups import BASELINE, Group
from gradwire.harness.report.rows import group_targets
from gradwire.harness.report.runs import Run
from gradwire.harness.report.style import PARTS, LineStyle, drawing, line_styles, plain_log_axis
from gradwire.harness.report.tables import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Sequence[tuple[float, float]]


def plot_groups(groups: Sequence[Group], folder: str | Path) -> list[Path]:
    """All plots of groups with finished runs, one set for each clock and metric; returns the files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kinds = list(dict.fromkeys((group.clock, group.metric) for group in groups))
    files = []
    for clock, metric in kinds:
        members = [group for group in groups if (group.clock, group.metric) == (clock, metric)]
        suffix = f"-{metric}-{clock}" if len(kinds) > 1 else ""
        files.append(plot_metric(members, folder / f"metric{suffix}.png"))
        timed = [group for group in members if all(run.done.has_breakdown for run in group.runs)]
        if timed:
            files.append(plot_breakdown(timed, folder / f"breakdown{suffix}.png"))
    if any(vnmse_curve(run) for group in groups for run in group.runs):
        files.append(plot_vnmse(groups, folder / "vnmse.png"))
    return files


def plot_metric(groups: Sequence[Group], path: Path) -> Path:
    """The metric against the training clock, whole and near the end: medians, and the seeds as thin lines."""
    metric = groups[0].done_metric
    with drawing(path, title(groups), panels=2) as (whole, end):
        for group, style in zip(groups, _styles(groups), strict=True):
            seeds = [[(p.train_time_s, p.metric) for p in run.curve(metric)] for run in group.runs]
            middle = [(point.train_time_s, point.metric) for point in group.median_curve(metric)]
            label = f"{group.label} ({len(group.runs)} seed{'s' * (len(group.runs) > 1)})"
            _draw(whole, seeds, middle, style, label)
            _draw(end, seeds, middle, style, label)
        limit_view(whole, groups)
        zoom_view(end, groups)
        for axes, heading in ((whole, "whole run"), (end, "near the end, with the targets")):
            axes.set_xlabel(f"training clock [s] ({groups[0].clock})")
            axes.set_title(heading, loc="left")
        whole.set_ylabel(f"evaluation {metric}" + (" [nats per token]" if metric == "loss" else ""))
    return path


def plot_vnmse(groups: Sequence[Group], path: Path) -> Path:
    """The compression error over steps, logarithmic; groups without any error say so in the legend."""
    with drawing(path, title(groups)) as (axes,):
        for group, style in zip(groups, _styles(groups), strict=True):
            curves = [[point for point in vnmse_curve(run) if point[1] > 0] for run in group.runs]
            by_step: dict[float, list[float]] = {}
            for step, error in (point for curve in curves for point in curve):
                by_step.setdefault(step, []).append(error)
            middle = [(step, median(errors)) for step, errors in sorted(by_step.items())]
            _draw(axes, curves, middle, style, group.label if middle else f"{group.label}: none above 0")
        axes.set_yscale("log")
        axes.set_xlabel("training step")
        axes.set_ylabel("vNMSE")
    return path


def plot_breakdown(groups: Sequence[Group], path: Path) -> Path:
    """Stacked bars of a step: each group's seed with the median step time, and the range over its seeds."""
    steps = [[1e3 / run.done.rounds_per_second for run in group.runs] for group in groups]
    typical = [group.runs[times.index(median_low(times))] for group, times in zip(groups, steps, strict=True)]
    with drawing(path, title(groups), height=1.1 + 0.36 * len(groups)) as (axes,):
        left = [0.0] * len(groups)
        for key, (name, color, hatch) in PARTS.items():
            widths = [1e3 * getattr(run.done, key) for run in typical]
            look: dict[str, Any] = {
                "label": name,
                "color": color,
                "hatch": hatch,
                "edgecolor": "white",
                "linewidth": 0.5,
            }
            axes.barh(range(len(groups)), widths, 0.62, left, **look)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for y, (times, end) in enumerate(zip(steps, left, strict=True)):
            if len(times) > 1:
                axes.plot([min(times), max(times)], [y, y], color="black", lw=1.0, marker="|", ms=6)
            place = (max([end, *times]), y)
            axes.annotate(number(end, 3), place, (5, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(groups)), [group.label for group in groups])
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"time of a step [ms] ({groups[0].clock} clock)")
    return path


def vnmse_curve(run: Run) -> list[tuple[float, float]]:
    """(step, vNMSE) at the steps where it was measured and finite."""
    rows = ((row["step"], row.get("vnmse")) for row in run.steps)
    return [(step, error) for step, error in rows if error is not None and math.isfinite(error)]


def title(groups: Sequence[Group]) -> str:
    """What all groups share: model, dataset, topology, workers, clock."""
    shared = [{group.named(name) for group in groups} for name in ("model", "dataset", "topology")]
    workers = {run.done.workers for group in groups for run in group.runs}
    shared.append({f"{count} worker{'s' * (count > 1)}" for count in workers})
    shared.append({f"{group.clock} clock" for group in groups})
    return " · ".join(str(next(iter(names))) for names in shared if len(names) == 1 and None not in names)


def _styles(groups: Sequence[Group]) -> list[LineStyle]:
    return line_styles([group.codec for group in groups], BASELINE)


def _draw(axes: Axes, seeds: Sequence[Points], middle: Points, style: LineStyle, label: str) -> None:
    """Thin lines for the seeds under a thick one for their median, with about a dozen markers."""
    if len(seeds) > 1:
        for points in seeds:
            axes.plot(*_columns(points), color=style.color, lw=0.6, alpha=0.45)
    look: dict[str, Any] = {"color": style.color, "ls": style.line, "marker": style.marker, "ms": 4}
    axes.plot(*_columns(middle), **look, markevery=max(1, len(middle) // 12), label=label)


def limit_view(axes: Axes, groups: Sequence[Group]) -> None:
    """Show all but what lies far above where the runs began: one that diverged must not hide the rest."""
    curves = [group.median_curve(groups[0].done_metric) for group in groups]
    values = [point.metric for curve in curves for point in curve]
    highest = 2 * max((curve[0].metric for curve in curves if curve), default=math.inf)
    shown = [value for value in values if value <= highest or groups[0].mode == "max"]
    plain_log_axis(axes, shown)
    if len(shown) < len(values):
        axes.set_ylim(min(shown) - 0.2 * abs(min(shown)), highest)


def zoom_view(axes: Axes, groups: Sequence[Group]) -> None:
    """Cut the view to where the better runs end up, and mark the targets the BF16 runs set."""
    metric = groups[0].done_metric
    curves = [group.median_curve(metric) for group in groups]
    finals = [curve[-1].metric for curve in curves if curve]
    leader = (min if groups[0].mode == "min" else max)(finals, default=0.0)
    # One run that went astray must not squeeze all the others together.
    finals = [final for final in finals if abs(final - leader) <= 0.1 * abs(leader)]
    baseline = next((group for group in groups if group.codec == BASELINE), None)
    targets = {} if baseline is None or not math.isfinite(_final(baseline)) else group_targets(baseline)
    if not finals:
        return
    best, worst = min(finals + list(targets.values())), max(finals + list(targets.values()))
    margin = 0.15 * (worst - best) or 0.05 * abs(best)
    axes.set_ylim(best - margin, worst + margin)
    inside = [p.train_time_s for curve in curves for p in curve if best <= p.metric <= worst]
    if inside:
        axes.set_xlim(left=min(inside) - 0.1 * (max(inside) - min(inside)))
    for factor, target in targets.items():
        axes.axhline(target, color="#666666", lw=0.8, ls=(0, (1, 2)))
        place = (1.0, target)
        axes.annotate(f" ×{factor:g}", place, xycoords=("axes fraction", "data"), fontsize=7, va="center")


def _final(group: Group) -> float:
    return median(run.done.final_metric for run in group.runs)


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [point[0] for point in points], [point[1] for point in points]
