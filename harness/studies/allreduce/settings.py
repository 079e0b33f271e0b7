"""The settings of `task=allreduce`."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.harness.runtime.fields import at_least
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import WorldConfig


@dataclass(frozen=True)
class AllReduceConfig:
    """One all-reduce, measured and modelled."""

    coordinates: int = at_least(1, 1 << 23, 1 << 33)  # of each worker's gradient, one bucket
    repeats: int = at_least(1, 10, 100_000)  # rounds that count, after some that do not


@dataclass(frozen=True, kw_only=True)
class AllReduceTask(WorldConfig):
    """One all-reduce between real workers, and on the simulated clock."""

    allreduce: AllReduceConfig
    tracking: TrackingConfig
