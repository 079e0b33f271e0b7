"""All that the saved steps of one run say about how gradients change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from gradwire.harness.record.gradients import SavedGradients
from gradwire.harness.studies.evolution.analyses import (
    MAP,
    Correlation,
    Distribution,
    LowRank,
    Map,
    Matrix,
    correlation,
    correlations,
    distribution,
    error_change,
    in_layers,
    layer_agreement,
    low_rank,
    matrices_of,
    narrowing,
    over_theory,
    random_map,
    shown_layers,
    units,
)
from gradwire.harness.studies.statistics.measures import MatrixEntropy, matrix_entropies, weighted_mean


@dataclass(frozen=True)
class EntropyCurve:
    """One matrix's differential entropy [nats] at each saved step, the mean over the workers."""

    matrix: str
    layer: int | None
    shape: tuple[int, ...]
    nats: list[float]


@dataclass(frozen=True)
class Evolution:
    """What the saved `steps` have. `nats` is the mean entropy over matrices at each step, weighted by their
    coordinates; None at a step where all of them are zeros. Correlations and errors are of every matrix,
    distributions of the layers that plots show, `layers`."""

    steps: list[int]
    layers: list[int]
    nats: list[float | None]
    entropies: list[EntropyCurve]
    distributions: list[Distribution]
    correlations: list[Correlation]
    errors: list[LowRank]
    maps: list[Map] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, float | None]:
        """The single figures, by the part of their keys in METRICS behind `evolution.`."""
        first, last = self.steps[0], self.steps[-1]
        begin, end = self.nats[0], self.nats[-1]
        best, power = over_theory(self.errors, "best"), over_theory(self.errors, "power")
        return {
            "entropy_change": None if begin is None or end is None else end - begin,
            "sigma_ratio": narrowing(self.distributions),
            "correlation_first": _mean(each.mean for each in self.correlations if each.step == first),
            "correlation_last": _mean(each.mean for each in self.correlations if each.step == last),
            "correlation_random": _mean(each.random for each in self.correlations),
            "best_over_theory": _mean(best),
            "power_over_theory": _mean(power),
            "largest_over_theory": max(power, default=None),
            "error_change": error_change(self.errors),
            "layer_agreement": layer_agreement(self.errors),
        }


def collect(series: Iterable[tuple[int, SavedGradients]], shares: Sequence[float], seed: int) -> Evolution:
    """Computes it from (step, gradients), two steps or more in ascending order; `shares` are the ranks of
    `low_rank`, `seed` that of random numbers. Needs memory for a step and its matrices in float64."""
    found = Evolution([], [], [], [], [], [], [])
    for step, saved in series:
        matrices = matrices_of(saved)
        layers = in_layers(matrices)
        if not found.steps:
            found.layers.extend(shown_layers(list(layers)))
        found.steps.append(step)
        _add_entropies(found, matrix_entropies(saved.values, saved.buckets), matrices)
        unit = units(found.distributions)
        for layer in found.layers:
            found.distributions.append(distribution(layer, step, layers[layer], unit.get(layer)))
        for matrix in matrices:
            found.correlations.append(correlation(matrix, step, seed))
            found.errors.extend(low_rank(matrix, step, shares, seed))
        _add_maps(found, layers, step, seed)
    _keep_maps(found)
    return found


def _add_entropies(found: Evolution, own: Sequence[MatrixEntropy], matrices: Sequence[Matrix]) -> None:
    found.nats.append(weighted_mean(own))
    if not found.entropies:
        found.entropies.extend(
            EntropyCurve(matrix.name, matrix.layer, each.shape, [])
            for each, matrix in zip(own, matrices, strict=True)
        )
    curves = {curve.matrix: curve for curve in found.entropies}
    for each in own:
        curves[each.name].nats.append(each.nats)


def _add_maps(found: Evolution, layers: dict[int, list[Matrix]], step: int, seed: int) -> None:
    """The first worker's map of the largest matrix of the first and the middle layer that are shown."""
    if not layers:
        return
    for layer in dict.fromkeys((found.layers[0], found.layers[len(found.layers) // 2])):
        largest = max(layers[layer], key=lambda matrix: matrix.values.numel())
        if not found.maps:
            found.maps.append(Map("random numbers", random_map(largest.shape, seed, MAP)))
        found.maps.append(Map(f"layer {layer}, step {step}", correlations(largest.values[0], MAP)))


def _keep_maps(found: Evolution) -> None:
    """Leaves the maps of EDGC's Figure 4: random numbers, both layers early, the first one at the end.

    The first saved step may be before anything is learned, so early is the second one of three or more.
    """
    early = found.steps[1 if len(found.steps) > 2 else 0]
    by_title = {each.title: each for each in found.maps}
    layers = dict.fromkeys((found.layers[0], found.layers[len(found.layers) // 2])) if found.layers else {}
    titles = [
        "random numbers",
        *(f"layer {layer}, step {early}" for layer in layers),
        *(f"layer {layer}, step {found.steps[-1]}" for layer in layers),
    ]
    shown = [by_title[title] for title in titles[:4] if title in by_title]
    found.maps[:] = shown if all(len(each.values) > 1 for each in shown) else []


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
