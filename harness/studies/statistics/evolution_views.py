"""The evolution of gradients over training, as tables and plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradwire.harness.report.figures import Plot
from gradwire.harness.report.series import STEPS, ColourMap, Panel, Series, histogram, series_plot
from gradwire.harness.report.style import HUES, line_styles, plain
from gradwire.harness.report.tables import Table, figure, number
from gradwire.harness.report.views import log_y
from gradwire.harness.studies.statistics.evolution_analyses import (
    LIMIT,
    Correlation,
    Map,
)
from gradwire.harness.studies.statistics.low_rank_errors import LowRank, layer_errors
from gradwire.harness.timing.measure.metrics import METRICS

if TYPE_CHECKING:
    from gradwire.harness.studies.statistics.evolution import Evolution


NOTES = (
    "Entropies are those of the workers' own gradients, averaged over the workers [nats]; zeros left out.",
    "|r| is the mean over pairs of a matrix's rows, or columns where these are fewer; random numbers of the "
    "same shape have the figure beside it.",
    "Errors are Frobenius norms that rank r loses of the mean gradient; r is a share of a matrix's smaller "
    "side. Theory is σ·g(r) of independent entries, σ their root mean square.",
)


def tables(found: Evolution) -> list[Table]:
    """All tables; those of distributions need parameter names with layers."""
    shown = [_figures(found), _entropy(found), _correlation(found), _errors(found)]
    if found.distributions:
        shown.insert(2, _distributions(found))
    return shown


def _figures(found: Evolution) -> Table:
    rows = []
    for key, value in found.figures.items():
        metric = METRICS[f"evolution.{key}"]
        rows.append([metric.heading, figure(value, metric.shown), metric.meaning])
    return Table("Over training", ["figure", "value", "meaning"], rows)


def _entropy(found: Evolution) -> Table:
    """Entropies by step: of the model, of the layers in plots, and of matrices outside layers."""
    rows = [["all matrices", *(number(value) for value in found.nats)]]
    for layer in found.layers:
        rows.append([f"layer {layer}", *(number(value) for value in layer_nats(found, layer))])
    rows += [
        [curve.matrix, *(number(value) for value in curve.nats)]
        for curve in found.entropies
        if curve.layer is None
    ]
    return Table("Entropy [nats]", ["step", *map(str, found.steps)], rows)


def layer_nats(found: Evolution, layer: int) -> list[float]:
    """The mean entropy of a layer's matrices at each step, weighted by their coordinates."""
    own = [curve for curve in found.entropies if curve.layer == layer]
    weights = [math.prod(curve.shape) for curve in own]
    return [
        sum(weight * nats for weight, nats in zip(weights, column, strict=True)) / sum(weights)
        for column in zip(*(curve.nats for curve in own), strict=True)
    ]


def _distributions(found: Evolution) -> Table:
    rows = [
        [f"layer {each.layer}, step {each.step}", *(number(value, 3) for value in (each.sigma, each.reach))]
        for each in found.distributions
    ]
    return Table("Distributions", ["", "σ", "99.9 % of |x| below"], rows)


def _correlation(found: Evolution) -> Table:
    """Correlations, averaged over the matrices of a layer."""
    layers: dict[int | None, list[Correlation]] = {}
    for each in found.correlations:
        layers.setdefault(each.layer, []).append(each)
    rows = []
    for layer, own in sorted(layers.items(), key=lambda item: math.inf if item[0] is None else item[0]):
        columns = [_mean([each.mean for each in own if each.step == step]) for step in found.steps]
        columns.append(_mean([each.random for each in own]))
        rows.append([_layer(layer), *(number(value, 3) for value in columns)])
    return Table("Mean |r|", ["step", *map(str, found.steps), "random"], rows)


def _errors(found: Evolution) -> Table:
    """Errors of all matrices of a layer together."""
    rows = []
    for share in dict.fromkeys(each.share for each in found.errors):
        kinds = [layer_errors(found.errors, share, of) for of in ("best", "power", "theory")]
        ranks = _ranks(found.errors, share)
        for layer in kinds[0]:
            for name, curves in zip(("best", "PowerSGD", "theory"), kinds, strict=True):
                figures = (number(value, 3) for value in curves[layer].values())
                rows.append([f"layer {layer}, rank {ranks}, {name}", *figures])
    return Table("Compression error", ["step", *map(str, found.steps)], rows)


def _ranks(errors: Sequence[LowRank], share: float) -> str:
    """The ranks of all matrices at a share: a single one, or a range."""
    ranks = sorted({each.rank for each in errors if each.share == share and each.layer is not None})
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"


def _layer(layer: int | None) -> str:
    return "outside layers" if layer is None else f"layer {layer}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


MOST_STEPS = len(HUES)
"""The largest number of steps whose distributions are drawn; of more, evenly spaced ones including the first
and the last."""

ALL = "all matrices"

KINDS = {"theory": (":", "σ·g(r)"), "power": ("--", "PowerSGD"), "best": ("-", "best")}
"""The lines of Figure 10 and their names: σ·g(r), PowerSGD's error, that of singular values."""


def plots(found: Evolution, heading: str) -> list[Plot]:
    """Draws all plots for which there are figures."""
    drawn = [_entropy_plot(found, heading)]
    if found.distributions:
        drawn.append(_distributions_plot(found, heading))
    if found.maps:
        drawn.append(_maps(found.maps, heading))
    if found.layers and any(each.norm > 0 for each in found.errors if each.layer is not None):
        drawn.append(_errors_plot(found, heading))
    return drawn


def _entropy_plot(found: Evolution, heading: str) -> Plot:
    """A line for all matrices, one for each layer in plots, and lines for matrices outside layers."""
    lines: dict[str, Sequence[float | None]] = {ALL: found.nats}
    lines |= {f"layer {layer}": layer_nats(found, layer) for layer in found.layers}
    lines |= {curve.matrix: curve.nats for curve in found.entropies if curve.layer is None}
    series = []
    for (label, nats), style in zip(lines.items(), line_styles(list(lines), ALL), strict=True):
        points = [
            (step, value)
            for step, value in zip(found.steps, nats, strict=True)
            if value is not None and math.isfinite(value)
        ]
        series += [Series.through(points, style, label)] if points else []
    return series_plot("entropy", heading, [Panel(series, "differential entropy [nats]", STEPS)], (2.4,))


def _distributions_plot(found: Evolution, heading: str) -> Plot:
    """A panel for each layer, a line for each step."""
    steps, panels = some_steps(found.steps), list[Panel]()
    looks = [plain(style.hue, style.line) for style in line_styles(list(map(str, steps)))]
    for layer in found.layers:
        own = {each.step: each for each in found.distributions if each.layer == layer}
        series = [
            histogram(own[step].histogram, LIMIT, look, f"step {step}")
            for step, look in zip(steps, looks, strict=True)
            if any(own[step].histogram)
        ]
        title = f"layer {layer}: σ {own[steps[0]].sigma:.1e} → {own[steps[-1]].sigma:.1e}"
        panels.append(Panel(series, "share per bin", title=title, views=[log_y]))
    panels[-1] = replace(panels[-1], x_label=f"coordinate / σ of the layer at step {found.steps[0]}")
    return series_plot("distributions", heading, panels, (1.25,) * len(panels), ticks="last")


def _maps(maps: Sequence[Map], heading: str) -> Plot:
    """Pairs of maps in rows, with one colour scale for all."""
    scales = [*("" for _ in maps[1:]), "Pearson correlation"]
    panels = [
        Panel([ColourMap(shown.values.numpy(), scale)], title=shown.title)
        for shown, scale in zip(maps, scales, strict=True)
    ]
    return series_plot("correlations", heading, panels, (1.5,) * math.ceil(len(maps) / 2), columns=2)


def _errors_plot(found: Evolution, heading: str) -> Plot:
    """A panel for each of at most three layers, with a hue for each rank and a line style for each kind of
    error."""
    shares = list(dict.fromkeys(each.share for each in found.errors))
    panels = list[Panel]()
    for layer in found.layers[:3]:
        series = []
        for share, style in zip(shares, line_styles(list(map(str, shares))), strict=True):
            for kind, (line, words) in KINDS.items():
                curve = layer_errors(found.errors, share, kind)[layer]
                points = [(step, error) for step, error in curve.items() if error > 0]
                if points:  # a logarithmic axis has no 0
                    label = f"rank {_ranks(found.errors, share)}, {words}"
                    series.append(Series.through(points, plain(style.hue, line), label, width=1.1))
        panels.append(Panel(series, "error (norm)", title=f"layer {layer}", views=[log_y]))
    panels[-1] = replace(panels[-1], x_label=STEPS)
    return series_plot("compression-error", heading, panels, (1.5,) * len(panels), ticks="last")


def some_steps(steps: Sequence[int]) -> list[int]:
    """At most `MOST_STEPS` of the steps, including the first and the last."""
    if len(steps) <= MOST_STEPS:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (MOST_STEPS - 1))] for index in range(MOST_STEPS)]
