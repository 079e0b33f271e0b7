"""`statistics.json`: single figures by dotted key; distributions and tables stay in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from gradwire.harness.record.figures import Figure, FigureValue, StudyRecord
from gradwire.harness.report.configs import flatten

SAMPLED = (
    ("by_rate", "rate", "β", {"rate_correlation": "correlation", "rate_error": "mean_error"}),
    (
        *("by_alpha", "alpha", "α"),
        {"relative_change": "largest_change", "mean_relative_change": "mean_change"},
    ),
    ("by_window", "window", "w", {"window_correlation": "correlation", "window_mse": "mse"}),
)
"""Tables of `sampling`: what tells their rows apart, its sign in cases, and metrics by keys of a row."""


class StatisticsRecord(StudyRecord):
    """Figures of one file of gradients or weights, or of a run's steps."""

    file: ClassVar[str] = "statistics.json"

    @classmethod
    def figures(cls, content: Mapping[str, Any]) -> Iterator[FigureValue]:
        """Sampling has a case for each share of coordinates, share of steps and window: `β=0.25`, `α=0.1`."""
        parts = {key: part for key, part in content.items() if isinstance(part, dict) and key != "about"}
        for key, value in flatten(parts).items():
            yield from Figure(key).values(value, content)
        for norms in content.get("norms", ()):
            case = f"{norms['size']} {'shuffled' if norms['shuffled'] else 'as they are'}"
            for key in ("below_10th", "below_100th"):
                yield from Figure(f"norms.{key}").values(norms[key], content, case)
        for table, axis, sign, metrics in SAMPLED:
            for row in (content.get("sampling") or {}).get(table, ()):
                for metric, key in metrics.items():
                    case = f"{sign}={row[axis]:g}"
                    yield from Figure(f"sampling.{metric}").values(row[key], content, case)


RECORD = StatisticsRecord
