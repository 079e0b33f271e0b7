"""All ranks in one process: mailboxes instead of sockets, a simulated clock instead of a link.

Each rank has a simulated communication processor with its own time: it advances by the measured
duration of the codec work and jumps to the arrival of the messages it waits for. Collectives in
flight share it, the one whose messages came first goes on first. Events of all ranks are processed in
the order of simulated time, one after another, so what is measured for one rank is not disturbed by
the others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwire.harness.measure.recorder import Recorder
from gradwire.harness.network.link import Link
from gradwire.harness.transport.channel import MEASURE, Channel, Handle, TaggedMessage, Traffic
from gradwire.harness.transport.task import Task


class LocalHandle(Handle):
    """Complete when each of its messages has met its counterpart; `completed_at` in simulated seconds."""

    def __init__(self, posted_at: float, messages: int) -> None:
        self.posted_at = self.completed_at = posted_at
        self.open = messages

    def deliver(self, at: float) -> None:
        self.open -= 1
        self.completed_at = max(self.completed_at, at)


Key = tuple[int, int, int]
"""(source, destination, tag)"""


@dataclass
class _Posted:
    buffer: Tensor
    handle: LocalHandle
    arrival: float
    copy: Tensor | None


class Mailboxes:
    """Matches sends with receives. With `debug`, a send buffer written to too early is an error."""

    def __init__(self, debug: bool = False) -> None:
        self._debug = debug
        self._sends: dict[Key, _Posted] = {}
        self._receives: dict[Key, tuple[Tensor, LocalHandle]] = {}

    def send(self, key: Key, buffer: Tensor, handle: LocalHandle, arrival: float) -> None:
        assert key not in self._sends, f"two messages {key} in one step"
        posted = _Posted(buffer, handle, arrival, buffer.clone() if self._debug else None)
        if key in self._receives:
            self._match(key, posted, *self._receives.pop(key))
        else:
            self._sends[key] = posted

    def receive(self, key: Key, buffer: Tensor, handle: LocalHandle) -> None:
        if key in self._sends:
            self._match(key, self._sends.pop(key), buffer, handle)
        else:
            self._receives[key] = (buffer, handle)

    def _match(self, key: Key, posted: _Posted, buffer: Tensor, handle: LocalHandle) -> None:
        assert posted.buffer.shape == buffer.shape, f"message {key}: {posted.buffer.shape} for {buffer.shape}"
        intact = posted.copy is None or torch.equal(posted.copy, posted.buffer)
        assert intact, f"send buffer {key} was written to before the message was received"
        buffer.copy_(posted.buffer)
        posted.handle.deliver(posted.arrival)
        handle.deliver(posted.arrival)

    def waiting(self) -> str:
        """Who waits for whom, for a deadlock's message."""
        lines = [f"rank {key[1]} for rank {key[0]}" for key in self._receives]
        lines += [f"rank {key[0]} for rank {key[1]} to receive" for key in self._sends]
        return ", ".join(sorted(set(lines)))


@dataclass
class LocalRank:
    """One rank's simulated communication processor, uplink and counters; times in seconds."""

    rank: int
    link: Link
    traffic: Traffic
    recorder: Recorder
    synchronize: Callable[[], None]
    now: float = 0.0
    segment_start: float = 0.0  # wall clock
    active: list[Task] = field(default_factory=list)

    def time(self) -> float:
        """Simulated now: `now` plus the codec work done since the coroutine was resumed."""
        return self.now + time.perf_counter() - self.segment_start

    def advance(self, task: Task) -> None:
        """Run a task's next piece of codec work; it leaves `active` when it ends."""
        self.segment_start = time.perf_counter()
        more = task.advance()
        self.synchronize()
        end = self.time()
        self.recorder.add("codec", self.now, end)
        self.now = end
        if not more:
            self.active.remove(task)


class LocalChannel(Channel):
    """A channel between ranks hosted by one process."""

    def __init__(self, state: LocalRank, size: int, number: int, mailboxes: Mailboxes) -> None:
        super().__init__(state.rank, size, number, state.traffic)
        self._state, self._mailboxes = state, mailboxes

    def _post(self, sends: Sequence[TaggedMessage], receives: Sequence[TaggedMessage], phase: str) -> Handle:
        now = self._state.time()
        handle = LocalHandle(now, len(sends) + len(receives))
        for peer, buffer, tag in receives:
            self._mailboxes.receive((peer, self.rank, tag), buffer, handle)
        for peer, buffer, tag in sends:
            arrival = now if phase == MEASURE else self._state.link.transmit(now, buffer.numel())
            self._mailboxes.send((self.rank, peer, tag), buffer, handle, arrival)
        return handle

    def backend_sum(self, x: Tensor) -> Handle:
        raise ValueError("codec=native needs real processes; use cluster=local, or codec=fp32")


def run_local(
    states: Sequence[LocalRank],
    tasks: Sequence[Sequence[tuple[float, Task]]],
    in_flight: int,
    mailboxes: Mailboxes,
) -> None:
    """Run every rank's tasks, each startable from its ready time (simulated seconds) on.

    Raises what a coroutine raises, after cancelling the others; RuntimeError with who waits for whom
    on a deadlock.
    """
    queues = [deque(own) for own in tasks]
    try:
        while any(queues) or any(state.active for state in states):
            events = [_next_event(state, own, in_flight) for state, own in zip(states, queues, strict=True)]
            # The earliest event of all ranks: whatever is sent from now on arrives after it.
            rank = min(range(len(events)), key=lambda r: events[r][0])
            at, arrived = events[rank]
            if at == float("inf"):
                raise RuntimeError(f"the collective is stuck: {mailboxes.waiting()}")
            _process(states[rank], queues[rank], at, arrived)
    except BaseException as error:
        for state, waiting in zip(states, queues, strict=True):
            for task in [*state.active, *(task for _, task in waiting)]:
                task.cancel(error)
        raise


def _next_event(
    state: LocalRank, tasks: deque[tuple[float, Task]], in_flight: int
) -> tuple[float, Task | None]:
    """(when, the task whose messages have arrived or None for the start of the next one)."""
    starts = tasks[0][0] if tasks and len(state.active) < in_flight else float("inf")
    arrived = [task for task in state.active if _handle(task).open == 0]
    first = min(arrived, key=lambda task: _handle(task).completed_at, default=None)
    if first is not None and _handle(first).completed_at <= starts:
        return max(_handle(first).completed_at, state.now), first
    return max(starts, state.now), None


def _process(state: LocalRank, tasks: deque[tuple[float, Task]], at: float, arrived: Task | None) -> None:
    """Advance a rank's clock to an event and do the codec work that follows from it."""
    state.now = at
    if arrived is None:
        _, task = tasks.popleft()
        state.active.append(task)
        state.advance(task)
        return
    handle = _handle(arrived)
    state.recorder.add("comm", handle.posted_at, handle.completed_at, handle.sent_bytes)
    state.advance(arrived)


def _handle(task: Task) -> LocalHandle:
    assert isinstance(task.handle, LocalHandle), "an active task waits for something"
    return task.handle
