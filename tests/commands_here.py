"""Fixtures that run the command line in this process, with a task that only notes its configuration."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins

from gradwire.harness.config.tasks import TASKS, Task
from gradwire.harness.launch.cell_process import CellOutcome
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.record.writer import begin_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.tasks.front import start
from gradwire.harness.trainer.settings import RunConfig

ROOT = conf_directory().parent


class HereInstead:
    """Runs the cells that would share a process in this one."""

    def __init__(self, target: Callable[[RecordedConfig, Path], CellOutcome]) -> None:
        self._target = target

    def run(self, config: RecordedConfig, directory: Path) -> CellOutcome:
        try:
            return self._target(config, directory)
        except Exception as error:
            return CellOutcome(1, str(error))

    def __enter__(self) -> HereInstead:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FakeTask(types.ModuleType):
    """A task that finishes at once, or fails for the seeds in `failing`."""

    def __init__(self) -> None:
        super().__init__("fake_task")
        self.ran: list[tuple[RunConfig, Path]] = []
        self.failing: dict[int, BaseException | int] = {}

    def run(self, config: RunConfig, directory: Path) -> int:
        self.ran.append((config, directory))
        outcome = self.failing.get(config.seed, 0)
        if isinstance(outcome, BaseException):
            raise outcome
        directory.mkdir(parents=True, exist_ok=True)
        begin_record(directory, config)
        if not outcome:
            mark_done(directory)
        return outcome


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> FakeTask:
    fake = FakeTask()
    monkeypatch.setitem(sys.modules, "fake_task", fake)
    monkeypatch.setitem(TASKS, "train", Task("fake_task", RunConfig))
    request.getfixturevalue("in_this_process")  # no other one knows it
    return fake


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that would share a process run in this one."""
    monkeypatch.setattr("gradwire.harness.sweeps.run.CellProcess", HereInstead)


@pytest.fixture
def run_py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Calls `run.py` with arguments in an empty working directory; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "harness" / "sweeper")])
    from hydra_plugins.gradwire_sweeper import GradwireSweeper

    Plugins.instance().register(GradwireSweeper)  # Hydra scans for plugins once per process

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        try:
            start()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return call
