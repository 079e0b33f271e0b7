"""Decides whether a failed run is restarted, at most `cluster.restarts` times."""

from __future__ import annotations

from dataclasses import replace

from gradwire.harness.launch.processes import WorkerError
from gradwire.harness.launch.verdict import Cause
from gradwire.harness.record.provenance import code_unchanged
from gradwire.harness.trainer.settings import RunConfig


def continued(config: RunConfig) -> RunConfig:
    """The configuration of a run's further attempts: `resume=never` concerns only what was there before the
    first."""
    return replace(config, resume="auto") if config.resume == "never" else config


class Restarts:
    """Counts the restarts of one run.

    Another attempt may succeed after a rank was killed, hung or lost its link. It may also succeed after an
    error or a crash of the code itself; but a run is bit-exact, so what happens twice in the same words after
    the same step will happen again. What a user has to fix ends a run at once, and so does training that has
    diverged.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed, self._used = allowed, 0
        self._last: tuple[str, int] | None = None

    def another_after(self, error: WorkerError) -> str:
        """The line that announces the next attempt. Raises WorkerError with the reason if there is none."""
        if not self._allowed:
            raise error
        reason = self._refusal(error)
        if reason:
            raise error.with_text(f"{error} (not restarted: {reason})") from None
        self._used, self._last = self._used + 1, (error.found.text, error.step)
        return f"restart {self._used} of {self._allowed}: {error.found.text}, {_progress(error.step)}"

    def _refusal(self, error: WorkerError) -> str:
        if error.found.cause is Cause.FINAL:
            return "every attempt would end so"
        if error.found.cause is Cause.OWN and self._last == (error.found.text, error.step):
            return f"the attempt before ended so, too, {_progress(error.step)}"
        if self._used == self._allowed:
            return f"cluster.restarts={self._allowed}"
        if not code_unchanged():
            return "the sources have changed since the run began"
        return ""


def _progress(step: int) -> str:
    return "before the first step" if step < 0 else f"after step {step}"
