"""Writes the record of a sweep from its cells' run directories."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
from gradwire.harness.report.sweep_record import NETWORK, CellRecord, Status, SweepRecord, save_sweep_record
from gradwire.harness.timing.measure.metric import Kind
from gradwire.harness.timing.measure.metrics import kind_of

_FOLDERS = re.compile(r"(?<![\w./…])~?/(?:[^\s/,:'\"\[\]{}=]+/)+")
"""The folders in an absolute path, or in one below the home directory."""


TRAINED = ("train", "retime")
"""Tasks whose records are those of training runs."""

MOST_MEASURED = 200
"""The largest number of steps of a run whose errors are kept."""

ERRORS = ("vnmse", "zeroed_share", "weight_error")


class SweptCell(NamedTuple):
    """A cell as planned."""

    label: str
    directory: Path  # may not exist yet
    config: Mapping[str, Any]  # its validated configuration as plain values
    more: Mapping[str, Any] = {}  # values of axes that are not in it: of what it takes from another cell

    @property
    def task(self) -> str:
        return str(self.config["task"]["name"])


class CellContents(NamedTuple):
    """The contents of a run directory; all but the first two if it is finished."""

    status: Status
    reason: str = ""
    values: Sequence[Value] = ()
    recorded: Settings = {}
    summary: Mapping[str, Any] = {}
    wall_time_s: float | None = None

    @property
    def provenance(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.summary.get("provenance", self.summary)
        return found


def write_sweep_record(
    output: str | Path,
    cells: Sequence[SweptCell],
    *,
    name: str,
    size: str,
    command: str,
    axes: Sequence[str],
    paper: str | None = None,
    text: str | None = None,
    folder: str | None = None,
    overrides: Sequence[str] = (),
) -> list[Path]:
    """Writes `sweep.json` and `values.csv` of a sweep to `output`; returns the files.

    Cells that have not run, failed or have a damaged record are included with the reason, so the record can
    be written at any time. `axes` are dotted keys, `folder` and `overrides` as in the record; `command`,
    overrides, labels and values are written without this machine's folders.
    """
    retimed = any(cell.task == "retime" for cell in cells)
    axes = list(dict.fromkeys([*axes, *(RETIMED_AXES if retimed else ())]))
    outcomes = [outcome_in(cell.directory, cell.task) for cell in cells]
    off_axes = _off_axes(cells, outcomes, axes)
    pairs = zip(cells, outcomes, off_axes, strict=True)
    records = [_cell_record(cell, found, axes, off) for cell, found, off in pairs]
    values = [
        value._replace(run=record.label)
        for record, found in zip(records, outcomes, strict=True)
        for value in found.values
    ]
    values += _common_steps(cells, records)
    command = without_folders(command)
    settings = _common(cells, outcomes, axes)
    record = SweepRecord(
        *(name, size, paper, command, axes, text, settings, records, "", tuple(values)),
        folder=folder,
        overrides=list(map(without_folders, overrides)),
    )
    return save_sweep_record(Path(output), record)


def outcome_in(directory: Path, task: str) -> CellContents:
    """The state of the cell in `directory`, and its figures; a record that cannot be read is `damaged`."""
    if not (directory / CONFIG).is_file():
        return CellContents("unfinished", "not started")
    try:
        if is_done(directory):
            record = study_records().get(task)
            values = [*values_in(directory), *_measured_errors(directory, task)]
            config = read_yaml(directory / CONFIG, remedy=REMEDY, inside=directory)
            summary = restored(
                read_json(
                    directory / (SUMMARY if record is None else record.file), remedy=REMEDY, inside=directory
                )
            )
            wall_time_s = summary.get("wall_time_s", Attempts.wall_time_in(directory))
            return CellContents("done", "", values, flatten(config), summary, wall_time_s)
        if (directory / FAILED).is_file():
            return CellContents("failed", failure_in(directory))
        return CellContents("unfinished", "not finished")
    except UnusableFileError as error:
        return CellContents("damaged", f"{error.path.name} {error.problem}")


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


def _off_axes(
    cells: Sequence[SweptCell], outcomes: Sequence[CellContents], axes: Sequence[str]
) -> list[Settings]:
    """For each cell, the settings and machine properties, other than axes, in which finished cells of its
    task differ."""
    settings = [
        _changing(cell, found, axes) | flatten({MACHINE: found.provenance.get("machine") or {}})
        for cell, found in zip(cells, outcomes, strict=True)
    ]
    result: list[Settings] = [{} for _ in cells]
    done = [index for index, found in enumerate(outcomes) if found.status == "done"]
    for task in {cells[index].task for index in done}:
        alike = [index for index in done if cells[index].task == task]
        for key in differing_keys([settings[index] for index in alike]):
            for index in alike:
                result[index][key] = _portable(settings[index].get(key, ABSENT))
    return result


def _common(
    cells: Sequence[SweptCell], outcomes: Sequence[CellContents], axes: Sequence[str]
) -> dict[str, Settings]:
    """The settings that all cells of a task have in common, by task."""
    by_task: dict[str, list[Settings]] = {}
    for cell, found in zip(cells, outcomes, strict=True):
        by_task.setdefault(cell.task, []).append(_changing(cell, found, axes))
    result = {}
    for task, settings in by_task.items():
        differing = set(differing_keys(settings))
        first = settings[0].items()
        result[task] = {key: _portable(value) for key, value in first if key not in differing}
    return result


def _changing(cell: SweptCell, found: CellContents, axes: Sequence[str]) -> Settings:
    """The settings that change a cell's result, without axes and seed."""
    settings = (found.recorded | flatten(cell.config) | dict(cell.more)).items()
    return {
        key: value
        for key, value in settings
        if changes_result(key) and not covered(key, (*axes, SEED)) and FOLLOWS.get(key) not in axes
    }


def _cell_record(cell: SweptCell, found: CellContents, axes: Sequence[str], off_axes: Settings) -> CellRecord:
    flat = found.recorded | flatten(cell.config)
    done, about = found.status == "done", found.provenance
    return CellRecord(
        label=without_folders(cell.label),
        task=cell.task,
        axes={axis: _portable(_value_of(axis, flat, cell.more)) for axis in axes},
        seed=found.recorded.get(SEED, cell.config.get(SEED)),  # of a retimed run its own
        run=cell.directory.name,
        id=settings_id(cell.config),
        status=found.status,
        reason=without_folders(found.reason),
        off_axes=off_axes,
        wall_time_s=found.wall_time_s,
        metric=found.summary.get("metric") if cell.task in TRAINED else None,
        kind=_kind(cell.task, flat) if done else None,
        network=_network(cell, flat) if done else None,
        code_hash=about.get("code_hash"),
        commit=about.get("commit"),
        dirty=about.get("dirty"),
        machine=about.get("machine"),
        **_computation(cell, found),
    )


def _computation(cell: SweptCell, found: CellContents) -> dict[str, Any]:
    """The computation of a finished cell on the wall clock, and its workers on a machine."""
    if found.status != "done" or cell.task != "train" or found.summary.get("clock") != "wall":
        return {}
    workers = int(found.summary["workers"])
    together = found.summary.get("workers_per_machine") or workers
    return {"computation": same_computation(cell.config, workers), "workers": together}


def _common_steps(cells: Sequence[SweptCell], records: Sequence[CellRecord]) -> list[Value]:
    """The cells' step times with the computation time that they share: see `busy_times`."""
    runs = {
        record.label: load_run(cell.directory)
        for cell, record in zip(cells, records, strict=True)
        if record.computation is not None
    }
    common, found = common_steps(list(runs.values())), list[Value]()
    for label, run in runs.items():
        seconds = common.seconds.get(str(run.folder))
        if seconds is not None:
            kind = "modelled" if common.how == "modelled" else run.kind
            found.append(Value(label, "train", KEY, seconds, kind=kind, seed=run.seed))
    return found


def _value_of(axis: str, settings: Settings, more: Mapping[str, Any]) -> Any:
    """A cell's value of an axis: the name for a group, None if there is no such key. A value taken from
    another cell has its name in the plan, not its path."""
    return more[axis] if axis in more else settings.get(f"{axis}.name", settings.get(axis))


def _kind(task: str, settings: Settings) -> Kind:
    """The kind of its times; tasks without links are measured on one machine."""
    if task in ("retime", "predict", "simulate"):
        return "modelled"
    timed = task in ("train", "allreduce")
    return kind_of(settings.get("cluster.name"), settings.get("network.name")) if timed else "measured"


def _network(cell: SweptCell, settings: Settings) -> str | None:
    """Its links and the kind of its times, in words; None for tasks without links."""
    own = {key.partition(".")[2]: value for key, value in settings.items() if covered(key, (NETWORK,))}
    return recorded_text(own, _kind(cell.task, settings)) if own else None


def _portable(value: Any) -> Any:
    return without_folders(value) if isinstance(value, str) else value
