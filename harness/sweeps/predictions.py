"""The minutes that the cells of a sweep are predicted to take, and the time that is left for them.

Predictions come from finished cells that are alike: runs with the cell's task, model, size, codec and
topology, and as many workers and steps on the same kind of cluster and network; what its data is called does
not matter. Runs on this machine come first, then the record of the same sweep in `results/`, then all others
there. Nothing is extrapolated: where there is no such run, minutes are unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from gradwire.codecs.fields import range_of
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.directory import CONFIG, is_done
from gradwire.harness.record.provenance import machine
from gradwire.harness.record.runs import find_runs
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.configs import Settings, flatten
from gradwire.harness.report.sweep_record import FILE, CellRecord, SweepRecord, read_sweep_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.progress import EVERY_S, in_words
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
"""The settings that largely determine a run's time."""

GRADIENTS = "gradients"

MOST_READ = 1000
"""The largest number of finished runs that are read, the newest ones."""

RESULTS = "results"

MACHINE = ("processor", "cores", "gpus")
"""The facts that identify a machine."""

HERE = "runs here"

Likeness = tuple[tuple[str, Any], ...]


class Prediction(NamedTuple):
    """The predicted minutes of a cell, and the record that they are from."""

    minutes: float
    source: str


@dataclass
class KnownTimes:
    """Seconds of finished cells that are alike, and where these are recorded."""

    source: str
    seconds: list[float] = field(default_factory=list)


Known = dict[Likeness, KnownTimes]
"""Times of finished cells by what makes them alike."""


class Predictions:
    """Predicted minutes of the cells of a plan; finished runs are read on first use."""

    def __init__(self, plan: Plan, results: Path | None = None) -> None:
        self._plan = plan
        self._results = results or conf_directory().parent / RESULTS

    def of(self, cell: PlannedCell) -> Prediction | None:
        """The median of the finished cells similar to `cell`; None if there are none."""
        wanted = likeness(flatten(cell.config.mapping()))
        for known in self._in_turn():
            if wanted in known:
                return Prediction(median(known[wanted].seconds) / 60, known[wanted].source)
        return None

    def minutes(self, cell: PlannedCell) -> float | None:
        """As `of`, without the source."""
        found = self.of(cell)
        return None if found is None else found.minutes

    def _in_turn(self) -> Iterator[Known]:
        """The times on this machine, then those in records, which are read where they are needed."""
        yield self._here
        yield self._of_this_sweep
        yield self._of_others

    @cached_property
    def _here(self) -> Known:
        """The times of the finished runs in the folders that the plan's cells go to."""
        found: Known = {}
        for folder in _finished(self._plan):
            try:
                settings = flatten(read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder))
                seconds = wall_time_in(folder, str(settings.get("task.name")))
            except UnusableFileError:
                continue
            if seconds is not None:
                found.setdefault(likeness(settings), KnownTimes(HERE)).seconds.append(seconds)
        return found

    @cached_property
    def _of_this_sweep(self) -> Known:
        """The times in records of the plan's own sweeps, those of the same size."""
        return self._recorded([self._results / plan.sweep / plan.size for plan in self._plan.with_needs])

    @cached_property
    def _of_others(self) -> Known:
        """The times in all records."""
        return self._recorded(sorted(file.parent for file in self._results.glob(f"*/*/{FILE}")))

    def _recorded(self, folders: Sequence[Path]) -> Known:
        """Seconds of recorded cells by likeness, each from the first record that has any."""
        found: Known = {}
        for folder in folders:
            try:
                record = read_sweep_record(folder)
            except UnusableFileError:
                continue
            for cell in record.cells:
                if cell.wall_time_s is None:
                    continue
                source = f"{RESULTS}/{folder.relative_to(self._results)}{_where(cell.machine)}"
                times = found.setdefault(_likeness_of(record, cell), KnownTimes(source))
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

    return likeness({key: value(key) for key in (*ALIKE, GRADIENTS)})


def likeness(settings: Settings) -> Likeness:
    """The settings that determine the length of a run, and the number of files that are replayed in a row."""
    alike = [(key, repr(settings.get(key))) for key in ALIKE]
    return (*alike, (GRADIENTS, str(_in_a_row(settings.get(GRADIENTS)))))


def _in_a_row(gradients: Any) -> int:
    """The number of files of gradients, given as paths or in the words of a sweep: `warm:step100-109`."""
    if isinstance(gradients, str):
        row = range_of(gradients.rpartition(":")[2].removeprefix("step"))
        return 1 if row is None else len(row)
    return len(gradients) if isinstance(gradients, list) else 1


def _finished(plan: Plan) -> Iterator[Path]:
    """The finished runs in the folders of the plan's cells."""
    parents = {cell.directory.parent for each in plan.with_needs for cell in each.cells if cell.directory}
    try:
        runs = find_runs([parent for parent in parents if parent.is_dir()])
    except ValueError:  # too many folders to look at: a prediction is a help and no more
        return
    found = [folder for folder in runs if is_done(folder)]
    yield from sorted(found, key=lambda folder: folder.stat().st_mtime, reverse=True)[:MOST_READ]


@dataclass
class Budget:
    """The minutes in which a sweep and the sweeps that it needs may run cells; None means no limit."""

    minutes: float | None
    predicted: Callable[[PlannedCell], float | None] = lambda cell: None
    """Returns the predicted minutes of a cell; None if not known."""
    _began: float = field(default_factory=time.monotonic)
    _cells: int = 0

    def allows(self, cell: PlannedCell) -> bool:
        """True if a cell may start: in time, and predicted to end in time. The first cell always may;
        otherwise a budget that is too small for it would never make progress."""
        self._cells += 1
        if self.minutes is None or self._cells == 1:
            return True
        left = self.minutes - (time.monotonic() - self._began) / 60
        return left > 0 and (self.predicted(cell) or 0.0) <= left


class Eta:
    """Estimates when the cells of a sweep will be done: from the times of earlier similar cells, corrected by
    the times of this sweep's cells so far or, without such predictions, from the mean of the latter."""

    def __init__(self, predicted: Callable[[PlannedCell], float | None]) -> None:
        self._predicted = predicted
        self._began, self._predictions = time.monotonic(), list[float | None]()

    def ran(self, cells: Sequence[PlannedCell]) -> None:
        """Counts finished cells."""
        self._predictions += [self._predicted(cell) for cell in cells]

    def left(self, cells: Sequence[PlannedCell]) -> str:
        """The time until `cells` are done, in words that follow a number; empty if it is unknown."""
        taken_s, before = time.monotonic() - self._began, self._predictions
        coming = [self._predicted(cell) for cell in cells]
        known = [minutes for minutes in coming if minutes is not None]
        known_before = [minutes for minutes in before if minutes is not None]
        if len(known) == len(coming) and len(known_before) == len(before):
            seconds = 60 * sum(known)
            if sum(known_before) > 0:
                seconds *= taken_s / (60 * sum(known_before))
        elif before:
            seconds = taken_s / len(before) * len(coming)
        else:
            return ""
        return f", about {in_words(seconds)} left" if taken_s + seconds >= EVERY_S else ""
