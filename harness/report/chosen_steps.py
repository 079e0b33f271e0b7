"""Chooses the steps that represent a run in its timeline."""

from __future__ import annotations

from gradwire.harness.record.runs import Run
from gradwire.harness.record.timed_steps import recorded
from gradwire.harness.timing.trace.files import Recorded
from gradwire.harness.timing.trace.writer import sampling

STEPS = 3
"""As many steps follow one another in a view, unless asked for otherwise."""


def chosen_steps(
    run: Run, count: int = STEPS, first: int | None = None, have: Recorded | None = None
) -> list[int]:
    """At most `count` traced steps from `first` on; without it from the middle of the run, where none was
    measured. `have`: those there are, where that is known already.

    ValueError in one line where there is no trace, or it has no step `first`.
    """
    known, damage = have or recorded(run)
    if first is not None:
        if first not in known:
            every = f", of {every} steps one" if (every := sampling(known)) > 1 else ""
            raise ValueError(
                f"timeline.step={first}: {run.folder} has the steps {known[0]} to {known[-1]}{every}; choose "
                f"one of them, or leave it out{f'; {damage}' if damage else ''}"
            )
        start = known.index(first)
        return known[start : start + count]
    measured = {row["step"] for row in run.steps if row.get("measured")}
    windows = [known[at : at + count] for at in range(max(1, len(known) - count + 1))]
    # A long window may have a measured step in it wherever it is.
    usual = [steps for steps in windows if measured.isdisjoint(steps)]
    usual = usual or [steps for steps in windows if steps[0] not in measured] or windows
    return usual[len(usual) // 2]
