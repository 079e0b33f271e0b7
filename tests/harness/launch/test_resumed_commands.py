"""A command that was ended in any way resumes when it is given again, and gives the same result.

`faults.py` as a script does this at many more random points.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import (
    RUN,
    TORCHRUN,
    assert_alone,
    call,
    errors,
    finished,
    ranks_of_torchrun,
    started,
    wait_for_steps,
    workers_of,
)
from faults import COMMAND, left_behind, recorded_steps
from recorded import outcome

from gradwire.harness.checkpoint.resume import open_run
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.worker import train_virtual
from gradwire.harness.record.directory import DirectoryLock


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all runs."""
    folder = tmp_path_factory.mktemp("resumed") / "work"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The record of an undisturbed run; it is virtual, which makes no difference."""
    return left_alone(tmp_path_factory.mktemp("undisturbed"), *COMMAND)


def left_alone(directory: Path, *overrides: str) -> dict[str, Any]:
    """The record of an undisturbed virtual run."""
    config = validate(compose([*overrides, "cluster=virtual"]))
    open_run(config, directory)
    train_virtual(config, directory)
    return outcome(directory)


def until(steps: int, run: subprocess.Popen[str], directory: Path) -> None:
    """Wait until so many steps are recorded: few enough for the run to outlast a moment of a busy machine."""
    wait_for_steps(run, directory)
    while recorded_steps(directory) < steps:
        assert run.poll() is None, run.communicate()
        time.sleep(0.005)  # steps are short; but a core all to itself would starve them


def test_killed_then_asked_to_stop_then_left_alone(here: Path, undisturbed: dict[str, Any]) -> None:
    command, directory, rng = (RUN, *COMMAND, "hydra.run.dir=real"), here / "real", random.Random()
    run = started(here, *command)
    wait_for_steps(run, directory)
    with pytest.raises(ValueError, match="real is in use by another run"):
        DirectoryLock(directory)
    until(rng.randint(4, 20), run, directory)
    os.kill(workers_of(run)[1], signal.SIGKILL)
    ended = finished(run)
    assert ended.returncode == 1
    assert_alone(run)
    assert not left_behind(directory)
    reason = "rank 1 was killed by SIGKILL (out of memory?)"
    assert errors(ended.stderr) == [f"error: {reason} (tracebacks: real/tracebacks.txt)"]
    assert (directory / "FAILED").read_text().startswith(reason)
    assert "rank0" in (directory / "tracebacks.txt").read_text()

    run = started(here, *command)
    until(rng.randint(25, 30), run, directory)
    run.send_signal(signal.SIGTERM)
    ended = finished(run)
    assert ended.returncode == 128 + signal.SIGTERM
    assert_alone(run)
    (line,) = errors(ended.stderr)
    assert line.startswith("error: stopped by SIGTERM, saved in real/checkpoints/step-000000")
    assert line.endswith("; the same command resumes")
    assert f"error: {(directory / 'FAILED').read_text()}" == f"{line}\n"
    assert "resuming after step " in ended.stdout

    run = started(here, *command, "cluster.restarts=2")
    until(rng.randint(36, 45), run, directory)
    os.kill(workers_of(run)[0], signal.SIGKILL)
    ended = finished(run)
    assert ended.returncode == 0, ended.stderr
    assert_alone(run)
    assert "restart 1 of 2: rank 0 was killed by SIGKILL (out of memory?), after step " in ended.stdout
    assert ended.stdout.count("resuming after step ") == 2
    told = json.loads((directory / "run.json").read_text())["attempts"]
    assert [attempt["ended"]["ranks"] for attempt in told[:3]] == [
        [{"rank": 1, "signal": "SIGKILL", "exit_code": None}],
        [],
        [{"rank": 0, "signal": "SIGKILL", "exit_code": None}],
    ]
    assert all(told[index]["ended"]["after_step"] >= told[index]["from_step"] for index in (0, 2))
    reasons = [attempt["ended"]["reason"] for attempt in told[:3]]
    assert reasons == [reason, line.removeprefix("error: "), reason.replace("rank 1", "rank 0")]
    assert len(told) == 4 and "ended" not in told[3]
    assert json.loads((directory / "summary.json").read_text())["earlier_ends"] == reasons
    assert "interrupted 3 times on the way: run.json says why" in ended.stdout
    assert outcome(directory) == undisturbed
    assert not left_behind(directory)
    assert not (directory / "checkpoints").exists()
    assert not (directory / "tracebacks.txt").exists()


def test_a_killed_rank_of_a_sharded_run_is_named_and_resumed(here: Path, tmp_path: Path) -> None:
    """Each rank keeps its shard and its codec's residual; differences of weights continue, too."""
    sharded = (*COMMAND, "train.steps=30", "parallel=sharded", "parallel.weights=qwd")
    sharded += ("codec=linear", "codec.ef=true")
    run = started(here, RUN, *sharded, "cluster.restarts=1", "hydra.run.dir=sharded")
    until(10, run, here / "sharded")
    os.kill(workers_of(run)[1], signal.SIGKILL)
    ended = finished(run)
    assert ended.returncode == 0, ended.stderr
    assert_alone(run)
    reason = "rank 1 was killed by SIGKILL (out of memory?)"
    assert f"restart 1 of 1: {reason}, after step " in ended.stdout
    assert ended.stdout.count("resuming after step ") == 1
    assert outcome(here / "sharded") == left_alone(tmp_path, *sharded)


def test_killed_ranks_of_both_stages_are_named_and_resumed(here: Path, tmp_path: Path) -> None:
    """Each stage has its own parameters and moments; a lost rank leaves the other stage waiting."""
    pipeline = (*COMMAND, "train.steps=36", "parallel=pipeline", "parallel.stages=2", "model.num_layers=2")
    pipeline += ("train.accumulation=2",)
    run = started(here, RUN, *pipeline, "cluster.restarts=2", "hydra.run.dir=pipeline")
    for steps, rank in ((5, 1), (20, 0)):
        until(steps, run, here / "pipeline")
        os.kill(workers_of(run)[rank], signal.SIGKILL)
    ended = finished(run)
    assert ended.returncode == 0, ended.stderr
    assert_alone(run)
    for restart, rank in ((1, 1), (2, 0)):
        reason = f"rank {rank} was killed by SIGKILL (out of memory?)"
        assert f"restart {restart} of 2: {reason}, after step " in ended.stdout
    assert ended.stdout.count("resuming after step ") == 2
    assert outcome(here / "pipeline") == left_alone(tmp_path, *pipeline)


def test_the_launcher_itself_killed(here: Path, undisturbed: dict[str, Any]) -> None:
    """A killed launcher cannot clean up; the next attempt does, here after damage to the newest checkpoint.

    A virtual cluster that may be restarted lives in a process of its own, which is killed, too.
    """
    command, directory = (RUN, *COMMAND, "cluster=virtual", "hydra.run.dir=virtual"), here / "virtual"
    run = started(here, *command)
    until(random.randint(15, 30), run, directory)
    run.send_signal(signal.SIGKILL)
    finished(run)
    newest = max((directory / "checkpoints").glob("step-*"))
    (newest / "optimizer.safetensors").write_bytes(b"")
    run = started(here, *command, "cluster.restarts=1")
    until(40, run, directory)
    os.kill(workers_of(run)[0], signal.SIGKILL)
    ended = finished(run)
    assert ended.returncode == 0, ended.stderr
    assert_alone(run)
    assert f"{newest.name}: optimizer.safetensors is not a whole safetensors file" in ended.stdout
    assert "restart 1 of 1: the virtual cluster was killed by SIGKILL" in ended.stdout
    told = json.loads((directory / "run.json").read_text())["attempts"]
    assert [attempt["ended"]["reason"] for attempt in told[:2]] == [
        "no reason recorded: its launcher was killed, or the machine lost",
        "the virtual cluster was killed by SIGKILL (out of memory?)",
    ]
    assert outcome(directory) == undisturbed
    assert not left_behind(directory)


def test_a_preempted_torchrun_goes_on(here: Path, undisturbed: dict[str, Any]) -> None:
    """torchrun passes SIGTERM on to the ranks and waits for them; a scheduler has signalled them before.

    Then a rank is killed, and torchrun starts both anew. The last time rank 0 sees that its directory is
    done, which rank 1 cannot see. Rank 0 alone prints.
    """
    arguments, directory = (RUN, *COMMAND, "hydra.run.dir=torchrun"), here / "torchrun"
    command = (*TORCHRUN, "--max-restarts", "1", *arguments)
    run = started(here, *command)
    until(10, run, directory)
    for rank in ranks_of_torchrun(run):
        os.kill(rank, signal.SIGTERM)
    run.send_signal(signal.SIGTERM)
    ended = finished(run)
    assert_alone(run)
    assert ended.returncode != 0
    assert "stopped by SIGTERM, saved in " in (directory / "FAILED").read_text()
    for already_finished in (0, 1):
        run = started(here, *command, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")  # as the documentation says
        if not already_finished:
            until(40, run, directory)
            os.kill(ranks_of_torchrun(run)[1], signal.SIGKILL)
        ended = finished(run)
        assert ended.returncode == 0, ended.stderr
        assert_alone(run)
        assert ended.stdout.count("resuming after step ") == 2 * (not already_finished)
        lines = ended.stdout.splitlines()
        assert lines[-1] == "run: torchrun"
        assert sum(line.startswith("run: ") for line in lines) == 1
        assert ended.stdout.count("already finished") == already_finished
    told = json.loads((directory / "run.json").read_text())["attempts"]
    assert "stopped by SIGTERM, saved in " in told[0]["ended"]["reason"]
    assert "rank 0 failed: " in told[1]["ended"]["reason"], "torchrun itself says which one was killed"
    assert outcome(directory) == undisturbed


@pytest.fixture
def small_disk(here: Path) -> Iterator[Path]:
    """A file system that a checkpoint fills, and that `grow` makes larger."""
    folder = here / "disk"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(folder)]).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(
    small_disk: Path, here: Path, undisturbed: dict[str, Any]
) -> None:
    command = (RUN, *COMMAND, "cluster=virtual", "hydra.run.dir=disk/run")
    refused = call(here, *command)
    assert refused.returncode == 2
    assert "disk/run has 700 KiB free; use " in refused.stderr and "keep_checkpoints=1" in refused.stderr
    command = (*command, "plots=false", "train.keep_checkpoints=1")
    ended = call(here, *command)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: disk/run/") and "cannot be written (No space left on device)" in line
    assert line.endswith("free some space, then start again")
    assert not left_behind(small_disk / "run")
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    ended = call(here, *command)
    assert ended.returncode == 0, ended.stderr
    assert outcome(small_disk / "run") == undisturbed


def test_an_interrupted_sweep_goes_on(here: Path) -> None:
    """Ctrl-C saves the run and ends the sweep, not only its run; afterwards the finished run is skipped and
    the other resumes. A terminal sends it to the process of the cells, too."""
    command = (RUN, "--multirun", *COMMAND, "seed=0,1", "cluster=virtual", "hydra.sweep.dir=sweep")
    run = started(here, *command)
    while not (done := list((here / "sweep").glob("*/DONE"))):
        assert run.poll() is None, run.communicate()
        time.sleep(0.005)
    while len(rows := list((here / "sweep").glob("*/steps.jsonl"))) < 2:
        assert run.poll() is None, run.communicate()
        time.sleep(0.005)
    os.killpg(run.pid, signal.SIGINT)
    ended = finished(run)
    assert ended.returncode == 128 + signal.SIGINT
    assert [line.partition(" sweep/")[0] for line in ended.stderr.splitlines()] == [
        "error: interrupted, saved in"
    ]
    (first,) = done
    (second,) = [path.parent for path in rows if path.parent != first.parent]
    assert "interrupted, saved in" in (second / "FAILED").read_text()
    before = first.stat().st_mtime_ns
    ended = call(here, *command)
    assert ended.returncode == 0, ended.stderr
    assert "2 runs, 1 of them finished before" in ended.stdout
    assert "resuming after step " in ended.stdout
    assert first.stat().st_mtime_ns == before
    assert (second / "DONE").exists()
