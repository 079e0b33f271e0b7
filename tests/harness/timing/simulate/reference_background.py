"""Background jobs in plain Python, step by step: what the compiled ones are compared with."""

from __future__ import annotations

from typing import Any

from gradwire.harness.network.links import LinkRoute
from gradwire.harness.timing.simulate.background import BackgroundJobs


class BackgroundRun:
    """The background jobs as the clock runs. Flow j·size + r is what rank r's process of job j sends."""

    def __init__(self, background: BackgroundJobs) -> None:
        self._background, self._size = background, background.size
        self.flows = range(len(background.first) * background.size)
        """Those that are under way when the clock starts."""
        self._steps = [0] * len(self.flows)
        self._open = [2] * len(self.flows)

    def route(self, flow: int) -> LinkRoute:
        return self._background.routes[flow % self._size]

    def bytes(self, flow: int) -> Any:
        """The bytes of the flow's next chunk; those of the first one may be fewer."""
        return self._background.chunk if self._steps[flow] else self._background.first[flow // self._size]

    def arrived(self, flow: int) -> list[int]:
        """Notes that a chunk has arrived; returns the flows that begin with that."""
        job, rank = divmod(flow, self._size)
        started: list[int] = []
        for end in (rank, (rank + 1) % self._size):
            process = job * self._size + end
            self._open[process] -= 1
            if self._open[process] == 0:
                started += self._next_step(job, end)
        return started

    def _next_step(self, job: int, rank: int) -> list[int]:
        """A process posts its next step; flows start that both ends have posted."""
        base, size = job * self._size, self._size
        left, right = base + (rank - 1) % size, base + (rank + 1) % size
        own = base + rank
        self._steps[own] += 1
        self._open[own] = 2
        found = [own] if self._steps[right] == self._steps[own] else []
        return found + ([left] if self._steps[left] == self._steps[own] else [])
