"""Observations of a stage: the entropies of its matrices in a window (EDGC §IV-B), and the times of messages
by rank with the linear model T(r) = η·r + c (EDGC §IV-D1, eq. 2 and 3).

Some warm-up steps probe a compression rank: they also send gradients compressed to this rank and discard the
mean.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.line_fit import LineFit, fit_line
from gradwire.codecs.edgc.rank_control import Window
from gradwire.codecs.edgc.sampler import sample
from gradwire.codecs.interface import Layout, Observation
from gradwire.codecs.powersgd import effective_rank, matrix_shape
from gradwire.codecs.step_memory import StepMemory

SAMPLED = "sampled/"
"""Begins the keys of the state."""

NOTHING = (0, 0, 0, 0)
"""The sums of a window that begins."""


class MatrixShape(NamedTuple):
    """`matrices` of one shape."""

    rows: int
    columns: int
    matrices: int


class MatrixPlace(NamedTuple):
    """A matrix in a bucket."""

    name: str
    rows: int
    columns: int
    values: slice


def matrices(layout: Layout, min_compression_rate: float) -> list[MatrixPlace]:
    """The matrices of a bucket that compression makes smaller at some rank."""
    found = []
    for name, shape, values in zip(layout.names, layout.shapes, layout.places, strict=True):
        if effective_rank(shape, 1, min_compression_rate):
            found.append(MatrixPlace(name, *matrix_shape(shape), values))
    return found


class Samples:
    """For each matrix its shape and four sums over the window so far: of entropies, of the number of samples
    with an entropy, of the shares of exact zeros, and of the number of all samples. A matrix of zeros has no
    entropy."""

    def __init__(self, estimator: str, stride: int) -> None:
        self._estimator, self._stride = estimator, stride
        self.rows = StepMemory[Tensor]()  # rows, columns and the four sums: (6,) float64

    def see(self, matrix: MatrixPlace) -> None:
        """Registers a matrix of this stage."""
        if matrix.name not in self.rows:
            self.rows[matrix.name] = _row(matrix.rows, matrix.columns, *NOTHING)

    def sample(self, matrix: MatrixPlace, x: Tensor, seed: int) -> None:
        """Adds the entropy of a registered matrix of the bucket `x`."""
        found = sample(x[matrix.values], self._estimator, self._stride, seed)
        entropy = (found.nats, 1) if math.isfinite(found.nats) else (0, 0)
        self.rows[matrix.name] = self.rows[matrix.name] + _row(0, 0, *entropy, found.zeros, 1)

    def shapes(self) -> list[MatrixShape]:
        """The shapes of all registered matrices, in order."""
        found = [_shape(row) for row in self.rows.values()]
        return [MatrixShape(*shape, found.count(shape)) for shape in sorted(set(found))]

    def totals(self) -> Tensor:
        """The four sums of each shape: (shapes, 4) float64."""
        numbers = {shape[:2]: number for number, shape in enumerate(self.shapes())}
        totals = torch.zeros(len(numbers), 4, dtype=torch.float64, device="cpu")
        for row in self.rows.values():
            totals[numbers[_shape(row)]] += row[2:]
        return totals

    def begin_window(self) -> None:
        """Resets the sums; called between two steps."""
        self.rows.load({name: _row(*row[:2].tolist(), *NOTHING) for name, row in self.rows.items()})


def reported_shapes(numbers: Tensor) -> list[MatrixShape]:
    """The shapes whose rows, columns and counts are `numbers`, (3 · shapes,) int64."""
    return [MatrixShape(*row) for row in numbers.view(-1, 3).tolist()]


def reported_windows(stage: int, shapes: Sequence[MatrixShape], totals: Tensor) -> list[Window]:
    """The windows that a stage's ranks report as a window ends; `totals` are summed over them, (4 · shapes,)
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


PROBE, COMPUTE, BACKWARD = "probe", "compute", "backward"
SYNCHRONIZATION = ("metadata", "reduce_scatter", "all_gather")
"""The phases of observations that count here."""

FIRST_PROBE, REPETITIONS, MOST_PROBES = 2, 2, 6
"""The step of the first probe, how often a rank is probed, and how many ranks are."""


class StepTimes(NamedTuple):
    """Times of one rank in a step, in seconds: how long gradients were in flight, the same for a probe if the
    step had one, and the mean time of a micro-batch's backward pass, 0 outside pipelines."""

    communication: float
    backward: float
    has_probe: bool


NO_TIMES = StepTimes(0.0, 0.0, False)


def step_times(observations: Sequence[Observation]) -> StepTimes:
    """The times of a step. A bucket is in flight from the moment it is ready, so that compression counts;
    overlapping times of several buckets count once."""
    ready: dict[int, float] = {}
    ends: dict[int, float] = {}
    backward, has_probe = [], False
    for each in observations:
        if each.phase == COMPUTE:
            ready[each.bucket] = each.end
        elif each.phase == BACKWARD:
            backward.append(each.end - each.start)
        elif each.phase in (*SYNCHRONIZATION, PROBE):
            has_probe |= each.phase == PROBE
            ends[each.bucket] = max(each.end, ends.get(each.bucket, each.end))
            ready.setdefault(each.bucket, each.start)
    return StepTimes(
        _covered((ready[bucket], end) for bucket, end in ends.items()),
        sum(backward) / len(backward) if backward else 0.0,
        has_probe,
    )


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Total length of the union of the intervals, in seconds."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def mean_rank(shapes: Sequence[MatrixShape], rank: int, min_compression_rate: float) -> float:
    """The rank at which the matrices, if all of them were compressed, would be sent as as many numbers as
    they are at `rank`, where matrices that would not get smaller go uncompressed."""
    numbers = 0
    for rows, columns, matrices in shapes:
        effective = effective_rank((rows, columns), rank, min_compression_rate)
        numbers += matrices * (effective * (rows + columns) if effective else rows * columns)
    return numbers / sum(matrices * (rows + columns) for rows, columns, matrices in shapes)


def highest_rank(shapes: Sequence[MatrixShape], min_compression_rate: float) -> int:
    """The largest rank that makes the shape with the most coordinates smaller."""
    rows, columns, _ = max(shapes, key=lambda each: each.rows * each.columns * each.matrices)
    ranks = range(1, min(rows, columns) + 1)
    # The index of the first rank that saves nothing is the rank before it, because ranks begin with 1.
    return bisect_left(
        ranks, True, key=lambda rank: not effective_rank((rows, columns), rank, min_compression_rate)
    )


def probed_ranks(shapes: Sequence[MatrixShape], min_compression_rate: float) -> list[int]:
    """The ranks that are probed, ascending: the highest one and its halves."""
    highest = highest_rank(shapes, min_compression_rate) if shapes else 0
    return sorted({highest >> halvings for halvings in range(MOST_PROBES)} - {0})


def rank_of_step(step: int, shapes: Sequence[MatrixShape], min_compression_rate: float) -> int:
    """The compression rank that a step probes; 0 in most steps."""
    number = (step - FIRST_PROBE) // REPETITIONS
    if not 0 <= number < MOST_PROBES:
        return 0
    return dict(enumerate(probed_ranks(shapes, min_compression_rate))).get(number, 0)


class StageTimes:
    """Sums and counts of one rank's times: of the communication of uncompressed steps, of backward passes in
    the current window, and, by compression rank, of the communication of steps that probe."""

    def __init__(self) -> None:
        self.values = torch.zeros(2 + MOST_PROBES, 2, dtype=torch.float64, device="cpu")

    def with_step(self, step: int, times: StepTimes, *, uncompressed: bool) -> Tensor:
        """`values` with one more step added, (2 + probes, 2) float64."""
        values = self.values.clone()
        if times.has_probe:
            values[2 + (step - FIRST_PROBE) // REPETITIONS] += _one(times.communication)
        elif uncompressed and times.communication:
            values[0] += _one(times.communication)
        if times.backward:
            values[1] += _one(times.backward)
        return values

    def begin_window(self) -> None:
        self.values[1] = 0


def _one(seconds: float) -> Tensor:
    return torch.tensor([seconds, 1.0], dtype=torch.float64, device="cpu")


def time_model(shapes: Sequence[MatrixShape], values: Tensor, min_compression_rate: float) -> LineFit | None:
    """Fits the time model to the probes of a stage; `values` (see `StageTimes`) are summed over its ranks.

    A probe's time is the excess over an unprobed step. None if fewer than two compression ranks have times,
    or if the times do not grow with the rank.
    """
    ranks, uncompressed = probed_ranks(shapes, min_compression_rate), mean_of(values[0])
    points = [
        (mean_rank(shapes, rank, min_compression_rate), mean_of(row) - uncompressed)
        for rank, row in zip(ranks, values[2:], strict=False)
        if row[1]
    ]
    return growing_line([point for point in points if point[1] > 0])


def growing_line(points: Sequence[tuple[float, float]]) -> LineFit | None:
    """The line through (rank, seconds); None for fewer than two ranks or a slope that is not positive."""
    if len({rank for rank, _ in points}) < 2:
        return None
    line = fit_line(points)
    return line if line.slope > 0 else None


def largest_saving_rank(
    model: LineFit, shapes: Sequence[MatrixShape], uncompressed_s: float, min_compression_rate: float
) -> int:
    """The largest compression rank that takes less time than uncompressed gradients; 0 if there is none (eq.
    2)."""
    ranks = range(1, highest_rank(shapes, min_compression_rate) + 1)
    times = {rank: model.at(mean_rank(shapes, rank, min_compression_rate)) for rank in ranks}
    return max((rank for rank, seconds in times.items() if seconds < uncompressed_s), default=0)


def mean_of(row: Tensor) -> float:
    """A mean time, from a row of sum and count; 0 if the count is 0."""
    return float(row[0] / row[1]) if row[1] else 0.0
