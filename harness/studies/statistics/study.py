"""`task=statistics`: its settings and its record, `statistics.json`, with figures by dotted key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.codecs.fields import NUMBER, at_least, list_of
from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.studies.replay.study import LARGEST_BUCKET_MB, SMALLEST_BUCKET_MB
from gradwire.harness.studies.study import Study
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import LONGEST_RUN


@dataclass(frozen=True)
class StatisticsConfig:
    """The settings of statistics of saved gradients."""

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
    """The description of saved gradients."""

    gradients: (
        str  # .npz or .safetensors with an array `gradients` (workers, coordinates), or a run directory
    )
    statistics: StatisticsConfig
    tracking: TrackingConfig


SAMPLED = (
    ("by_rate", "rate", "β", {"rate_correlation": "correlation", "rate_error": "mean_error"}),
    (
        *("by_alpha", "alpha", "α"),
        {"relative_change": "largest_change", "mean_relative_change": "mean_change"},
    ),
    ("by_window", "window", "w", {"window_correlation": "correlation", "window_mse": "mse"}),
)
"""Tables of `sampling`: the key in which rows differ, its symbol in cases, and metrics by the keys of a
row.
"""


@dataclass(frozen=True)
class StatisticsRecord(StudyRecord):
    """Figures of one file of gradients or weights, or of a run's steps; distributions are only in the
    file.
    """

    file: ClassVar[str] = "statistics.json"

    gradients: str  # the file or the run directory
    about: dict[str, Any]  # what the file says of itself
    weights: dict[str, Any] | None = None  # of weights alone
    evolution: dict[str, Any] | None = None  # of a run alone

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """The figures of the record. Those of sampling have a case for each share of coordinates, share of
        steps and window: `β=0.25`, `α=0.1`."""
        from gradwire.harness.report.configs import flatten

        yield from super().figures(content)
        parts = {key: part for key, part in content.items() if isinstance(part, dict) and key != "about"}
        for key, value in flatten(parts).items():
            yield from Figure(key).values(value, content)
        for side in ("before", "after"):
            quantiles = ((content.get("smoothing") or {}).get(side) or {}).get("group_kurtosis")
            if quantiles:
                yield from Figure(f"smoothing.{side}.median_kurtosis").values(quantiles[50], content)
        for norms in content.get("norms", ()):
            case = f"{norms['size']} {'shuffled' if norms['shuffled'] else 'as they are'}"
            for key in ("below_10th", "below_100th"):
                yield from Figure(f"norms.{key}").values(norms[key], content, case)
        for part, axis, sign, metrics in SAMPLED:
            for row in (content.get("sampling") or {}).get(part, ()):
                for metric, key in metrics.items():
                    case = f"{sign}={row[axis]:g}"
                    yield from Figure(f"sampling.{metric}").values(row[key], content, case)


STUDY = Study(
    StatisticsTask,
    StatisticsRecord,
    "gradwire.harness.studies.statistics.task",
    "gradwire.harness.studies.statistics.compare",
)
