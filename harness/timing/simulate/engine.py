"""Runs a plan against links: when each operation of each rank began and ended.

A rank's communication processor works as the real one does (`transport.thread`): threads take turns with it
from one wait to the next, a message starts when both its ends are posted and those before it on the same
connection are gone (two ranks have one, and a rank with those that it multicasts to), and a post is through
when the last byte of its last message has arrived. A multicast starts when it is sent, whether its receivers
are ready or not: they keep it until they ask for it, as those of AQGB's reliable broadcast do. All events of
one moment are handled before rates are worked out anew. Numbers may be floats or fractions; the same ones
come to the same ends, event by event.

What is here is the definition, for any numbers. Its twin in C++ (`compiled`) gives the same bytes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from gradwire.harness.network.flows import Flows
from gradwire.harness.network.links import Links
from gradwire.harness.runtime.memory import collector_paused
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.compiled import run_compiled
from gradwire.harness.timing.simulate.plan import POST, WORK, Plan, Times

START, WORKED, FLOWN, ARRIVED, BACKGROUND_FLOWN, BACKGROUND_ARRIVED, CHANGED = range(7)


def run(
    plan: Plan,
    links: Links,
    work_s: Sequence[float],
    ready: Sequence[float],
    background: BackgroundJobs | None = None,
) -> Times:
    """`work_s` per operation (what is not work is ignored), `ready` per task: when it may begin.

    Compiled where the library for CPUs is there and all numbers are floats or integers below 2⁵³, in Python
    otherwise. ValueError for a time that is not finite, RuntimeError if some rank waits for ever.
    """
    times = run_compiled(plan, links, work_s, ready, background)
    return run_in_python(plan, links, work_s, ready, background) if times is None else times


def run_in_python(
    plan: Plan,
    links: Links,
    work_s: Sequence[float],
    ready: Sequence[float],
    background: BackgroundJobs | None = None,
) -> Times:
    """As `run`, with fractions exactly."""
    if wrong := [number for number in (*work_s, *ready) if not -math.inf < number < math.inf]:
        raise ValueError(f"times to simulate must be finite, got {wrong[0]}")
    with collector_paused():
        return _Engine(plan, links, work_s, ready, background).run()


class _Engine:
    def __init__(
        self,
        plan: Plan,
        links: Links,
        work_s: Sequence[float],
        ready: Sequence[float],
        background: BackgroundJobs | None,
    ) -> None:
        self._ends = plan.routes
        self._kinds, self._values = plan.kinds.tolist(), plan.values.tolist()
        self._first_operations = plan.first_operations.tolist()
        self._ranks, self._thread_tasks = plan.ranks.tolist(), plan.thread_tasks.tolist()
        self._senders, self._receivers = plan.senders.tolist(), _receivers(plan)
        self._route, self._sizes = plan.route.tolist(), plan.sizes.tolist()
        self._sent = _messages_of([[post] for post in self._senders], plan.num_posts)
        self._received = _messages_of(self._receivers, plan.num_posts)
        self._routes = [links.multicast(*ends) for ends in plan.routes]
        self._work_s, self._ready = work_s, ready
        self._flows, self._serial = Flows(links), links.serial
        self._changes = links.changes
        self._background = None if background is None else background.begin()
        self._first_background = len(self._sizes)
        self._heap: list[tuple[Any, int, int, int, int]] = []
        self._count = 0
        self._turns: deque[int] = deque()  # threads that go on in this moment
        self._open = [
            len(sent) + len(received) for sent, received in zip(self._sent, self._received, strict=True)
        ]
        self._posted = [False] * plan.num_posts
        self._waiting = [-1] * plan.num_posts
        self._next_task = plan.first_tasks[:-1].tolist()
        self._last_task = plan.first_tasks[1:].tolist()
        self._at = [-1] * len(self._ranks)  # the operation a thread is at; -1 before its first task
        self._stop = [0] * len(self._ranks)
        self._busy = [False] * (max(self._ranks, default=-1) + 1)
        self._queue: list[deque[int]] = [deque() for _ in self._busy]
        self._start: list[Any] = [0] * len(self._kinds)
        self._end: list[Any] = [0] * len(self._kinds)
        self._running = len(self._ranks)
        self._coming = 0  # events and messages under way that are not the background jobs'

    def run(self) -> Times:
        for thread in range(len(self._ranks)):
            self._schedule_task(thread, 0)
        if self._background is not None:
            for flow in self._background.flows:
                self._start_background(flow, 0)
        for index, change in enumerate(self._changes):
            self._push(change.at_s, CHANGED, index)
        heap, turns = self._heap, self._turns
        self._foretell(0)
        while self._running:
            if not self._coming:
                raise RuntimeError(f"the collective is stuck: {self._stuck()}")
            now = heap[0][0]
            while heap and heap[0][0] == now:
                _, _, kind, index, version = heappop(heap)
                self._handle(kind, index, version, now)
                while turns:
                    self._proceed(turns.popleft(), now)
            self._foretell(now)
        return Times(self._start, self._end)

    def _push(self, at: Any, kind: int, index: int, version: int = 0) -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, kind, index, version))

    def _push_own(self, at: Any, kind: int, index: int) -> None:
        self._coming += 1
        self._push(at, kind, index)

    def _foretell(self, now: Any) -> None:
        for at, flow, version in self._flows.settle(now):
            self._push(at, FLOWN if flow < self._first_background else BACKGROUND_FLOWN, flow, version)

    def _handle(self, kind: int, index: int, version: int, now: Any) -> None:
        if kind == BACKGROUND_FLOWN:
            self.background_flown(index, version, now)
        elif kind == BACKGROUND_ARRIVED:
            self.background_arrived(index, now)
        elif kind == CHANGED:
            self._flows.rescale(self._changes[index].factor)
        elif kind != FLOWN or self._flows.finish(index, version, now):
            self._coming -= 1
            if kind == FLOWN:
                self._flown(index, now)
            elif kind == ARRIVED:
                self._arrived(index, now)
            elif kind == START:
                self._take_turn(index)
            else:
                self._worked(index, now)

    def _schedule_task(self, thread: int, now: Any) -> None:
        """The next task of a thread starts when it is ready; a thread without one has ended."""
        if self._next_task[thread] == self._last_task[thread]:
            self._running -= 1
            return
        task = self._thread_tasks[self._next_task[thread]]
        self._next_task[thread] += 1
        self._at[thread], self._stop[thread] = self._first_operations[task : task + 2]
        ready = self._ready[task]
        self._push_own(now if now > ready else ready, START, thread)

    def _take_turn(self, thread: int) -> None:
        rank = self._ranks[thread]
        if self._busy[rank]:
            self._queue[rank].append(thread)
        else:
            self._busy[rank] = True
            self._turns.append(thread)

    def _end_turn(self, thread: int) -> None:
        rank = self._ranks[thread]
        if self._queue[rank]:
            self._turns.append(self._queue[rank].popleft())
        else:
            self._busy[rank] = False

    def _proceed(self, thread: int, now: Any) -> None:
        """A thread whose turn it is does what it can without time passing."""
        kinds, values = self._kinds, self._values
        at, stop = self._at[thread], self._stop[thread]
        while at < stop:
            kind = kinds[at]
            self._start[at] = self._end[at] = now
            if kind == WORK:
                seconds = self._work_s[at]
                if seconds > 0:
                    self._at[thread] = at
                    self._push_own(now + seconds, WORKED, thread)
                    return
            elif kind == POST:
                self._post(values[at], now)
            else:
                self._at[thread] = at
                self._end_turn(thread)
                self._wait(thread, values[at], now)
                return
            at += 1
        self._at[thread] = at
        self._end_turn(thread)
        self._schedule_task(thread, now)

    def _worked(self, thread: int, now: Any) -> None:
        self._end[self._at[thread]] = now
        self._at[thread] += 1
        self._proceed(thread, now)

    def _wait(self, thread: int, post: int, now: Any) -> None:
        if self._open[post]:
            self._waiting[post] = thread
        else:
            self._through(thread, now)

    def _through(self, thread: int, now: Any) -> None:
        """What a thread waited for is there."""
        self._end[self._at[thread]] = now
        self._at[thread] += 1
        self._take_turn(thread)

    def _post(self, post: int, now: Any) -> None:
        posted = self._posted
        posted[post] = True
        for message in self._received[post]:
            if posted[self._senders[message]] and len(self._receivers[message]) == 1:
                self._begin(message, now)
        for message in self._sent[post]:
            receiver, *others = self._receivers[message]
            if others or posted[receiver]:
                self._begin(message, now)

    def _begin(self, message: int, now: Any) -> None:
        """A message may start. One without bytes, as on a network without links, is through."""
        route = self._route[message]
        links = self._routes[route].links
        if links and self._sizes[message]:
            self._coming += 1
            self._flows.start(message, self._lane(route, links), links, self._sizes[message], now)
        else:
            self._flown(message, now)

    def _flown(self, message: int, now: Any) -> None:
        latency = self._routes[self._route[message]].latency_s if self._sizes[message] else 0
        if latency:
            self._push_own(now + latency, ARRIVED, message)
        else:
            self._arrived(message, now)

    def _arrived(self, message: int, now: Any) -> None:
        for post in (self._senders[message], *self._receivers[message]):
            self._open[post] -= 1
            if not self._open[post] and self._waiting[post] >= 0:
                self._through(self._waiting[post], now)

    def _start_background(self, flow: int, now: Any) -> None:
        assert self._background is not None
        links, num_bytes = self._background.route(flow).links, self._background.bytes(flow)
        lane = self._lane(len(self._routes) + flow, links)
        self._flows.start(self._first_background + flow, lane, links, num_bytes, now)

    def _lane(self, connection: int, links: tuple[int, ...]) -> int:
        """What carries one message at a time: a connection; where links are serial, the link."""
        return links[0] if self._serial else connection

    def background_flown(self, index: int, version: int, now: Any) -> None:
        if self._flows.finish(index, version, now):
            assert self._background is not None
            flow = index - self._first_background
            self._push(now + self._background.route(flow).latency_s, BACKGROUND_ARRIVED, flow)

    def background_arrived(self, flow: int, now: Any) -> None:
        assert self._background is not None
        for following in self._background.arrived(flow):
            self._start_background(following, now)

    def _stuck(self) -> str:
        waits = set()
        for post, thread in enumerate(self._waiting):
            if thread >= 0 and self._open[post]:
                rank = self._ranks[thread]
                for message in (*self._sent[post], *self._received[post]):
                    waits |= {f"rank {rank} for rank {other}" for other in self._absent(message)}
        return ", ".join(sorted(waits))

    def _absent(self, message: int) -> list[int]:
        """The ranks that have not posted their end of a message."""
        source, destinations = self._ends[self._route[message]]
        ends = (self._senders[message], *self._receivers[message])
        ranks = (source, *destinations)
        return [rank for rank, post in zip(ranks, ends, strict=True) if not self._posted[post]]


def _receivers(plan: Plan) -> list[list[int]]:
    """The posts that receive each message."""
    receivers, first = plan.receivers.tolist(), plan.first_receivers.tolist()
    return [receivers[begin:end] for begin, end in pairwise(first)]


def _messages_of(ends: Sequence[Sequence[int]], num_posts: int) -> list[list[int]]:
    """The messages of which each post is this end, in order."""
    found: list[list[int]] = [[] for _ in range(num_posts)]
    for message, posts in enumerate(ends):
        for post in posts:
            found[post].append(message)
    return found
