"""Tasks that train nothing: only their own keys count, and they need nothing that a run needs."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pytest

from gradwire.harness.config.compose import compose
from gradwire.harness.config.tasks import TASKS, SyncTask, Task
from gradwire.harness.config.validate import validate, validate_task
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.record.settings import Configuration
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.runtime.errors import ConfigError

REQUIRED = {
    "sync": ["run=somewhere"],
    "timeline": ["run=somewhere"],
    "compare": ["runs=somewhere"],
    "replay": ["gradients=somewhere.npz"],
    "statistics": ["gradients=somewhere.npz"],
    "score": ["checkpoint=somewhere"],
    "weights": ["name=minilm"],
}
"""The settings that a task requires."""


class ShownTask(types.ModuleType):
    """A task that keeps what it was given."""

    def __init__(self) -> None:
        super().__init__("shown")
        self.given: list[Any] = []

    def run(self, *given: Any) -> int:
        self.given.append(given)
        return 3


@pytest.fixture
def sync(monkeypatch: pytest.MonkeyPatch) -> ShownTask:
    """`task=sync`, replaced by one that only looks."""
    shown = ShownTask()
    monkeypatch.setitem(sys.modules, "shown", shown)
    monkeypatch.setitem(TASKS, "sync", Task("shown", SyncTask))
    return shown


def test_every_task_has_a_configuration_and_a_module() -> None:
    choices = {path.stem for path in (conf_directory() / "task").glob("*.yaml")}
    assert choices == set(TASKS)
    for name, task in TASKS.items():
        config = compose([f"task={name}", *REQUIRED.get(name, [])])
        assert config.task.name == name
        loaded = task.load()
        assert callable(loaded.run)
        assert task.trains or not task.has_directory or (callable(loaded.resolve) and callable(loaded.name))
        if not task.has_directory:
            assert set(vars(validate_task(config))) > ({"task"} if name != "plan" else set())


def test_a_task_that_trains_nothing_runs_where_a_run_cannot(
    run_py: Callable[..., int], sync: ShownTask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The default model's weights and data are not here: a run is refused, this task is not."""
    with pytest.raises(ConfigError, match="size=tiny"):
        validate(compose())
    assert run_py("task=sync", "run=[a,b]", "tracking=wandb", "tracking.group=g") == 3
    ((config,),) = sync.given
    assert set(vars(config)) == {"task", "run", "tracking"}
    assert (config.run, config.tracking.group) == (["a", "b"], "g")
    with pytest.raises(FrozenInstanceError):
        config.run = ["c"]
    with pytest.raises(FrozenInstanceError):
        config.tracking.group = "h"
    assert not list(tmp_path.iterdir()), "it has no run directory"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["task=sync"], ["run has no value", "add run=<a run's directory>"]),
        (["task=sync", "runs=x"], ["unknown key runs", "run"]),
        (["task=sync", "run=x", "codec=bf16"], ["codec=bf16 has no effect with task=sync", "leave it out"]),
        (["task=sync", "run=x", "seed=1"], ["seed=1 has no effect"]),
        (["task=sync", "run=x", "tracking=wandb", "tracking.mode=never"], ["tracking.mode=never", "auto"]),
        (["task=sync", "run=x", "tracking.project=p"], ["tracking=wandb has it"]),
        (["--multirun", "task=doctor", "format=text,json"], ["task=doctor keeps nothing", "sweep"]),
        (["run=x", "size=tiny"], ["unknown key run"]),
    ],
)
def test_refused_in_one_line(
    given: list[str],
    parts: list[str],
    run_py: Callable[..., int],
    sync: ShownTask,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    assert run_py(*given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(part in line for part in parts), line
    assert not sync.given
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_one_process_is_enough_for_it(
    run_py: Callable[..., int],
    sync: ShownTask,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", "0")
    assert run_py("task=sync", "run=x") == 2
    assert "env -u RANK python run.py task=sync run=x" in capsys.readouterr().err
    assert not sync.given


@dataclass(frozen=True, kw_only=True)
class ReadsNetwork(Configuration):
    run: str
    network: NetworkConfig


def test_a_task_without_workers_reads_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its links are checked: what they join is the task's business."""
    monkeypatch.setitem(TASKS, "sync", Task("shown", ReadsNetwork))
    config = validate_task(compose(["task=sync", "run=x", "network=edgc_v100"]))
    assert set(vars(config)) == {"task", "run", "network"}
    assert (config.network.preset, config.network.nodes) == ("edgc_v100", 8)
    with pytest.raises(ConfigError, match=r"network.fabric=two_level needs"):
        validate_task(compose(["task=sync", "run=x", "network=simulated", "network.fabric=two_level"]))
