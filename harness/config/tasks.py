"""The settings of the tasks that look at finished runs or at this machine, and every task by name.

A study is found by its `STUDY` (`studies/study.py`). Any other new task is one entry in `TASKS`, the class of
its settings, one module next to `tasks/main.py`, one YAML.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any

from gradwire.codecs.fields import LIST, NOTHING, TEXT, WHOLE
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.record.figures import study_module, study_names
from gradwire.harness.record.settings import Configuration, RecordedConfig
from gradwire.harness.report.settings import ReportTask
from gradwire.harness.runtime.fields import Rule, at_least, checked, list_of, one_of
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import LONGEST_RUN, RunConfig


@dataclass(frozen=True)
class RetimeConfig:
    """The runs whose times are worked out again."""

    digest: str | None = checked(None, kinds=(NOTHING,), optional=True)  # of the run's summary


@dataclass(frozen=True, kw_only=True)
class RetimeTask(RecordedConfig):
    """A finished run on another network."""

    run: str  # the run's directory
    retime: RetimeConfig
    network: NetworkConfig


@dataclass(frozen=True)
class TimelineConfig:
    """The steps that are shown."""

    step: int | None = at_least(0, None, LONGEST_RUN)  # the first; null: from the middle of the run
    steps: int = at_least(1, 3, 10_000)  # one after another, a timeline each


@dataclass(frozen=True, kw_only=True)
class TimelineTask(Configuration):
    """Steps of a finished run as timelines."""

    # a run's directory, a pattern, or a list of them
    run: str | list[str] = checked(dataclasses.MISSING, fewest=1)
    timeline: TimelineConfig


@dataclass(frozen=True, kw_only=True)
class SyncTask(Configuration):
    """The wandb runs of records, rebuilt."""

    # a run's directory, a pattern, or a list of them
    run: str | list[str] = checked(dataclasses.MISSING, fewest=1)
    tracking: TrackingConfig


STATES = ("done", "failed", "interrupted", "running", "damaged")
"""The states of a run's directory."""


@dataclass(frozen=True)
class RunsConfig:
    """The choice of runs that are listed, and their order."""

    folders: list[str] = list_of(["outputs"], fewest=1)  # runs and sweeps at any depth
    state: str = one_of("all", *STATES)
    match: str | None = None  # only lines with this text, e.g. dynamiq
    sort: str = one_of("name", "newest", "metric", "tta")  # metric, tta: the best first


@dataclass(frozen=True, kw_only=True)
class RunsTask(Configuration):
    """Runs and sweeps, one line each."""

    runs: RunsConfig


@dataclass(frozen=True)
class CompareConfig:
    """The folder that the comparison is written to."""

    output: str | None = None  # a folder; null: outputs/comparisons/<digest of the runs>


LARGEST_ID = 10**12 - 1
"""The largest id of decimal digits alone; the command line takes such ids for numbers."""


@dataclass(frozen=True, kw_only=True)
class CompareTask(Configuration):
    """The tables and plots of finished runs of one task."""

    # directories, patterns, names in outputs/, or beginnings of ids, which may look like numbers
    runs: Any = checked(
        dataclasses.MISSING,
        kinds=(TEXT, WHOLE, LIST),
        fewest=1,
        high=LARGEST_ID,
        low=0,
        elements=Rule(kinds=(TEXT, WHOLE), low=0, high=LARGEST_ID),
    )
    compare: CompareConfig


@dataclass(frozen=True, kw_only=True)
class PlanTask(Configuration):
    """A sweep's cells and how long they will take."""


@dataclass(frozen=True, kw_only=True)
class DoctorTask(Configuration):
    """Settings of the report on this machine."""

    format: str = one_of("text", "json")  # of the page


@dataclass(frozen=True)
class Task:
    """A task: the module that `task=<name>` runs, and what it reads of the configuration."""

    module: str
    """Imported when it is needed. It has the `STUDY`, or `run(config, directory) -> exit code`, or, where the
    task keeps nothing, `run(config) -> exit code`. Where it keeps results without training it also has
    `resolve`, `name` and, if a sweep of it is compared, `compare`, as a `Study` has."""
    config: type[Configuration]
    """Its settings: a field for each group and each key of the root."""
    times: bool = False
    """True if its figures are times; `kernels=auto` then never means the slow definition."""

    @classmethod
    def of_study(cls, name: str) -> Task:
        """The task that runs a study."""
        module = study_module(name)
        study = importlib.import_module(module).STUDY
        return cls(module, study.settings, study.times)

    def load(self) -> Any:
        """The study, or the module."""
        module = importlib.import_module(self.module)
        return getattr(module, "STUDY", module)

    def run(self, *arguments: Any) -> int:
        """Carries it out; returns the exit code. A task that ends the process would end a whole sweep: its
        code is returned, too."""
        try:
            return int(self.load().run(*arguments))
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)

    @property
    def name(self) -> str:
        """The word after `task=`."""
        return self.module.removesuffix(".study").rpartition(".")[2]

    @property
    def is_study(self) -> bool:
        """True if a `Study` carries it out."""
        return self.name in study_names()

    @property
    def trains(self) -> bool:
        """True if its configuration describes a training run."""
        return issubclass(self.config, RunConfig)

    @property
    def has_directory(self) -> bool:
        """True if it keeps its results in a directory, and can be part of a sweep."""
        return issubclass(self.config, RecordedConfig)

    @property
    def reads(self) -> tuple[str, ...]:
        """The groups and root keys that it reads."""
        return tuple(each.name for each in dataclasses.fields(self.config))


TASKS: dict[str, Task] = {
    "train": Task("gradwire.harness.tasks.train", RunConfig),
    **{name: Task.of_study(name) for name in study_names()},
    "retime": Task("gradwire.harness.tasks.retime", RetimeTask),
    "runs": Task("gradwire.harness.tasks.runs", RunsTask),
    "compare": Task("gradwire.harness.tasks.compare", CompareTask),
    "report": Task("gradwire.harness.tasks.report", ReportTask),
    "plan": Task("gradwire.harness.tasks.plan", PlanTask),
    "sync": Task("gradwire.harness.tasks.sync", SyncTask),
    "timeline": Task("gradwire.harness.tasks.timeline", TimelineTask),
    "doctor": Task("gradwire.harness.tasks.doctor", DoctorTask),
}
