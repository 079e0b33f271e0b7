"""Compares runs: groups over seeds, targets from BF16, tables, plots, and notes on their interpretation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.report.busy_times import CommonSteps, busy_groups, busy_notes, common_steps
from gradwire.harness.report.comparison_tables import sections, tables_of
from gradwire.harness.report.configs import check_comparable
from gradwire.harness.report.frame import table
from gradwire.harness.report.group_rows import GroupRow, against_baseline, make_row
from gradwire.harness.report.groups import Group, group_runs
from gradwire.harness.report.notes import notes
from gradwire.harness.report.tables import Page
from gradwire.harness.timing.measure.metric import Spread


@dataclass(frozen=True)
class Comparison(Page):
    """The result of `compare`: figures by group, notes, and the runs that have no figures."""

    rows: list[GroupRow]
    notes: list[str]
    left_out: list[str]  # a line with the name of each run that failed, did not finish, or is missing
    files: list[Path] = field(default_factory=list)


def compare(folders: Sequence[str | Path], output: str | Path, axes: Sequence[str] = ()) -> Comparison:
    """Compares the runs in `folders`; writes table.md, table.csv, table.json and plots to `output`.

    `axes` are the dotted keys in which the runs may differ besides the seed; a group such as `codec` covers
    all its keys. Times to accuracy are relative to the groups with codec `bf16`. Raises ValueError if the
    runs differ in anything else that changes a result, if a run is given twice, or if none is done.
    """
    # Imported here: reading tables needs no matplotlib.
    from gradwire.harness.report.plots import plot_groups

    runs, left_out = _load(folders)
    usable = [run for run in runs if run.status != "unfinished"]
    if not any(run.status == "done" for run in usable):
        raise ValueError(f"nothing to compare, no run is done: {'; '.join(left_out) or 'no folder given'}")
    check_comparable(usable, axes)
    groups = group_runs(usable, axes)
    common = common_steps([run for group in groups for run in group.runs])
    rows, complaints = _rows(groups, common)
    busy = busy_groups(groups)
    remarks = busy_notes(busy, common) + complaints + notes(rows, groups)
    how = common.how if busy else None
    tables = [table for each in sections(rows) for table in tables_of(each, busy=bool(busy), how=how)]
    comparison = Comparison(tables, [*remarks, *left_out], rows, remarks, left_out)
    content = {"rows": [expanded(asdict(row)) for row in rows], "notes": remarks, "left_out": left_out}
    files = comparison.write(Path(output), [_flat(row) for row in rows], content)
    return replace(
        comparison, files=files + plot_groups([group for group in groups if group.runs], Path(output))
    )


def _load(folders: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and a line for each that is not done."""
    runs, left_out = [], []
    for folder in folders:
        try:
            run = load_run(folder)
        except ValueError as error:
            left_out.append(f"missing: {error}")
            continue
        runs.append(run)
        if run.status == "failed":
            left_out.append(f"{run.name}: failed, counted as a miss: {run.reason}")
        elif run.status == "unfinished":
            left_out.append(f"{run.name}: unfinished, left out: {run.reason}")
    return runs, left_out


def _rows(groups: Sequence[Group], common: CommonSteps) -> tuple[list[GroupRow], list[str]]:
    """A row for each group, and the reasons why some have no targets."""
    values = table(value for group in groups for value in group.values)
    rows, complaints = [], []
    for group in groups:
        compared = against_baseline(group, groups, common.seconds)
        complaints.append(compared.complaint)
        rows.append(make_row(group, compared, values, common.seconds))
    return rows, list(dict.fromkeys(filter(None, complaints)))


def _flat(row: GroupRow) -> dict[str, object]:
    """One line of table.csv: a column for each number; empty where there is none, inf for a missed target."""
    line: dict[str, object] = {}
    for name, value in expanded({item.name: getattr(row, item.name) for item in fields(row)}).items():
        if name == "targets":
            for target in value:
                prefix = f"tta_x{target.factor:g}"
                line[f"{prefix}_target"] = target.target
                line |= _columns(f"{prefix}_s", target.train_time_s)
                line |= _columns(f"{prefix}_steps", target.steps)
                line |= {f"{prefix}_reached": target.reached, f"{prefix}_stays": target.stays}
                line[f"{prefix}_p_faster"] = target.p_faster
                line |= {} if target.common_s is None else _columns(f"{prefix}_common_s", target.common_s)
        elif isinstance(value, Spread):
            line |= _columns(name, value)
        else:
            line[name] = " ".join(map(str, value)) if isinstance(value, list) else value
    return line


def expanded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's figures as entries of the row itself."""
    flat = dict[str, Any]()
    for key, value in row.items():
        flat |= value if key in ("figures", "spread") else {key: value}
    return flat


def _columns(name: str, spread: Spread) -> dict[str, object]:
    return {f"{name}_median": spread.median, f"{name}_low": spread.low, f"{name}_high": spread.high}
