"""Ends the threads that a script leaves running when its process ends.

A thread that returns from C++ once the interpreter is gone is ended there, and the process with it
("terminate called without an active exception"): a script whose last step is over would end in SIGABRT.
"""

from __future__ import annotations

import atexit
import time
import weakref
from typing import Protocol

AT_EXIT_S = 2.0
"""Seconds that a process waits for its threads: those that wait for other ranks may take longer."""


class Ending(Protocol):
    """A thread that ends when it is asked to."""

    def ask_to_end(self) -> None:
        """Has it end as soon as it can."""

    def join(self, seconds: float | None = None) -> None:
        """Waits until it has ended, for so many seconds at most."""


_running: weakref.WeakSet[Ending] = weakref.WeakSet()


def end_at_exit(thread: Ending) -> None:
    """Has the thread ended before the interpreter is, if it still lives then."""
    _running.add(thread)


@atexit.register
def end_all() -> None:
    """Ends the threads that are left."""
    running, end = list(_running), time.monotonic() + AT_EXIT_S
    for thread in running:
        thread.ask_to_end()
    for thread in running:
        thread.join(max(0.0, end - time.monotonic()))
