"""Evidence of claims: figures of sweeps' records and of the papers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradwire.harness.report.chances import at_chance, level_of_runs
from gradwire.harness.report.claims import figures
from gradwire.harness.report.claims.effects import Number
from gradwire.harness.report.claims.figures import CASE, TASK, same
from gradwire.harness.report.claims.known_sweeps import Known
from gradwire.harness.report.configs import SEED
from gradwire.harness.report.evaluation import ClaimError, SeedFigure
from gradwire.harness.report.reference import Reference, unit_of
from gradwire.harness.report.sweep_record import SweepRecord

METRIC = "metric"
"""The name by which a foil puts another metric in place."""


@dataclass(frozen=True)
class Foil:
    """A codec, setting or metric that fails a claim: what a predicate's figures are of in place of what it
    names."""

    swaps: Mapping[str, tuple[Any, Any]]  # names in the predicate's calls -> (named there, in its place)
    also: Mapping[str, Any] = field(default_factory=dict)  # further values of such a figure; None: not named

    @property
    def name(self) -> str:
        """The values that are put in place, in words."""
        found = {key: new for key, (_, new) in self.swaps.items()} | dict(self.also)
        return ", ".join(f"{key}={value}" for key, value in found.items() if value is not None)

    def applied(self, cells: Mapping[str, Any]) -> dict[str, Any] | None:
        """The selection with the foil in place; None if it does not name what is replaced."""
        if not all(key in cells and same(cells[key], old) for key, (old, _) in self.swaps.items()):
            return None
        found = {**cells, **{key: new for key, (_, new) in self.swaps.items()}, **self.also}
        return {key: value for key, value in found.items() if value is not None}


def swap(also: Mapping[str, Any] | None = None, /, **swaps: tuple[Any, Any]) -> Foil:
    """A foil: `swap(codec=("dynamiq", "mxfp4"))` has MXFP4's figures in place of DynamiQ's."""
    return Foil(swaps, also or {})


@dataclass(frozen=True)
class Used:
    """One figure that a predicate has asked for, in the words of its call and in parts."""

    text: str
    figure: Number  # a number is printed in the paper
    name: str = ""  # of the call: a metric, or `tta`, `last`, …; empty for a printed figure
    asked: tuple[Any, ...] = ()  # what the call names beside axes: a metric, a factor
    cells: Mapping[str, Any] = field(default_factory=dict)  # the values of axes that it names
    chance: float | None = None  # what guesses score, if its runs are judged by a score
    guessed: bool = False  # whether its runs score no more than that
    unit: str = ""  # of a printed figure


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
    foil: Foil | None = None
    replaced: list[str] = field(default_factory=list)  # figures that were the foil's
    disturbed: frozenset[str] = frozenset()  # sweeps whose times were taken beside other work

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
        found, row = self.reference.number(item, **columns), self.reference.one(item, **columns)
        named = {"item": row["item"], **columns}
        words = [str(value).replace("_", " ") for value in named.values()]
        self.used.append(Used(", ".join(words), found, unit=unit_of(row)))
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
        named, asked = self._with_foil(name, {**self.fixed, **cells}, asked)
        words = [*map(_word, shown), *(f"{key}={_word(value)}" for key, value in named.items())]
        record, selection = self._selected(named)
        found = read(record, *asked, selection)
        chance = level_of_runs(record, found.cells)
        guessed = chance is not None and at_chance(record, found.cells)
        text = f"{name}({', '.join(words)})"
        self.used.append(Used(text, found, name, tuple(shown), named, chance, guessed))
        return found

    def _with_foil(
        self, name: str, cells: dict[str, Any], asked: tuple[Any, ...]
    ) -> tuple[dict[str, Any], tuple[Any, ...]]:
        """Returns what a call selects and asks for, with the foil in place if it names what that replaces."""
        of_metric = {METRIC: asked[0]} if asked and isinstance(asked[0], str) else {}
        swapped = self.foil.applied({**cells, **of_metric}) if self.foil is not None else None
        if swapped is None:
            return cells, asked
        self.replaced.append(name)
        return swapped, (swapped.pop(METRIC), *asked[1:]) if of_metric else asked

    def _select(self, cells: Mapping[str, Any]) -> tuple[SweepRecord, dict[str, Any]]:
        return self._selected({**self.fixed, **cells})

    def _selected(self, cells: Mapping[str, Any]) -> tuple[SweepRecord, dict[str, Any]]:
        selection = dict(cells)
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
