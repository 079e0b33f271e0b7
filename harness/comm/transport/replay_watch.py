"""Notices replays that do not end: NCCL's own watchdog does not see the messages of a graph."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

POLL_S = 0.5


class Event(Protocol):
    """A CUDA event, as far as it is asked."""

    def query(self) -> bool:
        """Whether what was recorded has come to its end."""
        ...


class _Watched(NamedTuple):
    event: Event
    end: float
    """When it is given up."""


class ReplayWatch:
    """Looks at the oldest replay of each communicator that it knows of, and keeps the newest one beside it,
    which follows once that one has ended: what is between them has ended before.

    If one has not ended `timeout_s` seconds after its start, `give_up` is called, once.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], None], poll_s: float = POLL_S) -> None:
        self._timeout_s, self._give_up, self._poll_s = timeout_s, give_up, poll_s
        self._oldest: dict[int, _Watched] = {}
        self._newest: dict[int, _Watched] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def started(self, communicator: int, event: Event) -> None:
        """A replay was started on this communicator, and `event` recorded after it."""
        watched = _Watched(event, time.monotonic() + self._timeout_s)
        with self._lock:
            self._oldest.setdefault(communicator, watched)
            self._newest[communicator] = watched
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="replays", daemon=True)
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
        """Forgets the replays that have ended; whether another one should have."""
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
