"""A least-squares line through points, e.g. of time against the rank of compressed gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LineFit:
    """y ≈ `slope` · x + `constant`; `error` is the mean of |line − y| / |y| over the points (MAPE)."""

    slope: float
    constant: float
    error: float

    def at(self, x: float) -> float:
        return self.slope * x + self.constant


def fit_line(points: Sequence[tuple[float, float]]) -> LineFit:
    """The line through (x, y) points. Raises ValueError for fewer than two distinct x, or if a y is 0."""
    if len({x for x, _ in points}) < 2:
        raise ValueError("a line needs points with at least two different x")
    if not all(y for _, y in points):
        raise ValueError("a relative error needs values other than 0")
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    line = LineFit(slope, mean_y - slope * mean_x, 0.0)
    return replace(line, error=sum(abs(line.at(x) / y - 1) for x, y in points) / len(points))
