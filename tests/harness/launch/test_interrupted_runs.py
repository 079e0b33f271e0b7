"""Runs that end at once: the rank at fault is named, FAILED says why, no process is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from command import ENDLESS, RUN, TINY, assert_alone, errors, finished, started, wait_for_steps, workers_of


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all runs."""
    folder = tmp_path_factory.mktemp("interrupted") / "work"
    folder.mkdir()
    return folder


def test_a_stopped_worker_ends_the_run(here: Path) -> None:
    run = started(here, RUN, *ENDLESS, "cluster.workers=2", "cluster.timeout_s=10", "hydra.run.dir=stopped")
    wait_for_steps(run, here / "stopped")
    os.kill(workers_of(run)[1], signal.SIGSTOP)
    ended = finished(run, 60)
    assert_alone(run)
    assert ended.returncode == 1
    (line,) = errors(ended.stderr)
    assert line.startswith("error: rank 1 hung: no answer within cluster.timeout_s")
    assert "rank 1 is stopped (state T)" in line
    assert (here / "stopped" / "FAILED").read_text().startswith("rank 1 hung")
    tracebacks = (here / "stopped" / "tracebacks.txt").read_text()
    assert "rank1, which was still running\nno stacks: stopped (state T)" in tracebacks


def test_control_c_saves_the_step_that_runs(here: Path) -> None:
    """A terminal sends it to the workers, too."""
    run = started(here, RUN, *ENDLESS, "cluster.workers=2", "hydra.run.dir=by-hand")
    wait_for_steps(run, here / "by-hand")
    os.killpg(run.pid, signal.SIGINT)
    ended = finished(run, 60)
    assert_alone(run)
    assert ended.returncode == 128 + signal.SIGINT
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: interrupted, saved in by-hand/checkpoints/step-")
    assert line.endswith("; the same command resumes")
    assert (here / "by-hand" / "FAILED").read_text() == f"{line.removeprefix('error: ')}\n"


def test_a_run_by_blocks_goes_on_when_a_rank_is_killed(here: Path) -> None:
    """Refinements are in flight between any two of its steps; ranks hold the same bits before and after."""
    by_blocks = (
        *("parallel=blocks", "parallel.bucket_cap_mb=25", "parallel.num_blocks=3", "topology=broadcast"),
        *("codec=aqgb", "measure.check_hashes=true"),
    )
    every = ("train.steps=150", "train.checkpoint_every=10", "eval.every=150", "cluster.restarts=1")
    run = started(
        here, RUN, *TINY, *by_blocks, *every, "cluster.workers=2", "plots=false", "hydra.run.dir=blocks"
    )
    wait_for_steps(run, here / "blocks")
    os.kill(workers_of(run)[1], signal.SIGKILL)
    ended = finished(run, 120)
    assert_alone(run)
    assert ended.returncode == 0, ended.stderr
    assert "restart 1 of 1: rank 1 was killed by SIGKILL" in ended.stdout + ended.stderr
    rows = [json.loads(line) for line in (here / "blocks" / "steps.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(150))
    assert not (here / "blocks" / "FAILED").exists()
