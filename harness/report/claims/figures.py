"""Figures of a sweep selected by predicates: a value for each seed, from exactly one group of cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from gradwire.harness.report.chances import SCORE
from gradwire.harness.report.configs import SEED, Settings
from gradwire.harness.report.evaluation import (
    BASELINE,
    CLOCK,
    ClaimError,
    Curves,
    MissingError,
    SeedFigure,
    UnfinishedError,
    baseline_among,
    same_task,
    sets_targets,
    worst,
)
from gradwire.harness.report.frame import Value
from gradwire.harness.report.sweep_record import CellRecord, SweepRecord
from gradwire.harness.timing.measure.accuracy import Mode, TimeToAccuracy, metric_mode
from gradwire.harness.timing.measure.metric import PERCENT, PLAIN, FigureFormat, Kind
from gradwire.harness.timing.measure.metrics import METRICS

Selection = Mapping[str, Any]
"""Axes, by any name that `axis_named` understands, to values."""

CASE, TASK = "case", "task"
"""Keys of a selection other than axes."""

UNCOMPRESSED = "fp32"
"""The codec that sets targets where neither BF16 nor sharded training without compression does."""

KINDS: tuple[Kind, ...] = ("measured", "emulated", "modelled")
"""The kinds of figures from real to calculated; a figure computed from several kinds has the last of
these.
"""


def axis_named(record: SweepRecord, name: str) -> str:
    """The dotted key for a short name: `bits` or `codec_bits` is `codec.bits`.

    Axes come before settings that all cells share. Raises MissingError if this record has none, ClaimError if
    the name may mean several.
    """
    found = matching_key(name, record.axes, _shared(record))
    if found is None:
        raise MissingError(f"{record.name} does not tell its cells' {name} at size={record.size}")
    return found


def _shared(record: SweepRecord) -> set[str]:
    return {key for found in record.settings.values() for key in found}


def matching_key(name: str, axes: Iterable[str], others: Iterable[str] = ()) -> str | None:
    """The key among `axes`, else among `others`, that a short name means; None if there is none.

    Raises ClaimError if there are several.
    """
    known = list(axes)
    for keys in (known, sorted({key.removesuffix(".name") for key in others})):
        for matches in (
            [key for key in keys if name in (key, key.replace(".", "_"))],
            [key for key in keys if key.rsplit(".", 1)[-1] == name],
        ):
            if len(matches) == 1:
                return matches[0]
            if matches:
                raise ClaimError(
                    f"{name} may be {' or '.join(matches)}; write e.g. {matches[0].replace('.', '_')}"
                )
    return None


def values_of_axes(record: SweepRecord, keys: Sequence[str], selection: Selection) -> list[tuple[Any, ...]]:
    """The values, or combinations of values, in the selected cells; numbers in ascending order."""
    cells = _selected(record, selection)
    rows = [tuple(record.setting(cell, key) for key in keys) for cell in cells]
    known = list({repr(values): values for values in rows if None not in values}.values())
    numeric = all(isinstance(value, int | float) for values in known for value in values)
    return sorted(known) if numeric else known


def one_figure(record: SweepRecord, metric: str, selection: Selection) -> SeedFigure:
    """The metric of the one group that is selected: of whole runs, else the median over rounds.

    A failed seed has the worst final metric, and no other figure.
    """
    return _figure_of(record, metric, _group(record, metric, selection), str(selection.get(CASE, "")))


def _figure_of(record: SweepRecord, metric: str, group: CellGroup, case: str = "") -> SeedFigure:
    cells = group.cells
    found = [value for value in _values(record, group, metric) if value.case == case]
    whole = [value for value in found if value.step is None] or found
    by_seed: dict[int | None, list[float]] = {}
    seeds = {cell.label: cell.seed for cell in cells}
    for value in whole:  # a single replay's repeats have seeds of their own
        by_seed.setdefault(value.seed if len(cells) == 1 else seeds[value.run], []).append(value.value)
    figures = {seed: median(values) for seed, values in by_seed.items()}
    if metric == "final_metric":
        missed = worst(_mode(record, group))
        figures |= {cell.seed: missed for cell in cells if cell.status == "failed"}
    return _made(figures, whole, group)


def last(record: SweepRecord, metric: str, selection: Selection) -> SeedFigure:
    """The metric at the last evaluation or measured step."""
    return _over_steps(record, metric, selection, lambda points: points[-1][1])


def during(record: SweepRecord, metric: str, begin: float, end: float, selection: Selection) -> SeedFigure:
    """The mean of a metric over a part of the run, as shares of its steps: 0 to 0.25 is the first quarter."""

    def mean(points: Sequence[tuple[int, float]]) -> float:
        most = max(points[-1][0], 1)
        inside = [value for step, value in points if begin <= step / most <= end]
        if not inside:
            raise MissingError(f"{metric} has no step between {begin:g} and {end:g} of the run")
        return fmean(inside)

    return _over_steps(record, metric, selection, mean)


def tta(record: SweepRecord, factor: float, selection: Selection) -> SeedFigure:
    """Seconds to `factor` times the median final metric of the BF16 cells that differ in the codec alone;
    infinite for a seed that misses it or failed."""
    return _at_target(record, factor, selection, lambda found: found.train_time_s)


def steps_to(record: SweepRecord, factor: float, selection: Selection) -> SeedFigure:
    """Steps done at the evaluation that reaches that target, as the record counts them; infinite for a seed
    that misses it or failed. No clock has a part in it."""
    found = _at_target(
        record, factor, selection, lambda found: math.inf if found.step is None else float(found.step)
    )
    return replace(found, timed=False, shown=FigureFormat(unit="steps"))


def stays(record: SweepRecord, factor: float, selection: Selection) -> SeedFigure:
    """1 for a seed that reaches that target and never falls behind it later, else 0."""
    found = _at_target(record, factor, selection, lambda found: float(bool(found.stays)))
    return replace(found, timed=False, shown=PLAIN)


def _at_target(
    record: SweepRecord, factor: float, selection: Selection, figure: Callable[[TimeToAccuracy], float]
) -> SeedFigure:
    group = _group(record, "final_metric", selection)
    baseline = _one_group(record, "final_metric", _baseline(record, group), "the baseline")
    target = factor * _figure_of(record, "final_metric", baseline).median
    seeds, mode = {cell.label: cell.seed for cell in group.cells}, _mode(record, group)
    metric = next((cell.metric for cell in group.cells if cell.metric is not None), "")
    times = Curves.of(record.values, metric, seeds, mode).times_to(target)
    clock = [value for value in _values(record, group, CLOCK) if value.step is not None]
    found = _made({seed: figure(reached) for seed, reached in times.items()}, clock, group)
    return replace(found, baseline=tuple(baseline.cells))


@dataclass(frozen=True)
class CellGroup:
    """Cells of one task that only differ in the seed."""

    settings: Settings
    cells: list[CellRecord]


def _grouped(record: SweepRecord, cells: Iterable[CellRecord]) -> list[CellGroup]:
    """The groups of cells, in the order of their first ones."""
    found: dict[str, CellGroup] = {}
    for cell in cells:
        # An axis that is a configuration group has the name of a choice as its value.
        axes = {key if "." in key else f"{key}.name": value for key, value in cell.axes.items()}
        group = CellGroup(record.settings.get(cell.task, {}) | axes, [])
        found.setdefault(repr((cell.task, sorted(axes.items()))), group).cells.append(cell)
    return list(found.values())


def _of_task(record: SweepRecord, group: CellGroup) -> list[CellGroup]:
    """All groups of a group's task."""
    return _grouped(record, (cell for cell in record.cells if cell.task == group.cells[0].task))


def _baseline(record: SweepRecord, group: CellGroup) -> list[CellRecord]:
    """The cells that set a group's targets."""
    others = _of_task(record, group)
    exact = [other for other in others if other.settings.get("codec.name") == UNCOMPRESSED]
    for candidates in (list(filter(sets_targets, others)), exact):
        found = baseline_among(group, candidates)
        if found is not None:
            return found.cells
    raise MissingError(f"{group.cells[0].label} has no {BASELINE} cell to take its targets from")


def _over_steps(
    record: SweepRecord,
    metric: str,
    selection: Selection,
    figure: Callable[[Sequence[tuple[int, float]]], float],
) -> SeedFigure:
    group = _group(record, metric, selection)
    found = [value for value in _values(record, group, metric) if value.step is not None]
    points: dict[int | None, list[tuple[int, float]]] = {}
    for value in found:
        points.setdefault(value.seed, []).append((value.step or 0, value.value))
    return _made({seed: figure(sorted(own)) for seed, own in points.items()}, found, group)


def _made(figures: Mapping[int | None, float], values: Sequence[Value], group: CellGroup) -> SeedFigure:
    if not figures:
        raise MissingError(f"{group.cells[0].label} has no such figure")
    kinds: list[Kind] = sorted({value.kind for value in values}, key=KINDS.index)
    timed = any(METRICS[value.metric].timed for value in values if value.metric in METRICS)
    shown = _shown(values[0].metric, group) if values else PLAIN
    return SeedFigure(figures, kinds[-1] if kinds else None, tuple(group.cells), timed, shown=shown)


def _shown(metric: str, group: CellGroup) -> FigureFormat:
    """The format of a metric's figures by themselves; accuracies are in percent."""
    judged = next((cell.metric for cell in group.cells if cell.metric is not None), None)
    if SCORE in (metric, judged if metric == "final_metric" else None):
        return PERCENT
    return METRICS[metric].alone if metric in METRICS else PLAIN


def _values(record: SweepRecord, group: CellGroup, metric: str) -> list[Value]:
    labels = {cell.label for cell in group.cells}
    return [value for value in record.values if value.run in labels and value.metric == metric]


def _group(record: SweepRecord, metric: str, selection: Selection) -> CellGroup:
    """The one selected group, ignoring cells of tasks without the metric."""
    known = {value.metric for value in record.values}
    if metric not in known and metric not in METRICS:
        raise ClaimError(f"{metric} is not a metric of {record.name}")
    return _one_group(record, metric, _selected(record, selection), _words(selection))


def _one_group(record: SweepRecord, metric: str, cells: Sequence[CellRecord], selected: str) -> CellGroup:
    having = {value.run for value in record.values if value.metric == metric}
    tasks = {cell.task for cell in cells if cell.label in having}
    if not tasks and metric == "final_metric":  # all seeds have failed
        tasks = {cell.task for cell in cells if cell.status == "failed"}
    open_cells = [cell for cell in cells if cell.status in ("unfinished", "damaged")]
    if any(cell.task in tasks or not tasks for cell in open_cells):
        raise UnfinishedError(f"{selected} of {record.name} has not run with every seed")
    if not tasks:
        raise MissingError(f"{selected} of {record.name} has no {metric}")
    groups = _grouped(record, (cell for cell in cells if cell.task in tasks))
    if len(groups) > 1:
        first, second = (group.cells[0].axes for group in groups[:2])
        open_ = [axis for axis in record.axes if first.get(axis) != second.get(axis)] or [TASK]
        raise ClaimError(f"{metric}({selected}) leaves {open_[0]} open: name a value, or use a `for`")
    return groups[0]


def _selected(record: SweepRecord, selection: Selection) -> list[CellRecord]:
    wanted = [
        (TASK if name == TASK else axis_named(record, name), value)
        for name, value in selection.items()
        if name not in (CASE, SEED)
    ]
    found = [
        cell
        for cell in record.cells
        if all(same(cell.task if key == TASK else record.setting(cell, key), value) for key, value in wanted)
    ]
    if not found:
        raise MissingError(f"{record.name} has no cell with {_words(selection)} at size={record.size}")
    return found


def same(found: Any, wanted: Any) -> bool:
    """Returns whether a setting has the value that a claim names: numbers are compared by value, others as
    text."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int | float) and isinstance(wanted, int | float):
        return found == wanted
    return str(found) == str(wanted)


def _mode(record: SweepRecord, group: CellGroup) -> Mode:
    """The mode of a group's metric; if all seeds have failed, that of others with the same model and data."""
    alike = (cell for other in _of_task(record, group) if same_task(group, other) for cell in other.cells)
    return metric_mode(
        next((cell.metric for cell in (*group.cells, *alike) if cell.metric is not None), "loss")
    )


def _words(selection: Selection) -> str:
    return ", ".join(f"{key}={value}" for key, value in selection.items()) or "any value"
