"""A metric costs a study one field: its table, CSV, JSON, the frame, wandb and a sweep's record follow."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import field, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest

from gradwire.harness.files.typed import made
from gradwire.harness.record import figures
from gradwire.harness.record.figures import Figure, study_module, study_names
from gradwire.harness.record.seal import mark_done
from gradwire.harness.report.frame import load_results
from gradwire.harness.report.wandb_tables import study_tables
from gradwire.harness.studies.bench.study import BenchRow
from gradwire.harness.studies.bench.views import speed_table
from gradwire.harness.studies.overhead.study import OverheadRecord
from gradwire.harness.studies.overhead.task import table
from gradwire.harness.sweeps.record import contents_of
from gradwire.harness.timing.measure.metric import MILLISECONDS, Metric
from gradwire.harness.timing.measure.metrics import METRICS

RECORDED = Path(__file__).parent / "recorded"

ADDED = Metric("added_s", "added", "s", "of this test alone", better="lower", shown=MILLISECONDS)
HEADING, VALUE, SHOWN = "added [ms]", 0.25, "250"


@pytest.fixture(autouse=True)
def undeclared() -> Iterator[None]:
    """Other tests list METRICS."""
    yield
    METRICS.pop(ADDED.key, None)


def with_metric(record: type[Any], kind: Any = float, each: Any = None) -> type[Any]:
    """The record class with one more field."""
    added = Annotated[kind, Figure(ADDED, each=each, column=99)]
    own = ("added", added, field(default=VALUE, kw_only=True))
    return make_dataclass(f"Added{record.__name__}", [own], bases=(record,), frozen=True)


@pytest.mark.parametrize("task", study_names())
def test_it_is_shown_everywhere(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = importlib.import_module(study_module(task)).STUDY
    study = replace(study, record=with_metric(study.record))
    records = {**figures.study_records(), task: study.record}
    for module in ("record.figures", "report.frame", "report.wandb_tables", "sweeps.record"):
        monkeypatch.setattr(f"gradwire.harness.{module}.study_records", lambda: records)
    folders = []
    if not (RECORDED / task).is_dir():
        pytest.skip(f"no run of task={task} is recorded")
    for source in sorted((RECORDED / task).iterdir()):
        folders.append(Path(shutil.copytree(source, tmp_path / source.name)))
        path = folders[-1] / study.record.file
        path.write_text(json.dumps(json.loads(path.read_text()) | {"added": VALUE}))
        mark_done(folders[-1])

    lines = load_results(*folders)
    lines = lines[lines.metric == ADDED.key]
    assert (len(lines), set(lines.value), set(lines.unit)) == (len(folders), {VALUE}, {"s"})

    page = study.compare(folders, tmp_path / "out")
    shown = [found for found in page.tables if HEADING in found.header]
    assert any(SHOWN in row[found.header.index(HEADING)] for found in shown for row in found.rows)
    assert any(name.startswith("added") for name in (tmp_path / "out/table.csv").open().readline().split(","))
    assert '"added' in (tmp_path / "out" / "table.json").read_text()

    rows = study_tables(folders[0], task)["figures"]["rows"]
    assert [row[1] for row in rows if row[0] == ADDED.key] == [VALUE]
    values = [value for value in contents_of(folders[0], task).values if value.metric == ADDED.key]
    assert [value.value for value in values] == [VALUE]


def test_one_of_an_operation_is_in_its_table() -> None:
    (content,) = (RECORDED / "bench").glob("*/bench.json")
    kind = with_metric(BenchRow)
    rows = [made(kind, row, content, remedy="") for row in json.loads(content.read_text())["rows"]]
    found = speed_table(rows)
    assert {row[found.header.index(HEADING)] for row in found.rows} == {SHOWN}
    assert rows[0].as_json()["added"] == VALUE


def test_one_of_a_loop_has_a_column_and_one_of_the_run_a_line() -> None:
    (path,) = (RECORDED / "overhead").glob("*/overhead.json")
    run = with_metric(OverheadRecord).read(path)
    assert table(run).endswith(f"\n{HEADING}: {SHOWN}.")
    loops = with_metric(OverheadRecord, dict[str, float], "case")
    shown = table(replace(loops.read(path), added={"bare": VALUE})).splitlines()
    assert shown[2].endswith(r"| added \[ms\] |") and shown[4].endswith(f"| {SHOWN} |")
