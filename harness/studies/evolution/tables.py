"""Tables of how gradients change over training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradwire.harness.report.tables import Table, figure, number
from gradwire.harness.studies.evolution.collect import Evolution
from gradwire.harness.studies.evolution.correlation import Correlation
from gradwire.harness.studies.evolution.low_rank import LowRank, layer_errors
from gradwire.harness.timing.measure.metrics import METRICS

NOTES = (
    "Entropies are those of the workers' own gradients, averaged over the workers [nats]; zeros left out.",
    "|r| is the mean over pairs of a matrix's rows, or columns where these are fewer; random numbers of the "
    "same shape have the figure beside it.",
    "Errors are Frobenius norms that rank r loses of the mean gradient; r is a share of a matrix's smaller "
    "side. Theory is σ·g(r) of independent entries, σ their root mean square.",
)


def tables(found: Evolution) -> list[Table]:
    """All of them; distributions are of layers, where parameters' names have any."""
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
    """By step: the model, the layers that are shown, and matrices outside layers."""
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
    """Means over the matrices of a layer."""
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
    """Each layer's matrices together."""
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
    """The ranks of all matrices at a share: one, or the range."""
    ranks = sorted({each.rank for each in errors if each.share == share and each.layer is not None})
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"


def _layer(layer: int | None) -> str:
    return "outside layers" if layer is None else f"layer {layer}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
