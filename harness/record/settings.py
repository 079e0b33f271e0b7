"""The fields of every validated configuration, and of those whose results are kept."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gradwire.codecs.fields import at_least, one_of


@dataclass(frozen=True)
class TaskConfig:
    """The choice of the task."""

    name: str = "train"  # a key of harness.config.tasks.TASKS


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A validated configuration, which holds only what its task reads."""

    task: TaskConfig

    def mapping(self) -> dict[str, Any]:
        """A copy as plain dicts, lists, numbers and texts, as `config.yaml` keeps it."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class RecordedConfig(Configuration):
    """The configuration of a task that keeps its results in a run directory."""

    seed: int = at_least(0, 0, 2**31 - 1)  # weights, data order, dropout, stochastic rounding
    # an unfinished run: auto resumes it if the code is the same, force resumes it anyway, never starts over
    resume: str = one_of("auto", "force", "never")
    plots: bool = True  # of this run, over a second of work; a sweep's own are made anyway
