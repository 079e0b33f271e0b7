"""Timestamps on one monotonic timeline: wall-clock times on CPUs, events on CUDA streams.

Taking a timestamp is cheap and never synchronizes. It is converted to seconds later, once per step. Seconds
that are known already, e.g. those of a captured round's marks, are timestamps, too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import torch


class Stopwatch(Protocol):
    """Takes timestamps and converts them to seconds later."""

    def timestamp(self) -> object: ...

    def seconds(self, timestamp: object) -> float: ...

    def has_passed(self, timestamp: object) -> bool:
        """True if the work before a timestamp has ended, so that it can be converted."""
        ...

    def wait_for(self, timestamp: object) -> None:
        """Has the host wait until it has passed."""
        ...

    def restart(self) -> None:
        """Discards earlier timestamps, because elapsed times lose precision as they grow."""
        ...


class WallStopwatch:
    """Timestamps are wall-clock seconds."""

    def timestamp(self) -> object:
        return time.perf_counter()

    def seconds(self, timestamp: object) -> float:
        return cast(float, timestamp)

    def has_passed(self, timestamp: object) -> bool:
        return True

    def wait_for(self, timestamp: object) -> None:
        """Does nothing: it was taken when it passed."""

    def restart(self) -> None:
        """Does nothing, because wall-clock timestamps keep their precision."""


class CurrentStream:
    """The current stream of whatever thread asks for it, on a CUDA device. Each stream's object is made once:
    `torch.cuda.current_stream` makes one every time, which takes longer than recording an event."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._made = device, dict[int, "torch.cuda.Stream"]()

    def get(self) -> torch.cuda.Stream:
        import torch

        from gradwire.codecs.native.call import stream_pointer

        if self._device.index is None:
            return torch.cuda.current_stream(self._device)
        pointer = stream_pointer(self._device.index)
        found = self._made.get(pointer)
        if found is None:
            found = self._made[pointer] = torch.cuda.current_stream(self._device)
        return found


class CudaStopwatch:
    """Timestamps are events on the current stream, placed on the wall clock by one anchor event.

    `seconds` requires that the events have completed: synchronize the device first.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, CurrentStream(device)
        self.restart()

    def restart(self) -> None:
        import torch

        device = self._device
        self._anchor = _event()
        torch.cuda.synchronize(device)
        self._anchor.record(self._stream.get())
        self._anchor_s = time.perf_counter()

    def timestamp(self) -> object:
        event = _event()
        event.record(self._stream.get())
        return event

    def has_passed(self, timestamp: object) -> bool:
        if isinstance(timestamp, float):
            return True
        passed: bool = cast("torch.cuda.Event", timestamp).query()  # type: ignore[no-untyped-call]
        return passed

    def wait_for(self, timestamp: object) -> None:
        if not isinstance(timestamp, float):
            cast("torch.cuda.Event", timestamp).synchronize()

    def seconds(self, timestamp: object) -> float:
        if isinstance(timestamp, float):
            return timestamp
        elapsed_ms: float = self._anchor.elapsed_time(cast("torch.cuda.Event", timestamp))
        return self._anchor_s + elapsed_ms / 1e3


def _event() -> torch.cuda.Event:
    import torch

    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


def make_stopwatch(device: torch.device) -> Stopwatch:
    """The stopwatch for a type of device."""
    return CudaStopwatch(device) if device.type == "cuda" else WallStopwatch()
