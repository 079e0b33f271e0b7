"""Comparisons, plots, verdicts and records mention that a machine was busy."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sweep_records import record

from gradwire.harness.record.runs import load_run
from gradwire.harness.report import plots
from gradwire.harness.report.busy_times import busy_cells
from gradwire.harness.report.claims.claim import Claim
from gradwire.harness.report.claims.effects import Effects, below
from gradwire.harness.report.claims.evidence import Evidence, swap
from gradwire.harness.report.claims.verdict import Word, judge
from gradwire.harness.report.compare import Comparison, compare
from gradwire.harness.report.figures import render
from gradwire.harness.report.groups import group_runs
from gradwire.harness.report.paper_tables import fill
from gradwire.harness.report.papers import Line, TableLayout
from gradwire.harness.report.plots import group_plots
from gradwire.harness.report.reference import Reference
from gradwire.harness.report.run_plots import run_plots
from gradwire.harness.report.style import PRINT
from gradwire.harness.report.sweep_record import read_sweep_record, save_sweep_record
from gradwire.harness.report.tables import Table
from gradwire.harness.studies import once
from gradwire.harness.sweeps.record import SweptCell, SweptCells, write_sweep_record
from gradwire.harness.tasks.train import show_run
from gradwire.harness.tracking.messages import ending

if TYPE_CHECKING:
    from conftest import SyntheticRuns

COMPUTE_S = {"bf16": 0.1, "dynamiq": 0.4}
REST_S = {"bf16": 0.3, "dynamiq": 0.1}


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "plot_groups", lambda groups, folder: [])


def observed(runs: SyntheticRuns, codec: str, compute_s: float, rest_s: float, **figures: Any) -> Path:
    """A run on a machine with two cores whose computation took 0.1 s of CPU time."""
    folder = runs.write(codec, name=f"{codec}-{compute_s:g}")
    parts = {"compute_s": compute_s, "compression_s": 0.0, "exposed_comm_s": rest_s, "other_s": 0.0}
    usual = {"compute_cpu_s": 0.1, "compute_cpu_share": 0.1 / compute_s, "worker_cpu_s": 0.2}
    spread = {"step_time_s": {"p10": 0.9 * (compute_s + rest_s), "p90": 1.2 * (compute_s + rest_s)}}
    machine = {"cores": 4, "gpus": []}
    speed = {"rounds_per_second": 1 / (compute_s + rest_s), "spread": spread, "machine": machine}
    runs.change_summary(folder, **parts, **usual, **speed, **figures)
    runs.write_curve(folder, [40.0, 20.5, 20.0], 10 * (compute_s + rest_s))
    return folder


@pytest.fixture
def disturbed(runs: SyntheticRuns) -> list[Path]:
    """BF16 in quiet, DynamiQ on a machine half of which others use."""
    return [
        observed(runs, "bf16", 0.1, 0.3),
        observed(runs, "dynamiq", 0.4, 0.1, others_cpus=2.0, cpu_pressure=0.9, cpu_busy=3.0),
    ]


def table_named(comparison: Comparison, part: str) -> Table | None:
    return next((table for table in comparison.tables if part in table.title), None)


LINE = (
    "Busy machine: the same computation took 100 (bf16) to 400 ms a step (dynamiq); "
    "other processes took 2.0 of 4 CPUs (dynamiq)."
)


def test_a_table_says_so_first_and_has_times_with_the_common_computation(
    disturbed: list[Path], tmp_path: Path
) -> None:
    comparison = compare(disturbed, tmp_path / "out", axes=["codec"])
    assert comparison.notes[0] == LINE
    assert comparison.notes[1].startswith("Common computation: ")
    found = table_named(comparison, "common computation (measured)")
    assert found is not None, "without traces, what is beside computation stays as measured"
    assert found.header[:5] == [
        *("run", "step [ms]", "step [ms], common"),
        *("TTA [s] ×1.05", "TTA [s] ×1.05, common"),
    ]
    assert [row[:5] for row in found.rows] == [
        ["bf16", "400", "400", "8", "8"],
        ["dynamiq", "500", "200", "10", "4.000"],
    ]
    machine = table_named(comparison, "What the machine did")
    assert machine is not None and "3" in machine.rows[1]
    table = list(csv.DictReader((tmp_path / "out" / "table.csv").open()))
    assert [float(row["tta_x1.05_common_s_median"]) for row in table] == pytest.approx([8.0, 4.0])
    assert [float(row["common_step_s_median"]) for row in table] == pytest.approx([0.4, 0.2])
    assert json.loads((tmp_path / "out" / "table.json").read_text())["notes"][0] == LINE


def test_a_quiet_comparison_says_nothing_but_has_its_figures(runs: SyntheticRuns, tmp_path: Path) -> None:
    quiet = [observed(runs, "bf16", 0.1, 0.3), observed(runs, "dynamiq", 0.105, 0.1)]
    comparison = compare(quiet, tmp_path / "out", axes=["codec"])
    assert not [line for line in comparison.notes if "usy" in line or "ommon" in line]
    assert table_named(comparison, "common") is None and table_named(comparison, "machine") is None
    assert "tta_x1.05_common_s_median" in (tmp_path / "out" / "table.csv").read_text()
    spread = table_named(comparison, "percentile")
    assert spread is not None
    assert spread.rows[0][:2] == ["bf16", "360–480"]


def test_steps_that_count_one_profile_have_no_spread(runs: SyntheticRuns, tmp_path: Path) -> None:
    folder = runs.write("bf16")
    runs.change_summary(folder, spread={"step_time_s": {"p10": 0.3, "p90": 0.3}})
    assert table_named(compare([folder], tmp_path / "out", axes=["codec"]), "percentile") is None


def test_the_times_to_accuracy_say_what_diamonds_are(disturbed: list[Path]) -> None:
    plots = group_plots(group_runs([load_run(one) for one in disturbed]))
    figure = render(next(plot for plot in plots if plot.name == "tta"), PRINT)
    assert "◇ with the common computation (measured)" in figure.axes[-1].get_xlabel()


def test_old_records_have_neither(runs: SyntheticRuns, tmp_path: Path) -> None:
    folders = [runs.write("bf16"), runs.write("dynamiq")]
    comparison = compare(folders, tmp_path / "out", axes=["codec"])
    assert table_named(comparison, "percentile") is None
    assert "common_s_median" not in (tmp_path / "out" / "table.csv").read_text()


def test_plots_of_times_say_so_in_their_titles(disturbed: list[Path], runs: SyntheticRuns) -> None:
    found = {plot.name: plot.title for plot in group_plots(group_runs([load_run(one) for one in disturbed]))}
    for name in ("metric", "tta", "breakdown"):
        assert found[name].endswith("busy machine: times disturbed")
    assert "busy" not in found["vnmse"] and "busy" not in found["bits"]
    own = {plot.name: plot.title for plot in run_plots(load_run(disturbed[1]))}
    assert "busy machine" in own["breakdown"] and "busy" not in own["vnmse"]
    calm = run_plots(load_run(disturbed[0]))
    assert not [plot for plot in calm if "busy" in plot.title]


def test_a_runs_last_lines_say_so(disturbed: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    show_run(load_run(disturbed[1]))
    told = capsys.readouterr().out
    assert "a step of 500 (450–600) ms: compute 400, compression 0" in told
    assert "note: busy machine: other processes took 2.0 of 4 CPUs." in told
    show_run(load_run(disturbed[0]))
    assert "busy" not in capsys.readouterr().out


def test_wandb_says_so_in_the_summary(disturbed: list[Path]) -> None:
    calm, busy = (ending(folder)["summary"] for folder in disturbed)
    assert "busy_machine" not in calm
    assert busy["busy_machine"] == "Busy machine: other processes took 2.0 of 4 CPUs."


def swept(slower: float) -> Any:
    """A sweep's record of two codecs, the computation of one of which took so many times as long."""
    figures = {"step_time_s": 0.4, "vnmse": 0.1}
    rows = [
        each
        for seed in (0, 1)
        for each in (
            ({"codec": "bf16"}, seed, figures | {"compute_s": 0.1}),
            ({"codec": "dynamiq"}, seed, figures | {"compute_s": slower * 0.1, "step_time_s": 0.3}),
            ({"codec": "thc"}, seed, {"step_time_s": 2.0, "vnmse": 0.9, "compute_s": 0.1}),
        )
    ]
    return record(["codec"], rows, computation="same", workers=2)


@pytest.mark.parametrize(
    ("metric", "slower", "busy"),
    [("step_time_s", 2.0, True), ("step_time_s", 1.05, False), ("vnmse", 2.0, False)],
)
def test_a_verdict_on_times_says_so_and_stays(metric: str, slower: float, busy: bool, tmp_path: Path) -> None:
    def holds(e: Evidence) -> Effects:
        return below(e.figure(metric, codec="dynamiq"), 2 * e.figure(metric, codec="bf16"))

    foil = swap(codec=("dynamiq", "thc"))
    claim = Claim("A1", "a", "Table 1", "it is faster", sweeps=("made_up",), holds=holds, foil=foil)
    verdict = judge(claim, {"made_up": [swept(slower)]}, Reference(tmp_path))
    assert verdict.word is Word.LATE_REPRODUCED
    said = "Busy machine: the same computation took 100 (codec=bf16 seed=0) to 200 ms a step"
    assert verdict.busy.startswith(said) if busy else verdict.busy == ""


def test_a_papers_table_of_times_says_so(tmp_path: Path) -> None:
    columns = {"step": Line({}, {}, "step_time_s"), "error": Line({}, {}, "vnmse")}
    rows = {codec: Line({"codec": codec}) for codec in ("bf16", "dynamiq")}
    timed = fill(TableLayout(rows, columns), swept(2.0), Reference(tmp_path))
    assert timed.busy.startswith("Busy machine: ")
    errors = fill(TableLayout(rows, {"error": columns["error"]}), swept(2.0), Reference(tmp_path))
    assert errors.busy == ""


def test_a_sweeps_record_keeps_what_it_takes_to_say_so(disturbed: list[Path], tmp_path: Path) -> None:
    cells = [
        SweptCell(f"codec={folder.name}", folder, load_run(folder).config | {"task": {"name": "train"}})
        for folder in disturbed
    ]
    swept = SweptCells("made", "tiny", "run.py", ["codec"], cells, folder="made-tiny")
    write_sweep_record(tmp_path / "sweep", swept)
    found = read_sweep_record(tmp_path / "sweep")
    assert len({cell.computation for cell in found.cells}) == 1 and found.cells[0].computation is not None
    assert [cell.workers for cell in found.cells] == [4, 4]
    common = {value.run: value.value for value in found.values if value.metric == "common_step_s"}
    assert common == pytest.approx({"codec=bf16-0.1": 0.4, "codec=dynamiq-0.4": 0.2})
    assert busy_cells(found, found.cells) == LINE.replace("(bf16)", "(codec=bf16-0.1)").replace(
        "(dynamiq)", "(codec=dynamiq-0.4)"
    )


def test_a_sweep_in_wandb_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[Any]()
    show = "show_content"
    monkeypatch.setattr(once.follow, show, lambda *given: told.append(given[3]["summary"]) or True)
    for slower in (1.0, 2.0):
        save_sweep_record(tmp_path / f"{slower:g}", swept(slower))
        assert once.show_record({"group": None, "tags": []}, tmp_path / f"{slower:g}")
    calm, busy = told
    assert calm == {"status": "done"}
    assert busy["busy_machine"].startswith("Busy machine: the same computation took 100 (codec=bf16 seed=0)")
