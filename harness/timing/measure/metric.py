"""A metric: the meaning of a figure in a record, how it is combined over ranks and seeds, and its format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

Place = Literal["step", "evaluation", "summary"]
"""The file that holds a metric: `steps.jsonl`, `evals.jsonl`, or a run's `summary.json` or a study's
record.
"""

Ranks = Literal["mean", "max", "min", "sum", "slowest"]
"""The combination of all ranks' figures for a step; `slowest` takes the figure of the rank with the
longest step."""

Better = Literal["lower", "higher"]

Kind = Literal["measured", "emulated", "modelled"]
"""Real processes and links; real processes on artificially slowed links, or that share a device and have no
links; the simulated clock."""

Section = Literal[
    "result",
    "step",
    "machine",
    "overlap",
    "bytes",
    "activity",
    "operation",
    "gradients",
    "evolution",
    "weights",
]
"""The table that a metric appears in: of a comparison of runs, of the benchmark, or of gradient
statistics.
"""

RUN_SECTIONS: tuple[Section, ...] = ("result", "step", "machine", "overlap", "bytes", "activity")


def quotient(value: float | None, by: float | None) -> float | None:
    """value / by; None if either is unknown, or if `by` is 0, e.g. a time below the resolution of its
    clock.
    """
    return None if value is None or not by else value / by


@dataclass(frozen=True)
class Spread:
    """One figure over seeds, rounds or blocks."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class FigureFormat:
    """The format of a figure in tables and plots: its unit there, the factor to that unit, and its
    significant digits.

    With `decimals` it has this many digits after the point instead.
    """

    unit: str = ""
    factor: float = 1.0
    digits: int = 4
    decimals: int | None = None


PLAIN, SHORT, PERCENT = FigureFormat(), FigureFormat(digits=3), FigureFormat("%", 100, 3)
MILLISECONDS, MEGABYTES = FigureFormat("ms", 1e3, 3), FigureFormat("", 1e-6)
FULL_MILLISECONDS, FULL_PERCENT, NATS = FigureFormat("ms", 1e3), FigureFormat("%", 100), FigureFormat("nats")

UNIT_WORDS = {"1/s": "", "bit": "bits", "B": "bytes"}
"""Units that a metric's name has already, or that are written otherwise beside a figure."""


@dataclass(frozen=True)
class Metric:
    """One metric; `unit` is the unit in the record, empty if there is none."""

    key: str  # in rows, summaries and the results frame
    label: str  # in tables and plots; wandb shows the key
    unit: str
    meaning: str
    places: tuple[Place, ...] = ()
    ranks: Ranks | None = None  # None: all ranks have the same value, or it is the run's
    better: Better | None = None
    timed: bool = False  # read off the training clock: modelled where that is simulated
    spans: bool = False  # from `rank_figures`: null where spans are not recorded
    observed: bool = False  # of the machine during a step; rows leave it out where it is not known
    mean: bool = False  # the summary has the mean over steps, those of measured errors left out
    peers: bool = False  # the summary has it where there are several workers
    section: Section | None = None
    plot: Literal["training", "parts"] | None = None  # a panel over steps; a part of the stacked step
    shown: FigureFormat = PLAIN
    in_words: str = ""  # in sentences, where that is not the label

    @property
    def heading(self) -> str:
        """The heading of its column, including the unit."""
        return f"{self.label} [{self.shown.unit}]" if self.shown.unit else self.label

    @property
    def words(self) -> str:
        """Its name within a sentence."""
        return self.in_words or self.label

    @property
    def alone(self) -> FigureFormat:
        """The format of its figures where no heading has their unit."""
        unit = self.shown.unit or (self.unit if self.shown.factor == 1.0 else "MB")
        return replace(self.shown, unit=UNIT_WORDS.get(unit, unit))

    def kind(self, run: Kind) -> Kind:
        """The kind of its value in a run of kind `run`: losses, errors and bytes are measured whatever the
        clock."""
        return run if self.timed else "measured"


STEP: tuple[Place, ...] = ("step",)
EVALUATION: tuple[Place, ...] = ("evaluation",)
SUMMARY: tuple[Place, ...] = ("summary",)
