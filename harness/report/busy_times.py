"""Disturbed times of a comparison, and step times with the computation time that its runs share."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from gradwire.harness.files.reading import read_text
from gradwire.harness.record.busy import Observed, busy_line, observed, same_computation
from gradwire.harness.record.common_time import How, common_step_s, workers_per_core
from gradwire.harness.record.runs import Run
from gradwire.harness.report.groups import Group
from gradwire.harness.report.sweep_record import CellRecord, SweepRecord

KEY = "common_step_s"
"""The metric."""

_SHARED = (
    "Common computation: each run computes for the median CPU time of those that compute the same, times the "
    "workers that share a core"
)
MEANING: Mapping[How, str] = {
    "modelled": f"{_SHARED}; codec work takes its CPU time, and messages what the simulated clock says of "
    "links of the same rate (modelled).",
    "measured": f"{_SHARED}; all else is as measured, disturbed or not.",
}
"""The notes on such times."""


DISTURBED = "disturbed_times.csv"
"""The table of records whose times were taken beside other work, when records did not say how much."""

REMEDY = "take it from the repository again"


def disturbed_records(folder: Path) -> frozenset[str]:
    """The names of the sweeps in that table; empty if the folder has none."""
    path = folder / DISTURBED
    if not path.is_file():
        return frozenset()
    rows = csv.DictReader(io.StringIO(read_text(path, remedy=REMEDY, inside=folder)))
    if "record" not in (rows.fieldnames or ()):
        raise ValueError(f"{DISTURBED} has no column record; {REMEDY}")
    return frozenset(row["record"] for row in rows)


def busy_groups(groups: Sequence[Group]) -> str:
    """`busy_line` of all runs of a comparison."""
    found = []
    for group in groups:
        for run in group.runs:
            label = f"{group.label} seed {run.seed}" if len(group.runs) > 1 else group.label
            found.append(observed(run, label))
    return busy_line([each for each in found if each is not None])


def busy_cells(record: SweepRecord, cells: Collection[CellRecord]) -> str:
    """`busy_line` for cells of a sweep's record; empty for older records without this data."""
    figures = {cell.label: dict[str, float]() for cell in cells if cell.computation is not None}
    for value in record.values if figures else ():
        if value.run in figures and not value.case and value.step is None:
            figures[value.run][value.metric] = value.value
    return busy_line(
        [
            Observed(
                cell.label,
                cell.computation,
                (cell.machine or {}).get("cores"),
                cell.workers or 1,
                figures[cell.label],
            )
            for cell in cells
            if cell.computation is not None
        ]
    )


@dataclass(frozen=True)
class CommonSteps:
    """Seconds of a step by run directory; `how` tells how they were determined, None if there are none."""

    seconds: dict[str, float] = field(default_factory=dict)
    how: How | None = None


NO_STEPS = CommonSteps()
"""The common steps of a comparison without any."""


def common_steps(runs: Sequence[Run]) -> CommonSteps:
    """Each finished run's step on the wall clock with the common computation of those that do the same: the
    median over these of its CPU time, times the workers that share a core.

    Messages are modelled by the simulated clock if that is possible for all of them, else measured.
    """
    alike: dict[str, list[Run]] = {}
    for run in runs:
        if run.summary is not None and run.clock == "wall" and run.done.figures.get("compute_cpu_s"):
            alike.setdefault(same_computation(run.config, run.done.workers), []).append(run)
    computation = {key: _compute_s(own) for key, own in alike.items()}
    for how in ("modelled", "measured"):
        found = {
            str(run.folder): _step_s(run, computation[key], how) for key, own in alike.items() for run in own
        }
        known = {folder: seconds for folder, seconds in found.items() if seconds is not None}
        if known and len(known) == len(found):
            return CommonSteps(known, how)
    return NO_STEPS


def busy_notes(busy: str, common: CommonSteps) -> list[str]:
    """The notes of a comparison on a busy machine, described by `busy`; empty if it is empty."""
    return [busy, *([MEANING[common.how]] if common.how is not None else [])] if busy else []


def _compute_s(runs: Iterable[Run]) -> float:
    return median(workers_per_core(run) * (run.done.figures["compute_cpu_s"] or 0.0) for run in runs)


def _step_s(run: Run, compute_s: float, how: How) -> float | None:
    """Cached, because a sweep asks twice, for its tables and for its record; a new attempt of a run has
    another time."""
    key = (run.folder, run.done.config_hash, run.done.train_time_s, compute_s, how)
    if key not in _KNOWN:
        if len(_KNOWN) >= MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = common_step_s(run, compute_s, how)
    return _KNOWN[key]


MOST_KNOWN = 4096
_KNOWN: dict[tuple[Path, str, float, float, How], float | None] = {}
