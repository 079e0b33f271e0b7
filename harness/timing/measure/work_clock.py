"""The clock of a virtual cluster's work: CPU time of the thread that does it, or time on the device that it
is started on.

Marks are taken while ranks compute and encode, and converted to seconds when the step has ended, so that the
host never waits for a GPU in between. On a GPU a mark is an event on the current stream. The time between two
marks there is that of the stream: of the work between them, and of its waits for the host, if the host starts
work more slowly than the GPU does it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from gradwire.harness.timing.measure.stopwatch import CurrentStream

if TYPE_CHECKING:
    import torch


class WorkClock(Protocol):
    """Takes marks, and converts them to seconds of work later."""

    def begin(self) -> None:
        """Begins a step. Marks of earlier steps cannot be converted any more, because times lose precision as
        they grow."""
        ...

    def mark(self) -> Any:
        """Marks the end of the work so far."""
        ...

    def settle(self) -> None:
        """Waits until all marks taken so far can be converted."""
        ...

    def seconds(self, mark: Any) -> float:
        """The time of a mark of this step, in seconds; only differences have a meaning."""
        ...


class HostClock:
    """Marks are seconds: CPU time of this thread or, with `wall`, time that passes.

    Other programs on the machine do not count in CPU time.
    """

    def __init__(self, *, wall: bool = False) -> None:
        self.mark = time.perf_counter if wall else time.thread_time

    def begin(self) -> None:
        """Does nothing, because these marks keep their precision."""

    def settle(self) -> None:
        """Does nothing, because work on the host has ended when it is marked."""

    def seconds(self, mark: float) -> float:
        return mark


class StreamClock:
    """Marks are events on the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, CurrentStream(device)
        self._first: torch.cuda.Event | None = None

    def begin(self) -> None:
        self._first = self.mark()

    def mark(self) -> torch.cuda.Event:
        import torch

        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream.get())
        return event

    def settle(self) -> None:
        import torch

        torch.cuda.synchronize(self._device)

    def seconds(self, mark: torch.cuda.Event) -> float:
        assert self._first is not None, "seconds() before begin()"
        elapsed_ms: float = self._first.elapsed_time(mark)
        return elapsed_ms / 1e3


def make_work_clock(device: torch.device) -> WorkClock:
    """The clock of work on a device. Work on tensors without values (`meta`) takes as long as Python does."""
    if device.type == "cuda":
        return StreamClock(device)
    return HostClock(wall=device.type != "cpu")
