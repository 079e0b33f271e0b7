"""A paper's table filled from the record of a sweep: this project's figures next to the printed ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwire.harness.report.busy_times import busy_cells
from gradwire.harness.report.chances import BENCHMARK_SCORES, BENCHMARKS, SCORE, at_chance, level_of_runs
from gradwire.harness.report.claims.figures import CASE, last, one_figure, tta
from gradwire.harness.report.evaluation import MissingError, SeedFigure, UnfinishedError
from gradwire.harness.report.papers import Line, TableLayout
from gradwire.harness.report.reference import Reference, Row, unit_of
from gradwire.harness.report.sweep_record import SweepRecord
from gradwire.harness.report.table_networks import in_common_and_apart
from gradwire.harness.report.tables import NOT_REACHED, figure
from gradwire.harness.timing.measure.metric import FULL_PERCENT, PERCENT, PLAIN, FigureFormat, Kind, Spread
from gradwire.harness.timing.measure.metrics import METRICS

NOTHING = "–"
TIME_UNIT = "s of the training clock"
OTHER_SOURCES, CHANGED_SOURCES = "†", "+"
"""Marks of figures: from another code_hash than most of the record's; from uncommitted changes."""


@dataclass(frozen=True)
class Cell:
    """One figure of this project, as text with its marks, and the printed one."""

    ours: str
    printed: str
    kind: Kind | None = None
    figure: SeedFigure | None = None
    networks: tuple[str, ...] = ()  # of the runs that ours is from: their links and what times on them are
    chance: str = ""  # what guesses score
    guessed: bool = False  # whether no score of its runs is above that
    unit: str = ""  # of ours, for the column's heading
    printed_unit: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A table as rows of cells; `kinds` has for each column the kind of this project's figures, if it is
    uniform."""

    columns: list[str]
    rows: list[tuple[str, list[Cell]]]
    busy: str = ""  # that the machine was, where times are shown

    @property
    def kinds(self) -> list[Kind | None]:
        found = []
        for index in self._indices:
            kinds = {cells[index].kind for _, cells in self.rows} - {None}
            found.append(kinds.pop() if len(kinds) == 1 else None)
        return found

    @property
    def units(self) -> list[str]:
        """For each column the unit of this project's figures that its heading has to say."""
        return [self._unit(index, {cells[index].unit for _, cells in self.rows}) for index in self._indices]

    @property
    def printed_units(self) -> list[str]:
        """For each column the unit of the printed figures that its heading has to say."""
        return [
            self._unit(index, {cells[index].printed_unit for _, cells in self.rows})
            for index in self._indices
        ]

    @property
    def _indices(self) -> range:
        return range(len(self.columns))

    def _unit(self, index: int, units: set[str]) -> str:
        known = units - {""}
        unit = known.pop() if len(known) == 1 else ""
        return "" if unit in re.split(r"[ ,:\[\]]+", self.columns[index]) else unit

    @property
    def printed(self) -> list[bool]:
        """Returns for each column whether the paper prints any of its figures."""
        return [any(cells[index].printed != NOTHING for _, cells in self.rows) for index in self._indices]

    @property
    def has_printed(self) -> bool:
        return any(self.printed)

    @property
    def of_print(self) -> PaperTable:
        """The rows and columns of which the paper prints any figure."""
        columns = [index for index, printed in enumerate(self.printed) if printed]
        rows = [(name, [cells[index] for index in columns]) for name, cells in self.rows]
        told = [row for row in rows if any(cell.printed != NOTHING for cell in row[1])]
        return PaperTable([self.columns[index] for index in columns], told)

    @property
    def chances(self) -> list[str]:
        """For each column what guesses score, and whether its runs score no more, in words; empty where that
        is no score, or differs."""
        return [self._chance([cells[index] for _, cells in self.rows]) for index in self._indices]

    def _chance(self, cells: Sequence[Cell]) -> str:
        levels = {cell.chance for cell in cells} - {""}
        told = [cell for cell in cells if cell.figure is not None]
        guesses = f"guesses: {levels.pop()}" if len(levels) == 1 else ""
        guessed = "scores at chance" if told and all(cell.guessed for cell in told) else ""
        return "; ".join(filter(None, [guessed, guesses]))

    @property
    def networks(self) -> list[str]:
        """The networks of the figures: what all have in common, then by row, or by column if a row has
        several, what sets them apart."""
        found = {name: _networks(cells) for name, cells in self.rows}
        if any(len(texts) > 1 for texts in found.values()):
            columns = zip(*(cells for _, cells in self.rows), strict=True)
            found = {name: _networks(own) for name, own in zip(self.columns, columns, strict=True)}
        return in_common_and_apart(found)

    @property
    def seen(self) -> bool:
        """Returns whether any of the figures comes from a record."""
        return any(cell.kind is not None for _, cells in self.rows for cell in cells)

    @property
    def labels(self) -> set[str]:
        """The labels of those cells of the record that the figures are of."""
        figures = [cell.figure for _, cells in self.rows for cell in cells if cell.figure is not None]
        return {own.label for figure in figures for own in figure.cells}

    @property
    def marks(self) -> set[str]:
        """The marks that occur."""
        texts = [cell.ours for _, cells in self.rows for cell in cells]
        return {mark for mark in (OTHER_SOURCES, CHANGED_SOURCES) if any(mark in text for text in texts)}


def _networks(cells: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(text for cell in cells for text in cell.networks))


def fill(layout: TableLayout, record: SweepRecord | None, reference: Reference) -> PaperTable:
    """The table of a layout; without a record, only the printed figures.

    Raises ValueError in one line if a cell selects several groups of runs.
    """
    printed = reference.rows(layout.reference) if layout.reference is not None else []
    rows = []
    for name, row in layout.rows.items():
        cells = [_cell(layout, row, column, record, printed) for column in layout.columns.values()]
        rows.append((name, cells))
    if record is None:
        return PaperTable(list(layout.columns), rows).of_print
    return PaperTable(list(layout.columns), rows, _busy(record, rows))


def _busy(record: SweepRecord, rows: list[tuple[str, list[Cell]]]) -> str:
    """The note on a busy machine, if times are shown."""
    figures = [cell.figure for _, cells in rows for cell in cells if cell.figure is not None]
    timed = {cell.label: cell for figure in figures if figure.timed for cell in figure.cells}
    return busy_cells(record, timed.values())


def _cell(
    layout: TableLayout, row: Line, column: Line, record: SweepRecord | None, printed: list[Row]
) -> Cell:
    chosen = {**row.printed, **column.printed}
    # A column with its own metric only has a printed figure if it says which.
    is_another = column.metric not in (None, layout.metric) and not column.printed
    printed_row = None if is_another else _printed(chosen, printed)
    theirs = NOTHING if printed_row is None else printed_row["value"]
    their_unit = "" if printed_row is None else unit_of(printed_row)
    if column.change:
        theirs = _printed_change(chosen, {**column.printed, **layout.baseline.printed}, printed)
        their_unit = ""
    if record is None:
        return Cell(NOTHING, theirs, printed_unit=their_unit)
    selection = {**row.ours, **column.ours}
    try:
        found = _figure(record, layout, row, column, selection)
        if column.change:
            base = _figure(record, layout, row, column, {**column.ours, **layout.baseline.ours})
            change = _change(found, base) + marks_of(found, record)
            return Cell(change, theirs, found.kind, found, _networks_of(found))
    except (MissingError, UnfinishedError):
        return Cell(NOTHING, theirs, printed_unit=their_unit)
    is_time = column.tta is not None or row.tta is not None
    metric, times = _metric(layout, row, column), column.times or row.times or 1.0
    text = _written(found, metric, is_time, times)
    chance = "" if is_time else _chance(record, metric, found, selection)
    return Cell(
        text + marks_of(found, record),
        theirs,
        found.kind,
        found,
        _networks_of(found),
        chance,
        (is_time or chance != "") and at_chance(record, found.cells),
        TIME_UNIT if is_time else _unit(metric, times),
        their_unit,
    )


def _unit(metric: str, times: float) -> str:
    """The unit of a metric whose cells do not say it; of a multiple the column's name has it."""
    about = METRICS.get(metric)
    return "" if about is None or about.shown.unit or times != 1.0 else about.alone.unit


def _chance(record: SweepRecord, metric: str, found: SeedFigure, selection: Mapping[str, Any]) -> str:
    """The score of guesses, of a metric that is such a score; else empty."""
    if metric in (SCORE, "final_metric"):
        level = level_of_runs(record, found.cells)
    else:
        level = BENCHMARKS.get(str(selection.get(CASE))) if metric in BENCHMARK_SCORES else None
    return "" if level is None else f"{100 * level:.3g} %"


def _networks_of(found: SeedFigure) -> tuple[str, ...]:
    texts = (cell.network for cell in found.cells)
    return tuple(dict.fromkeys(text for text in texts if text is not None))


def _metric(layout: TableLayout, row: Line, column: Line) -> str:
    return column.metric or row.metric or layout.metric or "final_metric"


def _figure(
    record: SweepRecord, layout: TableLayout, row: Line, column: Line, selection: Mapping[str, Any]
) -> SeedFigure:
    factor = column.tta if column.tta is not None else row.tta
    if factor is not None:
        return tta(record, factor, selection)
    metric = _metric(layout, row, column)
    read = last if column.last or row.last else one_figure
    return read(record, metric, selection)


def _change(found: SeedFigure, base: SeedFigure) -> str:
    """Percent above the baseline: the mean of the changes by seed, with its 95 % interval."""
    changes = found.combined(base, lambda own, their: 100 * (own / their - 1))
    mean, margin = changes.interval
    return f"{round(mean, 2) + 0.0:+.2f} ± {margin:.2f} %"  # 0.0 makes -0.0 positive


def _printed_change(chosen: Mapping[str, str], base: Mapping[str, str], rows: list[Row]) -> str:
    """Percent above the printed baseline; nothing if one of them is not printed."""
    own, their = (_printed(columns, rows) for columns in (chosen, base))
    if own is None or their is None:
        return NOTHING
    return f"{100 * (float(own['value']) / float(their['value']) - 1):+.2f} %"


def _written(found: SeedFigure, metric: str, is_time: bool, times: float) -> str:
    spread = Spread(found.median, found.low, found.high)
    if is_time:
        return NOT_REACHED if spread.median == float("inf") else f"{figure(spread, FigureFormat(digits=3))} s"
    shown = METRICS[metric].shown if metric in METRICS else PLAIN
    if times == 1.0 and not shown.unit and found.shown.unit == PERCENT.unit:  # else the heading has it
        shown = FULL_PERCENT
    text = figure(spread, replace(shown, factor=shown.factor * times))
    return f"{text} {shown.unit}" if shown.unit else text


def marks_of(found: SeedFigure, record: SweepRecord) -> str:
    """The marks of a figure whose cells ran other sources than most cells, or changed ones."""
    usual = record.code_hashes[:1]
    other = any(cell.done and cell.code_hash not in usual for cell in found.cells)
    changed = any(cell.dirty for cell in found.cells)
    return OTHER_SOURCES * other + CHANGED_SOURCES * changed


def _printed(chosen: Mapping[str, str], rows: list[Row]) -> Row | None:
    """The printed figure of a cell; None if the paper has none, or if the cell names no columns."""
    found = [row for row in rows if all(row[key] == value for key, value in chosen.items())]
    return found[0] if chosen and len(found) == 1 else None
