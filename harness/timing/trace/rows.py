"""A rank's step as rows of a table, one per operation, and the reverse conversion, which checks every value.

Times are whole ticks of 10 ns: the `gap` since the end of the operation before, and the `duration`. The first
gap of the computation, and that of each collective's first operation, is counted from the step's start. The
rows of a step:

| kind | what | label | number | amount | |---|---|---|---|---| | `step` | its `duration` is that of the step
| `synchronous` for data parallelism | | | | `start` | the input of collective `task` is there | | | | |
`update` | the optimizer's step of synchronous data parallelism | | | | | `compute` | computation | its name |
| | | `since_wake` | `duration` from the lane's last wait to the end of that computation | | | | | `await` |
waiting for the result of `task` | | steps back | | | `barrier` | waiting for all ranks | | | | | `task` | a
collective, ready at `gap` | `in_turn` if it follows another | bucket | coordinates | | `work` | codec work of
the collective | | | | | `part` | a part of that work, for a `share` of the coordinates | its name | | | |
`post` | messages are posted | their phase | 1: all sent are copies | | | `send`, `receive` | a message of
that post | | peer | bytes | | `urgency` | that of the messages sent | `newest_first` | level | boundary | |
`wait` | waiting for the messages of a post | | post | |

Other cells are 0 or empty; `task` is -1 in rows that belong to no collective. A step of synchronous data
parallelism has rows `start` and `update` instead of its computation, which can be derived from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

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

TICKS = 100
"""Ticks per microsecond."""
MICROSECONDS = 1e6
LONGEST = 10**15
"""The largest plausible duration in ticks (115 days): larger numbers are damage."""
LARGEST = 2**53
"""The largest plausible number of bytes or coordinates: larger numbers are damage."""
LONGEST_LABEL = 200
NONE = -1

SYNCHRONOUS, IN_TURN, NEWEST_FIRST = "synchronous", "in_turn", "newest_first"

KINDS = (
    *("step", "start", "update", "compute", "since_wake", "await", "barrier", "task"),
    *("work", "part", "post", "send", "receive", "urgency", "wait"),
)
DETAILS = {"work": {"part"}, "post": {"send", "receive", "urgency"}, "wait": set[str]()}
"""The kinds of a collective's operations, and of the rows that may follow each."""


class TraceRow(NamedTuple):
    """A row of the table, without the step's number."""

    kind: str
    label: str = ""
    task: int = NONE
    gap: int = 0
    duration: int = 0
    number: int = 0
    amount: int = 0
    share: float = 0.0


class BadRowError(ValueError):
    """Raised for a row that no writer produces; the text says what is wrong with it."""


def rows_of(trace: RankTrace) -> list[TraceRow]:
    """A step's rows."""
    is_synchronous = trace.is_synchronous
    rows = [TraceRow("step", SYNCHRONOUS if is_synchronous else "", duration=_ticks(trace.end))]
    if is_synchronous:
        last = 0
        for task, at in enumerate(map(_ticks, trace.ready)):
            rows.append(TraceRow("start", task=task, gap=at - last))
            last = at
        rows.append(TraceRow("update", duration=_ticks(trace.update_s)))
    else:
        rows += _lane_rows(trace.computation)
    for number, task_trace in enumerate(trace.tasks):
        rows += _task_rows(number, task_trace)
    return rows


def _lane_rows(lane: Sequence[LaneOperation]) -> Iterator[TraceRow]:
    last = 0
    for operation in lane:
        if isinstance(operation, Start):
            at = _ticks(operation.at)
            yield TraceRow("start", task=operation.task, gap=at - last)
            last = at
            continue
        start, end = _ticks(operation.start), _ticks(operation.end)
        times: dict[str, Any] = {"gap": start - last, "duration": end - start}
        last = end
        if isinstance(operation, Compute):
            yield TraceRow("compute", operation.label[:LONGEST_LABEL], **times)
            if operation.seconds is not None:
                yield TraceRow("since_wake", duration=_ticks(operation.seconds))
        elif isinstance(operation, Await):
            yield TraceRow("await", task=operation.task, number=operation.steps_back, **times)
        else:
            yield TraceRow("barrier", **times)


def _task_rows(number: int, task: TaskTrace) -> Iterator[TraceRow]:
    """The rows of a collective. Frequent rows are made from plain tuples, because named arguments would take
    as long as everything else."""
    label = IN_TURN if task.in_turn else ""
    yield TraceRow("task", label, number, _ticks(task.ready), 0, task.bucket, task.coordinates)
    make, last = TraceRow._make, 0
    for operation in task.operations:
        if isinstance(operation, Post):
            at = _ticks(operation.at)
            yield make(("post", operation.phase, number, at - last, 0, int(operation.copies), 0, 0.0))
            last = at
            for peer, num_bytes in operation.sends:
                yield make(("send", "", number, 0, 0, peer, num_bytes, 0.0))
            for peer, num_bytes in operation.receives:
                yield make(("receive", "", number, 0, 0, peer, num_bytes, 0.0))
            if operation.urgency != ORDINARY:
                level, newest_first, boundary = operation.urgency
                label = NEWEST_FIRST if newest_first else ""
                yield TraceRow("urgency", label, number, number=level, amount=boundary)
            continue
        start, end = _ticks(operation.start), _ticks(operation.end)
        if isinstance(operation, Wait):
            yield make(("wait", "", number, start - last, end - start, operation.number, 0, 0.0))
        else:
            yield make(("work", "", number, start - last, end - start, 0, 0, 0.0))
            for label, share, seconds in operation.parts:
                yield make(("part", label, number, 0, _ticks(seconds), 0, 0, share))
        last = end


def trace_of(rows: Sequence[TraceRow], rank: int, size: int) -> RankTrace:
    """The inverse of `rows_of`, for rank `rank` of `size`. Raises BadRowError."""
    ((head, lane), *tasks) = _grouped(rows, {"step", "task"})
    if head.kind != "step" or any(task.kind != "task" for task, _ in tasks):
        raise BadRowError("a step does not begin with its row")
    reader = _TaskReader(rank, size)
    traces = tuple(reader.task(*task) for task in tasks)
    end = _seconds(head.duration)
    if head.label != SYNCHRONOUS:
        return RankTrace(tuple(_read_lane(lane, len(tasks))), traces, end)
    *starts, update = lane or [head]
    if update.kind != "update" or any(start.kind != "start" for start in starts):
        raise BadRowError("a synchronous step has other computation")
    ready, last = list[float](), 0
    for start in starts:
        last += start.gap
        ready.append(_seconds(last))
    return RankTrace.synchronous(tuple(ready), traces, _seconds(update.duration), end)


def _read_lane(rows: Sequence[TraceRow], num_tasks: int) -> Iterator[LaneOperation]:
    last = 0
    for row, details in _grouped(rows, {"compute", "start", "await", "barrier"}):
        start = last + row.gap
        last = start + row.duration
        if row.kind == "start":
            yield Start(_seconds(start), _whole(row.task, "a start's collective", num_tasks))
        elif row.kind == "compute":
            seconds = [_seconds(detail.duration) for detail in details]
            yield Compute(_seconds(start), _seconds(last), row.label, *seconds[:1])
        elif row.kind == "await":
            steps_back = _whole(row.number, "a wait's steps back")
            task = _whole(row.task, "an awaited collective", LARGEST if steps_back else num_tasks)
            yield Await(task, _seconds(start), _seconds(last), steps_back)
        else:
            yield Barrier(_seconds(start), _seconds(last))
        if not {detail.kind for detail in details} <= ({"since_wake"} if row.kind == "compute" else set()):
            raise BadRowError(f"a row {details[0].kind} follows one of {row.kind}")


class _TaskReader:
    """Converts rows to collectives."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def task(self, head: TraceRow, rows: Sequence[TraceRow]) -> TaskTrace:
        """The collective that begins with the row `head`."""
        operations, last, num_posts = list[Operation](), 0, 0
        for row, details in _grouped(rows, DETAILS):
            start = last + row.gap
            last = start + row.duration
            if not {detail.kind for detail in details} <= DETAILS[row.kind]:
                raise BadRowError(f"a row {details[0].kind} follows one of {row.kind}")
            if row.kind == "work":
                operations.append(Work(_seconds(start), _seconds(last), tuple(map(_part, details))))
            elif row.kind == "post":
                operations.append(self._post(_seconds(start), row, details))
                num_posts += 1
            else:
                number = _whole(row.number, "the post of a wait", num_posts)
                operations.append(Wait(number, _seconds(start), _seconds(last)))
        return TaskTrace(
            _whole(head.number, "bucket"),
            _whole(head.amount, "coordinates"),
            _seconds(head.gap),
            tuple(operations),
            head.label == IN_TURN,
        )

    def _post(self, at: float, row: TraceRow, details: Sequence[TraceRow]) -> Post:
        urgency = ORDINARY
        for each in details:
            if each.kind == "urgency":
                level, boundary = _whole(each.number, "urgency"), _whole(each.amount, "boundary")
                urgency = Urgency(level, each.label == NEWEST_FIRST, boundary)
        sends = tuple(self._message(each) for each in details if each.kind == "send")
        receives = tuple(self._message(each) for each in details if each.kind == "receive")
        return Post(at, row.label, sends, receives, bool(row.number), urgency)

    def _message(self, row: TraceRow) -> Message:
        if not 0 <= row.number < self._size or row.number == self._rank:
            raise BadRowError(f"rank {self._rank} of {self._size} has a message with rank {row.number}")
        return row.number, _whole(row.amount, "bytes")


def _part(row: TraceRow) -> Part:
    if not abs(row.share) < LARGEST:
        raise BadRowError(f"a part has the share {row.share}")
    return Part(row.label, row.share, _seconds(row.duration))


def _grouped(rows: Sequence[TraceRow], kinds: Collection[str]) -> list[tuple[TraceRow, list[TraceRow]]]:
    """Each row of one of the kinds, with the following rows of other kinds."""
    found = list[tuple[TraceRow, list[TraceRow]]]()
    for row in rows:
        if row.kind in kinds:
            found.append((row, []))
        elif found:
            found[-1][1].append(row)
        else:
            raise BadRowError(f"a row {row.kind[:20]} is out of place")
    return found


def _ticks(seconds: float) -> int:
    """Seconds as ticks, i.e. microseconds rounded to two digits."""
    return round(TICKS * round(MICROSECONDS * seconds, 2))


def _seconds(ticks: int) -> float:
    if not -LONGEST <= ticks <= LONGEST:
        raise BadRowError(f"{ticks} ticks are not the time of a step")
    return ticks / TICKS / MICROSECONDS


def _whole(value: int, what: str, below: int = LARGEST) -> int:
    if not 0 <= value < below:
        raise BadRowError(f"{what}: {value} is not a whole number below {below}")
    return value
