"""Figures by seed, and baselines, as used by tables, plots, sweeps' pages and claims."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Protocol, TypeVar

from gradwire.harness.report.configs import EXACT, Settings, covered, strategy
from gradwire.harness.timing.measure.accuracy import Evaluation, Mode, TimeToAccuracy, time_to_accuracy
from gradwire.harness.timing.measure.metric import Kind, Spread
from gradwire.harness.timing.measure.paired import mean_and_margin

if TYPE_CHECKING:
    from gradwire.harness.report.sweep_record import CellRecord

BASELINE = "bf16"
"""The codec that sets targets."""


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

    def combined(self, other: SeedFigure | float, operation: Callable[[float, float], float]) -> SeedFigure:
        """The operation seed by seed: with the same seed's value, or with a number."""
        if not isinstance(other, SeedFigure):
            return SeedFigure({seed: operation(value, other) for seed, value in self.by_seed.items()})
        pairs = self.paired(other)
        return SeedFigure({seed: operation(own, their) for seed, (own, their) in pairs.items()})

    def __add__(self, other: SeedFigure | float) -> SeedFigure:
        return self.combined(other, operator.add)

    def __radd__(self, other: float) -> SeedFigure:
        return self + other

    def __sub__(self, other: SeedFigure | float) -> SeedFigure:
        return self.combined(other, operator.sub)

    def __rsub__(self, other: float) -> SeedFigure:
        return self.combined(other, lambda own, number: number - own)

    def __mul__(self, other: SeedFigure | float) -> SeedFigure:
        return self.combined(other, operator.mul)

    def __rmul__(self, other: float) -> SeedFigure:
        return self * other

    def __truediv__(self, other: SeedFigure | float) -> SeedFigure:
        return self.combined(other, _quotient)

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


def times_to(
    target: float, curves: Mapping[int | None, Iterable[Evaluation]], mode: Mode
) -> dict[int | None, TimeToAccuracy]:
    """Each seed's time to a target, from its evaluations in order; a seed without any never reaches it."""
    return {seed: time_to_accuracy(curve, target, mode) for seed, curve in curves.items()}


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
