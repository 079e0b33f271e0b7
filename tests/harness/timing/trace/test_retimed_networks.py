"""Runs on networks whose rates change or that multicast, retimed from their traces in all ways."""

from __future__ import annotations

from pathlib import Path

import pytest
from traced_runs import virtual_run

from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate_any
from gradwire.harness.record.runs import Run, load_run
from gradwire.harness.record.timed_steps import timed_steps
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
    """Receivers' links bound both ways of sending to all, so that only the order of messages differs: a
    multicast waits for its slowest receiver."""
    whole = step_times(load_run(run))
    steady = retimed(run, tmp_path / "steady", *NETWORK, "network.rate_changes=[]")
    unicast = retimed(run, tmp_path / "unicast", *NETWORK, "network.multicast=false")
    assert sum(step_times(steady)) < sum(whole)
    assert sum(step_times(unicast)) == pytest.approx(sum(whole), rel=0.01)
    assert step_times(unicast) != whole


def test_a_trace_without_copies_is_noted(
    simulated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    retimed(simulated, tmp_path / "ring", "network.multicast=true")
    assert "note: network.multicast changes nothing here" in capsys.readouterr().out
