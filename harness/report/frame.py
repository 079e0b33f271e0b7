"""All records' figures in one long table, with a line for each value of a metric in a run.

`load_results("outputs")` reads every finished record below a folder, of whatever task. Its columns are `run`
(the directory), `task`, `metric` (a key of METRICS where it is one), `value`, `unit`, `case` (the part of the
run: a phase, a target, a benchmarked operation; empty for the whole run), `kind`, `seed` and `step` (of a
training step, an evaluation, a round; missing for the whole run). `load_settings` returns the runs' settings,
by the same `run`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from gradwire.harness.files.finite_json import restored
from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import read_json, read_yaml
from gradwire.harness.record.directory import CONFIG, SUMMARY, is_done
from gradwire.harness.record.figures import study_records
from gradwire.harness.record.runs import Run, find_runs, load_run
from gradwire.harness.record.seal import check_done
from gradwire.harness.record.summary import REMEDY
from gradwire.harness.report.configs import flatten
from gradwire.harness.timing.measure.metric import Kind, Spread
from gradwire.harness.timing.measure.metrics import METRICS

if TYPE_CHECKING:
    from pandas import DataFrame


LAST = 10
"""The number of last training steps whose mean loss is the `train_loss` of a run."""


class Value(NamedTuple):
    """One line of the table."""

    run: str
    task: str
    metric: str
    value: float
    case: str = ""
    kind: Kind = "measured"
    seed: int | None = None
    step: int | None = None


def load_results(*folders: str | Path, steps: bool = False) -> DataFrame:
    """The figures of all finished records at or below `folders`; with `steps` every training step's, too.

    Raises ValueError in one line for a record that cannot be read.
    """
    return table(value for folder in find_runs(folders) for value in values_in(folder, steps=steps))


def load_settings(*folders: str | Path) -> DataFrame:
    """A line for each record at or below `folders`, by `run`: its configuration by dotted key."""
    from pandas import DataFrame

    runs = [folder for folder in find_runs(folders) if (folder / CONFIG).is_file()]
    flat = [flatten(read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder)) for folder in runs]
    return DataFrame(flat, index=[str(folder) for folder in runs]).rename_axis("run")


def table(values: Iterable[Value]) -> DataFrame:
    """The long table of `values`, in their order."""
    from pandas import DataFrame

    found = DataFrame(list(values), columns=list(Value._fields)).astype(
        {"value": "float64", "seed": "Int64", "step": "Int64"}
    )
    study_records()  # METRICS has those of studies then
    units = {key: metric.unit for key, metric in METRICS.items()}
    found.insert(found.columns.get_loc("value") + 1, "unit", found.metric.map(units).fillna(""))
    return found


def values_in(folder: Path, *, steps: bool = False) -> Iterator[Value]:
    """The figures of the record in `folder`; none unless it is finished."""
    task = task_in(folder)
    record = study_records().get(task)
    file = SUMMARY if record is None else record.file
    if not (folder / file).is_file() or not is_done(folder):
        return
    if record is None:
        yield from values_of(load_run(folder), steps=steps)
        return
    check_done(folder)
    found = restored(read_json(folder / file, remedy=REMEDY, inside=folder))
    try:
        yield from [Value(str(folder), task, *each) for each in record.figures(found)]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnusableFileError(
            folder / file, f"is not a record of task={task} ({error!r})", REMEDY
        ) from None


def task_in(folder: Path) -> str:
    """The task that left the record."""
    if not (folder / CONFIG).is_file():
        return "train"
    task = read_yaml(folder / CONFIG, remedy=REMEDY, inside=folder).get("task")
    return str(task.get("name")) if isinstance(task, Mapping) else "train"


def values_of(run: Run, *, steps: bool = False) -> Iterator[Value]:
    """The figures of a finished run: its own, then those by target, phase, evaluation and, if requested,
    step."""
    summary = run.done
    about = (str(run.folder), "train" if summary.trace_of is None else "retime")

    def value(metric: str, found: float, case: str = "", step: int | None = None) -> Value:
        kind = METRICS[metric].kind(run.kind) if metric in METRICS else "measured"
        return Value(*about, metric, found, case, kind, run.seed, step)

    for key, found in summary.values().items():
        yield value(key, found)
    for key, percentiles in summary.spread.items():
        for case, seconds in percentiles.items():
            yield value(key, seconds, case)
    losses = [row["loss"] for row in run.steps[-LAST:] if row.get("loss") is not None]
    if losses:
        yield value("train_loss", fmean(losses))
    for target, reached in summary.tta.items():
        yield value("time_to_accuracy_s", reached["train_time_s"], target)
    for phase, count in summary.bytes_by_phase.items():
        yield value("bytes_sent", count, phase)
    for row in (*run.evals, *(run.steps if steps else ())):
        for key, found in flatten(row).items():
            if key != "step" and isinstance(found, int | float):
                yield value(key, found, step=row["step"])


def spreads(found: DataFrame, *by: str) -> dict[Any, Spread]:
    """The spread of the lines with equal values in the columns `by`, keyed by these values (a tuple for
    several columns).

    NaN counts as infinity, like a missed target.
    """
    groups = found.assign(value=found.value.fillna(math.inf)).groupby(list(by))
    return {key: Spread(*line) for key, *line in groups.value.agg(["median", "min", "max"]).itertuples()}


def over_runs(found: DataFrame, runs: Iterable[str]) -> dict[str, Spread]:
    """The spread of each metric over whole runs."""
    return spreads(found[found.run.isin(list(runs)) & (found.case == "") & found.step.isna()], "metric")
