"""Figures by seed, and baselines, as used by tables, plots, sweeps' pages and claims."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import TYPE_CHECKING, Protocol, TypeVar

from gradwire.harness.report.configs import EXACT, Settings, covered, strategy
from gradwire.harness.report.frame import Value
from gradwire.harness.timing.measure.accuracy import (
    Evaluation,
    Mode,
    TimeToAccuracy,
    median_with_misses,
    time_to_accuracy,
)
from gradwire.harness.timing.measure.metric import PERCENT, PLAIN, FigureFormat, Kind, Spread
from gradwire.harness.timing.measure.paired import mean_and_margin

if TYPE_CHECKING:
    from gradwire.harness.report.sweep_record import CellRecord

BASELINE = "bf16"
"""The codec that sets targets."""

CLOCK = "train_time_s"
"""The metric that says when an evaluation was."""

POINTS = "points"
"""The unit of a difference of percentages."""


class HasSettings(Protocol):
    """A group of runs, or of a sweep's cells, that differ only in the seed."""

    @property
    def settings(self) -> Settings: ...  # by dotted key, without the seed


Candidate = TypeVar("Candidate", bound=HasSettings)


class ClaimError(ValueError):
    """Raised for a claim about something that does not exist or cannot be computed; the text is one line."""


class MissingError(Exception):
    """Raised for a figure that this record lacks, but a record of another size may have."""


class UnfinishedError(Exception):
    """Raised for a figure of a cell that has not run."""


@dataclass(frozen=True, eq=False)
class SeedFigure:
    """One value for each seed.

    Arithmetic is by seed, with the other figure's value of the same seed or with a number; comparisons and
    `float` take the median, of which NaN counts as infinite.
    """

    by_seed: Mapping[int | None, float]
    kind: Kind | None = None
    cells: tuple[CellRecord, ...] = ()
    timed: bool = False  # whether it was read off a clock
    baseline: tuple[CellRecord, ...] = ()  # the cells that set its target
    shown: FigureFormat = PLAIN  # its unit in words, and the factor to it

    @property
    def median(self) -> float:
        return median(math.inf if math.isnan(value) else value for value in self.by_seed.values())

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def interval(self) -> tuple[float, float]:
        """The mean over the seeds, and half of its 95 % interval; MissingError for fewer than two seeds."""
        try:
            return mean_and_margin(list(self.by_seed.values()))
        except ValueError as error:
            raise MissingError(str(error)) from None

    @property
    def margin(self) -> float:
        return self.interval[1]

    @property
    def low(self) -> float:
        return min(self.by_seed.values())

    @property
    def high(self) -> float:
        return max(self.by_seed.values())

    def paired(self, other: SeedFigure) -> dict[int | None, tuple[float, float]]:
        """Both values for each seed that both figures have."""
        shared = [seed for seed in self.by_seed if seed in other.by_seed]
        if not shared:
            raise MissingError("the figures have no seed in common")
        return {seed: (self.by_seed[seed], other.by_seed[seed]) for seed in shared}

    def combined(
        self,
        other: SeedFigure | float,
        operation: Callable[[float, float], float],
        shown: FigureFormat = PLAIN,
    ) -> SeedFigure:
        """The operation seed by seed: with the same seed's value, or with a number; `shown` has the unit of
        what comes of it."""
        if not isinstance(other, SeedFigure):
            found = {seed: operation(value, other) for seed, value in self.by_seed.items()}
            return SeedFigure(found, None, self.cells, shown=shown)
        pairs = self.paired(other)
        found = {seed: operation(own, their) for seed, (own, their) in pairs.items()}
        return SeedFigure(found, None, (*self.cells, *other.cells), shown=shown)

    def _of_sum(self, other: SeedFigure | float) -> FigureFormat:
        """The unit of a sum or difference with another figure: none where they are of several units."""
        return self.shown if not isinstance(other, SeedFigure) or other.shown == self.shown else PLAIN

    def _of_difference(self, other: SeedFigure | float) -> FigureFormat:
        """The unit of a difference: points, of percentages; less 0 a figure is what it was."""
        shown = self._of_sum(other)
        return replace(shown, unit=POINTS) if shown.unit == PERCENT.unit and other != 0 else shown

    def _of_multiple(self, other: SeedFigure | float) -> FigureFormat:
        """The unit of a multiple: none of a product or quotient of figures."""
        return PLAIN if isinstance(other, SeedFigure) else self.shown

    def __add__(self, other: SeedFigure | float) -> SeedFigure:
        return self.combined(other, operator.add, self._of_sum(other))

    def __radd__(self, other: float) -> SeedFigure:
        return self + other

    def __sub__(self, other: SeedFigure | float) -> SeedFigure:
        return self.combined(other, operator.sub, self._of_difference(other))

    def __rsub__(self, other: float) -> SeedFigure:
        return self.combined(other, lambda own, number: number - own, self._of_difference(other))

    def __mul__(self, other: SeedFigure | float) -> SeedFigure:
        return self.combined(other, operator.mul, self._of_multiple(other))

    def __rmul__(self, other: float) -> SeedFigure:
        return self * other

    def __truediv__(self, other: SeedFigure | float) -> SeedFigure:
        return self.combined(other, _quotient, self._of_multiple(other))

    def __rtruediv__(self, other: float) -> SeedFigure:
        return self.combined(other, lambda own, number: _quotient(number, own))

    def __float__(self) -> float:
        return float(self.median)

    def __abs__(self) -> float:
        return abs(self.median)

    def __lt__(self, other: SeedFigure | float) -> bool:
        return self.median < float(other)

    def __le__(self, other: SeedFigure | float) -> bool:
        return self.median <= float(other)

    def __gt__(self, other: SeedFigure | float) -> bool:
        return self.median > float(other)

    def __ge__(self, other: SeedFigure | float) -> bool:
        return self.median >= float(other)


def _quotient(above: float, below: float) -> float:
    """A quotient; division by zero gives infinity, like a missed target."""
    if below:
        return above / below
    return math.copysign(math.inf, above) if above else math.nan


def worst(mode: Mode) -> float:
    """The final metric of a seed that failed or diverged."""
    return math.inf if mode == "min" else -math.inf


def spread(values: Iterable[float], mode: Mode = "min") -> Spread:
    """Median and range, NaN counting as the worst value."""
    return Spread.of([worst(mode) if math.isnan(value) else value for value in values])


@dataclass(frozen=True)
class Curves:
    """The evaluations, in order of steps, of runs that differ in the seed alone; one that failed has none."""

    by_seed: Mapping[int | None, Sequence[Evaluation]]
    mode: Mode

    @classmethod
    def of(cls, values: Iterable[Value], metric: str, runs: Mapping[str, int | None], mode: Mode) -> Curves:
        """The curves of a metric from lines of the frame; `runs` has the seeds of those that count, by their
        names there."""
        clocks: dict[str, dict[int, float]] = {run: {} for run in runs}
        found: dict[str, dict[int, float]] = {run: {} for run in runs}
        for value in values:
            if value.run in runs and value.step is not None and value.metric in (CLOCK, metric):
                kept = clocks if value.metric == CLOCK else found
                kept[value.run][value.step] = value.value
        curves = {
            seed: [
                Evaluation(step, clocks[run][step], value)
                for step, value in sorted(found[run].items())
                if step in clocks[run]
            ]
            for run, seed in runs.items()
        }
        return cls(curves, mode)

    @cached_property
    def median(self) -> list[Evaluation]:
        """Medians over the seeds at the steps all of them evaluated, as long as they are finite."""
        by_step = [{point.step: point for point in curve} for curve in self.by_seed.values() if curve]
        shared = sorted(set.intersection(*(set(points) for points in by_step))) if by_step else []
        curve = []
        for step in shared:
            value = median_with_misses([points[step].metric for points in by_step], self.mode)
            if math.isfinite(value):
                time = median(points[step].train_time_s for points in by_step)
                curve.append(Evaluation(step, time, value))
        return curve

    def times_to(self, target: float) -> dict[int | None, TimeToAccuracy]:
        """Each seed's time to a target; one that failed never gets there."""
        return {seed: time_to_accuracy(curve, target, self.mode) for seed, curve in self.by_seed.items()}


def sets_targets(group: HasSettings) -> bool:
    """Returns whether a group is a baseline: BF16, or sharded training without any compression."""
    return group.settings.get("codec.name") == BASELINE or strategy(group.settings) == EXACT


def same_but_codec(first: HasSettings, second: HasSettings) -> bool:
    """Returns whether two groups differ only in their codec."""

    def others(group: HasSettings) -> Settings:
        return {key: value for key, value in group.settings.items() if not covered(key, ("codec",))}

    return others(first) == others(second)


def same_task(first: HasSettings, second: HasSettings) -> bool:
    """Returns whether two groups train the same model on the same data."""

    def task(group: HasSettings) -> Settings:
        return {key: value for key, value in group.settings.items() if covered(key, ("model", "dataset"))}

    return task(first) == task(second)


def baseline_among(group: HasSettings, candidates: Sequence[Candidate]) -> Candidate | None:
    """The candidate that sets a group's targets: the first one that differs in the codec alone, else the
    first one with the same model and data."""
    for alike in (same_but_codec, same_task):
        for candidate in candidates:
            if alike(group, candidate):
                return candidate
    return None
