"""The settings of a sweep itself, `sweep.*`: no run reads them, and no run's id depends on them."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.fields import above

LONGEST_MINUTES = 525_600


@dataclass(frozen=True)
class SweepConfig:
    """How a sweep is carried out and what it reproduces."""

    # with real text for small sizes, a file or sub-folder for each data set (conf/local_data.yaml);
    # null: the embedded text
    data: str | None = None
    minutes: int | float | None = above(0, None, LONGEST_MINUTES)  # of running cells; then it can be resumed
    plan: bool = False  # print cells and predicted minutes, start nothing; task=plan sets it
    paper: str | None = None  # the item that a sweep's file reproduces, e.g. DynamiQ Table 4


@dataclass(frozen=True, kw_only=True)
class Root(RecordedConfig):
    """The keys of every root: those of every run, and those of sweeps."""

    sweep: SweepConfig = field(default_factory=SweepConfig)
