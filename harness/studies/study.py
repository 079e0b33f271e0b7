"""A study: settings, a measurement, a record; running it and comparing its records stand here once.

A study is `studies/<task>/study.py` with its settings, its record and

    STUDY = Study(PredictTask, PredictSummary, "gradwire.harness.studies.predict.task")

and `conf/task/<task>.yaml`. The record's fields carry their metrics (`record/figures.py`): tables, plots of
sweeps, CSV, wandb, the results frame and reports follow from them. `study.py` imports no PyTorch, because the
command line's help reads the settings.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gradwire.harness.files.reading import UnusableFileError, read_text
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import CONFIG, PLOTS
from gradwire.harness.record.figures import StudyRecord
from gradwire.harness.record.seal import REMEDY
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.report.configs import SEED, Settings, changes_result, flatten, labels
from gradwire.harness.report.figures import Plot, write_plots
from gradwire.harness.report.frame import Value, spreads, table, values_in
from gradwire.harness.report.tables import Column, Line, Page, Table, figures_table, finished
from gradwire.harness.timing.measure.metric import Spread

SPREADS = "Figures: median over seeds (lowest–highest)."

TABLES = "tables.txt"
"""The tables that a run prints, where these are not those of its comparison."""


class Measured(NamedTuple):
    """The outcome of a measurement: the record's JSON, the text to print, plots, drawn if asked for."""

    record: str
    text: str = ""
    plots: Callable[[], Sequence[Plot | None]] = list
    interim: Path | None = None
    """A file that an interrupted measurement continues from; the record takes its place."""


class Entry(NamedTuple):
    """A finished run in a comparison."""

    folder: Path
    record: Any
    """An instance of the study's record class."""
    config: Mapping[str, Any]

    @property
    def settings(self) -> Settings:
        """The configuration by dotted key."""
        return flatten(self.config)


@dataclass(frozen=True)
class Compared:
    """The tables of some runs, the rows of table.csv, those of table.json where they hold more, and plots."""

    tables: Sequence[Table]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()
    content: Sequence[Mapping[str, Any]] | None = None
    draw: Callable[[Path], object] | None = None


@dataclass(frozen=True)
class Study:
    """A measurement that keeps a record, by `task=<name>`."""

    settings: type[RecordedConfig]
    record: type[StudyRecord]
    measuring: str
    """A module, imported when it is needed: `resolve(config)` fills in or refuses settings, `name(config)` is
    the beginning of the run directory's name, `measure(config, directory)` returns a `Measured`."""
    comparing: str = __name__
    """A module with `compared(entries, axes)`, which returns a `Compared`."""
    times: bool = False
    """True if the figures are times: `kernels=auto` then never means the slow definition."""

    def resolve(self, config: RecordedConfig) -> RecordedConfig:
        """The configuration as it runs; ValueError in one line if it cannot run."""
        found: RecordedConfig = importlib.import_module(self.measuring).resolve(config)
        return found

    def name(self, config: RecordedConfig) -> str:
        """The beginning of the run directory's name."""
        return str(importlib.import_module(self.measuring).name(config))

    def run(self, config: RecordedConfig, directory: Path) -> int:
        """Measures and prints tables, or prints those of the finished record; returns the exit code 0."""
        from gradwire.harness.studies.once import run_once

        run_once(config, directory, partial(self._write, config, directory))
        print(self.shown(directory))
        print(f"run: {directory}")
        return 0

    def _write(self, config: RecordedConfig, directory: Path) -> None:
        found: Measured = importlib.import_module(self.measuring).measure(config, directory)
        write_atomically(directory / self.record.file, found.record)
        if found.text:
            write_atomically(directory / TABLES, found.text + "\n")
        if found.interim is not None:
            found.interim.unlink(missing_ok=True)
        if config.plots:
            write_plots([plot for plot in found.plots() if plot is not None], directory / PLOTS)

    def shown(self, directory: Path) -> str:
        """The tables of a finished run as text."""
        if (directory / TABLES).is_file():
            return read_text(directory / TABLES, remedy=REMEDY, inside=directory).removesuffix("\n")
        return self.compare([directory], directory).text

    def compare(self, folders: Sequence[Path], output: Path, axes: Sequence[str] = ()) -> Page:
        """Compares the runs in `folders`; writes table.md, table.csv, table.json and plots to `output`.

        Unfinished and damaged runs are named and left out; ValueError when none is left.
        """
        done, left_out = finished(folders)
        entries = list[Entry]()
        for folder in done:
            try:
                record = self.record.read(folder / self.record.file)
                config = read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder)
            except UnusableFileError as error:
                left_out.append(f"{folder.name}: left out, {error}")
            else:
                entries.append(Entry(folder, record, config))
        if not entries:
            raise ValueError(f"nothing to compare: {'; '.join(left_out)}")
        found: Compared = importlib.import_module(self.comparing).compared(entries, axes)
        page = Page(list(found.tables), [*found.notes, *left_out])
        rows = found.rows if found.content is None else found.content
        page.write(output, found.rows, {"rows": rows, "left_out": left_out})
        if found.draw is not None:
            found.draw(output)
        return page


Item = TypeVar("Item")


def listed(title: str, items: Iterable[Item], columns: Mapping[str, Callable[[Item], str]]) -> Table:
    """A table with a row for each item, and by its head for each column the text of its cells."""
    return Table(title, list(columns), [[cell(item) for cell in columns.values()] for item in items])


def titled_tables(
    lines: Iterable[tuple[str, Line]],
    names: Callable[[str], Sequence[str]] | Sequence[str],
    columns: Callable[[str], Iterable[Column | str]] | Iterable[Column | str],
) -> list[Table]:
    """A table for each title among `lines`, in their order; names and columns may depend on the title."""
    by_title: dict[str, list[Line]] = {}
    for title, line in lines:
        by_title.setdefault(title, []).append(line)
    return [
        figures_table(
            title,
            names(title) if callable(names) else names,
            own,
            columns(title) if callable(columns) else columns,
        )
        for title, own in by_title.items()
    ]


def over_seeds(records: Sequence[Any], fields: Iterable[str]) -> dict[str, Spread | None]:
    """Fields of records that differ only in the seed; None where one of them has no value."""
    values = {key: [getattr(record, key) for record in records] for key in fields}
    return {key: None if None in found else Spread.of(found) for key, found in values.items()}


def compared(entries: Sequence[Entry], axes: Sequence[str]) -> Compared:
    """A line for each configuration and case with all metrics of the records, spreads over seeds."""
    settings = [
        {key: value for key, value in entry.settings.items() if changes_result(key) and key != SEED}
        for entry in entries
    ]
    names = labels(settings, axes) if len(entries) > 1 else [entries[0].folder.name]
    values = [
        Value(name, *value[1:])
        for name, entry in zip(names, entries, strict=True)
        for value in values_in(entry.folder)
    ]
    found = spreads(table(values), "run", "case", "metric")
    figures: dict[tuple[str, str], dict[str, Spread]] = {}
    for value in values:
        line = figures.setdefault((value.run, value.case), {})
        line[value.metric] = found[value.run, value.case, value.metric]
    heads = ["run", "case"] if any(case for _, case in figures) else ["run"]
    metrics = list(dict.fromkeys(value.metric for value in values))
    lines = [(list(key)[: len(heads)], own) for key, own in figures.items()]
    rows = [
        dict(zip(heads, name, strict=True))
        | {
            f"{key}_{part}": getattr(each, part)
            for key, each in own.items()
            for part in Spread.__match_args__
        }
        for name, own in lines
    ]
    title = str(entries[0].config["task"]["name"])
    shown = figures_table(title, heads, lines, metrics)
    return Compared([replace(shown, names=len(heads))], rows, [SPREADS])
