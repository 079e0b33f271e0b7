"""Plans: the operations, posts and messages of all ranks in a step, compiled to tables.

A plan only depends on which messages are sent. Steps with other durations reuse it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.harness.timing.trace.messages import Matching
from gradwire.harness.timing.trace.step import (
    MEASURE,
    ORDINARY,
    TRANSFERS,
    Await,
    Barrier,
    Compute,
    LaneOperation,
    Post,
    Start,
    StepTrace,
    TaskTrace,
    Urgency,
    Work,
)

WORK, POST, WAIT = 0, 1, 2
"""The kinds of a task's operations."""
BEGIN, COMPUTE, START, AWAIT, BARRIER = 3, 4, 5, 6, 7
"""The kinds of a lane's operations; each step begins with BEGIN."""

ENDED = TaskTrace(0, 0, 0.0, ())
"""A placeholder for a task that has ended."""

Column = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StepPlan:
    """Tables, an int64 array per column: a ring of a thousand ranks has two million messages.

    `kinds[o]`, `values[o]`: what operation o is, and which post it makes or waits for, or which task it
    starts or awaits (-1: one that has ended before the plan begins). Task k has the operations from
    `first_operations[k]` to before `first_operations[k + 1]`. Thread t of the communication processors serves
    rank `ranks[t]`; it runs the tasks in `thread_tasks` from `first_tasks[t]` to before `first_tasks[t + 1]`,
    one after another. Lane l, the computation of a rank, has the operations from `first_lane_operations[l]`
    to before `first_lane_operations[l + 1]`. Message m goes along `routes[route[m]]`, from a source to one
    destination or, a multicast, to several, and has `sizes[m]` bytes; post `senders[m]` sends it, and the
    posts in `receivers` from `first_receivers[m]` to before `first_receivers[m + 1]` receive it, in the order
    of the destinations. Its urgency is `levels[m]`, `newest_first[m]`, `boundaries[m]`, unless all are alike.
    """

    kinds: Column
    values: Column
    first_operations: Column
    ranks: Column
    first_tasks: Column
    thread_tasks: Column
    num_posts: int
    routes: Sequence[tuple[int, tuple[int, ...]]]
    route: Column
    sizes: Column
    senders: Column
    first_receivers: Column
    receivers: Column
    first_lane_operations: Column = field(default_factory=lambda: column([0]))
    levels: Column | None = None
    newest_first: Column | None = None
    boundaries: Column | None = None


class Before(NamedTuple):
    """The remains of steps before the plan: the time at which each rank `begins` the plan's first step, and
    the times at which the ranks' tasks `ended`, from the oldest step on that the plan awaits a task of."""

    begins: Mapping[int, float]
    ended: Sequence[Mapping[int, Sequence[float]]] = ()


class OperationTimes(NamedTuple):
    """Seconds at which each operation of a plan began and ended; for a post both are equal."""

    start: list[float]
    end: list[float]


def compile_plan(
    tasks: Mapping[int, Sequence[TaskTrace]], in_flight: int, *, multicast: bool = False
) -> StepPlan:
    """The plan of a single step's tasks, which begin on their own; every rank has the same buckets in the
    same order. With `multicast`, copies that are posted together are one message.

    Raises ValueError for messages that only one side has posted, or whose sizes differ.
    """
    compiler = _Compiler()
    for rank in sorted(tasks):
        compiler.add_tasks(rank, [tasks[rank]], in_flight)
    return compiler.plan(multicast)


def compile_steps(
    steps: Sequence[StepTrace],
    in_flight: int,
    *,
    multicast: bool = False,
    overlap: bool = True,
    before: Before | None = None,
) -> StepPlan:
    """The plan of consecutive steps, where each rank begins the next step on its own; without `overlap` no
    task begins before its rank's computation next waits, or ends. All ranks begin the first step together,
    unless `before` gives other times.

    Tasks come in this order: for each rank those that ended `before`, which do nothing, then its own, step by
    step. Operations come in this order: those of the tasks, then the lanes, rank by rank, each with the time
    `before` its first step, if any, and the operations of each step in `lane_order`. Also raises ValueError
    for lanes that do not fit their tasks or one another.
    """
    compiler, numbers, barriers = _Compiler(), dict[int, list[list[int]]](), set[int]()
    for rank in sorted(steps[0]):
        own = [step[rank] for step in steps]
        for trace in own:
            _check_starts(rank, trace.computation, len(trace.tasks))
        barriers.add(sum(isinstance(one, Barrier) for trace in own for one in trace.computation))
        ended = [] if before is None else [compiler.add_ended(rank, len(own[rank])) for own in before.ended]
        numbers[rank] = ended + compiler.add_tasks(rank, [trace.tasks for trace in own], in_flight)
    if len(barriers) > 1:
        raise ValueError(f"some ranks have {min(barriers)} barriers, others {max(barriers)}")
    for rank, tasks in numbers.items():
        lanes = [step[rank].computation for step in steps]
        compiler.add_lane(rank, lanes, tasks, overlap, begins_later=before is not None)
    return compiler.plan(multicast)


def lane_order(lane: Sequence[LaneOperation], overlap: bool) -> list[int]:
    """The order in which a lane's operations are executed: as listed, but without `overlap` starts are moved
    to before the next wait."""
    if overlap:
        return list(range(len(lane)))
    order, put_off = list[int](), list[int]()
    for index, operation in enumerate(lane):
        if isinstance(operation, Start):
            put_off.append(index)
        elif isinstance(operation, Compute):
            order.append(index)
        else:
            order += [*put_off, index]
            put_off = []
    return order + put_off


def _check_starts(rank: int, lane: Sequence[LaneOperation], num_tasks: int) -> None:
    """Raises ValueError unless each task is started once."""
    started = Counter(operation.task for operation in lane if isinstance(operation, Start))
    for task in {*started, *range(num_tasks)}:
        if started[task] != 1 or not 0 <= task < num_tasks:
            raise ValueError(
                f"rank {rank} has {num_tasks} tasks and starts task {task} {started[task]} times"
            )


class _Message(NamedTuple):
    """A message between two ranks; both ends are posts."""

    source: int
    destination: int
    num_bytes: int
    sender: int
    receiver: int


@dataclass
class _Compiler:
    """Numbers operations and posts in order, and matches the ends of messages."""

    threads: list[tuple[int, list[int]]] = field(default_factory=list)
    _first_lane_operations: list[int] = field(default_factory=list)
    _kinds: list[int] = field(default_factory=list)
    _values: list[int] = field(default_factory=list)
    _first_operations: list[int] = field(default_factory=lambda: [0])
    _num_posts: int = 0
    _copies: set[int] = field(default_factory=set)  # posts
    _urgency: dict[int, Urgency] = field(default_factory=dict)  # by post
    _messages: list[_Message] = field(default_factory=list)
    _ends: Matching[tuple[int, int]] = field(default_factory=Matching)  # (bytes, post)

    def add(self, rank: int, task: TaskTrace) -> int:
        """Adds the rank's next task; returns its number."""
        first_post = self._num_posts
        for operation in task.operations:
            if isinstance(operation, Work):
                self._append(WORK, 0)
            elif isinstance(operation, Post):
                self._append(POST, self._num_posts)
                self._post(rank, task.bucket, operation)
            else:
                self._append(WAIT, first_post + operation.number)
        self._first_operations.append(len(self._kinds))
        return len(self._first_operations) - 2

    def add_tasks(self, rank: int, steps: Sequence[Sequence[TaskTrace]], in_flight: int) -> list[list[int]]:
        """Adds all tasks of a rank; returns the numbers of each step's tasks."""
        threads: dict[object, list[int]] = {thread: [] for thread in range(in_flight)}
        numbers = [[self.add(rank, task) for task in tasks] for tasks in steps]
        for own, tasks in zip(numbers, steps, strict=True):
            turns = count()
            for number, task in zip(own, tasks, strict=True):
                if task.bucket == TRANSFERS:
                    threads.setdefault(_line(task), []).append(number)
                else:
                    turn = next(turns)
                    threads[0 if task.in_turn else turn % in_flight].append(number)
        self.threads += [(rank, own) for own in threads.values() if own]
        return numbers

    def add_ended(self, rank: int, count: int) -> list[int]:
        """Adds `count` tasks of a rank that have already ended; returns their numbers."""
        numbers = [self.add(rank, ENDED) for _ in range(count)]
        self.threads += [(rank, [number]) for number in numbers]
        return numbers

    def add_lane(
        self,
        rank: int,
        steps: Sequence[Sequence[LaneOperation]],
        tasks: Sequence[Sequence[int]],
        overlap: bool,
        *,
        begins_later: bool,
    ) -> None:
        """Adds a rank's computation, after all tasks; `tasks` are the numbers of each step's tasks, including
        those of steps before the first."""
        self._first_lane_operations.append(len(self._kinds))
        if begins_later:
            self._append(COMPUTE, 0)
        for step, lane in enumerate(steps, start=len(tasks) - len(steps)):
            self._append(BEGIN, 0)
            for index in lane_order(lane, overlap):
                operation = lane[index]
                if isinstance(operation, Compute):
                    self._append(COMPUTE, 0)
                elif isinstance(operation, Start):
                    self._append(START, tasks[step][operation.task])
                elif isinstance(operation, Barrier):
                    self._append(BARRIER, 0)
                else:
                    self._append(AWAIT, _awaited(rank, operation, step, tasks))

    def _append(self, kind: int, value: int) -> None:
        self._kinds.append(kind)
        self._values.append(value)

    def _post(self, rank: int, bucket: int, post: Post) -> None:
        own, free = self._num_posts, post.phase == MEASURE
        self._num_posts += 1
        if post.copies:
            self._copies.add(own)
        if post.urgency != ORDINARY:
            self._urgency[own] = post.urgency
        for sent, messages in ((False, post.receives), (True, post.sends)):
            for peer, num_bytes in messages:
                both = self._ends.add(rank, peer, bucket, sent, (0 if free else num_bytes, own))
                if both is not None:
                    (size, sender), (expected, receiver) = both
                    source, destination = (rank, peer) if sent else (peer, rank)
                    if size != expected:
                        raise ValueError(
                            f"bucket {bucket}: rank {source} sends rank {destination} other messages than "
                            "that expects"
                        )
                    self._messages.append(_Message(source, destination, size, sender, receiver))

    def plan(self, multicast: bool) -> StepPlan:
        self._ends.check()
        carried = self._carried(multicast)
        routes: dict[tuple[int, tuple[int, ...]], int] = {}
        route = [
            routes.setdefault((own[0].source, tuple(one.destination for one in own)), len(routes))
            for own in carried
        ]
        return StepPlan(
            kinds=column(self._kinds),
            values=column(self._values),
            first_operations=column(self._first_operations),
            ranks=column([rank for rank, _ in self.threads]),
            first_tasks=column([*accumulate((len(own) for _, own in self.threads), initial=0)]),
            thread_tasks=column([task for _, own in self.threads for task in own]),
            num_posts=self._num_posts,
            routes=list(routes),
            route=column(route),
            sizes=column([own[0].num_bytes for own in carried]),
            senders=column([own[0].sender for own in carried]),
            first_receivers=column([*accumulate(map(len, carried), initial=0)]),
            receivers=column([one.receiver for own in carried for one in own]),
            first_lane_operations=column([*self._first_lane_operations, len(self._kinds)]),
            **self._urgency_columns([own[0].sender for own in carried]),
        )

    def _urgency_columns(self, senders: Sequence[int]) -> dict[str, Column]:
        """The columns of urgency by message, given the post that sends it; empty if all are alike."""
        if not self._urgency:
            return {}
        own = [self._urgency.get(post, ORDINARY) for post in senders]
        return {
            "levels": column([one.level for one in own]),
            "newest_first": column([one.newest_first for one in own]),
            "boundaries": column([one.boundary for one in own]),
        }

    def _carried(self, multicast: bool) -> list[list[_Message]]:
        """The groups of messages that the network carries as one: single messages, or with `multicast` all
        copies of a post, in the order in which the first of them was matched."""
        if not multicast or not self._copies:
            return [[message] for message in self._messages]
        found: dict[tuple[int, int], list[_Message]] = {}
        for number, message in enumerate(self._messages):
            key = (message.sender, -1) if message.sender in self._copies else (message.sender, number)
            found.setdefault(key, []).append(message)
        return [sorted(own, key=lambda message: message.destination) for own in found.values()]


def _line(task: TaskTrace) -> tuple[str, int] | None:
    """The direction and the other rank of a transfer, which has a thread of its own for each; None for a
    collective."""
    for post in task.operations:
        if isinstance(post, Post):
            ends = [("to", peer) for peer, _ in post.sends] + [("from", peer) for peer, _ in post.receives]
            return ends[0] if ends else None
    return None


def _awaited(rank: int, operation: Await, step: int, tasks: Sequence[Sequence[int]]) -> int:
    """The number of an awaited task; -1 for a task of a step before the first."""
    task, back = operation.task, operation.steps_back
    if back > step:
        return -1
    if back < 0 or not 0 <= task < len(tasks[step - back]):
        raise ValueError(f"rank {rank} awaits task {task} of {back} steps back, which it does not have")
    return tasks[step - back][task]


def column(values: Sequence[int]) -> Column:
    return np.array(values, np.int64)
