"""All statistics of one file of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from gradwire.codecs.interface import Layout
from gradwire.harness.files.finite_json import dumps
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.studies.distribution import RateDistortionCurve, exact_mean
from gradwire.harness.studies.statistics.measures import (
    Entropy,
    GroupNorms,
    Workers,
    entropy,
    group_norms,
    workers,
)
from gradwire.harness.studies.statistics.smoothing import Smoothing, smoothing
from gradwire.harness.studies.statistics.widths import Widths, widths


@dataclass(frozen=True)
class Statistics:
    """The statistics of (workers, coordinates). `bound` holds the rate–distortion bound on vNMSE at each
    budget, None for a mean gradient of zero."""

    workers: Workers
    norms: list[GroupNorms]
    widths: Widths
    smoothing: Smoothing
    entropy: Entropy
    bound: list[float] | None

    def to_json(self, about: dict[str, object]) -> str:
        """Valid JSON that begins with `about`; a distribution is a list of its quantiles at 0, 1, …, 100
        %.
        """
        return dumps({**about, **asdict(self)}, indent=1) + "\n"


def collect(values: Tensor, layouts: Sequence[Layout], budgets: Sequence[float], seed: int) -> Statistics:
    """Computes the statistics of finite gradients, bucket by bucket as in `layouts`; `seed` determines the
    shuffle.

    In addition to `values` this needs memory for a few float64 copies of one worker's gradient.
    """
    buckets = [layout.numel for layout in layouts]
    parts: dict[str, Callable[[], Any]] = {
        "workers": lambda: workers(values, buckets),
        "norms": lambda: group_norms(values, buckets, seed),
        "widths": lambda: widths(values, buckets, budgets),
        "smoothing": lambda: smoothing(values),
        "entropy": lambda: entropy(values, layouts),
        "bound": lambda: _bounds(values, budgets),
    }
    names = tracked(list(parts), "statistics", "part", str)
    return Statistics(**{name: parts[name]() for name in names})


def _bounds(values: Tensor, budgets: Sequence[float]) -> list[float] | None:
    curve = RateDistortionCurve.of(exact_mean(values))
    return [curve.bound(bits) for bits in budgets] if len(curve.variances) else None
