"""Tables and curves in wandb for records other than training runs: of studies and of sweeps."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

from gradwire.harness.files.finite_json import restored
from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.structured import read_json
from gradwire.harness.record.figures import study_records
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.frame import Value, values_in
from gradwire.harness.report.sweep_record import COLUMNS, FILE, OWN_DIGEST, SweepRecord, line_of
from gradwire.harness.timing.measure.metrics import in_words
from gradwire.harness.tracking.messages import tags
from gradwire.harness.tracking.tables import MOST_ROWS, WandbTable, curve

COMPARISON = "table.csv"

CHOSEN = ("codec", "codec.bits", "topology", "parallel", "network", "network.rate_mbit")
"""Settings with which a cell's row begins, whether they are axes or the same in all cells."""

CELL_FIGURES = (
    *("final_metric", "step_time_s", "tokens_per_s", "bytes_per_step_per_rank"),
    *("wire_bits_per_coordinate", "vnmse"),
)
"""Figures of a whole run that are in its cell's row, in addition to its times to accuracy."""

READ_FIRST = (
    *("label", *CHOSEN, "seed", "status", "final_metric", "final_metric_median"),
    *("time_to_accuracy_s*", "tta_*_s_median", "step_time_s", "step_time_s_median"),
    *("tokens_per_s", "tokens_per_s_median"),
    *("bytes_per_step_per_rank", "bytes_per_step_per_rank_median", "bytes_ratio"),
    *("wire_bits_per_coordinate", "wire_bits_per_coordinate_median", "vnmse", "vnmse_median"),
    *("clock", "kind", "seeds"),
)
"""The first columns of a sweep's tables, in order."""

_NESTED = ("axes", "off_axes", "machine")
"""Fields of a cell that are not single values."""


def is_sweep(folder: Path) -> bool:
    """Returns whether `folder` has the record of a sweep."""
    return (folder / FILE).is_file()


def study_tables(directory: Path, task: str) -> dict[str, WandbTable]:
    """The figures of a finished study, one per row, with further tables of a benchmark's operations and of a
    checkpoint's scores.

    Raises ValueError in one line if the record is damaged.
    """
    record, found = study_records()[task], {"figures": _lines(values_in(directory))}
    if not found["figures"]["rows"]:  # it is not finished
        return found
    content = restored(read_json(directory / record.file, remedy=REMEDY, inside=directory))
    return found | {name: curve(rows) for name, rows in record.tables(content).items()}


def sweep_tables(record: SweepRecord, folder: Path) -> dict[str, WandbTable]:
    """A sweep's cells and their figures, and its comparison as in `table.csv`; raises ValueError if that is
    damaged."""
    found = {"cells": in_reading_order(curve(_cells(record))), "figures": _lines(record.values)}
    for path in [folder / COMPARISON, *sorted(folder.glob(f"*/{COMPARISON}"))]:
        if path.is_file():  # where a sweep mixes tasks, each has a folder
            words = ["comparison", *path.parent.relative_to(folder).parts]
            found["_".join(words)] = in_reading_order(_comparison(path, folder))
    return found


def in_reading_order(table: WandbTable) -> WandbTable:
    """The table with the columns of `READ_FIRST` first, followed by the others in their order."""
    names = [str(name) for name in table["columns"]]
    ranks = [
        next((n for n, each in enumerate(READ_FIRST) if fnmatchcase(name, each)), None) for name in names
    ]
    order = sorted(range(len(names)), key=lambda index: (ranks[index] is None, ranks[index] or 0))
    rows = [[row[index] for index in order] for row in table["rows"]]
    return {"columns": [names[index] for index in order], "rows": rows}


def sweep_curves(record: SweepRecord) -> dict[str, dict[str, Any]]:
    """A sweep's charts as `wandb.plot.line_series` takes them, a line for each cell: the metric of its runs
    over the training clock and over steps, and the error over steps.

    Clocks of different kinds never share a chart.
    """
    cells = {cell.label: cell for cell in record.cells if cell.metric is not None}
    rows: dict[str, dict[int, dict[str, float]]] = {label: {} for label in cells}
    for value in record.values:
        if value.run in cells and value.step is not None and not value.case:
            rows[value.run].setdefault(value.step, {"step": value.step})[value.metric] = value.value
    kinds = {cell.kind for cell in cells.values()}
    charts: dict[str, dict[str, Any]] = {}
    for label, cell in cells.items():
        metric, kind = str(cell.metric), str(cell.kind)
        by_clock = f"{metric}_by_clock" + (f"_{kind}" if len(kinds) > 1 else "")
        clock = f"training clock [s], {kind}"
        for name, x, y, label_of_x in (
            (by_clock, "train_time_s", metric, clock),
            (f"{metric}_by_step", "step", metric, "step"),
            ("vnmse_by_step", "step", "vnmse", "step"),
        ):
            points = [(row[x], row[y]) for row in rows[label].values() if x in row and y in row]
            points = [point for point in points if all(map(math.isfinite, point))]
            if points:
                title = f"{in_words(y)} by {label_of_x}"
                empty = {"xs": [], "ys": [], "keys": [], "title": title, "xname": label_of_x}
                chart = charts.setdefault(name, empty)
                chart["keys"].append(label)
                for axis, numbers in zip(("xs", "ys"), zip(*points, strict=True), strict=True):
                    chart[axis].append(list(numbers))
    return {name: _thinned(chart) for name, chart in charts.items()}


def sweep_config(record: SweepRecord) -> dict[str, Any]:
    """The description of a sweep, as the configuration of its wandb run."""
    left_out = ("cells", "values_sha256", OWN_DIGEST)
    about = {key: value for key, value in record.content().items() if key not in left_out}
    return {"task": {"name": "comparison"}, "sweep": about}


def sweep_tags(record: SweepRecord) -> list[str]:
    """The tags of a sweep's runs, those that all have in common and those of some."""
    groups = ("codec", "topology", "parallel", "cluster")
    keys = ("preset", "rate_mbit")
    found = list[str]()
    for cell in record.cells:
        config = {group: {"name": record.setting(cell, group)} for group in groups}
        network = {key: record.setting(cell, f"network.{key}") for key in keys}
        network = {key: value for key, value in network.items() if value is not None}
        name = record.setting(cell, "network")
        config |= {"network": {"name": name, **network}} if name is not None else {}
        found += tags({"task": {"name": cell.task}, "size": {"name": record.size}, **config})
    return found


def _cells(record: SweepRecord) -> list[dict[str, Any]]:
    """A row for each cell: its settings, its outcome, and its other figures."""
    figures = dict[str, dict[str, list[float]]]()
    for value in record.values:
        name = f"{value.metric}.{value.case}" if value.case else value.metric
        if value.step is None and (name in CELL_FIGURES or value.metric == "time_to_accuracy_s"):
            figures.setdefault(value.run, {}).setdefault(name, []).append(value.value)
    chosen = {key: [record.setting(cell, key) for cell in record.cells] for key in CHOSEN}
    known = [key for key, values in chosen.items() if any(value is not None for value in values)]
    return [
        {key: value for key, value in asdict(cell).items() if key not in _NESTED}
        | {f"axes.{key}": value for key, value in cell.axes.items()}
        | {key: record.setting(cell, key) for key in known}
        | {name: median(values) for name, values in figures.get(cell.label, {}).items()}
        for cell in record.cells
    ]


def _thinned(chart: dict[str, Any]) -> dict[str, Any]:
    """The chart, with every second, third, ... point of its lines if it has too many."""
    every = math.ceil(sum(map(len, chart["xs"])) / MOST_ROWS)
    return chart | {axis: [numbers[::every] for numbers in chart[axis]] for axis in ("xs", "ys")}


def _lines(values: Iterable[Value]) -> WandbTable:
    """The rows of the results' frame, as in `values.csv`; for a single record without its name."""
    found = list(values)
    first = 0 if len({value.run for value in found}) > 1 else 1
    return {"columns": list(COLUMNS[first:]), "rows": [line_of(value)[first:] for value in found]}


def _comparison(path: Path, folder: Path) -> WandbTable:
    try:
        header, *lines = csv.reader(io.StringIO(read_text(path, remedy=REMEDY, inside=folder)))
    except (csv.Error, ValueError) as error:  # ValueError: without a line
        if isinstance(error, UnusableFileError):
            raise
        raise UnusableFileError(path, f"is not a table ({error})", REMEDY) from None
    return {"columns": header, "rows": [list(map(_number, line)) for line in lines]}


def _number(text: str) -> Any:
    """A cell of `table.csv`: a number if it is one, None if it is empty."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text
