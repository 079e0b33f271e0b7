"""Plots of how gradients change over training, as EDGC's Figures 2, 3, 4 and 10 have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradwire.harness.report.figures import Plot
from gradwire.harness.report.style import HUES, Form, LineStyle, line_styles
from gradwire.harness.report.views import log_axis, step_axis
from gradwire.harness.studies.evolution.collect import Evolution
from gradwire.harness.studies.evolution.correlation import Map
from gradwire.harness.studies.evolution.distributions import BINS, LIMIT, Distribution
from gradwire.harness.studies.evolution.low_rank import layer_errors
from gradwire.harness.studies.evolution.tables import layer_nats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_STEPS = len(HUES)
"""Steps whose distributions are drawn: of more, evenly spaced ones with the first and the last."""

ALL = "all matrices"

KINDS = {"theory": ":", "power": "--", "best": "-"}
"""The lines of Figure 10: σ·g(r), PowerSGD's error, that of singular values."""


def plots(found: Evolution, heading: str) -> list[Plot]:
    """Draws all plots that there are figures for."""
    drawn = [_entropy(found, heading)]
    if found.distributions:
        drawn.append(_distributions(found, heading))
    if found.maps:
        drawn.append(_maps(found.maps, heading))
    if found.layers and any(each.norm > 0 for each in found.errors if each.layer is not None):
        drawn.append(_errors(found, heading))
    return drawn


def _entropy(found: Evolution, heading: str) -> Plot:
    """A line for all matrices, one for each layer shown, and those for matrices outside layers."""
    lines: dict[str, Sequence[float | None]] = {ALL: found.nats}
    lines |= {f"layer {layer}": layer_nats(found, layer) for layer in found.layers}
    lines |= {curve.matrix: curve.nats for curve in found.entropies if curve.layer is None}

    def draw(panels: Sequence[Axes], form: Form) -> None:
        (axes,) = panels
        for (label, nats), style in zip(lines.items(), line_styles(list(lines), ALL), strict=True):
            points = [
                (step, value)
                for step, value in zip(found.steps, nats, strict=True)
                if value is not None and math.isfinite(value)
            ]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, **style.drawn(form))
        axes.set_ylabel("differential entropy [nats]")
        step_axis(axes)

    return Plot("entropy", heading, draw, (2.4,))


def _distributions(found: Evolution, heading: str) -> Plot:
    """A panel for each layer, a line for each step."""
    steps = some_steps(found.steps)

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for layer, axes in zip(found.layers, panels, strict=True):
            own = {each.step: each for each in found.distributions if each.layer == layer}
            for step, style in zip(steps, line_styles(list(map(str, steps))), strict=True):
                _draw_histogram(axes, own[step], style, form)
            axes.set_title(f"layer {layer}: σ {own[steps[0]].sigma:.1e} → {own[steps[-1]].sigma:.1e}")
            axes.set_ylabel("share per bin")
            log_axis(axes)
            axes.tick_params(labelbottom=axes is panels[-1])
        panels[-1].set_xlabel(f"coordinate / σ of the layer at step {found.steps[0]}")

    return Plot("distributions", heading, draw, (1.25,) * len(found.layers))


def _draw_histogram(axes: Axes, found: Distribution, style: LineStyle, form: Form) -> None:
    width = 2 * LIMIT / BINS
    points = [(width * (index + 0.5) - LIMIT, share) for index, share in enumerate(found.histogram) if share]
    if points:
        color = form.colors[style.hue]
        axes.plot(*zip(*points, strict=True), color=color, ls=style.line, lw=1.0, label=f"step {found.step}")


def _maps(maps: Sequence[Map], heading: str) -> Plot:
    """Two maps in a row, with one scale of colours for all."""

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for axes in panels[len(maps) :]:
            axes.set_axis_off()
        for shown, axes in zip(maps, panels, strict=False):
            image = axes.imshow(shown.values.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
            axes.set_title(shown.title)
            axes.grid(visible=False)
            axes.set_xticks([])
            axes.set_yticks([])
        bar = panels[0].figure.colorbar(image, ax=list(panels), shrink=0.6, ticks=[-1, 0, 1])
        bar.set_label("Pearson correlation")

    return Plot("correlations", heading, draw, (1.5,) * math.ceil(len(maps) / 2), columns=2)


def _errors(found: Evolution, heading: str) -> Plot:
    """A panel for each of three layers at most; a hue for each rank, a kind of line for each error."""
    shares = list(dict.fromkeys(each.share for each in found.errors))
    layers = found.layers[:3]
    ranks = {share: _rank_words(found, share) for share in shares}

    def draw(panels: Sequence[Axes], form: Form) -> None:
        for layer, axes in zip(layers, panels, strict=True):
            for share, style in zip(shares, line_styles(list(map(str, shares))), strict=True):
                for kind, line in KINDS.items():
                    curve = layer_errors(found.errors, share, kind)[layer]
                    color = form.colors[style.hue]
                    label = f"rank {ranks[share]}, {_words(kind)}"
                    points = [(step, error) for step, error in curve.items() if error > 0]
                    if points:  # a logarithmic axis has no 0
                        axes.plot(*zip(*points, strict=True), color=color, ls=line, lw=1.1, label=label)
            axes.set_title(f"layer {layer}")
            axes.set_ylabel("error (norm)")
            log_axis(axes)
            axes.tick_params(labelbottom=axes is panels[-1])
        step_axis(panels[-1])

    return Plot("compression-error", heading, draw, (1.5,) * len(layers))


def _rank_words(found: Evolution, share: float) -> str:
    ranks = sorted({each.rank for each in found.errors if each.share == share and each.layer is not None})
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"


def _words(kind: str) -> str:
    return {"theory": "σ·g(r)", "power": "PowerSGD", "best": "best"}[kind]


def some_steps(steps: Sequence[int]) -> list[int]:
    """At most `MOST_STEPS` of them, the first and the last among these."""
    if len(steps) <= MOST_STEPS:
        return list(steps)
    return [steps[round(index * (len(steps) - 1) / (MOST_STEPS - 1))] for index in range(MOST_STEPS)]
