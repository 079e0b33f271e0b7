"""The share of the original bits that codecs sent over a run, whose links may change rates (AQGB Fig. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradwire.harness.record.runs import Run
from gradwire.harness.report.curve_plots import Styles, clock_label
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.groups import Group, in_legend, title
from gradwire.harness.report.run_plots import CODEC_SERIES, Columns, finite
from gradwire.harness.report.style import Form

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIO = f"{CODEC_SERIES}ratio"
"""The key that codecs whose ratio changes log it under."""


def ratio_plot(groups: Sequence[Group], styles: Styles, name: str) -> Plot | None:
    """The ratio in each round against the training clock, a line for each seed, and where links changed their
    rate; None without a codec that logs one."""
    curves = {group.label: [_ratios(run) for run in group.runs if _ratios(run)[0]] for group in groups}
    shown = [group for group in groups if curves[group.label]]
    if not shown:
        return None
    seconds = sorted({at for group in shown for run in group.runs for at in _changes(run)})

    def draw(panels: Sequence[Axes], form: Form) -> None:
        axes = panels[0]
        for at in seconds:
            axes.axvline(at, color=form.colors["grey"], ls=":", lw=0.9)
        for group in shown:
            color = form.colors[styles[group.label].hue]
            for index, curve in enumerate(curves[group.label]):
                label = in_legend(group, groups) if index == 0 else None
                axes.plot(*curve, color=color, ls="-", lw=0.9, label=label)
        axes.set_ylim(0, 1.05)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.set_xlabel(clock_label(shown[0].clock))
        axes.set_ylabel("quantization ratio")

    said = "each seed; dotted: the links' rate changes" if seconds else "each seed"
    return Plot(name, title(shown, said), draw)


def _ratios(run: Run) -> Columns:
    return finite(run.steps, "train_time_s", RATIO)


def _changes(run: Run) -> list[float]:
    """The seconds of the training clock at which the run's links changed their rate, as planned."""
    network: Any = run.config.get("network")
    changes = network.get("rate_changes") if isinstance(network, dict) else None
    return [float(change[0]) for change in changes or []]
