"""Every sweep of `sweeps/` runs in its tiny form; one that is stopped anywhere gives the same tables."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.core.plugins import Plugins
from packaged_wheels import place_small_weights
from tiny import TINY_MODEL
from warm import RUN, run_command, warm_or_cold

from gradwire.harness.config.compose import composed_hydra
from gradwire.harness.config.declared import declared_in
from gradwire.harness.launch.cell_process import CellOutcome
from gradwire.harness.report.sweep_record import VALUES, read_sweep_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.sweeps.cells import tasks_of
from gradwire.harness.sweeps.run import run_cell
from gradwire.harness.tasks.front import start

SWEEPS = sorted(path.stem for path in (conf_directory() / "sweeps").glob("*.yaml"))

LONG = (
    "dynamiq_fig4_fig5",
    "dynamiq_fig6",
    "dynamiq_table5",
    "replay_frontier",
    "sdp4bit_fig8",
    "sdp4bit_table4",
    "sdp4bit_table5",
)
"""Sweeps of which others have every kind of cell."""

PRETRAINED = ("minilm_glue", "smollm2")
"""Models whose weights `task=weights` fetches; here they are small ones of our own."""

NEEDY = "dynamiq_table6"
"""A sweep whose cells take from those of another."""

TIMES = ("network.compute_s=0.01", "network.codec_times=none")
TRAINED = (
    *(key for key in TINY_MODEL if key != "size=tiny"),
    *("cluster=virtual", "cluster.workers=2", "network=simulated", "network.rate_mbit=100", *TIMES),
    *("train.steps=3", "eval.every=3", "eval.max_sequences=8", "dataset=embedded"),
)
REPLAYED = ("replay.rounds=1", "replay.repeats=1")
MEASURED = ("allreduce.coordinates=5000", "allreduce.repeats=1")
"""The settings that make the cells of each task quick; the rest is the sweep's own."""


class InThisProcess:
    """Runs the cells that would share a process in this one."""

    def __init__(self, target: object) -> None:
        assert target is run_cell

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, config: Any, directory: Path) -> CellOutcome:
        return run_cell(config, directory)


Command = Callable[..., int]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    with commands_in(tmp_path) as found:
        yield found


@contextmanager
def commands_in(folder: Path) -> Iterator[Command]:
    """Runs sweeps in this process and this folder, without drawing plots; returns the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("gradwire.harness.sweeps.run.CellProcess", InThisProcess)
        patch.setattr("gradwire.harness.report.figures._write", lambda *_: iter(()))
        patch.setattr(sys, "path", [*sys.path, str(conf_directory().parent / "harness" / "sweeper")])
        from hydra_plugins.gradwire_sweeper import GradwireSweeper

        Plugins.instance().register(GradwireSweeper)

        def call(*arguments: str) -> int:
            patch.setattr(sys, "argv", ["run.py", *arguments])
            try:
                start()
            except SystemExit as ended:
                return int(ended.code or 0)
            return 0

        yield call


def quick(sweep: str, folder: Path) -> list[str]:
    """Overrides that make a sweep's tiny form quick."""
    declared = declared_in(composed_hydra([f"sweeps={sweep}", "size=tiny"]))
    needed = [tasks for need in declared.needs.values() for tasks in _tasks(need)]
    tasks = {*_tasks(sweep), *needed}
    found = ["plots=false", *(["seed=0"] if "train" in tasks else [])]
    found += TRAINED if {"train", "allreduce"} & tasks else []
    found += REPLAYED if "replay" in tasks else []
    found += MEASURED if "allreduce" in tasks else []
    if "allreduce" in tasks:  # which has one bucket, and refuses the option
        found = [text for text in found if not text.startswith("parallel.bucket_cap_mb=")]
    if tasks == {"allreduce"}:
        found = [
            key for key in found if key.partition(".")[0] in ("cluster", "network", "allreduce", "plots")
        ]
        found += [text for text in ("cluster=virtual", "network=simulated") if text not in found]
    names = (sweep, *declared.needs.values())
    text = "".join((conf_directory() / "sweeps" / f"{name}.yaml").read_text() for name in names)
    if "allreduce.matrices" in text:  # which say how many coordinates there are
        found = [key for key in found if not key.startswith("allreduce.coordinates=")]
    if "parallel: blocks" in text:  # which are no buckets, and refuse their option
        found = [key for key in found if not key.startswith("parallel.bucket_cap_mb=")]
    if any(f"model: {name}" in text for name in PRETRAINED):  # whose shape is that of their weights
        place_small_weights(folder)
        found = [key for key in found if not key.startswith("model.")]
    if "model: resnet" in text:  # whose images have no tokens
        found = [key for key in found if not key.startswith("dataset.sequence_length=")]
    if "parallel: pipeline" in text:  # a layer for each stage
        found = [key.replace("model.num_layers=1", "model.num_layers=2") for key in found]
    if tasks == {"replay"}:
        found.append(f"gradients={_gradients(folder)}")
    if "score" in tasks:
        found.append(f"score.data={_questions(folder)}")
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


def _questions(folder: Path) -> Path:
    """A benchmark of two questions."""
    choices = [{"text": text, "label": label} for text, label in (("ice", "A"), ("steam", "B"))]
    record = {"question": {"stem": "Water that boils becomes", "choices": choices}, "answerKey": "B"}
    (folder / "arc_easy").mkdir(exist_ok=True)
    lines = [json.dumps({"id": str(number), **record}) + "\n" for number in range(2)]
    (folder / "arc_easy" / "test.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for all sweeps, so that runs which several of them have run once."""
    return tmp_path_factory.mktemp("sweeps")


@pytest.mark.parametrize(
    "sweep", [pytest.param(name, marks=pytest.mark.full) if name in LONG else name for name in SWEEPS]
)
def test_its_tiny_form_runs(sweep: str, shared: Path, capsys: Any) -> None:
    overrides = quick(sweep, shared)
    with commands_in(shared) as command:
        assert command(f"sweeps={sweep}", "size=tiny", *overrides) == 0
    record = read_sweep_record(shared / folder_said(capsys, sweep))
    assert record.cells and all(cell.status == "done" for cell in record.cells), record.left_out
    assert len({cell.run for cell in record.cells}) == len(record.cells)
    assert record.name == sweep and record.text in (None, "embedded")


def folder_said(capsys: Any, sweep: str) -> Path:
    """The folder that a sweep names at its end: overrides have made its cells others."""
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(rf"sweep: outputs/sweeps/{sweep}-tiny(-[0-9a-f]{{12}})?", last), last
    return Path(last.removeprefix("sweep: "))


def test_a_sweep_that_is_run_again_takes_from_the_runs_of_this_time(
    command: Callable[..., int], tmp_path: Path, capsys: Any
) -> None:
    """With resume=never no run counts as finished before it has run again; the cells that need it run after
    that."""
    overrides = [f"sweeps={NEEDY}", "size=tiny", *quick(NEEDY, tmp_path), "resume=never"]
    assert command(*overrides) == 0
    output = folder_said(capsys, NEEDY)
    first = (output / "table.csv").read_text()
    assert command(*overrides) == 0
    assert len((output / "table.csv").read_text().splitlines()) == len(first.splitlines()) > 1


@pytest.mark.parametrize("sweep", SWEEPS)
def test_its_first_line_says_how_to_run_it(sweep: str) -> None:
    lines = (conf_directory() / "sweeps" / f"{sweep}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    assert re.search(rf": python run\.py sweeps={sweep}\b", lines[1])


def test_a_sweep_of_a_paper_says_which_item() -> None:
    for sweep in SWEEPS:
        text = (conf_directory() / "sweeps" / f"{sweep}.yaml").read_text()
        assert not re.match(r"(dynamiq|sdp4bit|edgc|aqgb)_", sweep) or "\n  paper: " in text, sweep


SHORT = (*TRAINED, "train.steps=20", "train.checkpoint_every=5", "eval.every=10", "size=tiny", "plots=false")
STOPPED = ("--multirun", *SHORT, "codec=bf16,dynamiq")


def tables(folder: Path) -> dict[str, bytes]:
    """All that a sweep writes, but for how long its cells took, and for the record, which says so, too."""
    (output,) = (folder / "outputs/sweeps").iterdir()
    found = {file.name: file.read_bytes() for file in output.iterdir() if file.name != "sweep.json"}
    lines = gzip.decompress(found[VALUES]).splitlines()
    return {**found, VALUES: b"\n".join(line for line in lines if b",wall_time_s," not in line)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that nothing has stopped."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with commands_in(folder) as command:
        assert command(*STOPPED) == 0
    assert {"table.md", "table.csv", "table.json", VALUES} <= tables(folder).keys()
    return folder


def test_minutes_stop_between_cells_and_the_command_goes_on(
    command: Command, undisturbed: Path, tmp_path: Path, capsys: Any
) -> None:
    """The first cell always starts; each call gets one further."""
    assert command(*STOPPED, "sweep.minutes=0.00001") == 75
    said = capsys.readouterr().out
    assert "stopped after sweep.minutes=1e-05: 1 runs are left; the same command continues with them" in said
    assert tables(tmp_path)["table.md"] != tables(undisturbed)["table.md"]
    assert command(*STOPPED, "sweep.minutes=0.00001") == 0
    assert "2 runs, 1 of them finished before" in capsys.readouterr().out
    assert tables(tmp_path) == tables(undisturbed)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(rest, marks=pytest.mark.full) for rest in (signal.SIGKILL, signal.SIGINT)),
    ],
)
def test_a_stopped_sweep_gives_the_same_tables(
    number: signal.Signals, undisturbed: Path, command: Command, tmp_path: Path
) -> None:
    """The sweep is stopped in its second cell, which has a checkpoint, and started again."""
    process = warm_or_cold(
        [sys.executable, str(RUN), *STOPPED],
        env=os.environ,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (list(tmp_path.glob("outputs/*/DONE")) and list(tmp_path.glob("outputs/*/checkpoints/step*"))):
        assert time.monotonic() < deadline and process.poll() is None, process.communicate()
        time.sleep(0.002)
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), out
    assert len(list(tmp_path.glob("outputs/*/DONE"))) == 1
    assert command(*STOPPED) == 0
    assert tables(tmp_path) == tables(undisturbed)


def test_cells_that_share_a_process_compute_what_they_do_alone(undisturbed: Path, tmp_path: Path) -> None:
    """The second of two cells, after another one and as a command of its own."""
    assert run_command(tmp_path, *SHORT, "codec=dynamiq").returncode == 0
    (alone,) = tmp_path.glob("outputs/*/steps.jsonl")
    shared = undisturbed / "outputs" / alone.parent.name / "steps.jsonl"
    losses = [
        [json.loads(line)["loss"] for line in path.read_text().splitlines()] for path in (alone, shared)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 20
