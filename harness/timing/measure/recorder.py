"""Spans from any thread or stream, resolved to seconds once a step."""

from __future__ import annotations

from typing import Any

from gradwire.harness.timing.measure.stopwatch import Stopwatch, WallStopwatch
from gradwire.harness.timing.measure.timeline import Kind, Span, Timeline


class Recorder:
    """A timeline whose spans may start and end with timestamps that have no time yet (CUDA events)."""

    def __init__(self, stopwatch: Stopwatch | None = None, enabled: bool = True) -> None:
        self._stopwatch = stopwatch or WallStopwatch()
        self._timeline = Timeline(enabled)

    @property
    def enabled(self) -> bool:
        return self._timeline.enabled

    @property
    def total(self) -> int:
        """Spans recorded so far."""
        return self._timeline.total

    def timestamp(self) -> Any:
        """A timestamp of now on the current stream."""
        return self._stopwatch.timestamp()

    def seconds(self, timestamp: Any) -> float:
        """The time of a timestamp; on CUDA only after the device has been synchronized."""
        return self._stopwatch.seconds(timestamp)

    def add(self, kind: Kind, start: Any, end: Any, num_bytes: int = 0) -> None:
        """Records a span between two timestamps."""
        self._timeline.add(kind, start, end, num_bytes)

    def restart(self) -> None:
        """Forgets earlier timestamps; called now and then, when all of them have been resolved."""
        self._stopwatch.restart()

    def suspend(self) -> bool:
        """Stops recording; returns what to pass to `resume`."""
        was_enabled, self._timeline.enabled = self._timeline.enabled, False
        return was_enabled

    def resume(self, was_enabled: bool) -> None:
        """Record again, if that was so before `suspend`."""
        self._timeline.enabled = was_enabled

    def drain(self) -> list[Span]:
        """Take out the spans so far, in seconds; on CUDA only after a synchronization."""
        seconds = self._stopwatch.seconds
        return [
            span._replace(start=seconds(span.start), end=seconds(span.end)) for span in self._timeline.drain()
        ]
