"""The definition of a study by its settings, its measurement and its record, with the code that runs all
studies and compares their records.

A study is `studies/<task>/study.py` with its settings, its record and

    STUDY = Study(PredictTask, PredictSummary, "gradwire.harness.studies.predict.task")

and `conf/task/<task>.yaml`. The record's fields carry their metrics (`record/figures.py`): tables, plots of
sweeps, CSV, wandb, the results frame and reports are generated from them. `study.py` must not import PyTorch,
because the command line's help reads the settings.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gradwire.harness.files.reading import read_text
from gradwire.harness.files.writing import write_atomically
from gradwire.harness.record.directory import PLOTS
from gradwire.harness.record.figures import StudyRecord
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.record.summary import REMEDY

if TYPE_CHECKING:
    from gradwire.harness.report.figures import Plot
    from gradwire.harness.report.tables import Page

TABLES = "tables.txt"
"""The file of the tables that a run prints, if they differ from those of its comparison."""


class Measured(NamedTuple):
    """The outcome of a measurement: the record's JSON, the text to print, and plots, which are drawn if
    requested."""

    record: str
    text: str = ""
    plots: Callable[[], Sequence[Plot | None]] = list
    interim: Path | None = None
    """A file from which an interrupted measurement continues; the record replaces it."""


@dataclass(frozen=True)
class Study:
    """A measurement with a record, run by `task=<name>`."""

    settings: type[RecordedConfig]
    record: type[StudyRecord]
    measuring: str
    """A module, imported when it is needed: `resolve(config)` fills in or refuses settings, `name(config)` is
    the beginning of the run directory's name, `measure(config, directory)` returns a `Measured`."""
    comparing: str = "gradwire.harness.studies.comparison"
    """A module with `compared(entries, axes)`, which returns a `Compared`."""
    times: bool = False
    """True if the figures are times: then `kernels=auto` never selects the slow definition."""

    def __post_init__(self) -> None:
        self.record.declare_metrics()

    def resolve(self, config: RecordedConfig) -> RecordedConfig:
        """The resolved configuration. Raises ValueError in one line if it cannot run."""
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
            from gradwire.harness.report.figures import write_plots

            write_plots(found.plots(), directory / PLOTS)

    def shown(self, directory: Path) -> str:
        """The tables of a finished run as text."""
        if (directory / TABLES).is_file():
            return read_text(directory / TABLES, remedy=REMEDY, inside=directory).removesuffix("\n")
        return self.compare([directory], directory).text

    def compare(self, folders: Sequence[Path], output: Path, axes: Sequence[str] = ()) -> Page:
        """Compares the runs in `folders`; writes table.md, table.csv, table.json and plots to `output`.

        Unfinished and damaged runs are reported and skipped; raises ValueError if none is left.
        """
        from gradwire.harness.studies.comparison import compare_records

        return compare_records(self.record, importlib.import_module(self.comparing), folders, output, axes)
