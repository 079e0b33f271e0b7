"""Fits through figures of several cells, by seed: the exponent of a power, the error of a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from gradwire.codecs.arithmetic.line_fit import fit_line
from gradwire.harness.report.claims.effects import Number
from gradwire.harness.report.evaluation import MissingError, SeedFigure


def exponent(points: Iterable[tuple[float, Number]]) -> Number:
    """The exponent p of y ~ x^p, by least squares on logarithms; of figures by seed."""
    return _by_seed(points, _exponent)


def line_error(points: Iterable[tuple[float, Number]]) -> Number:
    """The mean relative error of the line through the points, by least squares; of figures by seed."""

    def error(found: list[tuple[float, float]]) -> float:
        try:
            return fit_line(found).error
        except ValueError as problem:
            raise MissingError(str(problem)) from None

    return _by_seed(points, error)


def _by_seed(
    points: Iterable[tuple[float, Number]], fit: Callable[[list[tuple[float, float]]], float]
) -> Number:
    """`fit` of the points of each seed that all figures among them have; of plain numbers a number."""
    found = list(points)
    figures = [y for _, y in found if isinstance(y, SeedFigure)]
    if not figures:
        return fit([(float(x), float(y)) for x, y in found])
    seeds = [seed for seed in figures[0].by_seed if all(seed in each.by_seed for each in figures)]
    if not seeds:
        raise MissingError("the figures have no seed in common")

    def at(y: Number, seed: int | None) -> float:
        return float(y.by_seed[seed]) if isinstance(y, SeedFigure) else float(y)

    by_seed = {seed: fit([(float(x), at(y, seed)) for x, y in found]) for seed in seeds}
    return SeedFigure(by_seed, figures[0].kind, tuple(cell for each in figures for cell in each.cells))


def _exponent(points: list[tuple[float, float]]) -> float:
    if len(points) < 2 or min(map(min, points)) <= 0:
        raise MissingError("an exponent takes two or more points of positive numbers")
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x, mean_y = (sum(axis) / len(logs) for axis in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    if not spread:
        raise MissingError("an exponent takes points at different places")
    return float(sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread)
