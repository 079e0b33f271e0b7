"""Pictures of several simulated trainings: by scheme, over the links' rate, over the number of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from gradwire.harness.network.configured import common_text
from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.style import Form, line_styles
from gradwire.harness.studies.simulate.compare import about, scheme_text
from gradwire.harness.studies.simulate.plots import ratio_plot
from gradwire.harness.studies.simulate.summary import SimulateSummary
from gradwire.harness.timing.measure.metrics import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = ("rounds", "utilization", "t_wait", "row")
"""As Figures 10, 12 and 13 have them."""

FEWEST = 3
"""Rates, or numbers of blocks, that make a line."""

IDEAL = "ideal"

Of = Callable[[SimulateSummary], float]


def plot_sweep(found: Sequence[SimulateSummary], folder: Path) -> list[Path]:
    """Writes the pictures that the simulations are enough for; returns the files."""
    plots: list[Plot | None] = []
    changing = [one for one in found if one.network_settings["rate_changes"] and one.scheme == "aqgb"]
    if changing:
        plots.append(ratio_plot(changing[0]))
    lines = [*_over(found, _rate, "rates", "Gbit/s"), *_over(found, _blocks, "blocks", "number of blocks")]
    plots += lines or [_bars_plot(name, own) for name, own in _by_computation(found)]
    return write_plots([plot for plot in plots if plot is not None], folder, pdf=True)


def _rate(one: SimulateSummary) -> float:
    return one.rate_mbit / 1e3


def _blocks(one: SimulateSummary) -> float:
    return len(one.blocks)


def _over(found: Sequence[SimulateSummary], of: Of, name: str, label: str) -> list[Plot]:
    """A picture for each kind of compute times whose simulations differ in enough values of `of` to be a
    line."""
    by_times: dict[str, list[SimulateSummary]] = {}
    for one in found:
        by_times.setdefault(about(one)["compute times"], []).append(one)
    lines = {
        times: own
        for times, own in by_times.items()
        if len({of(one) for one in own if one.scheme != IDEAL}) >= FEWEST
    }
    return [
        _line_plot(f"{name}-{at}" if len(lines) > 1 else name, times, own, of, label)
        for at, (times, own) in enumerate(lines.items(), 1)
    ]


def _line_plot(name: str, title: str, found: Sequence[SimulateSummary], of: Of, label: str) -> Plot:
    """Medians over seeds, a line for each scheme; what no wait at all would give is level."""
    names = [each for each in dict.fromkeys(map(scheme_text, found)) if each != IDEAL]
    styles = dict(zip(names, line_styles(names), strict=True))
    most = [one.rounds for one in found if one.scheme == IDEAL]

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for axes, key in zip(panels, PANELS, strict=True):
            for scheme in names:
                own = [one for one in found if scheme_text(one) == scheme]
                points = [
                    (at, median([_number(one, key) for one in own if of(one) == at]))
                    for at in sorted(set(map(of, own)))
                ]
                axes.plot(*zip(*points, strict=True), **styles[scheme].drawn(form), label=scheme)
            if most and key == "rounds":
                axes.axhline(median(most), color=form.colors["grey"], ls=":", label=IDEAL)
            _label(axes, key)
        for axes in panels[-2:]:
            axes.set_xlabel(label)

    network = common_text(one.network_text for one in found)
    return Plot(name, f"simulated training · {network} · {title}", draw, (1.4, 1.4), columns=2)


def _by_computation(found: Sequence[SimulateSummary]) -> list[tuple[str, list[SimulateSummary]]]:
    """Simulations that differ in the scheme and the seed alone, by a name for the picture."""
    groups: dict[str, list[SimulateSummary]] = {}
    for one in found:
        words = [text for key, text in about(one).items() if key != "scheme"]
        groups.setdefault(", ".join(words), []).append(one)
    return [(f"schemes-{at}", own) for at, own in enumerate(groups.values(), 1) if len(own) > 1]


def _bars_plot(name: str, found: Sequence[SimulateSummary]) -> Plot:
    names = list(dict.fromkeys(map(scheme_text, found)))
    styles = line_styles(names)

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for axes, key in zip(panels, PANELS, strict=True):
            heights = [
                median([_number(one, key) for one in found if scheme_text(one) == scheme]) for scheme in names
            ]
            axes.bar(names, heights, color=[form.colors[style.hue] for style in styles], width=0.6)
            axes.grid(visible=False, axis="x")
            _label(axes, key)
            axes.tick_params(axis="x", labelrotation=0 if len(names) < 5 else 60)

    words = [text for key, text in about(found[0]).items() if key in ("blocks", "compute times")]
    network = common_text(one.network_text for one in found)
    return Plot(name, " · ".join([network, *words]), draw, (1.4, 1.4), columns=2)


def _label(axes: Axes, key: str) -> None:
    axes.set_ylabel(METRICS[key].label)
    axes.set_ylim(bottom=0)


def _number(one: SimulateSummary, key: str) -> float:
    value = getattr(one, key)
    return float("nan") if value is None or value == float("inf") else float(value)
