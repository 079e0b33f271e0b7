"""The minutes that the cells of a sweep are predicted to take.

They come from cells like them that have finished: runs with the cell's task, model, size, codec and
topology, and as many workers and steps on the same kind of cluster and network; what its data is called does
not matter. Runs on this machine come first, then the record of the same sweep in `results/`, then all others
there. Nothing is extrapolated: where there is no such run, minutes are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.directory import CONFIG, is_done
from gradwire.harness.record.provenance import machine
from gradwire.harness.record.runs import find_runs
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.configs import Settings, flatten
from gradwire.harness.report.sweep_record import FILE, CellRecord, SweepRecord, read_sweep_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.sweeps.plan import Plan
from gradwire.harness.sweeps.planned_cell import PlannedCell
from gradwire.harness.sweeps.record import wall_time_in

ALIKE = (
    *(
        "task.name",
        "model.name",
        "size.name",
        "codec.name",
        "topology.name",
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

MACHINE = ("processor", "cores", "gpus")
"""The facts that make a machine another one."""

HERE = "runs here"

Likeness = tuple[tuple[str, Any], ...]


class Prediction(NamedTuple):
    """The predicted minutes of a cell, and the record that they are from."""

    minutes: float
    source: str


@dataclass
class _Times:
    """Seconds of recorded cells that are alike, and the record that has them."""

    source: str
    seconds: list[float] = field(default_factory=list)


class Predictions:
    """Minutes of the cells of a plan; reads finished runs when it is first asked."""

    def __init__(self, plan: Plan, results: Path | None = None) -> None:
        self._plan = plan
        self._results = results or conf_directory().parent / RESULTS

    def of(self, cell: PlannedCell) -> Prediction | None:
        """The median of the finished cells like `cell`; None where there is none."""
        wanted = likeness(flatten(cell.config.mapping()))
        if wanted in self._here:
            return Prediction(median(self._here[wanted]) / 60, HERE)
        for known in (self._of_this_sweep, self._of_others):
            if wanted in known:
                return Prediction(median(known[wanted].seconds) / 60, known[wanted].source)
        return None

    def minutes(self, cell: PlannedCell) -> float | None:
        """As `of`, without the source."""
        found = self.of(cell)
        return None if found is None else found.minutes

    @cached_property
    def _here(self) -> dict[Likeness, list[float]]:
        """Seconds of the finished runs on this machine, by what makes them alike."""
        found: dict[Likeness, list[float]] = {}
        for folder in _finished(self._plan):
            try:
                settings = flatten(read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder))
                seconds = wall_time_in(folder, str(settings.get("task.name")))
            except UnusableFileError:
                continue
            if seconds is not None:
                found.setdefault(likeness(settings), []).append(seconds)
        return found

    @cached_property
    def _of_this_sweep(self) -> dict[Likeness, _Times]:
        """The times in records of the plan's own sweeps, those of the same size."""
        return self._recorded([self._results / plan.sweep / plan.size for plan in self._plan.with_needs])

    @cached_property
    def _of_others(self) -> dict[Likeness, _Times]:
        """The times in all records."""
        return self._recorded(sorted(file.parent for file in self._results.glob(f"*/*/{FILE}")))

    def _recorded(self, folders: Sequence[Path]) -> dict[Likeness, _Times]:
        """Seconds of recorded cells by what makes them alike, each from the first record that has some."""
        found: dict[Likeness, _Times] = {}
        for folder in folders:
            try:
                record = read_sweep_record(folder)
            except UnusableFileError:
                continue
            for cell in record.cells:
                if cell.wall_time_s is None:
                    continue
                source = f"{RESULTS}/{folder.relative_to(self._results)}{_where(cell.machine)}"
                times = found.setdefault(_likeness_of(record, cell), _Times(source))
                if times.source == source:
                    times.seconds.append(cell.wall_time_s)
        return found


def _where(recorded: Mapping[str, Any] | None) -> str:
    """` on <processor>, <cores> cores` where that is not this machine."""
    own = machine()
    if recorded is None or all(recorded.get(key) == own.get(key) for key in MACHINE):
        return ""
    gpus = "".join(f", {gpu}" for gpu in recorded.get("gpus") or [])
    return f" on another machine ({recorded.get('processor')}, {recorded.get('cores')} cores{gpus})"


def _likeness_of(record: SweepRecord, cell: CellRecord) -> Likeness:
    """`likeness` of a recorded cell."""

    def value(key: str) -> Any:
        if key in ("task.name", "size.name"):
            return cell.task if key == "task.name" else record.size
        if key in cell.off_axes:
            return cell.off_axes[key]
        return record.setting(cell, key.removesuffix(".name"))

    return likeness({key: value(key) for key in ALIKE})


def likeness(settings: Settings) -> Likeness:
    """The settings that runs of the same length have in common."""
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
