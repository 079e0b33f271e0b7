"""Runs the command line in this process, with a task that only notes its configuration."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from gradwire.harness.config.compose import compose, parse
from gradwire.harness.config.tasks import TASKS, Task
from gradwire.harness.launch.cell_process import CellOutcome
from gradwire.harness.record.seal import mark_done
from gradwire.harness.record.settings import RecordedConfig
from gradwire.harness.record.writer import begin_record
from gradwire.harness.runtime.conf import conf_directory
from gradwire.harness.tasks.front import start
from gradwire.harness.trainer.settings import RunConfig

ROOT = conf_directory().parent


@cache
def composed(*overrides: str) -> DictConfig:
    """Composing takes a quarter of a second, so tests of single values share one composition."""
    return compose(overrides)


def set_values(*overrides: str) -> DictConfig:
    """`size=tiny cluster.workers=4` with choices composed and values set, as the command line sets them."""
    parsed = {text: parse([text])[0] for text in overrides}
    choices = [text for text, override in parsed.items() if "." not in override.key_or_group]
    config = copy.deepcopy(composed("size=tiny", "cluster.workers=4", *choices))
    for override in parsed.values():
        if "." in override.key_or_group:
            OmegaConf.update(config, override.key_or_group, override.value())
    return config


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
def with_values() -> Callable[..., DictConfig]:
    return set_values


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
    monkeypatch.setattr("gradwire.harness.tasks.sweep.CellProcess", HereInstead)


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


SHAPED_CHECK = "gradwire.harness.network.shaped.check"


@pytest.fixture
def links_can_be_shaped(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Sets this machine's answer to `network=shaped`, at first that it works."""

    def answer(reason: str | None) -> None:
        module: Any = types.ModuleType(SHAPED_CHECK)
        module.why_not = lambda: reason
        monkeypatch.setitem(sys.modules, SHAPED_CHECK, module)

    answer(None)
    return answer
