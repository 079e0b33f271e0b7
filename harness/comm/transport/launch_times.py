"""Times of a graph's launches, read between two launches.

The next launch overwrites what the marks of the last one hold. So its times are read when the device has
finished the step, or at the latest before the graph is launched again: then the host waits, if it must.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from gradwire.harness.comm.transport.mark_cost import MarkCost
from gradwire.harness.comm.transport.round_marks import RoundMarks
from gradwire.harness.timing.measure.spans import Recorder
from gradwire.harness.timing.trace.log import TaskLog


class _Unread(NamedTuple):
    """A launch: the timestamps before and after it on its stream, and the log of its task."""

    before: object
    after: object
    log: TaskLog | None


@dataclass
class LaunchTimes:
    """The times of one graph, with `marks` or without: those of its work go to the `recorder`, those of the
    whole launch to the `cost` of marks while it is open."""

    bucket: Hashable
    recorder: Recorder
    cost: MarkCost
    marks: RoundMarks | None

    def __post_init__(self) -> None:
        self._unread: _Unread | None = None
        self._lock = threading.Lock()

    def launch(self, launch: Callable[[], None], log: TaskLog | None) -> None:
        """Calls `launch`, after the times of the launch before were read. `log` gets the times of this
        one."""
        with self._lock:
            self._read(wait=True)
            if self.marks is None and not self.cost.is_open:
                launch()
                return
            before = self.recorder.timestamp()
            launch()
            self._unread = _Unread(before, self.recorder.timestamp(), log)

    def read(self, *, wait: bool) -> None:
        """Reads the times of the latest launch, unless they were read; without `wait` only if it has
        ended."""
        with self._lock:
            self._read(wait=wait)

    def _read(self, *, wait: bool) -> None:
        unread, stopwatch = self._unread, self.recorder.stopwatch
        if unread is None or not (wait or stopwatch.has_passed(unread.after)):
            return
        stopwatch.wait_for(unread.after)
        if self.cost.is_open:
            seconds = stopwatch.seconds(unread.after) - stopwatch.seconds(unread.before)
            self.cost.add(self.bucket, self.marks is not None, seconds)
        if self.marks is not None:
            self.marks.read(self.recorder, unread.log)
        self._unread = None
