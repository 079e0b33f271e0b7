"""Barriers off the clock: ranks record rows, and agree on requests to stop."""

from __future__ import annotations

import time

from gradwire.harness.comm.world.interface import World


class StopBarrier:
    """Ranks wait for each other every `most_steps` steps, or about every `seconds` where steps are long.

    A request to stop reaches the ranks at different moments, but all must end after the same step. The number
    of steps between barriers follows from times that all ranks know, so all compute the same number.
    """

    def __init__(self, most_steps: int, seconds: float) -> None:
        self._most_steps, self._seconds = most_steps, seconds
        self.start(0)

    def start(self, done: int) -> None:
        """Counts from here: `done` steps are done, and the first barrier comes after the next one."""
        self._last, self._next, self._since = done, done + 1, time.perf_counter()

    def due(self, done: int) -> bool:
        """Whether to wait for each other after `done` steps, though nothing else requires it."""
        return done >= self._next

    def wait(self, world: World, done: int, stop: bool) -> bool:
        """Returns when every rank has come here: whether any of them was asked to stop."""
        elapsed = time.perf_counter() - self._since
        rows = world.gather({rank: [float(stop), elapsed] for rank in world.ranks})
        if done > self._last:
            per_step = max(seconds for _, seconds in rows) / (done - self._last)
            steps = int(self._seconds / max(per_step, 1e-9))
            self._next = done + max(1, min(self._most_steps, steps))
        self._last, self._since = done, time.perf_counter()
        return any(asked for asked, _ in rows)
