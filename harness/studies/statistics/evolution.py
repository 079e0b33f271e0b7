"""The evolution of a run's gradients over its saved steps, and of its entropies by step (EDGC)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.directory import CONFIG, ENTROPIES, GRADIENTS, is_done, step_files
from gradwire.harness.record.entropies import RecordedEntropies, read_entropies
from gradwire.harness.record.gradients import SavedGradients, read_gradients
from gradwire.harness.record.seal import check_sealed
from gradwire.harness.report.figures import Plot
from gradwire.harness.report.tables import Page
from gradwire.harness.studies.statistics.evolution_analyses import (
    MAP,
    Correlation,
    Distribution,
    Map,
    Matrix,
    correlation,
    correlations,
    distribution,
    in_layers,
    matrices_of,
    narrowing,
    random_map,
    read_series,
    shown_layers,
    units,
)
from gradwire.harness.studies.statistics.evolution_views import NOTES, plots, tables
from gradwire.harness.studies.statistics.low_rank_errors import (
    LowRank,
    error_change,
    layer_agreement,
    low_rank,
    over_theory,
)
from gradwire.harness.studies.statistics.measures import MatrixEntropy, matrix_entropies, weighted_mean
from gradwire.harness.studies.statistics.sampling import (
    Sampling,
    sampling,
    sampling_notes,
    sampling_plots,
    sampling_tables,
)
from gradwire.harness.studies.statistics.study import StatisticsConfig


@dataclass(frozen=True)
class EntropyCurve:
    """One matrix's differential entropy [nats] at each saved step, the mean over the workers."""

    matrix: str
    layer: int | None
    shape: tuple[int, ...]
    nats: list[float]


@dataclass(frozen=True)
class Evolution:
    """The results for the saved `steps`. `nats` holds the mean entropy over matrices at each step, weighted
    by their coordinates; None for a step where all of them are zeros. Correlations and errors are given for
    every matrix, distributions only for `layers`, the layers in plots."""

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
        """The scalar figures, by the part of their keys in METRICS after `evolution.`."""
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
            "random_over_theory": _mean(each.random for each in self.errors if math.isfinite(each.random)),
            "largest_over_theory": max(power, default=None),
            "error_change": error_change(self.errors),
            "layer_agreement": layer_agreement(self.errors),
        }


def collect(series: Iterable[tuple[int, SavedGradients]], shares: Sequence[float], seed: int) -> Evolution:
    """Computes the results from (step, gradients), at least two steps in ascending order; `shares` are the
    ranks of `low_rank`, `seed` is that of random numbers. Needs memory for a step and its matrices in
    float64."""
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
    """Adds the first worker's maps for the largest matrix in the first and in the middle layer of
    `layers`.
    """
    if not layers:
        return
    for layer in dict.fromkeys((found.layers[0], found.layers[len(found.layers) // 2])):
        largest = max(layers[layer], key=lambda matrix: matrix.values.numel())
        if not found.maps:
            found.maps.append(Map("random numbers", random_map(largest.shape, seed, MAP)))
        found.maps.append(Map(f"layer {layer}, step {step}", correlations(largest.values[0], MAP)))


def _keep_maps(found: Evolution) -> None:
    """Keeps only the maps of EDGC's Figure 4: random numbers, both layers early in training, and the first
    one at the end.

    The first saved step may precede any learning, so with at least three steps "early" means the second.
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


REMEDY = "measure.save_gradients_at=[10,100,190] keeps three, measure.entropy_every=1 records entropies"

STEP = "step"


@dataclass(frozen=True)
class RunEvolution:
    """`evolution` is about saved steps and None if there are fewer than two, `sampling` is about entropies by
    step.

    `about` is the description of the run in its files, `heading` its name and size.
    """

    evolution: Evolution | None
    sampling: Sampling | None
    about: Mapping[str, Any]
    num_coordinates: int
    heading: str

    def to_json(self, about: Mapping[str, object]) -> str:
        """Valid JSON that begins with `about`; maps of correlations are only in the plots."""
        found: dict[str, Any] = {**about, "evolution": {}}
        if self.evolution is not None:
            content = asdict(self.evolution)
            del content["maps"]
            found |= {"evolution": self.evolution.figures, **content}
        if self.sampling is not None:
            found["sampling"] = asdict(self.sampling)
        return dumps(found, indent=1) + "\n"

    def text(self) -> str:
        """The tables, below the heading."""
        shown, notes = [], list[str]()
        if self.evolution is not None:
            shown += tables(self.evolution)
            notes += NOTES
        if self.sampling is not None:
            shown += sampling_tables(self.sampling)
            notes += sampling_notes(self.sampling)
        return f"{self.heading}\n\n{Page(shown, notes).text}"

    def plots(self) -> list[Plot]:
        drawn = [] if self.evolution is None else plots(self.evolution, self.heading)
        return drawn if self.sampling is None else [*drawn, *sampling_plots(self.sampling, self.heading)]


def check_run(folder: str | Path) -> None:
    """Raises ValueError in one line unless the folder has at least two saved steps, or entropies by step."""
    count = len(step_files(folder))
    if count < 2 and not _has_entropies(folder):
        raise ValueError(
            f"gradients={folder}: this folder has {count or 'no'} saved step{'s' * (count != 1)} and no "
            f"{ENTROPIES}; give a run directory with two steps, or with entropies: {REMEDY}"
        )


def describe(folder: str | Path, settings: StatisticsConfig, seed: int) -> RunEvolution:
    """All that the folder has, which `check_run` has accepted; `seed` is that of random numbers.

    Raises ValueError in one line for files that cannot be read.
    """
    files = list(step_files(folder).values())
    evolution = last = entropies = found = None
    if len(files) > 1:
        shares = list(map(float, settings.rank_shares))
        evolution, last = collect(read_series(folder), shares, seed), read_gradients(files[-1])
    if _has_entropies(folder):
        entropies = read_entropies(Path(folder).expanduser())
        alphas = list(map(float, settings.alphas))
        found = sampling(entropies, alphas, settings.window, settings.windows)
    of_matrices = 0 if entropies is None else sum(each.numel for each in entropies.matrices)
    numel = of_matrices if last is None else last.numel
    heading = _heading(folder, evolution, found, numel)
    return RunEvolution(evolution, found, _about(last, entropies), numel, heading)


def _has_entropies(folder: str | Path) -> bool:
    """True if there are entropies; raises UnusableFileError if a completed record has lost or changed
    them.
    """
    path = Path(folder).expanduser() / ENTROPIES
    check_sealed(path)
    return os.path.lexists(path)


def _about(last: SavedGradients | None, entropies: RecordedEntropies | None) -> Mapping[str, Any]:
    """The description of the run in the files, without the step."""
    about = (last.about or {}) if last is not None else entropies.about if entropies is not None else {}
    return {key: value for key, value in about.items() if key != STEP}


def _heading(folder: str | Path, evolution: Evolution | None, found: Sampling | None, numel: int) -> str:
    place = Path(folder).expanduser().resolve()
    steps = [] if evolution is None else [f"{len(evolution.steps)} saved steps"]
    steps += [] if found is None else [f"entropies of {len(found.steps):,} steps"]
    run = place.parent if place.name == GRADIENTS else place
    if (run / CONFIG).is_file() and not is_done(run):
        steps.append("of an unfinished run")
    name = place.parent.name if place.name == GRADIENTS else place.name
    return " · ".join([name, *steps, f"{numel:,} coordinates"])
