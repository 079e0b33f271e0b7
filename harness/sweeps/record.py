"""Writes the record of a sweep from its cells' run directories."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.harness.files.finite_json import restored
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_json, read_yaml
from gradwire.harness.network.configured import recorded_text
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.record.busy import same_computation
from gradwire.harness.record.directory import CONFIG, FAILED, SUMMARY, failure_in, is_done
from gradwire.harness.record.figures import study_records
from gradwire.harness.record.identity import FOLLOWS, settings_id
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.busy_times import KEY, common_steps
from gradwire.harness.report.claims.papers import claims_on
from gradwire.harness.report.configs import (
    ABSENT,
    MACHINE,
    RETIMED_AXES,
    SEED,
    Settings,
    changes_result,
    covered,
    differing_keys,
    flatten,
)
from gradwire.harness.report.frame import Value, values_in
from gradwire.harness.report.kept_rows import KeptRow, series_of
from gradwire.harness.report.sweep_record import (
    FILE,
    CellRecord,
    Status,
    SweepRecord,
    read_sweep_record,
    save_sweep_record,
)
from gradwire.harness.timing.measure.metric import Kind
from gradwire.harness.timing.measure.metrics import kind_of

_FOLDERS = re.compile(r"(?<![\w./…])~?/(?:[^\s/,:'\"\[\]{}=]+/)+")
"""The folders in an absolute path, or in one below the home directory."""


NETWORK = "network"
"""The group of a configuration that describes the links."""

TRAINED = ("train", "retime")
"""Tasks whose records are those of training runs."""

MOST_MEASURED = 200
"""The largest number of steps of a run whose errors are kept."""

ERRORS = ("vnmse", "zeroed_share", "weight_error")


class SweptCell(NamedTuple):
    """A cell as it was planned."""

    label: str
    directory: Path  # may not exist yet
    config: Mapping[str, Any]  # its validated configuration as plain values
    needed: Mapping[str, Any] = {}  # values of axes that are not in it: of what it takes from another cell

    @property
    def task(self) -> str:
        return str(self.config["task"]["name"])


@dataclass(frozen=True)
class SweptCells:
    """A sweep as it was planned: all of its record but what its runs have left."""

    name: str
    size: str
    command: str
    axes: Sequence[str]
    """Dotted keys."""
    cells: Sequence[SweptCell]
    folder: str
    paper: str | None = None
    text: str | None = None
    overrides: Sequence[str] = field(default_factory=tuple)


class _Contents(NamedTuple):
    """The contents of a run directory; all but the first two if it is finished."""

    status: Status
    reason: str = ""
    values: Sequence[Value] = ()
    recorded: Settings = {}
    summary: Mapping[str, Any] = {}
    wall_time_s: float | None = None


def write_sweep_record(output: str | Path, sweep: SweptCells) -> list[Path]:
    """Writes the record of a sweep to `output`; returns the files.

    Cells that did not run yet, failed or have a damaged record are in it with the reason, so it can be
    written at any time. Command, overrides, labels and values lose this machine's folders.
    """
    retimed = any(cell.task == "retime" for cell in sweep.cells)
    axes = list(dict.fromkeys([*sweep.axes, *(RETIMED_AXES if retimed else ())]))
    cells = [_Cell(cell, contents_of(cell.directory, cell.task), axes) for cell in sweep.cells]
    records = [cell.record(off) for cell, off in zip(cells, _off_axes(cells), strict=True)]
    values = [value._replace(run=cell.label) for cell in cells for value in cell.found.values]
    record = SweepRecord(
        name=sweep.name,
        size=sweep.size,
        paper=sweep.paper,
        command=without_folders(sweep.command),
        axes=axes,
        text=sweep.text,
        settings=_common(cells),
        cells=records,
        values_sha256="",
        values=(*values, *_common_steps(cells)),
        rows=tuple(row for cell in cells for row in cell.rows()),
        folder=sweep.folder,
        overrides=list(map(without_folders, sweep.overrides)),
        claims=_digests(Path(output), sweep.name, records),
    )
    return save_sweep_record(Path(output), record)


def _digests(output: Path, sweep: str, cells: Sequence[CellRecord]) -> dict[str, str]:
    """The digests of the claims about a sweep, those alone that stood when the first of its finished cells
    was recorded: a record that is written again does not make later claims earlier."""
    found = {claim.id: claim.digest for claim in claims_on(sweep) if claim.holds is not None}
    if not (output / FILE).is_file():
        return found
    try:
        earlier = read_sweep_record(output)
    except UnusableFileError:
        return {}
    kept = {cell.id for cell in earlier.cells if cell.done} & {cell.id for cell in cells if cell.done}
    return {name: own for name, own in found.items() if not kept or earlier.claims.get(name) == own}


def contents_of(directory: Path, task: str) -> _Contents:
    """The state of the cell in `directory`, and its figures; a record that cannot be read is `damaged`."""
    if not (directory / CONFIG).is_file():
        return _Contents("unfinished", "not started")
    try:
        if is_done(directory):
            values = [*values_in(directory), *_measured_errors(directory, task)]
            config = read_yaml(directory / CONFIG, remedy=REMEDY, inside=directory)
            summary = _summary_in(directory, task)
            wall_time_s = _wall_time_s(directory, summary)
            return _Contents("done", "", values, flatten(config), summary, wall_time_s)
        if (directory / FAILED).is_file():
            return _Contents("failed", failure_in(directory))
        return _Contents("unfinished", "not finished")
    except UnusableFileError as error:
        return _Contents("damaged", f"{error.path.name} {error.problem}")


def wall_time_in(directory: Path, task: str) -> float | None:
    """The seconds that the finished run in `directory` took, if it says so. Raises UnusableFileError."""
    return _wall_time_s(directory, _summary_in(directory, task))


def _summary_in(directory: Path, task: str) -> Mapping[str, Any]:
    record = study_records().get(task)
    file = directory / (SUMMARY if record is None else record.file)
    found: Mapping[str, Any] = restored(read_json(file, remedy=REMEDY, inside=directory))
    return found


def _wall_time_s(directory: Path, summary: Mapping[str, Any]) -> float | None:
    seconds: float | None = summary.get("wall_time_s", Attempts.wall_time_in(directory))
    return seconds


def without_folders(text: str) -> str:
    """`text` with each path that begins at the root or the home directory reduced to its last part."""
    return _FOLDERS.sub("…/", text)


def _measured_errors(directory: Path, task: str) -> list[Value]:
    """The curves of `ERRORS` over a run, thinned out to `MOST_MEASURED` steps each."""
    if task not in TRAINED:
        return []
    values = [value for value in values_in(directory, steps=True) if value.step is not None]
    curves = [[value for value in values if value.metric == metric] for metric in ERRORS]
    return [value for curve in curves for value in curve[:: math.ceil(len(curve) / MOST_MEASURED) or 1]]


@dataclass(frozen=True)
class _Cell:
    """A cell as it was planned, what is in its directory, and the axes of its sweep."""

    planned: SweptCell
    found: _Contents
    axes: Sequence[str]

    @property
    def label(self) -> str:
        return without_folders(self.planned.label)

    @property
    def task(self) -> str:
        return self.planned.task

    @property
    def done(self) -> bool:
        return self.found.status == "done"

    @property
    def provenance(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.found.summary.get("provenance", self.found.summary)
        return found

    @cached_property
    def settings(self) -> Settings:
        """Its configuration by dotted key, what the run has recorded included."""
        return self.found.recorded | flatten(self.planned.config)

    @cached_property
    def changing(self) -> Settings:
        """The settings that change its result, axes and seed aside."""
        return {
            key: value
            for key, value in (self.settings | dict(self.planned.needed)).items()
            if changes_result(key)
            and not covered(key, (*self.axes, SEED))
            and FOLLOWS.get(key) not in self.axes
        }

    @property
    def kind(self) -> Kind:
        """The kind of its times; tasks without links are measured on one machine."""
        if self.task in ("retime", "predict", "simulate"):
            return "modelled"
        if self.task not in ("train", "allreduce"):
            return "measured"
        share_device = self.settings.get("cluster.share_device") is True
        names = self.settings.get("cluster.name"), self.settings.get("network.name")
        return kind_of(*names, share_device=share_device)

    @property
    def network(self) -> str | None:
        """Its links and the kind of its times, in words; None for tasks without links."""
        own = {
            key.partition(".")[2]: value for key, value in self.settings.items() if covered(key, (NETWORK,))
        }
        return recorded_text(own, self.kind) if own else None

    @property
    def computes(self) -> bool:
        """True if it is finished and its computation was timed by the wall clock."""
        return self.done and self.task == "train" and self.found.summary.get("clock") == "wall"

    def record(self, off_axes: Settings) -> CellRecord:
        """Its record; `off_axes` are the settings in which it differs from others though they are no axes."""
        config, found, about = self.planned.config, self.found, self.provenance
        workers = int(found.summary["workers"]) if self.computes else None
        return CellRecord(
            label=self.label,
            task=self.task,
            axes={axis: _portable(self._value_of(axis)) for axis in self.axes},
            seed=found.recorded.get(SEED, config.get(SEED)),  # of a retimed run its own
            run=self.planned.directory.name,
            id=settings_id(config),
            status=found.status,
            reason=without_folders(found.reason),
            off_axes=off_axes,
            wall_time_s=found.wall_time_s,
            metric=found.summary.get("metric") if self.task in TRAINED else None,
            kind=self.kind if self.done else None,
            code_hash=about.get("code_hash"),
            commit=about.get("commit"),
            dirty=about.get("dirty"),
            machine=about.get("machine"),
            computation=None if workers is None else same_computation(config, workers),
            workers=None if workers is None else found.summary.get("workers_per_machine") or workers,
            network=self.network if self.done else None,
        )

    def rows(self) -> list[KeptRow]:
        """The rows of its training run; none for other tasks."""
        if not self.done or self.task not in TRAINED:
            return []
        return list(series_of(self.label, load_run(self.planned.directory)))

    def _value_of(self, axis: str) -> Any:
        """Its value of an axis: of a group its name; None where it has no such key. What it takes from
        another cell is called as the plan calls it, not by its path."""
        needed = self.planned.needed
        return needed[axis] if axis in needed else self.settings.get(f"{axis}.name", self.settings.get(axis))


def _off_axes(cells: Sequence[_Cell]) -> list[Settings]:
    """For each cell, the settings and machine properties, other than axes, in which finished cells of its
    task differ."""
    settings = [cell.changing | flatten({MACHINE: cell.provenance.get("machine") or {}}) for cell in cells]
    result: list[Settings] = [{} for _ in cells]
    done = [index for index, cell in enumerate(cells) if cell.done]
    for task in {cells[index].task for index in done}:
        alike = [index for index in done if cells[index].task == task]
        for key in differing_keys([settings[index] for index in alike]):
            for index in alike:
                result[index][key] = _portable(settings[index].get(key, ABSENT))
    return result


def _common(cells: Sequence[_Cell]) -> dict[str, Settings]:
    """The settings that all cells of a task have in common, by task."""
    by_task: dict[str, list[Settings]] = {}
    for cell in cells:
        by_task.setdefault(cell.task, []).append(cell.changing)
    result = {}
    for task, settings in by_task.items():
        differing = set(differing_keys(settings))
        first = settings[0].items()
        result[task] = {key: _portable(value) for key, value in first if key not in differing}
    return result


def _common_steps(cells: Sequence[_Cell]) -> list[Value]:
    """The cells' step times with the computation time that they share: see `busy_times`."""
    runs = {cell.label: load_run(cell.planned.directory) for cell in cells if cell.computes}
    common, found = common_steps(list(runs.values())), list[Value]()
    for label, run in runs.items():
        seconds = common.seconds.get(str(run.folder))
        if seconds is not None:
            kind = "modelled" if common.how == "modelled" else run.kind
            found.append(Value(label, "train", KEY, seconds, kind=kind, seed=run.seed))
    return found


def _portable(value: Any) -> Any:
    return without_folders(value) if isinstance(value, str) else value
