"""How long communication takes, by rank: what EDGC observes of it, and the linear model T(r) = η·r + c (EDGC
§IV-D1, eq. 2 and 3).

In the warm-up some steps probe a rank: they send gradients compressed to it, too, whose mean nobody uses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.codecs.arithmetic.line_fit import LineFit, fit_line
from gradwire.codecs.edgc.samples import Shape
from gradwire.codecs.interface import Observation
from gradwire.codecs.powersgd import effective_rank

PROBE, COMPUTE, BACKWARD = "probe", "compute", "backward"
SYNCHRONIZATION = ("metadata", "reduce_scatter", "all_gather")
"""The phases of observations that count here."""

FIRST_PROBE, REPETITIONS, MOST_PROBES = 2, 2, 6
"""The step of the first probe, how often a rank is probed, and how many ranks are."""


class StepTimes(NamedTuple):
    """What one rank's clock says of a step, in seconds: how long gradients were under way, with a probe
    if it had one, and the mean time of a micro-batch backward, 0 outside pipelines."""

    communication: float
    backward: float
    has_probe: bool


NO_TIMES = StepTimes(0.0, 0.0, False)


def step_times(observations: Sequence[Observation]) -> StepTimes:
    """The times of a step. A bucket is under way from when it is ready, so that compressing counts; of
    buckets that are under way together the time counts once."""
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
    """The seconds that at least one of the intervals has."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def mean_rank(shapes: Sequence[Shape], rank: int, min_compression_rate: float) -> float:
    """The rank at which all matrices would be sent as as many numbers as they are at `rank`, where those that
    would not get smaller go uncompressed."""
    numbers = 0
    for rows, columns, matrices in shapes:
        effective = effective_rank((rows, columns), rank, min_compression_rate)
        numbers += matrices * (effective * (rows + columns) if effective else rows * columns)
    return numbers / sum(matrices * (rows + columns) for rows, columns, matrices in shapes)


def highest_rank(shapes: Sequence[Shape], min_compression_rate: float) -> int:
    """The largest rank that makes the shape with the most coordinates smaller."""
    rows, columns, _ = max(shapes, key=lambda each: each.rows * each.columns * each.matrices)
    ranks = range(1, min(rows, columns) + 1)
    # The index of the first rank that saves nothing is the rank before it, because ranks begin with 1.
    return bisect_left(
        ranks, True, key=lambda rank: not effective_rank((rows, columns), rank, min_compression_rate)
    )


def probed_ranks(shapes: Sequence[Shape], min_compression_rate: float) -> list[int]:
    """The ranks that are probed, ascending: the highest one and its halves."""
    highest = highest_rank(shapes, min_compression_rate) if shapes else 0
    return sorted({highest >> halvings for halvings in range(MOST_PROBES)} - {0})


def rank_of_step(step: int, shapes: Sequence[Shape], min_compression_rate: float) -> int:
    """The rank that a step probes; 0 in most."""
    number = (step - FIRST_PROBE) // REPETITIONS
    if not 0 <= number < MOST_PROBES:
        return 0
    return dict(enumerate(probed_ranks(shapes, min_compression_rate))).get(number, 0)


class Times:
    """Sums and numbers of one rank's times: of the communication of uncompressed steps, of passes backward in
    the window under way, and of the communication of steps that probe, by rank."""

    def __init__(self) -> None:
        self.values = torch.zeros(2 + MOST_PROBES, 2, dtype=torch.float64, device="cpu")

    def with_step(self, step: int, times: StepTimes, *, uncompressed: bool) -> Tensor:
        """`values` with those of one more step, (2 + probes, 2) float64."""
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


def model_told(shapes: Sequence[Shape], values: Tensor, min_compression_rate: float) -> LineFit | None:
    """The model by the probes of a stage, whose `values` (see `Times`) are summed over its ranks: what a step
    takes longer for a probe is the probe's time. None if fewer than two ranks have times, or times do not
    grow with them."""
    ranks, uncompressed = probed_ranks(shapes, min_compression_rate), mean_of(values[0])
    points = [
        (mean_rank(shapes, rank, min_compression_rate), mean_of(row) - uncompressed)
        for rank, row in zip(ranks, values[2:], strict=False)
        if row[1]
    ]
    return growing_line([point for point in points if point[1] > 0])


def growing_line(points: Sequence[tuple[float, float]]) -> LineFit | None:
    """The line through (rank, seconds); None for fewer than two ranks, or one that does not grow."""
    if len({rank for rank, _ in points}) < 2:
        return None
    line = fit_line(points)
    return line if line.slope > 0 else None


def largest_saving_rank(
    model: LineFit, shapes: Sequence[Shape], uncompressed_s: float, min_compression_rate: float
) -> int:
    """The largest rank that takes less time than uncompressed gradients; 0 if there is none (eq. 2)."""
    ranks = range(1, highest_rank(shapes, min_compression_rate) + 1)
    times = {rank: model.at(mean_rank(shapes, rank, min_compression_rate)) for rank in ranks}
    return max((rank for rank, seconds in times.items() if seconds < uncompressed_s), default=0)


def mean_of(row: Tensor) -> float:
    """The mean of times given as their sum and their number; 0 for none."""
    return float(row[0] / row[1]) if row[1] else 0.0
