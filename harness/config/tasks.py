"""The settings of the tasks about finished runs or this machine, and all tasks by name.

A study is found by its `STUDY` (`studies/study.py`). Any other new task is an entry in `TASKS`, a class for
its settings, a module next to `tasks/main.py`, and a YAML file.
"""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from typing import Any

from gradwire.codecs.fields import LIST, NOTHING, TEXT, WHOLE, Rule, at_least, checked, list_of, one_of
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.packaged.catalogue import CATALOGUE
from gradwire.harness.record.figures import study_module, study_names
from gradwire.harness.record.settings import Configuration, RecordedConfig
from gradwire.harness.report.settings import ReportTask
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import LONGEST_RUN, RunConfig


@dataclass(frozen=True)
class RetimeConfig:
    """The settings of recomputing a run's times."""

    digest: str | None = checked(None, kinds=(NOTHING,), optional=True)  # of the run's summary


@dataclass(frozen=True, kw_only=True)
class RetimeTask(RecordedConfig):
    """A finished run on another network."""

    run: str  # the run's directory
    retime: RetimeConfig
    network: NetworkConfig


@dataclass(frozen=True)
class TimelineConfig:
    """The choice of steps."""

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
    """The recreation of records' wandb runs."""

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
    """The settings of a comparison's output."""

    output: str | None = None  # a folder; null: outputs/comparisons/<digest of the runs>


LARGEST_ID = 10**12 - 1
"""The largest id that consists of decimal digits only; the command line parses such ids as numbers."""


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
    """A sweep's cells and the time they will take."""


@dataclass(frozen=True, kw_only=True)
class DoctorTask(Configuration):
    """The settings of the report on this machine."""

    format: str = one_of("text", "json")  # of the page


@dataclass(frozen=True, kw_only=True)
class WeightsTask(Configuration):
    """The fetching of pretrained weights."""

    # SmolLM2-135M-Instruct, a LLaMA; all-MiniLM-L6-v2, a BERT
    name: str = checked(dataclasses.MISSING, choices=tuple(CATALOGUE))


@dataclass(frozen=True)
class Task:
    """A task: the module that `task=<name>` runs, and the configuration that it reads."""

    module: str
    """Imported when needed. It has the `STUDY`, or `run(config, directory) -> exit code`, or, if the task
    keeps no results, `run(config) -> exit code`. If it keeps results without training it also has `resolve`,
    `name` and, if its sweeps are compared, `compare`, like a `Study`."""
    config: type[Configuration]
    """Its settings, with a field for each group and each root key."""
    times: bool = False
    """True if its figures are times; `kernels=auto` then never selects the slow definition."""

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
        """True if the task is a `Study`."""
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
    "weights": Task("gradwire.harness.tasks.weights", WeightsTask),
}
