"""When a run ends because training cannot go on: its metric is not finite, or step after step is skipped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.harness.record.directory import DIVERGED, DivergedError


class Divergence:
    """Watches steps and evaluations. They are the same on all ranks, so all ranks decide alike.

    More than `max_skipped` skipped steps in a row end the run, and so does an evaluation whose loss or metric
    is not finite.
    """

    def __init__(self, max_skipped: int) -> None:
        self._max_skipped = max_skipped
        self.skipped_in_a_row = 0
        """Steps up to the last one, all of which were skipped."""
        self.reason = ""
        """Why the run has to end; empty as long as it may go on."""

    def see_step(self, done: int, skipped: bool) -> None:
        """The last one of `done` steps, and whether it was skipped."""
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if self.skipped_in_a_row > self._max_skipped:
            limit = f"train.max_skipped={self._max_skipped}"
            self._end(
                done, f"gradients not finite, steps skipped in a row: {self.skipped_in_a_row} ({limit})"
            )

    def see_evaluation(self, done: int, row: Mapping[str, Any], metric: str) -> None:
        """A row of `evals.jsonl` after `done` steps."""
        if not (math.isfinite(row["loss"]) and math.isfinite(row[metric])):
            self._end(done, f"{metric} {row[metric]}, loss {row['loss']:g}")

    def _end(self, done: int, reason: str) -> None:
        self.reason = self.reason or f"{DIVERGED} after step {done}: {reason}"

    def raise_if_found(self) -> None:
        """Raises DivergedError with the reason, if there is one."""
        if self.reason:
            raise DivergedError(self.reason)


def skipped_at_the_end(rows: Sequence[Mapping[str, Any]]) -> int:
    """How many of the last rows of `steps.jsonl` are of skipped steps."""
    count = 0
    for row in reversed(rows):
        if not row["skipped"]:
            break
        count += 1
    return count
