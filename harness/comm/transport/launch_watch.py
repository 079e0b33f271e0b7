"""Detects launches of captured rounds that do not complete, and ends the process."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

POLL_S = 0.5
"""Seconds between two checks of launches."""

logger = logging.getLogger(__name__)


def end_process(rank: int, timeout_s: float) -> None:
    """Ends this process, as PyTorch does when NCCL's own messages time out: the launch lacks the message of a
    lost rank, so its result must not be used."""
    logger.critical(
        "gradwire: rank %d: a captured round has not completed within %g s: another rank is lost or "
        "late; this process ends",
        rank,
        timeout_s,
    )
    sys.stderr.flush()
    os._exit(1)


class Event(Protocol):
    """The methods of a CUDA event that the watch uses."""

    def query(self) -> bool:
        """Returns True if the recorded work has completed."""
        ...


class _Watched(NamedTuple):
    event: Event
    end: float
    """The time at which the launch is given up."""


class LaunchWatch:
    """Detects launches that do not complete; NCCL's own watchdog does not see the messages of a graph.

    The watch checks the oldest known launch of each communicator. It also keeps the newest, which it checks
    once the oldest has completed; launches between the two complete in order, before the newest. If a launch
    has not completed `timeout_s` seconds after its start, `give_up` is called, once.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], None], poll_s: float = POLL_S) -> None:
        self._timeout_s, self._give_up, self._poll_s = timeout_s, give_up, poll_s
        self._oldest: dict[int, _Watched] = {}
        self._newest: dict[int, _Watched] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def started(self, communicator: int, event: Event) -> None:
        """Starts watching a launch on this communicator; `event` was recorded after it."""
        watched = _Watched(event, time.monotonic() + self._timeout_s)
        with self._lock:
            self._oldest.setdefault(communicator, watched)
            self._newest[communicator] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="launches", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(self._poll_s):
            if self._is_late():
                self._give_up()
                return

    def _is_late(self) -> bool:
        """Drops the launches that have completed; returns True if one is overdue."""
        with self._lock:
            for communicator, watched in list(self._oldest.items()):
                newest = self._newest[communicator]
                if watched.event.query():
                    if newest is watched:
                        del self._oldest[communicator]
                        continue
                    self._oldest[communicator] = watched = newest
                if time.monotonic() > watched.end and not watched.event.query():
                    return True
        return False
