"""Runs on networks whose rates change or that multicast, retimed from their traces in all ways."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from recorded import unseal
from traced_runs import virtual_run

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.report.bandwidth_plot import bandwidth_plot
from gradwire.harness.tasks import retime

NETWORK = (
    *("network=simulated", "network.rate_mbit=20", "network.compute_s=0.05", "network.codec_times=none"),
    *("network.multicast=true", "network.jitter=0.5", "network.rate_changes=[[0.05,0.5],[0.4,0.2]]"),
)
"""The first of the five steps has three rates."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return virtual_run(tmp_path_factory.mktemp("broadcast") / "run", 3, "topology=broadcast", *NETWORK)


def retimed(run: Path, directory: Path, *overrides: str) -> Run:
    config = validate_any(compose(["task=retime", f"run={run}", *overrides]))
    assert retime.run(config, directory) == 0
    return load_run(directory)


def step_times(run: Run) -> list[float]:
    return [row["step_time_s"] for row in run.steps]


def test_the_same_times_again(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Computation and codecs take given times, so that nothing but the network decides."""
    before = load_run(run)
    assert step_times(retimed(run, tmp_path / "same", *NETWORK)) == pytest.approx(
        step_times(before), rel=1e-9
    )
    timed = [max(own.end for own in trace.values()) for _, trace in timed_steps(run)]
    assert timed == pytest.approx(step_times(before), rel=1e-9)
    last = [max(own.end for own in trace.values()) for _, trace in timed_steps(run, {4})]
    assert last == timed[-1:], "a step alone knows when it began"
    assert "network.multicast changes nothing" not in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_each_of_them_matters(run: Path, tmp_path: Path) -> None:
    whole = sum(step_times(load_run(run)))
    steady = retimed(run, tmp_path / "steady", *NETWORK, "network.rate_changes=[]")
    unicast = retimed(run, tmp_path / "unicast", *NETWORK, "network.multicast=false")
    assert sum(step_times(steady)) < whole < sum(step_times(unicast))


def test_a_trace_without_copies_is_told(
    simulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    retimed(simulated, tmp_path / "ring", "network.multicast=true")
    assert "note: network.multicast changes nothing here" in capsys.readouterr().out


def test_runs_that_do_not_know_of_newer_settings_have_timelines(simulated: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(simulated, tmp_path / "old"))
    config = OmegaConf.load(old / "config.yaml")
    for field in ("rate_changes", "nics", "multicast"):
        del config.network[field]
    OmegaConf.save(config, old / "config.yaml")
    unseal(old)
    assert list(timed_steps(old)) == list(timed_steps(simulated))
    assert bandwidth_plot(load_run(old), "heading") is not None


def with_background(run: Path, copy: Path, jobs: str, size_mb: str) -> Path:
    """A copy of a run, whose record says by these names that it had background traffic."""
    shutil.copytree(run, copy)
    config = OmegaConf.load(copy / "config.yaml")
    del config.network.background_jobs, config.network.background_mb
    config.network.update({jobs: 3, size_mb: 0.5})
    OmegaConf.save(config, copy / "config.yaml")
    unseal(copy)
    return copy


def test_records_with_former_names_keep_their_clock(simulated: Path, tmp_path: Path) -> None:
    new = with_background(simulated, tmp_path / "new", "background_jobs", "background_mb")
    old = with_background(simulated, tmp_path / "old", "rivals", "rival_mb")
    assert list(timed_steps(old)) == list(timed_steps(new)) != list(timed_steps(simulated))
    assert bandwidth_plot(load_run(old), "heading") is not None


def test_a_record_with_former_names_is_retimed_under_the_new_ones(simulated: Path, tmp_path: Path) -> None:
    old = with_background(simulated, tmp_path / "old", "rivals", "rival_mb")
    after = retimed(old, tmp_path / "after", "network.background_jobs=2")
    network = after.setting("network", dict)
    assert network["background_jobs"] == 2 and not {"rivals", "rival_mb"} & network.keys()
