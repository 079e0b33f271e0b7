"""Conversion of a plan's times back to steps: the same computation and messages at simulated times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwire.harness.timing.simulate.plan import OperationTimes, lane_order
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

Interval = tuple[float, float]


def retimed(
    steps: Sequence[StepTrace], times: OperationTimes, overlap: bool, *, begins_later: bool = False
) -> list[StepTrace]:
    """The steps that `compile_steps` made a plan of, at the simulated times; each Compute has its `seconds`.

    `begins_later` says that lanes have a time before their first step.
    """
    intervals = iter(zip(times.start, times.end, strict=True))
    tasks = {
        rank: [[_task(task, intervals) for task in step[rank].tasks] for step in steps]
        for rank in sorted(steps[0])
    }
    found: list[dict[int, RankTrace]] = [{} for _ in steps]
    for rank in sorted(steps[0]):
        if begins_later:
            next(intervals)
        for number, step in enumerate(steps):
            lane = step[rank].computation
            begun, _ = next(intervals)
            at = {index: next(intervals) for index in lane_order(lane, overlap)}
            computation, end = _lane(lane, [at[index] for index in range(len(lane))], begun)
            begins = {one.task: at[index][0] for index, one in enumerate(lane) if isinstance(one, Start)}
            own = [task._replace(ready=begins[index]) for index, task in enumerate(tasks[rank][number])]
            found[number][rank] = RankTrace(tuple(computation), tuple(own), end)
    return [{rank: step[rank] for rank in steps[0]} for step in found]


def _task(task: TaskTrace, intervals: Iterator[Interval]) -> TaskTrace:
    operations = list[Operation]()
    for operation in task.operations:
        start, end = next(intervals)
        if isinstance(operation, Work):
            operations.append(Work(start, end, _parts(operation, end - start)))
        elif isinstance(operation, Post):
            operations.append(operation._replace(at=start))
        else:
            operations.append(operation._replace(start=start, end=end))
    return task._replace(operations=tuple(operations))


def _parts(work: Work, seconds: float) -> tuple[Part, ...]:
    """The parts of a piece of work that now takes `seconds`."""
    before = work.end - work.start
    factor = seconds / before if before > 0 else 0.0
    return tuple(part._replace(seconds=part.seconds * factor) for part in work.parts)


def _lane(
    lane: Sequence[LaneOperation], intervals: Sequence[Interval], begun: float
) -> tuple[list[LaneOperation], float]:
    """The lane's operations at their new times, and when the last one ended.

    A delayed start keeps the time at which its input was ready. Computation begins when the operation before
    has ended, unless it was measured to begin later. The begin of the first computation after a wait is
    computed back from its end, so that its length is exact.
    """
    found, at = list[LaneOperation](), begun
    woken = measured = 0.0  # in the measured step: when the lane woke, and where it is
    is_first = True
    for operation, (start, end) in zip(lane, intervals, strict=True):
        if isinstance(operation, Start):
            found.append(operation._replace(at=at))
            continue
        if isinstance(operation, Compute):
            assert operation.seconds is not None
            if operation.start > measured:
                share = (operation.end - operation.start) / (operation.end - woken)
                at = max(at, end - operation.seconds * share)
            elif is_first:
                at = end - operation.seconds
            found.append(operation._replace(start=at, end=end))
            measured, is_first = operation.end, False
        else:
            found.append(operation._replace(start=start, end=end))
            woken = measured = operation.end
            is_first = True
        at = end
    return found, at
