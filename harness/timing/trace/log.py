"""The logs of one rank, written while it runs: its computation, starts and waits (`LaneLog`), and the work,
posts and waits of each of its collectives (`TaskLog`). A world keeps a step's logs in `StepNotes` until the
step's trace is needed.

The driver reports when the coroutine is resumed and suspended, the channel reports posts. Timestamps are
those of the rank's stopwatch and are converted to seconds once per step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradwire.harness.timing.trace.step import (
    ORDINARY,
    Await,
    Barrier,
    Compute,
    LaneOperation,
    Message,
    Operation,
    Part,
    Post,
    RankTrace,
    Start,
    TaskTrace,
    Urgency,
    Wait,
    Work,
)

RawPart = tuple[str, float, Any]
"""(label, share of the bucket, timestamp of its end)"""


class TaskLog:
    """One coroutine's operations in order; `timestamp` is the clock they are stamped with.

    `ready` is the timestamp from which the coroutine could start, `in_turn` whether it had to wait for the
    previous bucket, `urgency` the urgency of its messages.
    """

    def __init__(
        self,
        timestamp: Callable[[], Any],
        bucket: int,
        coordinates: int,
        ready: Any,
        *,
        in_turn: bool = False,
        urgency: Urgency = ORDINARY,
    ) -> None:
        self.bucket, self.coordinates, self.ready, self.in_turn = bucket, coordinates, ready, in_turn
        self.timestamp, self._urgency = timestamp, urgency
        self._work_start: Any = None
        self._parts: tuple[RawPart, ...] = ()
        self._operations: list[tuple[Any, ...]] = []
        self.num_posts = 0
        self.posted: Any = None
        """The timestamp of the last post."""
        self.has_ended = False
        """True once all its timestamps have been taken."""

    def begun(self) -> TaskLog:
        """A new log of the same coroutine that only has its begin."""
        return TaskLog(self.timestamp, self.bucket, self.coordinates, self.ready, in_turn=self.in_turn)

    def resume(self, at: Any) -> None:
        """Records that the coroutine runs from here on."""
        self._work_start, self._parts = at, ()

    def worked(self, label: str, share: float) -> None:
        """Labels the work since the last label, post or resumption, done for this share of the bucket's
        coordinates."""
        self._parts += ((label, share, self.timestamp()),)

    def post(
        self,
        phase: str,
        sends: tuple[Message, ...],
        receives: tuple[Message, ...],
        *,
        copies: bool = False,
    ) -> int:
        """Records posted messages, given as (peer, bytes); `copies` says that all sends are copies of one
        message. Returns the post's number in this coroutine."""
        now, operations, number = self.timestamp(), self._operations, self.num_posts
        operations.append(("work", self._work_start, now, self._parts))
        operations.append(("post", now, phase, sends, receives, copies, self._urgency))
        self._work_start, self.posted, self._parts, self.num_posts = now, now, (), number + 1
        return number

    def suspend(self, at: Any) -> None:
        """Records that the coroutine waits, or has ended."""
        self._operations.append(("work", self._work_start, at, self._parts))

    def waited(self, number: int, start: Any, end: Any) -> None:
        """Records that the driver waited for post `number`."""
        self._operations.append(("wait", number, start, end))

    def repeat(self, other: TaskLog, seconds: Callable[[Any], float]) -> None:
        """Takes over the operations of `other`, the log of the same work, with its timestamps converted by
        `seconds`. The log then has ended."""
        self._operations = [_converted(operation, self._urgency, seconds) for operation in other._operations]
        self.num_posts, self.has_ended = other.num_posts, True

    def resolve(self, seconds: Callable[[Any], float]) -> TaskTrace:
        """The trace of the task in seconds; on CUDA only after a synchronization."""
        operations = self.resolve_operations(seconds)
        return TaskTrace(self.bucket, self.coordinates, seconds(self.ready), operations, self.in_turn)

    def resolve_operations(self, seconds: Callable[[Any], float]) -> tuple[Operation, ...]:
        """Its operations in seconds; on CUDA only after a synchronization."""
        return tuple(_resolved(operation, seconds) for operation in self._operations)


def _converted(
    operation: tuple[Any, ...], urgency: Urgency, seconds: Callable[[Any], float]
) -> tuple[Any, ...]:
    """A log's operation with other timestamps, and a post with this urgency."""
    kind, *fields = operation
    if kind == "post":
        at, *what = fields
        return (kind, seconds(at), *what[:-1], urgency)
    if kind == "wait":
        number, start, end = fields
        return kind, number, seconds(start), seconds(end)
    start, end, parts = fields
    return kind, seconds(start), seconds(end), [(*part[:2], seconds(part[2])) for part in parts]


def _resolved(operation: tuple[Any, ...], seconds: Callable[[Any], float]) -> Operation:
    kind, *fields = operation
    if kind == "post":
        at, *what = fields
        return Post(seconds(at), *what)
    if kind == "wait":
        number, start, end = fields
        return Wait(number, seconds(start), seconds(end))
    start, end, raw = fields
    parts, last = [], seconds(start)
    for label, share, timestamp in raw:
        at = seconds(timestamp)
        parts.append(Part(label, share, at - last))
        last = at
    return Work(seconds(start), seconds(end), tuple(parts))


class LaneLog:
    """A rank's computation in one step, in order; `resolve` converts its timestamps to seconds.

    `LaneLog(enabled=False)` keeps nothing.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._enabled, self._operations = enabled, list[LaneOperation]()

    def computed(self, label: str, start: Any, end: Any) -> None:
        """Records computation from `start` to `end`."""
        if self._enabled:
            self._operations.append(Compute(start, end, label))

    def started(self, task: int, at: Any) -> None:
        """Records that the input of the rank's `task`-th collective was ready at `at`."""
        if self._enabled:
            self._operations.append(Start(at, task))

    def awaited(self, task: int, start: Any, end: Any, steps_back: int = 0) -> None:
        """Records a wait for the result of the `task`-th collective of this step, or of the step `steps_back`
        before."""
        if self._enabled:
            self._operations.append(Await(task, start, end, steps_back))

    def barrier(self, start: Any, end: Any) -> None:
        """Records a wait for the other ranks."""
        if self._enabled:
            self._operations.append(Barrier(start, end))

    def resolve(self, seconds: Callable[[Any], float]) -> tuple[LaneOperation, ...]:
        """The lane in seconds; on CUDA only after a synchronization."""
        return tuple(timed(operation, seconds) for operation in self._operations)


def timed(operation: LaneOperation, seconds: Callable[[Any], float]) -> LaneOperation:
    """Returns the operation with its timestamps converted by `seconds`."""
    if isinstance(operation, Start):
        return operation._replace(at=seconds(operation.at))
    moved: Compute | Await | Barrier = operation._replace(
        start=seconds(operation.start), end=seconds(operation.end)
    )
    return moved


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
