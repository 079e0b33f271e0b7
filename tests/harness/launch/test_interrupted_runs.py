"""Runs that do not end well: the rank at fault is named, FAILED says why, nobody is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from command import ENDLESS, RUN, assert_alone, call, errors, finished, started, wait_for_steps, workers_of


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all runs."""
    folder = tmp_path_factory.mktemp("interrupted") / "work"
    folder.mkdir()
    return folder


def test_a_killed_worker_ends_the_run(here: Path) -> None:
    """Before that, a second run in the same directory is refused."""
    command = (RUN, *ENDLESS, "cluster.workers=2", "hydra.run.dir=killed")
    run = started(here, *command)
    wait_for_steps(run, here / "killed")
    second = call(here, *command)
    assert (second.returncode, len(second.stderr.splitlines())) == (2, 1)
    assert errors(second.stderr)[0].startswith("error: killed is in use by another run")
    os.kill(workers_of(run)[1], signal.SIGKILL)
    ended = finished(run, 60)
    assert_alone(run)
    assert ended.returncode == 1
    reason = "rank 1 was killed by SIGKILL (out of memory?)"
    assert errors(ended.stderr) == [f"error: {reason} (tracebacks: killed/tracebacks.txt)"]
    assert (here / "killed" / "FAILED").read_text().startswith(reason)
    assert "rank0" in (here / "killed" / "tracebacks.txt").read_text()
    assert not (here / "killed" / "DONE").exists()


def test_a_stopped_worker_ends_the_run(here: Path) -> None:
    run = started(here, RUN, *ENDLESS, "cluster.workers=2", "cluster.timeout_s=5", "hydra.run.dir=stopped")
    wait_for_steps(run, here / "stopped")
    os.kill(workers_of(run)[1], signal.SIGSTOP)
    ended = finished(run, 60)
    assert_alone(run)
    assert ended.returncode == 1
    (line,) = errors(ended.stderr)
    assert line.startswith("error: rank 1 hung: no answer within cluster.timeout_s")
    assert (here / "stopped" / "FAILED").read_text().startswith("rank 1 hung")


def test_control_c_ends_a_run_at_once(here: Path) -> None:
    run = started(here, RUN, *ENDLESS, "cluster.workers=2", "hydra.run.dir=by-hand")
    wait_for_steps(run, here / "by-hand")
    os.killpg(run.pid, signal.SIGINT)
    ended = finished(run, 60)
    assert_alone(run)
    assert ended.returncode == 128 + signal.SIGINT
    assert errors(ended.stderr) == ["error: interrupted"]
    assert "Traceback" not in ended.stderr
    assert (here / "by-hand" / "FAILED").read_text() == "interrupted\n"
