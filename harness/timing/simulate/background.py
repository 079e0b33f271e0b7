"""Background traffic on the same links: endless ring all-reduces (DynamiQ §5.2).

Each job has one process beside every rank. It sends its right neighbour a chunk, receives one from its left,
and goes on to the next step when both are through. Its flows begin and end as those of the timed job do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from gradwire.harness.network.links import Links, Route
from gradwire.harness.runtime.seeding import derive_seed

FRACTIONS = 2**53
"""Parts that a chunk is counted in: as many as a float between 0 and 1 can tell apart, so that fractions stay
exact."""


class BackgroundJobs:
    """`jobs` rings over `size` ranks that reduce `num_bytes` again and again.

    Where in a step each job is as the clock starts is drawn from `seed`: `first[j]` bytes of job j's first
    chunks are left, of all others `chunk`. ValueError without bytes or a second rank: no time would pass.
    """

    def __init__(self, jobs: int, size: int, num_bytes: float, links: Links, seed: int) -> None:
        if not num_bytes > 0 or size < 2:
            raise ValueError(
                f"background jobs need bytes to reduce and at least 2 ranks, got {num_bytes} bytes on {size}"
            )
        self.size = size
        self.chunk = num_bytes / size
        drawn = random.Random(derive_seed(seed, "rivals"))  # this word is part of every recorded draw
        self.first = [self.chunk * (FRACTIONS - drawn.getrandbits(53)) / FRACTIONS for _ in range(jobs)]
        self.routes: Sequence[Route] = [links.route(rank, (rank + 1) % size) for rank in range(size)]
        """By rank: what it sends takes the links to its right neighbour."""

    def begin(self) -> BackgroundRun:
        return BackgroundRun(self)


class BackgroundRun:
    """The background jobs as the clock runs. Flow j·size + r is what rank r's process of job j sends."""

    def __init__(self, background: BackgroundJobs) -> None:
        self._background, self._size = background, background.size
        self.flows = range(len(background.first) * background.size)
        """Those that are under way when the clock starts."""
        self._steps = [0] * len(self.flows)
        self._open = [2] * len(self.flows)

    def route(self, flow: int) -> Route:
        return self._background.routes[flow % self._size]

    def bytes(self, flow: int) -> Any:
        """What the flow has to carry from now on."""
        return self._background.chunk if self._steps[flow] else self._background.first[flow // self._size]

    def arrived(self, flow: int) -> list[int]:
        """A chunk has come through: the flows that begin with that."""
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
