"""Tables of the statistics of several files, with a row for each, and the plots of each subject's first
seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from gradwire.harness.files.reading import read_bytes
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import PLOTS
from gradwire.harness.record.seal import REMEDY
from gradwire.harness.report.frame import spreads, table, values_in
from gradwire.harness.report.tables import Column, Line, figures_table
from gradwire.harness.studies.comparison import Compared, Entry, figure_columns
from gradwire.harness.studies.statistics.study import StatisticsRecord
from gradwire.harness.timing.measure.metric import Spread
from gradwire.harness.timing.measure.metrics import keys

FORMS = ("-print", "-dark")

GRADIENTS, WEIGHTS, EVOLUTION = "gradients", "weights", "evolution"
"""The kinds of tables: gradients in one step, weights, gradients over training."""

FIGURES = {WEIGHTS: "weights.error", EVOLUTION: "evolution.error_change"}
"""A figure that exists in only one of the tables, to recognize it."""

SMALL_NORMS = {
    "256 as they are": "norms of super-groups below a tenth of the median",
    "256 shuffled": "the same, coordinates shuffled",
}
"""The cases of DynamiQ's Figure 1, and their columns."""

NOTE = "Figures are the median over seeds, with the range from the lowest to the highest."


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """A row for each model and step; gradients or weights of different seeds are combined."""
    subjects: dict[str, list[Path]] = {}
    for entry in entries:
        subjects.setdefault(_subject(entry.record), []).append(entry.folder)
    found = {name: _figures(own) for name, own in subjects.items()}
    lines: dict[str, list[Line]] = {WEIGHTS: [], GRADIENTS: [], EVOLUTION: []}
    for name, figures in found.items():
        what = next((what for what, figure in FIGURES.items() if figure in figures), GRADIENTS)
        lines[what].append(([name], figures))
    further = [Column(column.metric) for column in figure_columns(entries)]
    tables = [
        figures_table(what.title(), [what], own, [*_columns(what), *further])
        for what, own in lines.items()
        if own
    ]
    rows = [
        {
            "gradients": name,
            "seeds": len(subjects[name]),
            **{key: each.median for key, each in figures.items()},
        }
        for name, figures in found.items()
    ]
    return Compared(tables, rows, [NOTE], draw=partial(_copy_plots, subjects))


def _columns(what: str) -> list[Column]:
    own = [Column(key) for key in keys(lambda metric: metric.section == what)]
    small = [Column("norms.below_10th", at=case, label=label) for case, label in SMALL_NORMS.items()]
    return [*small, *own] if what == GRADIENTS else own


def _subject(one: StatisticsRecord) -> str:
    """The name of a subject: `gemma1b-step20`, `gemma1b-weights20`, `gemma1b-run`, or the file's name if that
    is unknown."""
    model, step = one.about.get("model"), one.about.get("step")
    if one.evolution is not None and model is not None:
        return f"{model}-run"
    if model is None or step is None:
        return Path(one.gradients).stem
    return f"{model}-{'step' if one.weights is None else 'weights'}{step}"


def _figures(folders: Sequence[Path]) -> dict[str, Spread]:
    """Spreads over the seeds of metrics by key, and for small norms by case."""
    values = table(value for folder in folders for value in values_in(folder))
    whole = spreads(values[values.case == ""], "metric")
    small = values[(values.metric == "norms.below_10th") & values.case.isin(list(SMALL_NORMS))]
    return whole | spreads(small, "case")


def _copy_plots(subjects: Mapping[str, Sequence[Path]], output: Path) -> None:
    """Copies the plots of each subject's first seed to the table's folder, as `<plot>-<name>-print.svg`."""
    for name, (folder, *_) in subjects.items():
        for path in sorted((folder / PLOTS).glob("*")):
            for form in FORMS:
                plot, found, suffix = path.name.partition(f"{form}.")
                if found:
                    content = read_bytes(path, remedy=REMEDY, inside=folder)
                    write_atomically(output / f"{plot}-{name}{form}.{suffix}", content)
