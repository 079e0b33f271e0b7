"""The matrices of saved gradients, by layer and step.

EDGC compresses parameters with two dimensions or more, as matrices. Layers are those that parameters' names
count: `transformer.h.3.mlp.c_fc.weight` is of layer 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gradwire.harness.record.gradients import SavedGradients, check_finite, read_gradients
from gradwire.harness.record.saved_steps import step_files

MOST_LAYERS = 4
"""Layers that plots show: EDGC's Figure 3 has four."""


@dataclass(frozen=True)
class Matrix:
    """One parameter's gradients, (workers, rows, columns); further dimensions count as columns."""

    name: str
    values: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return (int(self.values.shape[1]), int(self.values.shape[2]))

    @property
    def layer(self) -> int | None:
        """The layer it belongs to; None outside layers, as embeddings are."""
        return layer_of(self.name)


def layer_of(name: str) -> int | None:
    """The first number among the parts of a parameter's name."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def matrices_of(saved: SavedGradients) -> list[Matrix]:
    """Every parameter with two dimensions or more, bucket after bucket."""
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
    """The matrices of each layer, in the order of layers; those outside layers are left out."""
    found: dict[int, list[Matrix]] = {}
    for matrix in matrices:
        if matrix.layer is not None:
            found.setdefault(matrix.layer, []).append(matrix)
    return dict(sorted(found.items()))


def shown_layers(layers: Sequence[int]) -> list[int]:
    """At most `MOST_LAYERS` of them from the first on, evenly spaced: 0, 6, 12 and 18 of 24."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    return [layers[index * len(layers) // MOST_LAYERS] for index in range(MOST_LAYERS)]


def read_series(folder: str | Path) -> Iterator[tuple[int, SavedGradients]]:
    """Every saved step's gradients, one after another, so that one at a time is in memory.

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
