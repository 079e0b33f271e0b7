"""The time that a cell will take is known from cells like it, whatever their data is called; and the time
that is left for those of a sweep."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gradwire.harness.record.provenance import machine
from gradwire.harness.report.configs import flatten
from gradwire.harness.report.sweep_record import SweepRecord, read_sweep_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.sweeps import predictions as timing
from gradwire.harness.sweeps.plan import Plan
from gradwire.harness.sweeps.planned_cell import PlannedCell
from gradwire.harness.sweeps.predictions import HERE, Eta, KnownTimes, Predictions, likeness

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
