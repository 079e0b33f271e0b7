"""The training clock: runs through everything a step does and stops for what training does not need.

The codec cannot see or stop it. It is read without synchronizing the device. Where it stops and starts the
device is synchronized, so that work in flight counts where it was caused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch


class TrainingClock:
    """`wall`: real seconds between `start` and pauses. `simulated`: what `advance` adds up.

    `on_clock`, if given, is called with the seconds, and whether they run on, when they start, stop or
    resume.
    """

    def __init__(
        self,
        kind: Literal["wall", "simulated"],
        device: torch.device,
        on_clock: Callable[[float, bool], None] = lambda seconds, running: None,
    ) -> None:
        self.kind, self._on_clock = kind, on_clock
        self._synchronize: Callable[[], None] = (
            (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else lambda: None
        )
        self._accumulated = 0.0
        self._running_since: float | None = None

    def start(self) -> None:
        """Start after warm-up."""
        self._synchronize()
        self._running_since = time.perf_counter()
        self._on_clock(self._accumulated, True)

    def stop(self) -> None:
        """Stop: what comes is no training any more."""
        self._accumulated = self.seconds
        self._running_since = None
        self._on_clock(self._accumulated, False)

    def resume(self, seconds: float) -> None:
        """Continues from the training seconds of earlier attempts; call it before `start`."""
        assert self._running_since is None, "resume() before start()"
        self._accumulated = seconds
        self._on_clock(seconds, False)

    def advance(self, seconds: float) -> None:
        """Add a simulated step."""
        assert self.kind == "simulated", "only a simulated clock is advanced by hand"
        self._accumulated += seconds

    @property
    def seconds(self) -> float:
        """Training seconds so far."""
        if self.kind == "simulated" or self._running_since is None:
            return self._accumulated
        return self._accumulated + time.perf_counter() - self._running_since

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Off the clock: evaluation, checkpoints, error measurement, bookkeeping."""
        self._synchronize()
        self.stop()
        try:
            yield
        finally:
            self.start()
