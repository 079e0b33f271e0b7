"""Plots of a comparison, all of them, each group in one style throughout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradwire.harness.report.bar_plots import bits_plot, breakdown_plot
from gradwire.harness.report.curve_plots import metric_plots, vnmse_curve, vnmse_plot
from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.groups import BASELINE, Group
from gradwire.harness.report.style import line_styles
from gradwire.harness.report.tta_plots import tta_plot


def plot_groups(groups: Sequence[Group], folder: str | Path) -> list[Path]:
    """Write all plots of groups with finished runs, for print and for a dark page; returns the files."""
    return write_plots(group_plots(groups), Path(folder), pdf=True)


def group_plots(groups: Sequence[Group]) -> list[Plot]:
    """What the groups have to show; whatever depends on the clock or the metric, once for each of them."""
    looks = line_styles([group.codec for group in groups], BASELINE)
    styles = {group.label: style for group, style in zip(groups, looks, strict=True)}
    kinds = list(dict.fromkeys((group.clock, group.metric) for group in groups))
    plots: list[Plot | None] = []
    for clock, metric in kinds:
        members = [group for group in groups if (group.clock, group.metric) == (clock, metric)]
        suffix = f"-{metric}-{clock}" if len(kinds) > 1 else ""
        plots += metric_plots(members, styles, suffix)
        plots.append(tta_plot(members, styles, f"tta{suffix}"))
        plots.append(breakdown_plot(members, f"breakdown{suffix}"))
    if any(vnmse_curve(run) for group in groups for run in group.runs):
        plots.append(vnmse_plot(groups, styles))
    plots.append(bits_plot(groups))
    return [plot for plot in plots if plot is not None]
