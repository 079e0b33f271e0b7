"""Commands whose codec and topology are plug-ins, and diverging runs: both work with every launcher.

One sweep is the reference: the other commands' runs equal its cells, bit for bit.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from command import RUN, TORCHRUN, assert_alone, call, errors, finished, started
from recorded import CLOCKS, loads
from tiny import TINY_MODEL

from gradwire.codecs.plugins import ALLOWED
from gradwire.harness.checkpoint.resume import check_directory
from gradwire.harness.config.compose import compose
from gradwire.harness.config.validate import validate
from gradwire.harness.record.runs import load_run
from gradwire.harness.report.compare import compare
from gradwire.harness.runtime.conf import conf_directory

PLUGINS = ("codec=int8:Int8", "topology=backwards:backwards")
SETTINGS = (
    *TINY_MODEL,
    *("train.steps=9", "train.warmup_steps=0", "train.log_every=1", "train.checkpoint_every=1"),
    *("eval.every=100", "eval.max_sequences=4", "train.max_skipped=1", "cluster.workers=2"),
)
PLUGGED = (*SETTINGS, *PLUGINS, "codec.levels=100")
BEYOND = "train.lr=20000"
"""Three steps, the third of them with a loss of 1e12, and none after them has finite gradients."""
REASON = "diverged after step 5: gradients not finite, steps skipped in a row: 2 (train.max_skipped=1)"
WHERE = {"PYTHONPATH": str(conf_directory().parent / "examples" / "plugins"), ALLOWED: ""}
"""The environment in which plug-ins are found; only the command line names them."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all runs."""
    folder = tmp_path_factory.mktemp("outside") / "work"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def sweep(here: Path) -> tuple[CompletedProcess[str], Path, Path]:
    """A sweep in the virtual cluster; the cell that diverges comes first. Its output, and both cells."""
    axis = f"{BEYOND},0.001"
    ran = call(here, RUN, "--multirun", *PLUGGED, "cluster=virtual", axis, "hydra.sweep.dir=sweep", **WHERE)
    bad, good = sorted((here / "sweep").glob("gpt2-*"), key=lambda path: (path / "DONE").exists())
    return ran, bad, good


def rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of all steps without their times."""
    found = [loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]
    return [{key: repr(value) for key, value in row.items() if key not in CLOCKS} for row in found]


def checkpoint(directory: Path) -> dict[str, bytes]:
    """Weights and optimizer of the newest checkpoint."""
    newest = max((directory / "checkpoints").glob("step-*"))
    assert newest.name == "step-00000003", "those after it are of skipped steps"
    return {name: (newest / f"{name}.safetensors").read_bytes() for name in ("model", "optimizer")}


def assert_diverged(directory: Path, alike: Path) -> None:
    """A failed run with the reason, the rows and the checkpoint of the one in `alike`."""
    assert (directory / "FAILED").read_text() == f"{REASON}\n"
    assert not (directory / "DONE").exists()
    assert load_run(directory).diverged
    *_, last = json.loads((directory / "run.json").read_text())["attempts"]
    assert directory.name == "torchrun" or last["ended"]["reason"] == REASON
    assert [row["skipped"] for row in rows(directory)] == ["False"] * 3 + ["True"] * 2
    assert rows(directory) == rows(alike)
    assert checkpoint(directory) == checkpoint(alike)


def test_a_sweep_goes_on_and_names_the_run_that_diverged(
    sweep: tuple[CompletedProcess[str], Path, Path],
) -> None:
    ran, bad, good = sweep
    assert ran.returncode == 1
    assert errors(ran.stdout) == [f"error: {REASON}"]
    assert not [line for line in ran.stderr.splitlines() if "rror" in line], ran.stderr
    assert_diverged(bad, bad)
    assert load_run(good).done.skipped_steps == 0
    assert ran.stdout.splitlines()[-2].startswith(f"failed: {BEYOND}")
    table = (bad.parent / "table.md").read_text()
    assert "| 1 (1 diverged) | diverged |" in table
    assert REASON in table
    versions = load_run(good).done.versions
    assert all(versions[text.partition("=")[2]].startswith("source ") for text in PLUGINS)


def test_real_workers_diverge_and_are_not_run_again(
    here: Path, sweep: tuple[CompletedProcess[str], Path, Path]
) -> None:
    """Only `resume=force` continues it, from the newest checkpoint."""
    command = (RUN, *PLUGGED, BEYOND, "hydra.run.dir=real")
    run = started(here, *command, **WHERE)
    ended = finished(run)
    assert_alone(run)
    assert ended.returncode == 1
    assert errors(ended.stderr) == [f"error: {REASON}"]
    assert "Traceback" not in ended.stderr
    assert_diverged(here / "real", sweep[1])

    again = call(here, *command, **WHERE)
    assert again.returncode == 2
    assert again.stderr == (
        f"error: real {REASON}, and would again; change a setting (train.lr=, another run), or try from its "
        "newest checkpoint with resume=force\n"
    )
    forced = call(here, *command, "resume=force", **WHERE)
    assert forced.returncode == 1
    assert "resuming after step 3, from real/checkpoints/step-00000003" in forced.stdout
    assert errors(forced.stderr) == [f"error: {REASON}"]
    assert_diverged(here / "real", sweep[1])


def test_ranks_of_torchrun_diverge_together(
    here: Path, sweep: tuple[CompletedProcess[str], Path, Path]
) -> None:
    """Rank 0 says so; what torchrun says of its processes comes after."""
    run = started(here, *TORCHRUN, RUN, *PLUGGED, BEYOND, "hydra.run.dir=torchrun", **WHERE)
    ended = finished(run)
    assert_alone(run)
    assert ended.returncode == 1
    assert errors(ended.stderr) == [f"error: {REASON}"]
    assert_diverged(here / "torchrun", sweep[1])


def test_a_plug_in_is_imported_only_where_the_user_names_it(
    here: Path, sweep: tuple[CompletedProcess[str], Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plug-in is not imported because a run directory names it; tables and refusals need no import."""
    good = sweep[2]
    retime = (RUN, "task=retime", f"run={good}", "network=simulated", "hydra.run.dir=retimed")
    trap = here / "trap"
    trap.mkdir()
    for name in ("int8", "backwards"):
        (trap / f"{name}.py").write_text("raise SystemExit('imported')\n")
    refused = call(here, *retime, PYTHONPATH=str(trap), **{ALLOWED: ""})
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: codec=int8:Int8 is a plug-in, and no file may choose what is im")
    assert refused.stderr.count("\n") == 1
    assert not (here / "retimed").exists()

    named = call(here, *retime, *PLUGINS, **WHERE)
    assert named.returncode == 0, named.stderr
    assert [row["loss"] for row in rows(here / "retimed")] == [row["loss"] for row in rows(good)]
    done, source = load_run(here / "retimed").done, load_run(good).done
    assert (done.final_metric, done.bytes_sent_per_rank) == (source.final_metric, source.bytes_sent_per_rank)

    before = {name: sys.modules.pop(name, None) for name in ("int8", "backwards")}
    monkeypatch.setenv(ALLOWED, "")
    monkeypatch.syspath_prepend(str(trap))
    with pytest.raises(ValueError, match="holds a run with other settings"):
        check_directory(validate(compose([*SETTINGS, "train.lr=0.001", "cluster=virtual"])), good)
    assert "int8:Int8" in compare([good], here / "table", axes=[]).text
    assert not {"int8", "backwards"} & {*sys.modules}
    sys.modules.update({name: module for name, module in before.items() if module is not None})
    assert not os.environ[ALLOWED]
