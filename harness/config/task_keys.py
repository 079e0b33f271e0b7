"""The keys of the configuration's root: those of every run, and those that a task adds.

The root itself is not typed, so that each task can add keys. `conf/task/<task>.yaml` gives them the values
that stand here too, and the rules hold for whatever a file or the command line sets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwire.codecs.fields import NOTHING, NUMBER
from gradwire.harness.runtime.fields import Rule, at_least, check_fields, checked, list_of, one_of, rules_of
from gradwire.harness.trainer.settings import LONGEST_RUN

REQUIRED = "???"
"""The value of a key that has to be given."""

SMALLEST_BUCKET_MB, LARGEST_BUCKET_MB = 1e-3, 65_536


@dataclass
class RootKeys:
    """Keys of every run."""

    seed: int = at_least(0, 0, 2**31 - 1)  # weights, data order, dropout, stochastic rounding
    # an unfinished run: auto resumes it if the code is the same, force resumes it anyway, never starts over
    resume: str = one_of("auto", "force", "never")


@dataclass
class ReplayConfig:
    """Synchronizing saved gradients."""

    repeats: int = at_least(1, 5, 10_000)  # synchronizations of the same gradients, other random numbers each
    rounds: int = at_least(1, 1, 100_000)  # in each repeat; the last counts: codecs that adapt need some
    plots: bool = True  # of this replay; a sweep's are made anyway
    # MiB of float32 synchronized together, where the file does not say which buckets there are
    bucket_mb: int | float = at_least(SMALLEST_BUCKET_MB, 25.0, LARGEST_BUCKET_MB)


@dataclass
class ReplayKeys:
    gradients: str = REQUIRED  # .npz or .safetensors with an array `gradients` (workers, coordinates)
    replay: ReplayConfig = field(default_factory=ReplayConfig)


@dataclass
class StatisticsConfig:
    """What saved gradients look like."""

    # budgets of codec=dynamiq whose widths are shown, and rates of the rate-distortion bound
    bits: list[Any] = list_of([3, 4, 5, 6], fewest=1, kinds=(NUMBER,), low=0, high=64)
    # MiB of float32 synchronized together, where the file does not say which buckets there are
    bucket_mb: int | float = at_least(SMALLEST_BUCKET_MB, 25.0, LARGEST_BUCKET_MB)


@dataclass
class StatisticsKeys:
    gradients: str = REQUIRED  # .npz or .safetensors with an array `gradients` (workers, coordinates)
    statistics: StatisticsConfig = field(default_factory=StatisticsConfig)


@dataclass
class BenchConfig:
    """The speed of the codecs' operations."""

    operations: list[str] = list_of(["*"], fewest=1)  # names with * and ?, e.g. [dynamiq.*,mxfp.add.8]
    sizes: list[int] = list_of([1 << 18, 1 << 24], fewest=1, low=1, high=1 << 31)  # coordinates
    dtypes: list[str] = list_of(["float32", "bfloat16"], fewest=1, choices=("float32", "bfloat16"))
    # of the CPU; one thread's CPU time counts, several threads' wall time
    threads: list[int] = list_of([1], fewest=1, low=1, high=1024)
    seconds: int | float = at_least(0, 0.2, 60)  # at least, for each row


@dataclass
class BenchKeys:
    bench: BenchConfig = field(default_factory=BenchConfig)


@dataclass
class AllReduceConfig:
    """One all-reduce, measured and modelled."""

    coordinates: int = at_least(1, 1 << 23, 1 << 33)  # of each worker's gradient, one bucket
    repeats: int = at_least(1, 10, 100_000)  # rounds that count, after some that do not


@dataclass
class AllReduceKeys:
    allreduce: AllReduceConfig = field(default_factory=AllReduceConfig)


@dataclass
class RetimeConfig:
    """Whose times are worked out again."""

    digest: str | None = checked(None, kinds=(NOTHING,), optional=True)  # of the run's summary


@dataclass
class RetimeKeys:
    run: str = REQUIRED  # the run's directory
    retime: RetimeConfig = field(default_factory=RetimeConfig)


@dataclass
class OverheadConfig:
    """The trainer's step against a bare loop's."""

    blocks: int = at_least(1, 12, 10_000)  # counted blocks of each loop; one more before them is not
    steps: int = at_least(1, 20, 1_000_000)  # optimizer steps in a block


@dataclass
class OverheadKeys:
    overhead: OverheadConfig = field(default_factory=OverheadConfig)


@dataclass
class TimelineConfig:
    """Which steps are shown."""

    step: int | None = at_least(0, None, LONGEST_RUN)  # the first; null: from the middle of the run
    steps: int = at_least(1, 3, 10_000)  # one after another, a timeline each


@dataclass
class TimelineKeys:
    run: str | list[str] = checked(REQUIRED, fewest=1)  # a run's directory, a pattern, or a list of them
    timeline: TimelineConfig = field(default_factory=TimelineConfig)


@dataclass
class SyncKeys:
    run: str | list[str] = checked(REQUIRED, fewest=1)  # a run's directory, a pattern, or a list of them


@dataclass
class DoctorKeys:
    format: str = one_of("text", "json")  # of the page


TASK_KEYS: dict[str, type] = {
    "replay": ReplayKeys,
    "statistics": StatisticsKeys,
    "bench": BenchKeys,
    "allreduce": AllReduceKeys,
    "retime": RetimeKeys,
    "overhead": OverheadKeys,
    "timeline": TimelineKeys,
    "sync": SyncKeys,
    "doctor": DoctorKeys,
}
"""The keys that a task adds to the root; `task=train` adds none."""


def root_rules(task: str) -> dict[str, Rule]:
    """The rule of every key of the root, and of those below it, with this task: `replay.rounds`."""
    return {key: rule for schema in root_schemas(task) for key, rule in _leaves(schema)}


def root_schemas(task: str) -> list[type]:
    """What says which keys the root has with this task."""
    return [RootKeys, *([TASK_KEYS[task]] if task in TASK_KEYS else [])]


def check_root(config: Mapping[Any, Any], task: str) -> None:
    """Raise ConfigError for the first key of the root, groups aside, whose value is not allowed."""
    for schema in root_schemas(task):
        names = [each.name for each in dataclasses.fields(schema)]
        check_fields(schema, {name: config[name] for name in names if name in config}, "")


def _leaves(schema: type, prefix: str = "") -> Iterator[tuple[str, Rule]]:
    for name, rule in rules_of(schema).items():
        if isinstance(rule, Rule):
            yield prefix + name, rule
        else:
            yield from _leaves(rule, f"{prefix}{name}.")
