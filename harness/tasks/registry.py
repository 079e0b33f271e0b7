"""All tasks by name. A new task is one entry here, one module beside this one, one YAML."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """What `task=<name>` runs, and which part of the configuration is meant for it."""

    module: str
    """Imported when asked for. It has `run(config, directory) -> exit code`, or, where the task trains
    nothing, `run(config) -> exit code`."""
    trains: bool
    """Whether the whole configuration describes a training run, which has a directory of its own."""
    groups: tuple[str, ...] = ()
    """The groups that a task which trains nothing reads, beside the root keys its YAML adds."""


TASKS: dict[str, Task] = {
    "train": Task("gradwire.harness.tasks.train", trains=True),
    "overhead": Task("gradwire.harness.tasks.overhead", trains=True),
    "sync": Task("gradwire.harness.tasks.sync", trains=False, groups=("tracking",)),
    "doctor": Task("gradwire.harness.tasks.doctor", trains=False),
}
