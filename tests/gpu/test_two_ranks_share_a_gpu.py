"""Real ranks that share GPUs: one more than there are. Their messages pass through host memory; processes,
streams, events, hooks, faults and resumes are those of ranks with a GPU each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from recorded import outcome
from tiny import TINY_MODEL

from gradwire.harness.comm.transport.staging import REFUSES_CAPTURE
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.launch.launch import run_here
from gradwire.harness.network.configured import NO_NETWORK
from gradwire.harness.record.runs import load_run
from gradwire.harness.record.timed_steps import timed_steps
from gradwire.harness.runtime.conf import conf_directory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SIZE = torch.cuda.device_count() + 1
RUN = conf_directory().parent / "run.py"
TINY = (
    *TINY_MODEL,
    "eval.max_sequences=8",
    "train.precision=fp32",
    "cluster.device=cuda",
    f"cluster.workers={SIZE}",
)
SHARED = "cluster.share_device=true"


def trained(directory: Path, *overrides: str) -> Path:
    run_here(validate(compose([*TINY, *overrides])), directory)
    return directory


@pytest.mark.parametrize(
    "overrides",
    [
        ("codec=fp32",),
        ("codec=dynamiq", "topology=butterfly", "overlap.segments=2"),
        ("codec=backend", "overlap.enabled=false"),
        ("codec=fp32", "parallel=sharded"),
    ],
)
def test_they_train_as_virtual_ranks_on_a_gpu(overrides: tuple[str, ...], tmp_path: Path) -> None:
    steps = ("train.steps=6", "measure.check_hashes=true")
    run = trained(tmp_path / "shared", *steps, SHARED, *overrides)
    codec = ("codec=fp32",) if "codec=backend" in overrides else overrides
    virtual = trained(tmp_path / "virtual", *steps, "cluster=virtual", *codec)
    losses = [[row["loss"] for row in load_run(folder).steps] for folder in (run, virtual)]
    if codec == overrides:
        assert losses[0] == losses[1]
    else:  # gloo sums in an order of its own
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_the_record_says_what_its_times_are_and_why_nothing_is_captured(tmp_path: Path) -> None:
    """Timestamps are events on streams; a message's span ends when its copy to the device has."""
    run = load_run(trained(tmp_path / "shared", "train.steps=6", SHARED, "codec=dynamiq"))
    assert (run.kind, run.network) == ("emulated", NO_NETWORK)
    captured = json.loads((run.folder / "summary.json").read_text())["captured"]
    assert captured["captured"] == 0 and captured["buckets"] > 1
    assert list(captured["refused"]) == [REFUSES_CAPTURE]
    for (_, trace), row in zip(timed_steps(run.folder), run.steps, strict=True):
        assert len(trace) == SIZE and all(own.tasks for own in trace.values())
        assert max(own.end for own in trace.values()) == pytest.approx(row["step_time_s"], abs=1e-3)


RESUMED = ("train.steps=60", "train.checkpoint_every=3", "train.log_every=4", "codec=dynamiq")


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The ids of a command's workers, which are spawned."""
    found = []
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return sorted(found)


def command(directory: Path, *overrides: str) -> list[str]:
    return [sys.executable, str(RUN), *TINY, *RESUMED, SHARED, *overrides, f"hydra.run.dir={directory}"]


def killed_after(steps: int, directory: Path, *overrides: str) -> tuple[int, str, str]:
    """Exit code and output of a run, one of whose workers is killed after so many steps."""
    process = subprocess.Popen(
        command(directory, *overrides),
        cwd=directory.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline, file = time.monotonic() + 120, directory / "steps.jsonl"
        while not file.exists() or len(file.read_text().splitlines()) < steps:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the run does not start"
            time.sleep(0.02)
        workers = workers_of(process)
        assert len(workers) == SIZE
        os.kill(workers[-1], signal.SIGKILL)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, err


def test_a_killed_worker_is_named_and_the_run_resumes(tmp_path: Path) -> None:
    """First by the same command, then by itself."""
    undisturbed = outcome(trained(tmp_path / "undisturbed", *RESUMED, SHARED))
    code, _, err = killed_after(10, tmp_path / "killed")
    assert code not in (0, 2) and "was killed by SIGKILL" in err
    code, out, err = killed_after(30, tmp_path / "killed", "cluster.restarts=1")
    assert code == 0, err
    assert "was killed by SIGKILL" in out and out.count("resuming after step ") == 2
    assert outcome(tmp_path / "killed") == undisturbed
