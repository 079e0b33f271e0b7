"""How many minutes a sweep's cells will take, from cells like them that have finished.

A finished run counts if it has the cell's task, model, size and codec, and as many workers and steps on the
same kind of cluster and network. Runs on this machine come first, then the records in `results/`. Nothing is
extrapolated: where no such run is known, nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.directory import is_done
from gradwire.harness.record.runs import find_runs
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.record.writer import CONFIG
from gradwire.harness.report.configs import Settings, flatten
from gradwire.harness.report.sweep_cells import outcome_in
from gradwire.harness.report.sweep_record import FILE, read_sweep_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.tasks.sweep_plan import Plan, PlannedCell

ALIKE = (
    *(
        "task.name",
        "model.name",
        "size.name",
        "codec.name",
        "cluster.name",
        "cluster.workers",
        "network.name",
    ),
    *("train.steps", "train.epochs", "replay.repeats", "replay.rounds", "allreduce.repeats"),
    *("allreduce.coordinates", "score.limit"),
)
"""The settings that most of a run's time follows from."""

MOST_READ = 1000
"""Finished runs that are looked at, the newest ones."""

RESULTS = "results"

Likeness = tuple[tuple[str, Any], ...]


class Predictions:
    """Minutes of the cells of a plan; reads finished runs when it is first asked."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def minutes(self, cell: PlannedCell) -> float | None:
        """The median of the finished cells like `cell`; None where there is none."""
        named = [] if cell.directory is None else self._recorded.get(cell.directory.name, [])
        seconds = self._alike.get(likeness(flatten(cell.config.mapping())), []) or named
        return median(seconds) / 60 if seconds else None

    @cached_property
    def _alike(self) -> dict[Likeness, list[float]]:
        """Seconds of the finished runs on this machine, by what makes them alike."""
        found: dict[Likeness, list[float]] = {}
        for folder in _finished(self._plan):
            try:
                settings = flatten(read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder))
            except UnusableFileError:
                continue
            seconds = outcome_in(folder, str(settings.get("task.name"))).wall_time_s
            if seconds is not None:
                found.setdefault(likeness(settings), []).append(seconds)
        return found

    @cached_property
    def _recorded(self) -> Mapping[str, list[float]]:
        """Seconds of the cells in the committed records, by the names of their runs."""
        found: dict[str, list[float]] = {}
        root = conf_directory().parent / RESULTS
        for plan in self._plan.with_needs:
            folder = root / plan.sweep / plan.size
            if not (folder / FILE).is_file():
                continue
            try:
                record = read_sweep_record(folder)
            except UnusableFileError:
                continue
            for cell in record.cells:
                if cell.wall_time_s is not None:
                    found.setdefault(cell.run, []).append(cell.wall_time_s)
        return found


def likeness(settings: Settings) -> Likeness:
    """What a run has in common with those that take as long."""
    return tuple((key, repr(settings.get(key))) for key in ALIKE)


def _finished(plan: Plan) -> Iterator[Path]:
    """The finished runs in the folders that the plan's cells go to."""
    parents = {cell.directory.parent for each in plan.with_needs for cell in each.cells if cell.directory}
    try:
        runs = find_runs([parent for parent in parents if parent.is_dir()])
    except ValueError:  # too many folders to look at: a prediction is a help and no more
        return
    found = [folder for folder in runs if is_done(folder)]
    yield from sorted(found, key=lambda folder: folder.stat().st_mtime, reverse=True)[:MOST_READ]
