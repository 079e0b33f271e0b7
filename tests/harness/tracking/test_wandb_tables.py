"""The tables of studies and sweeps in wandb equal their records."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_files import hub_records, write_files
from random_checkpoints import save_random
from tracking_records import draw
from wandb_file import WandbRun, read_wandb, wandb_folders

from gradwire.harness.config.compose import compose
from gradwire.harness.config.tasks import SyncTask
from gradwire.harness.config.validate import validate_any
from gradwire.harness.files.finite_json import restored
from gradwire.harness.record.settings import RecordedConfig, TaskConfig
from gradwire.harness.report.frame import values_in
from gradwire.harness.report.sweep_record import COLUMNS, VALUES, read_sweep_record
from gradwire.harness.report.wandb_tables import study_tables, sweep_curves, sweep_tables
from gradwire.harness.studies.bench.study import STUDY as BENCH
from gradwire.harness.studies.replay.study import STUDY as REPLAY
from gradwire.harness.studies.score.study import STUDY as SCORE
from gradwire.harness.sweeps.record import SweptCell, SweptCells, write_sweep_record
from gradwire.harness.tasks import sync
from gradwire.harness.tracking import follow
from gradwire.harness.tracking.settings import UntrackedConfig, WandbConfig

RECORDED = Path(__file__).parents[3] / "results" / "aqgb_shaped" / "small"
"""A sweep of trainings on one clock."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of its own, without a login."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC", "WANDB_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    yield


def study(*overrides: str) -> RecordedConfig:
    config = validate_any(compose(list(overrides)))
    assert isinstance(config, RecordedConfig)
    return config


def view(directory: Path) -> WandbRun:
    (folder,) = wandb_folders(directory)
    return read_wandb(folder)


def figures(directory: Path) -> list[list[Any]]:
    """The lines of a record, without its name."""
    return [
        [value.metric, value.value, value.case, value.kind, value.seed, value.step]
        for value in values_in(directory)
    ]


def shown_figures(table: dict[str, Any]) -> list[list[Any]]:
    wanted = [table["columns"].index(name) for name in ("metric", "value", "case", "kind", "seed", "step")]
    return [[row[index] for index in wanted] for row in table["data"]]


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> list[SweptCell]:
    """A replay of each of two codecs on made-up gradients."""
    folder = tmp_path_factory.mktemp("replays")
    values = np.random.default_rng(0).standard_normal((2, 2000), dtype=np.float32)
    np.savez(folder / "made_up.npz", gradients=values)
    cells = []
    for codec in ("bf16", "mxfp8"):
        words = ("task=replay", f"gradients={folder / 'made_up.npz'}", f"codec={codec}", "plots=false")
        config = study(*words, "replay.repeats=2")
        REPLAY.run(config, folder / codec)  # type: ignore[arg-type]
        cells.append(SweptCell(f"codec={codec}", folder / codec, config.mapping()))
    return cells


def test_a_benchmark_is_shown_as_it_ends(tmp_path: Path) -> None:
    words = (
        "task=bench",
        "bench.operations=[dynamiq.statistics]",
        "bench.sizes=[4096]",
        "bench.seconds=0",
        "bench.workers=[]",
        "bench.ranks=[]",
    )
    config = study(
        *words, "cluster.device=cpu", "bench.dtypes=[float32]", "tracking=wandb", "tracking.mode=offline"
    )
    directory = tmp_path / "bench"
    BENCH.run(config, directory)  # type: ignore[arg-type]
    found = view(directory)
    assert (found.run.job_type, found.exit_codes, found.summary["status"]) == ("bench", [0], "done")
    rows = restored(json.loads((directory / "bench.json").read_text()))["rows"]
    table = found.tables()["operations"]
    assert [dict(zip(table["columns"], row, strict=True)) for row in table["data"]] == rows
    assert shown_figures(found.tables()["figures"]) == figures(directory)


def test_scores_are_shown_as_they_end(tmp_path: Path) -> None:
    data, directory = tmp_path / "data", tmp_path / "score"
    write_files(data, {"piqa": hub_records("piqa", 3), "winogrande": hub_records("winogrande", 3)})
    checkpoint = save_random(tmp_path / "checkpoint")
    words = (f"checkpoint={checkpoint}", "tasks=[piqa,winogrande]", f"score.data={data}")
    config = study("task=score", *words, "tracking=wandb", "tracking.mode=offline")
    SCORE.run(config, directory)  # type: ignore[arg-type]
    found = view(directory)
    assert (found.run.job_type, found.exit_codes, found.summary["status"]) == ("score", [0], "done")
    recorded = json.loads((directory / "scores.json").read_text())["tasks"]
    table = found.tables()["scores"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert {(row["task"], row["metric"]) for row in rows} == {
        *(("piqa", "acc"), ("piqa", "acc_norm"), ("winogrande", "acc"))
    }
    for row in rows:
        task = recorded[row["task"]]
        assert {key: row[key] for key in ("value", "stderr")} == task["metrics"][row["metric"]]
        assert row["documents"] == task["documents"] == 3
    assert shown_figures(found.tables()["figures"]) == figures(directory)


def test_a_sweep_and_its_comparison_are_shown(
    replays: list[SweptCell], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "sweep"
    swept = SweptCells("made_up", "tiny", "run.py", ["codec"], replays, folder="made_up-tiny")
    write_sweep_record(output, swept)
    REPLAY.compare([cell.directory for cell in replays], output, ["codec"])
    drawn = {path.name.removesuffix("-print.png"): path for path in output.glob("*-print.png")}
    assert drawn
    plots = {name: path.read_bytes() for name, path in drawn.items()}
    plots["replay/more"] = draw(output / "replay" / "more-print.png")
    tracking = WandbConfig(name="wandb", mode="offline")
    assert sync.run(SyncTask(task=TaskConfig("sync"), run=str(output), tracking=tracking)) == 0
    found = view(output)
    assert (found.run.job_type, found.run.run_group) == ("comparison", "made_up-tiny")
    assert found.config["sweep"]["name"] == "made_up"
    assert list(found.run.tags) == ["comparison", "replay", "tiny", "bf16", "ring", "mxfp8"]
    assert found.plots() == plots
    record, tables = read_sweep_record(output), found.tables()
    lines = list(csv.reader(gzip.decompress((output / VALUES).read_bytes()).decode().splitlines()))
    assert tables["figures"]["columns"] == list(COLUMNS) == lines[0]
    assert [[str(each) for each in row[:2]] for row in tables["figures"]["data"]] == [
        row[:2] for row in lines[1:]
    ]
    assert [row[2] for row in tables["figures"]["data"]] == [value.value for value in record.values]
    cells = [dict(zip(tables["cells"]["columns"], row, strict=True)) for row in tables["cells"]["data"]]
    assert [cell["axes.codec"] for cell in cells] == ["bf16", "mxfp8"]
    assert [cell["code_hash"] for cell in cells] == [cell.code_hash for cell in record.cells]
    assert [cell["codec"] for cell in cells] == ["bf16", "mxfp8"]
    header, *rows = csv.reader((output / "table.csv").open())
    assert sorted(tables["comparison"]["columns"]) == sorted(header)
    for shown, row in zip(tables["comparison"]["data"], rows, strict=True):
        by_column = dict(zip(tables["comparison"]["columns"], shown, strict=True))
        assert [str(float(text)) if _is_number(text) else text for text in row] == [
            "" if by_column[name] is None else str(by_column[name]) for name in header
        ]


def test_the_curves_of_a_sweep_and_what_a_person_reads_first() -> None:
    """Charts of a recorded sweep have every evaluation, and the rows of its cells begin with the figures."""
    record = read_sweep_record(RECORDED)
    charts = sweep_curves(record)
    (metric,) = {cell.metric for cell in record.cells}
    assert set(charts) == {f"{metric}_by_clock", f"{metric}_by_step", "vnmse_by_step"}
    chart = charts[f"{metric}_by_clock"]
    assert chart["keys"] == [cell.label for cell in record.cells]
    assert chart["xname"] == f"training clock [s], {record.cells[0].kind}"
    for cell, xs, ys in zip(record.cells, chart["xs"], chart["ys"], strict=True):
        of_cell = [value for value in record.values if value.run == cell.label and value.step is not None]
        assert xs == [value.value for value in of_cell if value.metric == "train_time_s"]
        assert ys == [value.value for value in of_cell if value.metric == metric]
        assert xs == sorted(xs)
    two_kinds = [
        replace(cell, kind="modelled" if number else "emulated") for number, cell in enumerate(record.cells)
    ]
    apart = sweep_curves(replace(record, cells=two_kinds))
    assert len(apart[f"{metric}_by_clock_emulated"]["keys"]) == 1
    assert f"{metric}_by_clock" not in apart
    table = sweep_tables(record, RECORDED)["cells"]
    first = [name for name in table["columns"] if not name.startswith(("codec.", "network", "parallel"))]
    assert first[:5] == ["label", "codec", "topology", "seed", "status"]
    figures = ["final_metric", "step_time_s", "bytes_per_step_per_rank", "wire_bits_per_coordinate", "vnmse"]
    assert [name for name in first[5:] if not name.startswith("time_to_accuracy")][:5] == figures
    row = dict(zip(table["columns"], table["rows"][0], strict=True))
    (final,) = [
        value.value
        for value in record.values
        if (value.run, value.metric) == (record.cells[0].label, "final_metric")
    ]
    assert row["final_metric"] == final


def test_a_chart_is_logged_as_lines(tmp_path: Path) -> None:
    lines = {"xs": [[0.5, 1.0], [0.25]], "ys": [[3.0, 2.0], [4.0]], "keys": ["a", "b"]}
    chart = {**lines, "title": "loss", "xname": "training clock [s]"}
    content = {"curves": {"loss_by_clock": chart}, "summary": {"status": "done"}}
    tracking = asdict(WandbConfig(name="wandb", mode="offline"))
    directory = tmp_path / "sweep"
    directory.mkdir()
    assert follow.show_content(tracking, {"task": {"name": "comparison"}}, directory, content, "0123-1")
    found = view(directory)
    assert found.curves() == {"loss_by_clock": [[0.5, "a", 3.0], [1.0, "a", 2.0], [0.25, "b", 4.0]]}
    assert found.charts["curves/loss_by_clock"]["panel_config"]["stringSettings"] == {
        "title": "loss",
        "xname": "training clock [s]",
    }


def test_a_replays_figures_become_a_table(replays: list[SweptCell]) -> None:
    (directory, *_) = [cell.directory for cell in replays]
    table = study_tables(directory, "replay")["figures"]
    assert shown_figures({"columns": table["columns"], "data": table["rows"]}) == figures(directory)
    assert {"vnmse", "wire_bits_per_coordinate"} <= {row[0] for row in table["rows"]}


def test_what_has_no_figures_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").write_text("task: {name: replay}\n")
    tracking = UntrackedConfig()
    assert sync.run(SyncTask(task=TaskConfig("sync"), run=str(tmp_path / "begun"), tracking=tracking)) == 1
    assert "begun has no figures: it is not finished" in capsys.readouterr().err
    assert asdict(tracking) == {"name": "none"}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
