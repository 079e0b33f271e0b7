"""Steps with any times: work, messages and computation in their order, each after some while."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gradwire.harness.timing.trace.step import (
    Compute,
    LaneOperation,
    Operation,
    Part,
    Post,
    RankTrace,
    Start,
    StepTrace,
    TaskTrace,
    Work,
)


class Moments:
    """Times that follow one another, of any length, now and then none."""

    def __init__(self, drawn: random.Random) -> None:
        self._drawn, self.at = drawn, 0.0

    def next(self) -> float:
        self.at += self._drawn.choice((0.0, self._drawn.random() / 100))
        return self.at


def timed_at_random(drawn: random.Random, steps: Sequence[StepTrace]) -> list[StepTrace]:
    """The steps with times; their lanes stay, with labels of any kind."""
    return [{rank: _timed(drawn, own) for rank, own in step.items()} for step in steps]


def synchronous_steps(drawn: random.Random, steps: Sequence[StepTrace]) -> list[StepTrace]:
    """The collectives of the steps in those of synchronous data parallelism."""
    return [{rank: _synchronous(drawn, own.tasks) for rank, own in step.items()} for step in steps]


def _synchronous(drawn: random.Random, tasks: Sequence[TaskTrace]) -> RankTrace:
    moments = Moments(drawn)
    ready = [moments.next() for _ in tasks]
    timed = [_task(drawn, task, at) for task, at in zip(tasks, ready, strict=True)]
    end = max(task.end for task in timed) + drawn.random()
    return RankTrace.synchronous(ready, timed, drawn.choice((0.0, drawn.random() / 10)), end)


def _timed(drawn: random.Random, own: RankTrace) -> RankTrace:
    moments = Moments(drawn)
    lane = tuple(_lane_operation(drawn, moments, operation) for operation in own.computation)
    tasks = tuple(_task(drawn, task, drawn.random()) for task in own.tasks)
    return RankTrace(lane, tasks, moments.next())


def _lane_operation(drawn: random.Random, moments: Moments, operation: LaneOperation) -> LaneOperation:
    if isinstance(operation, Start):
        return operation._replace(at=moments.next())
    start, end = moments.next(), moments.next()
    if isinstance(operation, Compute):
        label = drawn.choice(("", "forward of block 0", "backward 1", "update"))
        seconds = None if operation.seconds is None else operation.seconds + drawn.random() / 100
        return Compute(start, end, label, seconds)
    return operation._replace(start=start, end=end)


def _task(drawn: random.Random, task: TaskTrace, ready: float) -> TaskTrace:
    moments = Moments(drawn)
    moments.at = ready
    operations = tuple(_operation(drawn, moments, operation) for operation in task.operations)
    return task._replace(coordinates=drawn.randint(1, 10**6), ready=ready, operations=operations)


def _operation(drawn: random.Random, moments: Moments, operation: Operation) -> Operation:
    if isinstance(operation, Post):
        return operation._replace(at=moments.next())
    start, end = moments.next(), moments.next()
    if isinstance(operation, Work):
        labels = drawn.sample(("encode", "decode", "plan", "statistics"), drawn.randint(0, 3))
        parts = (Part(label, drawn.choice((1.0, 1 / 3)), drawn.random() / 1000) for label in labels)
        return Work(start, end, tuple(parts))
    return operation._replace(start=start, end=end)
