"""A rank's computation as a part of its step's row, for steps that are not those of synchronous data
parallelism: one list per operation, with its times in ticks from the step's start.

`["compute", label, start, end]`, which ends in the ticks since the lane last woke where they are known apart;
`["start", task, at]`; `["await", task, steps_back, start, end]`; `["barrier", start, end]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradwire.harness.timing.trace.step import Await, Barrier, Compute, LaneOperation, Start

LONGEST_LABEL = 200

Ticks = Callable[[float], int]
Seconds = Callable[[Sequence[Any]], list[float]]
"""Checks ticks, and gives their seconds; raises ValueError for what is no time of a step."""


def lane_row(lane: Sequence[LaneOperation], ticks: Ticks) -> list[list[Any]]:
    """The operations as they are written."""
    return [_described(operation, ticks) for operation in lane]


def _described(operation: LaneOperation, ticks: Ticks) -> list[Any]:
    if isinstance(operation, Start):
        return ["start", operation.task, ticks(operation.at)]
    times = [ticks(operation.start), ticks(operation.end)]
    if isinstance(operation, Compute):
        apart = [] if operation.seconds is None else [ticks(operation.seconds)]
        return ["compute", operation.label[:LONGEST_LABEL], *times, *apart]
    if isinstance(operation, Await):
        return ["await", operation.task, operation.steps_back, *times]
    return ["barrier", *times]


def read_lane(row: Any, num_tasks: int, seconds: Seconds) -> tuple[LaneOperation, ...]:
    """The inverse of `lane_row`. Raises ValueError for what that has not written."""
    if not isinstance(row, list) or not all(isinstance(each, list) and each for each in row):
        raise ValueError("a lane is no list of operations")
    return tuple(_read(each, num_tasks, seconds) for each in row)


def _read(described: Sequence[Any], num_tasks: int, seconds: Seconds) -> LaneOperation:
    kind, *fields = described
    if kind == "compute" and len(fields) in (3, 4) and isinstance(fields[0], str):
        start, end, *apart = seconds(fields[1:])
        return Compute(start, end, fields[0][:LONGEST_LABEL], apart[0] if apart else None)
    if kind == "start" and len(fields) == 2:
        (at,) = seconds(fields[1:])
        return Start(at, _number(fields[0], num_tasks))
    if kind == "await" and len(fields) == 4:
        steps_back = _number(fields[1], None)
        task = _number(fields[0], None if steps_back else num_tasks)
        start, end = seconds(fields[2:])
        return Await(task, start, end, steps_back)
    if kind == "barrier" and len(fields) == 2:
        return Barrier(*seconds(fields))
    raise ValueError(f"an operation of a lane is {str(described)[:40]}")


def _number(value: Any, below: int | None) -> int:
    if type(value) is not int or value < 0 or (below is not None and value >= below):
        raise ValueError(f"a lane names {str(value)[:20]}, of which there is none")
    return value
