"""The settings of the tasks that look at finished runs or at this machine, and every task by name.

A new task is one entry in `TASKS`, the class of its settings, one module next to `tasks/main.py`, one YAML.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from gradwire.codecs.fields import NOTHING
from gradwire.harness.network.settings import NetworkConfig
from gradwire.harness.record.settings import Configuration, RecordedConfig
from gradwire.harness.report.settings import ReportTask
from gradwire.harness.runtime.fields import at_least, checked, one_of
from gradwire.harness.studies.allreduce.settings import AllReduceTask
from gradwire.harness.studies.bench.settings import BenchTask
from gradwire.harness.studies.overhead.settings import OverheadTask
from gradwire.harness.studies.predict.settings import PredictTask
from gradwire.harness.studies.replay.settings import ReplayTask
from gradwire.harness.studies.score.settings import ScoreTask
from gradwire.harness.studies.simulate.settings import SimulateTask
from gradwire.harness.studies.statistics.settings import StatisticsTask
from gradwire.harness.tracking.settings import TrackingConfig
from gradwire.harness.trainer.settings import LONGEST_RUN, RunConfig


@dataclass(frozen=True)
class RetimeConfig:
    """Whose times are worked out again."""

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
    """Imported when asked for. It has `run(config, directory) -> exit code`, or, where the task keeps
    nothing, `run(config) -> exit code`. Where it keeps results without training it has `resolve(config)`,
    which returns the configuration with what stands for something else replaced, or refuses what cannot run;
    and `name(config)`, the first words of its directory's name. `compare(folders, output, axes)`, if any,
    makes a sweep's tables."""
    config: type[Configuration]
    """The class of its configuration: a field for each group and each key of the root."""
    times: bool = False
    """True if its figures are times; `kernels=auto` then never means the slow definition."""

    @property
    def name(self) -> str:
        """The name that follows `task=`."""
        return self.module.rpartition(".")[2]

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
    "replay": Task("gradwire.harness.tasks.replay", ReplayTask),
    "statistics": Task("gradwire.harness.tasks.statistics", StatisticsTask),
    "score": Task("gradwire.harness.tasks.score", ScoreTask),
    "bench": Task("gradwire.harness.tasks.bench", BenchTask, times=True),
    "allreduce": Task("gradwire.harness.tasks.allreduce", AllReduceTask, times=True),
    "predict": Task("gradwire.harness.tasks.predict", PredictTask),
    "simulate": Task("gradwire.harness.tasks.simulate", SimulateTask),
    "retime": Task("gradwire.harness.tasks.retime", RetimeTask),
    "overhead": Task("gradwire.harness.tasks.overhead", OverheadTask, times=True),
    "report": Task("gradwire.harness.tasks.report", ReportTask),
    "plan": Task("gradwire.harness.tasks.plan", PlanTask),
    "sync": Task("gradwire.harness.tasks.sync", SyncTask),
    "timeline": Task("gradwire.harness.tasks.timeline", TimelineTask),
    "doctor": Task("gradwire.harness.tasks.doctor", DoctorTask),
}
