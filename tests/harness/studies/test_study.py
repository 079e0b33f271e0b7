"""A study of one file: its record's fields make the table, the CSV and the lines of the frame."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from gradwire.harness.config.tasks import Task
from gradwire.harness.record import figures
from gradwire.harness.record.figures import Figure, StudyRecord, study_names
from gradwire.harness.record.seal import SEALED
from gradwire.harness.record.settings import RecordedConfig, TaskConfig
from gradwire.harness.report.frame import load_results
from gradwire.harness.studies.study import Measured, Study
from gradwire.harness.timing.measure.metric import MILLISECONDS, Metric
from gradwire.harness.timing.measure.metrics import METRICS

SHORTEST = Metric("shortest_s", "shortest", "s", "of all repeats", better="lower", shown=MILLISECONDS)


@dataclass(frozen=True)
class LatencyConfig:
    repeats: int = 10


@dataclass(frozen=True, kw_only=True)
class LatencyTask(RecordedConfig):
    latency: LatencyConfig


@dataclass(frozen=True)
class LatencyRecord(StudyRecord):
    shortest_s: Annotated[float, Figure(SHORTEST)]
    by_size: Annotated[dict[str, float], Figure("codec_s", each="case")]
    seed: int

    @property
    def doubled(self) -> Annotated[float, Figure("allreduce_s")]:
        return 2 * self.shortest_s


STUDY = Study(LatencyTask, LatencyRecord, measuring=__name__)

DECLARED = METRICS.pop(SHORTEST.key, None)
"""Other tests list METRICS; the fixture puts this one back."""


def measure(config: LatencyTask, directory: Path) -> Measured:
    found = LatencyRecord(1 / config.latency.repeats + config.seed, {"8": 0.5}, config.seed)
    return Measured(found.to_json())


@pytest.fixture(autouse=True)
def latency(monkeypatch: pytest.MonkeyPatch) -> None:
    records = {**figures.study_records(), "latency": LatencyRecord}
    for module in ("gradwire.harness.record.figures", "gradwire.harness.report.frame"):
        monkeypatch.setattr(f"{module}.study_records", lambda: records)
    monkeypatch.setitem(METRICS, SHORTEST.key, SHORTEST)


def ran(folder: Path, repeats: int, seed: int) -> Path:
    config = LatencyTask(task=TaskConfig("latency"), seed=seed, resume="auto", latency=LatencyConfig(repeats))
    assert STUDY.run(config, folder) == 0
    return folder


def test_a_study_makes_its_metrics_known() -> None:
    """Before anything is measured."""
    assert DECLARED is SHORTEST


def test_it_runs_once_and_shows_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran(tmp_path / "one", 4, 0)
    first = capsys.readouterr().out
    assert "shortest" in first and first.endswith(f"run: {tmp_path / 'one'}\n")
    ran(tmp_path / "one", 4, 0)
    assert (
        capsys.readouterr().out
        == f"already finished: {tmp_path / 'one'} (resume=never runs it again)\n{first}"
    )


def test_seeds_share_a_line_and_cases_have_their_own(tmp_path: Path) -> None:
    folders = [ran(tmp_path / f"{n}-{seed}", n, seed) for n in (4, 8) for seed in (0, 1)]
    page = STUDY.compare([*folders, tmp_path / "none"], tmp_path / "out", ["latency.repeats"])
    (table,) = page.tables
    assert table.header == ["run", "case", "shortest [ms]", "codec work [ms]", "all-reduce [ms]"]
    assert table.rows[0] == ["repeats=4", "", "750 (250–1250)", "–", "1500 (500–2500)"]
    assert table.rows[1][:2] == ["repeats=4", "8"] and len(table.rows) == 4
    assert page.remarks[-1] == "none: not finished, left out"
    with (tmp_path / "out" / "table.csv").open() as file:
        lines: list[dict[str, Any]] = list(csv.DictReader(file))
    assert (lines[0]["shortest_s_median"], lines[0]["shortest_s_high"]) == ("0.75", "1.25")
    assert json.loads((tmp_path / "out" / "table.json").read_text())["left_out"] == [page.remarks[-1]]


def test_a_damaged_record_is_left_out(tmp_path: Path) -> None:
    folders = [ran(tmp_path / name, 4, 0) for name in ("good", "bad")]
    (tmp_path / "bad" / "summary.json").write_text("{}")
    page = STUDY.compare(folders, tmp_path / "out")
    assert any(line.startswith("bad: left out, ") for line in page.remarks) and len(page.tables[0].rows) == 2
    with pytest.raises(ValueError, match="nothing to compare"):
        STUDY.compare([tmp_path / "bad"], tmp_path / "none")


def test_the_frame_has_fields_and_what_follows_from_them(tmp_path: Path) -> None:
    found = load_results(ran(tmp_path / "one", 4, 3))
    assert list(found.metric) == ["shortest_s", "codec_s", "allreduce_s"]
    assert list(found.unit) == ["s", "s", "s"] and list(found.seed) == [3, 3, 3]


def test_the_record_of_every_study_is_sealed() -> None:
    assert {Task.of_study(name).load().record.file for name in study_names()} <= {*SEALED}
