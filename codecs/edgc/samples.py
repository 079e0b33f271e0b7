"""What EDGC's data sampler has seen of a stage's matrices in the window that is under way (EDGC §IV-B)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.edgc.rank_control import Window
from gradwire.codecs.edgc.sampler import sample
from gradwire.codecs.interface import Layout
from gradwire.codecs.powersgd import effective_rank, matrix_shape
from gradwire.codecs.step_memory import StepMemory

SAMPLED = "sampled/"
"""Begins the keys of the state."""

NOTHING = (0, 0, 0, 0)
"""The sums of a window that begins."""


class Shape(NamedTuple):
    """`matrices` of one shape."""

    rows: int
    columns: int
    matrices: int


class Place(NamedTuple):
    """A matrix in a bucket."""

    name: str
    rows: int
    columns: int
    values: slice


def matrices(layout: Layout, min_compression_rate: float) -> list[Place]:
    """The matrices of a bucket that some rank makes smaller."""
    found = []
    for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
        if effective_rank(shape, 1, min_compression_rate):
            rows, columns = matrix_shape(shape)
            found.append(Place(name, rows, columns, slice(offset, offset + rows * columns)))
    return found


class Samples:
    """By matrix its shape, and four sums over the window so far: of entropies, of the samples that have one,
    of the shares of exact zeros, and of all samples. A matrix of zeros has no entropy.
    """

    def __init__(self, estimator: str, stride: int) -> None:
        self._estimator, self._stride = estimator, stride
        self._rows = StepMemory[Tensor]()  # rows, columns and the four sums: (6,) float64

    def see(self, matrix: Place) -> None:
        """Takes note of a matrix of this stage."""
        if matrix.name not in self._rows:
            self._rows[matrix.name] = _row(matrix.rows, matrix.columns, *NOTHING)

    def sample(self, matrix: Place, x: Tensor, seed: int) -> None:
        """Adds the entropy of a matrix that has been seen, in the bucket `x`."""
        found = sample(x[matrix.values], self._estimator, self._stride, seed)
        entropy = (found.nats, 1) if math.isfinite(found.nats) else (0, 0)
        self._rows[matrix.name] = self._rows[matrix.name] + _row(0, 0, *entropy, found.zeros, 1)

    def shapes(self) -> list[Shape]:
        """The shapes of all matrices seen, in order."""
        found = [_shape(row) for row in self._rows.values()]
        return [Shape(*shape, found.count(shape)) for shape in sorted(set(found))]

    def totals(self) -> Tensor:
        """The four sums of each shape: (shapes, 4) float64."""
        numbers = {shape[:2]: number for number, shape in enumerate(self.shapes())}
        totals = torch.zeros(len(numbers), 4, dtype=torch.float64, device="cpu")
        for row in self._rows.values():
            totals[numbers[_shape(row)]] += row[2:]
        return totals

    def begin_window(self) -> None:
        """Forgets all entropies; called between two steps."""
        self._rows.load({name: _row(*row[:2].tolist(), *NOTHING) for name, row in self._rows.items()})

    def end_step(self) -> None:
        self._rows.end_step()

    def skip_step(self) -> None:
        """What the step has added counts for nothing."""
        self._rows.skip_step()

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{SAMPLED}{name}": row for name, row in self._rows.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes the keys that `state_dict` has given out of `state`."""
        own = {key.removeprefix(SAMPLED): row for key, row in state.items() if key.startswith(SAMPLED)}
        self._rows.load({name: row.clone() for name, row in own.items()})


def shapes_told(numbers: Tensor) -> list[Shape]:
    """The shapes whose rows, columns and counts are `numbers`, (3 · shapes,) int64."""
    return [Shape(*row) for row in numbers.view(-1, 3).tolist()]


def windows_told(stage: int, shapes: Sequence[Shape], totals: Tensor) -> list[Window]:
    """What a stage's ranks have told at the end of a window; `totals` are summed over them, (4 · shapes,)
    float64."""
    windows = []
    for shape, (nats, number, zeros, samples) in zip(shapes, totals.view(-1, 4).tolist(), strict=True):
        entropy = nats / number if number else -math.inf
        windows.append(Window(stage, *shape, entropy, zeros / samples if samples else 0.0))
    return windows


def _row(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def _shape(row: Tensor) -> tuple[int, int]:
    return int(row[0]), int(row[1])
