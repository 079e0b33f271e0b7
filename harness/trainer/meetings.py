"""When ranks meet off the clock: to record, and to agree on requests to stop."""

from __future__ import annotations

import time

from gradwire.harness.comm.world.interface import World


class Meetings:
    """Ranks meet every `most_steps` steps, more often where steps are long: about every `seconds`.

    A request to stop reaches the ranks at different moments, and they may only end after the same step.
    How many steps fit is worked out from times that all ranks know, so all come to the same number.
    """

    def __init__(self, most_steps: int, seconds: float) -> None:
        self._most_steps, self._seconds = most_steps, seconds
        self.start(0)

    def start(self, done: int) -> None:
        """Count from here: `done` steps are done, and the first meeting comes after the next one."""
        self._last, self._next, self._since = done, done + 1, time.perf_counter()

    def due(self, done: int) -> bool:
        """Whether to meet after `done` steps, though nothing else calls for it."""
        return done >= self._next

    def meet(self, world: World, done: int, stop: bool) -> bool:
        """Go on when every rank has come here; returns whether any of them was asked to stop."""
        elapsed = time.perf_counter() - self._since
        rows = world.gather({rank: [float(stop), elapsed] for rank in world.ranks})
        if done > self._last:
            per_step = max(seconds for _, seconds in rows) / (done - self._last)
            steps = int(self._seconds / max(per_step, 1e-9))
            self._next = done + max(1, min(self._most_steps, steps))
        self._last, self._since = done, time.perf_counter()
        return any(asked for asked, _ in rows)
