"""Every sweep of `sweeps/` runs in its tiny form, and composes in all of its others."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.plugins import Plugins
from tiny import TINY_MODEL

from gradwire.harness.config.cells import declared_in, tasks_of
from gradwire.harness.config.compose import composed_hydra
from gradwire.harness.launch.cell_process import Ended
from gradwire.harness.report.sweep_record import read_sweep_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.tasks.front import start
from gradwire.harness.tasks.main import run_cell

SWEEPS = sorted(path.stem for path in (conf_directory() / "sweeps").glob("*.yaml"))

TIMES = ("network.compute_s=0.01", "network.codec_times=none")
TRAINED = (
    *(key for key in TINY_MODEL if key != "size=tiny"),
    *("cluster=virtual", "cluster.workers=2", "network=simulated", "network.rate_mbit=100", *TIMES),
    *("train.steps=3", "eval.every=3", "eval.max_sequences=8", "dataset=embedded"),
)
REPLAYED = ("replay.rounds=1", "replay.repeats=1")
MEASURED = ("allreduce.coordinates=5000", "allreduce.repeats=1")
"""What makes the cells of each task quick; the rest is the sweep's own."""


class InThisProcess:
    """Runs the cells that would share a process in this one."""

    def __init__(self, target: object) -> None:
        assert target is run_cell

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, config: Any, directory: Path) -> Ended:
        return run_cell(config, directory)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs a sweep in this process, without drawing its plots; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradwire.harness.tasks.sweep.CellProcess", InThisProcess)
    monkeypatch.setattr("gradwire.harness.report.figures._write", lambda *_: iter(()))
    monkeypatch.setattr(sys, "path", [*sys.path, str(conf_directory().parent / "harness" / "sweeper")])
    from hydra_plugins.gradwire_sweeper import GradwireSweeper

    Plugins.instance().register(GradwireSweeper)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        try:
            start()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return call


def quick(sweep: str, folder: Path) -> list[str]:
    """Overrides that make a sweep's tiny form quick."""
    declared = declared_in(composed_hydra([f"sweeps={sweep}", "size=tiny"]))
    needed = [tasks for need in declared.needs.values() for tasks in _tasks(need)]
    tasks = {*_tasks(sweep), *needed}
    found = ["plots=false", *(["seed=0"] if "train" in tasks else [])]
    found += TRAINED if {"train", "allreduce"} & tasks else []
    found += REPLAYED if "replay" in tasks else []
    found += MEASURED if "allreduce" in tasks else []
    if tasks == {"allreduce"}:
        found = [
            key for key in found if key.partition(".")[0] in ("cluster", "network", "allreduce", "plots")
        ]
        found += [text for text in ("cluster=virtual", "network=simulated") if text not in found]
    if tasks == {"replay"}:
        found.append(f"gradients={_gradients(folder)}")
    return found


def _tasks(sweep: str) -> list[str]:
    own = [f"sweeps={sweep}", "size=tiny"]
    return tasks_of(declared_in(composed_hydra(own)), "tiny", own)


def _gradients(folder: Path) -> Path:
    """Gradients of two workers, a matrix of 20 x 100 each."""
    values = np.random.default_rng(0).normal(size=(2, 2000)).astype(np.float32)
    layout = json.dumps({"buckets": [{"names": ["w"], "shapes": [[20, 100]]}]})
    np.savez(folder / "own.npz", gradients=values, layout=layout)
    return folder / "own.npz"


@pytest.mark.parametrize("sweep", SWEEPS)
def test_its_tiny_form_runs(sweep: str, command: Callable[..., int], tmp_path: Path) -> None:
    overrides = quick(sweep, tmp_path)
    assert command(f"sweeps={sweep}", "size=tiny", *overrides) == 0
    record = read_sweep_record(Path("outputs/sweeps") / f"{sweep}-tiny")
    assert record.cells and all(cell.status == "done" for cell in record.cells), record.left_out
    assert record.name == sweep and record.text in (None, "embedded")


@pytest.mark.parametrize("sweep", SWEEPS)
def test_its_first_line_says_how_to_run_it(sweep: str) -> None:
    lines = (conf_directory() / "sweeps" / f"{sweep}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert re.search(rf": python run\.py sweeps={sweep}\b", lines[1])


def test_a_sweep_of_a_paper_says_which_item() -> None:
    for sweep in SWEEPS:
        text = (conf_directory() / "sweeps" / f"{sweep}.yaml").read_text()
        assert not re.match(r"(dynamiq|sdp4bit|edgc|aqgb)_", sweep) or "\n  paper: " in text, sweep
