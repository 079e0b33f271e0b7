"""Threads: a time limit for calls that lack one, and the end of threads that a script leaves running.

A thread that returns from C++ after the interpreter has exited aborts the process ("terminate called without
an active exception"), so that a script would end in SIGABRT after its last step.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")


class NoAnswerError(TimeoutError):
    """Raised if a call has not returned in time."""


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Returns the result of `call`, or raises its exception. Raises NoAnswerError if that takes longer than
    `seconds`.

    A socket whose other end belongs to a stopped process never answers, and torch's store then waits without
    end. So the call runs in a separate thread, which may outlive it.
    """
    returned, raised = list[Any](), list[BaseException]()

    def run() -> None:
        try:
            returned.append(call())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="within", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised.pop()
    if not returned:
        raise NoAnswerError(f"no answer within {seconds:g} s")
    result: Result = returned.pop()
    return result


AT_EXIT_S = 2.0
"""Seconds that an exiting process waits for its threads; threads that wait for other ranks may take
longer.
"""


class Ending(Protocol):
    """A thread that ends on request."""

    def ask_to_end(self) -> None:
        """Asks the thread to end as soon as it can."""

    def join(self, seconds: float | None = None) -> None:
        """Waits until the thread has ended, for at most `seconds`."""


_running: weakref.WeakSet[Ending] = weakref.WeakSet()


def end_at_exit(thread: Ending) -> None:
    """Ends the thread before the interpreter exits, if it is still running then."""
    _running.add(thread)


@atexit.register
def end_all() -> None:
    """Ends all registered threads that are left."""
    running, end = list(_running), time.monotonic() + AT_EXIT_S
    for thread in running:
        thread.ask_to_end()
    for thread in running:
        thread.join(max(0.0, end - time.monotonic()))
