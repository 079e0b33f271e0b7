"""The marks of a captured round: where its codec work and its messages begin and end.

While the round is captured, `RoundMarks.drive` takes the spans and the log that a communication thread takes
of a round that runs as it is, with marks of the graph for timestamps. After each launch `read` converts them
to the seconds of this launch. Work on a stream is in order, so one mark serves for all moments between which
nothing is started: three for a hop, and one for each label.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from gradwire.harness.comm.transport.channel import Handle
from gradwire.harness.comm.transport.graph import GraphClock
from gradwire.harness.comm.transport.process import ProcessHandle
from gradwire.harness.timing.measure.spans import Kind, Recorder
from gradwire.harness.timing.trace.log import TaskLog

Result = TypeVar("Result")


class RoundMarks:
    """Spans and log of one captured round, in marks of its `clock`. `logs` says whether labels and posts are
    logged for a trace; spans do not need them."""

    def __init__(self, clock: GraphClock, *, logs: bool) -> None:
        self._clock, self._logs = clock, logs
        self._spans: list[tuple[Kind, object, object, int]] = []
        self.log: TaskLog | None = None
        self.count = 0
        """Marks in the graph."""

    def begin(self) -> None:
        """Begins the capture."""
        self._spans, self.count = [], 0
        self.log = TaskLog(self.timestamp, 0, 0, None) if self._logs else None

    def timestamp(self) -> object:
        self.count += 1
        return self._clock.timestamp()

    def drive(self, coroutine: Coroutine[Handle, None, Result]) -> Result:
        """Runs a collective of this rank to its end, as `process.driven` does, with marks."""
        start = self.timestamp()
        try:
            while True:
                if self.log is not None:
                    self.log.resume(start)
                handle = coroutine.send(None)
                end = self._worked(start)
                assert isinstance(handle, ProcessHandle)
                handle.block()
                start = self.timestamp()
                self._spans.append(("comm", handle.posted, start, handle.sent_bytes))
                if self.log is not None:
                    self.log.waited(handle.number, end, start)
        except StopIteration as ended:
            self._worked(start)
            result: Result = ended.value
            return result
        finally:
            coroutine.close()

    def _worked(self, start: object) -> object:
        """Marks the end of codec work that began at `start`."""
        end = self.timestamp()
        self._spans.append(("codec", start, end, 0))
        if self.log is not None:
            self.log.suspend(end)
        return end

    def read(self, recorder: Recorder, log: TaskLog | None) -> None:
        """Adds the times of the launch that has ended to `recorder`, and to the step's `log` of it."""
        known = dict[int, float]()

        def seconds(mark: Any) -> float:
            if id(mark) not in known:
                known[id(mark)] = self._clock.seconds(mark)
            return known[id(mark)]

        for kind, start, end, num_bytes in self._spans:
            recorder.add(kind, seconds(start), seconds(end), num_bytes)
        if log is not None and self.log is not None:
            log.repeat(self.log, seconds)
