"""Analyses of a run's saved steps: their matrices, distributions and correlations (EDGC §III)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gradwire.harness.record.directory import step_files
from gradwire.harness.record.gradients import SavedGradients, check_finite, read_gradients

MOST_LAYERS = 4
"""The largest number of layers in plots: EDGC's Figure 3 has four."""


@dataclass(frozen=True)
class Matrix:
    """One parameter's gradients, (workers, rows, columns); further dimensions are merged into columns."""

    name: str
    values: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return (int(self.values.shape[1]), int(self.values.shape[2]))

    @property
    def layer(self) -> int | None:
        """The number of the layer that it belongs to; None outside layers, e.g. for embeddings."""
        return layer_of(self.name)


def layer_of(name: str) -> int | None:
    """The first number among the parts of a parameter's name, or None."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def matrices_of(saved: SavedGradients) -> list[Matrix]:
    """Every parameter with at least two dimensions, bucket by bucket."""
    found, start = [], 0
    for layout in saved.buckets:
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
            if len(shape) >= 2:
                first = start + offset
                own = saved.values[:, first : first + math.prod(shape)]
                found.append(Matrix(name, own.reshape(saved.workers, shape[0], -1)))
        start += layout.numel
    return found


def in_layers(matrices: Iterable[Matrix]) -> dict[int, list[Matrix]]:
    """The matrices of each layer, in the order of layers; those outside layers are excluded."""
    found: dict[int, list[Matrix]] = {}
    for matrix in matrices:
        if matrix.layer is not None:
            found.setdefault(matrix.layer, []).append(matrix)
    return dict(sorted(found.items()))


def shown_layers(layers: Sequence[int]) -> list[int]:
    """At most `MOST_LAYERS` layers, evenly spaced from the first on: 0, 6, 12 and 18 of 24."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    return [layers[index * len(layers) // MOST_LAYERS] for index in range(MOST_LAYERS)]


def read_series(folder: str | Path) -> Iterator[tuple[int, SavedGradients]]:
    """Yields every saved step's gradients, so that only one at a time is in memory.

    Raises ValueError in one line for a file that cannot be read, has no layout or no matrices, is not finite,
    or is of other parameters than the first one.
    """
    first: set[tuple[str, tuple[int, ...]]] | None = None
    for step, path in step_files(folder).items():
        saved = read_gradients(path)
        check_finite(saved.values, str(path))
        shapes = {pair for layout in saved.buckets for pair in zip(layout.names, layout.shapes, strict=True)}
        if not any(len(shape) >= 2 for _, shape in shapes):
            raise ValueError(f"gradients={path} names no matrices; give files that a run has saved")
        if first is not None and shapes != first:
            raise ValueError(f"gradients={path} has other parameters than an earlier step; give one run's")
        first = shapes
        yield step, saved


BINS, LIMIT = 121, 6.0
"""Bins from −6 to 6 standard deviations of the layer's gradients at the first step; the middle one is centred
on 0."""

INSIDE = 0.999


@dataclass(frozen=True)
class Distribution:
    """The distribution of the coordinates of all matrices of a layer and all workers at one step.

    `sigma` is their root mean square, and 99.9 % of all |x| are at most `reach`. `histogram` has the share of
    each bin, in units of `unit`; `outside` is the share beyond the bins.
    """

    layer: int
    step: int
    sigma: float
    reach: float
    unit: float
    histogram: list[float]
    outside: float


def distribution(layer: int, step: int, matrices: Sequence[Matrix], unit: float | None) -> Distribution:
    """The distribution of the layer's `matrices`; `unit` is the first step's `sigma`, None in the first step
    itself."""
    values = torch.cat([matrix.values.flatten().float() for matrix in matrices]).double()
    sigma = math.sqrt(float(values.square().mean()))
    within = max(1, math.ceil(INSIDE * values.numel()))
    reach = float(values.abs().kthvalue(within).values)
    unit = sigma if unit is None else unit
    shares = torch.histc(values / (unit or 1.0), BINS, -LIMIT, LIMIT) / values.numel()
    outside = max(0.0, 1.0 - float(shares.sum()))
    return Distribution(layer, step, sigma, reach, unit, shares.tolist(), outside)


def narrowing(found: Sequence[Distribution]) -> float | None:
    """σ at the last step relative to the first, as a geometric mean over layers; None if one is 0."""
    by_layer: dict[int, list[Distribution]] = {}
    for each in found:
        by_layer.setdefault(each.layer, []).append(each)
    ratios = [own[-1].sigma / own[0].sigma if own[0].sigma else 0.0 for own in by_layer.values()]
    if not ratios or min(ratios) <= 0:
        return None
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def units(found: Sequence[Distribution]) -> Mapping[int, float]:
    """The unit of each layer's histograms."""
    return {each.layer: each.unit for each in found}


MOST = 256
"""The largest number of a matrix's variables that are used; of more, evenly spaced ones."""

MAP = 64
"""The number of variables in a map."""


@dataclass(frozen=True)
class Correlation:
    """The mean |Pearson correlation| between two variables of a matrix, over all pairs and workers.

    `random` is the same for normally distributed numbers of this shape. None if no two variables vary.
    """

    matrix: str
    layer: int | None
    step: int
    mean: float | None
    random: float | None


@dataclass(frozen=True)
class Map:
    """Pearson correlations between at most 64 variables, (variables, variables) float64, to be drawn."""

    title: str
    values: Tensor


def correlations(matrix: Tensor, most: int = MOST) -> Tensor:
    """Pearson correlations between the variables of (rows, columns), of any floating dtype: (variables,
    variables) float64; constant variables are excluded."""
    variables = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T).double()
    places = torch.linspace(0, len(variables) - 1, min(most, len(variables))).round().long()
    chosen = variables[places]
    centred = chosen - chosen.mean(dim=1, keepdim=True)
    norms = torch.linalg.vector_norm(centred, dim=1)
    varying = norms > 1e-12 * torch.linalg.vector_norm(chosen, dim=1)
    unit = centred[varying] / norms[varying, None]
    found: Tensor = unit @ unit.T
    return found.clamp(-1, 1)


def mean_absolute(correlation: Tensor) -> float | None:
    """The mean |r| over all pairs of different variables; None for fewer than two."""
    count = len(correlation)
    if count < 2:
        return None
    return float(correlation.abs().sum() - count) / (count * (count - 1))


def correlation(matrix: Matrix, step: int, seed: int) -> Correlation:
    """The correlation of one matrix's gradients; `seed` is that of the random numbers it is compared with."""
    found = [mean_absolute(correlations(worker)) for worker in matrix.values]
    known = [value for value in found if value is not None]
    mean = sum(known) / len(known) if known else None
    return Correlation(matrix.name, matrix.layer, step, mean, mean_absolute(random_map(matrix.shape, seed)))


def random_map(shape: tuple[int, int], seed: int, most: int = MOST) -> Tensor:
    """The correlations of a matrix of normally distributed numbers."""
    generator = torch.Generator().manual_seed(seed)
    return correlations(torch.randn(shape, generator=generator), most)
