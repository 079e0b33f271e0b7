"""A step of the one rank of this process: its computation runs here, its collectives on other threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradwire.harness.comm.collective.collectives import ScheduledCollectives
from gradwire.harness.comm.world.interface import Collective, CollectivePlace, Result, Started, Submission
from gradwire.harness.comm.world.started import ProcessStarted
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.trace.log import LaneLog
from gradwire.harness.timing.trace.step import ORDINARY, Urgency

if TYPE_CHECKING:
    from gradwire.harness.comm.world.process import ProcessWorld


class _NoBarrier:
    """Suspends nothing: a process of its own needs no barrier here."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class ProcessComputing:
    """A computation in progress; `since` is the time from which it has not been recorded yet, None once it
    has ended."""

    def __init__(self, label: str, recorder: Recorder, lane: LaneLog) -> None:
        self.label, self._recorder, self._lane = label, recorder, lane
        self._since: Any = recorder.timestamp()
        self._cpu_since = recorder.cpu_time()

    def cut(self) -> None:
        """Records the computation so far."""
        if self._since is not None:
            now = self._recorder.timestamp()
            self._recorder.add("compute", self._since, now)
            self._recorder.worked("compute", self._cpu_since)
            self._lane.computed(self.label, self._since, now)
            self._since, self._cpu_since = now, self._recorder.cpu_time()

    def begin(self, label: str) -> None:
        self.cut()
        self.label = label

    def proceed(self) -> None:
        """Continues the computation; the time since `cut` is not counted as the rank's computation."""
        if self._since is not None:
            self._since, self._cpu_since = self._recorder.timestamp(), self._recorder.cpu_time()

    def end(self) -> None:
        self.cut()
        self._since = None

    def __enter__(self) -> ProcessComputing:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class ProcessStep:
    """The step of this process's rank, whose collectives run on communication threads.

    `lane` logs the rank's work. Without `overlap` collectives begin when the rank waits for one of them. The
    step is either driven with a coroutine, or by a script that calls `start` itself and `wait_for` at the
    end.
    """

    def __init__(self, world: ProcessWorld, number: int, lane: LaneLog, overlap: bool) -> None:
        self.rank, self._number = world.rank, number
        self._world, self._lane, self._overlap = world, lane, overlap
        self._recorder = world.recorders[world.rank]
        self._computing: ProcessComputing | None = None
        self._started = 0
        self._held_back: list[Callable[[], None]] = []

    def compute(self, label: str) -> ProcessComputing:
        self._computing = ProcessComputing(label, self._recorder, self._lane)
        return self._computing

    def replicated(self, work: Callable[[], Result], group: int = 0) -> Result:
        return work()

    def start(
        self, make: Callable[[Tensor], Collective[Result]], x: Tensor, submission: Submission
    ) -> ProcessStarted[Result]:
        def submit(started: ProcessStarted[Result]) -> None:
            self._world.submit(make(x), submission, started)

        return self._start(submit, x.clone() if submission.keeps_input else None)

    def send(
        self, x: Tensor, to: int, *, is_own: bool = False, urgency: Urgency = ORDINARY
    ) -> ProcessStarted[None]:
        transfer, line = partial(ScheduledCollectives.send, x=x, to=to), ("to", to)
        return self._start(partial(self._world.transfer, transfer, line, x.numel(), urgency))

    def receive(self, out: Tensor, source: int) -> ProcessStarted[Tensor]:
        transfer, line = partial(ScheduledCollectives.receive, out=out, source=source), ("from", source)
        return self._start(partial(self._world.transfer, transfer, line, out.numel(), ORDINARY))

    def _start(
        self, submit: Callable[[ProcessStarted[Result]], None], kept: Tensor | None = None
    ) -> ProcessStarted[Result]:
        """Passes a new collective to `submit`, which starts it on a communication thread."""
        place = CollectivePlace(self._number, self._started)
        started: ProcessStarted[Result] = ProcessStarted(place, self._world.started, kept)
        self._started += 1
        self._world.started.add(started)

        def begin() -> None:
            self._world.started.begin()
            submit(started)

        if self._overlap:
            begin()
        else:
            self._held_back.append(begin)
        if self._computing is not None:
            self._computing.cut()
        self._lane.started(place.number, self._recorder.timestamp())
        return started

    def wait(self, started: Started[Result]) -> Result:
        assert isinstance(started, ProcessStarted)
        if self._computing is not None:
            self._computing.cut()
        since = self._recorder.timestamp()
        error = self.wait_for(started)
        self._recorder.add("wait", since, self._recorder.timestamp())
        if error is not None:
            raise error
        if self._computing is not None:
            self._computing.proceed()
        result: Result = started.result()
        return result

    def stopwatch(self) -> Callable[[], float]:
        since = time.monotonic()
        return lambda: time.monotonic() - since

    def barrier(self) -> _NoBarrier:
        now = self._recorder.timestamp()
        self._lane.barrier(now, now)
        return _NoBarrier()

    def drive(self, program: Coroutine[Any, Any, Result]) -> Result:
        """Runs the rank's program to its end; collectives that it has not awaited continue afterwards. Raises
        the first failure of any collective."""
        try:
            while True:
                error = self.wait_for(program.send(None))
                if error is not None:
                    raise error
        except StopIteration as end:
            self._start_held_back()
            result: Result = end.value
            return result
        finally:
            program.close()

    def wait_for(self, started: ProcessStarted[Any]) -> BaseException | None:
        """Waits for a collective; see `ProcessStarted.wait`."""
        self._start_held_back()
        start = self._recorder.timestamp()
        error = started.wait()
        steps_back = self._number - started.place.step
        self._lane.awaited(started.place.number, start, self._recorder.timestamp(), steps_back)
        return error

    def _start_held_back(self) -> None:
        while self._held_back:
            self._held_back.pop(0)()
