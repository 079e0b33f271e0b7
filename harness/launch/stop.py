"""Treats Ctrl-C, SIGTERM and SIGUSR2 (which schedulers send before they reclaim a node) as a request to save
a checkpoint and end.

The first request is only noted and passed on to the ranks; the training loop checks for it at its next stop
barrier. A second one interrupts immediately, and so does Ctrl-C while there is nothing to save yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

from gradwire.harness.runtime.heartbeat import note_asked

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)

INTERRUPT = getattr(signal, "SIGRTMIN", signal.SIGINT)
"""The signal that a sweep sends to the process of its cells on Ctrl-C. A terminal sends SIGINT to both, and a
second SIGINT would abort the clean-up."""

ECHO_S = 3.0
"""A second signal within this many seconds counts as the first one repeated: a scheduler signals all
processes of a job, and so does torchrun when it is signalled itself. Ctrl-C is only repeated under torchrun.
"""


class Terminated(KeyboardInterrupt):
    """Raised when a signal has ended the run. The text is a message for the user; `number` is the signal."""

    def __init__(self, number: int, text: str = "interrupted") -> None:
        super().__init__(text)
        self.number = number


def how_stopped(number: int) -> str:
    """A clause that describes the effect of a signal, to begin a line with."""
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


class StopRequest:
    """A request to end the run, with its signal. Calling it returns true once the request has come."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.pass_on: Callable[[int], None] | None = None
        """Called with the signal's number when it comes."""
        self.saves: Callable[[], bool] = lambda: True
        """Returns true if there is anything to save yet, for whose sake Ctrl-C waits."""
        self.number_of_ranks: int | None = None
        """The signal by which another process has asked the ranks."""
        self._noted_at = 0.0

    def __call__(self) -> bool:
        return self.number is not None

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler in the process that owns the run."""
        if number in (signal.SIGINT, INTERRUPT):
            self._receive_interrupt()
        elif self.number is None:
            self.note(number)
        elif not self._is_echo():
            raise Terminated(number)

    def _receive_interrupt(self) -> None:
        """Handles Ctrl-C, which only torchrun repeats."""
        again = self.number is not None
        if again and "RANK" in os.environ and self._is_echo():
            return
        if again or not self.saves():
            raise KeyboardInterrupt
        self.note(signal.SIGINT)
        if sys.stderr.isatty():
            print("saving the step that runs; Ctrl-C again ends at once", file=sys.stderr, flush=True)

    def _is_echo(self) -> bool:
        return time.monotonic() - self._noted_at <= ECHO_S

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler in a rank; the owner of the run decides when to interrupt."""
        if self.number is None:
            self.number, self._noted_at = number, time.monotonic()
        if self.pass_on is not None:
            self.pass_on(number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


@contextlib.contextmanager
def stop_requests(at_once: bool = False) -> Iterator[StopRequest]:
    """Collects the requests that come during this block, in the process that owns the run.

    With `at_once` the first request interrupts, because there is nothing to save yet, only something to clean
    up. Ctrl-C interrupts anyway, so its handler is not replaced.
    """
    request = StopRequest()
    chosen = _interrupt if at_once else request.receive
    numbers = SIGNALS if at_once else (*SIGNALS, *_of_interrupts())
    try:
        previous = {number: signal.signal(number, chosen) for number in numbers}
    except ValueError:  # not in the main thread, which alone may set handlers
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _of_interrupts() -> list[int]:
    """The signals that mean Ctrl-C to this process; empty if another handler is installed."""
    both = (signal.SIGINT, INTERRUPT)
    return [number for number in both if signal.getsignal(number) is signal.default_int_handler]


def stop_requests_of_rank() -> StopRequest:
    """Collects the requests to this rank's process from now on; the process was started with them blocked.

    The signal is reported to the process that watches the ranks.
    """
    request = StopRequest()
    request.pass_on = note_asked
    signals = (signal.SIGINT, *SIGNALS)
    for number in signals:
        signal.signal(number, request.note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return request
