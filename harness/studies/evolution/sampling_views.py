"""Tables and plots of what sampling and windows keep of entropies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire.harness.report.figures import Plot
from gradwire.harness.report.style import Form, line_styles
from gradwire.harness.report.tables import Table, number
from gradwire.harness.report.views import step_axis
from gradwire.harness.studies.evolution.sampling import Sampling

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    "β: share of the coordinates that an entropy is estimated from. α: share of a window's steps. CC, MSE: "
    "correlation and mean squared error of window means against single steps; delayed, the window before."
)

MOST_POINTS = 400
"""Points of a line: of more steps, the means of so many equal stretches."""


def sampling_tables(found: Sampling) -> list[Table]:
    """By β, by α and by window."""
    tables = [
        Table(
            "Coordinates sampled",
            ["β", "correlation", "mean |ΔH| [nats]", "largest |ΔH| [nats]"],
            [
                [f"{each.rate:g}", *map(number, (each.correlation, each.mean_error, each.largest_error))]
                for each in found.by_rate
            ],
        ),
        Table(
            f"Steps sampled, β = {found.by_alpha[0].rate:g}",
            ["α", "steps in a window", "mean relative change [%]", "largest [%]", "largest [nats]"],
            [
                [
                    *(f"{each.alpha:g}", f"{each.window:,}"),
                    *(number(100 * share, 3) for share in (each.mean_change, each.largest_change)),
                    number(each.largest_error, 3),
                ]
                for each in found.by_alpha
            ],
        ),
    ]
    if found.by_window:
        rows = [
            [
                f"{each.window:,}",
                *map(number, (each.correlation, each.mse, each.delayed_correlation, each.delayed_mse)),
            ]
            for each in found.by_window
        ]
        tables.append(Table("Windows", ["steps", "CC", "MSE [nats²]", "CC delayed", "MSE delayed"], rows))
    return tables


def sampling_notes(found: Sampling) -> list[str]:
    """What the tables mean, and what is not in them."""
    return [NOTE, *([f"Left out: {', '.join(found.left_out)}."] if found.left_out else [])]


def sampling_plots(found: Sampling, heading: str) -> list[Plot]:
    """Figure 12's two panels, and the windows' curves of Table VII."""
    drawn = [_rates(found, heading), _alphas(found, heading)]
    return [*drawn, _windows(found, heading)] if found.by_window else drawn


def _rates(found: Sampling, heading: str) -> Plot:
    def draw(panels: Sequence[Axes], form: Form) -> None:
        labels = [f"β = {rate:g}" for rate in found.rates]
        for label, curve, style in zip(labels, found.curves, line_styles(labels, labels[0]), strict=True):
            steps, values = thinned(found.steps), thinned(curve)
            panels[0].plot(steps, values, label=label, color=form.colors[style.hue], ls=style.line, lw=1.0)
        panels[0].set_ylabel("differential entropy [nats]")
        step_axis(panels[0])

    return Plot("sampling-rates", heading, draw, (2.4,))


def _alphas(found: Sampling, heading: str) -> Plot:
    def draw(panels: Sequence[Axes], form: Form) -> None:
        (axes,) = panels
        labels = [f"α = {each.alpha:g}" for each in found.by_alpha]
        for label, each, style in zip(labels, found.by_alpha, line_styles(labels), strict=True):
            percents = [100 * change for change in each.changes]
            axes.plot(range(1, len(percents) + 1), percents, label=label, **style.drawn(form))
        axes.set_xlabel(f"window of {found.by_alpha[0].window:,} steps")
        axes.set_ylabel("relative change of\nthe mean entropy [%]")
        axes.locator_params(axis="x", integer=True)

    return Plot("sampling-steps", heading, draw, (2.1,))


def _windows(found: Sampling, heading: str) -> Plot:
    """Single steps in grey, the means of each window over them."""

    def draw(panels: Sequence[Axes], form: Form) -> None:
        (axes,) = panels
        whole = found.curves[found.rates.index(max(found.rates))]
        axes.plot(thinned(found.steps), thinned(whole), color=form.colors["grey"], lw=0.8, label="w = 1")
        shown = [each.window for each in found.by_window if each.window > 1]
        for window, style in zip(shown, line_styles(list(map(str, shown))), strict=True):
            starts = range(0, len(whole), window)
            means = [
                sum(whole[first : first + window]) / len(whole[first : first + window]) for first in starts
            ]
            edges = [*(found.steps[first] for first in starts), found.steps[-1] + 1]
            axes.stairs(
                means,
                edges,
                baseline=None,
                color=form.colors[style.hue],
                ls=style.line,
                label=f"w = {window:,}",
            )
        axes.set_ylabel("differential entropy [nats]")
        step_axis(axes)

    return Plot("windows", heading, draw, (2.4,))


def thinned(values: Sequence[float]) -> list[float]:
    """At most `MOST_POINTS` means of equal stretches."""
    stretch = -(-len(values) // MOST_POINTS)
    return [
        sum(values[first : first + stretch]) / len(values[first : first + stretch])
        for first in range(0, len(values), stretch)
    ]
