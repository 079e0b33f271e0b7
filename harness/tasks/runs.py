"""`task=runs`: the runs and sweeps in some folders, one line each."""

from __future__ import annotations

import fcntl
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradwire.harness.config.tasks import RunsConfig, RunsTask
from gradwire.harness.files.reading import UnusableFileError, printable
from gradwire.harness.files.structured import read_yaml
from gradwire.harness.record.directory import CONFIG, FAILED, SUMMARY, failure_in, is_done
from gradwire.harness.record.figures import study_records
from gradwire.harness.record.runs import find_runs, load_run
from gradwire.harness.record.seal import check_done
from gradwire.harness.record.summary import REMEDY, Summary
from gradwire.harness.report.configs import SEED, Settings, changes_result, flatten, labels
from gradwire.harness.report.frame import values_in
from gradwire.harness.report.sweep_record import find_sweep_records, read_sweep_record
from gradwire.harness.report.tables import Table, figure, number, render_text
from gradwire.harness.runtime.program import program
from gradwire.harness.sweeps.record import TRAINED
from gradwire.harness.timing.measure.accuracy import metric_mode
from gradwire.harness.timing.measure.metrics import METRICS, in_words

MOST_FIGURES = 2
"""The largest number of a study's figures in its line."""

MOST_REASON = 60
"""The largest number of characters of a reason."""


@dataclass
class Listed:
    """The line of a run."""

    folder: Path
    state: str
    task: str = ""
    settings: Settings = field(default_factory=dict)
    result: str = ""
    """The final metric, or the reason if the run is not done."""
    tta: str = ""
    metric_rank: float = math.inf
    tta_rank: float = math.inf
    """For sorting: lower is better."""
    label: str = ""

    @property
    def cells(self) -> list[str]:
        seed = self.settings.get(SEED)
        cells = [self.folder.name, self.state, self.label, "–" if seed is None else str(seed)]
        return [*cells, self.result or "–", self.tta or "–"]


def run(config: RunsTask) -> int:
    """Prints a table for each task, one of sweeps, and a line for each run that cannot be read."""
    asked = config.runs
    folders = [Path(text).expanduser() for text in asked.folders]
    for folder in folders:
        if not folder.is_dir() and asked.folders != RunsConfig().folders:
            raise ValueError(f"runs.folders={folder}: no such folder; use folders with runs, e.g. outputs")
    there = [folder for folder in folders if folder.is_dir()]
    listed = [listed_run(path) for path in find_runs(there) if (path / CONFIG).is_file()]
    name_settings(listed)
    chosen = [each for each in listed if is_asked(each, asked)]
    shown = sorted(chosen, key=lambda each: order(each, asked.sort))
    tables = [*run_tables(shown), *sweep_tables(there, asked)]
    where = ", ".join(map(str, folders))
    if not tables:
        none = f"none of the {len(listed)} runs in {where} fits"
        print(none if listed else f"no runs in {where}; {program()} size=tiny makes one")
        return 0
    print("\n\n".join(render_text(table) for table in tables))
    counts = Counter(each.state for each in shown)
    states = ", ".join(f"{count} {state}" for state, count in counts.items())
    print(f"\n{len(shown)} of {len(listed)} runs in {where}: {states or 'none'}")
    return 0


def listed_run(folder: Path) -> Listed:
    """The line of the run in `folder`, marked as damaged if its files cannot be used."""
    found = Listed(folder, state_in(folder))
    try:
        config = read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder)
        found.settings = flatten(config)
        found.task = str(found.settings.get("task.name", "train"))
        if found.state == "failed":
            found.result = printable(failure_in(folder), MOST_REASON)
        elif found.state == "done":
            check_done(folder)
            _add_result(found)
        elif found.task in TRAINED:
            found.result = printable(load_run(folder).reason, MOST_REASON)
    except UnusableFileError as error:
        found.state, found.result = "damaged", printable(f"{error.path.name} {error.problem}", MOST_REASON)
    except (ValueError, OSError) as error:
        found.state, found.result = "damaged", printable(str(error), MOST_REASON)
    return found


def state_in(folder: Path) -> str:
    """The state of the run in `folder`: `done`, `failed`, `running` while a process holds the directory, else
    `interrupted`."""
    if is_done(folder):
        return "done"
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    except OSError:  # a file system without locks
        pass
    finally:
        os.close(descriptor)
    return "failed" if (folder / FAILED).is_file() else "interrupted"


def _add_result(found: Listed) -> None:
    """Adds the metric and the times to accuracy of a training run, or the first figures of a study."""
    if found.task in TRAINED or found.task not in study_records():
        summary = Summary.read(found.folder / SUMMARY)
        found.result = f"{in_words(summary.metric)} {number(summary.final_metric)}"
        found.metric_rank = summary.final_metric * (-1 if metric_mode(summary.metric) == "max" else 1)
        times = {target: float(reached["train_time_s"]) for target, reached in summary.tta.items()}
        found.tta = ", ".join(f"{target}: {_seconds(time)}" for target, time in times.items())
        found.tta_rank = sum(times.values()) if times else math.inf
        return
    values: dict[str, float] = {}
    for value in values_in(found.folder):
        if not value.case and value.step is None:
            values.setdefault(value.metric, value.value)
    for key, each in list(values.items())[:1]:
        found.metric_rank = each * (-1 if METRICS[key].better == "higher" else 1)
    found.result = ", ".join(
        f"{metric.words} {figure(each, metric.shown)} {metric.shown.unit}".strip()
        for key, each in list(values.items())[:MOST_FIGURES]
        if (metric := METRICS[key])
    )


def _seconds(time_s: float) -> str:
    return f"{number(time_s)} s" if math.isfinite(time_s) else "not reached"


def name_settings(listed: Sequence[Listed]) -> None:
    """Labels each run by the settings in which it differs from the others of its task, except the seed."""
    for task in {each.task for each in listed}:
        alike = [each for each in listed if each.task == task and each.settings]
        own = [
            {key: value for key, value in each.settings.items() if changes_result(key) and key != SEED}
            for each in alike
        ]
        for each, label in zip(alike, labels(own), strict=True):
            each.label = label


def is_asked(each: Listed, asked: RunsConfig) -> bool:
    """True if a run has the requested state and text."""
    text = " ".join([each.task, *each.cells])
    return asked.state in ("all", each.state) and (asked.match is None or asked.match in text)


def order(each: Listed, by: str) -> Any:
    """The key by which runs are sorted: ties by name."""
    ranks = {
        "newest": -(each.folder / CONFIG).stat().st_mtime,
        "metric": each.metric_rank,
        "tta": each.tta_rank,
    }
    rank = ranks.get(by, 0.0)
    return (math.inf if math.isnan(rank) else rank, str(each.folder))


def run_tables(shown: Sequence[Listed]) -> Iterator[Table]:
    """A table for each task."""
    header = ["run", "state", "settings", "seed", "result", "time to accuracy"]
    for task in dict.fromkeys(each.task for each in shown):
        rows = [each.cells for each in shown if each.task == task]
        if all(row[-1] == "–" for row in rows):
            yield Table(f"task={task}" if task else "no task", header[:-1], [row[:-1] for row in rows], 5)
        else:
            yield Table(f"task={task}", header, rows, 6)


def sweep_tables(folders: Sequence[Path], asked: RunsConfig) -> Iterator[Table]:
    """A table of sweeps, their cells counted by state."""
    rows = []
    for place in dict.fromkeys(path for folder in folders for path in find_sweep_records(folder)):
        try:
            record = read_sweep_record(place)
        except ValueError as error:
            state, row = "damaged", [place.name, "damaged", "–", printable(str(error), MOST_REASON)]
        else:
            counts = Counter(cell.status for cell in record.cells)
            state = "done" if record.complete else "interrupted"
            cells = ", ".join(f"{count} {status}" for status, count in counts.items())
            row = [place.name, state, cells, ", ".join(record.axes) or "–"]
        if asked.state in ("all", state) and (asked.match is None or asked.match in " ".join(row)):
            rows.append(row)
    if rows:
        yield Table("sweeps", ["sweep", "state", "runs", "differing in"], rows, 4)
