"""The settings of `task=statistics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gradwire.codecs.fields import NUMBER
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.runtime.fields import at_least, list_of
from gradwire.harness.studies.replay.settings import LARGEST_BUCKET_MB, SMALLEST_BUCKET_MB
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import LONGEST_RUN


@dataclass(frozen=True)
class StatisticsConfig:
    """What saved gradients look like."""

    # budgets of codec=dynamiq whose widths are shown, and rates of the rate-distortion bound
    bits: list[Any] = list_of([3, 4, 5, 6], fewest=1, kinds=(NUMBER,), low=0, high=64)
    # of a run's saved steps: ranks as shares of a matrix's smaller side, 16, 32 and 64 of 1024
    rank_shares: list[Any] = list_of([1 / 64, 1 / 32, 1 / 16], fewest=1, kinds=(NUMBER,), low=0, high=1)
    # of a run's entropies by step: shares of the steps that are sampled, in windows of so many steps
    alphas: list[Any] = list_of([0.05, 0.1, 0.25, 0.5], fewest=1, kinds=(NUMBER,), low=1e-6, high=1)
    window: int = at_least(1, 1000, LONGEST_RUN)
    # of a run's entropies by step: windows whose means are compared with single steps
    windows: list[int] = list_of([1, 100, 500, 1000, 2500], fewest=1, low=1, high=LONGEST_RUN)
    # MiB of float32 synchronized together, where the file does not say which buckets there are
    bucket_mb: int | float = at_least(SMALLEST_BUCKET_MB, 25.0, LARGEST_BUCKET_MB)


@dataclass(frozen=True, kw_only=True)
class StatisticsTask(RecordedConfig):
    """What saved gradients look like."""

    gradients: (
        str  # .npz or .safetensors with an array `gradients` (workers, coordinates), or a run directory
    )
    statistics: StatisticsConfig
    tracking: TrackingConfig
