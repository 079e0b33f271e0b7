"""Real runs record observations of their machine, and the times of their steps with another computation."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from recorded import OBSERVED, loads

from gradwire.harness.files.finite_json import dumps
from gradwire.harness.record.common_time import common_step_s, workers_per_core
from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.record.seal import mark_done
from gradwire.harness.report.busy_times import common_steps
from gradwire.harness.timing.measure.machine import PROC


def changed(run: Path, folder: Path, slower: float) -> Run:
    """A copy of a run whose steps took `slower` times as long, the CPU time of its work aside."""
    shutil.copytree(run, folder)
    rows = [loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    timed = {key for key in rows[0] if key.endswith("_s") and not key.endswith("cpu_s")}
    rows = [{key: slower * value if key in timed else value for key, value in row.items()} for row in rows]
    (folder / "steps.jsonl").write_text("".join(dumps(row) + "\n" for row in rows))
    summary = loads((folder / "summary.json").read_text())
    summary["rounds_per_second"] /= slower
    summary["compute_s"] *= slower
    (folder / "summary.json").write_text(dumps(summary))
    mark_done(folder)
    return load_run(folder)


def test_a_real_run_records_what_its_machine_did(paced: Path) -> None:
    run = load_run(paced)
    for row in run.steps:
        assert 0 < row["compute_cpu_s"] <= row["compute_s"] + 1e-3
        assert row["codec_cpu_s"] > 0 and row["worker_cpu_s"] > row["compute_cpu_s"]
        assert row["switches"] >= 0
    figures, spread = run.done.figures, run.done.spread
    assert {"compute_cpu_s", "codec_cpu_s", "worker_cpu_s", "switches", "compute_cpu_share"} <= figures.keys()
    assert 0 < (figures["compute_cpu_share"] or 0.0) <= 1.01 and run.done.workers_per_machine == 2
    assert set(spread) == {"step_time_s", "compute_s", "compression_s", "exposed_comm_s"}
    for key, percentiles in spread.items():
        own = [row[key] for row in run.steps if not row["measured"]]
        assert min(own) <= percentiles["p10"] <= percentiles["p90"] <= max(own)
    if (PROC / "stat").exists() and run.done.train_time_s > 1:
        assert "cpu_busy" in figures


def test_a_virtual_run_has_a_spread_and_no_observations(simulated: Path) -> None:
    run = load_run(simulated)
    assert "step_time_s" in run.done.spread
    assert not {*OBSERVED} & {key for row in run.steps for key in row}
    assert not {*OBSERVED} & run.done.figures.keys()
    assert common_steps([run]).how is None


def test_the_clock_gives_a_step_with_another_computation(paced: Path) -> None:
    """A longer computation makes a step longer by as much where nothing overlaps, and never by more."""
    run = load_run(paced)
    short, long = (common_step_s(run, seconds, "modelled") for seconds in (0.01, 0.51))
    assert short is not None and long is not None
    assert 0.01 < short < long <= short + 0.5 + 1e-6
    assert long > 0.51


def test_elsewhere_the_rest_stays_as_measured(paced: Path) -> None:
    run = load_run(paced)
    own_s = run.done.figures["compute_s"] or 0.0
    rest_s = 1 / run.done.rounds_per_second - own_s
    assert common_step_s(run, 0.25, "measured") == pytest.approx(rest_s + 0.25)


def test_a_slower_machine_changes_no_common_step(paced: Path, tmp_path: Path) -> None:
    """Two runs of the same, one of which the machine has slowed down four times."""
    quiet, slow = load_run(paced), changed(paced, tmp_path / "slow", 4.0)
    common = common_steps([quiet, slow])
    assert common.how == "modelled"
    first, second = (common.seconds[str(run.folder)] for run in (quiet, slow))
    assert first == pytest.approx(second) and slow.done.rounds_per_second < quiet.done.rounds_per_second / 3
    shutil.rmtree(slow.folder / "trace")
    untraced = slow.folder.rename(tmp_path / "untraced")
    assert common_steps([quiet, load_run(untraced)]).how == "measured", "all of a comparison in one way"


def test_workers_share_cores(paced: Path) -> None:
    run = load_run(paced)
    run.done.machine["cores"] = 1
    assert workers_per_core(run) == 2
    run.done.machine["cores"] = 64
    assert workers_per_core(run) == 1
