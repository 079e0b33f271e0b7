"""The time that a cell will take is known from cells like it, whatever their data is called; and the time
that is left for those of a sweep."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gradwire.harness.config.declared import Source
from gradwire.harness.config.root_keys import SweepConfig
from gradwire.harness.record.provenance import machine
from gradwire.harness.record.seal import mark_done
from gradwire.harness.report.configs import flatten
from gradwire.harness.report.sweep_record import SweepRecord, read_sweep_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.sweeps import predictions as timing
from gradwire.harness.sweeps.cells import SweepCell
from gradwire.harness.sweeps.plan import Plan
from gradwire.harness.sweeps.planned_cell import PlannedCell, planned_cell
from gradwire.harness.sweeps.predictions import HERE, Eta, KnownTimes, Prediction, Predictions, likeness
from gradwire.harness.tasks.plan import plan_page

RECORDED = conf_directory().parent / "results"


@pytest.fixture(scope="module")
def record() -> SweepRecord:
    return read_sweep_record(RECORDED / "dynamiq_table4" / "small")


def planned(record: SweepRecord, number: int, **changed: Any) -> PlannedCell:
    """A cell as the record has it, on other data."""
    cell = record.cells[number]
    config: dict[str, Any] = {"task": {"name": cell.task}, "size": {"name": record.size}}
    for key, value in {**record.settings[cell.task], **cell.axes}.items():
        group, _, field = key.partition(".")
        config.setdefault(group, {})[field or "name"] = value
    config["dataset"] = {"name": "embedded", "path": None}
    for key, value in changed.items():
        group, _, field = key.partition("__")
        config[group][field] = value
    mapping = SimpleNamespace(mapping=lambda: copy.deepcopy(config))
    return cast(PlannedCell, SimpleNamespace(config=mapping, directory=None))


def predictions(sweep: str = "dynamiq_table4") -> Predictions:
    plan = SimpleNamespace(sweep=sweep, size="small", cells=[])
    plan.with_needs = [plan]
    return Predictions(cast(Plan, plan), RECORDED)


def test_every_recorded_cell_is_found_on_other_data(record: SweepRecord) -> None:
    known = predictions()
    found = [known.of(planned(record, number)) for number in range(len(record.cells))]
    assert len(found) == 36
    assert all(each is not None and each.minutes > 0 for each in found)
    assert {each.source.split(" ")[0] for each in found if each} == {"results/dynamiq_table4/small"}


def test_records_of_other_sweeps_are_looked_at_too(record: SweepRecord) -> None:
    found = predictions("one_of_my_own").of(planned(record, 0))
    assert found is not None
    assert found.source.startswith("results/")


@pytest.mark.parametrize(
    "changed",
    [{"train__steps": 7}, {"cluster__workers": 3}, {"topology__name": "butterfly"}, {"codec__name": "x"}],
)
def test_what_governs_the_time_must_be_alike(record: SweepRecord, changed: dict[str, Any]) -> None:
    assert predictions().of(planned(record, 0, **changed)) is None


def test_another_machine_is_reported(record: SweepRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = record.cells[0].machine
    monkeypatch.setattr("gradwire.harness.sweeps.predictions.machine", lambda: recorded)
    found = predictions().of(planned(record, 0))
    assert found is not None
    assert "another machine" not in found.source
    monkeypatch.setattr("gradwire.harness.sweeps.predictions.machine", lambda: {**machine(), "cores": 96})
    found = predictions().of(planned(record, 0))
    assert found is not None
    assert "on another machine (AMD EPYC, 2 cores)" in found.source


def test_runs_here_come_first(record: SweepRecord) -> None:
    known, cell = predictions(), planned(record, 0)
    known.__dict__["_here"] = {likeness(flatten(cell.config.mapping())): KnownTimes(HERE, [120.0])}
    assert known.of(cell) == (2.0, HERE)


def test_a_sweep_says_how_long_it_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean of its cells, or by their predictions and what has become of earlier ones."""
    now, cells = [0.0], list[Any](range(4))
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    mean, predicted = Eta(lambda cell: None), Eta(lambda cell: 2.0)
    assert (mean.left(cells), predicted.left(cells)) == ("", ", about 8 min left")
    now[0] = 180.0
    for eta in (mean, predicted):
        eta.ran(cells[:1])
        assert eta.left(cells[1:]) == ", about 9 min left"
    quick = Eta(lambda cell: None)
    quick.ran(cells[:1])
    assert quick.left(cells[1:]) == "", "what is quick needs no such line"


def test_a_plan_says_what_each_cell_waits_for_and_where_minutes_are_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"a": Prediction(2.0, HERE), "b": Prediction(0.5, "results/x/small"), "c": Prediction(1.5, HERE)}

    def cell(label: str, *, done: bool = False, directory: str | None = "runs") -> SimpleNamespace:
        return SimpleNamespace(done=done, directory=directory, label=label)

    needed = SimpleNamespace(name="needed", by_turns=[cell("a"), cell("never run"), cell("gone", done=True)])
    own = SimpleNamespace(name="own", by_turns=[cell("b", directory=None), cell("c")])
    own.with_needs = [needed, own]
    known = SimpleNamespace(of=lambda cell: found.get(cell.label))
    monkeypatch.setattr("gradwire.harness.tasks.plan.Predictions", lambda plan: known)
    assert plan_page(cast(Plan, own)).splitlines() == [
        "sweep needed: 3 runs, 1 done, 2 to run: 2.0 minutes predicted and 1 of unknown length",
        f"  {'to run':14} {'2.0 min':>11}  a",
        f"  {'to run':14} {'unknown':>11}  never run",
        f"  {'done':14} {'':>11}  gone",
        "sweep own: 2 runs, 0 done, 2 to run: 2.0 minutes predicted",
        f"  {'needs others':14} {'0.5 min':>11}  b",
        f"  {'to run':14} {'1.5 min':>11}  c",
        "in all: 5 runs, 1 done, 4 to run: 4.0 minutes predicted and 1 of unknown length",
        "minutes are those of cells alike, whatever their data: runs here (2); results/x/small (1)",
    ]
    found.clear()
    own.with_needs = [own]
    assert plan_page(cast(Plan, own)).splitlines() == [
        "sweep own: 2 runs, 0 done, 2 to run: 2 of unknown length",
        f"  {'needs others':14} {'unknown':>11}  b",
        f"  {'to run':14} {'unknown':>11}  c",
    ]


def test_a_cell_has_a_directory_once_all_that_it_takes_from_is_done(tmp_path: Path) -> None:
    for name in ("done", "begun"):
        (tmp_path / name).mkdir()
    mark_done(tmp_path / "done")

    def is_planned(*sources: str | None) -> bool:
        needed = [Source("needed", {}, {}, None if name is None else tmp_path / name) for name in sources]
        cell = SweepCell(("size=tiny", "cluster=virtual"), {}, tuple(needed))
        return planned_cell(cell, tmp_path / "out", SweepConfig(), ()).directory is not None

    assert is_planned() and is_planned("done") and is_planned("done", "done")
    assert not any(is_planned(*sources) for sources in (["begun"], [None], ["done", "begun"], ["done", None]))
