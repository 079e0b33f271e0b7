"""The spans of one rank on one clock: recorded from any thread or stream, converted to seconds once per
step.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from gradwire.harness.timing.measure.stopwatch import Stopwatch, WallStopwatch

Kind = Literal["compute", "codec", "comm", "wait"]


class Span(NamedTuple):
    """`compute`: forward, backward, optimizer. `codec`: encode, decode, accumulate, statistics, bit
    allocation. `comm`: bytes in flight, with `bytes` of them. `wait`: a forward pass waits for gradients of
    the step before. `start` and `end` are in seconds."""

    kind: Kind
    start: float
    end: float
    bytes: int = 0
    label: str = ""


class Recorder:
    """Collects spans from any thread without locks; one thread drains them, once a step.

    Spans may start and end with timestamps that have no time yet (CUDA events). In a real run the main thread
    records `compute` (forward to the last gradient being ready, without the time it was blocked, and the
    optimizer), and the communication threads record `codec` and `comm`. `Recorder(enabled=False)` keeps
    nothing; comparing with such a run shows the cost of recording.

    `cpu_time` and `worked` accumulate the CPU time of the computing thread and of the threads that do codec
    work. They do nothing on a GPU, whose work is not visible in the host's CPU time.
    """

    def __init__(self, stopwatch: Stopwatch | None = None, enabled: bool = True) -> None:
        self.enabled = enabled
        self._stopwatch = stopwatch or WallStopwatch()
        self._spans: list[Span] = []
        self._drained = 0
        self._counts_cpu = enabled and isinstance(self._stopwatch, WallStopwatch)
        self._cpu_s: dict[Kind, float] = {}
        self._leaves_out = False

    @property
    def stopwatch(self) -> Stopwatch:
        return self._stopwatch

    def leave_out(self) -> None:
        """States that work of the current step leaves no spans."""
        self._leaves_out = True

    def take_gap(self) -> bool:
        """True if work has left no spans since the last call."""
        taken, self._leaves_out = self._leaves_out, False
        return taken

    @property
    def total(self) -> int:
        """Spans recorded so far, including those drained."""
        return self._drained + len(self._spans)

    def timestamp(self) -> Any:
        """A timestamp of the current moment on the current stream."""
        return self._stopwatch.timestamp()

    def seconds(self, timestamp: Any) -> float:
        """A timestamp in seconds; on CUDA only after the device has been synchronized."""
        return self._stopwatch.seconds(timestamp)

    def add(self, kind: Kind, start: Any, end: Any, num_bytes: int = 0) -> None:
        """Records a span between two timestamps; appending to a list is atomic, so threads need no lock."""
        if self.enabled:
            self._spans.append(Span(kind, start, end, num_bytes))

    def cpu_time(self) -> float:
        """The CPU seconds of the calling thread, to be passed to `worked` by the same thread."""
        return time.thread_time() if self._counts_cpu else 0.0

    def worked(self, kind: Kind, since: float) -> None:
        """Counts a stretch of work that ends now and began at `since` of the calling thread's CPU time.
        Threads take turns for stretches of the same kind."""
        if self._counts_cpu:
            self._cpu_s[kind] = self._cpu_s.get(kind, 0.0) + time.thread_time() - since

    @property
    def cpu_s(self) -> Mapping[Kind, float]:
        """The CPU seconds of all stretches so far, by kind; empty if they are not counted."""
        return dict(self._cpu_s)

    def restart(self) -> None:
        """Discards earlier timestamps; called occasionally, when all of them have been resolved."""
        self._stopwatch.restart()

    def drain(self) -> list[Span]:
        """Removes and returns the spans so far, in seconds and in the order of recording; on CUDA only after
        a synchronization.

        Copies and deletes a prefix instead of replacing the list, because a thread inside `add` may hold a
        reference to it.
        """
        count = len(self._spans)
        drained = self._spans[:count]
        del self._spans[:count]
        self._drained += count
        seconds = self._stopwatch.seconds
        return [span._replace(start=seconds(span.start), end=seconds(span.end)) for span in drained]


def span_cost(spans: int = 2000, repeats: int = 5) -> float:
    """Seconds that recording one span takes (two timestamps and one `add`), in the fastest of `repeats`
    loops.

    Multiplied by the spans per step, this is the overhead of measuring.
    """
    recorder = Recorder()
    fastest = float("inf")
    for _ in range(repeats):
        begin = recorder.timestamp()
        for _ in range(spans):
            start = recorder.timestamp()
            recorder.add("codec", start, recorder.timestamp())
        fastest = min(fastest, recorder.timestamp() - begin)
        recorder.drain()
    return fastest / spans
