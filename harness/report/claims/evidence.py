"""Evidence of claims: figures of sweeps' records and of the papers, and relations between them.

Conditions are always evaluated completely, so that a verdict shows all figures, not only the first decisive
one.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradwire.codecs.arithmetic.line_fit import fit_line
from gradwire.harness.report.claims import figures
from gradwire.harness.report.claims.figures import CASE, TASK, Known
from gradwire.harness.report.configs import SEED
from gradwire.harness.report.evaluation import ClaimError, MissingError, SeedFigure
from gradwire.harness.report.reference import Reference
from gradwire.harness.report.sweep_record import SweepRecord

Number = SeedFigure | float


@dataclass(frozen=True)
class Used:
    """One figure that a predicate has asked for, in the words of its call."""

    text: str
    figure: Number  # a number is printed in the paper


@dataclass
class Evidence:
    """The figures available to one predicate; `used` records those that it reads.

    `evidence.vnmse(model="gemma1b", codec="dynamiq")` is a metric of the cells with these values of axes,
    `sweep=` names another sweep than the claim's first one, `case=` a part of the run.
    """

    records: Mapping[str, SweepRecord]  # the first one is meant where no sweep is named
    reference: Reference
    known: Known = field(default_factory=dict)  # what sweeps can be asked for at any size
    fixed: Mapping[str, Any] = field(default_factory=dict)  # values of axes that every figure has
    used: list[Used] = field(default_factory=list)

    def where(self, **cells: Any) -> Evidence:
        """Evidence restricted to these values of axes, which then need not be repeated."""
        return replace(self, fixed={**self.fixed, **cells})

    def each(self, *axes: str, **values: Iterable[Any]) -> Iterator[Evidence]:
        """The evidence for each value in turn, of the given values or of all that an axis has."""
        choices = {**{axis: self.axis(axis) for axis in axes}, **values}
        for chosen in itertools.product(*choices.values()):
            yield self.where(**dict(zip(choices, chosen, strict=True)))

    def __getattr__(self, metric: str) -> Callable[..., SeedFigure]:
        if metric.startswith("_"):
            raise AttributeError(metric)
        return lambda **cells: self._take(metric, [], cells, figures.one_figure, metric)

    def figure(self, metric: str, **cells: Any) -> SeedFigure:
        """A metric whose name contains dots."""
        return self._take("figure", [metric], cells, figures.one_figure, metric)

    def last(self, metric: str, **cells: Any) -> SeedFigure:
        """The metric at the last evaluation or measured step."""
        return self._take("last", [metric], cells, figures.last, metric)

    def during(self, metric: str, begin: float, end: float, **cells: Any) -> SeedFigure:
        """The mean of a metric over a part of the run, as shares of its steps: 0 to 0.25 is the first
        quarter."""
        return self._take("during", [metric, begin, end], cells, figures.during, metric, begin, end)

    def tta(self, factor: float, **cells: Any) -> SeedFigure:
        """Seconds to `factor` times the median final metric of BF16; infinite for a seed that misses it."""
        return self._take("tta", [factor], cells, figures.tta, factor)

    def steps_to(self, factor: float, **cells: Any) -> SeedFigure:
        """Steps to that target, by the record's numbers of evaluations; infinite for a seed that misses
        it."""
        return self._take("steps_to", [factor], cells, figures.steps_to, factor)

    def stays(self, factor: float, **cells: Any) -> SeedFigure:
        """1 for a seed that reaches that target and stays beyond it, else 0."""
        return self._take("stays", [factor], cells, figures.stays, factor)

    def paper(self, item: str, /, **columns: str) -> float:
        """The figure that the paper prints in a table such as `dynamiq/table4`."""
        found = self.reference.number(item, **columns)
        place = item.rpartition("/")[2].replace("figures_text", "text")
        place = re.sub(r"^(table|figure)(\d+)$", lambda match: f"{match[1].title()} {match[2]}", place)
        self.used.append(Used(", ".join([place, *map(str, columns.values())]), found))
        return found

    def axis(self, *keys: str, **cells: Any) -> tuple[Any, ...]:
        """The values of an axis in the cells, in ascending order if they are numbers; for several axes their
        combinations."""
        record, selection = self._select(cells)
        found = [figures.axis_named(record, key) for key in keys]
        values = figures.values_of_axes(record, found, selection)
        return tuple(values) if len(found) > 1 else tuple(value for (value,) in values)

    def _take(
        self, name: str, shown: list[Any], cells: dict[str, Any], read: Callable[..., SeedFigure], *asked: Any
    ) -> SeedFigure:
        named = {**self.fixed, **cells}
        words = [*map(_word, shown), *(f"{key}={_word(value)}" for key, value in named.items())]
        record, selection = self._select(cells)
        found = read(record, *asked, selection)
        self.used.append(Used(f"{name}({', '.join(words)})", found))
        return found

    def _select(self, cells: Mapping[str, Any]) -> tuple[SweepRecord, dict[str, Any]]:
        selection = {**self.fixed, **cells}
        sweep = str(selection.pop("sweep", next(iter(self.records), None)))
        if sweep not in self.records:
            raise ClaimError(f"a figure is of the sweep {sweep}, which the claim does not name")
        if sweep in self.known:
            for key, value in selection.items():
                if key not in (CASE, TASK, SEED):
                    self.known[sweep].check_value(sweep, key, value)
        return self.records[sweep], selection


def _word(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def every(*conditions: bool | Iterable[bool]) -> bool:
    """Returns whether all conditions hold, given one by one or by a generator."""
    return all(_listed(conditions, "every"))


def near(found: Number, target: Number, margin: float) -> bool:
    """Returns whether a figure differs from its target by at most `margin`."""
    return abs(found - target) <= margin


def within(found: Number, target: Number, share: float) -> bool:
    """Returns whether a figure differs from its target by at most this share of the target."""
    return near(found / target, 1, share)


def sooner(evidence: Evidence, factor: float, first: str, second: str) -> bool:
    """Returns whether the first codec takes less time than the second to `factor` times the baseline's final
    metric, with every seed."""
    return below(evidence.tta(factor, codec=first), evidence.tta(factor, codec=second))


def rises(*values: Number | Iterable[Number]) -> bool:
    """Returns whether each value is above the one before."""
    return all(before < after for before, after in itertools.pairwise(_numbers(values, "rises")))


def falls(*values: Number | Iterable[Number]) -> bool:
    """Returns whether each value is below the one before."""
    return all(before > after for before, after in itertools.pairwise(_numbers(values, "falls")))


def below(first: SeedFigure, second: SeedFigure) -> bool:
    """Returns whether the first figure is below the second in every seed that both have, two or more: the
    least that a paired test can be made of."""
    return _in_every_seed(operator.lt, first, second)


def above(first: SeedFigure, second: SeedFigure) -> bool:
    """Returns whether the first figure is above the second in every seed that both have, two or more."""
    return _in_every_seed(operator.gt, first, second)


def exponent(points: Iterable[tuple[float, Number]]) -> float:
    """The exponent p of y ~ x^p, by least squares on logarithms."""
    found = [(float(x), float(y)) for x, y in points]
    if len(found) < 2 or min(map(min, found)) <= 0:
        raise MissingError("an exponent takes two or more points of positive numbers")
    logs = [(math.log(x), math.log(y)) for x, y in found]
    mean_x, mean_y = (sum(axis) / len(logs) for axis in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    if not spread:
        raise MissingError("an exponent takes points at different places")
    return float(sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread)


def line_error(points: Iterable[tuple[float, Number]]) -> float:
    """The mean relative error of the line through the points, by least squares."""
    try:
        return fit_line([(float(x), float(y)) for x, y in points]).error
    except ValueError as error:
        raise MissingError(str(error)) from None


def _in_every_seed(better: Callable[[float, float], bool], first: SeedFigure, second: SeedFigure) -> bool:
    pairs = first.paired(second).values()
    if len(pairs) < 2:
        raise MissingError(f"{'below' if better is operator.lt else 'above'} takes two or more seeds")
    return all(better(*pair) for pair in pairs)


def _numbers(values: Iterable[Any], name: str) -> list[float]:
    return list(map(float, _listed(values, name)))


def _listed(values: Iterable[Any], name: str) -> list[Any]:
    found = [item for each in values for item in (each if isinstance(each, Iterable) else (each,))]
    if not found:
        raise MissingError(f"{name} finds no such cells")
    return found
