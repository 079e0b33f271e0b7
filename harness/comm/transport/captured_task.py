"""A captured round as a task of a communication thread, which captures it the first time and launches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gradwire.codecs.arithmetic.random import Key
from gradwire.codecs.interface import Capture
from gradwire.harness.comm.transport.captured_rounds import CapturedRound, CapturedRounds
from gradwire.harness.comm.transport.channel import CollectiveTask, Traffic
from gradwire.harness.timing.trace.log import TaskLog


@dataclass
class CapturedTask:
    """A round that a communication thread launches, after capturing it the first time.

    `prepare` readies the state for the capture, `drive` runs the round's coroutine to its end, `uncaptured`
    makes the task that runs it without a graph. `future` receives the result, `counted` the bytes that a
    launch sends.
    """

    rounds: CapturedRounds
    captured: CapturedRound
    key: Key
    communicator: int
    prepare: Callable[[], None]
    drive: Callable[[Capture, Traffic], Any]
    uncaptured: Callable[[], CollectiveTask]
    future: Any
    counted: Traffic
    log: TaskLog | None = None
    """Gets the times of the launch, if the round has marks."""
    ready: torch.cuda.Event | None = None
    """Recorded when the inputs are ready on the stream that made them."""

    @property
    def is_captured(self) -> bool:
        return self.captured.traffic is not None

    def capture(self) -> CollectiveTask | None:
        """Captures the round without running it; returns the task to run instead if capturing is
        impossible.
        """
        if self.rounds.failed:
            return self.uncaptured()
        try:
            self.prepare()
            self.captured.capture(self.drive, Traffic(self.counted.node))
        except RuntimeError as error:
            self.rounds.fail(error)
            return self.uncaptured()
        return None

    def launch(self) -> None:
        """Starts the round on the current stream."""
        self.captured.launch(self.key, self.log)
        self.rounds.launched(self.communicator)

    def count(self) -> None:
        """Counts the bytes that the launch sends."""
        assert self.captured.traffic is not None
        self.counted.include(self.captured.traffic)
        self.rounds.launches += 1

    def finish(self) -> None:
        """Sets the result of the future."""
        self.future.set_result(self.captured.result)

    def cancel(self, error: BaseException) -> None:
        """Sets `error` as the outcome."""
        self.future.set_exception(error)
