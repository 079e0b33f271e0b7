"""Hydra's submitit launcher: a job for each run, queued again when its time is over. Its local executor
stands in for SLURM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tiny import TINY_MODEL
from warm import RUN

from gradwire.harness.config.compose import compose
from gradwire.harness.config.explain import check_launcher
from gradwire.harness.record.attempts import Attempts
from gradwire.harness.runtime.errors import ConfigError

pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="gradwire[slurm] is not installed")

SWEEP = (
    *("--multirun", "hydra/launcher=submitit_local", *TINY_MODEL, "cluster=virtual", "cluster.workers=2"),
    *("train.steps=150", "train.checkpoint_every=15", "eval.every=150", "measure.vnmse_every=150"),
    *("measure.trace=false", "plots=false", "seed=0", "codec=fp32"),
)


def test_the_preset_starts_one_task_on_each_node() -> None:
    preset = compose(["hydra/launcher=slurm"], with_hydra=True).hydra.launcher
    assert (preset.nodes, preset.tasks_per_node, preset.signal_delay_s) == (1, 1, 120)
    assert preset.max_num_timeout > 0 and preset._target_.endswith("SlurmLauncher")


def test_slurm_is_needed_for_its_jobs() -> None:
    check_launcher("slurm", srun=True)
    check_launcher("submitit_local", srun=False)
    with pytest.raises(ConfigError, match="hydra/launcher=slurm needs SLURM, and there is no srun here"):
        check_launcher("slurm", srun=False)


def test_a_job_whose_time_is_over_resumes_its_run(tmp_path: Path) -> None:
    """SIGUSR2, as before a time limit: the run writes a checkpoint, the job is queued again and finishes."""
    command = [sys.executable, str(RUN), *SWEEP]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        deadline = time.monotonic() + 200
        while not list(tmp_path.glob("outputs/*/checkpoints/step*")):
            assert time.monotonic() < deadline and process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        for job in psutil.Process(process.pid).children(recursive=True):
            if "submitit.core._submit" in job.cmdline():
                os.kill(job.pid, signal.SIGUSR2)
        out, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, out
    (done,) = tmp_path.glob("outputs/*/DONE")
    attempts = Attempts.read(done.parent)
    assert attempts is not None and len(attempts.attempts) == 2
    assert attempts.attempts[1]["from_step"] >= 15
    assert "stopped by SIGUSR2, saved in" in attempts.attempts[0]["ended"]["reason"]
    assert list(tmp_path.glob("outputs/sweeps/*/table.md"))
