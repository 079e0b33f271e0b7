"""A collective in the making: a coroutine that stops at every wait, and whom to tell its outcome."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import torch

from gradwire.harness.comm.transport.channel import Handle
from gradwire.harness.timing.trace.log import TaskLog


class Task:
    """A coroutine, the callable that gets its result and the one that gets its failure."""

    def __init__(
        self,
        coroutine: Coroutine[Handle, None, Any],
        finish: Callable[[Any], None],
        fail: Callable[[BaseException], None],
        log: TaskLog | None = None,
    ) -> None:
        self._coroutine, self._finish, self._fail, self.log = coroutine, finish, fail, log
        self.handle: Handle | None = None
        """What the coroutine waits for; None before the start and after the end."""
        self.ready: torch.cuda.Event | None = None
        """On CUDA: when the inputs are ready on the stream that made them."""

    def advance(self) -> bool:
        """Run to the next wait; False when the coroutine has ended and its result been delivered."""
        try:
            self.handle = self._coroutine.send(None)
        except StopIteration as end:
            self.handle = None
            if self.log is not None:  # what others do with the result is not this task's work
                self.log.suspend(self.log.mark())
            self._finish(end.value)
            return False
        return True

    def cancel(self, error: BaseException) -> None:
        """Abandon the coroutine and report `error` as its outcome."""
        self._coroutine.close()
        self._fail(error)
