"""Compares what several files of gradients or weights look like: a row each, and plots of each first seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwire.harness.files.finite_json import restored
from gradwire.harness.files.reading import read_bytes
from gradwire.harness.files.structured import read_json
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.seal import REMEDY
from gradwire.harness.report.frame import spreads, table, values_in
from gradwire.harness.report.tables import Column, Line, Page, figures_table, finished
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.metrics import keys

JSON, PLOTS = "statistics.json", "plots"
FORMS = ("-print", "-dark")

GRADIENTS, WEIGHTS, EVOLUTION = "gradients", "weights", "evolution"
"""The tables: of gradients in one step, of weights, of gradients over training."""

FIGURES = {WEIGHTS: "weights.error", EVOLUTION: "evolution.error_change"}
"""A figure that only one of the tables has."""

SMALL_NORMS = {
    "256 as they are": "norms of super-groups below a tenth of the median",
    "256 shuffled": "the same, coordinates shuffled",
}
"""The cases of DynamiQ's Figure 1, and their columns."""

NOTE = "Figures are the median over seeds, with the range from the lowest to the highest."


def compare(folders: Sequence[Path], output: Path, axes: Sequence[str] = ()) -> Page:
    """Compares the statistics in `folders`; writes table.md, table.csv, table.json and plots to `output`.

    Gradients, or weights, of the same model and step are one subject, whatever their seed. Raises ValueError
    when none is done.
    """
    done, left_out = finished(folders, "task=statistics")
    subjects: dict[str, list[Path]] = {}
    for folder in done:
        subjects.setdefault(_subject(folder), []).append(folder)
    found = {name: _figures(own) for name, own in subjects.items()}
    lines: dict[str, list[Line]] = {WEIGHTS: [], GRADIENTS: [], EVOLUTION: []}
    for name, figures in found.items():
        what = next((what for what, figure in FIGURES.items() if figure in figures), GRADIENTS)
        lines[what].append(([name], figures))
    tables = [figures_table(what.title(), [what], own, _columns(what)) for what, own in lines.items() if own]
    page = Page(tables, [NOTE, *left_out])
    rows = [
        {
            "gradients": name,
            "seeds": len(subjects[name]),
            **{key: each.median for key, each in figures.items()},
        }
        for name, figures in found.items()
    ]
    page.write(output, rows, {"rows": rows, "left_out": left_out})
    for name, own in subjects.items():
        _copy_plots(own[0], output, name)
    return page


def _columns(what: str) -> list[Column]:
    own = [Column(key) for key in keys(lambda metric: metric.section == what)]
    small = [Column("norms.below_10th", at=case, label=label) for case, label in SMALL_NORMS.items()]
    return [*small, *own] if what == GRADIENTS else own


def _subject(folder: Path) -> str:
    """`gemma1b-step20`, `gemma1b-weights20`, `gemma1b-run`, or the file's name where that is not known."""
    found = restored(read_json(folder / JSON, remedy=REMEDY, inside=folder))
    about: Mapping[str, Any] = found.get("about") or {}
    if EVOLUTION in found and about.get("model") is not None:
        return f"{about['model']}-run"
    if about.get("model") is None or about.get("step") is None:
        return Path(str(found["gradients"])).stem
    word = "weights" if WEIGHTS in found else "step"
    return f"{about['model']}-{word}{about['step']}"


def _figures(folders: Sequence[Path]) -> dict[str, Spread]:
    """Metrics by key, those of small norms by case, over the seeds."""
    values = table(value for folder in folders for value in values_in(folder))
    whole = spreads(values[values.case == ""], "metric")
    small = values[(values.metric == "norms.below_10th") & values.case.isin(list(SMALL_NORMS))]
    return whole | spreads(small, "case")


def _copy_plots(folder: Path, output: Path, name: str) -> None:
    """Puts a cell's plots beside the table, as `<plot>-<name>-print.svg`."""
    for path in sorted((folder / PLOTS).glob("*")):
        for form in FORMS:
            plot, found, suffix = path.name.partition(f"{form}.")
            if found:
                content = read_bytes(path, remedy=REMEDY, inside=folder)
                write_atomically(output / f"{plot}-{name}{form}.{suffix}", content)
