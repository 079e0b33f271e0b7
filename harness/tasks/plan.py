"""`task=plan`: a sweep's cells, whether they are done, and the predicted minutes of the others.

Minutes come from similar cells that have finished: runs with the cell's task, model, size, codec and
topology, and the same number of workers and steps on the same kind of cluster and network; the name of the
data does not matter. Runs on this machine come first, then the record of the same sweep in `results/`, then
all others there. Nothing is extrapolated: without such a run, minutes are unknown.
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
from gradwire.harness.record.settings import Configuration
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.configs import Settings, flatten
from gradwire.harness.report.sweep_cells import outcome_in
from gradwire.harness.report.sweep_record import FILE, CellRecord, SweepRecord, read_sweep_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError
from gradwire.harness.runtime.program import program
from gradwire.harness.runtime.progress import tracked
from gradwire.harness.tasks.planned_cell import PlannedCell
from gradwire.harness.tasks.sweep_plan import Plan

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

MOST_READ = 1000
"""The largest number of finished runs that are read, the newest ones."""

RESULTS = "results"

MACHINE = ("processor", "cores", "gpus")
"""The facts that identify a machine."""

HERE = "runs here"

Likeness = tuple[tuple[str, Any], ...]


class Predicted(NamedTuple):
    """The predicted time of a cell, and the record that it is from."""

    minutes: float
    source: str


@dataclass
class _Times:
    """Seconds of similar recorded cells, and their record."""

    source: str
    seconds: list[float] = field(default_factory=list)


class Predictions:
    """Predicted minutes of the cells of a plan; finished runs are read on first use."""

    def __init__(self, plan: Plan, results: Path | None = None) -> None:
        self._plan = plan
        self._results = results or conf_directory().parent / RESULTS

    def minutes(self, cell: PlannedCell) -> float | None:
        """The median of the finished cells similar to `cell`; None if there are none."""
        found = self.predicted(cell)
        return None if found is None else found.minutes

    def predicted(self, cell: PlannedCell) -> Predicted | None:
        """As `minutes`, with the source."""
        wanted = likeness(flatten(cell.config.mapping()))
        if wanted in self._alike:
            return Predicted(median(self._alike[wanted]) / 60, HERE)
        for known in (self._of_this_sweep, self._of_others):
            if wanted in known:
                return Predicted(median(known[wanted].seconds) / 60, known[wanted].source)
        return None

    @cached_property
    def _alike(self) -> dict[Likeness, list[float]]:
        """Seconds of the finished runs on this machine, by likeness."""
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
    def _of_this_sweep(self) -> dict[Likeness, _Times]:
        """The times in records of the plan's own sweeps, those of the same size."""
        return self._recorded([self._results / plan.sweep / plan.size for plan in self._plan.with_needs])

    @cached_property
    def _of_others(self) -> dict[Likeness, _Times]:
        """The times in all records."""
        return self._recorded(sorted(file.parent for file in self._results.glob(f"*/*/{FILE}")))

    def _recorded(self, folders: Sequence[Path]) -> dict[Likeness, _Times]:
        """Seconds of recorded cells by likeness, each from the first record that has any."""
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
    """The settings that determine the length of a run."""
    return tuple((key, repr(settings.get(key))) for key in ALIKE)


def _finished(plan: Plan) -> Iterator[Path]:
    """The finished runs in the folders of the plan's cells."""
    parents = {cell.directory.parent for each in plan.with_needs for cell in each.cells if cell.directory}
    try:
        runs = find_runs([parent for parent in parents if parent.is_dir()])
    except ValueError:  # too many folders to look at: a prediction is a help and no more
        return
    found = [folder for folder in runs if is_done(folder)]
    yield from sorted(found, key=lambda folder: folder.stat().st_mtime, reverse=True)[:MOST_READ]


UNKNOWN = "unknown"


@dataclass
class _Total:
    """Cells that are still to run, their total of known minutes, and the number of cells without any."""

    cells: int = 0
    done: int = 0
    left: int = 0
    minutes: float = 0.0
    unknown: int = 0

    def add(self, cell: PlannedCell, minutes: float | None) -> None:
        self.cells += 1
        if cell.done:
            self.done += 1
        else:
            self.left += 1
            self.minutes += minutes or 0.0
            self.unknown += minutes is None

    def __str__(self) -> str:
        known = f"{self.minutes:.1f} minutes predicted" if self.left > self.unknown else ""
        unknown = f"{self.unknown} of unknown length" if self.unknown else ""
        rest = f": {' and '.join(filter(None, (known, unknown)))}" if self.left else ""
        return f"{self.cells} runs, {self.done} done, {self.left} to run{rest}"


def run(config: Configuration) -> int:
    """Refuses to run, because only a sweep has a plan; `front` passes `task=plan` with a sweep to the
    sweeper."""
    raise ConfigError(
        "task=plan is about a sweep; add sweeps=<name>, or --multirun with several values, e.g. "
        f"{program()} task=plan sweeps=demo size=tiny"
    )


def plan_page(plan: Plan) -> str:
    """The runs of the sweep and of those that it needs, with a line for each cell in starting order; nothing
    is started."""
    predictions, whole = Predictions(plan), _Total()
    lines: list[str] = []
    sources: dict[str, int] = {}
    for each in plan.with_needs:
        total = _Total()
        own = []
        for cell in tracked(each.by_turns, f"{each.name}: predicting", "cell"):
            found = None if cell.done else predictions.predicted(cell)
            minutes = None if found is None else found.minutes
            if found is not None:
                sources[found.source] = sources.get(found.source, 0) + 1
            own.append((_state(cell), _minutes(cell, minutes), cell.cell.label))
            total.add(cell, minutes)
            whole.add(cell, minutes)
        lines += [f"sweep {each.name}: {total}"]
        lines += [f"  {state:<14} {minutes:>11}  {label}" for state, minutes, label in own]
    if len(plan.with_needs) > 1:
        lines.append(f"in all: {whole}")
    if sources:
        counted = "; ".join(f"{source} ({count})" for source, count in sources.items())
        lines.append(f"minutes are those of cells alike, whatever their data: {counted}")
    return "\n".join(lines)


def _state(cell: PlannedCell) -> str:
    if cell.done:
        return "done"
    return "to run" if cell.directory is not None else "needs others"


def _minutes(cell: PlannedCell, minutes: float | None) -> str:
    if cell.done:
        return ""
    return UNKNOWN if minutes is None else f"{minutes:.1f} min"
