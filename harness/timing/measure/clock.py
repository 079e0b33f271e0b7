"""The training clock: it includes everything that a step does and stops for work that is not part of
training.

Codecs can neither read nor stop it. Reading it does not synchronize the device. The device is synchronized
where the clock stops and starts, so that work in flight is attributed to its cause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch


class TrainingClock:
    """`wall` counts real seconds between `start` and pauses, `simulated` the seconds that `advance` adds.

    `listener`, if given, is called whenever the clock starts, stops or resumes, with the reading and whether
    the clock is running.
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
        """Starts the clock, after the warm-up."""
        self._synchronize()
        self._running_since = time.perf_counter()
        self._on_clock(self._accumulated, True)

    def stop(self) -> None:
        """Stops the clock: later work is not part of training."""
        self._accumulated = self.seconds
        self._running_since = None
        self._on_clock(self._accumulated, False)

    def resume(self, seconds: float) -> None:
        """Continues from the training seconds of earlier attempts; call it before `start`."""
        assert self._running_since is None, "resume() before start()"
        self._accumulated = seconds
        self._on_clock(seconds, False)

    def advance(self, seconds: float) -> None:
        """Adds the seconds of a simulated step."""
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
        """Pauses the clock in the block: evaluation, checkpoints, error measurement, bookkeeping."""
        self._synchronize()
        self.stop()
        try:
            yield
        finally:
            self.start()
