"""Conversion of a world's notes on a step to the step's trace, once timestamps can be converted to
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradwire.harness.timing.trace.log import LaneLog, TaskLog, timed
from gradwire.harness.timing.trace.step import (
    LaneOperation,
    Operation,
    Post,
    RankTrace,
    TaskTrace,
    Wait,
    Work,
)


class StepNotes(Protocol):
    """The notes on a rank's step until its trace is needed."""

    def resolve(self, start: float, end: float, seconds: Callable[[Any], float]) -> RankTrace:
        """The trace of the step from `start` to `end`, with times relative to its start; `seconds` converts
        timestamps."""
        ...


@dataclass(frozen=True)
class MeasuredNotes:
    """A step whose times are already known."""

    trace: RankTrace

    def resolve(self, start: float, end: float, seconds: Callable[[Any], float]) -> RankTrace:
        return self.trace


@dataclass(frozen=True)
class LaneNotes:
    """The logs of a rank's computation and collectives, for any form of step."""

    lane: LaneLog
    tasks: Sequence[TaskLog]

    def resolve(self, start: float, end: float, seconds: Callable[[Any], float]) -> RankTrace:
        lane = tuple(moved(operation, -start) for operation in self.lane.resolve(seconds))
        tasks = tuple(shifted(log.resolve(seconds), -start) for log in self.tasks)
        return RankTrace(lane, tasks, end - start)


def moved(operation: LaneOperation, by: float) -> LaneOperation:
    """Returns the operation moved by `by` seconds."""
    return timed(operation, lambda at: at + by)


def shifted(task: TaskTrace, by: float) -> TaskTrace:
    """Returns the task moved by `by` seconds."""
    operations = tuple(_moved(operation, by) for operation in task.operations)
    return task._replace(ready=task.ready + by, operations=operations)


def _moved(operation: Operation, by: float) -> Operation:
    if isinstance(operation, Post):
        return operation._replace(at=operation.at + by)
    moved: Work | Wait = operation._replace(start=operation.start + by, end=operation.end + by)
    return moved
