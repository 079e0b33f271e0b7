"""All tasks by name. A new task is one entry here, one module beside this one, one YAML."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """What `task=<name>` runs, and which part of the configuration is meant for it."""

    module: str
    """Imported when asked for. It has `run(config, directory) -> exit code`, or, where the task keeps
    nothing, `run(config) -> exit code`. Where it keeps results without training it has `check(config)`, which
    replaces in place what stands for something else and refuses what cannot run, and `name(config)`, the
    first words of its directory's name. `compare(folders, output, axes)`, if any, makes a sweep's tables."""
    trains: bool
    """Whether the whole configuration describes a training run."""
    groups: tuple[str, ...] = ()
    """What a task that trains nothing reads: groups, and root keys that every task has, such as `seed`,
    beside the root keys its YAML adds."""
    keeps: bool = False
    """Whether a task that trains nothing has a directory for its results, and can be part of a sweep."""
    times: bool = False
    """Whether its figures are times; `kernels=auto` then never means the slow definition."""

    @property
    def has_directory(self) -> bool:
        return self.trains or self.keeps


TASKS: dict[str, Task] = {
    "train": Task("gradwire.harness.tasks.train", trains=True),
    "replay": Task(
        "gradwire.harness.tasks.replay",
        trains=False,
        groups=("codec", "topology", "cluster", "kernels", "seed", "resume"),
        keeps=True,
    ),
    "statistics": Task(
        "gradwire.harness.tasks.statistics", trains=False, groups=("seed", "resume"), keeps=True
    ),
    "bench": Task(
        "gradwire.harness.tasks.bench",
        trains=False,
        groups=("cluster", "kernels", "seed", "resume"),
        keeps=True,
        times=True,
    ),
    "allreduce": Task(
        "gradwire.harness.tasks.allreduce",
        trains=False,
        groups=(
            *("codec", "topology", "cluster", "network", "kernels", "overlap", "measure"),
            *("seed", "resume"),
        ),
        keeps=True,
        times=True,
    ),
    "retime": Task(
        "gradwire.harness.tasks.retime", trains=False, groups=("network", "seed", "resume"), keeps=True
    ),
    "overhead": Task("gradwire.harness.tasks.overhead", trains=True, times=True),
    "sync": Task("gradwire.harness.tasks.sync", trains=False, groups=("tracking",)),
    "timeline": Task("gradwire.harness.tasks.timeline", trains=False),
    "doctor": Task("gradwire.harness.tasks.doctor", trains=False),
}
