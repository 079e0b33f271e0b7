"""What wandb shows of records that are no training runs: of studies, and of sweeps."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwire.harness.files.finite_json import restored
from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.structured import read_json
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.frame import STUDIES, Value, score_rows, values_in
from gradwire.harness.report.sweep_record import COLUMNS, FILE, OWN_DIGEST, read_sweep_record
from gradwire.harness.timing.measure.metrics import METRICS
from gradwire.harness.tracking.tables import Table, curve

COMPARISON = "table.csv"

Rows = Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]]

ROWS: Mapping[str, tuple[str, Rows]] = {
    "bench": ("operations", lambda content: content["rows"]),
    "score": ("scores", score_rows),
}
"""What else wandb shows of a study, by task: the table's name, and its rows from the record's content."""

_NESTED = ("axes", "off_axes", "machine")
"""Fields of a cell that are no single values."""


def is_sweep(folder: Path) -> bool:
    """Whether `folder` has the record of a sweep."""
    return (folder / FILE).is_file()


def study_tables(directory: Path, task: str) -> dict[str, Table]:
    """The figures of a finished study, a row each; also a row for each operation of a benchmark, and for each
    task and metric of a checkpoint's scores.

    Raises ValueError in one line if the record is damaged.
    """
    found = {"figures": _lines(values_in(directory))}
    if task in ROWS:
        file, _ = STUDIES[task]
        content = restored(read_json(directory / file, remedy=REMEDY, inside=directory))
        name, rows_of = ROWS[task]
        found[name] = curve(rows_of(content))
    return found


def sweep_tables(folder: Path) -> dict[str, Table]:
    """A sweep's cells and their figures, and its comparison as in `table.csv`; raises ValueError if its
    record is damaged."""
    record = read_sweep_record(folder)
    rows = [
        {key: value for key, value in asdict(cell).items() if key not in _NESTED}
        | {f"axes.{key}": value for key, value in cell.axes.items()}
        for cell in record.cells
    ]
    found = {"cells": curve(rows), "figures": _lines(record.values)}
    for path in [folder / COMPARISON, *sorted(folder.glob(f"*/{COMPARISON}"))]:
        if path.is_file():  # where a sweep mixes tasks, each has a folder
            words = ["comparison", *path.parent.relative_to(folder).parts]
            found["_".join(words)] = _comparison(path, folder)
    return found


def sweep_config(folder: Path) -> dict[str, Any]:
    """What a sweep was, as the configuration of its wandb run."""
    record = read_sweep_record(folder)
    left_out = ("cells", "values_sha256", OWN_DIGEST)
    about = {key: value for key, value in record.content().items() if key not in left_out}
    return {"task": {"name": "comparison"}, "sweep": about}


def _lines(values: Iterable[Value]) -> Table:
    """The lines of the results' frame, as `values.csv` has them; of a single record without its name."""
    found = list(values)
    columns = COLUMNS if len({value.run for value in found}) > 1 else COLUMNS[1:]
    rows = []
    for value in found:
        unit = METRICS[value.metric].unit if value.metric in METRICS else ""
        line = {**value._asdict(), "cell": value.run, "unit": unit}
        rows.append([line[name] for name in columns])
    return {"columns": list(columns), "rows": rows}


def _comparison(path: Path, folder: Path) -> Table:
    try:
        header, *lines = csv.reader(io.StringIO(read_text(path, remedy=REMEDY, inside=folder)))
    except (csv.Error, ValueError) as error:  # ValueError: without a line
        if isinstance(error, UnusableFileError):
            raise
        raise UnusableFileError(path, f"is no table ({error})", REMEDY) from None
    return {"columns": header, "rows": [list(map(_number, line)) for line in lines]}


def _number(text: str) -> Any:
    """A cell of `table.csv`: a number where it is one, nothing where it is empty."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text
