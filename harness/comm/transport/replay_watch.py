"""Notices replays that do not end: NCCL's own watchdog does not see the messages of a graph."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

POLL_S = 0.5


class Event(Protocol):
    """A CUDA event, as far as it is asked."""

    def query(self) -> bool:
        """Whether what was recorded has come to its end."""
        ...


class ReplayWatch:
    """Looks after one replay of each communicator at a time; the next one that is started follows it.

    If one has not ended `timeout_s` seconds after it was seen, `give_up` is called, once.
    """

    def __init__(self, timeout_s: float, give_up: Callable[[], None], poll_s: float = POLL_S) -> None:
        self._timeout_s, self._give_up, self._poll_s = timeout_s, give_up, poll_s
        self._pending: dict[int, tuple[Event, float]] = {}
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def started(self, line: int, record: Callable[[], Event]) -> None:
        """A replay was started on communicator number `line`; `record` records an event after it."""
        if line in self._pending:
            return
        self._pending[line] = record(), time.monotonic() + self._timeout_s
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
            now = time.monotonic()
            for line, (event, end) in list(self._pending.items()):
                if event.query():
                    del self._pending[line]
                elif now > end:
                    self._give_up()
                    return
