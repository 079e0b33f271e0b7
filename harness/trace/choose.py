"""Which steps of a run stand for it in its timeline."""

from __future__ import annotations

from gradwire.harness.report.runs import Run
from gradwire.harness.trace.files import recorded_steps

STEPS = 3
"""As many steps follow one another in a view, unless asked for otherwise."""


def chosen_steps(run: Run, count: int = STEPS, first: int | None = None) -> list[int]:
    """At most `count` steps from `first` on; without it from the middle of the run, where none was measured.

    ValueError in one line where there is no trace, or it has no step `first`.
    """
    recorded = recorded_steps(run.folder)
    if first is not None:
        if first not in recorded:
            raise ValueError(
                f"timeline.step={first}: {run.folder} has the steps {recorded[0]} to {recorded[-1]}; choose "
                "one of them, or leave it out"
            )
        start = recorded.index(first)
        return recorded[start : start + count]
    measured = {row["step"] for row in run.steps if row.get("measured")}
    windows = [recorded[at : at + count] for at in range(max(1, len(recorded) - count + 1))]
    # A long window may have a measured step in it wherever it is.
    usual = [steps for steps in windows if measured.isdisjoint(steps)]
    usual = usual or [steps for steps in windows if steps[0] not in measured] or windows
    return usual[len(usual) // 2]
