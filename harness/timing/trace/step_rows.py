"""A rank's step as a row of its trace file and back, checked number by number on the way back.

Who sends what to whom repeats from step to step and is written once per block, as a program; a step's row
names its programs and holds the times alone, as whole ticks of 10 ns in the order of the operations: each
counted from the time before it, but for the seconds of parts. Rows of older files (`absolute`) hold
microseconds from the step's start instead. Both come to the same floats. A step that is not one of
synchronous data parallelism also has its computation in its row: `lane_rows`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradwire.harness.files.reading import UnusableFileError
from gradwire.harness.files.structured import parse_json
from gradwire.harness.timing.trace.lane_rows import lane_row, read_lane
from gradwire.harness.timing.trace.step import (
    ORDINARY,
    LaneOperation,
    Message,
    Operation,
    Part,
    Post,
    RankTrace,
    TaskTrace,
    Urgency,
    Wait,
    Work,
)

TICKS = 100
"""Ticks per microsecond."""
MICROSECONDS = 1e6
LONGEST_US = 1e13
"""No step takes longer (115 days): a larger value is damage."""
LARGEST = 2**53
"""A larger number of bytes, coordinates or things is damage, too."""

Program = Sequence[Any]
"""One entry per operation: `["work", [[label, share], …]]`, `["post", phase, sends, receives]`, which goes on
with `true` if it sends copies and with its urgency, if any, `[level, newest_first, boundary]`, or
`["wait", number]`."""

Row = Mapping[str, Any]


class BadRowError(ValueError):
    """A row that no writer has written; the text says what is wrong with it."""


def program_of(task: TaskTrace) -> Program:
    """What a task does, without its times."""
    return [_described(operation) for operation in task.operations]


def step_row(step: int, trace: RankTrace, programs: Sequence[int]) -> dict[str, Any]:
    """A step's row; `programs` are the numbers of its tasks' programs."""
    tasks = [
        [task.bucket, task.coordinates, int(task.in_turn), _ticks(task.ready), program, _differences(task)]
        for task, program in zip(trace.tasks, programs, strict=True)
    ]
    row = {
        "step": step,
        "programs": sorted(set(programs)),
        "ready": [_ticks(at) for at in trace.ready],
        "update": _ticks(trace.update_s),
        "end": _ticks(trace.end),
        "tasks": tasks,
    }
    if not trace.is_synchronous:
        row["lane"] = lane_row(trace.computation, _ticks)
    return row


def line_of(row: Row) -> bytes:
    """A row as it is written, a line."""
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def row_of(line: bytes) -> dict[str, Any]:
    """The row of a line. Raises BadRowError for what is no JSON object."""
    try:
        row: dict[str, Any] = parse_json(line, "", remedy="")
    except UnusableFileError as error:
        raise BadRowError(error.problem) from None
    return row


@dataclass
class Rows:
    """Makes steps of rank `rank` of `size` out of rows; `absolute` as older versions wrote them."""

    rank: int
    size: int
    absolute: bool = False

    def __post_init__(self) -> None:
        self._programs: dict[int, list[Operation]] = {}

    def forget(self) -> None:
        """A new block begins: it names its programs anew."""
        self._programs.clear()

    def add_program(self, row: Row) -> None:
        """Take in a program. Raises BadRowError."""
        number = _whole(row.get("program"), "program")
        described, numbers = _list(row.get("operations"), "operations"), Numbers()
        if not described:
            raise BadRowError("a program has no operations")
        self._programs[number] = [self._operation(each, numbers) for each in described]

    def step(self, row: Row) -> tuple[int, RankTrace]:
        """A step's number and trace. Raises BadRowError."""
        ready = tuple(at / MICROSECONDS for at in self._times(row.get("ready"), "ready"))
        update, end = self._times([row.get("update"), row.get("end")], "update and end")
        tasks = tuple(self._task(task) for task in _list(row.get("tasks"), "tasks"))
        if "lane" in row:
            trace = RankTrace(self._lane(row["lane"], len(tasks)), tasks, end / MICROSECONDS)
        else:
            trace = RankTrace.synchronous(ready, tasks, update / MICROSECONDS, end / MICROSECONDS)
        return _whole(row.get("step"), "step"), trace

    def _lane(self, row: Any, num_tasks: int) -> tuple[LaneOperation, ...]:
        def seconds(ticks: Sequence[Any]) -> list[float]:
            return [at / MICROSECONDS for at in self._times(list(ticks), "a lane's times")]

        try:
            return read_lane(row, num_tasks, seconds)
        except ValueError as error:
            raise BadRowError(str(error)) from None

    def _operation(self, described: Any, numbers: Numbers) -> Operation:
        """An operation without its times."""
        kind, *fields = _list(described, "an operation") or [None]
        if kind == "work" and len(fields) == 1:
            parts = [_list(part, "a part", 2) for part in _list(fields[0], "parts")]
            for label, share in parts:
                if not isinstance(label, str) or type(share) not in (int, float) or not abs(share) < LARGEST:
                    raise BadRowError(f"a part is {str([label, share])[:40]}")
            return Work(0.0, 0.0, tuple(Part(label, share, 0.0) for label, share in parts))
        if kind == "post" and len(fields) in (3, 4, 5) and isinstance(fields[0], str):
            numbers.posts += 1
            phase, sends, receives, *more = fields
            urgency = _urgency(more.pop()) if more and isinstance(more[-1], list) else ORDINARY
            if len(more) > 1:
                raise BadRowError(f"an operation is {str(described)[:40]}")
            return Post(0.0, phase, self._messages(sends), self._messages(receives), bool(more), urgency)
        if kind == "wait" and len(fields) == 1:
            number = _whole(fields[0], "wait")
            if number >= numbers.posts:
                raise BadRowError(f"a wait is for post {number} of {numbers.posts}")
            return Wait(number, 0.0, 0.0)
        raise BadRowError(f"an operation is {str(described)[:40]}")

    def _messages(self, described: Any) -> tuple[Message, ...]:
        found = []
        for message in _list(described, "messages"):
            peer, num_bytes = _list(message, "a message", 2)
            peer, num_bytes = _whole(peer, "a peer"), _whole(num_bytes, "bytes")
            if peer >= self.size or peer == self.rank:
                raise BadRowError(f"rank {self.rank} of {self.size} has a message with rank {peer}")
            found.append((peer, num_bytes))
        return tuple(found)

    def _task(self, row: Any) -> TaskTrace:
        bucket, coordinates, in_turn, ready, program, times = _list(row, "a task", 6)
        operations = self._programs.get(_whole(program, "a task's program"))
        if operations is None:
            raise BadRowError(f"program {program} is missing")
        (at,) = self._times([ready], "ready")
        timed = self._timed(operations, _list(times, "times"))
        return TaskTrace(
            _whole(bucket, "bucket"),
            _whole(coordinates, "coordinates"),
            at / MICROSECONDS,
            tuple(timed),
            bool(_whole(in_turn, "in_turn")),
        )

    def _timed(self, operations: Sequence[Operation], row: list[Any]) -> Iterator[Operation]:
        widths = [_width(operation) for operation in operations]
        if len(row) != sum(widths):
            raise BadRowError(f"a task has {len(row)} times, its program {sum(widths)}")
        if not self.absolute:
            row = _summed(operations, _checked(row, (int,), "times"))
        times = iter(self._times(row, "times"))
        for operation in operations:
            if isinstance(operation, Work):
                start, end = next(times) / MICROSECONDS, next(times) / MICROSECONDS
                parts = tuple(part._replace(seconds=next(times) / MICROSECONDS) for part in operation.parts)
                yield Work(start, end, parts)
            elif isinstance(operation, Post):
                yield operation._replace(at=next(times) / MICROSECONDS)
            else:
                start, end = next(times) / MICROSECONDS, next(times) / MICROSECONDS
                yield operation._replace(start=start, end=end)

    def _times(self, values: Any, what: str) -> list[float]:
        """Microseconds."""
        kinds = (int, float) if self.absolute else (int,)
        found = _checked(_list(values, what), kinds, what)
        found = found if self.absolute else [value / TICKS for value in found]
        if not all(map(math.isfinite, found)) or any(abs(value) > LONGEST_US for value in _ends(found)):
            raise BadRowError(f"{what}: not the times of a step")
        return found


@dataclass
class Numbers:
    """How many posts a program has had so far."""

    posts: int = 0


def _described(operation: Operation) -> list[Any]:
    if isinstance(operation, Work):
        return ["work", [[part.label, part.share] for part in operation.parts]]
    if isinstance(operation, Post):
        sends, receives = [list(m) for m in operation.sends], [list(m) for m in operation.receives]
        more = [True] if operation.copies else []
        urgency = [] if operation.urgency == ORDINARY else [list(map(int, operation.urgency))]
        return ["post", operation.phase, sends, receives, *more, *urgency]
    return ["wait", operation.number]


def _urgency(described: list[Any]) -> Urgency:
    level, newest_first, boundary = (_whole(each, "urgency") for each in _list(described, "urgency", 3))
    return Urgency(level, bool(newest_first), boundary)


def _ticks(seconds: float) -> int:
    """Rounded as older versions did, which wrote microseconds with two digits."""
    return round(TICKS * round(MICROSECONDS * seconds, 2))


def _differences(task: TaskTrace) -> list[int]:
    found, last = list[int](), 0
    for operation in task.operations:
        times = [operation.at] if isinstance(operation, Post) else [operation.start, operation.end]
        for before, at in pairwise([last, *map(_ticks, times)]):
            found.append(at - before)
            last = at
        if isinstance(operation, Work):
            found += [_ticks(part.seconds) for part in operation.parts]
    return found


def _summed(operations: Sequence[Operation], differences: Sequence[int]) -> list[int]:
    """The inverse of `_differences`."""
    found, last, following = list[int](), 0, iter(differences)
    for operation in operations:
        for _ in range(1 if isinstance(operation, Post) else 2):
            last += next(following)
            found.append(last)
        if isinstance(operation, Work):
            found += [next(following) for _ in operation.parts]
    return found


def _width(operation: Operation) -> int:
    """How many numbers a row holds for it."""
    if isinstance(operation, Work):
        return 2 + len(operation.parts)
    return 1 if isinstance(operation, Post) else 2


def _ends(values: Sequence[float]) -> Sequence[float]:
    return (min(values), max(values)) if values else ()


def _list(value: Any, what: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise BadRowError(f"{what}: not a list" + (f" of {length}" if length is not None else ""))
    return value


def _whole(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < LARGEST:
        raise BadRowError(f"{what}: {str(value)[:20]} is not a whole number from 0 on")
    return value


def _checked(values: list[Any], kinds: tuple[type, ...], what: str) -> list[Any]:
    if not set(map(type, values)) <= set(kinds):
        raise BadRowError(f"{what}: not numbers only")
    return values
