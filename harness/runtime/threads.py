"""Threads: a limit for calls that have none of their own, and the end of those that a script leaves running.

A thread that returns from C++ once the interpreter is gone is ended there, and the process with it
("terminate called without an active exception"): a script whose last step is over would end in SIGABRT.
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
    """A call has not returned in time."""


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Returns what `call` returns, or raises what it raises. Raises NoAnswerError if that takes longer.

    A socket whose other end belongs to a stopped process never answers, and torch's store then waits without
    end. So the call has a thread of its own, which may outlive it.
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
"""Seconds that a process waits for its threads: those that wait for other ranks may take longer."""


class Ending(Protocol):
    """A thread that ends on request."""

    def ask_to_end(self) -> None:
        """Makes it end as soon as it can."""

    def join(self, seconds: float | None = None) -> None:
        """Waits until it has ended, for so many seconds at most."""


_running: weakref.WeakSet[Ending] = weakref.WeakSet()


def end_at_exit(thread: Ending) -> None:
    """Ends the thread before the interpreter, if it still runs then."""
    _running.add(thread)


@atexit.register
def end_all() -> None:
    """Ends the threads that are left."""
    running, end = list(_running), time.monotonic() + AT_EXIT_S
    for thread in running:
        thread.ask_to_end()
    for thread in running:
        thread.join(max(0.0, end - time.monotonic()))
