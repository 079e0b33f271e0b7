"""The spans of one rank on one clock: what it computed, compressed and had on the wire, and when."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

Kind = Literal["compute", "codec", "comm"]

stamp = time.perf_counter
"""The clock of real timelines, in seconds; monotonic, shared by the threads of a process."""


class Span(NamedTuple):
    """`compute`: forward, backward, optimizer. `codec`: encode, decode, accumulate, statistics, bit
    allocation. `comm`: bytes in flight, with `bytes` of them. `start` and `end` in seconds."""

    kind: Kind
    start: float
    end: float
    bytes: int = 0
    label: str = ""


class Timeline:
    """Collects spans from any thread without locks; one thread drains it, once a step.

    On a real run the main thread records `compute` (forward to the last gradient being ready, without the
    time it was blocked, and the optimizer) and the communication thread records `codec` and `comm`.
    `Timeline(enabled=False)` keeps nothing: a run with it shows what the recording costs.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._spans: list[Span] = []
        self._drained = 0

    @property
    def total(self) -> int:
        """Spans recorded so far, those taken out included."""
        return self._drained + len(self._spans)

    def add(self, kind: Kind, start: float, end: float, num_bytes: int = 0, label: str = "") -> None:
        """Record one span; appending to a list is atomic, so threads need no lock."""
        if self.enabled:
            self._spans.append(Span(kind, start, end, num_bytes, label))

    def drain(self) -> list[Span]:
        """Take out what was recorded so far, in the order of recording.

        Copying and deleting a prefix, not swapping the list: a thread inside `add` may hold the old list.
        """
        count = len(self._spans)
        drained = self._spans[:count]
        del self._spans[:count]
        self._drained += count
        return drained


def event_cost(events: int = 2000, repeats: int = 5) -> float:
    """Seconds that recording one span costs here: two stamps and one `add`, the fastest of `repeats` loops.

    Events per step times this is the share of a step that measuring takes.
    """
    timeline = Timeline()
    fastest = float("inf")
    for _ in range(repeats):
        begin = stamp()
        for _ in range(events):
            start = stamp()
            timeline.add("codec", start, stamp(), 0, "encode")
        fastest = min(fastest, stamp() - begin)
        timeline.drain()
    return fastest / events
