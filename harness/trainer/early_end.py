"""The early end of a run: agreement of ranks on requests to stop, and detection of divergence."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.harness.comm.world.interface import World
from gradwire.harness.record.directory import DIVERGED, DivergedError
from gradwire.harness.record.writer import RunWriter


class StopBarrier:
    """Makes ranks wait for each other every `most_steps` steps, or about every `seconds` if steps are long.

    A request to stop reaches the ranks at different moments, but all must end after the same step. The number
    of steps between barriers is computed from times that all ranks share, so it is the same on all.
    """

    def __init__(self, most_steps: int, seconds: float) -> None:
        self._most_steps, self._seconds = most_steps, seconds
        self.start(0)

    def start(self, done: int) -> None:
        """Starts counting: `done` steps are done, and the first barrier follows the next one."""
        self._last, self._next, self._since = done, done + 1, time.perf_counter()

    def due(self, done: int) -> bool:
        """True if a barrier follows after `done` steps, though nothing else requires one."""
        return done >= self._next

    def wait(self, world: World, done: int, stop: bool) -> bool:
        """Waits for all ranks; returns whether any of them was asked to stop."""
        elapsed = time.perf_counter() - self._since
        rows = world.gather({rank: [float(stop), elapsed] for rank in world.ranks})
        if done > self._last:
            per_step = max(seconds for _, seconds in rows) / (done - self._last)
            steps = int(self._seconds / max(per_step, 1e-9))
            self._next = done + max(1, min(self._most_steps, steps))
        self._last, self._since = done, time.perf_counter()
        return any(asked for asked, _ in rows)


class Divergence:
    """Detects divergence from steps and evaluations, which are the same on all ranks, so that all ranks
    decide alike.

    More than `max_skipped` skipped steps in a row end the run, and so does an evaluation whose loss or metric
    is not finite.
    """

    def __init__(self, max_skipped: int) -> None:
        self._max_skipped = max_skipped
        self.skipped_in_a_row = 0
        """Steps up to the last one, all of which were skipped."""
        self.reason = ""
        """The reason why the run has to end; empty while it may continue."""

    def resume(self, world: World, writer: RunWriter | None) -> None:
        """Counts the steps that were skipped in a row before this attempt, from rank 0's record."""
        count = 0 if writer is None else skipped_at_the_end(writer.steps())
        self.skipped_in_a_row = int(
            max(own for (own,) in world.gather({r: [float(count)] for r in world.ranks}))
        )

    def see_step(self, done: int, skipped: bool) -> None:
        """Takes note of the last of `done` steps."""
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if self.skipped_in_a_row > self._max_skipped:
            limit = f"train.max_skipped={self._max_skipped}"
            self._end(
                done, f"gradients not finite, steps skipped in a row: {self.skipped_in_a_row} ({limit})"
            )

    def see_evaluation(self, done: int, row: Mapping[str, Any], metric: str) -> None:
        """Takes note of a row of `evals.jsonl` after `done` steps."""
        if not (math.isfinite(row["loss"]) and math.isfinite(row[metric])):
            self._end(done, f"{metric} {row[metric]}, loss {row['loss']:g}")

    def _end(self, done: int, reason: str) -> None:
        self.reason = self.reason or f"{DIVERGED} after step {done}: {reason}"

    def raise_if_found(self) -> None:
        """Raises DivergedError with the reason, if there is one."""
        if self.reason:
            raise DivergedError(self.reason)


def skipped_at_the_end(rows: Sequence[Mapping[str, Any]]) -> int:
    """The number of skipped steps at the end of the rows of `steps.jsonl`."""
    count = 0
    for row in reversed(rows):
        if not row["skipped"]:
            break
        count += 1
    return count
