"""The simulated clock's engine in plain Python, for any numbers: what the compiled one is compared with.

It follows the rules of `harness.timing.simulate.engine` event by event. With floats both give the same bytes;
with fractions this one is exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from reference_background import BackgroundRun
from reference_flows import Flows
from reference_messages import Messages

from gradwire.harness.network.links import Links
from gradwire.harness.timing.simulate.background import BackgroundJobs
from gradwire.harness.timing.simulate.plan import (
    AWAIT,
    BARRIER,
    BEGIN,
    COMPUTE,
    POST,
    START,
    WORK,
    OperationTimes,
    StepPlan,
)

STARTS, WORKED, REACHED, FLOWN, ARRIVED, BACKGROUND_FLOWN, BACKGROUND_ARRIVED, CHANGED = range(8)


def run_reference(
    plan: StepPlan,
    links: Links,
    work_s: Sequence[float],
    ready: Sequence[float],
    background: BackgroundJobs | None = None,
) -> OperationTimes:
    """Does what `engine.run` does, exactly for fractions; it does not check arguments."""
    return _Engine(plan, links, work_s, ready, background).run()


class _Engine:
    def __init__(
        self,
        plan: StepPlan,
        links: Links,
        work_s: Sequence[float],
        ready: Sequence[float],
        background: BackgroundJobs | None,
    ) -> None:
        self._kinds, self._values = plan.kinds.tolist(), plan.values.tolist()
        self._first_operations = plan.first_operations.tolist()
        self._ranks, self._thread_tasks = plan.ranks.tolist(), plan.thread_tasks.tolist()
        self._messages = Messages(plan)
        self._route, self._sizes = plan.route.tolist(), plan.sizes.tolist()
        self._routes = [links.multicast(*ends) for ends in plan.routes]
        self._work_s, self._ready = work_s, list(ready)
        self._flows, self._serial = Flows(links), links.serial
        self._changes = links.changes
        self._background = None if background is None else BackgroundRun(background)
        self._first_background = len(self._sizes)
        self._heap: list[tuple[Any, int, int, int, int]] = []
        self._count = 0
        self._turns: deque[int] = deque()  # threads that continue at this moment
        self._next_task = plan.first_tasks[:-1].tolist()
        self._last_task = plan.first_tasks[1:].tolist()
        self._at = [-1] * len(self._ranks)  # the operation a thread is at; -1 before its first task
        self._stop = [0] * len(self._ranks)
        self._busy = [False] * (max(self._ranks, default=-1) + 1)
        self._queue: list[deque[int]] = [deque() for _ in self._busy]
        self._start: list[Any] = [0] * len(self._kinds)
        self._end: list[Any] = [0] * len(self._kinds)
        self._lane_at = plan.first_lane_operations[:-1].tolist()
        self._lane_stop = plan.first_lane_operations[1:].tolist()
        self._woken: list[Any] = [0] * len(self._lane_at)  # when its step began, or its last wait ended
        started = {value for kind, value in zip(self._kinds, self._values, strict=True) if kind == START}
        self._is_open = [task not in started for task in range(len(self._ready))]
        self._is_done = [False] * len(self._ready)
        self._expected_by: dict[int, int] = {}  # task: the thread that waits to begin it
        self._awaited_by: dict[int, int] = {}  # task: the lane
        self._met = 0  # lanes at the barrier
        self._running = len(self._ranks) + len(self._lane_at)
        self._coming = 0  # events and messages under way that are not the background jobs'

    def run(self) -> OperationTimes:
        for lane in range(len(self._lane_at)):
            self._run_ahead(lane, 0)
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
        return OperationTimes(self._start, self._end)

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
            self._background_flown(index, version, now)
        elif kind == BACKGROUND_ARRIVED:
            self._background_arrived(index, now)
        elif kind == CHANGED:
            self._flows.rescale(self._changes[index].factor)
        elif kind != FLOWN or self._flows.finish(index, version, now):
            self._coming -= 1
            if kind == FLOWN:
                self._flown(index, now)
            elif kind == ARRIVED:
                self._arrived(index, now)
            elif kind == STARTS:
                self._take_turn(index)
            elif kind == REACHED:
                self._reached(index, now)
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
        if self._is_open[task]:
            self._start_task(task, thread, now)
        else:
            self._expected_by[task] = thread

    def _start_task(self, task: int, thread: int, now: Any) -> None:
        ready = self._ready[task]
        self._push_own(now if now > ready else ready, STARTS, thread)

    def _run_ahead(self, lane: int, now: Any) -> None:
        """A lane computes and starts tasks up to its next wait: when, is known beforehand."""
        time = now
        while self._lane_at[lane] < self._lane_stop[lane]:
            at = self._lane_at[lane]
            kind = self._kinds[at]
            self._start[at] = time
            if kind == BEGIN:
                self._woken[lane] = time
            elif kind == COMPUTE:
                time = max(time, self._woken[lane] + self._work_s[at])
            elif kind == START:
                self._open_task(self._values[at], time, now)
            else:
                assert kind in (AWAIT, BARRIER)
                self._push_own(time, REACHED, lane)
                return
            self._end[at] = time
            self._lane_at[lane] += 1
        self._running -= 1

    def _open_task(self, task: int, at: Any, now: Any) -> None:
        self._is_open[task] = True
        self._ready[task] = max(self._ready[task], at)
        if task in self._expected_by:
            self._start_task(task, self._expected_by[task], now)

    def _reached(self, lane: int, now: Any) -> None:
        """A lane has come to a wait."""
        task = self._values[self._lane_at[lane]]
        if self._kinds[self._lane_at[lane]] == BARRIER:
            self._met += 1
            if self._met == len(self._lane_at):
                self._met = 0
                for each in range(len(self._lane_at)):
                    self._wake(each, now)
        elif task < 0 or self._is_done[task]:
            self._wake(lane, now)
        else:
            self._awaited_by[task] = lane

    def _wake(self, lane: int, now: Any) -> None:
        self._end[self._lane_at[lane]] = self._woken[lane] = now
        self._lane_at[lane] += 1
        self._run_ahead(lane, now)

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
        task = self._thread_tasks[self._next_task[thread] - 1]
        self._schedule_task(thread, now)
        self._is_done[task] = True
        if task in self._awaited_by:
            self._wake(self._awaited_by[task], now)

    def _worked(self, thread: int, now: Any) -> None:
        self._end[self._at[thread]] = now
        self._at[thread] += 1
        self._proceed(thread, now)

    def _wait(self, thread: int, post: int, now: Any) -> None:
        if not self._messages.wait(post, thread):
            self._through(thread, now)

    def _through(self, thread: int, now: Any) -> None:
        """Ends the wait of a thread: all messages of its post have arrived."""
        self._end[self._at[thread]] = now
        self._at[thread] += 1
        self._take_turn(thread)

    def _post(self, post: int, now: Any) -> None:
        for message in self._messages.post(post):
            self._begin(message, now)

    def _begin(self, message: int, now: Any) -> None:
        """A message may start. One without bytes, as on a network without links, is through."""
        route = self._route[message]
        links = self._routes[route].links
        if links and self._sizes[message]:
            self._coming += 1
            lane, urgency = self._lane(route, links), self._messages.urgency[message]
            self._flows.start(message, lane, links, self._sizes[message], now, urgency)
        else:
            self._flown(message, now)

    def _flown(self, message: int, now: Any) -> None:
        latency = self._routes[self._route[message]].latency_s if self._sizes[message] else 0
        if latency:
            self._push_own(now + latency, ARRIVED, message)
        else:
            self._arrived(message, now)

    def _arrived(self, message: int, now: Any) -> None:
        for thread in self._messages.arrived(message):
            self._through(thread, now)

    def _start_background(self, flow: int, now: Any) -> None:
        assert self._background is not None
        links, num_bytes = self._background.route(flow).links, self._background.bytes(flow)
        lane = self._lane(len(self._routes) + flow, links)
        self._flows.start(self._first_background + flow, lane, links, num_bytes, now)

    def _lane(self, connection: int, links: tuple[int, ...]) -> int:
        """The lane that carries one message at a time: a connection or, where links are serial, the link."""
        return links[0] if self._serial else connection

    def _background_flown(self, index: int, version: int, now: Any) -> None:
        if self._flows.finish(index, version, now):
            assert self._background is not None
            flow = index - self._first_background
            self._push(now + self._background.route(flow).latency_s, BACKGROUND_ARRIVED, flow)

    def _background_arrived(self, flow: int, now: Any) -> None:
        assert self._background is not None
        for following in self._background.arrived(flow):
            self._start_background(following, now)

    def _stuck(self) -> str:
        waits = {f"rank {self._ranks[thread]} for rank {other}" for thread, other in self._messages.missing()}
        if not waits:
            missing = (task for task in self._awaited_by if not self._is_done[task])
            waits = {f"task {task} is awaited before it is started" for task in missing}
        return ", ".join(sorted(waits))
